//! The fields of an account (`KubernetesAccountProperties.ManagedAccount`), with the type of each.

use serde_json::{Map, Number, Value};

use super::properties::Property;
use super::snapshot::shown;

/// The type of a field.
#[derive(Clone, Copy, Debug)]
pub(super) enum FieldType {
    Text,
    Flag,
    Int,
    /// A list of texts, or one text with commas.
    Texts,
    /// From READ and WRITE to lists of roles.
    Permissions,
    /// A list of groups of fields.
    Groups(&'static [FieldSpec]),
    /// A group of fields.
    Group(&'static [FieldSpec]),
}

type FieldSpec = (&'static str, FieldType);

const CUSTOM_RESOURCE: &[FieldSpec] = &[
    ("kubernetesKind", FieldType::Text),
    ("spinnakerKind", FieldType::Text),
    ("deployPriority", FieldType::Text),
    ("versioned", FieldType::Flag),
    ("namespaced", FieldType::Flag),
];
const CACHING_POLICY: &[FieldSpec] =
    &[("kubernetesKind", FieldType::Text), ("maxEntriesPerAgent", FieldType::Int)];
const RAW_RESOURCES: &[FieldSpec] =
    &[("kindExpressions", FieldType::Texts), ("omitKindExpressions", FieldType::Texts)];

/// The fields that Clouddriver knows.
pub(super) const ACCOUNT: &[FieldSpec] = &[
    ("name", FieldType::Text),
    ("environment", FieldType::Text),
    ("accountType", FieldType::Text),
    ("context", FieldType::Text),
    ("kubeconfigFile", FieldType::Text),
    ("kubeconfigContents", FieldType::Text),
    ("kubectlExecutable", FieldType::Text),
    ("oAuthServiceAccount", FieldType::Text),
    ("namingStrategy", FieldType::Text),
    ("providerVersion", FieldType::Text),
    ("oAuthScopes", FieldType::Texts),
    ("namespaces", FieldType::Texts),
    ("omitNamespaces", FieldType::Texts),
    ("kinds", FieldType::Texts),
    ("omitKinds", FieldType::Texts),
    ("requiredGroupMembership", FieldType::Texts),
    ("kubectlRequestTimeoutSeconds", FieldType::Int),
    ("cacheThreads", FieldType::Int),
    ("cacheIntervalSeconds", FieldType::Int),
    ("serviceAccount", FieldType::Flag),
    ("debug", FieldType::Flag),
    ("metrics", FieldType::Flag),
    ("checkPermissionsOnStartup", FieldType::Flag),
    ("onlySpinnakerManaged", FieldType::Flag),
    ("cacheAllApplicationRelationships", FieldType::Flag),
    ("permissions", FieldType::Permissions),
    ("customResources", FieldType::Groups(CUSTOM_RESOURCE)),
    ("cachingPolicies", FieldType::Groups(CACHING_POLICY)),
    ("rawResourcesEndpointConfig", FieldType::Group(RAW_RESOURCES)),
];

/// The operations that Spinnaker grants to roles.
const PERMISSIONS: &[&str] = &["READ", "WRITE", "EXECUTE", "CREATE"];

/// A name in the form in which all of its spellings are the same: kebab, camel and snake case, upper and lower case.
pub(super) fn fold(name: &str) -> String {
    name.chars().filter(|c| !matches!(c, '-' | '_')).flat_map(char::to_lowercase).collect()
}

/// Resolves the placeholders in a text.
pub(super) trait Resolve {
    /// The text of a field without placeholders.
    fn resolve(&mut self, field: &str, text: &str) -> Result<String, String>;
}

/// Reads the fields of an account, each converted to its type as Spring does. Fields that Clouddriver does not know keep
/// their names.
pub(super) fn account(
    property: &Property<'_>,
    resolver: &mut dyn Resolve,
) -> Result<Map<String, Value>, String> {
    let Some(entries) = property.entries() else { return Err("it is not a group of fields".to_owned()) };
    group(ACCOUNT, &entries, "", resolver)
}

fn group(
    fields: &[FieldSpec],
    entries: &[(&str, &Property<'_>)],
    prefix: &str,
    resolver: &mut dyn Resolve,
) -> Result<Map<String, Value>, String> {
    let mut read = Map::new();
    for (written, property) in entries {
        let folded = fold(written);
        let field = fields.iter().find(|(name, _)| fold(name) == folded);
        let name = field.map_or(*written, |(name, _)| *name);
        let path = if prefix.is_empty() { name.to_owned() } else { format!("{prefix}.{name}") };
        let value = match field {
            Some((_, kind)) => value(*kind, property, &path, resolver)?,
            None => untyped(property, &path, resolver)?,
        };
        if !value.is_null() && read.insert(name.to_owned(), value).is_some() {
            return Err(format!("{} is there twice", shown(&path)));
        }
    }
    Ok(read)
}

/// A value of this type; null if it is not set.
fn value(
    kind: FieldType,
    property: &Property<'_>,
    path: &str,
    resolver: &mut dyn Resolve,
) -> Result<Value, String> {
    let wrong = |what: &str| Err(format!("{path} is not {what}"));
    if property.is_null() {
        return Ok(Value::Null);
    }
    Ok(match kind {
        FieldType::Text => match property.text() {
            Some(text) => Value::String(resolver.resolve(path, text)?),
            None if property.is_empty() => Value::Null,
            None => return wrong("text"),
        },
        FieldType::Flag => {
            let Some(text) = property.text() else { return wrong("true or false") };
            match resolver.resolve(path, text)?.trim().to_ascii_lowercase().as_str() {
                "" => Value::Null,
                "true" | "on" | "yes" | "1" => Value::Bool(true),
                "false" | "off" | "no" | "0" => Value::Bool(false),
                _ => return wrong("true or false"),
            }
        }
        FieldType::Int => {
            let Some(text) = property.text() else { return wrong("a whole number") };
            match resolver.resolve(path, text)?.trim() {
                "" => Value::Null,
                text => match text.parse::<i64>() {
                    Ok(number) => Value::Number(Number::from(number)),
                    Err(_) => return wrong("a whole number"),
                },
            }
        }
        FieldType::Texts => Value::Array(texts(property, path, resolver)?),
        FieldType::Permissions => {
            let mut permissions = Map::new();
            let Some(entries) = property.entries() else {
                return wrong("a group of READ and WRITE, each with a list of roles");
            };
            for (written, roles) in entries {
                let known = PERMISSIONS.iter().find(|known| known.eq_ignore_ascii_case(written));
                let name = known.map_or(written, |known| known).to_owned();
                let roles = texts(roles, &format!("{path}.{}", shown(&name)), resolver)?;
                permissions.insert(name, Value::Array(roles));
            }
            Value::Object(permissions)
        }
        FieldType::Groups(fields) => {
            let Some(items) = property.items() else { return wrong("a list") };
            let read = items.into_iter().map(|(at, item)| {
                let path = format!("{path}[{at}]");
                let Some(entries) = item.entries() else {
                    return Err(format!("{path} is not a group of fields"));
                };
                group(fields, &entries, &path, resolver).map(Value::Object)
            });
            Value::Array(read.collect::<Result<_, _>>()?)
        }
        FieldType::Group(fields) => {
            let Some(entries) = property.entries() else { return wrong("a group of fields") };
            Value::Object(group(fields, &entries, path, resolver)?)
        }
    })
}

fn texts(property: &Property<'_>, path: &str, resolver: &mut dyn Resolve) -> Result<Vec<Value>, String> {
    if let Some(text) = property.text() {
        let text = resolver.resolve(path, text)?;
        if text.trim().is_empty() {
            return Ok(Vec::new());
        }
        return Ok(text.split(',').map(|item| Value::String(item.trim().to_owned())).collect());
    }
    let Some(items) = property.items() else { return Err(format!("{path} is not a list")) };
    // A blank item is kept as it is read, to be refused: without it, a list of one would mean everything.
    let read = items.into_iter().map(|(at, item)| match item.text() {
        None if item.is_null() => Ok(Value::String(String::new())),
        Some(text) => resolver.resolve(path, text).map(Value::String),
        None => Err(format!("{path}[{at}] is not text")),
    });
    read.collect()
}

/// The value of a field that Clouddriver does not know, as it is.
pub(super) fn untyped(
    property: &Property<'_>,
    path: &str,
    resolver: &mut dyn Resolve,
) -> Result<Value, String> {
    if property.is_null() {
        return Ok(Value::Null);
    }
    if let Some(text) = property.text() {
        return resolver.resolve(&shown(path), text).map(Value::String);
    }
    if let Some(items) = property.items().filter(|items| !items.is_empty()) {
        let read = items.into_iter().map(|(_, item)| untyped(item, path, resolver));
        return Ok(Value::Array(read.collect::<Result<_, _>>()?));
    }
    let entries = property.entries().unwrap_or_default();
    let read = entries.into_iter().map(|(name, one)| Ok((name.to_owned(), untyped(one, path, resolver)?)));
    Ok(Value::Object(read.collect::<Result<_, String>>()?))
}

/// Checks that the fields of a stored definition have the types that Clouddriver reads. It reads numbers and flags from
/// texts, and texts from numbers and flags.
pub(super) fn checked_shape(definition: &Map<String, Value>) -> Result<(), String> {
    shape(ACCOUNT, definition, "")
}

fn shape(fields: &[FieldSpec], definition: &Map<String, Value>, prefix: &str) -> Result<(), String> {
    for (name, kind) in fields {
        let value = definition.get(*name).unwrap_or(&Value::Null);
        let wrong = |what: &str| Err(format!("{prefix}{name} is not {what}"));
        let is_scalar = |value: &Value| !value.is_array() && !value.is_object();
        match (kind, value) {
            (_, Value::Null) => {}
            (FieldType::Text, value) if is_scalar(value) => {}
            (FieldType::Flag, Value::Bool(_)) => {}
            (FieldType::Flag, Value::String(text)) if matches!(text.as_str(), "true" | "false" | "") => {}
            (FieldType::Int, Value::Number(_)) => {}
            (FieldType::Int, Value::String(text)) if text.is_empty() || text.parse::<i64>().is_ok() => {}
            (FieldType::Texts, Value::Array(items)) if items.iter().all(is_scalar) => {}
            (FieldType::Permissions, Value::Object(permissions)) => {
                let is_roles = |roles: &Value| {
                    roles.is_null() || roles.as_array().is_some_and(|roles| roles.iter().all(is_scalar))
                };
                if !permissions.values().all(is_roles) {
                    return wrong("a group of READ and WRITE, each with a list of roles");
                }
            }
            (FieldType::Groups(fields), Value::Array(items)) => {
                for (at, item) in items.iter().enumerate() {
                    let Value::Object(item) = item else { return wrong("a list of groups of fields") };
                    shape(fields, item, &format!("{prefix}{name}[{at}]."))?;
                }
            }
            (FieldType::Group(fields), Value::Object(group)) => {
                shape(fields, group, &format!("{prefix}{name}."))?;
            }
            (FieldType::Text, _) => return wrong("text"),
            (FieldType::Flag, _) => return wrong("true or false"),
            (FieldType::Int, _) => return wrong("a whole number"),
            (FieldType::Texts | FieldType::Groups(_), _) => return wrong("a list"),
            (FieldType::Permissions, _) => {
                return wrong("a group of READ and WRITE, each with a list of roles");
            }
            (FieldType::Group(_), _) => return wrong("a group of fields"),
        }
    }
    Ok(())
}
