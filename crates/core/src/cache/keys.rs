//! Ids of cached rows, of the logical groups they belong to, and of scopes.
//!
//! The form is that of Clouddriver's `Keys`: parts joined by `:`, with `;` for a `:` inside a part. Ids are opaque and
//! never parsed: kind, account, namespace and name have columns of their own.

use std::fmt;
use std::str::FromStr;

use crate::wire::common;

use sha2::{Digest, Sha256};

/// Maximum length of an id, in characters: the width of its column.
pub const MAX_ID_CHARS: usize = 512;
/// Maximum length of an object's name, in characters.
pub const MAX_NAME_CHARS: usize = 253;
/// Maximum length of a namespace, in characters.
pub const MAX_NAMESPACE_CHARS: usize = 63;
/// Maximum length of an API group, in characters.
pub(crate) const MAX_GROUP_CHARS: usize = 253;
/// Maximum length of a kind without its group, and of a version, in characters.
pub const MAX_KIND_CHARS: usize = 63;
/// Characters of an id before its digest: 512 less `~` and 64 hex digits.
const KEPT_CHARS: usize = MAX_ID_CHARS - 1 - DIGEST_CHARS;
const DIGEST_CHARS: usize = 64;

/// Id of an object's row. `kind_name` is that of [`kind_name`](super::native::kind_name); a cluster-scoped object has
/// an empty namespace.
pub fn object_id(kind_name: &str, account: &str, namespace: &str, name: &str) -> String {
    key(&["infrastructure", kind_name, account, namespace, name])
}

/// Id of an application in relations.
pub(crate) fn application_id(application: &str) -> String {
    key(&["logical", "applications", application])
}

/// Id of a cluster of an application, in relations of an account.
pub(crate) fn cluster_id(account: &str, application: &str, cluster: &str) -> String {
    key(&["logical", "clusters", account, application, cluster])
}

/// Id of a relation: 128 bits of a SHA-256 as 32 hex digits, because two ids do not fit into one key of InnoDB.
pub fn rel_hash(from_id: &str, to_id: &str, to_type: &str) -> String {
    let mut hash = Sha256::new();
    for (place, part) in [from_id, to_id, to_type].into_iter().enumerate() {
        if place > 0 {
            hash.update([0]);
        }
        hash.update(part);
    }
    hex::encode(&hash.finalize()[..16])
}

/// Joins parts to an id. An id of more than 512 characters is truncated and ends in its SHA-256.
///
/// An ambiguous id also ends in a digest: if a part contains `;`, which also stands for `:`, or if the id looks
/// truncated. RBAC allows roles with names of both forms.
fn key(parts: &[&str]) -> String {
    let mut id = "kubernetes.v2".to_owned();
    for part in parts {
        id.push(':');
        if part.contains(':') {
            id.push_str(&part.replace(':', ";"));
        } else {
            id.push_str(part);
        }
    }
    let is_ambiguous = parts.iter().any(|part| part.contains(';'));
    let is_short = id.len() <= MAX_ID_CHARS || id.chars().nth(MAX_ID_CHARS).is_none();
    if is_short && !is_ambiguous && !ends_in_digest(&id) {
        return id;
    }
    let mut hash = Sha256::new();
    hash.update(&id);
    if is_ambiguous {
        for part in parts {
            hash.update([0]);
            hash.update(part);
        }
    }
    let kept = id.char_indices().nth(KEPT_CHARS).map_or(id.len(), |(end, _)| end);
    id.truncate(kept);
    id.push('~');
    id.push_str(&hex::encode(hash.finalize()));
    id
}

fn ends_in_digest(id: &str) -> bool {
    let Some((_, end)) = id.rsplit_once('~') else { return false };
    end.len() == DIGEST_CHARS && end.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Key of a scope in `kubesvc_resourceversion`: `<ns>:<group>.<Kind>`. An empty namespace means all namespaces or none;
/// the core group is empty.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ScopeKey {
    /// Namespace; empty for all namespaces and for cluster-scoped kinds.
    pub namespace: String,
    /// API group; empty for the core group.
    pub group: String,
    /// Kind, as the cluster spells it.
    pub kind: String,
}

/// A text other than `<ns>:<group>.<Kind>`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} names no scope: {expected}")]
pub struct ScopeKeyError {
    text: String,
    expected: &'static str,
}

impl ScopeKey {
    /// Id of the scope's row in `kubesvc_resourceversion`: `account:ns:group.Kind`.
    pub fn row_id(&self, account: &str) -> String {
        format!("{account}:{self}")
    }
}

impl From<&common::Scope> for ScopeKey {
    fn from(scope: &common::Scope) -> Self {
        let common::Scope { group, kind, namespace, .. } = scope;
        Self { namespace: namespace.clone(), group: group.clone(), kind: kind.clone() }
    }
}

impl fmt::Display for ScopeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}.{}", self.namespace, self.group, self.kind)
    }
}

impl FromStr for ScopeKey {
    type Err = ScopeKeyError;

    fn from_str(text: &str) -> Result<Self, ScopeKeyError> {
        let error = |expected| {
            let mut text = text.to_owned();
            crate::failure::truncate(&mut text, MAX_ID_CHARS);
            ScopeKeyError { text, expected }
        };
        let form = "<namespace>:<group>.<Kind> is expected";
        let (namespace, qualified) = text.split_once(':').ok_or_else(|| error(form))?;
        let (group, kind) = qualified.rsplit_once('.').ok_or_else(|| error(form))?;
        if kind.is_empty() || group.contains(':') || kind.contains(':') {
            return Err(error(form));
        }
        if text.chars().any(char::is_control) {
            return Err(error("it must not contain control characters"));
        }
        let fits = |part: &str, max: usize| part.chars().nth(max).is_none();
        if !fits(namespace, MAX_NAMESPACE_CHARS)
            || !fits(group, MAX_GROUP_CHARS)
            || !fits(kind, MAX_KIND_CHARS)
        {
            return Err(error("namespace and kind have at most 63 characters, the group 253"));
        }
        Ok(Self { namespace: namespace.to_owned(), group: group.to_owned(), kind: kind.to_owned() })
    }
}
