//! The Lease of this replica, which shows the others that it is alive: renewing it, and judging from its age whether
//! only this replica is cut off from the API server.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::election_rules::{Moment, Times};
use super::replicas::Replicas;
use super::{BACKLOG, INCARNATION, LeaseObjects, replica_lease};
use kubesvc_runtime::kube_access::{KubeError, WriteOptions};
use kubesvc_runtime::telemetry::outages::api_server_is_away;

/// Delay after a failed write.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Timeout for releasing the Lease.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);

/// Delay before a backlog is published.
const BACKLOG_REPORT_DELAY: Duration = Duration::from_millis(500);
/// Delay before the end of a backlog is published.
const NO_BACKLOG_REPORT_DELAY: Duration = Duration::from_millis(200);

fn is_some(count: &usize) -> bool {
    *count > 0
}

fn is_none(count: &usize) -> bool {
    *count == 0
}

/// Task that renews the Lease of this replica.
pub struct OwnLease {
    leases: LeaseObjects,
    replicas: Arc<Replicas>,
    times: Times,
    backlog: watch::Receiver<usize>,
    lease: Option<Lease>,
}

impl OwnLease {
    /// Creates the task. The Lease also carries this process's incarnation and the number of registrations of
    /// agents that wait here.
    pub fn new(
        leases: LeaseObjects,
        replicas: Arc<Replicas>,
        times: Times,
        backlog: watch::Receiver<usize>,
    ) -> Self {
        Self { leases, replicas, times, backlog, lease: None }
    }

    /// Renews the Lease until `finish` is cancelled, then releases it.
    pub async fn run(mut self, finish: CancellationToken) {
        let mut complained = false;
        loop {
            let pause = match self.renew().await {
                Ok(()) => {
                    self.replicas.renewed();
                    complained = false;
                    self.times.renewal()
                }
                Err(error) if error.is_stale() => Duration::ZERO,
                Err(error) => {
                    let error = super::explain(&error);
                    if !api_server_is_away() && !std::mem::replace(&mut complained, true) {
                        warn!(
                            error,
                            "cannot renew this replica's Lease; other replicas may consider it dead"
                        );
                    }
                    RETRY_DELAY.min(self.times.renewal())
                }
            };
            // Bounds the rate of writes if another client keeps changing the Lease.
            let pause = pause.max(Duration::from_millis(50));
            let published = self.published();
            let mut backlog = self.backlog.clone();
            // The start and the end of a backlog are published soon, because the leader depends on them.
            let (is_other, delay) = if published == 0 {
                (is_some as fn(&usize) -> bool, BACKLOG_REPORT_DELAY)
            } else {
                (is_none as _, NO_BACKLOG_REPORT_DELAY)
            };
            let turned = async {
                if backlog.wait_for(is_other).await.is_err() {
                    std::future::pending::<()>().await;
                }
                tokio::time::sleep(delay).await;
            };
            tokio::select! {
                () = finish.cancelled() => break,
                () = turned => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
        self.release().await;
    }

    /// The backlog published in the Lease.
    fn published(&self) -> usize {
        let annotations = self.lease.as_ref().and_then(|lease| lease.metadata.annotations.as_ref());
        annotations.and_then(|all| all.get(BACKLOG)).and_then(|count| count.parse().ok()).unwrap_or(0)
    }

    async fn renew(&mut self) -> Result<(), KubeError> {
        let name = replica_lease(self.replicas.id());
        if self.lease.is_none() {
            self.lease = self.leases.get(&name, self.times.renewal()).await?;
        }
        let mut lease =
            super::held(self.lease.as_ref(), &name, self.replicas.id().as_str(), self.times.duration);
        let count = self.backlog.borrow().to_string();
        let annotations = lease.metadata.annotations.get_or_insert_default();
        annotations.insert(BACKLOG.to_owned(), count);
        annotations.insert(INCARNATION.to_owned(), self.replicas.incarnation().to_owned());
        let options = WriteOptions::default().at("replica-lease");
        let written = self.leases.put(&lease, self.times.renewal(), options).await;
        // Read it again after a failure: it may have been written, deleted or edited.
        self.lease = None;
        self.lease = Some(written?);
        Ok(())
    }

    async fn release(&mut self) {
        let Some(lease) = self.lease.take() else { return };
        let mut lease = super::released(&lease);
        lease.metadata.annotations.get_or_insert_default().insert(BACKLOG.to_owned(), "0".to_owned());
        if let Err(failed) = self.leases.put(&lease, RELEASE_TIMEOUT, WriteOptions::default()).await {
            debug!(?failed, "cannot release this replica's Lease; it will expire");
        }
    }
}

/// Renewals of this replica's own Lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Renewals {
    /// Validity of the Lease.
    duration: Duration,
    /// Time of the last renewal.
    last: Moment,
    /// Time since which no renewal has been late.
    since: Moment,
}

impl Renewals {
    /// No renewal yet; the time counts from `now`.
    pub(super) fn new(duration: Duration, now: Moment) -> Self {
        Self { duration, last: now, since: now }
    }

    pub(super) fn renewed(&mut self, now: Moment) {
        if self.is_late(now) {
            self.since = now;
        }
        self.last = now;
    }

    /// Time since the last renewal.
    pub(super) fn age(&self, now: Moment) -> Duration {
        now.saturating_sub(self.last)
    }

