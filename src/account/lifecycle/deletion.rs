//! The end of an account: the grant is revoked, then the rows go, then the finalizer.

use super::active::{Due, due};
use super::observation::{Blocker, Context, RowFact};
use super::revoke::begin;
use super::write::StatusWrite;
use super::{Action, Decision};
use crate::account::FORCE_DELETE_ANNOTATION;
use crate::account::state::{GrantPhase, State};

/// What to do for an object that is being deleted.
pub(super) fn decide(context: &Context<'_>) -> Decision {
    if !context.observation.account.has_finalizer() {
        return Decision::nothing();
    }
    match context.status.phase() {
        GrantPhase::Open => begin(context, State::Deleting).into(),
        GrantPhase::Revoking => revoke(context),
        GrantPhase::None => match context.observation.row {
            RowFact::Present => Action::DeleteRows.into(),
            RowFact::Absent => Action::RemoveFinalizer.into(),
            RowFact::Unavailable => Decision::nothing(),
        },
    }
}

fn revoke(context: &Context<'_>) -> Decision {
    let forced = context.observation.account.annotation(FORCE_DELETE_ANNOTATION).is_some();
    let blocker = context.revoke_blockers().filter(|_| !forced);
    match (context.state(), blocker) {
        (_, None) => StatusWrite::to(context, State::Deleting).released().into(),
        (State::DeleteFailed, Some(_)) => match due(context) {
            Due::Now => begin(context, State::Deleting).into(),
            Due::At(tick) => Decision::wait_until(tick),
            Due::OnChange => Decision::nothing(),
        },
        (State::Deleting, Some(Blocker::Failed(failure))) => StatusWrite::failed(context, &failure).into(),
        (State::Deleting, Some(Blocker::Waiting(_))) if context.retry_asked().is_some() => {
            StatusWrite::acknowledged(context).into()
        }
        (State::Deleting, Some(Blocker::Waiting(wake))) => Decision { action: None, wake },
        (_, Some(_)) => StatusWrite::to(context, State::Deleting).into(),
    }
}
