//! Typed access to the tree, which tracks the path for messages.

use std::collections::BTreeMap;

use base64::Engine;
use base64::alphabet;
use base64::engine::{GeneralPurpose, GeneralPurposeConfig};
use secrecy::zeroize::Zeroizing;

use crate::kubeconfig::KubeconfigError;
use crate::kubeconfig::document::{DocumentNode, FORMAT_REMEDY, Text};

const MASKED_VALUE_REMEDY: &str = "that is kubectl's mask for a secret: use `kubectl config view --raw`";

/// Base64 as Go decodes it: padded, with any trailing bits.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true),
);

impl DocumentNode<'_> {
    /// The name of an entry in a list of contexts, clusters or users.
    pub(super) fn name(&self) -> Option<&str> {
        let Self::Map(entries) = self else { return None };
        match entries.get("name")? {
            Self::Scalar { text, plain } if sort(text.as_str(), *plain) == ScalarType::Text => {
                Some(text.as_str())
            }
            _ => None,
        }
    }

    pub(super) fn is_null(&self) -> bool {
        matches!(self, Self::Scalar { text, plain } if sort(text.as_str(), *plain) == ScalarType::Null)
    }
}

/// Whether a key has a value: not null, and not an empty text, list or mapping.
pub(super) fn is_set(node: &DocumentNode<'_>) -> bool {
    match node {
        DocumentNode::Scalar { text, .. } => !text.as_str().is_empty() && !node.is_null(),
        DocumentNode::List(items) => !items.is_empty(),
        DocumentNode::Map(entries) => !entries.is_empty(),
    }
}

/// The type of a scalar in YAML's core schema.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ScalarType {
    Null,
    Flag(bool),
    Number,
    Text,
}

fn sort(text: &str, plain: bool) -> ScalarType {
    if !plain {
        return ScalarType::Text;
    }
    match text {
        "" | "~" | "null" | "Null" | "NULL" => ScalarType::Null,
        "true" | "True" | "TRUE" => ScalarType::Flag(true),
        "false" | "False" | "FALSE" => ScalarType::Flag(false),
        ".nan" | ".NaN" | ".NAN" => ScalarType::Number,
        _ => {
            let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
            let other_base = |prefix: &str, base: u32| {
                digits
                    .strip_prefix(prefix)
                    .is_some_and(|rest| !rest.is_empty() && rest.chars().all(|digit| digit.is_digit(base)))
            };
            let number = matches!(digits, ".inf" | ".Inf" | ".INF")
                || other_base("0x", 16)
                || other_base("0o", 8)
                || digits.starts_with(|first: char| first.is_ascii_digit() || first == '.')
                    && digits.parse::<f64>().is_ok();
            if number { ScalarType::Number } else { ScalarType::Text }
        }
    }
}

/// A mapping of the file with its path, such as `users[dev].user`.
pub(super) struct Mapping<'t, 'a> {
    entries: Option<&'t BTreeMap<Text<'a>, DocumentNode<'a>>>,
    path: String,
}

impl<'t, 'a> Mapping<'t, 'a> {
    pub(super) fn root(node: &'t DocumentNode<'a>) -> Result<Self, KubeconfigError> {
        match node {
            DocumentNode::Map(entries) => Ok(Self { entries: Some(entries), path: String::new() }),
            _ => Err(KubeconfigError::new("kubeconfig", "is not a mapping of keys", FORMAT_REMEDY)),
        }
    }

    /// The mapping at a path; without entries if the node is missing or null.
    pub(super) fn at(node: Option<&'t DocumentNode<'a>>, path: String) -> Result<Self, KubeconfigError> {
        let entries = match node {
            Some(DocumentNode::Map(entries)) => Some(entries),
            Some(node) if !node.is_null() => {
                return Err(KubeconfigError::new(path, "is not a mapping of keys", FORMAT_REMEDY));
            }
            _ => None,
        };
        Ok(Self { entries, path })
    }

