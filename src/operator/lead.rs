//! Leadership, from the moment this replica receives the mandate until it is lost or the operator stops. Everything
//! that only the leader may do begins and ends here, any number of times in one process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::FutureExt as _;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::cache_sweeps::CacheSweeps;
use crate::controller;
use crate::hub::Hub;
use crate::leases::{Leadership, Mandate};
use crate::migration::Migrator;
use crate::operations::OperationUpkeep;
use crate::registration::Registrar;
use crate::rest::IntentSettlement;
use kubesvc_store::account_projection::{Confirm, LeaderTerm};

/// Maximum number of wake-ups dropped at once while another replica leads.
const MAX_DROPPED_WAKES: usize = 4096;
/// Time limit for a leader's preparation, in durations of the Lease: usually a minute, enough to retry the slowest
/// list more than once.
const MAX_PREPARATION_LEASES: u32 = 4;

/// What a leader works with.
pub(super) struct Leader {
    pub(super) context: controller::ControllerContext,
    pub(super) hub: Arc<Hub>,
    pub(super) leadership: Arc<Leadership>,
    pub(super) sweeps: CacheSweeps,
    pub(super) upkeep: OperationUpkeep,
    /// Takes accounts over from credentials sources.
    pub(super) migrator: Migrator,
    /// Registers accounts in Clouddriver, and lists its accounts; `None`: it is not called.
    pub(super) registrar: Option<Registrar>,
    /// Settles writes that were passed on to Clouddriver; `None`: none are.
    pub(super) settlement: Option<IntentSettlement>,
    /// Whether other replicas may exist.
    pub(super) has_peers: bool,
    /// Duration for which the leader's Lease is valid.
    pub(super) lease_duration: Duration,
    /// Whether this process has led before.
    pub(super) has_led: AtomicBool,
}

impl Leader {
    /// Leads whenever this replica has the mandate, until stopped; then the work in progress is finished.
    pub(super) async fn run(self, stop: CancellationToken) {
        while let Some(mandate) = self.wait(&stop).await {
            self.lead(mandate, &stop).await;
        }
    }

    /// Waits for the mandate. Returns `None` if the operator stops.
    async fn wait(&self, stop: &CancellationToken) -> Option<Mandate> {
        let waiting = async {
            tokio::select! {
                mandate = self.leadership.taken() => mandate,
                never = self.idle() => match never {},
            }
        };
        stop.run_until_cancelled(waiting).await
    }

    /// Advances the clock of a follower and drops wake-ups: a replica that starts to lead reconciles every account
    /// anyway.
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
        // Cancelled when this leadership ends: the Lease is lost, or the database has a later term.
        let over = mandate.lost().child_token();
        let prepared = async { stop.run_until_cancelled(self.prepare_in_time(&mandate, &over)).await };
        match over.run_until_cancelled(prepared).await {
            Some(Some(())) => {
                let context =
                    controller::ControllerContext { mandate: mandate.clone(), ..self.context.clone() };
                if let Some(registrations) = &context.registrations {
                    // What an earlier leadership knew says nothing.
                    registrations.clear();
                }
                let controlling = controller::run(context, stop.clone(), over.clone());
                let sweeping = over.run_until_cancelled(self.sweeps.run(stop));
                let upkeep = over.run_until_cancelled(self.upkeep.run(stop));
                let registering = over.run_until_cancelled(async {
                    if let Some(registrar) = &self.registrar {
                        registrar.run(&mandate, stop).await;
                    }
                });
                let settling = over.run_until_cancelled(async {
                    if let Some(settlement) = &self.settlement {
                        Box::pin(settlement.run(&mandate, stop)).await;
                    }
                });
                let migrating = over.run_until_cancelled(self.migrator.run(&mandate, stop));
                tokio::join!(controlling, sweeping, upkeep, registering, migrating, settling);
            }
            Some(None) => {}
            None => warn!("this replica lost the lead before it began"),
        }
        if stop.is_cancelled() && !over.is_cancelled() {
            // The last rows are written under this leadership, and then the Lease is released.
            return;
        }
        if self.has_peers {
            self.context.projection.follow();
        }
        if !mandate.lost().is_cancelled() {
            self.leadership.resign();
            mandate.lost().cancelled().await;
        }
        info!("this replica follows");
    }

    /// Prepares to lead. If preparation takes too long, ends the leadership so that another replica can take over.
    async fn prepare_in_time(&self, mandate: &Mandate, over: &CancellationToken) {
        let prepared = self.prepare(mandate, over);
        if !self.has_peers {
            return prepared.await;
        }
        let within = self.lease_duration * MAX_PREPARATION_LEASES;
        if tokio::time::timeout(within, prepared).await.is_err() {
            warn!(?within, "this replica cannot begin to lead in time; leaving the lead to another replica");
            over.cancel();
        }
    }

    /// Begins a term and then lists everything again, so that no decision is based on what was true under an earlier
    /// leader.
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
        }
        if self.has_peers || self.has_led.swap(true, Ordering::Relaxed) {
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
