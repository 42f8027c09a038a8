//! Converts single fields of Clouddriver's JSON.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::ids::ZoneId;
use crate::spec::{CustomResourceTreatment, ExposedCustomResource, KubesvcAccountSpec, Scope, SpinnakerKind};

/// A field with an invalid value. Names the field and what it must be, never its value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} must be {expected}")]
pub struct FieldError {
    /// The field, with indexes for lists: `customResources[0].versioned`.
    pub field: String,
    /// What it must be.
    pub expected: String,
}

impl FieldError {
    pub(super) fn new(field: impl Into<String>, expected: impl Into<String>) -> Self {
        Self { field: field.into(), expected: expected.into() }
    }
}

/// Fields of Clouddriver's accounts that kubesvc ignores, with the types Clouddriver accepts. They are accepted so
/// that existing definitions can be sent unchanged.
const UNUSED: &[(&str, Shape)] = &[
    ("kubectlExecutable", Shape::Text),
    ("oAuthServiceAccount", Shape::Text),
    ("oauthServiceAccount", Shape::Text),
    ("oAuthScopes", Shape::Texts),
    ("oauthScopes", Shape::Texts),
    ("kubectlRequestTimeoutSeconds", Shape::Number),
    ("cacheThreads", Shape::Number),
    ("cacheIntervalSeconds", Shape::Number),
    ("debug", Shape::Flag),
    ("checkPermissionsOnStartup", Shape::Flag),
    ("cacheAllApplicationRelationships", Shape::Flag),
    ("namingStrategy", Shape::Text),
    ("cachingPolicies", Shape::Objects),
    ("rawResourcesEndpointConfig", Shape::Object),
];

#[derive(Clone, Copy)]
enum Shape {
    Text,
    Texts,
    Number,
    Flag,
    Object,
    Objects,
}

/// Sets one field. A null resets it to its default. Returns `false` if kubesvc does not use the field.
pub(super) fn set(spec: &mut KubesvcAccountSpec, field: &str, value: &Value) -> Result<bool, FieldError> {
    match field {
        "zoneId" => spec.zone_id = text(field, value)?.map(ZoneId::from),
        "context" => spec.context = text(field, value)?,
        "environment" => spec.environment = text(field, value)?,
        "accountType" => spec.account_type = text(field, value)?,
        "insecure" => spec.insecure = flag(field, value)?,
        "onlyNamespacedResources" => spec.only_namespaced_resources = flag(field, value)?,
        "onlySpinnakerManaged" => spec.only_spinnaker_managed = flag(field, value)?,
        "metrics" => spec.metrics = flag(field, value)?,
        "noProxy" => spec.no_proxy = flag(field, value)?,
        "maxResumableResourceAgeMs" => spec.max_resumable_resource_age_ms = number(field, value)?,
        "namespaces" => spec.namespaces = texts(field, value)?,
        "omitNamespaces" => spec.omit_namespaces = texts(field, value)?,
        "kinds" => spec.kinds = texts(field, value)?,
        "omitKinds" => spec.omit_kinds = texts(field, value)?,
        "permissions" => spec.permissions = permissions(value)?,
        "requiredGroupMembership" => legacy_groups(spec, &texts(field, value)?),
        "customResources" => spec.custom_resources = list(field, value, treatment)?,
        "customResourceDefinitions" => spec.custom_resource_definitions = list(field, value, exposed)?,
        _ => {
            if let Some((_, shape)) = UNUSED.iter().find(|(name, _)| *name == field) {
                check(field, value, *shape)?;
            }
            return Ok(false);
        }
    }
    Ok(true)
}

/// Converts the legacy field as Spinnaker does: the groups may read and write. `permissions` takes precedence if it
/// names a role.
fn legacy_groups(spec: &mut KubesvcAccountSpec, groups: &[String]) {
    if spec.permissions.values().all(Vec::is_empty) && !groups.is_empty() {
        spec.permissions = ["READ", "WRITE"].map(|right| (right.to_owned(), groups.to_vec())).into();
    }
}

pub(super) fn text(field: &str, value: &Value) -> Result<Option<String>, FieldError> {
    match value {
        Value::Null => Ok(None),
        Value::String(text) => Ok(Some(text.clone())),
        _ => Err(FieldError::new(field, "a string")),
    }
}

pub(super) fn flag(field: &str, value: &Value) -> Result<Option<bool>, FieldError> {
    match value {
        Value::Null => Ok(None),
        Value::Bool(flag) => Ok(Some(*flag)),
        _ => Err(FieldError::new(field, "true or false")),
    }
}

fn number(field: &str, value: &Value) -> Result<Option<i64>, FieldError> {
    match value {
        Value::Null => Ok(None),
        Value::Number(number) if number.is_i64() => Ok(number.as_i64()),
        _ => Err(FieldError::new(field, "an integer")),
    }
}

fn texts(field: &str, value: &Value) -> Result<Vec<String>, FieldError> {
    let wrong = || FieldError::new(field, "a list of strings");
    match value {
        Value::Null => Ok(Vec::new()),
        Value::Array(items) => {
            items.iter().map(|item| item.as_str().map(str::to_owned).ok_or_else(wrong)).collect()
        }
        _ => Err(wrong()),
    }
}

