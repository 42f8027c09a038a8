//! For how long the API server has taken the Lease of this replica, and whether this replica alone is cut off from it:
//! pure.

use std::time::Duration;

/// Time on a clock of this process.
pub(super) type Moment = Duration;

/// The renewals of this replica's own Lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Renewals {
    /// How long the Lease is valid.
    duration: Duration,
    /// The last one.
    last: Moment,
    /// The first one since which none was late.
    since: Moment,
}

impl Renewals {
    /// None yet; the time counts from now.
    pub(super) fn new(duration: Duration, now: Moment) -> Self {
        Self { duration, last: now, since: now }
    }

    pub(super) fn renewed(&mut self, now: Moment) {
        if self.is_late(now) {
            self.since = now;
        }
        self.last = now;
    }

    /// How long ago the last one was.
    pub(super) fn age(&self, now: Moment) -> Duration {
        now.saturating_sub(self.last)
    }

    /// For how long the API server has answered without a gap; nothing if it does not now. Half the duration is a gap:
    /// of replicas that lose it at the same time, none may say so of itself when the Lease of another has run out.
    pub(super) fn unbroken(&self, now: Moment) -> Duration {
        if self.is_late(now) { Duration::ZERO } else { now.saturating_sub(self.since) }
    }

    fn is_late(&self, now: Moment) -> bool {
        self.age(now) > self.duration / 2
    }
}

/// Whether this replica alone does not reach the API server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Isolation {
    /// When another replica last had the better of it.
    outdone: Option<Moment>,
}

impl Isolation {
    /// Up to this age of its own Lease a replica is not cut off: the Lease has run out, and a renewal more was missed. One
    /// that was in the middle of a try when the API server came back for all of them has tried again by then.
    pub fn doubtful_after(duration: Duration) -> Duration {
        duration + duration / 3
    }

    /// Judges anew. `age`: how long ago the own Lease was renewed; `others`: for how long without a gap the API server
    /// has answered another replica, the longest of those that say so, absent if none does.
    ///
    /// It is cut off if its Lease has run out, and a renewal more was missed, and another one was answered all that time.
    /// One that was answered only for a part of it says nothing: the API server may be coming back for all of them, one
    /// after the other. After twice the duration it says enough. Where nobody says so any more, it is forgotten after one
    /// duration.
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
    fn it_is_over_when_the_lease_is_renewed_or_nobody_has_said_so_for_long() {
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
    fn one_that_was_late_counts_anew_and_one_that_is_late_says_nothing() {
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
    fn an_api_server_that_goes_for_all_of_them_makes_none_think_that_it_is_alone() {
        // Each renews in its own step of five seconds until it goes, and tries again each second until it is back.
        for (own_step, others_step, goes, back) in (0..5)
            .flat_map(|own| (0..5).flat_map(move |other| (30..40).map(move |at| (own, other, at))))
            .flat_map(|(own, other, at)| (1..40).map(move |away| (own, other, at, at + away)))
        {
            let [mut own, mut other] = [Renewals::new(DURATION, seconds(0)); 2];
            let mut isolation = Isolation::default();
            // It takes up to six seconds longer to see that it is back.
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
