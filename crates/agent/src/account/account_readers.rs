//! What other parts of the agent know of the readers of accounts: whether all of an account's have ended, and which
//! accounts they found lost.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio_util::task::TaskTracker;

use crate::activation::Definition;
use kubesvc_core::wire::common::Failure;

/// An account that cannot be held any longer.
#[derive(Debug)]
pub struct LostAccount {
    /// uid of the account.
    pub uid: String,
    /// The definition with which it failed.
    pub definition: Arc<Definition>,
    /// Why.
    pub failure: Failure,
}

/// The readers of all accounts. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct AccountReaders {
    /// By uid. A tracker is closed from the beginning, so it has ended as soon as nothing of the account runs.
    running: Arc<Mutex<HashMap<String, TaskTracker>>>,
}

impl AccountReaders {
    /// The tracker for all that reads an account from now on.
    pub(super) fn tracker(&self, uid: &str) -> TaskTracker {
        let mut running = self.running.lock();
        running.retain(|_, tracker| !tracker.is_empty());
        let tracker = running.entry(uid.to_owned()).or_default();
        tracker.close();
        tracker.clone()
    }

    /// Waits until nothing reads the account any more; `None` if nothing does.
    pub fn ended(&self, uid: &str) -> Option<impl Future<Output = ()> + Send + 'static> {
        let tracker = self.running.lock().get(uid).filter(|tracker| !tracker.is_empty()).cloned()?;
        Some(async move { tracker.wait().await })
    }
}
