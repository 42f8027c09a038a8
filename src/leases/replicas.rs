//! The replicas that are alive: one watch over the Leases of the namespace.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use k8s_openapi::api::coordination::v1::Lease;
use kube::ResourceExt as _;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::election::Times;
use super::objects::{self, BACKLOG, Failed, LEADER_LEASE, LeaseObjects, is_replica_lease, replica_lease};
use super::roll::{Roll, Shown};
use crate::account::lifecycle::Fact;
use crate::telemetry::errors::chain;

/// A Lease that has not changed for so long is removed by the leader.
const LONG_GONE: Duration = Duration::from_secs(600);
/// How long the API server may take to remove one.
const REMOVE_WAIT: Duration = Duration::from_secs(5);
/// How many are removed in one go.
const REMOVALS: usize = 32;

/// Which replicas are alive.
pub struct Replicas {
    id: String,
    /// Absent: this replica is the only one.
    roll: Option<Mutex<Roll>>,
    /// How often the time is counted.
    pace: Duration,
    changes: watch::Sender<u64>,
}

impl fmt::Debug for Replicas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replicas").field("id", &self.id).field("alive", &self.alive()).finish_non_exhaustive()
    }
}

impl Replicas {
    /// There is no other replica, and never will be while this one runs.
    pub fn alone(replica_id: &str) -> Arc<Self> {
        Arc::new(Self {
            id: replica_id.to_owned(),
            roll: None,
            pace: Duration::from_secs(1),
            changes: watch::Sender::new(0),
        })
    }

    /// There may be others; [`Replicas::run`] finds out.
    pub fn unknown(replica_id: &str, times: Times) -> Arc<Self> {
        Arc::new(Self {
            id: replica_id.to_owned(),
            roll: Some(Mutex::new(Roll::new(times.duration, times.renewal()))),
            pace: Duration::from_secs(1).min(times.duration / 10),
            changes: watch::Sender::new(0),
        })
    }

    /// Whether a replica is alive: it holds its Lease, and that has changed lately. Unknown until the first list of
    /// Leases is complete. This replica is.
    pub fn is_alive(&self, replica_id: &str) -> Fact<bool> {
        match &self.roll {
            _ if replica_id == self.id => Fact::Known(true),
            None => Fact::Known(false),
            Some(roll) => roll.lock().is_alive(&replica_lease(replica_id)),
        }
    }

    /// How many registrations of agents wait at replicas that are alive, as their Leases say.
    pub fn backlog(&self) -> u64 {
        self.roll.as_ref().map_or(0, |roll| roll.lock().backlog())
    }

    /// Changes when a replica has come, has died, or has no backlog any more. It says only: look again.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// For tests: these are alive, and no others.
    #[cfg(test)]
    pub(crate) fn now_are(&self, ids: &[&str]) {
        if let Some(roll) = &self.roll {
            let mut roll = roll.lock();
            let names: HashSet<_> = ids.iter().map(|id| replica_lease(id)).collect();
            for name in &names {
                roll.show(name, Shown { version: "1".to_owned(), is_held: true, backlog: 0 });
            }
            roll.listed(&names);
        }
        self.changes.send_modify(|count| *count += 1);
    }

    /// The Leases of replicas that are alive, for the log.
    fn alive(&self) -> Vec<String> {
        self.roll.as_ref().map(|roll| roll.lock().alive()).unwrap_or_default()
    }

    /// Follows the Leases until stopped. `leader_changed` is told when the leader's Lease was written as
    /// another's, or deleted.
    pub async fn run(&self, leases: LeaseObjects, leader_changed: Arc<Notify>, stop: CancellationToken) {
        let Some(roll) = &self.roll else { return };
        let stream = watcher::watcher(leases.api, watcher::Config::default()).default_backoff();
        let mut stream = std::pin::pin!(stream);
        let (mut listing, mut complained) = (HashSet::new(), false);
        let mut pace = tokio::time::interval(self.pace);
        // A process that slept has slept for one turn, however long it was.
        pace.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let news = tokio::select! {
                () = stop.cancelled() => return,
                _ = pace.tick() => roll.lock().tick(self.pace),
                event = stream.next() => match event {
                    None => return,
                    Some(Ok(Event::Init)) => {
                        listing.clear();
                        false
                    }
                    Some(Ok(Event::InitApply(lease))) => {
                        listing.insert(lease.name_any());
                        self.shown(roll, &lease, &leader_changed)
                    }
                    Some(Ok(Event::InitDone)) => {
                        roll.lock().listed(&std::mem::take(&mut listing));
                        complained = false;
                        true
                    }
                    Some(Ok(Event::Apply(lease))) => self.shown(roll, &lease, &leader_changed),
                    Some(Ok(Event::Delete(lease))) if lease.name_any() == LEADER_LEASE => {
                        leader_changed.notify_one();
                        false
                    }
                    Some(Ok(Event::Delete(lease))) => roll.lock().delete(&lease.name_any()),
                    Some(Err(problem)) => {
                        if !std::mem::replace(&mut complained, true) {
                            let error = chain(&problem);
                            warn!(error, "cannot watch Leases; whether other replicas are alive is not known");
                        }
                        false
                    }
                },
            };
            if news {
                let alive = self.alive();
                info!(replicas = alive.len(), leases = alive.join(" "), "replicas that are alive");
                self.changes.send_modify(|count| *count += 1);
            }
        }
    }

    fn shown(&self, roll: &Mutex<Roll>, lease: &Lease, leader_changed: &Notify) -> bool {
        let name = lease.name_any();
        let holder = objects::holder(lease);
        if name == LEADER_LEASE {
            // What we have written ourselves is known; what another has tells that it is alive, and when.
            if holder != self.id {
                leader_changed.notify_one();
            }
            return false;
        }
        if !is_replica_lease(&name) {
            return false;
        }
        let backlog = lease.annotations().get(BACKLOG).and_then(|count| count.parse().ok()).unwrap_or(0);
        let version = lease.resource_version().unwrap_or_default();
        roll.lock().show(&name, Shown { version, is_held: !holder.is_empty(), backlog })
    }

    /// Removes Leases of replicas that have been gone for ten minutes. Only the leader does.
    pub async fn remove_long_gone(&self, leases: &LeaseObjects) {
        let Some(roll) = &self.roll else { return };
        let gone = roll.lock().unchanged_for(LONG_GONE);
        let own = replica_lease(&self.id);
        for (name, version) in gone.into_iter().filter(|(name, _)| *name != own).take(REMOVALS) {
            match leases.delete(&name, &version, REMOVE_WAIT).await {
                Ok(()) => info!(lease = name, "the Lease of a replica that is long gone is removed"),
                // It is back, or somebody else has removed it.
                Err(Failed::Changed) => {}
                Err(Failed::Api(error)) => warn!(lease = name, error, "cannot remove an old Lease"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_is_alone_knows_that_all_others_are_gone() {
        let replicas = Replicas::alone("r-0");
        assert_eq!(replicas.is_alive("r-0"), Fact::Known(true));
        assert_eq!(replicas.is_alive("r-1"), Fact::Known(false));
    }

    #[test]
    fn nothing_is_known_of_others_before_their_leases_were_listed() {
        let replicas = Replicas::unknown("r-0", Times::default());
        assert_eq!(replicas.is_alive("r-0"), Fact::Known(true));
        assert_eq!(replicas.is_alive("r-1"), Fact::Unknown);
    }
}
