//! Who leads, for code that does not need to know how the election works.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use super::{LEADER_LEASE, LeaseObjects};
use kubesvc_core::ReplicaId;

/// Timeout for the API server to confirm that this replica holds the Lease.
const CONFIRM_TIMEOUT: Duration = Duration::from_secs(5);
/// Delay before the confirmation is requested again.
const CONFIRM_RETRY_DELAY: Duration = Duration::from_millis(500);

/// The right to lead, from taking the Lease until losing it. Clones share the same state.
#[derive(Clone)]
pub struct Mandate(Arc<MandateState>);

struct MandateState {
    holder: ReplicaId,
    /// Start of the clock for all durations.
    begun: Instant,
    /// Send time of the last renewal, in milliseconds, and how long after it the mandate ends. Without a
    /// Lease it never ends.
    lease: Option<(LeaseObjects, AtomicU64, Duration)>,
    lost: CancellationToken,
}

impl fmt::Debug for Mandate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mandate").field("holder", &self.0.holder).field("holds", &self.holds()).finish()
    }
}

impl Mandate {
    /// A mandate without a Lease, for a replica that has no competitors.
    pub fn alone(replica_id: &ReplicaId) -> Self {
        Self::new(replica_id, Instant::now(), None)
    }

    fn new(holder: &ReplicaId, begun: Instant, lease: Option<(LeaseObjects, AtomicU64, Duration)>) -> Self {
        Self(Arc::new(MandateState {
            holder: holder.to_owned(),
            begun,
            lease,
            lost: CancellationToken::new(),
        }))
    }

    /// A mandate from a Lease whose renewal was sent at `sent` after `begun`.
    pub(super) fn by_lease(
        objects: LeaseObjects,
        holder: &ReplicaId,
        begun: Instant,
        sent: Duration,
        deadline: Duration,
    ) -> Self {
        Self::new(holder, begun, Some((objects, AtomicU64::new(millis(sent)), deadline)))
    }

    /// Id of the replica that holds the mandate.
    pub fn holder(&self) -> &ReplicaId {
        &self.0.holder
    }

    /// Whether the mandate is valid now. After a suspension, a process sees here that it is not, before
    /// anything else tells it.
    pub fn holds(&self) -> bool {
        let in_time = self.0.lease.as_ref().is_none_or(|(_, renewed, deadline)| {
            millis(self.0.begun.elapsed()) < renewed.load(Ordering::Relaxed) + millis(*deadline)
        });
        in_time && !self.0.lost.is_cancelled()
    }

    /// Cancelled when the mandate is lost: all of the leader's work stops at once.
    pub fn lost(&self) -> &CancellationToken {
        &self.0.lost
    }

    /// Asks the API server whether this replica still holds the Lease. Retries while the API server does not
    /// answer and the mandate is valid.
    pub async fn is_confirmed(&self) -> bool {
        let Some((leases, ..)) = &self.0.lease else { return true };
        while self.holds() {
            match leases.get(LEADER_LEASE, CONFIRM_TIMEOUT).await {
                Ok(lease) => {
                    let ours = lease.is_some_and(|lease| super::holder(&lease) == self.0.holder);
                    return ours && self.holds();
                }
                Err(_) => tokio::time::sleep(CONFIRM_RETRY_DELAY).await,
            }
        }
        false
    }

    pub(super) fn renewed(&self, sent: Duration) {
        if let Some((_, renewed, _)) = &self.0.lease {
            renewed.store(millis(sent), Ordering::Relaxed);
        }
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// What this replica knows about the leader.
#[derive(Clone, Debug, Default)]
struct LeaderView {
    mandate: Option<Mandate>,
    leader: Option<ReplicaId>,
}

/// Whether this replica leads, and which replica does.
pub struct Leadership {
    leader: watch::Sender<LeaderView>,
    /// Whether this replica leads, for subscribers that need nothing else.
    leading: watch::Sender<bool>,
    pub(super) resigned: Notify,
    leads: Gauge,
    taken: Counter,
    pub(super) failed_renewals: Counter,
}

impl fmt::Debug for Leadership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.leader.borrow().fmt(f)
    }
}

impl Leadership {
    /// Creates a leadership without a known leader; an [`Elector`](super::Elector) determines it.
    pub fn unknown() -> Arc<Self> {
        Arc::new(Self {
            leader: watch::Sender::new(LeaderView::default()),
            leading: watch::Sender::new(false),
            resigned: Notify::new(),
            leads: Gauge::default(),
            taken: Counter::default(),
            failed_renewals: Counter::default(),
        })
    }

