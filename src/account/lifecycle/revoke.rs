//! Taking an account back from its zone.

use super::active::{Due, due};
use super::context::{Blocker, LifecycleContext, RevokeProgress, earlier};
use super::write::StatusDraft;
use super::{Action, Decision};
use crate::account::failure::FailureClass;
use crate::account::state::{DesiredState, State};

/// The draft that begins a revoke.
pub(super) fn begin<'a>(context: &'a LifecycleContext<'a>, state: State) -> StatusDraft<'a> {
    StatusDraft::to(context, state).revoking()
}

/// A revoke is under way, and is finished before anything else.
pub(super) fn decide(context: &LifecycleContext<'_>) -> Decision {
    let blocker = match context.revoke_progress() {
        RevokeProgress::Blocked(blocker) => blocker,
        RevokeProgress::ToConfirm => return Action::ReadSessions.into(),
        RevokeProgress::Over if stays_failed(context) && !context.starts_anew() => {
            return StatusDraft::failed_as_before(context).released().into();
        }
        RevokeProgress::Over => return StatusDraft::to(context, state_after(context)).released().into(),
    };
    if context.state() == State::Failed {
        return again(context, &blocker);
    }
    let inactive = context.observation.account.desired() == DesiredState::Inactive;
    match blocker {
        _ if inactive && context.state() != State::Deactivating => {
            StatusDraft::to(context, State::Deactivating).into()
        }
        Blocker::Failed(failure, _) => StatusDraft::failed(context, &failure).into(),
        Blocker::Waiting(_) if context.retry_asked().is_some() => StatusDraft::acknowledged(context).into(),
        Blocker::Waiting(wake) => Decision { action: None, wake },
    }
}

/// The agents were asked to drop it, and one failed: they are asked again when it is due, and the last one's answer or
/// absence ends it at any time.
fn again(context: &LifecycleContext<'_>, blocker: &Blocker) -> Decision {
    match due(context) {
        Due::Now => begin(context, state_while(context)).into(),
        _ if context.generation_is_new() => StatusDraft::acknowledged(context).into(),
        Due::At(tick) => Decision { action: None, wake: earlier(Some(tick), blocker.wake()) },
        Due::OnChange => Decision { action: None, wake: blocker.wake() },
    }
}

/// Nobody has the grant, and the account is to be INACTIVE: say so once.
pub(super) fn rest(context: &LifecycleContext<'_>) -> Decision {
    let said = context.status.state == Some(State::Inactive)
        && !context.generation_is_new()
        && context.retry_asked().is_none();
    let ready = context.status.conditions.iter().any(|one| one.type_ == "Ready" && one.status == "True");
    if said && ready {
        Decision::nothing()
    } else {
        StatusDraft::to(context, State::Inactive).released().into()
    }
}

/// A zone that is left for another is followed by a new choice of zone; anything else ends INACTIVE, and what is
/// desired is taken up from there.
fn state_after(context: &LifecycleContext<'_>) -> State {
    match context.state() {
        State::Deactivating => State::Inactive,
        _ => match state_while(context) {
            State::Activating => State::ToMigrate,
            _ => State::Inactive,
        },
    }
}

/// ACTIVATING while the account leaves its zone for another one, or for another try, else DEACTIVATING.
fn state_while(context: &LifecycleContext<'_>) -> State {
    let leaves = context.state() == State::Activating
        || context.zone_awaited().is_some()
        || context.status.leaves_to_come_back();
    let moves = leaves && context.observation.account.desired() == DesiredState::Active;
    if moves { State::Activating } else { State::Deactivating }
}

/// Its agents were told to drop it because they reached another cluster than it is bound to, or are in different ones. It
/// stays bound: only INACTIVE by wish unbinds it.
fn stays_failed(context: &LifecycleContext<'_>) -> bool {
    let class = context.failure_class();
    matches!(class, Some(FailureClass::ClusterMismatch | FailureClass::ZoneSpansClusters))
        && context.observation.account.desired() == DesiredState::Active
}
