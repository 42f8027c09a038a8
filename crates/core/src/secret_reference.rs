//! Spinnaker's secret references: their syntax, which Secret they name, and what of them may be shown.
//!
//! | form | syntax |
//! |---|---|
//! | encrypted value, encrypted file | `encrypted:ENGINE!key:value!key:value`, `encryptedFile:ENGINE!…` |
//! | user secret | `secret://ENGINE?key=value&key=value`, percent-encoded |
//!
//! All three stand for the content of the secret. A value of the first two may contain `:` but never `!`. Errors name
//! a position and not the text: a part of a malformed reference may be a part of a secret.

use std::borrow::Cow;
use std::fmt::Write;

use percent_encoding::percent_decode_str;

use super::KubesvcAccount;
use super::object_names::{is_dns_label, is_dns_subdomain};
use super::spec::KubeconfigSource;

/// The prefixes of references.
pub(crate) const PREFIXES: [&str; 3] = ["encrypted:", "encryptedFile:", "secret://"];
/// Maximum length of a reference, in characters.
pub(crate) const MAX_REFERENCE_CHARS: usize = 2048;
/// Maximum length of an engine's name, in bytes.
const MAX_ENGINE_BYTES: usize = 64;
/// Replaces the value of a reference that is the secret itself.
const REDACTED: &str = "redacted";
/// The engine whose references contain the secret itself.
const NOOP: &str = "noop";
/// The engine that reads Secrets.
const K8S: &str = "k8s";

/// The engines of Spinnaker and of kubesvc, each with its required and its optional parameters.
const ENGINES: [(&str, &[&str], &[&str]); 8] = [
    ("file", &["p"], &[]),
    ("gcs", &["b", "f"], &["k"]),
    ("google-secrets-manager", &["p", "s"], &["v", "k"]),
    (K8S, &["n", "k"], &["ns"]),
    (NOOP, &["v"], &[]),
    ("s3", &["b", "r", "f"], &["k"]),
    ("secrets-manager", &["r", "s"], &["k"]),
    ("vault", &["e", "k"], &["p", "n", "b"]),
];

/// A parsed reference. Has no `Debug`: a reference of the engine `noop` contains the secret itself.
#[derive(Clone, PartialEq, Eq)]
pub struct Reference {
    prefix: &'static str,
    engine: String,
    parameters: Vec<(String, String)>,
}

/// Why a reference is refused. Contains no value, and no key that may be a part of one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ReferenceError(String);

/// A key of a Secret, as named by a reference of the engine `k8s`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretKey<'r> {
    /// Namespace of the Secret.
    pub namespace: &'r str,
    /// Name of the Secret.
    pub name: &'r str,
    /// Key in the Secret.
    pub key: &'r str,
}

fn refuse<T>(why: impl Into<String>) -> Result<T, ReferenceError> {
    Err(ReferenceError(why.into()))
}

/// Whether a text is meant as a reference, valid or not.
pub fn is_reference(text: &str) -> bool {
    PREFIXES.iter().any(|prefix| text.starts_with(prefix))
}

impl Reference {
    /// Parses a reference. Does not check whether its engine exists and accepts the parameters.
    ///
    /// # Errors
    /// The text is not a well-formed reference.
    pub fn parse(text: &str) -> Result<Self, ReferenceError> {
        if text.chars().nth(MAX_REFERENCE_CHARS).is_some() {
            return refuse(format!("it has more than {MAX_REFERENCE_CHARS} characters"));
        }
        if text.contains(char::is_control) {
            return refuse("it holds a control character");
        }
        let found = PREFIXES.iter().find_map(|prefix| Some((*prefix, text.strip_prefix(prefix)?)));
        let Some((prefix, rest)) = found else {
            return refuse("it must start with encrypted:, encryptedFile: or secret://");
        };
        let (engine, parameters) =
            if prefix == PREFIXES[2] { user_secret(rest)? } else { encrypted(prefix, rest)? };
        Ok(Self { prefix, engine: engine.to_owned(), parameters })
    }

    /// The engine's name.
    pub fn engine(&self) -> &str {
        &self.engine
    }

