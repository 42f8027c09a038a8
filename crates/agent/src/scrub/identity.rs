//! Who an object is: namespace, name, uid and version, in a form that can be stored.

use crate::scrub::object::BodyError;

/// Maximum lengths of what identifies an object, in characters: those of the columns that hold it.
const MAX_NAMESPACE_CHARS: usize = 63;
const MAX_NAME_CHARS: usize = 253;
const MAX_UID_CHARS: usize = 64;
const MAX_VERSION_CHARS: usize = 64;

/// Who an object is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ObjectIdentity {
    /// Namespace; empty for a cluster-wide object.
    pub namespace: String,
    /// Name; not empty.
    pub name: String,
    /// Uid; empty if the server gives none.
    pub uid: String,
    /// resourceVersion; not empty.
    pub resource_version: String,
}

/// Why it is unknown who an object is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    #[error("{0} is missing")]
    Missing(&'static str),
    #[error("{0} is no text")]
    NotText(&'static str),
    #[error("{0} has control characters")]
    ControlCharacters(&'static str),
    #[error("{field} has more than {max} characters")]
    TooLong {
        field: &'static str,
        /// Maximum length, in characters.
        max: usize,
    },
    #[error("it is in namespace {namespace:?}, and {scope:?} was asked for")]
    OutsideScope { namespace: String, scope: String },
    #[error("the object cannot be read")]
    Body(#[source] BodyError),
}

/// An object that cannot be identified, so no row can be made of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "an object of kind {kind} with the name {name:?} in namespace {namespace:?} cannot be identified; it is left out"
)]
pub struct Unidentified {
    /// Kind that was asked for.
    pub kind: String,
    /// Namespace, as far as it is known; truncated.
    pub namespace: String,
    /// Name, as far as it is known; truncated.
    pub name: String,
    /// What is wrong.
    #[source]
    pub why: IdentityError,
}

impl Unidentified {
    /// Whether namespace and name are known, so that the object can be asked for by them.
    pub fn has_name(&self) -> bool {
        let wrong = match &self.why {
            IdentityError::Missing(field)
            | IdentityError::NotText(field)
            | IdentityError::ControlCharacters(field)
            | IdentityError::TooLong { field, .. } => *field,
            IdentityError::OutsideScope { .. } | IdentityError::Body(_) => return false,
        };
        !self.name.is_empty() && !["metadata.name", "metadata.namespace"].contains(&wrong)
    }
}

/// What the metadata of an object says about who it is.
#[derive(Debug, Default)]
pub(super) struct FoundIdentity {
    pub(super) namespace: FoundText,
    pub(super) name: FoundText,
    pub(super) uid: FoundText,
    pub(super) resource_version: FoundText,
}

/// A member that may be missing, or be no text.
#[derive(Debug, Default)]
pub(super) enum FoundText {
    #[default]
    Missing,
    NotText,
    Text(String),
}

impl FoundIdentity {
    /// The identity, if it can be stored. `scope` is the namespace that was asked for; empty for all.
    pub(super) fn checked(self, scope: &str) -> Result<ObjectIdentity, IdentityError> {
        let name = self.name.checked("metadata.name", MAX_NAME_CHARS)?;
        let namespace = self.namespace.checked("metadata.namespace", MAX_NAMESPACE_CHARS)?;
        let uid = self.uid.checked("metadata.uid", MAX_UID_CHARS)?;
        let version = self.resource_version.checked("metadata.resourceVersion", MAX_VERSION_CHARS)?;
        let name = name.ok_or(IdentityError::Missing("metadata.name"))?;
        let resource_version = version.ok_or(IdentityError::Missing("metadata.resourceVersion"))?;
        let (namespace, uid) = (namespace.unwrap_or_default(), uid.unwrap_or_default());
        if !scope.is_empty() && namespace != scope {
            return Err(IdentityError::OutsideScope { namespace, scope: scope.to_owned() });
        }
        Ok(ObjectIdentity { namespace, name, uid, resource_version })
    }

    /// Namespace and name for a message.
    pub(super) fn shown(&self) -> (String, String) {
        (self.namespace.shown(), self.name.shown())
    }
}

impl FoundText {
    fn checked(self, field: &'static str, max: usize) -> Result<Option<String>, IdentityError> {
        let text = match self {
            Self::Missing => return Ok(None),
            Self::NotText => return Err(IdentityError::NotText(field)),
            Self::Text(text) if text.is_empty() => return Ok(None),
            Self::Text(text) => text,
        };
        // As many bytes are always enough characters.
        if text.len() > max && text.chars().count() > max {
            return Err(IdentityError::TooLong { field, max });
        }
        if text.contains(char::is_control) {
            return Err(IdentityError::ControlCharacters(field));
        }
        Ok(Some(text))
    }

    fn shown(&self) -> String {
        match self {
            Self::Text(text) => text.chars().take(MAX_NAME_CHARS).collect(),
            Self::Missing | Self::NotText => String::new(),
        }
    }
}

/// Whether a version can be stored, and used to resume a watch.
pub(super) fn is_usable_version(version: &str) -> bool {
    !version.is_empty() && version.len() <= MAX_VERSION_CHARS && !version.contains(char::is_control)
}
