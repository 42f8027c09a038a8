//! Digests that tell whether a stored checkpoint is still usable. They are stored and compared across releases: their
//! inputs, and the form of these, must not change without need.

use sha2::{Digest, Sha256};

use super::classes::mapping_of;
use super::native::kind_name;
use crate::wire::common;

/// Digest of the inputs of a scope's rows: 16 hex digits. When it changes, every body is sent again.
///
/// Inputs are the scope's API version, the version of the agent's rules for cutting bodies, the keys of the labels and
/// annotations in events, and the part of the operator's mapping for this kind: a new class of another kind does not
/// change it.
pub fn shape(scope: &common::Scope, splice_version: u32, meta_keys: &[String], mapping: &str) -> String {
    let (version, class) = mapping_of(mapping, &kind_name(&scope.group, &scope.kind));
    let mut keys: Vec<&str> = meta_keys.iter().map(String::as_str).collect();
    keys.sort_unstable();
    keys.dedup();
    let splice_version = splice_version.to_string();
    let api_version = api_version(scope);
    let parts = [api_version.as_str(), &splice_version, version, class];
    digest("shape", parts.into_iter().chain(keys))
}

/// API version of a scope's objects: `apps/v1`, `v1`.
pub fn api_version(scope: &common::Scope) -> String {
    if scope.group.is_empty() { scope.version.clone() } else { format!("{}/{}", scope.group, scope.version) }
}

/// Digest of texts: 16 hex digits of the SHA-256 over each text, prefixed with its length in 8 bytes, big endian.
/// `purpose` is the first text.
pub(super) fn digest<'a>(purpose: &str, parts: impl IntoIterator<Item = &'a str>) -> String {
    let mut hash = Sha256::new();
    let mut add = |part: &str| {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    };
    add(purpose);
    parts.into_iter().for_each(add);
    hex::encode(&hash.finalize()[..8])
}
