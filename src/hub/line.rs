//! The line of agents that are to be registered: who may wait here, and when the others come again. Pure.
//!
//! Registrations are written at a pace. So many may wait for theirs as are written before an agent loses patience; each
//! of the others is told the time of a place of its own, and leaves. Whoever comes at that time has its place, before
//! anybody who was told none; whoever comes sooner is told the same time again, so that hurry is of no use.
//!
//! Agents that have an object wait in a line of their own, so that nobody who was never here keeps them waiting. Strangers
//! have no place in any: a few of them wait, and the others are sent away.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use super::ledger::Moment;

#[cfg(test)]
mod tests;

/// Where nothing limits registrations, so many a second are told to come.
const UNLIMITED: u32 = 1000;
/// How long one may wait here: less than an agent waits for an answer to its hello.
const PATIENCE: u32 = 4;
/// However fast registrations are, no more wait here.
const MAX_INSIDE: usize = 1024;
/// Whoever comes so much before its time is let in.
const EARLY: Duration = Duration::from_millis(50);
/// Nobody is told a shorter time.
const SHORTEST: Duration = Duration::from_millis(250);
/// Whoever has not come so long after its time has lost its place.
const LATE: Duration = Duration::from_secs(30);
/// How often it is looked who has.
const SWEEP: Duration = Duration::from_secs(1);
/// Strangers that wait here at once.
const MAX_STRANGERS: usize = 64;
/// Time after which a stranger comes again that is sent away.
pub(super) const STRANGERS_RETRY: Duration = Duration::from_secs(60);
/// So many places are kept at once.
const MAX_PLACES: usize = 100_000;

/// What an agent is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// It may wait here until it is registered; [`Line::leave`] when it is.
    Now,
    /// It comes again after this time.
    Later(Duration),
    /// So many strangers wait here that no more may.
    Full,
}

/// What is known of an agent before it is registered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Standing {
    /// It has an object, and is approved or was.
    #[default]
    Known,
    /// It has no object, and is approved as soon as it has.
    Newcomer,
    /// It was never approved, and is not by being registered.
    Stranger,
}

/// The lines by standing.
#[derive(Debug)]
pub(super) struct Lines {
    known: Line,
    newcomers: Line,
    strangers: usize,
}

impl Lines {
    /// `per_second` registrations are written; 0: as many as the API server takes.
    pub(super) fn new(per_second: u32) -> Self {
        Self { known: Line::new(per_second), newcomers: Line::new(per_second), strangers: 0 }
    }

    /// How many agents wait that have been here before: here, or away until their time. Others were held by nobody, so
    /// that nobody is taken for gone too soon for want of them.
    pub(super) fn backlog(&self) -> usize {
        self.known.backlog()
    }

    /// An agent wants to be registered.
    pub(super) fn arrive(&mut self, standing: Standing, agent_id: &str, now: Moment) -> Turn {
        match standing {
            Standing::Known => self.known.arrive(agent_id, now),
            Standing::Newcomer => self.newcomers.arrive(agent_id, now),
            Standing::Stranger if self.strangers < MAX_STRANGERS => {
                self.strangers += 1;
                Turn::Now
            }
            Standing::Stranger => Turn::Full,
        }
    }

    /// One that waited here could not be registered: it has another place, unless it is a stranger.
    pub(super) fn again(&mut self, standing: Standing, agent_id: &str, now: Moment) -> Duration {
        match standing {
            Standing::Known => self.known.again(agent_id, now),
            Standing::Newcomer => self.newcomers.again(agent_id, now),
            Standing::Stranger => STRANGERS_RETRY,
        }
    }

    /// One that waited here does no longer.
    pub(super) fn leave(&mut self, standing: Standing) {
        match standing {
            Standing::Known => self.known.leave(),
            Standing::Newcomer => self.newcomers.leave(),
            Standing::Stranger => self.strangers = self.strangers.saturating_sub(1),
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

/// One line.
#[derive(Debug)]
struct Line {
    /// From one registration to the next.
    gap: Duration,
    /// How many may wait here.
    room: usize,
    /// So many are registered within half a second.
    few: usize,
    inside: usize,
    /// The first time that nobody was told.
    free: Moment,
    /// When each agent was told to come, by a hash of its id: ids are as long as whoever sends them likes.
    places: HashMap<u64, Moment>,
    hash: RandomState,
    swept: Moment,
}

impl Line {
    /// `per_second` registrations are written; 0: as many as the API server takes.
    fn new(per_second: u32) -> Self {
        let rate = if per_second == 0 { UNLIMITED } else { per_second };
        let room = usize::try_from(rate.saturating_mul(PATIENCE)).unwrap_or(usize::MAX);
        Self {
            gap: Duration::from_secs(1) / rate,
            room: room.min(MAX_INSIDE),
            few: usize::try_from(rate / 2).unwrap_or(usize::MAX).max(1),
            inside: 0,
            free: Duration::ZERO,
            places: HashMap::new(),
            hash: RandomState::new(),
            swept: Duration::ZERO,
        }
    }

    /// How many wait: here, or away until their time. A few that are registered within a second are none.
    fn backlog(&self) -> usize {
        let few = self.places.is_empty() && self.inside <= self.few;
        if few { 0 } else { self.inside + self.places.len() }
    }

    /// An agent wants to be registered.
    fn arrive(&mut self, agent_id: &str, now: Moment) -> Turn {
        self.sweep(now);
        let key = self.hash.hash_one(agent_id);
        match self.places.get(&key) {
            Some(at) if *at > now + EARLY => Turn::Later(*at - now),
            Some(_) if self.inside < self.room => {
                self.places.remove(&key);
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
            Turn::Later(wait) => wait,
            Turn::Now | Turn::Full => SHORTEST,
        }
    }

    /// One that waited here does no longer.
    fn leave(&mut self) {
        self.inside = self.inside.saturating_sub(1);
    }

    /// An agent comes no more: another replica has it. True: it had a place.
    fn forget(&mut self, agent_id: &str) -> bool {
        self.places.remove(&self.hash.hash_one(agent_id)).is_some()
    }

    /// Takes the places from those who have not come. True: somebody lost one.
    fn sweep(&mut self, now: Moment) -> bool {
        if now.saturating_sub(self.swept) < SWEEP {
            return false;
        }
        self.swept = now;
        let before = self.places.len();
        self.places.retain(|_, at| *at + LATE > now);
        self.places.len() < before
    }

    fn enter(&mut self) -> Turn {
        self.inside += 1;
        Turn::Now
    }

    /// While others were told to come, a newcomer is let in only where none of their times is still to come, and half
    /// of the room is left to those who are late.
    fn has_room_for_a_newcomer(&self, now: Moment) -> bool {
        if self.places.is_empty() {
            self.inside < self.room && self.free <= now + Duration::from_secs(PATIENCE.into())
        } else {
            self.inside < self.room / 2 && self.free <= now
        }
    }

    fn tell(&mut self, agent_id: &str, now: Moment) -> Turn {
        let at = self.free.max(now + SHORTEST);
        let key = self.hash.hash_one(agent_id);
        if self.places.len() < MAX_PLACES || self.places.contains_key(&key) {
            self.free = at + self.gap;
            self.places.insert(key, at);
        }
        Turn::Later(at - now)
    }
}
