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

use super::ids::BootId;
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
pub struct CachingCandidate<'a> {
    /// The agent.
    pub agent_id: &'a str,
    /// Its process; empty where that is not known.
    pub boot_id: &'a BootId,
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
    pub current: Option<(&'s str, &'s BootId)>,
    /// Somebody asks for an election.
    pub asked: bool,
    /// The agents of the zone.
    pub candidates: &'s [CachingCandidate<'a>],
}

/// What comes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElectionOutcome<'a> {
    /// It stays as it is, until something changes.
    Stays,
    /// It stays as it is, at least until this tick.
    StaysUntil(Tick),
    /// This process of this agent streams from now on.
    Goes(&'a str, &'a BootId),
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
pub fn elect<'a>(election: &Election<'_, 'a>) -> ElectionOutcome<'a> {
    let Some((agent, boot)) = election.current else {
        return election.choice(|_| true).unwrap_or(ElectionOutcome::Stays);
    };
    if election.asked {
        let others = election.choice(|candidate| candidate.agent_id != agent);
        return others.or_else(|| election.choice(|_| true)).unwrap_or(ElectionOutcome::Stays);
    }
    let due = match election.candidate_of(agent, boot) {
        Some(candidate) if candidate.presence == Presence::Connected => {
            match (candidate.boot_id == boot, candidate.holds) {
                (_, Holding::No) => election.now,
                (true, _) => return ElectionOutcome::Stays,
                (false, Holding::Yes | Holding::Perhaps) => {
                    return ElectionOutcome::Goes(candidate.agent_id, candidate.boot_id);
                }
                // The former process is gone, and this one is on its way.
                (false, Holding::NotYet) => after(election.since(candidate.since), SessionEnding::Cut),
            }
        }
        Some(candidate) => match candidate.presence {
            Presence::Away(since) => after(election.since(since), candidate.ending),
            Presence::Connected => election.now,
        },
        // Nobody has seen it since this leader began.
        None => after(election.leading_since, SessionEnding::ReplicaLost),
    };
    if due > election.now {
        return ElectionOutcome::StaysUntil(due);
    }
    election.choice(|candidate| candidate.agent_id != agent).unwrap_or(ElectionOutcome::Stays)
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
    fn candidate_of(&self, agent: &str, boot: &BootId) -> Option<&'s CachingCandidate<'a>> {
        let rank = |candidate: &&CachingCandidate<'_>| {
            (candidate.presence == Presence::Connected, candidate.boot_id == boot)
        };
        self.candidates.iter().filter(|candidate| candidate.agent_id == agent).max_by_key(rank)
    }

    fn choice(&self, may: impl Fn(&CachingCandidate<'_>) -> bool) -> Option<ElectionOutcome<'a>> {
        let holders = self.candidates.iter().filter(|candidate| {
            candidate.presence == Presence::Connected
                && matches!(candidate.holds, Holding::Yes | Holding::Perhaps)
        });
        // Who says so comes before who may, since it need not be waited for.
        let key = |candidate: &&CachingCandidate<'_>| {
            (
                candidate.load,
                draw(self.uid, candidate.agent_id),
                Reverse(candidate.holds == Holding::Yes),
                candidate.since,
            )
        };
        let chosen = holders.filter(|candidate| may(candidate)).min_by_key(key)?;
        Some(ElectionOutcome::Goes(chosen.agent_id, chosen.boot_id))
    }
}

/// A number that has nothing to do with either alone.
fn draw(uid: &str, agent_id: &str) -> [u8; 32] {
    Sha256::new().chain_update(uid).chain_update([0]).chain_update(agent_id).finalize().into()
}

#[cfg(test)]
mod tests;
