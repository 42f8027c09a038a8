//! How far a zone is with letting go of an account: what its sessions say to the revoke.

use super::facts::{Facts, earlier, silence};
use super::observation::{AgentReport, Presence, SessionFact, Tick};
use crate::account::failure::Failure;

/// How far a revoke is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum RevokeProgress {
    /// Every session has dropped the account or is gone.
    Over,
    /// So it seems; the sessions are to be read once more, from the API server itself.
    ToConfirm,
    /// Someone is waited for.
    Blocked(Blocker),
}

/// Why a revoke is not over.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Blocker {
    /// Someone is still to answer, or may come back; look again at the tick.
    Waiting(Option<Tick>),
    /// An agent said that it could not drop the account, or says nothing. Others may still be waited for until the
    /// tick.
    Failed(Failure, Option<Tick>),
}

/// What a session says to a revoke.
enum DropAnswer {
    /// It holds nothing.
    Given,
    /// It failed, or is silent.
    Failed(Failure),
    /// It has not answered, or may come back; it counts as silent or gone at the tick.
    Awaited(Option<Tick>),
}

impl Blocker {
    /// When to look again.
    pub(super) fn wake(&self) -> Option<Tick> {
        match self {
            Self::Waiting(wake) => *wake,
            Self::Failed(_, wake) => *wake,
        }
    }
}

/// How far the revoke is: over when every session has dropped the account or is gone.
pub(super) fn of(facts: &Facts<'_>) -> RevokeProgress {
    let Some(zone) = facts.status.granted_zone() else { return RevokeProgress::Over };
    let (mut waiting, mut wake, mut failure) = (false, None, None);
    for session in facts.observation.sessions.iter().filter(|session| session.zone == zone) {
        match drop_answer(facts, session) {
            DropAnswer::Given => {}
            DropAnswer::Failed(reason) => failure = failure.or(Some(reason)),
            DropAnswer::Awaited(at) => {
                waiting = true;
                wake = earlier(wake, at);
            }
        }
    }
    match failure {
        Some(failure) => RevokeProgress::Blocked(Blocker::Failed(failure, wake)),
        None if waiting => RevokeProgress::Blocked(Blocker::Waiting(wake)),
        None if facts.observation.sessions_are_read => RevokeProgress::Over,
        None => RevokeProgress::ToConfirm,
    }
}

/// What one session of the zone says to the revoke. One whose approval was withdrawn may have the account still, and
/// is asked and waited for like any other.
fn drop_answer(facts: &Facts<'_>, session: &SessionFact) -> DropAnswer {
    if session.presence != Presence::Connected {
        let until = facts.may_return_until(session);
        return until.map_or(DropAnswer::Given, |until| DropAnswer::Awaited(Some(until)));
    }
    match &session.report {
        Some((epoch, AgentReport::Dropped)) if *epoch >= facts.status.epoch => DropAnswer::Given,
        Some((epoch, AgentReport::Failed(failure))) if *epoch >= facts.status.epoch => {
            DropAnswer::Failed(failure.clone())
        }
        _ if facts.is_silent(session) => DropAnswer::Failed(silence(&session.agent_id)),
        _ => DropAnswer::Awaited(facts.silent_at(session)),
    }
}
