//! Elects the agent that streams the objects of an account: one process of one agent at a time, for as long as
//! possible. Pure.
//!
//! An elected process stays. It is replaced
//!
//! - 2 ticks after a goodbye, 10 after its stream was cut, 60 after its replica was lost or ended, unless it is back
//!   by then; if another process of the same agent is back, that one is elected as soon as it holds the account;
//! - immediately if it reports that it no longer holds the account, or is no longer approved;
//! - immediately if someone requests an election.
//!
//! Among the agents that hold the account, the one that streams the fewest accounts is elected. Ties go to the least
//! digest of the account's uid and the agent's id, so that accounts that start together are spread.

use std::cmp::Reverse;

use sha2::{Digest, Sha256};

use super::ids::BootId;
use super::lifecycle::{Presence, SessionEnding, Tick};

/// Whether a session holds the account under the epoch of the grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holding {
    /// The session reported it.
    Yes,
    /// Another replica has the session, and there all is well as long as nothing is reported.
    Perhaps,
    /// The session has reported nothing for this epoch yet.
    NotYet,
    /// The session failed, lost or dropped it, reached another cluster, or is not approved.
    No,
}

/// An agent of the account's zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachingCandidate<'a> {
    /// id of the agent.
    pub agent_id: &'a str,
    /// The agent's process; empty if unknown.
    pub boot_id: &'a BootId,
    /// Whether its session is connected.
    pub presence: Presence,
    /// The tick since which it is connected.
    pub since: Tick,
    /// How the session ended, if it is not connected.
    pub ending: SessionEnding,
    /// Whether it holds the account.
    pub holds: Holding,
    /// Number of accounts whose objects the agent streams.
    pub load: usize,
}

/// Input of an election.
#[derive(Clone, Debug)]
pub struct Election<'s, 'a> {
    /// The account's uid.
    pub uid: &'s str,
    /// The current tick.
    pub now: Tick,
    /// Tick at which this leader began. No absence counts from before.
    pub leading_since: Tick,
    /// Agent and process elected last.
    pub current: Option<(&'s str, &'s BootId)>,
    /// Whether someone requests an election.
    pub asked: bool,
    /// The agents of the zone.
    pub candidates: &'s [CachingCandidate<'a>],
}

/// Result of an election.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElectionOutcome<'a> {
    /// The elected process stays until something changes.
    Stays,
    /// The elected process stays at least until this tick.
    StaysUntil(Tick),
    /// This process of this agent streams from now on.
    Goes(&'a str, &'a BootId),
}

/// Number of ticks for which an agent may be absent before another one is elected.
pub fn absence_grace(ending: SessionEnding) -> Tick {
    match ending {
        SessionEnding::Goodbye => 2,
        SessionEnding::Cut => 10,
        SessionEnding::ReplicaLost => 60,
    }
}

/// Elects a process, or keeps the current one.
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
                // The former process is gone, and its successor has not reported yet.
                (false, Holding::NotYet) => after(election.since(candidate.since), SessionEnding::Cut),
            }
        }
        Some(candidate) => match candidate.presence {
            Presence::Away(since) => after(election.since(since), candidate.ending),
            Presence::Connected => election.now,
        },
        // Not seen since this leader began.
        None => after(election.leading_since, SessionEnding::ReplicaLost),
    };
    if due > election.now {
        return ElectionOutcome::StaysUntil(due);
    }
    election.choice(|candidate| candidate.agent_id != agent).unwrap_or(ElectionOutcome::Stays)
}

/// The first tick at which the full grace has passed, however late in its tick it began.
fn after(since: Tick, ending: SessionEnding) -> Tick {
    since.saturating_add(absence_grace(ending)).saturating_add(1)
}

impl<'s, 'a> Election<'s, 'a> {
    fn since(&self, since: Tick) -> Tick {
        since.max(self.leading_since)
    }

    /// The candidate for an agent: this process if connected, else another connected process, else a disconnected
    /// one.
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
        // `Yes` goes before `Perhaps`, since it needs no wait.
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

/// A digest of both values, unrelated to either alone.
fn draw(uid: &str, agent_id: &str) -> [u8; 32] {
    Sha256::new().chain_update(uid).chain_update([0]).chain_update(agent_id).finalize().into()
}

#[cfg(test)]
mod tests;
