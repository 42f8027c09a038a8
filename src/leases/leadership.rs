//! Who leads, for everybody who does not care how that is found out.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use super::objects::{self, LEADER_LEASE, LeaseObjects};

/// Time limit for the API server to confirm that the Lease is ours.
const CONFIRM_TIMEOUT: Duration = Duration::from_secs(5);
/// Delay before the confirmation is asked for again.
const CONFIRM_RETRY_DELAY: Duration = Duration::from_millis(500);

/// The right to lead, from taking the Lease until it is lost. Clones are the same one.
#[derive(Clone)]
pub struct Mandate(Arc<MandateState>);

struct MandateState {
    holder: String,
    /// What the moments count from.
    begun: Instant,
    /// When the last renewal was sent, and how long after it the mandate ends; without a Lease it never does.
    lease: Option<(LeaseObjects, AtomicU64, Duration)>,
    lost: CancellationToken,
}

impl fmt::Debug for Mandate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mandate").field("holder", &self.0.holder).field("holds", &self.holds()).finish()
    }
}

impl Mandate {
    /// One that nobody contests.
    pub fn alone(replica_id: &str) -> Self {
        Self::new(replica_id, Instant::now(), None)
    }

    fn new(holder: &str, begun: Instant, lease: Option<(LeaseObjects, AtomicU64, Duration)>) -> Self {
        Self(Arc::new(MandateState {
            holder: holder.to_owned(),
            begun,
            lease,
            lost: CancellationToken::new(),
        }))
    }

    /// One by a Lease whose renewal was sent at `sent` after `begun`.
    pub(super) fn by_lease(
        objects: LeaseObjects,
        holder: &str,
        begun: Instant,
        sent: Duration,
        deadline: Duration,
    ) -> Self {
        Self::new(holder, begun, Some((objects, AtomicU64::new(millis(sent)), deadline)))
    }

    /// The replica that leads by it.
    pub fn holder(&self) -> &str {
        &self.0.holder
    }

    /// Whether it holds now. A process that slept sees here that it does not, before anybody has told it so.
    pub fn holds(&self) -> bool {
        let in_time = self.0.lease.as_ref().is_none_or(|(_, renewed, deadline)| {
            millis(self.0.begun.elapsed()) < renewed.load(Ordering::Relaxed) + millis(*deadline)
        });
        in_time && !self.0.lost.is_cancelled()
    }

    /// Is cancelled when it is lost: all work of a leader ends at once.
    pub fn lost(&self) -> &CancellationToken {
        &self.0.lost
    }

    /// Asks the API server whether the Lease is still ours. While it does not answer it is asked again, for as long as
    /// the mandate holds.
    pub async fn is_confirmed(&self) -> bool {
        let Some((leases, ..)) = &self.0.lease else { return true };
        while self.holds() {
            match leases.get(LEADER_LEASE, CONFIRM_TIMEOUT).await {
                Ok(lease) => {
                    let ours = lease.is_some_and(|lease| objects::holder(&lease) == self.0.holder);
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

/// What is known of who leads.
#[derive(Clone, Debug, Default)]
struct LeaderView {
    mandate: Option<Mandate>,
    leader: Option<String>,
}

/// Whether this replica leads, and who does.
pub struct Leadership {
    leader: watch::Sender<LeaderView>,
    /// Whether this replica leads, for those to whom nothing else matters.
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
    /// Nobody is known to lead yet; an [`Elector`](super::Elector) finds out.
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

    /// This replica is the only one, and leads from the start.
    pub fn alone(replica_id: &str) -> Arc<Self> {
        let leadership = Self::unknown();
        leadership.take(Mandate::alone(replica_id));
        leadership
    }

    /// Whether this replica leads now.
    pub fn leads(&self) -> bool {
        self.leader.borrow().mandate.as_ref().is_some_and(Mandate::holds)
    }

    /// Changes whenever this replica begins or ceases to lead.
    pub fn follow(&self) -> watch::Receiver<bool> {
        self.leading.subscribe()
    }

    /// The replica that leads, as far as it is known here.
    pub fn leader(&self) -> Option<String> {
        self.leader.borrow().leader.clone()
    }

    /// Waits until this replica leads.
    pub async fn taken(&self) -> Mandate {
        let mut standing = self.leader.subscribe();
        loop {
            if let Some(mandate) = standing.borrow_and_update().mandate.clone() {
                return mandate;
            }
            if standing.changed().await.is_err() {
                // The sender lives as long as self.
                std::future::pending::<()>().await;
            }
        }
    }

    /// Lets go of the lead. The work of a leader has ended before.
    pub fn resign(&self) {
        self.resigned.notify_one();
    }

    /// Puts `kubesvc_leader` and what belongs to it into a registry.
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

    pub(super) fn take(&self, mandate: Mandate) {
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

    /// Who leads, where it is not this replica. True: that is news.
    pub(super) fn follows(&self, leader: Option<&str>) -> bool {
        self.leader.send_if_modified(|standing| {
            let news = standing.leader.as_deref() != leader;
            if news {
                standing.leader = leader.map(str::to_owned);
            }
            news
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_that_is_alone_leads_until_it_ends() {
        let leadership = Leadership::alone("r-0");
        let mandate = leadership.taken().await;
        assert!(leadership.leads() && mandate.holds() && mandate.is_confirmed().await);
        assert_eq!(leadership.leader().as_deref(), Some("r-0"));
    }

    #[tokio::test]
    async fn what_is_lost_does_not_hold_and_says_so() {
        let leadership = Leadership::alone("r-0");
        let mandate = leadership.taken().await;
        leadership.lose();
        mandate.lost().cancelled().await;
        assert!(!mandate.holds() && !leadership.leads() && leadership.leader().is_none());
        assert!(leadership.follows(Some("r-1")) && !leadership.follows(Some("r-1")));
        assert_eq!(leadership.leader().as_deref(), Some("r-1"));
    }
}
