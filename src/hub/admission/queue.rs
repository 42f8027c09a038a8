//! The queue of agents to be registered: which may wait here, and at which time the others dial again. Pure.
//!
//! Registrations are written at a pace. So many may wait for theirs as are written before an agent loses patience; each
//! of the others is told the time of a place of its own, and leaves. Whoever comes at that time has its place, before
//! anybody who was told none; whoever comes sooner is told the same time again, so that hurrying is of no use.
//!
//! Agents that have an object wait in a queue of their own, so that newcomers do not keep them waiting. Unapproved agents
//! get no reserved time: a few of them wait, and the others are sent away.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use crate::hub::sessions::ledger::Moment;

#[cfg(test)]
mod tests;

/// Rate at which agents are given times where registrations have no limit.
const DEFAULT_REGISTRATIONS_PER_SECOND: u32 = 1000;
/// Maximum wait here, in seconds: shorter than an agent's wait for an answer to its hello.
const MAX_WAIT_SECONDS: u32 = 4;
/// Maximum number of agents waiting here, at any registration rate.
const MAX_WAITING: usize = 1024;
/// Time by which an agent may come before its reserved time.
const EARLY_ARRIVAL_TOLERANCE: Duration = Duration::from_millis(50);
/// Minimum delay given to an agent.
const MIN_RETRY_DELAY: Duration = Duration::from_millis(250);
/// Time after its reserved time at which an agent loses it.
const LATE_ARRIVAL_TOLERANCE: Duration = Duration::from_secs(30);
/// Minimum interval between sweeps of expired reserved times.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of unapproved agents waiting here.
const MAX_UNAPPROVED_WAITING: usize = 64;
/// Delay given to an unapproved agent that is sent away.
pub(super) const UNAPPROVED_RETRY_DELAY: Duration = Duration::from_secs(60);
/// Maximum number of reserved times.
const MAX_RESERVED_TIMES: usize = 100_000;

/// What an agent is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AdmissionDecision {
    /// It may wait here until it is registered; [`AdmissionQueue::leave`] when it is.
    Now,
    /// It comes again after this time.
    Later(Duration),
    /// The maximum number of unapproved agents is waiting here.
    TooManyUnapproved,
}

/// What is known of an agent before it is registered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AdmissionClass {
    /// It has an object, and is approved or was.
    #[default]
    Returning,
    /// It has no object, and is approved as soon as it has.
    Newcomer,
    /// It was never approved, and is not by being registered.
    Unapproved,
}

/// The queues by admission class.
#[derive(Debug)]
pub(super) struct AdmissionQueues {
    known: AdmissionQueue,
    newcomers: AdmissionQueue,
    unapproved: usize,
}

impl AdmissionQueues {
    /// `per_second` registrations are written; 0: as many as the API server takes.
    pub(super) fn new(per_second: u32) -> Self {
        Self {
            known: AdmissionQueue::new(per_second),
            newcomers: AdmissionQueue::new(per_second),
            unapproved: 0,
        }
    }

    /// How many agents wait that have been here before: here, or away until their time. Others were held by nobody, so
    /// that nobody is taken for gone too soon for want of them.
    pub(super) fn backlog(&self) -> usize {
        self.known.backlog()
    }

    /// An agent wants to be registered.
    pub(super) fn arrive(&mut self, class: AdmissionClass, agent_id: &str, now: Moment) -> AdmissionDecision {
        match class {
            AdmissionClass::Returning => self.known.arrive(agent_id, now),
            AdmissionClass::Newcomer => self.newcomers.arrive(agent_id, now),
            AdmissionClass::Unapproved if self.unapproved < MAX_UNAPPROVED_WAITING => {
                self.unapproved += 1;
                AdmissionDecision::Now
            }
            AdmissionClass::Unapproved => AdmissionDecision::TooManyUnapproved,
        }
    }

    /// One that waited here could not be registered: it has another place, unless it is a stranger.
    pub(super) fn again(&mut self, class: AdmissionClass, agent_id: &str, now: Moment) -> Duration {
        match class {
            AdmissionClass::Returning => self.known.again(agent_id, now),
            AdmissionClass::Newcomer => self.newcomers.again(agent_id, now),
            AdmissionClass::Unapproved => UNAPPROVED_RETRY_DELAY,
        }
    }

    /// One that waited here does no longer.
    pub(super) fn leave(&mut self, class: AdmissionClass) {
        match class {
            AdmissionClass::Returning => self.known.leave(),
            AdmissionClass::Newcomer => self.newcomers.leave(),
            AdmissionClass::Unapproved => self.unapproved = self.unapproved.saturating_sub(1),
        }
    }

