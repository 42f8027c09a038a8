//! The replicas that are alive, from one watch over the Leases of the namespace.

use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use k8s_openapi::api::coordination::v1::Lease;
use kube::ResourceExt as _;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::election_rules::Times;
use super::isolation::Renewals;
use super::liveness::{BacklogAge, LeaseLiveness, LeftLeases, ShownLease};
use super::{BACKLOG, INCARNATION, LEADER_LEASE, LeaseObjects, is_replica_lease, replica_lease, replica_of};
use kubesvc_core::ReplicaId;
use kubesvc_core::lifecycle::{Fact, Tick};
use kubesvc_runtime::crash_points;
use kubesvc_runtime::telemetry::errors::chain;
use kubesvc_runtime::telemetry::outages::warn_unless_away;
use kubesvc_runtime::watch_backoff::is_of_api_server;

/// Seconds without a change after which the leader removes a Lease.
const DEAD_LEASE_SECONDS: u64 = 600;
/// Timeout for a list of Leases, and for the removal of one.
const REMOVE_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of Leases removed in one pass.
const MAX_REMOVALS_PER_PASS: usize = 32;

/// Which replicas are alive.
pub struct Replicas {
    id: ReplicaId,
    incarnation: String,
    /// `None` if this replica is the only one.
    liveness: Option<Mutex<LeaseLiveness>>,
    /// Interval at which time is counted.
    pace: Duration,
    changes: watch::Sender<u64>,
    /// Number of registrations that wait at this replica.
    own_backlog: OnceLock<watch::Receiver<usize>>,
    queue: Mutex<BacklogAge>,
    /// Leases of replicas that were here before the only one, which has no watch of them.
    left: Mutex<LeftLeases>,
    /// Renewals of this replica's own Lease; `None` if it has none.
    renewals: Option<Mutex<Renewals>>,
    begun: Instant,
}

impl fmt::Debug for Replicas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replicas").field("id", &self.id).field("alive", &self.alive()).finish_non_exhaustive()
    }
}

impl Replicas {
    /// A replica without others, now and for as long as it runs.
    pub fn alone(replica_id: &ReplicaId) -> Arc<Self> {
        Arc::new(Self {
            id: replica_id.to_owned(),
            incarnation: ulid::Ulid::generate().to_string(),
            liveness: None,
            pace: Duration::from_secs(1),
            changes: watch::Sender::new(0),
            own_backlog: OnceLock::new(),
            queue: Mutex::default(),
            left: Mutex::default(),
            renewals: None,
            begun: Instant::now(),
        })
    }

    /// A replica that may have others; [`Replicas::run`] finds them.
    pub fn unknown(replica_id: &ReplicaId, times: Times) -> Arc<Self> {
        Arc::new(Self {
            id: replica_id.to_owned(),
            incarnation: ulid::Ulid::generate().to_string(),
            liveness: Some(Mutex::new(LeaseLiveness::new(times.duration, times.renewal()))),
            pace: Duration::from_secs(1).min(times.duration / 10),
            changes: watch::Sender::new(0),
            own_backlog: OnceLock::new(),
            queue: Mutex::default(),
            left: Mutex::default(),
            renewals: Some(Mutex::new(Renewals::new(times.duration, Duration::ZERO))),
            begun: Instant::now(),
        })
    }

    /// Whether a replica is alive: it holds its Lease, and the Lease changed recently. Unknown until the
    /// first list of Leases is complete. Always true for this replica.
    pub fn is_alive(&self, replica_id: &ReplicaId) -> Fact<bool> {
        match &self.liveness {
            _ if replica_id == &self.id => Fact::Known(true),
            None => Fact::Known(false),
            Some(liveness) => liveness.lock().is_alive(&replica_lease(replica_id)),
        }
    }

    /// The id of this replica.
    pub fn id(&self) -> &ReplicaId {
        &self.id
    }

    /// ULID of this process. A later process with the same replica id has another one.
    pub fn incarnation(&self) -> &str {
        &self.incarnation
    }

    /// Whether a replica is alive and still runs as `incarnation`. A restarted replica has none of the
    /// sessions of its former process. If either side names no incarnation, they count as the same.
    pub fn serves(&self, replica_id: &ReplicaId, incarnation: Option<&str>) -> Fact<bool> {
        let now = if replica_id == &self.id {
            Some(self.incarnation.clone())
        } else {
            let liveness = self.liveness.as_ref().map(|liveness| liveness.lock());
            liveness.and_then(|liveness| liveness.incarnation(&replica_lease(replica_id)).map(str::to_owned))
        };
        let is_another = now.is_some_and(|now| incarnation.is_some_and(|then| then != now));
        if is_another { Fact::Known(false) } else { self.is_alive(replica_id) }
    }

