//! Object names derived from arbitrary names.

use sha2::{Digest, Sha256};
use unicode_properties::{GeneralCategory, UnicodeGeneralCategory};

use super::KubesvcAccountSpec;
use crate::ids::{AgentId, ZoneId};

/// Maximum length of the slug in an object name, in bytes.
const MAX_SLUG: usize = 200;
/// Maximum length of the slug in a label value, in bytes: 63 with the dash and the digest.
const MAX_LABEL_SLUG: usize = 54;

/// Path of a subresource of an account in its API group, `proxy.kubesvc.io`.
pub fn account_api_path(namespace: &str, name: &str, subresource: &str) -> String {
    format!("/apis/proxy.kubesvc.io/v1alpha1/namespaces/{namespace}/accounts/{name}/{subresource}")
}

/// Whether a name can be used as an object name unchanged: a DNS label of at most 63 characters.
pub fn is_dns_label(name: &str) -> bool {
    let bytes = name.as_bytes();
    let inner = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-';
    (1..=63).contains(&bytes.len())
        && bytes.iter().all(inner)
        && bytes.first() != Some(&b'-')
        && bytes.last() != Some(&b'-')
}

/// Whether a name can be that of a Secret: DNS labels joined by dots, at most 253 characters in total.
pub fn is_dns_subdomain(name: &str) -> bool {
    name.len() <= 253
        && name.split('.').all(|label| !label.is_empty() && !label.starts_with('-') && !label.ends_with('-'))
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'.'))
}

/// Why a character is not allowed in an agent's id or zone. People judge agents by what a terminal shows of these, so
/// they must not contain characters that are invisible, reverse the text, or look like a space but are none.
fn fault(letter: char) -> Option<&'static str> {
    use GeneralCategory as C;
    match letter.general_category() {
        C::Control => Some("a control character"),
        C::Format => Some("a format character, which is not seen"),
        C::PrivateUse => Some("a character for private use"),
        C::Unassigned | C::Surrogate => Some("a character that Unicode does not know"),
        C::LineSeparator | C::ParagraphSeparator => Some("a separator of lines"),
        C::SpaceSeparator if letter != ' ' => Some("a blank that is no space"),
        _ => None,
    }
}

/// Whether a character controls a terminal, or hides or reorders the text beside it: a control or format character, a
/// separator of lines, or one of the blocks that Unicode keeps for such characters.
pub fn is_hidden(letter: char) -> bool {
    use GeneralCategory as C;
    matches!(letter.general_category(), C::Control | C::Format | C::LineSeparator | C::ParagraphSeparator)
        || matches!(letter, '\u{2060}'..='\u{206f}' | '\u{e0000}'..='\u{e007f}')
}

/// What an agent's id or zone has that it must not have, to go on in a sentence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("has {what} (U+{:04X})", u32::from(*.letter))]
pub struct AgentNameError {
    letter: char,
    what: &'static str,
}

/// Whether a text can be an agent's id or zone.
///
/// # Errors
/// The first forbidden character, with its code point.
pub fn check_agent_name(text: &str) -> Result<(), AgentNameError> {
    let wrong = text.chars().find_map(|letter| Some(AgentNameError { letter, what: fault(letter)? }));
    wrong.map_or(Ok(()), Err)
}

/// Whether a text can be the value of a label.
pub fn is_label_value(text: &str) -> bool {
    let bytes = text.as_bytes();
    let edge = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    bytes.len() <= 63
        && edge(bytes.first())
        && edge(bytes.last())
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte))
}

/// The object name for an account name: the name itself if it is a DNS label, otherwise a slug of at most 200
/// characters, a dash and 8 hex digits of the name's SHA-256.
pub fn object_name(account_name: &str) -> String {
    if is_dns_label(account_name) { account_name.to_owned() } else { derived(&[account_name]) }
}

/// The object name for an agent's own account if a declared one has that of [`object_name`].
pub fn object_name_beside(account_name: &str) -> String {
    derived(&[account_name, "agent"])
}

/// The name of the KubesvcAgent for an agent in a zone.
pub fn agent_object_name(agent_id: &AgentId, zone_id: &ZoneId) -> String {
    derived(&[agent_id.as_str(), zone_id.as_str()])
}

/// The name of the Secret that holds the kubeconfig of an account created by REST.
pub fn credential_secret_name(object_name: &str) -> String {
    format!("{object_name}-kubeconfig")
}

/// The label value for a name: the name itself if it is a valid value, otherwise a slug of at most 54 characters, a
/// dash and 8 hex digits of the name's SHA-256.
pub(crate) fn label_value(name: &str) -> String {
    if is_label_value(name) { name.to_owned() } else { shortened(&[name], MAX_LABEL_SLUG) }
}

/// An object name, or the end of one, for any text: a slug of at most 200 characters, a dash and 8 hex digits of the
/// text's SHA-256.
pub fn derived_name(name: &str) -> String {
    derived(&[name])
}

