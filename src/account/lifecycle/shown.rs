//! The state as REST and the row show it.

use crate::account::state::{DesiredState, GrantPhase, State};
use crate::account::{KubesvcAccount, RETRY_ANNOTATION};

/// The state a caller sees: TO_MIGRATE, TO_DEACTIVATE or DELETING where what is desired, a deletion or a retry is not
/// yet handled; else the state of the status.
pub fn shown(account: &KubesvcAccount) -> State {
    let status = account.status_or_default();
    let state = status.state();
    if account.is_being_deleted() {
        return if state == State::DeleteFailed && !retry_is_unhandled(account) {
            state
        } else {
            State::Deleting
        };
    }
    let unhandled = status.observed_generation != account.generation();
    match account.desired() {
        DesiredState::Active => match state {
            State::Inactive => State::ToMigrate,
            State::Failed if status.phase() == GrantPhase::Revoking && !retry_is_unhandled(account) => state,
            State::Failed if unhandled || retry_is_unhandled(account) => State::ToMigrate,
            _ => state,
        },
        DesiredState::Inactive => match state {
            State::Active | State::Activating | State::Orphaned | State::ToMigrate => State::ToDeactivate,
            State::Failed if unhandled && status.phase() != GrantPhase::Revoking => State::ToDeactivate,
            State::Failed if unhandled || retry_is_unhandled(account) => State::Deactivating,
            _ => state,
        },
    }
}

fn retry_is_unhandled(account: &KubesvcAccount) -> bool {
    let asked = account.annotation(RETRY_ANNOTATION);
    asked.is_some() && asked != account.status.as_ref().and_then(|status| status.retry_handled.as_deref())
}
