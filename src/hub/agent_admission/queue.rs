//! The admission queue: which agents may wait to be registered, and when the others dial again. Pure.
//!
//! Registrations have a rate limit, a token bucket. As many agents may wait as are registered before an agent's own timeout.
//! Each of the others is told to dial again when those before it are registered: that is the backlog, divided by the rate.
//!
//! Returning agents have their own bucket, so that newcomers do not delay them. Unapproved agents are told no time: a few of
//! them wait, and the others are refused.
//!
//! The agents of a draining replica are given redial times at the rate at which the other replicas register them.

use std::time::Duration;

use crate::hub::sessions::ledger::HubUptime;

#[cfg(test)]
mod tests;

/// Rate of registrations and of redials that is assumed if registrations have no limit.
const DEFAULT_REGISTRATIONS_PER_SECOND: u32 = 1000;
/// Maximum wait here, in seconds: shorter than an agent's wait for the answer to its hello.
const MAX_WAIT_SECONDS: u32 = 4;
/// Maximum number of agents waiting here, at any registration rate.
const MAX_WAITING: usize = 1024;
/// Minimum delay given to an agent.
const MIN_RETRY_DELAY: Duration = Duration::from_millis(250);
/// Time by which an agent may be late before it is not expected any more.
const LATE_ARRIVAL_TOLERANCE: Duration = Duration::from_secs(10);
/// Maximum number of unapproved agents waiting here.
const MAX_UNAPPROVED_WAITING: usize = 64;
/// Delay given to an unapproved agent that is refused.
pub(super) const UNAPPROVED_RETRY_DELAY: Duration = Duration::from_secs(60);
/// Maximum delay given to an agent: that of the last of 30,000 at the default rate.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(600);
/// Minimum time until a successor of the last replica is ready.
const SUCCESSOR_START_TIME: Duration = Duration::from_secs(2);

/// Answer to an agent that wants to be registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AdmissionDecision {
    /// It waits here until it is registered, then [`AdmissionQueue::leave`].
    Now,
    /// It dials again after this time.
    Later(Duration),
    /// The maximum number of unapproved agents is waiting here.
    TooManyUnapproved,
}

/// What is known of an agent before its registration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AdmissionClass {
    /// It has an object and is, or was, approved.
    #[default]
    Returning,
    /// It has no object and is approved when it is created.
    Newcomer,
    /// It was never approved, and registration does not approve it.
    Unapproved,
}

/// The queues, by admission class.
#[derive(Debug)]
pub(super) struct AdmissionQueues {
    known: AdmissionQueue,
    newcomers: AdmissionQueue,
    unapproved: usize,
}

impl AdmissionQueues {
    /// `per_second`: registration rate; 0: no limit.
    pub(super) fn new(per_second: u32) -> Self {
        let queue = || AdmissionQueue::new(per_second);
        Self { known: queue(), newcomers: queue(), unapproved: 0 }
    }

    /// Returns the number of returning agents that wait, here or for their time. Other agents hold no accounts, so nobody must
    /// be considered gone because of them.
    pub(super) fn backlog(&self, now: HubUptime) -> usize {
        self.known.backlog(now)
    }

    /// Handles an agent that wants to be registered.
    pub(super) fn arrive(&mut self, class: AdmissionClass, now: HubUptime) -> AdmissionDecision {
        match class {
            AdmissionClass::Returning => self.known.arrive(now),
            AdmissionClass::Newcomer => self.newcomers.arrive(now),
            AdmissionClass::Unapproved if self.unapproved < MAX_UNAPPROVED_WAITING => {
                self.unapproved += 1;
                AdmissionDecision::Now
            }
            AdmissionClass::Unapproved => AdmissionDecision::TooManyUnapproved,
        }
    }

    /// Handles a failed registration: returns the delay until the agent's next turn.
    pub(super) fn again(&mut self, class: AdmissionClass, now: HubUptime) -> Duration {
        match class {
            AdmissionClass::Returning => self.known.redial_delay(now),
            AdmissionClass::Newcomer => self.newcomers.redial_delay(now),
            AdmissionClass::Unapproved => UNAPPROVED_RETRY_DELAY,
        }
    }

    /// Frees the place of an agent that waited here.
    pub(super) fn leave(&mut self, class: AdmissionClass) {
        let waiting = match class {
            AdmissionClass::Returning => &mut self.known.waiting,
            AdmissionClass::Newcomer => &mut self.newcomers.waiting,
            AdmissionClass::Unapproved => &mut self.unapproved,
        };
        *waiting = waiting.saturating_sub(1);
    }
}

