//! Detects that only this replica is cut off from the API server, and sends its agents to the others: they consider
//! its Lease expired and would treat its agents as gone.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::readiness::OperatorReadiness;
use crate::hub::Hub;
use crate::leases::{Isolation, Replicas};
use crate::peers::Peers;

/// Interval between checks of this replica's own Lease.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Number of consecutive checks that must find the Lease too old. A process that was suspended renews it before that.
const MIN_LATE_CHECKS: u32 = 3;

/// What the checks need.
pub(super) struct IsolationWatcher {
    pub(super) replicas: Arc<Replicas>,
    pub(super) peers: Arc<Peers>,
    pub(super) hub: Arc<Hub>,
    pub(super) readiness: Arc<OperatorReadiness>,
    /// Duration for which a Lease is valid.
    pub(super) duration: Duration,
}

impl IsolationWatcher {
    /// Checks until stopped.
    pub(super) async fn run(self, stop: CancellationToken) {
        let mut isolation = Isolation::default();
        let begun = Instant::now();
        let (mut doubts, mut asked): (u32, Option<Instant>) = (0, None);
        let mut look = tokio::time::interval(CHECK_INTERVAL);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        while stop.run_until_cancelled(look.tick()).await.is_some() {
            let doubtful = self.replicas.lease_age() >= Isolation::doubtful_after(self.duration);
            doubts = if doubtful { doubts + 1 } else { 0 };
            let others = if doubts < MIN_LATE_CHECKS {
                asked = None;
                None
            } else if asked.is_none_or(|when| when.elapsed() >= self.duration / 3) {
                let Some(said) = stop.run_until_cancelled(self.peers.reach_of_others()).await else {
                    return;
                };
                asked = Some(Instant::now());
                said
            } else {
                None
            };
            // Read after asking the others, since the Lease may have been renewed meanwhile.
            let age = self.replicas.lease_age();
            self.set(isolation.judge(begun.elapsed(), self.duration, age, others));
        }
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
