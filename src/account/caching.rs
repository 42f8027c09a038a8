//! Which agent streams the objects of an account: one process of one agent at a time, for as long as it can. Pure.
//!
//! Whoever is elected stays. It is replaced
//!
//! - 2 ticks after it said goodbye, 10 after its stream was cut, 60 after its replica was lost or ended, if by then it is
//!   not back; where another process of the same agent is back, that one has it as soon as it holds the account;
//! - at once where it says that it holds the account no longer, or is not approved any more;
//! - at once where somebody asks for an election.
//!
//! Of those that hold the account, the one whose agent streams the fewest accounts is elected; among equals the one with
//! the least digest of the account's uid and the agent's id, so that accounts which begin together spread.

use std::cmp::Reverse;

use sha2::{Digest, Sha256};

use super::lifecycle::{Presence, SessionEnding, Tick};

/// Whether a session holds the account, under the epoch of the grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holding {
    /// It says so.
    Yes,
    /// Another replica has it, where all is well as long as nothing is told.
    Perhaps,
    /// It has not said anything of this epoch yet.
    NotYet,
    /// It failed, has lost or dropped it, reached another cluster, or is not approved.
    No,
}

/// An agent of the account's zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seat<'a> {
    /// The agent.
    pub agent_id: &'a str,
    /// Its process; empty where that is not known.
    pub boot_id: &'a str,
    /// Whether its session stands.
    pub presence: Presence,
    /// Since when, where it does.
    pub since: Tick,
    /// How it ended, where it does not.
    pub ending: SessionEnding,
    /// Whether it holds the account.
    pub holds: Holding,
    /// The objects of how many accounts the agent streams.
    pub load: usize,
}

/// What there is to decide from.
#[derive(Clone, Debug)]
pub struct Election<'s, 'a> {
    /// The account's uid.
    pub uid: &'s str,
    /// Now.
    pub now: Tick,
    /// When this leader began; nobody was away for this leader before.
    pub leading_since: Tick,
    /// Agent and process that were elected last.
    pub current: Option<(&'s str, &'s str)>,
    /// Somebody asks for an election.
    pub asked: bool,
    /// The agents of the zone.
    pub seats: &'s [Seat<'a>],
}

/// What comes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome<'a> {
    /// It stays as it is, until something changes.
    Stays,
    /// It stays as it is, at least until this tick.
    StaysUntil(Tick),
    /// This process of this agent streams from now on.
    Goes(&'a str, &'a str),
}

/// For how many ticks an agent may be away before another one is elected.
pub fn absence_grace(ending: SessionEnding) -> Tick {
    match ending {
        SessionEnding::Goodbye => 2,
        SessionEnding::Cut => 10,
        SessionEnding::ReplicaLost => 60,
    }
}

/// Elects, or leaves it as it is.
pub fn elect<'a>(election: &Election<'_, 'a>) -> Outcome<'a> {
    let Some((agent, boot)) = election.current else {
        return election.choice(|_| true).unwrap_or(Outcome::Stays);
    };
    if election.asked {
        let others = election.choice(|seat| seat.agent_id != agent);
        return others.or_else(|| election.choice(|_| true)).unwrap_or(Outcome::Stays);
    }
    let due = match election.seat_of(agent, boot) {
        Some(seat) if seat.presence == Presence::Connected => {
            match (seat.boot_id == boot, seat.holds) {
                (_, Holding::No) => election.now,
                (true, _) => return Outcome::Stays,
                (false, Holding::Yes | Holding::Perhaps) => {
                    return Outcome::Goes(seat.agent_id, seat.boot_id);
                }
                // The former process is gone, and this one is on its way.
                (false, Holding::NotYet) => after(election.since(seat.since), SessionEnding::Cut),
            }
        }
        Some(seat) => match seat.presence {
            Presence::Away(since) => after(election.since(since), seat.ending),
            Presence::Connected => election.now,
        },
        // Nobody has seen it since this leader began.
        None => after(election.leading_since, SessionEnding::ReplicaLost),
    };
    if due > election.now {
        return Outcome::StaysUntil(due);
    }
    election.choice(|seat| seat.agent_id != agent).unwrap_or(Outcome::Stays)
}

/// The first tick at which the whole time has passed, however late in its tick it began.
fn after(since: Tick, ending: SessionEnding) -> Tick {
    since.saturating_add(absence_grace(ending)).saturating_add(1)
}

impl<'s, 'a> Election<'s, 'a> {
    fn since(&self, since: Tick) -> Tick {
        since.max(self.leading_since)
    }

    /// The seat of an agent: of this process if it is connected, else of another one that is, else of one that is away.
    fn seat_of(&self, agent: &str, boot: &str) -> Option<&'s Seat<'a>> {
        let rank = |seat: &&Seat<'_>| (seat.presence == Presence::Connected, seat.boot_id == boot);
        self.seats.iter().filter(|seat| seat.agent_id == agent).max_by_key(rank)
    }

    fn choice(&self, may: impl Fn(&Seat<'_>) -> bool) -> Option<Outcome<'a>> {
        let holders = self.seats.iter().filter(|seat| {
            seat.presence == Presence::Connected && matches!(seat.holds, Holding::Yes | Holding::Perhaps)
        });
        // Who says so comes before who may, since it need not be waited for.
        let key = |seat: &&Seat<'_>| {
            (seat.load, draw(self.uid, seat.agent_id), Reverse(seat.holds == Holding::Yes), seat.since)
        };
        let chosen = holders.filter(|seat| may(seat)).min_by_key(key)?;
        Some(Outcome::Goes(chosen.agent_id, chosen.boot_id))
    }
}

/// A number that has nothing to do with either alone.
fn draw(uid: &str, agent_id: &str) -> [u8; 32] {
    Sha256::new().chain_update(uid).chain_update([0]).chain_update(agent_id).finalize().into()
}

#[cfg(test)]
mod tests;