#[derive(Debug)]
struct AdmissionQueue {
    /// Interval between registrations.
    gap: Duration,
    /// Maximum number of agents waiting here.
    capacity: usize,
    /// Number of registrations in half a second.
    unnoticed: usize,
    waiting: usize,
    /// Time at which those that wait here are registered.
    free: HubUptime,
    /// Time at which the last of the others dials again.
    redials_until: HubUptime,
}

impl AdmissionQueue {
    /// `per_second`: registration rate; 0: no limit.
    fn new(per_second: u32) -> Self {
        let rate = if per_second == 0 { DEFAULT_REGISTRATIONS_PER_SECOND } else { per_second };
        let within_wait = usize::try_from(rate.saturating_mul(MAX_WAIT_SECONDS)).unwrap_or(usize::MAX);
        Self {
            gap: Duration::from_secs(1) / rate,
            capacity: within_wait.min(MAX_WAITING),
            unnoticed: usize::try_from(rate / 2).unwrap_or(usize::MAX).max(1),
            waiting: 0,
            free: Duration::ZERO,
            redials_until: Duration::ZERO,
        }
    }

    /// Returns the number of agents that wait, here or for their time; zero if they are registered within half a second.
    fn backlog(&self, now: HubUptime) -> usize {
        let is_awaited = !self.redials_until.is_zero() && self.redials_until + LATE_ARRIVAL_TOLERANCE > now;
        let left = self.redials_until.saturating_sub(self.free.max(now)).as_nanos() / self.gap.as_nanos();
        let redials =
            if is_awaited { usize::try_from(left).unwrap_or(usize::MAX).saturating_add(1) } else { 0 };
        if redials == 0 && self.waiting <= self.unnoticed { 0 } else { self.waiting.saturating_add(redials) }
    }

    /// Handles an agent that wants to be registered.
    fn arrive(&mut self, now: HubUptime) -> AdmissionDecision {
        if self.waiting < self.capacity && self.free <= now + Duration::from_secs(MAX_WAIT_SECONDS.into()) {
            self.free = self.free.max(now) + self.gap;
            self.waiting += 1;
            return AdmissionDecision::Now;
        }
        AdmissionDecision::Later(self.redial_delay(now))
    }

    /// Delay of one more agent that dials again, after all that were told to before.
    fn redial_delay(&mut self, now: HubUptime) -> Duration {
        let next = (self.redials_until + self.gap).max(self.free).max(now + MIN_RETRY_DELAY);
        self.redials_until = next.min(now + MAX_RETRY_DELAY);
        self.redials_until - now
    }
}

/// A draining replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Drain {
    /// Number of connected agents.
    pub(crate) agents: usize,
    /// Registrations per second of one replica; 0: no limit.
    pub(crate) registration_qps: u32,
    /// Number of other living replicas.
    pub(crate) others: usize,
    /// Time after which the accounts of an absent agent become ORPHANED.
    pub(crate) grace: Duration,
}

/// Redial time of one agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RedialTime {
    /// Minimum delay.
    pub(crate) after: Duration,
    /// Maximum additional delay.
    pub(crate) jitter: Duration,
}

impl Drain {
    /// Returns the redial time of the `nth` agent, from 0. The agents are spread at the rate at which the other
    /// replicas register them, within half of the grace; the other half is for the registrations.
    pub(super) fn redial_time(&self, nth: usize) -> RedialTime {
        let latest = self.grace / 2;
        let soonest = if self.others == 0 { SUCCESSOR_START_TIME.min(latest / 2) } else { Duration::ZERO };
        let rate =
            if self.registration_qps == 0 { DEFAULT_REGISTRATIONS_PER_SECOND } else { self.registration_qps };
        let rate = f64::from(rate) * count(self.others.max(1));
        let agents = count(self.agents.max(1));
        let spread = Duration::from_secs_f64(agents / rate).min(latest - soonest);
        let share = count(nth % self.agents.max(1)) / agents;
        RedialTime { after: soonest + spread.mul_f64(share), jitter: spread.div_f64(agents) }
    }
}

fn count(number: usize) -> f64 {
    f64::from(u32::try_from(number).unwrap_or(u32::MAX))
}