/// A digest of an account name for lists that must stay small: 16 hex digits of its SHA-256.
pub fn digest(account_name: &str) -> String {
    hex::encode(&Sha256::digest(account_name)[..8])
}

/// A digest, for the same lists, of an account name and its kubeconfig: its source, its context, and whether the
/// server is verified.
pub fn source_digest(account_name: &str, spec: &KubesvcAccountSpec) -> String {
    let source = spec.agent_source();
    let mut digest = Sha256::new();
    for part in [account_name, source.file.as_deref().unwrap_or_default()] {
        digest.update(Sha256::digest(part));
    }
    digest.update(Sha256::digest(spec.context.as_deref().unwrap_or_default()));
    digest.update([u8::from(source.service_account == Some(true)), u8::from(spec.insecure == Some(true))]);
    hex::encode(&digest.finalize()[..8])
}

fn derived(parts: &[&str]) -> String {
    shortened(parts, MAX_SLUG)
}

fn shortened(parts: &[&str], max_slug: usize) -> String {
    let mut slug = String::new();
    for character in parts.join("-").chars() {
        let character = character.to_ascii_lowercase();
        if character.is_ascii_lowercase() || character.is_ascii_digit() {
            slug.push(character);
        } else if !slug.ends_with('-') && !slug.is_empty() {
            slug.push('-');
        }
        if slug.len() >= max_slug {
            break;
        }
    }
    let slug = slug.trim_end_matches('-');
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part.as_bytes());
        hash.update([0]);
    }
    let digest = hex::encode(&hash.finalize()[..4]);
    if slug.is_empty() { format!("x-{digest}") } else { format!("{slug}-{digest}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agents_name_holds_nothing_that_is_not_seen_or_deceives() {
        for good in ["agent-1", "spinnaker agent", "d_n", "Straße", "東京-1", "a.b:c/d@e", "🚀", "e\u{301}"]
        {
            assert_eq!(check_agent_name(good), Ok(()), "{good:?}");
        }
        for (bad, why) in [
            ("a\nb", "a control character (U+000A)"),
            ("a\u{7f}", "a control character (U+007F)"),
            ("agent\u{202e}1", "(U+202E)"),
            ("agent\u{200b}", "format character"),
            ("a\u{feff}b", "(U+FEFF)"),
            ("a\u{ad}b", "(U+00AD)"),
            ("a\u{e000}", "private use"),
            ("a\u{378}", "does not know"),
            ("a\u{a0}b", "a blank that is no space (U+00A0)"),
            ("a\u{3000}b", "a blank that is no space"),
            ("a\u{2028}b", "a separator of lines"),
        ] {
            let problem = check_agent_name(bad).expect_err(bad).to_string();
            assert!(problem.contains(why), "{bad:?}: {problem}");
        }
    }

    #[test]
    fn a_dns_label_names_its_own_object() {
        assert_eq!(object_name("prod-1"), "prod-1");
    }

    #[test]
    fn names_that_differ_get_objects_that_differ() {
        let names =
            ["Prod", "prod ", "a/b", "a.b", "ü", "🦀", "-", "a\"b", &"x".repeat(255), &"x".repeat(254)];
        let mut objects: Vec<_> = names.iter().map(|name| object_name(name)).collect();
        for object in &objects {
            assert!(object.len() <= 253, "{object} is too long");
            assert!(
                object.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-'),
                "{object}"
            );
            assert!(!object.starts_with('-') && !object.ends_with('-'), "{object}");
        }
        objects.sort();
        objects.dedup();
        assert_eq!(objects.len(), names.len());
    }

    #[test]
    fn digests_of_names_are_short_and_differ() {
        assert_eq!(digest("prod").len(), 16);
        assert_ne!(digest("prod"), digest("Prod"));
    }

    #[test]
    fn an_account_that_is_listed_in_another_way_has_another_digest() {
        type Change = fn(&mut KubesvcAccountSpec);
        let plain = KubesvcAccountSpec::default();
        let changes: [Change; 4] = [
            |spec| spec.kubeconfig.file = Some("/k".into()),
            |spec| spec.kubeconfig.service_account = Some(true),
            |spec| spec.context = Some("/k".into()),
            |spec| spec.insecure = Some(true),
        ];
        let changed = changes.map(|change| {
            let mut spec = plain.clone();
            change(&mut spec);
            source_digest("prod", &spec)
        });
        let all: std::collections::BTreeSet<_> = changed
            .into_iter()
            .chain([source_digest("prod", &plain), source_digest("Prod", &plain)])
            .collect();
        assert_eq!(all.len(), 6);
        let same = KubesvcAccountSpec { insecure: Some(false), metrics: Some(true), ..plain };
        assert!(all.contains(&source_digest("prod", &same)), "nothing else matters");
    }

    #[test]
    fn an_agent_in_two_zones_is_two_objects() {
        assert_ne!(
            agent_object_name(&"a".into(), &"b-c".into()),
            agent_object_name(&"a-b".into(), &"c".into())
        );
    }
}