    /// Number of registrations of agents that wait at live replicas: from their Leases, and for this replica
    /// from memory.
    pub fn backlog(&self) -> u64 {
        let own = self.own_backlog.get().map_or(0, |backlog| *backlog.borrow());
        let others =
            self.liveness.as_ref().map_or(0, |liveness| liveness.lock().backlog(&replica_lease(&self.id)));
        others.saturating_add(u64::try_from(own).unwrap_or(u64::MAX))
    }

    /// Sets the counter of registrations that wait at this replica. Only the first call has an effect.
    pub fn count_own(&self, backlog: watch::Receiver<usize>) {
        let _ = self.own_backlog.set(backlog);
    }

    /// Tick at which the registration backlog began; `None` if there is none. Call this once a second.
    pub fn backlog_since(&self, now: Tick) -> Option<Tick> {
        let waits = self.backlog() > 0;
        self.queue.lock().record(waits, now)
    }

    /// Time since the Lease of this replica was renewed; zero if it has none.
    pub fn lease_age(&self) -> Duration {
        let renewals = self.renewals.as_ref().map(|renewals| *renewals.lock());
        renewals.map_or(Duration::ZERO, |renewals| renewals.age(self.begun.elapsed()))
    }

    /// Number of times that the Lease of this replica was not renewed for so long that others may have called it dead
    /// and given its accounts away; `None` while that is so. What was known before a lapse must be read again.
    pub fn lapses(&self) -> Option<u64> {
        let renewals = self.renewals.as_ref().map(|renewals| *renewals.lock());
        renewals.map_or(Some(0), |renewals| renewals.lapses(self.begun.elapsed()))
    }

    /// How long the API server has answered this replica without a gap, judged by its Lease; zero if it does
    /// not answer now.
    pub fn answered_for(&self) -> Duration {
        let renewals = self.renewals.as_ref().map(|renewals| *renewals.lock());
        renewals.map_or(Duration::ZERO, |renewals| renewals.unbroken(self.begun.elapsed()))
    }

    /// Records that the Lease of this replica was renewed.
    pub(super) fn renewed(&self) {
        if let Some(renewals) = &self.renewals {
            renewals.lock().renewed(self.begun.elapsed());
        }
    }

    /// Changes when a replica has appeared, died or restarted, or has no backlog any more. Subscribers must
    /// look again; the value means nothing.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// For tests: makes exactly these replicas alive.
    #[cfg(test)]
    pub(crate) fn now_are(&self, ids: &[&str]) {
        if let Some(liveness) = &self.liveness {
            let mut liveness = liveness.lock();
            let names: HashSet<_> = ids.iter().map(|id| replica_lease(&(*id).into())).collect();
            for name in &names {
                liveness.show(
                    name,
                    ShownLease {
                        version: "1".to_owned(),
                        is_held: true,
                        backlog: 0,
                        incarnation: "one".to_owned(),
                    },
                );
            }
            liveness.listed(&names);
        }
        self.changes.send_modify(|count| *count += 1);
    }

    /// Sorted ids of the other live replicas, as far as the names of their Leases show them.
    pub fn others(&self) -> Vec<ReplicaId> {
        let alive = self.alive();
        let ids = alive.iter().filter_map(|lease| replica_of(lease)).filter(|id| *id != self.id);
        ids.map(ReplicaId::from).collect()
    }

    /// Names of the Leases of live replicas, for the log.
    fn alive(&self) -> Vec<String> {
        self.liveness.as_ref().map(|liveness| liveness.lock().alive()).unwrap_or_default()
    }

