//! One object from JSON or YAML, its identity, and the annotation `last-applied-configuration`.

use std::cell::Cell;
use std::fmt;

use serde::de::{Deserialize, DeserializeSeed as _, Deserializer};
use serde_json::{Map, Value};
use serde_saphyr::UserMessageFormatter;
use serde_saphyr::budget::BudgetBreach;

use super::kinds::split_api_version;
use crate::json::{UniqueKeys, duplicate_key};

/// Maximum size of a manifest, in bytes.
pub const MAX_MANIFEST_BYTES: usize = 4 << 20;
/// Maximum nesting depth.
const MAX_DEPTH: usize = 100;
/// Maximum number of values in a manifest.
const MAX_NODES: usize = 1 << 20;
/// Maximum number of keys in all mappings of a manifest.
const MAX_KEYS: usize = 200_000;
/// Maximum size of all annotations of an object, keys included, in bytes: the API server's limit.
const MAX_ANNOTATIONS_BYTES: usize = 256 * 1024;
/// Annotation with the last configuration that `kubectl apply` applied.
pub(super) const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Defect of a manifest or patch. Without its text, which may be a Secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// No content.
    #[error("the manifest is empty: give one object in JSON or YAML")]
    Empty,
    /// More than [`MAX_MANIFEST_BYTES`].
    #[error("the manifest is larger than 4 MiB")]
    TooLarge,
    /// Neither JSON nor YAML.
    #[error("the manifest cannot be read{}: {why}", at_line(*.line))]
    Malformed {
        /// Line of the error, from 1.
        line: Option<u64>,
        /// The parser's error, with the remedy where the parser names none.
        why: String,
    },
    /// More than one object.
    #[error("{0} objects: one operation deploys one")]
    Several(usize),
    /// More than [`MAX_KEYS`] keys.
    #[error("the manifest has more than 200000 keys")]
    TooManyKeys,
    /// Not an object.
    #[error("the manifest is not an object with apiVersion, kind and metadata")]
    NoObject,
    /// A list of objects.
    #[error("the manifest is a list: give one object for each operation")]
    List,
    /// A field is missing or has another type.
    #[error("the manifest has no {0}")]
    Missing(&'static str),
    /// A field has an invalid name as its value.
    #[error("the manifest's {0} is not a valid Kubernetes name")]
    Name(&'static str),
    /// A patch has the wrong shape.
    #[error("the patch is not {0}")]
    Patch(&'static str),
}

fn at_line(line: Option<u64>) -> String {
    line.map(|line| format!(", at line {line}")).unwrap_or_default()
}

/// Parses JSON or YAML with one non-empty document, without aliases. Numbers are those that kubectl sends.
pub(super) fn parse_any(data: &str) -> Result<Value, ManifestError> {
    let mut value = json_or_yaml(data)?;
    if keys(&value) > MAX_KEYS {
        return Err(ManifestError::TooManyKeys);
    }
    whole_floats_to_integers(&mut value);
    Ok(value)
}

fn json_or_yaml(data: &str) -> Result<Value, ManifestError> {
    if data.len() > MAX_MANIFEST_BYTES {
        return Err(ManifestError::TooLarge);
    }
    let data = data.strip_prefix('\u{feff}').unwrap_or(data);
    let json = if data.trim_start().starts_with(['{', '[']) { json_documents(data)? } else { None };
    let mut documents = match json {
        Some(documents) => documents,
        None => yaml_documents(data)?,
    };
    documents.retain(|document| !document.is_null());
    match documents.len() {
        0 => Err(ManifestError::Empty),
        1 => Ok(documents.remove(0)),
        several => Err(ManifestError::Several(several)),
    }
}

/// Documents of a text in JSON; `None` if it is not JSON, and may be YAML.
fn json_documents(data: &str) -> Result<Option<Vec<Value>>, ManifestError> {
    let mut documents = Vec::new();
    for document in serde_json::Deserializer::from_str(data).into_iter::<StrictDocument>() {
        match document {
            Ok(StrictDocument(document)) => documents.push(document),
            Err(error) if error.is_data() => {
                let why = error.to_string();
                let why = why.rsplit_once(" at line ").map_or(why.as_str(), |(why, _)| why).to_owned();
                return Err(ManifestError::Malformed { line: u64::try_from(error.line()).ok(), why });
            }
            Err(_) => return Ok(None),
        }
    }
    Ok(Some(documents))
}

fn yaml_documents(data: &str) -> Result<Vec<Value>, ManifestError> {
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_aliases: 0,
            max_anchors: 0,
            max_depth: MAX_DEPTH,
            max_nodes: MAX_NODES,
            max_events: 2 * MAX_NODES,
            max_total_scalar_bytes: MAX_MANIFEST_BYTES,
        },
        // File modes are written like this: 0400.
        legacy_octal_numbers: true,
        with_snippet: false,
    };
    let documents = serde_saphyr::from_multiple_with_options::<StrictDocument>(data, options);
    let documents = documents.map_err(|error| of_yaml_error(&error))?;
    Ok(documents.into_iter().map(|StrictDocument(document)| document).collect())
}

