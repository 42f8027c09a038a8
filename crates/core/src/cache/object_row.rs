//! The columns of a row that follow from an event, its scope and its account. The hub makes one [`RowNaming`] a scope
//! and asks it for each event; the body is no concern of this module.

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
    /// Kind as Clouddriver writes it.
    pub kind: String,
    /// Application; `None` if neither an annotation, a label nor the name tells one.
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
    /// What the row is related to.
    pub relations: Relations,
}

/// An event or a scope of which no row can be made. The names in it are cut to 320 bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RowError {
    /// A part has a length that no column takes.
    #[error("{what}: its {part} has {chars} characters, and {min} to {max} are allowed")]
    Length {
        /// Kind and name of the object.
        what: String,
        /// The part.
        part: &'static str,
        /// Its length.
        chars: usize,
        /// Minimum length.
        min: usize,
        /// Maximum length.
        max: usize,
    },
    /// A part has characters that databases do not store.
    #[error("{what}: its {part} has control characters")]
    ControlCharacter {
        /// Kind and name of the object.
        what: String,
        /// The part.
        part: &'static str,
    },
    /// The object is not in the namespace that the scope watches.
    #[error("{what} is in the namespace {namespace:?}, and its scope {scope} is another one")]
    OutsideScope {
        /// Kind and name of the object.
        what: String,
        /// Its namespace.
        namespace: String,
        /// The scope.
        scope: String,
    },
    /// The hash is no SHA-256.
    #[error("{what}: its hash has {bytes} bytes in place of 32")]
    HashLength {
        /// Kind and name of the object.
        what: String,
        /// Its length.
        bytes: usize,
    },
}

/// What the rows of one scope of an account have in common.
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
    /// A scope whose names no column takes.
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

    /// The kind of the scope's rows, as Clouddriver writes it.
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// The scope's key.
    pub fn scope(&self) -> &ScopeKey {
        &self.scope
    }

    /// The id of an object's row: all that a deletion needs.
    ///
    /// # Errors
    /// A name or namespace that no object of the scope can have.
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

    /// The row of an object that was created or changed.
    ///
    /// # Errors
    /// An event that no row can be made of.
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
    // No character has less than a byte, so that most texts need not be counted.
    let chars = if text.len() <= max { text.len() } else { text.chars().count() };
    if chars < min || chars > max {
        return Err(RowError::Length { what: what(), part, chars, min, max });
    }
    if text.chars().any(char::is_control) {
        return Err(RowError::ControlCharacter { what: what(), part });
    }
    Ok(())
}