    /// The path of a key of this mapping, for messages.
    pub(super) fn path_of(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    /// The path of this mapping, for messages.
    pub(super) fn own_path(&self) -> &str {
        &self.path
    }

    /// The value of a key; `None` also for null.
    pub(super) fn get(&self, key: &str) -> Option<&'t DocumentNode<'a>> {
        self.entries?.get(key).filter(|node| !node.is_null())
    }

    pub(super) fn mapping(&self, key: &str) -> Result<Self, KubeconfigError> {
        Self::at(self.get(key), self.path_of(key))
    }

    pub(super) fn list(&self, key: &str) -> Result<&'t [DocumentNode<'a>], KubeconfigError> {
        match self.get(key) {
            None => Ok(&[]),
            Some(DocumentNode::List(items)) => Ok(items),
            Some(_) => Err(KubeconfigError::new(self.path_of(key), "is not a list", FORMAT_REMEDY)),
        }
    }

    /// A text; `None` if it is empty, as kubectl treats it.
    pub(super) fn text(&self, key: &str) -> Result<Option<&'t str>, KubeconfigError> {
        let refuse = |problem, remedy| Err(KubeconfigError::new(self.path_of(key), problem, remedy));
        match self.get(key) {
            None => Ok(None),
            Some(DocumentNode::Scalar { text, plain }) => match sort(text.as_str(), *plain) {
                ScalarType::Number => refuse("is a number, not a text", "put the value in quotes"),
                ScalarType::Flag(_) => refuse("is a boolean, not a text", "put the value in quotes"),
                ScalarType::Null | ScalarType::Text => match text.as_str() {
                    "REDACTED" | "DATA+OMITTED" => refuse("holds no value", MASKED_VALUE_REMEDY),
                    text => Ok((!text.is_empty()).then_some(text)),
                },
            },
            Some(_) => refuse("is a list or a mapping, not a text", "give one text"),
        }
    }

    pub(super) fn flag(&self, key: &str) -> Result<bool, KubeconfigError> {
        match self.get(key) {
            None => Ok(false),
            Some(DocumentNode::Scalar { text, plain })
                if let ScalarType::Flag(flag) = sort(text.as_str(), *plain) =>
            {
                Ok(flag)
            }
            Some(_) => Err(KubeconfigError::new(
                self.path_of(key),
                "is not a boolean",
                "use true or false, without quotes",
            )),
        }
    }

    /// The decoded bytes of a `…-data` key.
    pub(super) fn bytes(&self, key: &str) -> Result<Option<Zeroizing<Vec<u8>>>, KubeconfigError> {
        let Some(text) = self.text(key)? else { return Ok(None) };
        if text.trim_start().starts_with("-----BEGIN") {
            return Err(KubeconfigError::new(
                self.path_of(key),
                "is PEM as it is",
                "base64-encode the whole of it, with the BEGIN and END lines",
            ));
        }
        let digits: Zeroizing<Vec<u8>> =
            Zeroizing::new(text.bytes().filter(|byte| !matches!(byte, b'\r' | b'\n')).collect());
        match BASE64.decode(&*digits) {
            Ok(bytes) => Ok(Some(Zeroizing::new(bytes))),
            Err(_) => Err(KubeconfigError::new(
                self.path_of(key),
                "is not base64",
                "base64-encode the PEM file, with padding and without blanks",
            )),
        }
    }
}

/// A name from the file for use in a message: at most 64 characters, with control and other special characters
/// escaped.
pub(super) fn shown(name: &str) -> String {
    const MAX_SHOWN_CHARS: usize = 64;
    let mut shown = String::new();
    for character in name.chars().take(MAX_SHOWN_CHARS) {
        if character.is_ascii_graphic() || character == ' ' || character.is_alphanumeric() {
            shown.push(character);
        } else {
            shown.extend(character.escape_unicode());
        }
    }
    if name.chars().nth(MAX_SHOWN_CHARS).is_some() {
        shown.push('…');
    }
    shown
}

/// A name from the file, quoted for use in a message.
pub(super) fn quoted(name: &str) -> String {
    format!("\"{}\"", shown(name))
}