    /// The value of a parameter. For the engine `noop`, `v` is the secret itself.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.parameters.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
    }

    /// Checks the parameters against those of the engine. An unknown engine accepts any.
    ///
    /// # Errors
    /// The name of a parameter that is unknown or missing.
    pub fn check_parameters(&self) -> Result<(), ReferenceError> {
        let Some((engine, needed, taken)) = ENGINES.into_iter().find(|(name, ..)| *name == self.engine)
        else {
            return Ok(());
        };
        let all: Vec<&str> = needed.iter().chain(taken).copied().collect();
        for (index, (key, _)) in self.parameters.iter().enumerate() {
            if all.contains(&key.as_str()) {
                continue;
            }
            if engine == NOOP {
                let place = index + 1;
                return refuse(format!(
                    "parameter {place} is none of engine noop, which takes v alone (a value cannot contain !)"
                ));
            }
            return refuse(format!("engine {engine} has no parameter {key}; it takes {}", all.join(", ")));
        }
        let missing = needed.iter().find(|key| self.get(key).is_none());
        missing.map_or(Ok(()), |key| refuse(format!("engine {engine} needs the parameter {key}")))
    }

    /// The key of a Secret that a reference of the engine `k8s` names, in the account's own namespace unless the
    /// reference names another; `None` for other engines. Whether the namespace may be used is up to
    /// [`SourceRules`](super::source_rules::SourceRules).
    ///
    /// # Errors
    /// A namespace, name or key that is invalid for a Secret.
    pub fn secret_key<'r>(&'r self, own_namespace: &'r str) -> Result<Option<SecretKey<'r>>, ReferenceError> {
        if self.engine != K8S {
            return Ok(None);
        }
        self.check_parameters()?;
        let (name, key) = (self.get("n").unwrap_or_default(), self.get("k").unwrap_or_default());
        let namespace = self.get("ns").unwrap_or(own_namespace);
        if self.get("ns").is_some() && !is_dns_label(namespace) {
            return refuse("ns is no name of a namespace: at most 63 lower-case letters, digits and dashes");
        }
        if !is_dns_subdomain(name) {
            return refuse(
                "n is no name of a Secret: at most 253 lower-case letters, digits, dashes and dots",
            );
        }
        let legal = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        if key.len() > 253 || key.starts_with("..") || key == "." || !key.bytes().all(legal) {
            return refuse(
                "k is no key of a Secret: at most 253 letters, digits, dashes, dots and underscores",
            );
        }
        Ok(Some(SecretKey { namespace, name, key }))
    }

    /// Whether its value is itself a secret.
    fn holds_the_secret(&self) -> bool {
        self.engine == NOOP
    }

    fn redacted(&self) -> String {
        let mut text = format!("{}{}", self.prefix, self.engine);
        let user_secret = self.prefix == PREFIXES[2];
        for (index, (key, _)) in self.parameters.iter().enumerate() {
            let (before, between) = match (user_secret, index) {
                (false, _) => ('!', ':'),
                (true, 0) => ('?', '='),
                (true, _) => ('&', '='),
            };
            write!(text, "{before}{key}{between}{REDACTED}").expect("a string takes any text");
        }
        text
    }
}

/// A reference as it may be shown: unchanged, except that the value of the engine `noop` is redacted. A malformed
/// reference, or one of an unknown engine, is not shown at all: it may be a secret in the wrong place.
pub fn shown(text: &str) -> Option<Cow<'_, str>> {
    let reference = Reference::parse(text).ok()?;
    reference.check_parameters().ok()?;
    if reference.holds_the_secret() {
        return Some(Cow::Owned(reference.redacted()));
    }
    ENGINES.iter().any(|(name, ..)| *name == reference.engine).then_some(Cow::Borrowed(text))
}

/// Whether a reference was redacted by [`shown`] and so contains no secret.
pub(crate) fn is_redacted(text: &str) -> bool {
    Reference::parse(text).is_ok_and(|one| one.holds_the_secret() && one.get("v") == Some(REDACTED))
}

/// The Secrets, by namespace and name, that hold the kubeconfigs of an account: its own, and the agents'. Each once.
pub fn secrets_of(account: &KubesvcAccount) -> Vec<(String, String)> {
    let mut secrets: Vec<_> =
        account.spec.sources().filter_map(|(_, source)| secret_in(account, source)).collect();
    secrets.dedup();
    secrets
}

/// The Secret, by namespace and name, from which the operator reads the kubeconfig for agents.
pub fn sent_secret_of(account: &KubesvcAccount) -> Option<(String, String)> {
    secret_in(account, account.spec.agent_source())
}

