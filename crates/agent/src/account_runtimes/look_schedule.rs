//! When an account looks at what its cluster serves, and when it reads its credential again for that. Pure.

use std::time::{Duration, Instant};

use kubesvc_core::wire::common::Failure;
use kubesvc_core::wire::common::failure::Class;

/// Interval between looks at what the cluster serves.
const DISCOVERY_INTERVAL: Duration = Duration::from_secs(30);
/// Interval between looks of an account none of whose objects are read: they find out whether its credential is accepted.
const IDLE_INTERVAL: Duration = Duration::from_mins(5);
/// Minimum interval between looks that readers ask for.
const MIN_DISCOVERY_INTERVAL: Duration = Duration::from_secs(5);
/// Maximum interval between looks while the credential is refused; from [`MIN_DISCOVERY_INTERVAL`] it doubles.
const MAX_REFUSED_INTERVAL: Duration = Duration::from_secs(60);
/// Time for which a credential is refused before the hub is told: an API server that starts may refuse any.
const REFUSED_TIME: Duration = Duration::from_secs(30);
/// Number of requests for the cluster's identity, each with the credential read again, that must be among the refused.
const MIN_IDENTITY_REFUSALS: u32 = 2;

#[derive(Clone, Copy, Debug)]
enum LookPhase {
    /// The next look begins at this time.
    Waiting(Instant),
    /// A look runs; whether another one was asked for since it began.
    Looking { is_asked: bool },
}

/// What follows from a look that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AfterFailedLook {
    /// The next look.
    GoOn,
    /// The next look, and the hub is told that the credential is refused.
    TellRefused,
    /// The account cannot be held any longer: the cluster is another one.
    Lose,
}

/// A credential that the cluster refuses: nothing was accepted since the first refusal.
#[derive(Clone, Copy, Debug)]
struct RefusedCredential {
    since: Instant,
    identity_refusals: u32,
    /// Until the next look.
    interval: Duration,
}

/// The looks of one account at its cluster, one at a time: a slow one is not replaced, or it would never end.
#[derive(Clone, Debug)]
pub(super) struct LookSchedule {
    phase: LookPhase,
    /// Between looks that succeed.
    interval: Duration,
    /// Whether the credential is to be read again.
    must_connect: bool,
    /// Whether the look that runs has read the credential again, and so asks for the cluster's identity.
    is_connecting: bool,
    /// Set while the credential is refused.
    refused: Option<RefusedCredential>,
}

impl LookSchedule {
    /// A first look is due at once, unless no objects are read: an activation has just looked at the cluster.
    pub(super) fn new(reads_objects: bool, now: Instant) -> Self {
        let (first, interval) =
            if reads_objects { (now, DISCOVERY_INTERVAL) } else { (now + IDLE_INTERVAL, IDLE_INTERVAL) };
        Self {
            phase: LookPhase::Waiting(first),
            interval,
            must_connect: true,
            is_connecting: false,
            refused: None,
        }
    }

    /// When the next look begins; `None` while one runs.
    pub(super) fn due_at(&self) -> Option<Instant> {
        match self.phase {
            LookPhase::Waiting(due) => Some(due),
            LookPhase::Looking { .. } => None,
        }
    }

    /// A look begins. Returns whether it reads the credential again.
    pub(super) fn begins(&mut self) -> bool {
        self.phase = LookPhase::Looking { is_asked: false };
        self.is_connecting = self.must_connect;
        self.must_connect
    }

    /// A reader asks for a look; `must_connect`: its credential was refused, and may have been renewed. While the account's
    /// own looks are refused too, they keep their pace.
    pub(super) fn asked(&mut self, must_connect: bool, now: Instant) {
        self.must_connect |= must_connect;
        self.phase = match self.phase {
            LookPhase::Waiting(due) if self.refused.is_some() => LookPhase::Waiting(due),
            LookPhase::Waiting(due) => LookPhase::Waiting(due.min(now + MIN_DISCOVERY_INTERVAL)),
            LookPhase::Looking { .. } => LookPhase::Looking { is_asked: true },
        };
    }

    /// The account's definition or rules are others now. A look that runs is dropped.
    pub(super) fn changed(&mut self, reads_objects: bool, now: Instant) {
        *self = Self::new(reads_objects, now);
    }

    /// The look succeeded; `is_new`: over new connections.
    pub(super) fn succeeded(&mut self, is_new: bool, now: Instant) {
        self.refused = None;
        self.must_connect &= !is_new;
        self.ended(now);
    }

    pub(super) fn failed(&mut self, failure: &Failure, now: Instant) -> AfterFailedLook {
        let is_refused = failure.http_status == 401;
        if is_refused {
            self.must_connect = true;
            let first =
                RefusedCredential { since: now, identity_refusals: 0, interval: MIN_DISCOVERY_INTERVAL };
            let refused = self.refused.get_or_insert(first);
            refused.identity_refusals += u32::from(self.is_connecting);
        }
        self.ended(now);
        if failure.class() == Class::ClusterMismatch {
            return AfterFailedLook::Lose;
        }
        match self.refused.filter(|_| is_refused) {
            Some(refused)
                if refused.identity_refusals >= MIN_IDENTITY_REFUSALS
                    && now.saturating_duration_since(refused.since) >= REFUSED_TIME =>
            {
                AfterFailedLook::TellRefused
            }
            _ => AfterFailedLook::GoOn,
        }
    }

