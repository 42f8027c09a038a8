//! When an account looks at what its cluster serves, and when it reads its credential again for that. Pure.

use std::time::{Duration, Instant};

use kubesvc_core::wire::common::Failure;
use kubesvc_core::wire::common::failure::Class;

/// Interval between looks at what the cluster serves.
const DISCOVERY_INTERVAL: Duration = Duration::from_secs(30);
/// Minimum interval between looks that readers ask for.
const MIN_DISCOVERY_INTERVAL: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug)]
enum Phase {
    /// The next look begins at this time.
    Waiting(Instant),
    /// A look runs; whether another one was asked for since it began.
    Looking { is_asked: bool },
}

/// The looks of one account at its cluster, one at a time: a slow one is not replaced, or it would never end.
#[derive(Clone, Debug)]
pub(super) struct LookSchedule {
    phase: Phase,
    /// Whether the credential is to be read again.
    must_connect: bool,
    /// Whether the last look failed because the credential was refused.
    is_refused: bool,
}

impl LookSchedule {
    /// A first look is due at once.
    pub(super) fn new(now: Instant) -> Self {
        Self { phase: Phase::Waiting(now), must_connect: false, is_refused: false }
    }

    /// When the next look begins; `None` while one runs.
    pub(super) fn due_at(&self) -> Option<Instant> {
        match self.phase {
            Phase::Waiting(due) => Some(due),
            Phase::Looking { .. } => None,
        }
    }

    /// A look begins. Returns whether it reads the credential again.
    pub(super) fn begins(&mut self) -> bool {
        self.phase = Phase::Looking { is_asked: false };
        self.must_connect
    }

    /// A reader asks for a look; `must_connect`: its credential was refused, and may have been renewed.
    pub(super) fn asked(&mut self, must_connect: bool, now: Instant) {
        self.must_connect |= must_connect;
        self.phase = match self.phase {
            Phase::Waiting(due) => Phase::Waiting(due.min(now + MIN_DISCOVERY_INTERVAL)),
            Phase::Looking { .. } => Phase::Looking { is_asked: true },
        };
    }

    /// The account's definition or rules are others now. A look that runs is dropped.
    pub(super) fn changed(&mut self, now: Instant) {
        *self = Self { must_connect: true, ..Self::new(now) };
    }

    /// The look succeeded; `is_new`: over new connections.
    pub(super) fn succeeded(&mut self, is_new: bool, now: Instant) {
        self.is_refused = false;
        self.must_connect &= !is_new;
        self.ended(false, now);
    }

    /// The look failed. Returns whether the account cannot be held any longer: the cluster is another one, or refuses the
    /// credential for the second time in a row, which was read again in between.
    pub(super) fn failed(&mut self, failure: &Failure, now: Instant) -> bool {
        let is_refused = failure.http_status == 401;
        let was_refused = std::mem::replace(&mut self.is_refused, is_refused);
        self.must_connect |= is_refused;
        self.ended(is_refused, now);
        failure.class() == Class::ClusterMismatch || was_refused && is_refused
    }

    fn ended(&mut self, is_urgent: bool, now: Instant) {
        let is_soon = is_urgent || matches!(self.phase, Phase::Looking { is_asked: true });
        let interval = if is_soon { MIN_DISCOVERY_INTERVAL } else { DISCOVERY_INTERVAL };
        self.phase = Phase::Waiting(now + interval);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(http_status: i32) -> Failure {
        Failure { http_status, ..Failure::default() }
    }

    #[test]
    fn a_request_during_a_slow_look_is_met_after_its_end() {
        let begin = Instant::now();
        let mut schedule = LookSchedule::new(begin);
        assert_eq!((schedule.due_at(), schedule.begins()), (Some(begin), false));
        let late = begin + 4 * DISCOVERY_INTERVAL;
        schedule.asked(false, late);
        assert_eq!(schedule.due_at(), None, "it is not replaced");
        schedule.succeeded(true, late);
        assert_eq!(schedule.due_at(), Some(late + MIN_DISCOVERY_INTERVAL));
        assert!(!schedule.begins());
        schedule.succeeded(false, late);
        assert_eq!(schedule.due_at(), Some(late + DISCOVERY_INTERVAL), "the request is met");
        schedule.asked(true, late);
        assert_eq!(schedule.due_at(), Some(late + MIN_DISCOVERY_INTERVAL));
        assert!(schedule.begins(), "with the credential as it is then");
    }

    #[test]
    fn a_credential_that_a_look_finds_refused_is_read_again_before_the_account_is_lost() {
        let now = Instant::now();
        let mut schedule = LookSchedule::new(now);
        schedule.begins();
        schedule.succeeded(true, now);
        for is_renewed in [true, false] {
            assert!(!schedule.begins(), "over the connections that there are");
            assert!(!schedule.failed(&failure(401), now));
            assert_eq!(schedule.due_at(), Some(now + MIN_DISCOVERY_INTERVAL));
            assert!(schedule.begins(), "the credential is read again");
            if is_renewed {
                schedule.succeeded(true, now);
            } else {
                assert!(schedule.failed(&failure(401), now));
            }
        }
    }

    #[test]
    fn only_refusals_in_a_row_with_one_credential_lose_the_account() {
        let now = Instant::now();
        let mut schedule = LookSchedule::new(now);
        for status in [401, 503, 401] {
            schedule.begins();
            assert!(!schedule.failed(&failure(status), now), "{status}");
        }
        schedule.changed(now);
        assert_eq!((schedule.due_at(), schedule.begins()), (Some(now), true));
        assert!(!schedule.failed(&failure(401), now), "it is another credential");
        schedule.begins();
        let mismatch = Failure { class: Class::ClusterMismatch.into(), ..failure(0) };
        assert!(schedule.failed(&mismatch, now), "it is another cluster");
    }
}
