//! Digests by which a stored checkpoint tells whether it is still of use. They are stored, and compared across
//! releases: what goes into them, and in which form, must not change without need.

use sha2::{Digest, Sha256};

use super::classes::mapping_of;
use super::native::kind_name;
use crate::wire::common;

/// The digest of what a row of a scope is made of: 16 hex digits. With another one, every body is sent again.
///
/// It covers the scope's API version, the version of the rules by which the agent cuts bodies, the keys of labels and
/// annotations that events carry, and of the operator's mapping what concerns this kind: a new class of another kind
/// leaves it as it is.
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

/// The API version of a scope's objects: `apps/v1`, `v1`.
pub fn api_version(scope: &common::Scope) -> String {
    if scope.group.is_empty() { scope.version.clone() } else { format!("{}/{}", scope.group, scope.version) }
}

/// A digest of texts: 16 hex digits of the SHA-256 over each text after its length, in 8 bytes, big endian. `purpose`
/// is the first of them.
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
