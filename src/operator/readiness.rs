//! Whether the operator is ready, and what is missing if not.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::leases::{Leadership, Replicas};
use crate::objects::AccountIndex;
use crate::rest::Readiness;
use crate::store::projection::Projection;

/// Ready once it listens, the database answers and the watch is synced. Leadership makes no difference.
pub(super) struct OperatorReadiness {
    pub(super) accounts: Arc<AccountIndex>,
    pub(super) projection: Arc<Projection>,
    pub(super) leadership: Arc<Leadership>,
    pub(super) replicas: Arc<Replicas>,
    /// Whether only this replica cannot reach the API server.
    pub(super) isolated: AtomicBool,
    pub(super) stopping: AtomicBool,
}

impl Readiness for OperatorReadiness {
    fn missing(&self) -> Vec<(String, String)> {
        let mut missing = Vec::new();
        if self.stopping.load(Ordering::Relaxed) {
            missing.push(("running".to_owned(), "the operator is stopping".to_owned()));
        }
        if self.isolated.load(Ordering::Relaxed) {
            let why = "the API server answers other replicas and not this one; see its log, and its network";
            missing.push(("kubernetes".to_owned(), why.to_owned()));
        }
        if !self.accounts.is_synced() {
            missing.push((
                "accounts".to_owned(),
                "the first list of KubesvcAccounts is not complete".to_owned(),
            ));
        }
        if let Some(why) = self.projection.problem() {
            missing.push(("database".to_owned(), why));
        }
        missing
    }

    fn leader(&self) -> Option<String> {
        self.leadership.leader()
    }

    fn answered_for(&self) -> Duration {
        self.replicas.answered_for()
    }
}
