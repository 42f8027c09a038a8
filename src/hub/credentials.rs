//! Credentials as sessions and zone probes read them: a bounded number at once in the whole hub.

use std::sync::Arc;

use tokio::sync::{Semaphore, SemaphorePermit};

use crate::account::KubesvcAccount;
use crate::account::failure::Failure;
use crate::secrets::{Credential, CredentialSource};

/// Maximum number of credentials read at once.
pub(super) const MAX_CONCURRENT_CREDENTIAL_READS: usize = 64;

/// The source of credentials, and its readers.
pub(super) struct Credentials {
    source: Arc<dyn CredentialSource>,
    pub(super) reads: Semaphore,
}

impl Credentials {
    pub(super) fn new(source: Arc<dyn CredentialSource>) -> Self {
        Self { source, reads: Semaphore::new(MAX_CONCURRENT_CREDENTIAL_READS) }
    }

    /// Waits for a turn to read, which lasts until the permit is dropped.
    pub(super) async fn turn(&self) -> Option<SemaphorePermit<'_>> {
        // The semaphore is never closed.
        self.reads.acquire().await.ok()
    }

    /// Reads the credential of an account; `fresh`: not from memory.
    pub(super) async fn resolve(&self, account: &KubesvcAccount, fresh: bool) -> Result<Credential, Failure> {
        self.source.resolve(account, fresh).await
    }
}
