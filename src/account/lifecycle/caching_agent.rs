//! The agent that streams the account's objects: chosen with ACTIVE, and looked after while ACTIVE.

use super::cluster_identity::is_another_cluster;
use super::context::{LifecycleContext, earlier};
use super::observation::{AgentReport, SessionFact};
use super::write::StatusDraft;
use super::{Decision, retry};
use crate::account::caching_election::{CachingCandidate, Election, ElectionOutcome, Holding, elect};
use crate::account::state::State;
use crate::account::{BootId, ELECT_CACHING_ANNOTATION};

/// The process where the status names none.
static UNKNOWN_PROCESS: BootId = BootId::NONE;

/// What is to be done for an ACTIVE account that needs nothing else.
pub(super) fn maintain_election(context: &LifecycleContext<'_>, zone: &str, decision: Decision) -> Decision {
    if decision.action.is_some() || context.state() != State::Active {
        return decision;
    }
    match outcome(context, zone) {
        ElectionOutcome::Stays => decision,
        ElectionOutcome::StaysUntil(tick) => {
            Decision { wake: earlier(decision.wake, Some(tick)), ..decision }
        }
        ElectionOutcome::Goes(..) => with_election(context, zone, StatusDraft::acknowledged(context)).into(),
    }
}

/// The draft of an ACTIVE account with whoever is elected.
pub(super) fn with_election<'a>(
    context: &'a LifecycleContext<'a>,
    zone: &str,
    draft: StatusDraft<'a>,
) -> StatusDraft<'a> {
    let ElectionOutcome::Goes(agent, boot) = outcome(context, zone) else { return draft };
    let draft = draft.cached_by(agent, boot);
    match requested_election(context) {
        Some(asked) => draft.elected(asked),
        None => draft,
    }
}

fn outcome<'a>(context: &LifecycleContext<'a>, zone: &str) -> ElectionOutcome<'a> {
    let in_zone = context.observation.sessions.iter().filter(|session| session.zone == zone);
    let candidates: Vec<_> = in_zone.map(|session| candidate(context, session)).collect();
    let caching = context.status.caching.as_ref();
    elect(&Election {
        uid: context.observation.account.uid(),
        now: context.observation.now,
        leading_since: context.observation.leading_since,
        current: caching.and_then(|one| {
            Some((one.agent_id.as_deref()?, one.boot_id.as_ref().unwrap_or(&UNKNOWN_PROCESS)))
        }),
        asked: requested_election(context).is_some(),
        candidates: &candidates,
    })
}

/// An election that somebody asks for and that was not held yet.
fn requested_election<'a>(context: &LifecycleContext<'a>) -> Option<&'a str> {
    let asked = context.observation.account.annotation(ELECT_CACHING_ANNOTATION)?;
    (context.status.election_handled.as_deref() != Some(&retry::mark(asked))).then_some(asked)
}

fn candidate<'a>(context: &LifecycleContext<'_>, session: &'a SessionFact) -> CachingCandidate<'a> {
    CachingCandidate {
        agent_id: &session.agent_id,
        boot_id: &session.process.boot_id,
        presence: session.presence,
        since: session.process.since,
        ending: session.process.ending,
        holds: holding(context, session),
        load: session.process.load,
    }
}

fn holding(context: &LifecycleContext<'_>, session: &SessionFact) -> Holding {
    if !session.approved || !context.may_be_sent(session) {
        return Holding::No;
    }
    match &session.report {
        Some((epoch, word)) if *epoch == context.status.epoch => match word {
            AgentReport::Held(identity) if !is_another_cluster(&context.status, identity) => Holding::Yes,
            _ => Holding::No,
        },
        _ if session.process.remote && context.state() == State::Active => Holding::Perhaps,
        _ => Holding::NotYet,
    }
}
