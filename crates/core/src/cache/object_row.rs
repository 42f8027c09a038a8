//! Columns of a row that follow from an event, its scope and its account; the body is not handled here. The hub makes
//! one [`RowNaming`] per scope and calls it for each event.

use super::classes::KindClasses;
use super::fingerprints::api_version;
use super::keys::{
    MAX_GROUP_CHARS, MAX_KIND_CHARS, MAX_NAME_CHARS, MAX_NAMESPACE_CHARS, ScopeKey, object_id,
};
use super::kind_names::quoted;
use super::moniker::Moniker;
use super::native::kind_name;
use super::relations::{RelatedObject, Relations};
use crate::spec::SpinnakerKind;
use crate::wire::{common, events};

/// Maximum length of a uid and of a resource version, in characters.
pub const MAX_VERSION_CHARS: usize = 64;
/// Length of an event's hash, in bytes.
const HASH_BYTES: usize = 32;

/// An object as its row names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedObject {
    /// Id of the row.
    pub id: String,
    /// Kind in Clouddriver's spelling.
    pub kind: String,
    /// Application; `None` if no annotation, label or name has one.
    pub application: Option<String>,
    /// Namespace; empty for a cluster-wide object.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// API version: `apps/v1`, `v1`.
    pub api_version: String,
    /// Uid; `None` for a synthetic object.
    pub uid: Option<String>,
    /// Resource version.
    pub resource_version: String,
    /// Hash of the body, 64 hex digits.
    pub body_hash: String,
    /// Relations of the row.
    pub relations: Relations,
}

/// An event or a scope without a valid row. Quoted names are truncated to 320 bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RowError {
    /// A part does not fit its column.
    #[error("{what}: its {part} has {chars} characters, and {min} to {max} are allowed")]
    Length {
        /// Kind and name of the object.
        what: String,
        /// Name of the part.
        part: &'static str,
        /// Actual length.
        chars: usize,
        /// Minimum length.
        min: usize,
        /// Maximum length.
        max: usize,
    },
    /// A part contains control characters, which databases do not store.
    #[error("{what}: its {part} has control characters")]
    ControlCharacter {
        /// Kind and name of the object.
        what: String,
        /// The part.
        part: &'static str,
    },
    /// The object is not in the namespace of the scope.
    #[error("{what} is in the namespace {namespace:?}, and its scope {scope} is another one")]
    OutsideScope {
        /// Kind and name of the object.
        what: String,
        /// Namespace of the object.
        namespace: String,
        /// The scope.
        scope: String,
    },
    /// The hash is not a SHA-256.
    #[error("{what}: its hash has {bytes} bytes in place of 32")]
    HashLength {
        /// Kind and name of the object.
        what: String,
        /// Actual length.
        bytes: usize,
    },
}

/// Common parts of the rows of one scope of an account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowNaming {
    account: String,
    kind: String,
    class: SpinnakerKind,
    api_version: String,
    scope: ScopeKey,
}

impl RowNaming {
    /// Prepares the rows of a scope.
    ///
    /// # Errors
    /// If a name of the scope does not fit its column.
    pub fn new(account: &str, scope: &common::Scope, classes: &KindClasses) -> Result<Self, RowError> {
        let what = || quoted(&format!("scope {}:{}.{}", scope.namespace, scope.group, scope.kind));
        check(what, "kind", &scope.kind, 1, MAX_KIND_CHARS)?;
        check(what, "group", &scope.group, 0, MAX_GROUP_CHARS)?;
        check(what, "version", &scope.version, 1, MAX_KIND_CHARS)?;
        check(what, "namespace", &scope.namespace, 0, MAX_NAMESPACE_CHARS)?;
        let kind = kind_name(&scope.group, &scope.kind);
        let key = ScopeKey {
            namespace: scope.namespace.clone(),
            group: scope.group.clone(),
            kind: scope.kind.clone(),
        };
        let (class, api_version) = (classes.class_of(&kind), api_version(scope));
        Ok(Self { account: account.to_owned(), kind, class, api_version, scope: key })
    }

    /// Kind of the scope's rows in Clouddriver's spelling.
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// The scope's key.
    pub fn scope(&self) -> &ScopeKey {
        &self.scope
    }

    /// Id of an object's row, sufficient for a deletion.
    ///
    /// # Errors
    /// If no object of the scope can have the name or namespace.
    pub fn id(&self, namespace: &str, name: &str) -> Result<String, RowError> {
        let what = || self.what(name);
        check(what, "name", name, 1, MAX_NAME_CHARS)?;
        check(what, "namespace", namespace, 0, MAX_NAMESPACE_CHARS)?;
        if !self.scope.namespace.is_empty() && self.scope.namespace != namespace {
            let (namespace, scope) = (namespace.to_owned(), self.scope.to_string());
            return Err(RowError::OutsideScope { what: what(), namespace, scope });
        }
        Ok(object_id(&self.kind, &self.account, namespace, name))
    }

    /// Row of a created or changed object.
    ///
    /// # Errors
    /// If the event has no valid row.
    pub fn object_row(&self, event: &events::Event) -> Result<NamedObject, RowError> {
        let id = self.id(&event.namespace, &event.name)?;
        let what = || self.what(&event.name);
        check(what, "uid", &event.uid, 0, MAX_VERSION_CHARS)?;
        check(what, "resourceVersion", &event.rv, 1, MAX_VERSION_CHARS)?;
        if event.hash.len() != HASH_BYTES {
            return Err(RowError::HashLength { what: what(), bytes: event.hash.len() });
        }
        let moniker = Moniker::derive(&self.kind, &event.name, |key| event.meta.get(key).map(String::as_str));
        let related = RelatedObject {
            account: &self.account,
            kind_name: &self.kind,
            class: self.class,
            namespace: &event.namespace,
            owners: &event.owners,
            moniker: &moniker,
        };
        Ok(NamedObject {
            id,
            kind: self.kind.clone(),
            relations: related.relations(),
            application: moniker.application,
            namespace: event.namespace.clone(),
            name: event.name.clone(),
            api_version: self.api_version.clone(),
            uid: (!event.uid.is_empty()).then(|| event.uid.clone()),
            resource_version: event.rv.clone(),
            body_hash: hex::encode(&event.hash),
        })
    }

    fn what(&self, name: &str) -> String {
        quoted(&format!("{} {name:?}", self.kind))
    }
}

fn check(
    what: impl Fn() -> String,
    part: &'static str,
    text: &str,
    min: usize,
    max: usize,
) -> Result<(), RowError> {
    // A character has at least one byte, so most texts need not be counted.
    let chars = if text.len() <= max { text.len() } else { text.chars().count() };
    if chars < min || chars > max {
        return Err(RowError::Length { what: what(), part, chars, min, max });
    }
    if text.chars().any(char::is_control) {
        return Err(RowError::ControlCharacter { what: what(), part });
    }
    Ok(())
}
