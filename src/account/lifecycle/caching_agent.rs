//! The agent that streams the account's objects: chosen with ACTIVE, and looked after while ACTIVE.

use super::cluster_identity::is_another_cluster;
use super::facts::Facts;
use super::observation::{AgentReport, SessionFact};
use super::retry;
use crate::account::caching_election::{CachingCandidate, Election, ElectionOutcome, Holding, elect};
use crate::account::state::State;
use crate::account::{BootId, ELECT_CACHING_ANNOTATION};

/// The process where the status names none.
static UNKNOWN_PROCESS: BootId = BootId::NONE;

/// Which process is to stream the objects from now on.
pub(super) fn election<'a>(facts: &Facts<'a>) -> ElectionOutcome<'a> {
    let zone = facts.zone();
    let in_zone = facts.observation.sessions.iter().filter(|session| session.zone == zone);
    let candidates: Vec<_> = in_zone.map(|session| candidate(facts, session)).collect();
    let caching = facts.status.caching.as_ref();
    elect(&Election {
        uid: facts.observation.account.uid(),
        now: facts.observation.now,
        leading_since: facts.observation.leading_since,
        current: caching.and_then(|one| {
            Some((one.agent_id.as_deref()?, one.boot_id.as_ref().unwrap_or(&UNKNOWN_PROCESS)))
        }),
        asked: requested_election(facts).is_some(),
        candidates: &candidates,
    })
}

/// An election that somebody asks for and that was not held yet.
pub(super) fn requested_election<'a>(facts: &Facts<'a>) -> Option<&'a str> {
    let asked = facts.observation.account.annotation(ELECT_CACHING_ANNOTATION)?;
    (facts.status.election_handled.as_deref() != Some(&retry::mark(asked))).then_some(asked)
}

fn candidate<'a>(facts: &Facts<'_>, session: &'a SessionFact) -> CachingCandidate<'a> {
    CachingCandidate {
        agent_id: &session.agent_id,
        boot_id: &session.process.boot_id,
        presence: session.presence,
        since: session.process.since,
        ending: session.process.ending,
        holds: holding(facts, session),
        load: session.process.load,
    }
}

fn holding(facts: &Facts<'_>, session: &SessionFact) -> Holding {
    if !session.approved || !facts.may_be_sent(session) {
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
