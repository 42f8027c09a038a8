//! Reading of credentials, shared by sessions and zone probes: bounds the concurrent reads of the whole hub.

use std::sync::Arc;

use tokio::sync::{Semaphore, SemaphorePermit};

use crate::account::KubesvcAccount;
use crate::account::failure::Failure;
use crate::secrets::{Credential, CredentialSource};

/// Maximum number of concurrent credential reads.
pub(super) const MAX_CONCURRENT_CREDENTIAL_READS: usize = 64;

/// A bounded reader of credentials.
pub(super) struct Credentials {
    source: Arc<dyn CredentialSource>,
    pub(super) reads: Semaphore,
}

impl Credentials {
    pub(super) fn new(source: Arc<dyn CredentialSource>) -> Self {
        Self { source, reads: Semaphore::new(MAX_CONCURRENT_CREDENTIAL_READS) }
    }

    /// Waits for a permit to read.
    pub(super) async fn turn(&self) -> Option<SemaphorePermit<'_>> {
        // The semaphore is never closed.
        self.reads.acquire().await.ok()
    }

    /// Reads the credential of an account; `fresh` bypasses the cache.
    pub(super) async fn resolve(&self, account: &KubesvcAccount, fresh: bool) -> Result<Credential, Failure> {
        self.source.resolve(account, fresh).await
    }
}
