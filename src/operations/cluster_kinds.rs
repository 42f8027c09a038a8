//! Kinds that the clusters of accounts serve, as far as operations have read them.

use std::sync::Arc;
use std::time::Duration;

use moka::sync::Cache;
use parking_lot::Mutex;

use kubesvc_core::operations::Kinds;

/// Maximum number of accounts whose kinds are kept.
const MAX_ACCOUNTS: u64 = 2048;
/// Time without a use after which the kinds of an account are dropped.
const KEPT_UNUSED: Duration = Duration::from_secs(600);

/// Kinds of the clusters of accounts that operations ran on lately.
#[derive(Debug)]
pub(super) struct ClusterKinds(Cache<String, Arc<Mutex<Kinds>>>);

impl Default for ClusterKinds {
    fn default() -> Self {
        Self(Cache::builder().max_capacity(MAX_ACCOUNTS).time_to_idle(KEPT_UNUSED).build())
    }
}

impl ClusterKinds {
    /// Kinds of the cluster of the account with this uid.
    pub(super) fn of(&self, account_uid: &str) -> Arc<Mutex<Kinds>> {
        self.0.get_with_by_ref(account_uid, Arc::default)
    }
}
