//! Prints the effective settings.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde_json::Value;

use super::error::Origin;
use super::keys::fold;
use super::kind::SettingType;
use super::row::SettingUse;
use super::values::{EffectiveSetting, Values};

/// Replaces a value that is not shown.
const HIDDEN_VALUE: &str = "***";

/// See [`Loaded::print`](super::Loaded::print).
pub(crate) fn effective(values: &Values) -> String {
    let mut out = String::new();
    let mut open: Vec<&str> = Vec::new();
    let mut lists = BTreeSet::new();
    for row in values.spec.rows.iter().filter(|row| matches!(row.used, SettingUse::Read(_))) {
        if let Some((list, _)) = row.key.split_once("[]") {
            if lists.insert(list) {
                let groups: Vec<_> = list.split('.').collect();
                open_groups(&mut out, &open, &groups[..groups.len() - 1]);
                print_list(&mut out, values, list, groups.len() - 1);
                open = groups;
            }
            continue;
        }
        if let Some((map, _)) = row.key.split_once(".*.") {
            if lists.insert(map) {
                let groups: Vec<_> = map.split('.').collect();
                open_groups(&mut out, &open, &groups[..groups.len() - 1]);
                print_named_groups(&mut out, values, map, groups.len() - 1);
                open = groups;
            }
            continue;
        }
        let mut groups: Vec<_> = row.key.split('.').collect();
        let Some(name) = groups.pop() else { continue };
        open_groups(&mut out, &open, &groups);
        let depth = groups.len();
        if name != "*" {
            if let Some(slot) = values.slots.get(&fold(&row.key)) {
                line(&mut out, depth, name, &yaml(slot), &slot.origin.to_string());
            }
        } else {
            let prefix = format!("{}.", fold(&groups.join(".")));
            for (id, slot) in values.slots.range(prefix.clone()..) {
                let Some(name) = id.strip_prefix(&prefix) else { break };
                line(&mut out, depth, &chosen_name(name), &yaml(slot), &slot.origin.to_string());
            }
        }
        open = groups;
    }
    for unread in values.unread.values() {
        let why = if unread.row.without_effect().is_some() { "has no effect" } else { "is not read yet" };
        let _ = writeln!(out, "# {} {why}  # {}", unread.row.key, unread.first);
    }
    for ignored in &values.ignored {
        let _ = writeln!(out, "# {}", in_one_line(ignored));
    }
    out
}

/// Writes the names of the groups that are not open yet.
fn open_groups(out: &mut String, open: &[&str], groups: &[&str]) {
    let same = open.iter().zip(groups).take_while(|(a, b)| a == b).count();
    for (depth, group) in groups.iter().enumerate().skip(same) {
        line(out, depth, group, "", "");
    }
}

/// Writes a list of groups, with what is set in each.
fn print_list(out: &mut String, values: &Values, list: &str, depth: usize) {
    let name = list.rsplit('.').next().unwrap_or(list);
    let Some(listed) = values.listed(list) else {
        return line(out, depth, name, "[]", &Origin::Default.to_string());
    };
    if listed.len == 0 {
        return line(out, depth, name, "[]", "");
    }
    line(out, depth, name, "", "");
    for index in 0..listed.len {
        let rows = values.spec.rows.iter().filter_map(|row| {
            let name = row.key.strip_prefix(list)?.strip_prefix("[].")?;
            Some((name, values.slots.get(&fold(&format!("{list}[{index}].{name}")))?))
        });
        let mut bullet = "- ";
        for (name, slot) in rows {
            line(out, depth + 1, &format!("{bullet}{name}"), &yaml(slot), &slot.origin.to_string());
            bullet = "  ";
        }
    }
}

/// Writes a group whose members have names chosen by the user, with what is set in each.
fn print_named_groups(out: &mut String, values: &Values, map: &str, depth: usize) {
    let group = map.rsplit('.').next().unwrap_or(map);
    let named = values.named_groups(map);
    if named.is_empty() {
        return line(out, depth, group, "{}", &Origin::Default.to_string());
    }
    line(out, depth, group, "", "");
    for (name, settings) in named {
        line(out, depth + 1, &chosen_name(name), "", "");
        for (key, slot) in settings {
            line(out, depth + 2, key, &yaml(slot), &slot.origin.to_string());
        }
    }
}

/// A name chosen by the user. Brackets keep its dots from being read as groups.
fn chosen_name(name: &str) -> String {
    quoted(&if name.contains('.') { format!("[{name}]") } else { name.to_owned() })
}

/// Replaces control characters, since file names and keys come from outside and must not end the comment.
fn in_one_line(comment: &str) -> String {
    comment.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

fn line(out: &mut String, depth: usize, name: &str, value: &str, comment: &str) {
    let _ = write!(out, "{:1$}{name}:", "", depth * 2);
    if !value.is_empty() {
        let _ = write!(out, " {value}");
    }
    if !comment.is_empty() {
        let _ = write!(out, "  # {}", in_one_line(comment));
    }
    out.push('\n');
}

fn yaml(EffectiveSetting { row, value, .. }: &EffectiveSetting) -> String {
    match value {
        Value::String(_) if matches!(row.kind, SettingType::Password | SettingType::Token) => {
            quoted(HIDDEN_VALUE)
        }
        Value::String(url) if row.kind.is_secret() => quoted(&redact_url(url)),
        value => flow(value),
    }
}

/// A value in YAML's flow style. The keys of its mappings are plain words.
fn flow(value: &Value) -> String {
    let joined = |parts: Vec<String>| parts.join(", ");
    match value {
        Value::Array(items) => format!("[{}]", joined(items.iter().map(flow).collect())),
        Value::Object(entries) => {
            let entries = entries.iter().map(|(key, value)| format!("{key}: {}", flow(value)));
            format!("{{{}}}", joined(entries.collect()))
        }
        Value::Number(number) if number.is_f64() => number.as_f64().unwrap_or_default().to_string(),
        value => value.to_string(),
    }
}

/// Quotes text for YAML. Every JSON string is a YAML string.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// A database URL without its password and without the values of parameters that look like secrets. Returns `***` if
/// a password cannot be told apart, such as in an invalid URL.
pub fn redact_url(url: &str) -> String {
    let sqlite = url.starts_with("sqlite:");
    if sqlite && !url.contains('?') {
        return url.to_owned();
    }
    let Ok(mut parsed) = url::Url::parse(url) else { return HIDDEN_VALUE.to_owned() };
    // An unescaped `/`, `?` or `#` in a password ends the authority too early.
    let cut = |part: Option<&str>| part.is_some_and(|part| part.contains('@'));
    if !sqlite && (cut(Some(parsed.path())) || cut(parsed.query()) || cut(parsed.fragment())) {
        return HIDDEN_VALUE.to_owned();
    }
    if parsed.password().is_some() && parsed.set_password(Some(HIDDEN_VALUE)).is_err() {
        return HIDDEN_VALUE.to_owned();
    }
    let hidden = |name: &str| {
        let name = name.to_ascii_lowercase();
        ["pass", "pwd", "secret", "token", "key"].iter().any(|word| name.contains(word))
    };
    if parsed.query_pairs().any(|(name, _)| hidden(&name)) {
        let pairs: Vec<(String, String)> = parsed
            .query_pairs()
            .map(|(name, value)| {
                let value = if hidden(&name) { HIDDEN_VALUE.to_owned() } else { value.into_owned() };
                (name.into_owned(), value)
            })
            .collect();
        parsed.query_pairs_mut().clear().extend_pairs(pairs);
    }
    parsed.into()
}