    fn ended(&mut self, now: Instant) {
        let interval = match (&mut self.refused, self.phase) {
            (Some(refused), _) => {
                let interval = refused.interval;
                refused.interval = (2 * interval).min(MAX_REFUSED_INTERVAL);
                interval
            }
            (None, LookPhase::Looking { is_asked: true }) => MIN_DISCOVERY_INTERVAL,
            (None, _) => self.interval,
        };
        self.phase = LookPhase::Waiting(now + interval);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(http_status: i32) -> Failure {
        Failure { http_status, ..Failure::default() }
    }

    /// A schedule whose first look has succeeded.
    fn running(now: Instant) -> LookSchedule {
        let mut schedule = LookSchedule::new(true, now);
        schedule.begins();
        schedule.succeeded(true, now);
        schedule
    }

    /// Runs looks that fail with this status when they are due, until the hub is told. How many, and how long that took.
    fn until_told(schedule: &mut LookSchedule, statuses: &[i32]) -> (usize, Duration) {
        let began = schedule.due_at().expect("no look runs");
        for (count, status) in statuses.iter().cycle().take(100).enumerate() {
            let now = schedule.due_at().expect("no look runs");
            schedule.begins();
            match schedule.failed(&failure(*status), now) {
                AfterFailedLook::GoOn => {}
                AfterFailedLook::TellRefused => return (count + 1, now - began),
                AfterFailedLook::Lose => unreachable!("the account is lost"),
            }
        }
        unreachable!("the hub was never told")
    }

    #[test]
    fn a_request_during_a_slow_look_is_met_after_its_end() {
        let begin = Instant::now();
        let mut schedule = LookSchedule::new(true, begin);
        assert_eq!((schedule.due_at(), schedule.begins()), (Some(begin), true));
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
    fn credential_that_a_look_finds_refused_is_read_again_at_once() {
        let now = Instant::now();
        let mut schedule = running(now);
        assert!(!schedule.begins(), "over the connections that there are");
        assert_eq!(schedule.failed(&failure(401), now), AfterFailedLook::GoOn);
        assert_eq!(schedule.due_at(), Some(now + MIN_DISCOVERY_INTERVAL));
        assert!(schedule.begins(), "the credential is read again");
        schedule.succeeded(true, now);
        assert_eq!(schedule.due_at(), Some(now + DISCOVERY_INTERVAL), "it is accepted");
    }

    #[test]
    fn refusal_is_told_after_30_s_with_two_refused_identity_requests() {
        let now = Instant::now();
        // After 0, 5, 15 and 35 s.
        assert_eq!(until_told(&mut running(now), &[401]), (4, Duration::from_secs(35)));
        // A fault in between accepts nothing.
        let (_, waited) = until_told(&mut running(now), &[401, 503]);
        assert!(waited >= REFUSED_TIME, "{waited:?}");
        let mut slow = running(now);
        slow.begins();
        slow.failed(&failure(401), now);
        slow.begins();
        assert_eq!(slow.failed(&failure(401), now + 2 * REFUSED_TIME), AfterFailedLook::GoOn, "one request");
        slow.begins();
        assert_eq!(slow.failed(&failure(503), now + 3 * REFUSED_TIME), AfterFailedLook::GoOn, "no answer");
        slow.begins();
        assert_eq!(slow.failed(&failure(401), now + 3 * REFUSED_TIME), AfterFailedLook::TellRefused);
    }

    #[test]
    fn accepted_request_and_changed_definition_begin_anew() {
        let now = Instant::now();
        let begin_anew: [fn(&mut LookSchedule, Instant); 2] = [
            |schedule, now| {
                schedule.begins();
                schedule.succeeded(true, now);
            },
            |schedule, now| schedule.changed(true, now),
        ];
        for begin_anew in begin_anew {
            let mut schedule = running(now);
            until_told(&mut schedule, &[401]);
            let late = now + 10 * REFUSED_TIME;
            begin_anew(&mut schedule, late);
            let (_, waited) = until_told(&mut schedule, &[401]);
            assert!(waited >= REFUSED_TIME, "{waited:?}");
        }
    }

    #[test]
    fn refused_credential_is_tried_without_end_at_a_growing_pace_whoever_asks() {
        let mut now = Instant::now();
        let mut schedule = running(now);
        until_told(&mut schedule, &[401]);
        for _ in 0..100 {
            let due = schedule.due_at().expect("a look");
            schedule.asked(true, now);
            assert_eq!(schedule.due_at(), Some(due), "readers do not hasten it");
            now = due;
            assert!(schedule.begins(), "with the credential as it is then");
            assert_eq!(schedule.failed(&failure(401), now), AfterFailedLook::TellRefused);
        }
        assert_eq!(schedule.due_at(), Some(now + MAX_REFUSED_INTERVAL));
    }

    #[test]
    fn another_cluster_loses_the_account_at_once() {
        let now = Instant::now();
        let mismatch = Failure { class: Class::ClusterMismatch.into(), ..failure(0) };
        let mut schedule = running(now);
        schedule.begins();
        assert_eq!(schedule.failed(&mismatch, now), AfterFailedLook::Lose);
    }

    #[test]
    fn an_account_without_read_objects_looks_every_five_minutes_and_more_often_while_refused() {
        let begin = Instant::now();
        let mut schedule = LookSchedule::new(false, begin);
        let first = begin + IDLE_INTERVAL;
        assert_eq!(schedule.due_at(), Some(first));
        assert!(schedule.begins());
        schedule.succeeded(true, first);
        assert_eq!(schedule.due_at(), Some(first + IDLE_INTERVAL));
        schedule.begins();
        schedule.failed(&failure(401), first);
        assert_eq!(schedule.due_at(), Some(first + MIN_DISCOVERY_INTERVAL));
        schedule.changed(true, first);
        assert_eq!(schedule.due_at(), Some(first), "there is something to read now");
    }
}
