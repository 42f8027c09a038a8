//! Message of the condition `Caching` of an account: the kinds left out of the tables, with reasons, in one bounded
//! text that is the same for the same reasons. Pure.

use std::collections::BTreeSet;

use super::classes::KindClasses;
use super::findings::Setting;
use super::native;
use super::rules::AccountRules;
use crate::failure::truncate;
use crate::spec::KubesvcAccountSpec;
use crate::wire::common::failure::Class;

/// Maximum length of the summary of an account, in bytes: that of a reason in an outbox.
pub(crate) const MAX_SUMMARY_BYTES: usize = 256;
/// Maximum length of one reason, in bytes.
const MAX_REASON_BYTES: usize = 120;
/// Maximum number of findings about an account's settings in a condition; further ones are counted.
const MAX_FINDINGS: usize = 3;
/// Room for the count of omitted reasons, in bytes.
const COUNT_BYTES: usize = "; and 4294967295 more".len();

/// A reason for which a kind, or part of it, is not in the tables.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CacheIssue {
    /// `Kind.group`, or the kind alone in the core group.
    pub kind: String,
    /// The reason, to follow `Kind.group: `.
    pub why: String,
}

impl CacheIssue {
    /// Makes an issue from an agent's text, truncated for display.
    pub fn new(group: &str, kind: &str, why: &str) -> Self {
        Self { kind: line(&native::qualified(group, kind)), why: line(why) }
    }
}

/// Reason for which a watched kind is not read, with the same words for each failure of a class: the server's message
/// varies, and is in `kubesvc_resourceversion.problem`.
pub fn why_unread(class: Class, message: &str) -> String {
    let why = match class {
        Class::Auth => "the cluster refuses the credential",
        Class::Forbidden => "the credential may not list and watch it",
        Class::Unreachable => "the cluster cannot be reached",
        Class::Tls => "TLS with the cluster fails",
        Class::Timeout => "the cluster does not answer in time",
        Class::NotFound => "the cluster does not serve it any more",
        Class::Unimplemented => "it cannot be listed and watched",
        Class::TooLarge => "the cluster finds it too large",
        _ => message,
    };
    why.to_owned()
}

/// An agent's text for display: one line of at most 120 bytes.
fn line(text: &str) -> String {
    let words =
        text.split(|one: char| one.is_whitespace() || one.is_control()).filter(|word| !word.is_empty());
    let mut line = words.collect::<Vec<_>>().join(" ");
    truncate(&mut line, MAX_REASON_BYTES);
    line
}

/// Whether an agent with this failure can read nothing of the cluster, while another agent may.
pub fn is_out_of_reach(class: Class) -> bool {
    matches!(class, Class::Unreachable | Class::Tls | Class::Timeout)
}

/// `Kind.group: why` of the first reasons in order, and the number of further ones; at most 256 bytes. `None` if
/// nothing is left out.
pub fn summary(issues: &BTreeSet<CacheIssue>) -> Option<String> {
    let lines = issues.iter().map(|CacheIssue { kind, why }| format!("{kind}: {why}"));
    joined(lines, issues.len(), MAX_SUMMARY_BYTES)
}

/// Joins the first of `count` lines that fit, and the number of those that do not. The first is always included.
fn joined(lines: impl Iterator<Item = String>, count: usize, max: usize) -> Option<String> {
    let (mut text, mut shown) = (String::new(), 0);
    for mut line in lines {
        let is_last = shown + 1 == count;
        let room = max - if is_last { 0 } else { COUNT_BYTES };
        if shown == 0 {
            truncate(&mut line, room);
        } else if text.len() + 2 + line.len() > room {
            break;
        } else {
            text.push_str("; ");
        }
        text.push_str(&line);
        shown += 1;
    }
    match count - shown {
        _ if shown == 0 => None,
        0 => Some(text),
        more => Some(format!("{text}; and {more} more")),
    }
}

/// Message of the condition `Caching` with the reason `LeftOut`: defects of the account's own settings, and the agent's
/// omissions. `None` if nothing is left out.
pub(crate) fn condition_message(spec: &KubesvcAccountSpec, left_out: Option<&str>) -> Option<String> {
    let (_, mut findings) = AccountRules::from_spec(spec, false);
    let (_, of_classes) = KindClasses::read(&[(Setting::CustomResources, spec.custom_resources.as_slice())]);
    findings.extend(of_classes);
    let lines = findings.iter().take(MAX_FINDINGS).map(ToString::to_string);
    let mut lines: Vec<_> = lines.chain(left_out.map(str::to_owned)).collect();
    let more = findings.len().saturating_sub(MAX_FINDINGS);
    if more > 0 {
        lines.push(format!("and {more} more about its settings"));
    }
    (!lines.is_empty()).then(|| lines.join("; "))
}

#[cfg(test)]
mod tests;
