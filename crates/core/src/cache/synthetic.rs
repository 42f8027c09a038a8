//! Rows for objects that an account with `onlyNamespacedResources` may not read: its namespaces, and the definitions of
//! its custom resources. They contain only names, from the account's settings.

use serde::Serialize;
use sha2::{Digest, Sha256};

use super::fingerprints::digest;
use super::rules::{AccountRules, ExposedKind, Namespaces, OperatorRules};
use super::selection::{SelectedScope, ServedKind};
use crate::wire::common;

/// Resource version of every synthetic object, and of its scope's checkpoint.
pub const SYNTHETIC_VERSION: &str = "0";
const DEFINITIONS_GROUP: &str = "apiextensions.k8s.io";

/// A scope that is not watched: its objects follow from the account's settings.
#[derive(Clone, Debug, PartialEq)]
pub struct SyntheticScope {
    /// The scope, as if it were watched.
    pub scope: SelectedScope,
    /// Digest of the objects, 16 hex digits, instead of a filter's: when it changes, they are sent again.
    pub filter: String,
    /// Objects of the scope, cluster-scoped, in the order of the setting.
    pub objects: Vec<SyntheticObject>,
}

/// An object that was not read from the cluster. It has no uid, and its version is [`SYNTHETIC_VERSION`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyntheticObject {
    /// Name.
    pub name: String,
    /// Body, as JSON.
    pub body: String,
    /// SHA-256 of the body.
    pub hash: [u8; 32],
}

/// Synthetic scopes of an account: none unless it has `onlyNamespacedResources`, and none for a kind that the lists of
/// operator and account do not both allow. Plurals of custom resources come from the cluster's discovery.
pub fn synthetic_objects(
    served: &[ServedKind],
    operator: &OperatorRules,
    account: &AccountRules,
) -> Vec<SyntheticScope> {
    let has = kinds(operator, account);
    let mut scopes = Vec::new();
    if let Some(names) = has.namespaces {
        let scope = scope(served, "", "Namespace", "namespaces");
        scopes.push(scope_with(scope, names.iter().map(|name| namespace(name)).collect()));
    }
    if let Some(definitions) = has.definitions {
        let scope = scope(served, DEFINITIONS_GROUP, "CustomResourceDefinition", "customresourcedefinitions");
        scopes.push(scope_with(scope, definitions.iter().map(|kind| definition(served, kind)).collect()));
    }
    scopes
}

/// Number of synthetic scopes of an account, regardless of its cluster.
pub(super) fn synthetic_scopes(operator: &OperatorRules, account: &AccountRules) -> usize {
    let has = kinds(operator, account);
    usize::from(has.namespaces.is_some()) + usize::from(has.definitions.is_some())
}

/// Objects of an account's synthetic scopes.
#[derive(Clone, Copy, Default)]
struct SyntheticKinds<'a> {
    namespaces: Option<&'a [String]>,
    definitions: Option<&'a [ExposedKind]>,
}

fn kinds<'a>(operator: &OperatorRules, account: &'a AccountRules) -> SyntheticKinds<'a> {
    if !account.only_namespaced_resources {
        return SyntheticKinds::default();
    }
    let is_allowed = |group: &str, kind: &str| operator.allows(group, kind) && account.allows(group, kind);
    let namespaces = match &account.namespaces {
        Namespaces::Only(names) if is_allowed("", "Namespace") => Some(names.as_slice()),
        _ => None,
    };
    let definitions = account.custom_resource_definitions.as_slice();
    let has_definitions =
        !definitions.is_empty() && is_allowed(DEFINITIONS_GROUP, "CustomResourceDefinition");
    SyntheticKinds { namespaces, definitions: has_definitions.then_some(definitions) }
}

fn scope_with(scope: SelectedScope, objects: Vec<SyntheticObject>) -> SyntheticScope {
    let filter = digest("synthetic", objects.iter().map(|object| object.body.as_str()));
    SyntheticScope { scope, filter, objects }
}

fn scope(served: &[ServedKind], group: &str, kind: &str, plural: &str) -> SelectedScope {
    let found = served.iter().find(|known| known.group == group && known.kind == kind);
    let scope = common::Scope {
        group: group.to_owned(),
        version: found.map_or("v1", |found| &found.version).to_owned(),
        kind: kind.to_owned(),
        plural: plural.to_owned(),
        namespace: String::new(),
    };
    SelectedScope { scope, namespaced: false }
}

fn namespace(name: &str) -> SyntheticObject {
    let body =
        SyntheticBody { api_version: "v1", kind: "Namespace", metadata: Metadata { name }, spec: None };
    object(name, &body)
}

/// Definition of a custom resource. If the cluster does not serve it now, its plural is guessed: the kind in lower case
/// with an `s`.
fn definition(served: &[ServedKind], exposed: &ExposedKind) -> SyntheticObject {
    let is_it =
        |known: &&ServedKind| known.group == exposed.group && known.kind.eq_ignore_ascii_case(&exposed.kind);
    let found = served.iter().filter(|known| known.has_valid_names()).find(is_it);
    let kind = found.map_or(&exposed.kind, |found| &found.kind);
    let plural =
        found.map_or_else(|| format!("{}s", kind.to_ascii_lowercase()), |found| found.plural.clone());
    let name = format!("{plural}.{}", exposed.group);
    let scope = if exposed.cluster_scoped { "Cluster" } else { "Namespaced" };
    let spec = DefinitionSpec { group: &exposed.group, names: Names { kind, plural: &plural }, scope };
    let body = SyntheticBody {
        api_version: "apiextensions.k8s.io/v1",
        kind: "CustomResourceDefinition",
        metadata: Metadata { name: &name },
        spec: Some(spec),
    };
    object(&name, &body)
}

fn object(name: &str, body: &SyntheticBody<'_>) -> SyntheticObject {
    let body = serde_json::to_string(body).expect("strings are JSON");
    let hash = Sha256::digest(&body).into();
    SyntheticObject { name: name.to_owned(), body, hash }
}

/// Body of a synthetic object. A struct, so that the order of its bytes, and thus its hash, never changes.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SyntheticBody<'a> {
    api_version: &'static str,
    kind: &'static str,
    metadata: Metadata<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    spec: Option<DefinitionSpec<'a>>,
}

#[derive(Serialize)]
struct Metadata<'a> {
    name: &'a str,
}

#[derive(Serialize)]
struct DefinitionSpec<'a> {
    group: &'a str,
    names: Names<'a>,
    scope: &'static str,
}

#[derive(Serialize)]
struct Names<'a> {
    kind: &'a str,
    plural: &'a str,
}
