//! Whether the operator is ready, and what is missing if not; among it, whether only this replica is cut off from the
//! API server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tracing::{info, warn};

use crate::hub::Hub;
use crate::informers::AccountIndex;
use crate::leases::{Isolation, Leadership, Replicas};
use crate::peers::Peers;
use crate::rest::Readiness;
use kubesvc_core::ReplicaId;
use kubesvc_runtime::background_tasks::{AttemptOutcome, BackgroundTasks, TaskSpec};
use kubesvc_runtime::tls::server::ServerTls;
use kubesvc_store::account_projection::Projection;

/// Interval between checks of this replica's own Lease.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Number of consecutive checks that must find the Lease too old. A process that was suspended renews it before that.
const MIN_LATE_CHECKS: u32 = 3;

/// Ready once it listens, the database answers and the watch is synced. Leadership makes no difference.
pub(super) struct OperatorReadiness {
    pub(super) accounts: Arc<AccountIndex>,
    pub(super) projection: Arc<Projection>,
    pub(super) hub: Arc<Hub>,
    pub(super) leadership: Arc<Leadership>,
    pub(super) replicas: Arc<Replicas>,
    /// Whether only this replica cannot reach the API server.
    pub(super) isolated: AtomicBool,
    pub(super) stopping: AtomicBool,
    /// TLS of the port for agents.
    pub(super) hub_tls: Option<Arc<ServerTls>>,
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
        if self.hub_tls.as_ref().is_some_and(|tls| tls.not_after().is_none()) {
            let why = "the operator has not made the certificate of the port for agents yet; /health/tasks has the reason";
            missing.push(("hub certificate".to_owned(), why.to_owned()));
        }
        if !self.hub.knows_identities() {
            let why = "the list of KubesvcIdentities is not complete, so no agent is let in: see the operator's log, and that the \
                       definition and the right to list and watch them are there";
            missing.push(("identities".to_owned(), why.to_owned()));
        }
        if let Some(why) = self.projection.problem().or_else(|| self.hub.cached_objects_problem()) {
            missing.push(("database".to_owned(), why));
        }
        missing
    }

    fn leader(&self) -> Option<ReplicaId> {
        self.leadership.leader()
    }
}

/// Detects that only this replica is cut off from the API server, and sends its agents to the others: they consider
/// its Lease expired and would treat its agents as gone.
pub(super) struct IsolationWatcher {
    pub(super) replicas: Arc<Replicas>,
    pub(super) peers: Arc<Peers>,
    pub(super) hub: Arc<Hub>,
    pub(super) readiness: Arc<OperatorReadiness>,
    /// Duration for which a Lease is valid.
    pub(super) duration: Duration,
    pub(super) checks: Mutex<LeaseChecks>,
}

/// What earlier checks have found.
pub(super) struct LeaseChecks {
    isolation: Isolation,
    begun: Instant,
    /// Number of checks in a row that found the Lease too old.
    late: u32,
    /// When the other replicas were asked last.
    asked: Option<Instant>,
}

impl Default for LeaseChecks {
    fn default() -> Self {
        Self { isolation: Isolation::default(), begun: Instant::now(), late: 0, asked: None }
    }
}

impl IsolationWatcher {
    /// Checks until the process stops.
    pub(super) fn start(self, background: &BackgroundTasks) {
        let what = "Sends the agents away if this replica alone is cut off from the API server";
        let task = TaskSpec::new("watch over the own Lease", what).every(CHECK_INTERVAL).at_start();
        let watcher = Arc::new(self);
        background.start(task, move |_| Arc::clone(&watcher).check());
    }

    async fn check(self: Arc<Self>) -> AttemptOutcome {
        let others = if self.is_time_to_ask() {
            let said = self.peers.reach_of_others().await;
            self.checks.lock().asked = Some(Instant::now());
            said
        } else {
            None
        };
        // Read after asking the others, since the Lease may have been renewed meanwhile.
        let age = self.replicas.lease_age();
        let is_cut_off = {
            let mut checks = self.checks.lock();
            let running = checks.begun.elapsed();
            checks.isolation.judge(running, self.duration, age, others)
        };
        self.set(is_cut_off);
        AttemptOutcome::Done
    }

    fn is_time_to_ask(&self) -> bool {
        let is_late = self.replicas.lease_age() >= Isolation::doubtful_after(self.duration);
        let mut checks = self.checks.lock();
        checks.late = if is_late { checks.late.saturating_add(1) } else { 0 };
        if checks.late < MIN_LATE_CHECKS {
            checks.asked = None;
            return false;
        }
        checks.asked.is_none_or(|when| when.elapsed() >= self.duration / 3)
    }

    fn set(&self, cut_off: bool) {
        if self.readiness.isolated.swap(cut_off, Ordering::Relaxed) == cut_off {
            return;
        }
        if cut_off {
            warn!("the API server answers other replicas but not this one; sending its agents to them");
        } else {
            info!("this replica accepts agents again");
        }
        self.hub.set_isolated(cut_off);
    }
}
