//! The annotations by which a migration recognises its accounts, and whether somebody has changed them since.

use sha2::{Digest, Sha256};

use kubesvc_core::{KubesvcAccount, KubesvcAccountSpec};

/// Annotation of an account: the migration that created it.
pub const MIGRATION_ANNOTATION: &str = "kubesvc.io/migration";
/// Annotation of an account: the [`spec_digest`] of the spec as its migration last wrote it.
pub const MIGRATED_SPEC_ANNOTATION: &str = "kubesvc.io/migrated-spec";

/// Finalizer of an account that a migration created: it keeps a deleted account until it is recorded as declined, so that
/// no later leader migrates it again.
pub const MIGRATION_FINALIZER: &str = "kubesvc.io/migration";

/// Marks an account as created by a migration, and its spec as written by it. To be called on each object that the
/// migration creates, right before the write.
pub fn mark(account: &mut KubesvcAccount, migration: &str) {
    let finalizers = account.metadata.finalizers.get_or_insert_default();
    if !finalizers.iter().any(|finalizer| finalizer == MIGRATION_FINALIZER) {
        finalizers.push(MIGRATION_FINALIZER.to_owned());
    }
    let digest = spec_digest(&account.spec);
    let annotations = account.metadata.annotations.get_or_insert_default();
    annotations.insert(MIGRATION_ANNOTATION.to_owned(), migration.to_owned());
    annotations.insert(MIGRATED_SPEC_ANNOTATION.to_owned(), digest);
}

/// A digest of a spec, 16 hex digits.
pub fn spec_digest(spec: &KubesvcAccountSpec) -> String {
    let bytes = serde_json::to_vec(spec).expect("strings, numbers and lists are JSON");
    hex::encode(&Sha256::digest(bytes)[..8])
}

/// Whether a migration keeps the account.
pub fn is_held(account: &KubesvcAccount) -> bool {
    let finalizers = account.metadata.finalizers.as_deref().unwrap_or_default();
    finalizers.iter().any(|finalizer| finalizer == MIGRATION_FINALIZER)
}

/// Whether the spec is as its migration last wrote it.
pub(super) fn is_unchanged(account: &KubesvcAccount) -> bool {
    account.annotation(MIGRATED_SPEC_ANNOTATION) == Some(spec_digest(&account.spec).as_str())
}