    /// Follows the Leases until stopped. Notifies `leader_changed` when the leader's Lease was written by
    /// another replica or deleted.
    pub async fn run(&self, leases: LeaseObjects, leader_changed: Arc<Notify>, stop: CancellationToken) {
        let Some(liveness) = &self.liveness else { return };
        let stream = watcher::watcher(leases.0.api().clone(), kubesvc_runtime::watch_backoff::config())
            .backoff(kubesvc_runtime::watch_backoff::pauses());
        let mut stream = std::pin::pin!(stream);
        let (mut listing, mut complained) = (HashSet::new(), false);
        let mut pace = tokio::time::interval(self.pace);
        // A suspended process counts one interval, however long it was suspended.
        pace.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let changed = tokio::select! {
                () = stop.cancelled() => return,
                _ = pace.tick() => liveness.lock().tick(self.pace),
                event = stream.next() => match event {
                    None => return,
                    Some(Ok(Event::Init)) => {
                        listing.clear();
                        false
                    }
                    Some(Ok(Event::InitApply(lease))) => {
                        listing.insert(lease.name_any());
                        self.shown(liveness, &lease, &leader_changed)
                    }
                    Some(Ok(Event::InitDone)) => {
                        liveness.lock().listed(&std::mem::take(&mut listing));
                        complained = false;
                        true
                    }
                    Some(Ok(Event::Apply(lease))) => self.shown(liveness, &lease, &leader_changed),
                    Some(Ok(Event::Delete(lease))) if lease.name_any() == LEADER_LEASE => {
                        leader_changed.notify_one();
                        false
                    }
                    Some(Ok(Event::Delete(lease))) => liveness.lock().delete(&lease.name_any()),
                    Some(Err(problem)) => {
                        if !is_of_api_server(&problem) && !std::mem::replace(&mut complained, true) {
                            let error = chain(&problem);
                            warn!(error, "cannot watch Leases; the liveness of other replicas is unknown");
                        }
                        false
                    }
                },
            };
            if changed {
                let alive = self.alive();
                info!(replicas = alive.len(), leases = alive.join(" "), "live replicas changed");
                self.changes.send_modify(|count| *count += 1);
            }
        }
    }

    fn shown(&self, liveness: &Mutex<LeaseLiveness>, lease: &Lease, leader_changed: &Notify) -> bool {
        let name = lease.name_any();
        let holder = super::holder(lease);
        if name == LEADER_LEASE {
            // Writes of this replica are known already; a write of another one shows that it is alive.
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
        let incarnation = lease.annotations().get(INCARNATION).cloned().unwrap_or_default();
        liveness.lock().show(&name, ShownLease { version, is_held: !holder.is_empty(), backlog, incarnation })
    }

    /// Time without a change after which the leader removes a Lease: ten minutes.
    pub fn dead_lease_age() -> Duration {
        Duration::from_secs(crash_points::seconds("KUBESVC_LEASES_GONE_SECONDS", DEAD_LEASE_SECONDS))
    }

    /// Deletes the Leases of replicas that have been gone for ten minutes. Only the leader calls this.
    pub async fn remove_long_gone(&self, leases: &LeaseObjects) {
        let age = Self::dead_lease_age();
        let gone = match &self.liveness {
            Some(liveness) => {
                let own = replica_lease(&self.id);
                let mut gone = liveness.lock().unchanged_for(age);
                gone.retain(|(name, _)| *name != own);
                gone
            }
            None => match leases.of_replicas(REMOVE_TIMEOUT).await {
                Ok(listed) => self.left.lock().unchanged_for(age, listed, self.begun.elapsed()),
                Err(error) => {
                    let error = super::explain(&error);
                    warn_unless_away!(error, "cannot list the Leases of earlier replicas");
                    return;
                }
            },
        };
        for (name, version) in gone.into_iter().take(MAX_REMOVALS_PER_PASS) {
            match leases.delete(&name, &version, REMOVE_TIMEOUT).await {
                Ok(()) => info!(lease = name, "removed the Lease of a dead replica"),
                // The replica is back, or another client has removed the Lease.
                Err(error) if error.is_stale() => {}
                Err(error) => {
                    let error = super::explain(&error);
                    warn_unless_away!(lease = name, error, "cannot remove the Lease of a dead replica");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn single_replica_knows_that_no_others_live() {
        let replicas = Replicas::alone(&"r-0".into());
        assert_eq!(replicas.is_alive(&"r-0".into()), Fact::Known(true));
        assert_eq!(replicas.is_alive(&"r-1".into()), Fact::Known(false));
    }

    #[test]
    fn restarted_replica_serves_none_of_its_former_sessions() {
        let replicas = Replicas::unknown(&"r-0".into(), Times::default());
        replicas.now_are(&["r-0", "r-1"]);
        for (replica, incarnation, expected) in [
            ("r-1", Some("one"), true),
            ("r-1", Some("zero"), false),
            ("r-1", None, true),
            ("r-2", Some("one"), false),
            ("r-0", Some("one"), false),
            ("r-0", Some(replicas.incarnation()), true),
        ] {
            assert_eq!(
                replicas.serves(&replica.into(), incarnation),
                Fact::Known(expected),
                "{replica} {incarnation:?}"
            );
        }
    }

    #[test]
    fn nothing_is_known_of_others_before_their_leases_were_listed() {
        let replicas = Replicas::unknown(&"r-0".into(), Times::default());
        assert_eq!(replicas.is_alive(&"r-0".into()), Fact::Known(true));
        assert_eq!(replicas.is_alive(&"r-1".into()), Fact::Unknown);
    }
}
