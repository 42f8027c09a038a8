//! The fields of an entry that have no effect, kept in an annotation so that [`restored`](super::restored) gives them
//! back.
//!
//! Everyone who may read the object reads the annotation, so a field that may hold a credential is dropped. Of a field that
//! is not known only short words, flags and numbers are kept: the source still has the rest.

use serde_json::{Map, Value};

use kubesvc_core::secret_reference::{is_reference, shown};
use kubesvc_core::{CLOUDDRIVER_DEFINITION_ANNOTATION, KubesvcAccount};

use super::credential::EntryCredential;
use super::report::Report;

/// Maximum size of the annotation, in bytes. The annotations of an object have at most 256 KiB together.
const MAX_KEPT_BYTES: usize = 16 * 1024;
/// Maximum length of a text that is kept, in bytes. Longer ones may be keys or certificates.
const MAX_KEPT_TEXT_BYTES: usize = 256;
/// Maximum depth of a value that is kept.
const MAX_KEPT_DEPTH: usize = 8;

/// Clouddriver's fields that have no effect here, whose texts may be of any form.
const KNOWN_FIELDS: [&str; 4] =
    ["context", "kubectlExecutable", "namingStrategy", "rawResourcesEndpointConfig"];
/// Maximum length of a text of a field that is not known, in bytes.
const MAX_UNKNOWN_TEXT_BYTES: usize = 64;

/// Parts of a field's name, in lower case without separators, that suggest a credential.
const CREDENTIAL_NAMES: [&str; 13] = [
    "kubeconfig",
    "token",
    "pass",
    "pwd",
    "secret",
    "credential",
    "key",
    "cert",
    "auth",
    "login",
    "bearer",
    "cookie",
    "contents",
];

/// Parts of a text, in lower case, that suggest a credential.
const CREDENTIAL_TEXTS: [&str; 6] = ["-----begin", "eyj", "token", "password", "secret", "bearer "];

/// The fields to keep: those that hold no credential, and the path of a kubeconfig that only Clouddriver has.
pub(super) fn kept(
    without_effect: Map<String, Value>,
    credential: Option<&EntryCredential>,
    report: &mut Report,
) -> Map<String, Value> {
    let mut kept = Map::new();
    if let Some(EntryCredential::FileOnClouddriver(path)) = credential {
        kept.insert("kubeconfigFile".to_owned(), Value::from(path.as_str()));
    }
    let mut left_bytes = MAX_KEPT_BYTES;
    for (field, value) in without_effect {
        let shown: String = field.chars().take(64).collect();
        let is_known = KNOWN_FIELDS.contains(&field.as_str());
        if !may_be_kept(&field, &value, MAX_KEPT_DEPTH) || !(is_known || is_plain(&value)) {
            report.warn(format!("{shown} is not kept: it may hold a credential"));
            continue;
        }
        let bytes = field.len() + value.to_string().len() + 6;
        match left_bytes.checked_sub(bytes) {
            Some(left) => {
                left_bytes = left;
                kept.insert(field, value);
            }
            None => report.warn(format!("{TOO_LARGE} {} KiB together", MAX_KEPT_BYTES / 1024)),
        }
    }
    kept
}

const TOO_LARGE: &str = "some fields without effect are not kept: they have over";

/// The fields that were kept of an account's entry.
pub(super) fn of(account: &KubesvcAccount) -> Map<String, Value> {
    let annotation = account.annotation(CLOUDDRIVER_DEFINITION_ANNOTATION);
    annotation.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}

fn may_be_kept(name: &str, value: &Value, depth: usize) -> bool {
    if has_credential_name(name) || depth == 0 {
        return false;
    }
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => true,
        Value::String(text) => may_be_shown(text),
        Value::Array(items) => items.iter().all(|item| may_be_kept("", item, depth - 1)),
        Value::Object(fields) => fields.iter().all(|(name, value)| may_be_kept(name, value, depth - 1)),
    }
}

/// Whether all texts of a value are short words: neither an address, nor a login, nor a list of settings. `value` is nested
/// at most [`MAX_KEPT_DEPTH`] deep.
fn is_plain(value: &Value) -> bool {
    let is_word = |one: char| one.is_alphanumeric() || matches!(one, ' ' | '.' | '_' | '-');
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => true,
        Value::String(text) => {
            is_reference(text) || (text.len() <= MAX_UNKNOWN_TEXT_BYTES && text.chars().all(is_word))
        }
        Value::Array(items) => items.iter().all(is_plain),
        Value::Object(fields) => fields.values().all(is_plain),
    }
}

fn has_credential_name(name: &str) -> bool {
    let letters: String = name.chars().filter(|letter| letter.is_alphanumeric()).collect();
    let letters = letters.to_lowercase();
    CREDENTIAL_NAMES.iter().any(|part| letters.contains(part))
}

fn may_be_shown(text: &str) -> bool {
    if is_reference(text) {
        return shown(text).is_some_and(|shown| shown == text);
    }
    let lower = text.to_lowercase();
    let has_login = text.split_once("://").is_some_and(|(_, rest)| rest.contains('@'));
    text.len() <= MAX_KEPT_TEXT_BYTES
        && !text.contains(char::is_control)
        && !has_login
        && !CREDENTIAL_TEXTS.iter().any(|part| lower.contains(part))
}
