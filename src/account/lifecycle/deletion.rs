//! The end of an account: the grant is revoked, then the rows go, then the finalizer.

use super::active::{Due, due};
use super::context::{Blocker, LifecycleContext, RevokeProgress, earlier};
use super::observation::RowFact;
use super::revoke::begin;
use super::write::StatusDraft;
use super::{Action, Decision};
use crate::account::FORCE_DELETE_ANNOTATION;
use crate::account::state::{GrantPhase, State};

/// What to do for an object that is being deleted.
pub(super) fn decide(context: &LifecycleContext<'_>) -> Decision {
    let row = context.observation.row;
    if !context.observation.account.has_finalizer() {
        // Someone took our finalizer off, or it never was on; the row must not outlive the object all the same.
        return if row == RowFact::Present { Action::DeleteRows.into() } else { Decision::nothing() };
    }
    match (context.status.phase(), row) {
        (GrantPhase::Open, _) => begin(context, State::Deleting).into(),
        (GrantPhase::Revoking, _) => revoke(context),
        (GrantPhase::None, RowFact::Present) => Action::DeleteRows.into(),
        (GrantPhase::None, RowFact::Absent | RowFact::Foreign) => Action::RemoveFinalizer.into(),
        (GrantPhase::None, RowFact::Unavailable) => Decision::nothing(),
    }
}

fn revoke(context: &LifecycleContext<'_>) -> Decision {
    let forced = context.observation.account.annotation(FORCE_DELETE_ANNOTATION).is_some();
    let blocker = match context.revoke_progress() {
        RevokeProgress::Blocked(blocker) if !forced => blocker,
        RevokeProgress::ToConfirm if !forced => return Action::ReadSessions.into(),
        _ => return StatusDraft::to(context, State::Deleting).released().into(),
    };
    match (context.state(), blocker) {
        (State::DeleteFailed, blocker) => match due(context) {
            Due::Now => begin(context, State::Deleting).into(),
            Due::At(tick) => Decision { action: None, wake: earlier(Some(tick), blocker.wake()) },
            Due::OnChange => Decision { action: None, wake: blocker.wake() },
        },
        (State::Deleting, Blocker::Failed(failure, _)) => StatusDraft::failed(context, &failure).into(),
        (State::Deleting, Blocker::Waiting(_)) if context.retry_asked().is_some() => {
            StatusDraft::acknowledged(context).into()
        }
        (State::Deleting, Blocker::Waiting(wake)) => Decision { action: None, wake },
        // An earlier revoke failed or waits: who failed is asked again, who is asked already is waited for.
        (_, Blocker::Failed(..)) => begin(context, State::Deleting).into(),
        (_, Blocker::Waiting(_)) => StatusDraft::to(context, State::Deleting).into(),
    }
}
