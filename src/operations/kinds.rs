//! What is known of the kinds of accounts' clusters.

use std::sync::Arc;
use std::time::Duration;

use moka::sync::Cache;
use parking_lot::Mutex;

use kubesvc_core::operations::Kinds;

/// Maximum number of accounts whose kinds are kept.
const MAX_ACCOUNTS: u64 = 2048;
/// Time without a use after which the kinds of an account are dropped.
const KEPT_UNUSED: Duration = Duration::from_secs(600);

/// The kinds of accounts that were asked for lately.
#[derive(Debug)]
pub(super) struct KindsOfAccounts(Cache<String, Arc<Mutex<Kinds>>>);

impl Default for KindsOfAccounts {
    fn default() -> Self {
        Self(Cache::builder().max_capacity(MAX_ACCOUNTS).time_to_idle(KEPT_UNUSED).build())
    }
}

impl KindsOfAccounts {
    /// The kinds of the account with this uid.
    pub(super) fn of(&self, account_uid: &str) -> Arc<Mutex<Kinds>> {
        self.0.get_with_by_ref(account_uid, Arc::default)
    }
}
