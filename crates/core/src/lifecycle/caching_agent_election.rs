//! Elects the agent that streams the objects of an account: one process of one agent at a time, for as long as
//! possible. Pure.
//!
//! An elected process stays. It is replaced
//!
//! - 2 ticks after a goodbye, 10 after its stream was cut, 60 after its replica was lost or ended, unless it is back
//!   by then; if another process of the same agent is back, that one is elected as soon as it holds the account;
//! - immediately if it reports that it no longer holds the account, or is no longer approved;
//! - immediately if it has not been able to read the cluster for 60 s, and another agent holds the account; at growing
//!   intervals if the others cannot either;
//! - immediately if someone requests an election.
//!
//! An agent that does not stream objects is not elected. Among the agents that hold the account, the one that streams the fewest accounts is elected. Ties go to the least
//! digest of the account's uid and the agent's id, so that accounts that start together are spread.

use std::cmp::Reverse;

use sha2::{Digest, Sha256};

use super::cluster_identity::is_another_cluster;
use super::facts::Facts;
use super::observation::{AgentReport, Presence, SessionEnding, SessionFact, Tick};
use super::retry_schedule;
use crate::ids::AgentId;
use crate::{BootId, ELECT_CACHING_ANNOTATION, State};

/// Whether a session holds the account under the epoch of the grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holding {
    /// The session reported it.
    Yes,
    /// Another replica has the session, and there all is well as long as nothing is reported.
    Perhaps,
    /// The session has reported nothing for this epoch yet.
    NotYet,
    /// The session failed, lost or dropped it, reached another cluster, is not approved, or streams nothing.
    No,
}

/// An agent of the account's zone.
#[derive(Clone, Debug, PartialEq, Eq)]
struct CachingCandidate<'a> {
    /// id of the agent.
    agent_id: &'a AgentId,
    /// The agent's process; empty if unknown.
    boot_id: &'a BootId,
    /// Whether its session is connected.
    presence: Presence,
    /// The tick since which it is connected.
    since: Tick,
    /// How the session ended, if it is not connected.
    ending: SessionEnding,
    /// Whether it holds the account.
    holds: Holding,
    /// Whether it was elected, and has not been able to read the cluster since.
    is_unreadable: bool,
    /// Number of accounts whose objects the agent streams.
    load: usize,
}

/// Input of an election.
#[derive(Clone, Debug)]
struct Election<'s, 'a> {
    /// The account's uid.
    uid: &'s str,
    /// The current tick.
    now: Tick,
    /// Tick at which this leader began. No absence counts from before.
    leading_since: Tick,
    /// Agent and process elected last.
    current: Option<(&'s AgentId, &'s BootId)>,
    /// Whether someone requests an election.
    asked: bool,
    /// The earliest tick at which one that cannot read the cluster is replaced.
    unreadable_replaced_from: Tick,
    /// The agents of the zone.
    candidates: &'s [CachingCandidate<'a>],
}

/// Result of an election.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ElectionOutcome<'a> {
    /// The elected process stays until something changes.
    Stays,
    /// The elected process stays at least until this tick.
    StaysUntil(Tick),
    /// This process of this agent streams from now on.
    Goes(&'a AgentId, &'a BootId),
}

/// Number of ticks for which an agent may be absent before another one is elected.
pub(super) fn absence_grace(ending: SessionEnding) -> Tick {
    match ending {
        SessionEnding::Goodbye => 2,
        SessionEnding::Cut => 10,
        SessionEnding::ReplicaLost => 60,
    }
}

/// Elects a process, or keeps the current one.
fn elect<'a>(election: &Election<'_, 'a>) -> ElectionOutcome<'a> {
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
                (true, _) if candidate.is_unreadable => election.now.max(election.unreadable_replaced_from),
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
    fn candidate_of(&self, agent: &AgentId, boot: &BootId) -> Option<&'s CachingCandidate<'a>> {
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
fn draw(uid: &str, agent_id: &AgentId) -> [u8; 32] {
    Sha256::new().chain_update(uid).chain_update([0]).chain_update(agent_id.as_str()).finalize().into()
}

/// The process where the status names none.
static UNKNOWN_PROCESS: BootId = BootId::NONE;

/// Which process is to stream the objects from now on.
pub(super) fn election<'a>(facts: &Facts<'a>) -> ElectionOutcome<'a> {
    let zone = facts.zone();
    let in_zone = facts.observation.sessions.iter().filter(|session| session.zone == *zone);
    let candidates: Vec<_> = in_zone.map(|session| candidate(facts, session)).collect();
    let caching = facts.status.caching.as_ref();
    elect(&Election {
        uid: facts.observation.account.uid(),
        now: facts.observation.now,
        leading_since: facts.observation.leading_since,
        current: caching
            .and_then(|one| Some((one.agent_id.as_ref()?, one.boot_id.as_ref().unwrap_or(&UNKNOWN_PROCESS)))),
        asked: requested_election(facts).is_some(),
        unreadable_replaced_from: facts.observation.unreadable_replaced_from,
        candidates: &candidates,
    })
}

/// An election that somebody asks for and that was not held yet.
pub(super) fn requested_election<'a>(facts: &Facts<'a>) -> Option<&'a str> {
    let asked = facts.observation.account.annotation(ELECT_CACHING_ANNOTATION)?;
    (facts.status.election_handled.as_deref() != Some(&retry_schedule::mark(asked))).then_some(asked)
}

fn candidate<'a>(facts: &Facts<'_>, session: &'a SessionFact) -> CachingCandidate<'a> {
    CachingCandidate {
        agent_id: &session.agent_id,
        boot_id: &session.process.boot_id,
        presence: session.presence,
        since: session.process.since,
        ending: session.process.ending,
        holds: holding(facts, session),
        is_unreadable: facts.caching_report_of(session).is_some_and(|report| report.is_unreadable),
        load: session.process.load,
    }
}

fn holding(facts: &Facts<'_>, session: &SessionFact) -> Holding {
    if !session.approved || !facts.may_be_sent(session) || session.process.streams_objects == Some(false) {
        return Holding::No;
    }
    match &session.report {
        Some((epoch, word)) if *epoch == facts.status.epoch => match word {
            AgentReport::Held(identity) if !is_another_cluster(&facts.status, identity) => Holding::Yes,
            _ => Holding::No,
        },
        _ if session.process.remote && facts.state() == State::Active => Holding::Perhaps,
        _ => Holding::NotYet,
    }
}

#[cfg(test)]
mod tests;