fn of_yaml_error(error: &serde_saphyr::Error) -> ManifestError {
    use serde_saphyr::Error;
    let line = error.location().map(|location| location.line());
    let aliases = "there is an anchor or an alias: write the value out at each place";
    let why = match error.without_snippet() {
        Error::DuplicateMappingKey { key, .. } => duplicate_key(key.as_deref().unwrap_or_default()),
        Error::UnknownAnchor { .. } => aliases.to_owned(),
        Error::Budget { breach, .. } => match breach {
            BudgetBreach::Aliases { .. } | BudgetBreach::Anchors { .. } => aliases.to_owned(),
            BudgetBreach::Depth { .. } => format!("lists and mappings are nested more than {MAX_DEPTH} deep"),
            _ => "it has too many values".to_owned(),
        },
        Error::Message { msg, .. } | Error::ExternalMessage { msg, .. } => msg.clone(),
        other => other.render_with_formatter(&UserMessageFormatter),
    };
    ManifestError::Malformed { line, why }
}

/// Number of keys in all mappings.
fn keys(value: &Value) -> usize {
    match value {
        Value::Array(items) => items.iter().map(keys).sum(),
        Value::Object(map) => map.len() + map.values().map(keys).sum::<usize>(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    }
}

/// A document without duplicate keys. Deliberately stricter than kubectl, which takes the last one.
struct StrictDocument(Value);

impl<'de> Deserialize<'de> for StrictDocument {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        UniqueKeys { values: &Cell::new(usize::MAX), depth: usize::MAX }.deserialize(from).map(Self)
    }
}

/// Converts whole floats to integers, as Go writes them: `3.0` becomes `3`. In an integer field, the API server refuses
/// or truncates a float.
fn whole_floats_to_integers(value: &mut Value) {
    match value {
        Value::Number(number) => {
            let whole = number.as_f64().filter(|float| number.is_f64() && float.fract() == 0.0);
            // Below this bound, each whole float is exactly the intended integer.
            if let Some(whole) = whole.filter(|float| float.abs() < 1e15) {
                *number = (whole as i64).into();
            }
        }
        Value::Array(items) => items.iter_mut().for_each(whole_floats_to_integers),
        Value::Object(map) => map.values_mut().for_each(whole_floats_to_integers),
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}

/// Parses one object.
pub(super) fn parse(data: &str) -> Result<Value, ManifestError> {
    let value = parse_any(data)?;
    if !value.is_object() {
        return Err(if value.is_array() { ManifestError::List } else { ManifestError::NoObject });
    }
    Ok(value)
}

/// Parses a patch: a list of operations, or a part of an object.
pub(super) fn parse_patch(data: &str, is_json_patch: bool) -> Result<Value, ManifestError> {
    let value = parse_any(data)?;
    match (is_json_patch, &value) {
        (true, Value::Array(_)) | (false, Value::Object(_)) => Ok(value),
        (true, _) => Err(ManifestError::Patch("a list of operations, as RFC 6902 has it")),
        (false, _) => Err(ManifestError::Patch("a part of an object")),
    }
}

/// Identity of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) group: String,
    pub(super) version: String,
    pub(super) kind: String,
    /// Empty if the object names none.
    pub(super) namespace: String,
    /// Empty if the object has a `generateName` instead.
    pub(super) name: String,
}

/// Reads the identity from the object's own fields.
pub(super) fn identity(object: &Value) -> Result<Identity, ManifestError> {
    let text = |value: &Value| value.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    let api_version = text(&object["apiVersion"]).ok_or(ManifestError::Missing("apiVersion"))?;
    let kind = text(&object["kind"]).ok_or(ManifestError::Missing("kind"))?;
    if kind.ends_with("List") && object["items"].is_array() {
        return Err(ManifestError::List);
    }
    let metadata = object["metadata"].as_object().ok_or(ManifestError::Missing("metadata"))?;
    let of = |key: &str| metadata.get(key).and_then(text);
    let namespace = match metadata.get("namespace") {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(namespace)) => namespace.clone(),
        Some(_) => return Err(ManifestError::Name("metadata.namespace")),
    };
    let name = match (of("name"), of("generateName")) {
        (Some(name), _) => name,
        (None, Some(_)) => String::new(),
        (None, None) => return Err(ManifestError::Missing("metadata.name")),
    };
    for (field, value) in [("metadata.name", &name), ("metadata.namespace", &namespace), ("kind", &kind)] {
        if value == "." || value == ".." || value.contains(|c: char| c == '/' || c == '%' || c.is_control()) {
            return Err(ManifestError::Name(field));
        }
    }
    let (group, version) = split_api_version(&api_version);
    if version.is_empty() || version.contains('/') {
        return Err(ManifestError::Name("apiVersion"));
    }
    Ok(Identity { group: group.to_owned(), version: version.to_owned(), kind, namespace, name })
}

