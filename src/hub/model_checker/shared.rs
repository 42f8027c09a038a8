//! Parts of a world that most of its successors share: copied on write, digested once.

use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use sha2::{Digest as _, Sha256};

/// A digest of 16 bytes. Values with equal digests are considered equal.
pub(super) type WorldDigest = [u8; 16];

/// Encodes everything that can affect later steps, and nothing else.
pub(super) trait Encode {
    fn encode(&self, bytes: &mut Vec<u8>);
}

/// Returns the digest of some bytes.
pub(super) fn digest(bytes: &[u8]) -> WorldDigest {
    let whole = Sha256::digest(bytes);
    let mut digest = [0; 16];
    digest.copy_from_slice(&whole[..16]);
    digest
}

/// A shared part of a world.
#[derive(Debug)]
pub(super) struct Shared<T>(Arc<SharedPart<T>>);

#[derive(Debug)]
struct SharedPart<T> {
    value: T,
    digest: OnceLock<WorldDigest>,
}

impl<T> Shared<T> {
    pub(super) fn new(value: T) -> Self {
        Self(Arc::new(SharedPart { value, digest: OnceLock::new() }))
    }

    /// Whether both are the same allocation.
    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl<T: Encode> Shared<T> {
    pub(super) fn digest(&self) -> WorldDigest {
        *self.0.digest.get_or_init(|| {
            let mut bytes = Vec::with_capacity(256);
            self.0.value.encode(&mut bytes);
            digest(&bytes)
        })
    }
}

impl<T: Clone> Shared<T> {
    /// Returns the value for mutation; copies it if it is shared.
    pub(super) fn edit(&mut self) -> &mut T {
        if Arc::get_mut(&mut self.0).is_none() {
            *self = Self::new(self.0.value.clone());
        }
        let kept = Arc::get_mut(&mut self.0).expect("nobody else has it");
        kept.digest = OnceLock::new();
        &mut kept.value
    }
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0.value
    }
}
