//! The admission queue: which agents may wait to be registered, and when the others dial again. Pure.
//!
//! Registrations have a rate limit. As many agents may wait as are registered before an agent's own timeout; each of
//! the others is given a reserved time and disconnects. An agent that comes at its reserved time is admitted before
//! agents without one; an agent that comes earlier gets the same time again, so that retrying early is useless.
//!
//! Returning agents have their own queue, so that newcomers do not delay them. Unapproved agents get no reserved
//! time: a few of them wait, and the others are refused.
//!
//! The agents of a draining replica are given redial times at the rate at which the other replicas register them.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use crate::hub::sessions::ledger::HubUptime;
use kubesvc_core::AgentKey;

#[cfg(test)]
mod tests;

/// Rate of reserved times, and of redials after a drain, if registrations have no limit.
const DEFAULT_REGISTRATIONS_PER_SECOND: u32 = 1000;
/// Maximum wait here, in seconds: shorter than an agent's wait for the answer to its hello.
const MAX_WAIT_SECONDS: u32 = 4;
/// Maximum number of agents waiting here, at any registration rate.
const MAX_WAITING: usize = 1024;
/// Time before its reserved time at which an agent is admitted.
const EARLY_ARRIVAL_TOLERANCE: Duration = Duration::from_millis(50);
/// Minimum delay given to an agent.
const MIN_RETRY_DELAY: Duration = Duration::from_millis(250);
/// Time after its reserved time at which an agent loses it.
const LATE_ARRIVAL_TOLERANCE: Duration = Duration::from_secs(30);
/// Minimum interval between sweeps of expired reserved times.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of unapproved agents waiting here.
const MAX_UNAPPROVED_WAITING: usize = 64;
/// Delay given to an unapproved agent that is refused.
pub(super) const UNAPPROVED_RETRY_DELAY: Duration = Duration::from_secs(60);
/// Maximum number of reserved times.
const MAX_RESERVED_TIMES: usize = 100_000;
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
        Self {
            known: AdmissionQueue::new(per_second),
            newcomers: AdmissionQueue::new(per_second),
            unapproved: 0,
        }
    }

    /// Returns the number of returning agents that wait, here or until a reserved time. Other agents hold no
    /// accounts, so nobody must be considered gone because of them.
    pub(super) fn backlog(&self) -> usize {
        self.known.backlog()
    }

    /// Handles an agent that wants to be registered.
    pub(super) fn arrive(
        &mut self,
        class: AdmissionClass,
        agent: &AgentKey,
        now: HubUptime,
    ) -> AdmissionDecision {
        match class {
            AdmissionClass::Returning => self.known.arrive(agent, now),
            AdmissionClass::Newcomer => self.newcomers.arrive(agent, now),
            AdmissionClass::Unapproved if self.unapproved < MAX_UNAPPROVED_WAITING => {
                self.unapproved += 1;
                AdmissionDecision::Now
            }
            AdmissionClass::Unapproved => AdmissionDecision::TooManyUnapproved,
        }
    }

    /// Handles a failed registration: returns the delay until the agent's next turn.
    pub(super) fn again(&mut self, class: AdmissionClass, agent: &AgentKey, now: HubUptime) -> Duration {
        match class {
            AdmissionClass::Returning => self.known.again(agent, now),
            AdmissionClass::Newcomer => self.newcomers.again(agent, now),
            AdmissionClass::Unapproved => UNAPPROVED_RETRY_DELAY,
        }
    }

    /// Frees the place of an agent that waited here.
    pub(super) fn leave(&mut self, class: AdmissionClass) {
        match class {
            AdmissionClass::Returning => self.known.leave(),
            AdmissionClass::Newcomer => self.newcomers.leave(),
            AdmissionClass::Unapproved => self.unapproved = self.unapproved.saturating_sub(1),
        }
    }

    /// Removes the reserved time of an agent that another replica has. Returns whether it had one.
    pub(super) fn forget(&mut self, agent: &AgentKey) -> bool {
        self.known.forget(agent) | self.newcomers.forget(agent)
    }

    /// Removes expired reserved times. Returns whether there were any.
    pub(super) fn sweep(&mut self, now: HubUptime) -> bool {
        self.known.sweep(now) | self.newcomers.sweep(now)
    }
}

