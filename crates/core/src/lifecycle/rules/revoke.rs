//! Taking an account back from its zone, for whatever reason, and resting INACTIVE.

use super::Verdict;
use crate::failure::FailureClass;
use crate::lifecycle::Action;
use crate::lifecycle::facts::{Facts, earlier};
use crate::lifecycle::retry_schedule::{Due, due};
use crate::lifecycle::status_change::StatusChange;
use crate::lifecycle::zone_reports::{Blocker, RevokeProgress};
use crate::{DesiredState, GrantPhase, State};

/// Reads the sessions of the zone from the API server before the revoke ends: a watch may not have shown all.
pub(super) fn confirm(facts: &Facts<'_>) -> Option<Verdict> {
    (*facts.revoke()? == RevokeProgress::ToConfirm).then(|| Action::ReadSessions.into())
}

/// Ends the revoke of an account whose agents reached another cluster than it is bound to, or are in different ones. It
/// stays bound: only INACTIVE by wish unbinds it.
pub(super) fn end_in_failed(facts: &Facts<'_>) -> Option<Verdict> {
    let is_over = *facts.revoke()? == RevokeProgress::Over;
    let class = facts.failure_class();
    let stays = matches!(class, Some(FailureClass::ClusterMismatch | FailureClass::ZoneSpansClusters))
        && facts.observation.account.desired() == DesiredState::Active;
    (is_over && stays && !facts.starts_anew()).then(|| StatusChange::failed_as_before().released().into())
}

/// Ends the revoke. A zone that is left for another is followed by a new choice of zone; anything else ends INACTIVE,
/// and what is desired is taken up from there.
pub(super) fn end(facts: &Facts<'_>) -> Option<Verdict> {
    let after = match facts.state() {
        State::Deactivating => State::Inactive,
        _ if leaves_to_come_back(facts) => State::ToMigrate,
        _ => State::Inactive,
    };
    let is_over = *facts.revoke()? == RevokeProgress::Over;
    is_over.then(|| StatusChange::to(after).released().into())
}

/// Asks again in FAILED, when that is due; the last agent's answer or absence ends the revoke at any time.
pub(super) fn try_again(facts: &Facts<'_>) -> Option<Verdict> {
    let blocker = facts.blocker()?;
    if facts.state() != State::Failed {
        return None;
    }
    Some(match due(facts) {
        Due::Now if leaves_to_come_back(facts) => StatusChange::to(State::Activating).revoking().into(),
        Due::Now => StatusChange::to(State::Deactivating).revoking().into(),
        _ if facts.generation_is_new() => StatusChange::acknowledged().into(),
        Due::At(tick) => Verdict::Wait(earlier(Some(tick), blocker.wake())),
        Due::OnChange => Verdict::Wait(blocker.wake()),
    })
}

/// Makes a revoke that began for another reason a deactivation, when the account is not wanted any more.
pub(super) fn turn_into_deactivation(facts: &Facts<'_>) -> Option<Verdict> {
    let is_undesired = facts.observation.account.desired() == DesiredState::Inactive;
    (is_undesired && facts.state() != State::Deactivating)
        .then(|| StatusChange::to(State::Deactivating).into())
}

/// Fails when an agent could not drop the account, or says nothing.
pub(super) fn fail(facts: &Facts<'_>) -> Option<Verdict> {
    match facts.blocker()? {
        Blocker::Failed(failure, _) => Some(StatusChange::failed(failure).into()),
        Blocker::Waiting(_) => None,
    }
}

/// Handles a retry that is asked for while all are asked already.
pub(super) fn acknowledge_retry(facts: &Facts<'_>) -> Option<Verdict> {
    facts.blocker()?;
    facts.retry_asked().map(|_| StatusChange::acknowledged().into())
}

/// Waits until all have dropped the account, or are gone.
pub(super) fn await_answers(facts: &Facts<'_>) -> Option<Verdict> {
    Some(Verdict::Wait(facts.blocker()?.wake()))
}

/// Takes the grant back from a zone, because the account is to be INACTIVE.
pub(super) fn deactivate(facts: &Facts<'_>) -> Option<Verdict> {
    (facts.status.phase() == GrantPhase::Open)
        .then(|| StatusChange::to(State::Deactivating).revoking().forgiven().into())
}

/// Says once that the account is INACTIVE by wish.
pub(super) fn become_inactive(facts: &Facts<'_>) -> Option<Verdict> {
    let said = facts.status.state == Some(State::Inactive)
        && !facts.generation_is_new()
        && facts.retry_asked().is_none();
    let ready = facts.status.conditions.iter().any(|one| one.type_ == "Ready" && one.status == "True");
    (!(said && ready)).then(|| StatusChange::to(State::Inactive).released().into())
}

/// Whether the account leaves its zone for another one, or for another try.
fn leaves_to_come_back(facts: &Facts<'_>) -> bool {
    let leaves = facts.state() == State::Activating
        || facts.zone_awaited().is_some()
        || facts.status.leaves_to_come_back();
    leaves && facts.observation.account.desired() == DesiredState::Active
}