    /// How long the API server has answered without a gap; zero if it does not answer now. A gap is half the
    /// Lease duration: if several replicas lose the API server at the same time, none of them may claim an
    /// answer once another one's Lease has expired.
    pub(super) fn unbroken(&self, now: Moment) -> Duration {
        if self.is_late(now) { Duration::ZERO } else { now.saturating_sub(self.since) }
    }

    fn is_late(&self, now: Moment) -> bool {
        self.age(now) > self.duration / 2
    }
}

/// Whether only this replica is cut off from the API server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Isolation {
    /// Last time that another replica proved to have better access to the API server.
    outdone: Option<Moment>,
}

impl Isolation {
    /// Minimum age of its own Lease at which a replica may be cut off: the Lease has expired, and one more
    /// renewal was missed. By then, a replica that was in the middle of an attempt when the API server came
    /// back for all has tried again.
    pub fn doubtful_after(duration: Duration) -> Duration {
        duration + duration / 3
    }

    /// Returns whether this replica is cut off. `age`: time since its own Lease was renewed. `others`: the
    /// longest time without a gap for which the API server has answered another replica; `None` if no other
    /// replica reports one.
    ///
    /// The replica is cut off if its Lease has expired, one more renewal was missed, and another replica was
    /// answered for all of that time. A replica that was answered for only part of it proves nothing: the API
    /// server may be coming back for all of them, one after the other. An uninterrupted time of twice
    /// the Lease duration is always enough. Without further reports, the verdict lapses after one Lease duration.
    pub fn judge(
        &mut self,
        now: Duration,
        duration: Duration,
        age: Duration,
        others: Option<Duration>,
    ) -> bool {
        if age < Self::doubtful_after(duration) {
            self.outdone = None;
            return false;
        }
        if others.is_some_and(|unbroken| unbroken >= age.min(duration * 2)) {
            self.outdone = Some(now);
        }
        self.outdone.is_some_and(|when| now.saturating_sub(when) < duration)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DURATION: Duration = seconds(15);

    const fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    fn judge(age: u64, others: Option<u64>) -> bool {
        Isolation::default().judge(seconds(100), DURATION, seconds(age), others.map(seconds))
    }

    #[test]
    fn a_replica_is_cut_off_once_its_lease_has_run_out_and_another_was_answered_all_the_time() {
        assert!(!judge(14, Some(1000)), "its Lease stands");
        assert!(!judge(19, Some(1000)), "it may be renewed any moment");
        assert!(judge(20, Some(1000)) && judge(20, Some(20)));
        assert!(!judge(20, None), "nobody answers: the API server may be away");
        assert!(!judge(20, Some(0)) && !judge(60, Some(0)), "it is away for the others too");
        assert!(!judge(20, Some(4)) && !judge(60, Some(29)), "it may be coming back for all");
        assert!(judge(60, Some(30)), "it came back for the others only");
    }

    #[test]
    fn isolation_ends_on_renewal_or_without_recent_evidence() {
        let mut isolation = Isolation::default();
        let mut judge = |now, age, others: Option<u64>| {
            isolation.judge(seconds(now), DURATION, seconds(age), others.map(seconds))
        };
        assert!(judge(20, 20, Some(20)));
        assert!(judge(25, 25, None) && judge(34, 34, Some(0)), "one that is not heard takes nothing back");
        assert!(!judge(35, 35, None));
        assert!(judge(36, 36, Some(36)));
        assert!(!judge(37, 1, Some(37)), "the Lease is renewed");
        assert!(!judge(38, 20, None), "and what was said before is forgotten");
    }

    #[test]
    fn late_renewal_restarts_the_unbroken_time() {
        let mut renewals = Renewals::new(DURATION, seconds(0));
        for now in [5, 10, 15] {
            renewals.renewed(seconds(now));
        }
        assert_eq!((renewals.unbroken(seconds(20)), renewals.age(seconds(20))), (seconds(20), seconds(5)));
        assert_eq!(renewals.unbroken(seconds(23)), Duration::ZERO);
        renewals.renewed(seconds(23));
        assert_eq!(renewals.unbroken(seconds(25)), seconds(2));
    }

    #[test]
    fn outage_for_all_replicas_isolates_none() {
        // Each replica renews in its own step of five seconds until the API server goes away, and retries
        // every second until it is back.
        for (own_step, others_step, goes, back) in (0..5)
            .flat_map(|own| (0..5).flat_map(move |other| (30..40).map(move |at| (own, other, at))))
            .flat_map(|(own, other, at)| (1..40).map(move |away| (own, other, at, at + away)))
        {
            let [mut own, mut other] = [Renewals::new(DURATION, seconds(0)); 2];
            let mut isolation = Isolation::default();
            // This replica notices up to six seconds later that the API server is back.
            let (own_back, other_back) = (back + 6, back);
            for now in 0..100 {
                let is_up = |step, back| (now < goes && now % 5 == step) || now >= back;
                if is_up(others_step, other_back) {
                    other.renewed(seconds(now));
                }
                if is_up(own_step, own_back) {
                    own.renewed(seconds(now));
                }
                let (now, unbroken) = (seconds(now), other.unbroken(seconds(now)));
                let cut_off = isolation.judge(now, DURATION, own.age(now), Some(unbroken));
                assert!(!cut_off, "{own_step} {others_step} {goes} {back} {now:?}");
            }
        }
    }
}
