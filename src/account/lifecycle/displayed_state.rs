//! The state as REST and the row show it.

use super::retry;
use crate::account::state::{DesiredState, GrantPhase, State};
use crate::account::{KubesvcAccount, RETRY_ANNOTATION};

/// The state a caller sees: TO_MIGRATE, TO_DEACTIVATE or DELETING where what is desired, a deletion or a retry is not
/// yet handled; else the state of the status.
pub fn displayed_state(account: &KubesvcAccount) -> State {
    let status = account.status_or_default();
    let state = status.state();
    if account.is_being_deleted() {
        return if state == State::DeleteFailed && !retry_is_unhandled(account) {
            state
        } else {
            State::Deleting
        };
    }
    match account.desired() {
        DesiredState::Active => match state {
            State::Inactive => State::ToMigrate,
            State::Failed => failed_and_wanted(account, status.phase()),
            _ => state,
        },
        DesiredState::Inactive => match state {
            State::Active | State::Activating | State::Orphaned | State::ToMigrate => State::ToDeactivate,
            State::Failed => failed_and_unwanted(account, status.phase()),
            _ => state,
        },
    }
}

/// FAILED, and to be ACTIVE. A deactivation that failed is finished first.
fn failed_and_wanted(account: &KubesvcAccount, phase: GrantPhase) -> State {
    if !generation_is_unhandled(account) && !retry_is_unhandled(account) {
        return State::Failed;
    }
    if phase == GrantPhase::Revoking && !was_to_come_back(account) {
        State::Deactivating
    } else {
        State::ToMigrate
    }
}

/// FAILED, and to be INACTIVE. While a deactivation that failed is still wanted, only a retry changes what is shown.
fn failed_and_unwanted(account: &KubesvcAccount, phase: GrantPhase) -> State {
    if generation_is_unhandled(account) && (phase != GrantPhase::Revoking || was_to_come_back(account)) {
        State::ToDeactivate
    } else if retry_is_unhandled(account) {
        State::Deactivating
    } else {
        State::Failed
    }
}

/// Whether the zone had to let go of it for another reason than a deactivation.
fn was_to_come_back(account: &KubesvcAccount) -> bool {
    let (status, pinned) = (account.status_or_default(), account.spec.zone_id.as_deref());
    status.leaves_to_come_back() || (pinned.is_some() && pinned != status.granted_zone())
}

/// Whether the spec is newer than the status.
pub(crate) fn generation_is_unhandled(account: &KubesvcAccount) -> bool {
    account.status_or_default().observed_generation != account.generation()
}

/// Whether a retry was asked for and not acted on.
pub(crate) fn retry_is_unhandled(account: &KubesvcAccount) -> bool {
    let asked = account.annotation(RETRY_ANNOTATION).map(retry::mark);
    let handled = account.status.as_ref().and_then(|status| status.retry_handled.as_deref());
    asked.is_some() && asked.as_deref() != handled
}