    /// An agent comes no more: another replica has it. True: it had a place.
    pub(super) fn forget(&mut self, agent_id: &str) -> bool {
        self.known.forget(agent_id) | self.newcomers.forget(agent_id)
    }

    /// Takes the places from those who have not come. True: somebody lost one.
    pub(super) fn sweep(&mut self, now: Moment) -> bool {
        self.known.sweep(now) | self.newcomers.sweep(now)
    }
}

/// The queue of one admission class.
#[derive(Debug)]
struct AdmissionQueue {
    /// From one registration to the next.
    gap: Duration,
    /// How many may wait here.
    capacity: usize,
    /// So many are registered within half a second.
    unnoticed: usize,
    waiting: usize,
    /// The first time that nobody was told.
    free: Moment,
    /// When each agent was told to come, by a hash of its id: ids are as long as whoever sends them likes.
    reserved: HashMap<u64, Moment>,
    hash: RandomState,
    swept: Moment,
}

impl AdmissionQueue {
    /// `per_second` registrations are written; 0: as many as the API server takes.
    fn new(per_second: u32) -> Self {
        let rate = if per_second == 0 { DEFAULT_REGISTRATIONS_PER_SECOND } else { per_second };
        let room = usize::try_from(rate.saturating_mul(MAX_WAIT_SECONDS)).unwrap_or(usize::MAX);
        Self {
            gap: Duration::from_secs(1) / rate,
            capacity: room.min(MAX_WAITING),
            unnoticed: usize::try_from(rate / 2).unwrap_or(usize::MAX).max(1),
            waiting: 0,
            free: Duration::ZERO,
            reserved: HashMap::new(),
            hash: RandomState::new(),
            swept: Duration::ZERO,
        }
    }

    /// How many wait: here, or away until their time. A few that are registered within a second are none.
    fn backlog(&self) -> usize {
        let few = self.reserved.is_empty() && self.waiting <= self.unnoticed;
        if few { 0 } else { self.waiting + self.reserved.len() }
    }

    /// An agent wants to be registered.
    fn arrive(&mut self, agent_id: &str, now: Moment) -> AdmissionDecision {
        self.sweep(now);
        let key = self.hash.hash_one(agent_id);
        match self.reserved.get(&key) {
            Some(at) if *at > now + EARLY_ARRIVAL_TOLERANCE => AdmissionDecision::Later(*at - now),
            Some(_) if self.waiting < self.capacity => {
                self.reserved.remove(&key);
                self.enter()
            }
            Some(_) => self.tell(agent_id, now),
            None if self.has_room_for_a_newcomer(now) => {
                self.free = self.free.max(now) + self.gap;
                self.enter()
            }
            None => self.tell(agent_id, now),
        }
    }

    /// One that waited here could not be registered: it has another place.
    fn again(&mut self, agent_id: &str, now: Moment) -> Duration {
        match self.tell(agent_id, now) {
            AdmissionDecision::Later(wait) => wait,
            AdmissionDecision::Now | AdmissionDecision::TooManyUnapproved => MIN_RETRY_DELAY,
        }
    }

    /// One that waited here does no longer.
    fn leave(&mut self) {
        self.waiting = self.waiting.saturating_sub(1);
    }

    /// An agent comes no more: another replica has it. True: it had a place.
    fn forget(&mut self, agent_id: &str) -> bool {
        self.reserved.remove(&self.hash.hash_one(agent_id)).is_some()
    }

    /// Takes the places from those who have not come. True: somebody lost one.
    fn sweep(&mut self, now: Moment) -> bool {
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

    /// While others were told to come, a newcomer is let in only where none of their times is still to come, and half
    /// of the room is left to those who are late.
    fn has_room_for_a_newcomer(&self, now: Moment) -> bool {
        if self.reserved.is_empty() {
            self.waiting < self.capacity && self.free <= now + Duration::from_secs(MAX_WAIT_SECONDS.into())
        } else {
            self.waiting < self.capacity / 2 && self.free <= now
        }
    }

    fn tell(&mut self, agent_id: &str, now: Moment) -> AdmissionDecision {
        let at = self.free.max(now + MIN_RETRY_DELAY);
        let key = self.hash.hash_one(agent_id);
        if self.reserved.len() < MAX_RESERVED_TIMES || self.reserved.contains_key(&key) {
            self.free = at + self.gap;
            self.reserved.insert(key, at);
        }
        AdmissionDecision::Later(at - now)
    }
}