/// An annotation of an object.
pub(super) fn annotation<'o>(object: &'o Value, name: &str) -> Option<&'o str> {
    object["metadata"]["annotations"].get(name)?.as_str()
}

/// The annotations of an object, created if absent.
pub(super) fn annotations(object: &mut Value) -> Option<&mut Map<String, Value>> {
    let metadata = object.as_object_mut()?.entry("metadata").or_insert_with(|| Map::new().into());
    let annotations = metadata.as_object_mut()?.entry("annotations").or_insert(Value::Null);
    if !annotations.is_object() {
        *annotations = Map::new().into();
    }
    annotations.as_object_mut()
}

/// Adds the annotation of the object itself, as `kubectl apply` writes it: with `annotations`, even if empty.
pub(super) fn with_last_applied(mut object: Value) -> Value {
    annotations(&mut object);
    with_last_applied_as_is(object)
}

/// Adds the annotation of the object itself, as the API server keeps it after `kubectl apply --server-side`.
pub(super) fn with_last_applied_as_is(mut object: Value) -> Value {
    if let Some(Value::Object(annotations)) = object.pointer_mut("/metadata/annotations") {
        annotations.remove(LAST_APPLIED);
    }
    let mut text = go_json(&object);
    text.push('\n');
    if let Some(annotations) = annotations(&mut object) {
        annotations.insert(LAST_APPLIED.to_owned(), text.into());
    }
    object
}

/// Whether the object's annotations, with the annotation of the object itself, exceed the API server's limit. A
/// recreate must know before it deletes the object.
pub(super) fn is_too_large_to_be_annotated(object: &Value) -> bool {
    // The object's text includes its annotations.
    let mut text = Length::default();
    let _ = write_go_json(object, &mut text);
    let bytes = text.0;
    if 2 * bytes < MAX_ANNOTATIONS_BYTES {
        return false;
    }
    // The annotation contains all of that text, unless the object has the annotation already.
    if bytes > MAX_ANNOTATIONS_BYTES && annotation(object, LAST_APPLIED).is_none() {
        return true;
    }
    let annotated = with_last_applied(object.clone());
    let annotations = annotated["metadata"]["annotations"].as_object().into_iter().flatten();
    let bytes = annotations.filter_map(|(key, value)| Some(key.len() + value.as_str()?.len()));
    bytes.sum::<usize>() > MAX_ANNOTATIONS_BYTES
}

/// Serializes JSON byte for byte as Go's encoder does: sorted keys, no spaces, HTML characters escaped.
pub(super) fn go_json(value: &Value) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = write_go_json(value, &mut text);
    text
}

/// Writes the text of [`go_json`].
pub(super) fn write_go_json(value: &Value, to: &mut impl fmt::Write) -> fmt::Result {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => write!(to, "{value}"),
        Value::String(text) => write_go_string(text, to),
        Value::Array(items) => {
            to.write_char('[')?;
            for (at, item) in items.iter().enumerate() {
                if at > 0 {
                    to.write_char(',')?;
                }
                write_go_json(item, to)?;
            }
            to.write_char(']')
        }
        Value::Object(map) => {
            let mut keys: Vec<_> = map.iter().collect();
            keys.sort_unstable_by_key(|(key, _)| *key);
            to.write_char('{')?;
            for (at, (key, value)) in keys.into_iter().enumerate() {
                if at > 0 {
                    to.write_char(',')?;
                }
                write_go_string(key, to)?;
                to.write_char(':')?;
                write_go_json(value, to)?;
            }
            to.write_char('}')
        }
    }
}

fn write_go_string(text: &str, to: &mut impl fmt::Write) -> fmt::Result {
    to.write_char('"')?;
    let mut written = 0;
    for (at, c) in text.char_indices() {
        let escape = match c {
            '"' => "\\\"",
            '\\' => "\\\\",
            '\n' => "\\n",
            '\r' => "\\r",
            '\t' => "\\t",
            '\u{8}' => "\\b",
            '\u{c}' => "\\f",
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' | '\0'..='\u{1f}' => "",
            _ => continue,
        };
        to.write_str(&text[written..at])?;
        written = at + c.len_utf8();
        if escape.is_empty() {
            write!(to, "\\u{:04x}", u32::from(c))?;
        } else {
            to.write_str(escape)?;
        }
    }
    to.write_str(&text[written..])?;
    to.write_char('"')
}

/// Writer that counts bytes.
#[derive(Default)]
struct Length(usize);

impl fmt::Write for Length {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0 += text.len();
        Ok(())
    }
}