    /// Whether this replica leads now.
    pub fn leads(&self) -> bool {
        self.leader.borrow().mandate.as_ref().is_some_and(Mandate::holds)
    }

    /// Notifies whenever this replica starts or stops leading.
    pub fn follow(&self) -> watch::Receiver<bool> {
        self.leading.subscribe()
    }

    /// Id of the replica that leads, if known.
    pub fn leader(&self) -> Option<ReplicaId> {
        self.leader.borrow().leader.clone()
    }

    /// Waits until this replica leads.
    pub async fn taken(&self) -> Mandate {
        self.taken_after(|_| {}).await
    }

    /// Waits until this replica leads. `seen` is called with each replica that leads before.
    pub async fn taken_after(&self, mut seen: impl FnMut(&ReplicaId)) -> Mandate {
        let mut standing = self.leader.subscribe();
        loop {
            let LeaderView { mandate, leader } = standing.borrow_and_update().clone();
            if let Some(mandate) = mandate {
                return mandate;
            }
            if let Some(leader) = &leader {
                seen(leader);
            }
            if standing.changed().await.is_err() {
                // The sender lives as long as self.
                std::future::pending::<()>().await;
            }
        }
    }

    /// Waits until another replica leads. Returns its id.
    pub async fn taken_by_another(&self) -> ReplicaId {
        let mut standing = self.leader.subscribe();
        let is_led = |view: &LeaderView| view.mandate.is_none() && view.leader.is_some();
        let led = standing.wait_for(is_led).await;
        match led.ok().and_then(|view| view.leader.clone()) {
            Some(leader) => leader,
            // The sender lives as long as self.
            None => std::future::pending().await,
        }
    }

    /// Gives up leadership. The caller has stopped the leader's work.
    pub fn resign(&self) {
        self.resigned.notify_one();
    }

    /// Registers `kubesvc_leader` and related metrics.
    pub fn register(&self, registry: &mut Registry) {
        registry.register("kubesvc_leader", "1 while this replica leads, else 0", self.leads.clone());
        registry.register(
            "kubesvc_leader_terms",
            "How often this replica has begun to lead",
            self.taken.clone(),
        );
        registry.register(
            "kubesvc_lease_failures",
            "Reads and writes of the leader's Lease that failed",
            self.failed_renewals.clone(),
        );
    }

    pub(crate) fn take(&self, mandate: Mandate) {
        self.leads.set(1);
        self.taken.inc();
        let leader = Some(mandate.holder().to_owned());
        self.leader.send_replace(LeaderView { mandate: Some(mandate), leader });
        self.leading.send_replace(true);
    }

    pub(crate) fn lose(&self) {
        self.leads.set(0);
        self.leader.send_if_modified(|standing| {
            standing.leader = None;
            standing.mandate.take().map(|mandate| mandate.0.lost.cancel()).is_some()
        });
        self.leading.send_if_modified(|leading| std::mem::replace(leading, false));
    }

    pub(super) fn mandate(&self) -> Option<Mandate> {
        self.leader.borrow().mandate.clone()
    }

    /// Records another replica as the leader. Returns true if that is a change.
    pub(super) fn follows(&self, leader: Option<&ReplicaId>) -> bool {
        self.leader.send_if_modified(|standing| {
            let changed = standing.leader.as_ref() != leader;
            if changed {
                standing.leader = leader.cloned();
            }
            changed
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The leadership of the only replica, which leads from the start.
    fn leading() -> Arc<Leadership> {
        let leadership = Leadership::unknown();
        leadership.take(Mandate::alone(&"r-0".into()));
        leadership
    }

    #[tokio::test]
    async fn single_replica_leads_until_it_stops() {
        let leadership = leading();
        let mandate = leadership.taken().await;
        assert!(leadership.leads() && mandate.holds() && mandate.is_confirmed().await);
        assert_eq!(leadership.leader(), Some("r-0".into()));
    }

    #[tokio::test]
    async fn lost_mandate_is_invalid_and_signals_its_end() {
        let leadership = leading();
        let mandate = leadership.taken().await;
        leadership.lose();
        mandate.lost().cancelled().await;
        assert!(!mandate.holds() && !leadership.leads() && leadership.leader().is_none());
        assert!(leadership.follows(Some(&"r-1".into())) && !leadership.follows(Some(&"r-1".into())));
        assert_eq!(leadership.leader(), Some("r-1".into()));
    }
}
