//! Reports of the readers of accounts to other parts of the agent: whether all of an account's have ended, which
//! accounts they found lost, and whose credential the cluster refuses.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::task::TaskTracker;

use crate::account_table::AccountTable;
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

/// Writes down in the table whether the cluster of a held account accepts its credential. Clones share it.
#[derive(Clone, Debug)]
pub struct CredentialVerdicts {
    /// The accounts.
    pub table: Arc<Mutex<AccountTable>>,
    /// Notified when the hub is to be told of a verdict.
    pub changed: Arc<Notify>,
}

impl CredentialVerdicts {
    /// Records that the cluster refuses the credential of this definition, and why, or that it accepts it.
    pub(super) fn record(&self, uid: &str, definition: &Arc<Definition>, refused: Option<Failure>) {
        if self.table.lock().judge_credential(uid, definition, refused) {
            self.changed.notify_one();
        }
    }
}

/// Trackers of the readers of all accounts. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct ReaderTrackers {
    /// By uid. A tracker is closed from the beginning, so it has ended as soon as nothing of the account runs.
    running: Arc<Mutex<HashMap<String, TaskTracker>>>,
}

impl ReaderTrackers {
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
