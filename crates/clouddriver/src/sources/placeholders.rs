//! `${KEY:default}` in texts: the variables of the settings, then the property sources, then the default.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::fields::Resolve;
use super::properties::{below, steps};
use super::yaml::PropertyNode;

/// Maximum nesting of placeholders.
const MAX_DEPTH: usize = 16;
/// Maximum number of bytes that one text may have.
const MAX_TEXT_BYTES: usize = 1 << 20;
/// Maximum number of bytes that all texts of a source with placeholders may have together.
const MAX_SOURCE_BYTES: usize = 32 << 20;
/// Maximum number of placeholders in one text, those in their values included.
const MAX_RESOLVED: usize = 1000;
/// Maximum number of different keys in a source.
const MAX_KEYS: usize = 10_000;
/// Beginning of a text that a config server did not decrypt.
pub(super) const UNDECRYPTED: &str = "{cipher}";

/// Resolves placeholders.
pub(super) struct Placeholders<'n> {
    properties: &'n [Arc<PropertyNode>],
    vars: &'n BTreeMap<String, String>,
    known: HashMap<String, Option<&'n str>>,
    /// Bytes of the texts so far.
    bytes: usize,
}

/// The resolution of one text.
struct Resolution<'f> {
    field: &'f str,
    /// The keys whose values are being resolved.
    stack: Vec<String>,
    depth: usize,
    resolved: usize,
    bytes: usize,
}

impl<'n> Placeholders<'n> {
    pub(super) fn new(properties: &'n [Arc<PropertyNode>], vars: &'n BTreeMap<String, String>) -> Self {
        Self { properties, vars, known: HashMap::new(), bytes: 0 }
    }

    /// The text of a field without placeholders.
    pub(super) fn resolved(&mut self, field: &str, text: &str) -> Result<String, String> {
        if text.starts_with(UNDECRYPTED) {
            return Err(format!("{field} is encrypted, and the config server has not decrypted it"));
        }
        if !text.contains("${") {
            return Ok(text.to_owned());
        }
        let mut resolution = Resolution { field, stack: Vec::new(), depth: 0, resolved: 0, bytes: 0 };
        let text = self.text(text, &mut resolution)?;
        self.bytes = self.bytes.saturating_add(text.len());
        match self.bytes <= MAX_SOURCE_BYTES {
            true => Ok(text),
            false => Err(format!(
                "{field}: the texts of the source have over 32 MiB with their placeholders filled in"
            )),
        }
    }

    fn text(&mut self, text: &str, resolution: &mut Resolution<'_>) -> Result<String, String> {
        let mut out = String::new();
        let mut rest = text;
        while let Some(begin) = rest.find("${") {
            let (before, placeholder) = rest.split_at(begin);
            resolution.push(&mut out, before)?;
            let Some(end) = closing_brace(placeholder) else {
                // Spring leaves it as it is.
                resolution.push(&mut out, placeholder)?;
                return Ok(out);
            };
            let inside = placeholder.get(2..end).unwrap_or_default();
            let value = self.placeholder(inside, resolution)?;
            resolution.push(&mut out, &value)?;
            rest = placeholder.get(end + 1..).unwrap_or_default();
        }
        resolution.push(&mut out, rest)?;
        Ok(out)
    }

    fn placeholder(&mut self, inside: &str, resolution: &mut Resolution<'_>) -> Result<String, String> {
        let field = resolution.field;
        resolution.resolved += 1;
        if resolution.resolved > MAX_RESOLVED {
            return Err(format!("{field} has more than {MAX_RESOLVED} placeholders"));
        }
        let (written, default) = split_default(inside);
        // The key may hold placeholders itself, whose values are not repeated.
        let key = self.inner(written, resolution)?.trim().to_owned();
        let said = |field: &str| if written.contains("${") { String::new() } else { said(field, &key) };
        if resolution.stack.contains(&key) {
            return Err(format!("{field} has a placeholder{} that refers to itself", said(field)));
        }
        let Some(value) = self.value(&key)?.map(str::to_owned) else {
            return match default {
                Some(default) => self.inner(default, resolution),
                None => Err(format!(
                    "{field} has a placeholder{} without a value: add it to kubesvc.clouddriver.vars",
                    said(field)
                )),
            };
        };
        resolution.stack.push(key);
        let value = self.inner(&value, resolution)?;
        resolution.stack.pop();
        Ok(value)
    }

    /// A text inside of a placeholder.
    fn inner(&mut self, text: &str, resolution: &mut Resolution<'_>) -> Result<String, String> {
        if resolution.depth >= MAX_DEPTH {
            return Err(format!("{} has placeholders nested more than {MAX_DEPTH} deep", resolution.field));
        }
        resolution.depth += 1;
        let text = self.text(text, resolution)?;
        resolution.depth -= 1;
        Ok(text)
    }

    fn value(&mut self, key: &str) -> Result<Option<&'n str>, String> {
        if let Some(value) = self.vars.get(key) {
            return Ok(Some(value));
        }
        if let Some(known) = self.known.get(key) {
            return Ok(*known);
        }
        if self.known.len() >= MAX_KEYS {
            return Err(format!("the source has more than {MAX_KEYS} different placeholders"));
        }
        let path = steps(key);
        let mut value = None;
        for one in self.properties {
            below(one, &path, &mut |rest, node| {
                if let (true, PropertyNode::Text(text)) = (rest.is_empty(), node) {
                    value.get_or_insert(text.as_str());
                }
            });
            if value.is_some() {
                break;
            }
        }
        self.known.insert(key.to_owned(), value);
        Ok(value)
    }
}

impl Resolve for Placeholders<'_> {
    fn resolve(&mut self, field: &str, text: &str) -> Result<String, String> {
        self.resolved(field, text)
    }
}

impl Resolution<'_> {
    fn push(&mut self, out: &mut String, text: &str) -> Result<(), String> {
        self.bytes = self.bytes.saturating_add(text.len());
        if self.bytes > MAX_TEXT_BYTES {
            return Err(format!("{} is larger than 1 MiB with its placeholders filled in", self.field));
        }
        out.push_str(text);
        Ok(())
    }
}

/// Position of the brace that closes the placeholder at the beginning of the text.
fn closing_brace(text: &str) -> Option<usize> {
    let mut depth = 0usize;
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at..] {
            [b'$', b'{', ..] => {
                depth += 1;
                at += 1;
            }
            [b'}', ..] => {
                depth -= 1;
                if depth == 0 {
                    return Some(at);
                }
            }
            _ => {}
        }
        at += 1;
    }
    None
}

/// Splits at the first colon outside of inner placeholders.
fn split_default(inside: &str) -> (&str, Option<&str>) {
    let mut depth = 0usize;
    for (at, c) in inside.char_indices() {
        match c {
            '{' if inside[..at].ends_with('$') => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            ':' if depth == 0 => return (&inside[..at], Some(&inside[at + 1..])),
            _ => {}
        }
    }
    (inside, None)
}

/// The key for a message, unless it may be a part of a credential.
fn said(field: &str, key: &str) -> String {
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '[' | ']');
    if field == "kubeconfigContents" || key.is_empty() || key.len() > 80 || !key.chars().all(is_name) {
        return String::new();
    }
    format!(" ${{{key}}}")
}
