//! Taking an account back from its zone.

use super::Decision;
use super::active::{Due, due};
use super::observation::{Blocker, Context, earlier};
use super::write::StatusWrite;
use crate::account::state::{DesiredState, State};

/// The write that begins a revoke.
pub(super) fn begin(context: &Context<'_>, state: State) -> StatusWrite {
    StatusWrite::to(context, state).revoking()
}

/// A revoke is under way, and is finished before anything else.
pub(super) fn decide(context: &Context<'_>) -> Decision {
    let failed = context.state() == State::Failed;
    match context.revoke_blockers() {
        None => StatusWrite::to(context, state_after(context)).released().into(),
        Some(_) if failed => match due(context) {
            Due::Now => begin(context, state_while(context)).into(),
            Due::At(tick) => Decision::wait_until(tick),
            Due::OnChange => Decision::nothing(),
        },
        Some(Blocker::Failed(failure)) => StatusWrite::failed(context, &failure).into(),
        Some(Blocker::Waiting(_)) if context.retry_asked().is_some() => {
            StatusWrite::acknowledged(context).into()
        }
        Some(Blocker::Waiting(wake)) => Decision { action: None, wake: earlier(wake, None) },
    }
}

/// Nobody has the grant, and the account is to be INACTIVE: say so once.
pub(super) fn rest(context: &Context<'_>) -> Decision {
    let said = context.status.state == Some(State::Inactive)
        && !context.generation_is_new()
        && context.retry_asked().is_none();
    let ready = context.status.conditions.iter().any(|one| one.type_ == "Ready" && one.status == "True");
    if said && ready {
        Decision::nothing()
    } else {
        StatusWrite::to(context, State::Inactive).released().into()
    }
}

/// A zone that is left for another is followed by a new choice of zone; anything else ends INACTIVE, and what is
/// desired is taken up from there.
fn state_after(context: &Context<'_>) -> State {
    let leaves_for_another_zone = context.observation.account.desired() == DesiredState::Active
        && context.state() != State::Deactivating;
    if leaves_for_another_zone { State::ToMigrate } else { State::Inactive }
}

fn state_while(context: &Context<'_>) -> State {
    match context.observation.account.desired() {
        DesiredState::Active => State::Activating,
        DesiredState::Inactive => State::Deactivating,
    }
}