fn list<T>(
    field: &str,
    value: &Value,
    item: fn(&str, &Map<String, Value>) -> Result<T, FieldError>,
) -> Result<Vec<T>, FieldError> {
    match value {
        Value::Null => Ok(Vec::new()),
        Value::Array(items) => items
            .iter()
            .enumerate()
            .map(|(index, one)| {
                let path = format!("{field}[{index}]");
                one.as_object()
                    .ok_or_else(|| FieldError::new(&path, "an object"))
                    .and_then(|fields| item(&path, fields))
            })
            .collect(),
        _ => Err(FieldError::new(field, "a list of objects")),
    }
}

/// Accepts both documented shapes: Clouddriver's `{"READ": […]}` and the agent's `[{"READ": […]}, {"WRITE": […]}]`.
/// Roles may be numbers.
fn permissions(value: &Value) -> Result<BTreeMap<String, Vec<String>>, FieldError> {
    let wrong = || FieldError::new("permissions", "an object of lists of roles, or a list of such objects");
    let maps: Vec<&Map<String, Value>> = match value {
        Value::Null => Vec::new(),
        Value::Object(map) => vec![map],
        Value::Array(items) => {
            items.iter().map(|item| item.as_object().ok_or_else(wrong)).collect::<Result<_, _>>()?
        }
        _ => return Err(wrong()),
    };
    let mut permissions: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (right, roles) in maps.into_iter().flatten() {
        permissions.entry(right.clone()).or_default().extend(self::roles(right, roles)?);
    }
    Ok(permissions)
}

fn roles(right: &str, value: &Value) -> Result<Vec<String>, FieldError> {
    let wrong = || {
        let right: String = right.chars().take(32).collect();
        FieldError::new(format!("permissions.{right}"), "a list of role names")
    };
    match value {
        Value::Null => Ok(Vec::new()),
        Value::Array(roles) => roles
            .iter()
            .map(|role| match role {
                Value::String(role) => Ok(role.clone()),
                Value::Number(role) => Ok(role.to_string()),
                _ => Err(wrong()),
            })
            .collect(),
        _ => Err(wrong()),
    }
}

fn treatment(path: &str, fields: &Map<String, Value>) -> Result<CustomResourceTreatment, FieldError> {
    let at = |key: &str| (format!("{path}.{key}"), fields.get(key).unwrap_or(&Value::Null));
    let (field, value) = at("kubernetesKind");
    let kubernetes_kind =
        text(&field, value)?.ok_or_else(|| FieldError::new(field, "a kind, as Kind.group"))?;
    let (field, value) = at("deployPriority");
    let deploy_priority = match value {
        Value::Number(priority) if priority.is_u64() => Some(priority.to_string()),
        other => text(&field, other)?,
    };
    let (field, value) = at("spinnakerKind");
    let spinnaker_kind = text(&field, value)?.map(|kind| spinnaker_kind(&field, &kind)).transpose()?;
    let (field, value) = at("versioned");
    let versioned = flag(&field, value)?;
    let (field, value) = at("namespaced");
    let namespaced = flag(&field, value)?;
    Ok(CustomResourceTreatment { kubernetes_kind, spinnaker_kind, deploy_priority, versioned, namespaced })
}

fn spinnaker_kind(field: &str, kind: &str) -> Result<SpinnakerKind, FieldError> {
    let named = SpinnakerKind::NAMED.iter().find(|(name, _)| *name == kind);
    named.map(|(_, class)| *class).ok_or_else(|| {
        let expected = "one of instances, configs, serverGroups, loadBalancers, securityGroups, serverGroupManagers and unclassified";
        FieldError::new(field, expected)
    })
}

fn exposed(path: &str, fields: &Map<String, Value>) -> Result<ExposedCustomResource, FieldError> {
    let at = |key: &str| (format!("{path}.{key}"), fields.get(key).unwrap_or(&Value::Null));
    let (field, value) = at("kind");
    let kind = text(&field, value)?.ok_or_else(|| FieldError::new(field, "a kind, as Kind.group"))?;
    let (field, value) = at("scope");
    let scope = match text(&field, value)? {
        None => None,
        Some(scope) if scope.eq_ignore_ascii_case("namespaced") => Some(Scope::Namespaced),
        Some(scope) if scope.eq_ignore_ascii_case("cluster") => Some(Scope::Cluster),
        Some(_) => return Err(FieldError::new(field, "Namespaced or Cluster")),
    };
    Ok(ExposedCustomResource { kind, scope })
}

fn check(field: &str, value: &Value, shape: Shape) -> Result<(), FieldError> {
    match shape {
        Shape::Text => text(field, value).map(drop),
        Shape::Texts => texts(field, value).map(drop),
        Shape::Number => number(field, value).map(drop),
        Shape::Flag => flag(field, value).map(drop),
        Shape::Object if value.is_object() || value.is_null() => Ok(()),
        Shape::Object => Err(FieldError::new(field, "an object")),
        Shape::Objects => list(field, value, |_, _| Ok(())).map(drop),
    }
}
