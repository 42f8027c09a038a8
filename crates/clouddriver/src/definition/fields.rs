//! Sorts the fields of an entry by what becomes of them, and converts scalars as Spring and Jackson do.
//!
//! A placeholder resolves to text, and YAML reads an unquoted role as a number; Clouddriver converts both, so an entry
//! that it accepts must not fail here for its types.

use serde_json::{Map, Value};

use super::permissions;
use super::report::{EntryProblem, Reason, Report};

/// The type of a field.
#[derive(Clone, Copy)]
enum FieldShape {
    Text,
    Texts,
    Flag,
    /// `customResources`.
    Treatments,
    /// Read by [`permissions`].
    Roles,
}

/// What becomes of a field.
enum Fate {
    /// Stored in the spec.
    Used(FieldShape),
    /// Says how the cluster is reached.
    Source(FieldShape),
    /// Names an identity of Clouddriver.
    Identity,
    /// Handled with the entry as a whole.
    Framing,
    /// Kept in the annotation.
    WithoutEffect,
}

/// The fields of an entry that are stored in a spec, but for `requiredGroupMembership`, which becomes `permissions`.
pub(super) const STORED: [&str; 11] = [
    "environment",
    "accountType",
    "context",
    "namespaces",
    "omitNamespaces",
    "kinds",
    "omitKinds",
    "metrics",
    "onlySpinnakerManaged",
    "customResources",
    "permissions",
];

fn fate(field: &str) -> Fate {
    match field {
        "name" | "type" | "@type" => Fate::Framing,
        "environment" | "accountType" | "context" => Fate::Used(FieldShape::Text),
        "namespaces" | "omitNamespaces" | "kinds" | "omitKinds" => Fate::Used(FieldShape::Texts),
        "metrics" | "onlySpinnakerManaged" => Fate::Used(FieldShape::Flag),
        "customResources" => Fate::Used(FieldShape::Treatments),
        "permissions" | "requiredGroupMembership" => Fate::Used(FieldShape::Roles),
        "kubeconfigFile" | "kubeconfigContents" => Fate::Source(FieldShape::Text),
        "serviceAccount" => Fate::Source(FieldShape::Flag),
        "oAuthServiceAccount" | "oauthServiceAccount" | "oAuthScopes" | "oauthScopes" => Fate::Identity,
        _ => Fate::WithoutEffect,
    }
}

/// The fields of an entry, by what becomes of them.
pub(super) struct SortedFields {
    /// Stored in the spec.
    pub(super) used: Map<String, Value>,
    /// `kubeconfigFile`, `kubeconfigContents` and `serviceAccount`.
    pub(super) cluster_source: Map<String, Value>,
    /// Without effect.
    pub(super) without_effect: Map<String, Value>,
}

/// Sorts the fields of an entry. Fields that say nothing are dropped.
pub(super) fn sort(
    definition: &Map<String, Value>,
    problems: &mut Vec<EntryProblem>,
    report: &mut Report,
) -> SortedFields {
    let (mut used, mut cluster_source, mut without_effect) = (Map::new(), Map::new(), Map::new());
    for (field, value) in without_empty(definition) {
        match fate(&field) {
            Fate::Used(shape) => drop(used.insert(field, coerced(value, shape))),
            Fate::Source(shape) => drop(cluster_source.insert(field, coerced(value, shape))),
            Fate::Identity => problems.push(EntryProblem::new(
                Reason::NotPortable,
                format!("{field} is an identity of Clouddriver's, which agents do not have; give the account a kubeconfig of its own"),
            )),
            Fate::Framing => check_type(&field, &value, problems),
            Fate::WithoutEffect => drop(without_effect.insert(field, value)),
        }
    }
    permissions::settle(&mut used, &mut without_effect, problems, report);
    SortedFields { used, cluster_source, without_effect }
}

fn check_type(field: &str, value: &Value, problems: &mut Vec<EntryProblem>) {
    if field != "name" && value.as_str() != Some("kubernetes") {
        problems.push(EntryProblem::field(format!(
            "{field} must be kubernetes; accounts of other types are not migrated"
        )));
    }
}

/// The fields that say something: without nulls, empty texts, empty lists and empty objects, at every depth. Items of
/// lists stay, since a list without its only item would mean its opposite.
pub(super) fn without_empty(fields: &Map<String, Value>) -> Map<String, Value> {
    let cleaned = |(field, value): (&String, &Value)| {
        let value = match value {
            Value::Object(fields) => Value::Object(without_empty(fields)),
            Value::Array(items) => Value::Array(items.iter().map(cleaned_item).collect()),
            value => value.clone(),
        };
        (!is_empty(&value)).then(|| (field.clone(), value))
    };
    fields.iter().filter_map(cleaned).collect()
}

fn cleaned_item(item: &Value) -> Value {
    match item {
        Value::Object(fields) => Value::Object(without_empty(fields)),
        item => item.clone(),
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

/// A scalar as text.
pub(super) fn as_text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(flag) => Some(flag.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

fn coerced(value: Value, shape: FieldShape) -> Value {
    match (shape, value) {
        (FieldShape::Text, value) => text(value),
        (FieldShape::Flag, value) => flag(value),
        (FieldShape::Texts, value) => texts(value),
        (FieldShape::Treatments, Value::Array(items)) => {
            Value::Array(items.into_iter().map(treatment).collect())
        }
        (FieldShape::Treatments | FieldShape::Roles, value) => value,
    }
}

fn text(value: Value) -> Value {
    as_text(&value).map_or(value, Value::String)
}

fn flag(value: Value) -> Value {
    match value.as_str().map(str::trim) {
        Some(text) if text.eq_ignore_ascii_case("true") => Value::Bool(true),
        Some(text) if text.eq_ignore_ascii_case("false") => Value::Bool(false),
        _ => value,
    }
}

/// A list of texts.
fn texts(value: Value) -> Value {
    match listed(value) {
        Value::Array(items) => Value::Array(items.into_iter().map(text).collect()),
        value => value,
    }
}

/// A text as the list of its parts between commas, as Spring reads it.
pub(super) fn listed(value: Value) -> Value {
    match value {
        Value::String(text) => text.split(',').map(str::trim).map(Value::from).collect(),
        value => value,
    }
}

fn treatment(item: Value) -> Value {
    let Value::Object(mut fields) = item else { return item };
    for (field, value) in &mut fields {
        let given = std::mem::take(value);
        *value = match field.as_str() {
            "versioned" | "namespaced" => flag(given),
            _ => text(given),
        };
    }
    Value::Object(fields)
}