/// The Secret of a source, by `secretRef` or by a reference of the engine `k8s`. `None` if there is none, or the
/// reference is refused.
fn secret_in(account: &KubesvcAccount, source: &KubeconfigSource) -> Option<(String, String)> {
    let namespace = account.metadata.namespace.as_deref().unwrap_or_default();
    let named = |name: &str| (namespace.to_owned(), name.to_owned());
    if let Some(secret) = &source.secret_ref {
        return Some(named(&secret.name));
    }
    let reference = Reference::parse(source.reference.as_deref()?).ok()?;
    let secret = reference.secret_key(namespace).ok()??;
    Some((secret.namespace.to_owned(), secret.name.to_owned()))
}

/// Whether the operator reads the credential itself, so that it may change while the object does not.
pub fn is_read_by_operator(source: &KubeconfigSource) -> bool {
    source.secret_ref.is_some() || source.reference.is_some()
}

type ReferenceParts<'t> = (&'t str, Vec<(String, String)>);

/// Parses `ENGINE!key:value!key:value`.
fn encrypted<'t>(prefix: &str, text: &'t str) -> Result<ReferenceParts<'t>, ReferenceError> {
    let mut pieces = text.split('!');
    let engine = pieces.next().unwrap_or_default();
    let mut parameters = Parameters::default();
    for piece in pieces {
        let place = parameters.place();
        if piece.is_empty() {
            return refuse(format!("parameter {place} is empty: remove the ! before it"));
        }
        let Some((key, value)) = piece.split_once(':') else {
            return refuse(format!("parameter {place} is no key:value (a value cannot contain !)"));
        };
        parameters.push(Cow::Borrowed(key), Cow::Borrowed(value))?;
    }
    finish(engine, parameters, &format!("{prefix}ENGINE!key:value"))
}

/// Parses `ENGINE?key=value&key=value`, percent-encoded.
fn user_secret(text: &str) -> Result<ReferenceParts<'_>, ReferenceError> {
    if text.contains('#') {
        return refuse("it holds a #: write it as %23");
    }
    let (engine, query) = text.split_once('?').unwrap_or((text, ""));
    let mut parameters = Parameters::default();
    for piece in query.split('&').filter(|_| !query.is_empty()) {
        let place = parameters.place();
        let Some((key, value)) = piece.split_once('=') else {
            return refuse(format!("parameter {place} is no key=value"));
        };
        parameters.push(decoded(key, place)?, decoded(value, place)?)?;
    }
    finish(engine, parameters, "secret://ENGINE?key=value")
}

fn finish<'t>(
    engine: &'t str,
    parameters: Parameters,
    form: &str,
) -> Result<ReferenceParts<'t>, ReferenceError> {
    if parameters.0.is_empty() {
        return refuse(format!("it names no parameter: write {form}"));
    }
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if engine.is_empty() {
        return refuse(format!("it names no engine: write {form}"));
    }
    if engine.len() > MAX_ENGINE_BYTES || !engine.bytes().all(legal) {
        return refuse(format!(
            "its engine must have at most {MAX_ENGINE_BYTES} letters, digits, dashes, dots and underscores"
        ));
    }
    Ok((engine, parameters.0))
}

/// Percent-decodes a text, with `+` for a space, as Spinnaker decodes a query.
fn decoded(text: &str, place: usize) -> Result<Cow<'_, str>, ReferenceError> {
    let whole = |escape: &str| escape.len() >= 2 && escape.bytes().take(2).all(|b| b.is_ascii_hexdigit());
    if !text.split('%').skip(1).all(whole) {
        return refuse(format!("parameter {place} holds a % without two hex digits: write it as %25"));
    }
    let text = text.replace('+', " ");
    match percent_decode_str(&text).decode_utf8() {
        Ok(text) if text.contains(char::is_control) => {
            refuse(format!("parameter {place} holds a control character"))
        }
        Ok(text) => Ok(Cow::Owned(text.into_owned())),
        Err(_) => refuse(format!("parameter {place} is not UTF-8")),
    }
}

#[derive(Default)]
struct Parameters(Vec<(String, String)>);

impl Parameters {
    /// The number of the next parameter, from 1.
    fn place(&self) -> usize {
        self.0.len() + 1
    }

    fn push(&mut self, key: Cow<'_, str>, value: Cow<'_, str>) -> Result<(), ReferenceError> {
        let place = self.place();
        if key.is_empty() || !key.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
            return refuse(format!("the key of parameter {place} must be letters and digits"));
        }
        if value.is_empty() {
            return refuse(format!("parameter {place} has no value"));
        }
        if let Some(first) = self.0.iter().position(|(name, _)| *name == key) {
            return refuse(format!("parameters {} and {place} have the same key", first + 1));
        }
        self.0.push((key.into_owned(), value.into_owned()));
        Ok(())
    }
}

#[cfg(test)]
mod tests;
