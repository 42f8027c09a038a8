//! Leading: from the moment at which this replica has the mandate, until it is lost or the operator stops. All that only
//! the leader may do begins and ends here, any number of times in one process.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::controller;
use crate::hub::Hub;
use crate::leases::{Leadership, Mandate};
use crate::store::projection::{Confirm, LeaderTerm};

/// Maximum number of wake-ups dropped at once while another replica leads.
const MAX_DROPPED_WAKES: usize = 4096;
/// So many durations of the Lease a leader may take to begin: a minute as a rule, in which the slowest list is asked for
/// more than once.
const MAX_PREPARATION_LEASES: u32 = 4;

/// What a leader works with.
pub(super) struct Leader {
    pub(super) context: controller::ControllerContext,
    pub(super) hub: Arc<Hub>,
    pub(super) leadership: Arc<Leadership>,
    /// Whether there may be other replicas.
    pub(super) has_peers: bool,
    /// How long the leader's Lease is valid.
    pub(super) lease_duration: Duration,
}

impl Leader {
    /// Leads whenever it is this replica's turn, until stopped; then the work under way is done.
    pub(super) async fn run(self, stop: CancellationToken) {
        while let Some(mandate) = self.wait(&stop).await {
            self.lead(mandate, &stop).await;
        }
    }

    /// Waits for the mandate; absent: the operator stops.
    async fn wait(&self, stop: &CancellationToken) -> Option<Mandate> {
        let waiting = async {
            tokio::select! {
                mandate = self.leadership.taken() => mandate,
                never = self.idle() => match never {},
            }
        };
        stop.run_until_cancelled(waiting).await
    }

    /// What a replica does that follows: its time goes on, and what wakes a leader is dropped, because whoever begins to
    /// lead looks at everything.
    async fn idle(&self) -> std::convert::Infallible {
        let mut second = tokio::time::interval(Duration::from_secs(1));
        second.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        second.tick().await;
        loop {
            tokio::select! {
                _ = second.tick() => self.context.ticks.advance(),
                _ = self.context.wakes.take(MAX_DROPPED_WAKES) => {}
                _ = self.context.changed_secrets.take(MAX_DROPPED_WAKES) => {}
                _ = self.context.changed_agents.take(MAX_DROPPED_WAKES) => {}
            }
        }
    }

    async fn lead(&self, mandate: Mandate, stop: &CancellationToken) {
        // Ends this lead: the Lease is lost, or the database knows a later term.
        let over = mandate.lost().child_token();
        let prepared = async { stop.run_until_cancelled(self.prepare_in_time(&mandate, &over)).await };
        match over.run_until_cancelled(prepared).await {
            Some(Some(())) => {
                let context =
                    controller::ControllerContext { mandate: mandate.clone(), ..self.context.clone() };
                controller::run(context, stop.clone(), over.clone()).await;
            }
            Some(None) => {}
            None => warn!("this replica leads no more, before it has begun"),
        }
        if stop.is_cancelled() && !over.is_cancelled() {
            // The last rows are written under this lead, and then the Lease is released.
            return;
        }
        self.context.projection.follow();
        if !mandate.lost().is_cancelled() {
            self.leadership.resign();
            mandate.lost().cancelled().await;
        }
        info!("this replica follows");
    }

    /// Prepares, or ends the lead: whoever holds the Lease and cannot begin leaves it to another replica.
    async fn prepare_in_time(&self, mandate: &Mandate, over: &CancellationToken) {
        let prepared = self.prepare(mandate, over);
        if !self.has_peers {
            return prepared.await;
        }
        let within = self.lease_duration * MAX_PREPARATION_LEASES;
        if tokio::time::timeout(within, prepared).await.is_err() {
            warn!(?within, "this replica cannot begin to lead in time, and leaves it to another");
            over.cancel();
        }
    }

    /// What comes before the first decision: a term of our own, then everything as it is now, so that nothing is decided
    /// from what was so under an earlier leader.
    async fn prepare(&self, mandate: &Mandate, over: &CancellationToken) {
        if self.has_peers {
            let lead = LeaderTerm {
                replica_id: mandate.holder().to_owned(),
                confirm: confirm(mandate),
                over: over.clone(),
            };
            self.context.projection.lead(lead).await;
            if !mandate.is_confirmed().await {
                over.cancel();
                return;
            }
            self.context.accounts.list_anew().await;
        }
        self.hub.remember_agents().await;
    }
}

fn confirm(mandate: &Mandate) -> Confirm {
    let mandate = mandate.clone();
    Arc::new(move || {
        let mandate = mandate.clone();
        async move { mandate.is_confirmed().await }.boxed()
    })
}
