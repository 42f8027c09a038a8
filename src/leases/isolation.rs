//! Whether only this replica is cut off from the API server, judged from the age of its own Lease. Pure.

use std::time::Duration;

use super::election_rules::Moment;

/// Maximum age of this replica's Lease for its knowledge of accounts to count as current; two thirds of a shorter
/// Lease.
const MAX_CURRENT_AGE: Duration = Duration::from_secs(10);

/// Renewals of this replica's own Lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Renewals {
    /// Validity of the Lease.
    duration: Duration,
    /// Time of the last renewal.
    last: Moment,
    /// Time since which no renewal has been late.
    since: Moment,
    /// Number of renewals that came so late that other replicas may have called this one dead.
    lapses: u64,
}

impl Renewals {
    /// No renewal yet; the time counts from `now`.
    pub(super) fn new(duration: Duration, now: Moment) -> Self {
        Self { duration, last: now, since: now, lapses: 0 }
    }

    pub(super) fn renewed(&mut self, now: Moment) {
        if self.is_late(now) {
            self.since = now;
        }
        if self.has_lapsed(now) {
            self.lapses += 1;
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

    /// Number of times that the renewals stopped for so long that other replicas may have called this one dead, and
    /// given its accounts to others; `None` while they do.
    pub(super) fn lapses(&self, now: Moment) -> Option<u64> {
        (!self.has_lapsed(now)).then_some(self.lapses)
    }

    fn has_lapsed(&self, now: Moment) -> bool {
        self.age(now) > MAX_CURRENT_AGE.min(self.duration * 2 / 3)
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
    fn a_renewal_after_a_lapse_does_not_hide_it() {
        let mut renewals = Renewals::new(DURATION, seconds(0));
        renewals.renewed(seconds(10));
        assert_eq!((renewals.lapses(seconds(20)), renewals.lapses(seconds(21))), (Some(0), None));
        renewals.renewed(seconds(21));
        assert_eq!(renewals.lapses(seconds(21)), Some(1));
        let short = Renewals::new(seconds(6), seconds(0));
        assert_eq!((short.lapses(seconds(4)), short.lapses(seconds(5))), (Some(0), None));
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