/// The queue of one admission class.
#[derive(Debug)]
struct AdmissionQueue {
    /// Interval between registrations.
    gap: Duration,
    /// Maximum number of agents waiting here.
    capacity: usize,
    /// Number of registrations in half a second.
    unnoticed: usize,
    waiting: usize,
    /// First time that is not reserved.
    free: HubUptime,
    /// Reserved times by the hash of the agent: ids have any length.
    reserved: HashMap<u64, HubUptime>,
    hash: RandomState,
    swept: HubUptime,
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
            reserved: HashMap::new(),
            hash: RandomState::new(),
            swept: Duration::ZERO,
        }
    }

    /// Returns the number of agents that wait, here or until a reserved time; zero if they are registered within half
    /// a second.
    fn backlog(&self) -> usize {
        let few = self.reserved.is_empty() && self.waiting <= self.unnoticed;
        if few { 0 } else { self.waiting + self.reserved.len() }
    }

    /// Handles an agent that wants to be registered.
    fn arrive(&mut self, agent: &AgentKey, now: HubUptime) -> AdmissionDecision {
        self.sweep(now);
        let key = self.hash.hash_one(agent);
        match self.reserved.get(&key) {
            Some(at) if *at > now + EARLY_ARRIVAL_TOLERANCE => AdmissionDecision::Later(*at - now),
            Some(_) if self.waiting < self.capacity => {
                self.reserved.remove(&key);
                self.enter()
            }
            Some(_) => self.reserve_redial(agent, now),
            None if self.admits_newcomer(now) => {
                self.free = self.free.max(now) + self.gap;
                self.enter()
            }
            None => self.reserve_redial(agent, now),
        }
    }

    /// Handles a failed registration: returns the delay until the agent's next turn.
    fn again(&mut self, agent: &AgentKey, now: HubUptime) -> Duration {
        match self.reserve_redial(agent, now) {
            AdmissionDecision::Later(wait) => wait,
            AdmissionDecision::Now | AdmissionDecision::TooManyUnapproved => MIN_RETRY_DELAY,
        }
    }

    /// Frees the place of an agent that waited here.
    fn leave(&mut self) {
        self.waiting = self.waiting.saturating_sub(1);
    }

    /// Removes the reserved time of an agent that another replica has. Returns whether it had one.
    fn forget(&mut self, agent: &AgentKey) -> bool {
        self.reserved.remove(&self.hash.hash_one(agent)).is_some()
    }

    /// Removes expired reserved times. Returns whether there were any.
    fn sweep(&mut self, now: HubUptime) -> bool {
        if now.saturating_sub(self.swept) < SWEEP_INTERVAL {
            return false;
        }
        self.swept = now;
        let before = self.reserved.len();
        self.reserved.retain(|_, at| *at + LATE_ARRIVAL_TOLERANCE > now);
        self.reserved.len() < before
    }

    fn enter(&mut self) -> AdmissionDecision {
        self.waiting += 1;
        AdmissionDecision::Now
    }

    /// While times are reserved, an agent without one is admitted only if none of them is in the future, and half of
    /// the capacity is left to late agents.
    fn admits_newcomer(&self, now: HubUptime) -> bool {
        if self.reserved.is_empty() {
            self.waiting < self.capacity && self.free <= now + Duration::from_secs(MAX_WAIT_SECONDS.into())
        } else {
            self.waiting < self.capacity / 2 && self.free <= now
        }
    }

    fn reserve_redial(&mut self, agent: &AgentKey, now: HubUptime) -> AdmissionDecision {
        let at = self.free.max(now + MIN_RETRY_DELAY);
        let key = self.hash.hash_one(agent);
        if self.reserved.len() < MAX_RESERVED_TIMES || self.reserved.contains_key(&key) {
            self.free = at + self.gap;
            self.reserved.insert(key, at);
        }
        AdmissionDecision::Later(at - now)
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
