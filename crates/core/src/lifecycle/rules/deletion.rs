//! The end of an account: the grant is revoked, then the rows go, then the finalizer.

use super::Verdict;
use crate::lifecycle::Action;
use crate::lifecycle::facts::{Facts, earlier};
use crate::lifecycle::observation::RowFact;
use crate::lifecycle::retry_schedule::{Due, due};
use crate::lifecycle::status_change::StatusChange;
use crate::lifecycle::zone_reports::{Blocker, RevokeProgress};
use crate::{GrantPhase, State};

/// Deletes the row of an object without our finalizer, which someone took off or which never was on: no row outlives its
/// object.
pub(super) fn delete_row_left_behind(facts: &Facts<'_>) -> Option<Verdict> {
    if facts.observation.account.has_finalizer() {
        return None;
    }
    let is_left = facts.observation.row == RowFact::Present;
    Some(if is_left { Action::DeleteRows { keeps_objects: false }.into() } else { Verdict::NOTHING })
}

/// Takes the grant back.
pub(super) fn begin_revoke(facts: &Facts<'_>) -> Option<Verdict> {
    (facts.status.phase() == GrantPhase::Open).then(|| StatusChange::to(State::Deleting).revoking().into())
}

/// Ends the revoke when all have dropped the account, or somebody forces it.
pub(super) fn end_revoke(facts: &Facts<'_>) -> Option<Verdict> {
    let progress = facts.revoke()?;
    (facts.is_forced() || *progress == RevokeProgress::Over)
        .then(|| StatusChange::to(State::Deleting).released().into())
}

/// Makes a revoke that began for another reason one of the deletion: an agent that failed is asked again, one that is
/// asked already is waited for.
pub(super) fn take_over_revoke(facts: &Facts<'_>) -> Option<Verdict> {
    let blocker = facts.blocker()?;
    if matches!(facts.state(), State::Deleting | State::DeleteFailed) {
        return None;
    }
    let change = StatusChange::to(State::Deleting);
    Some(match blocker {
        Blocker::Failed(..) => change.revoking().into(),
        Blocker::Waiting(_) => change.into(),
    })
}

/// Asks again in DELETE_FAILED, when that is due.
pub(super) fn revoke_again(facts: &Facts<'_>) -> Option<Verdict> {
    let blocker = facts.blocker()?;
    if facts.state() != State::DeleteFailed {
        return None;
    }
    Some(match due(facts) {
        Due::Now => StatusChange::to(State::Deleting).revoking().into(),
        Due::At(tick) => Verdict::Wait(earlier(Some(tick), blocker.wake())),
        Due::OnChange => Verdict::Wait(blocker.wake()),
    })
}

/// Deletes the row, when no zone has the grant.
pub(super) fn delete_row(facts: &Facts<'_>) -> Option<Verdict> {
    let is_there = facts.status.phase() == GrantPhase::None && facts.observation.row == RowFact::Present;
    is_there.then(|| Action::DeleteRows { keeps_objects: waits_for_its_agents(facts) }.into())
}

/// Takes the finalizer off, when no zone has the grant and there is no row of ours. Whether there is one must be known.
pub(super) fn remove_finalizer(facts: &Facts<'_>) -> Option<Verdict> {
    let is_gone = matches!(facts.observation.row, RowFact::Absent | RowFact::Foreign);
    (facts.status.phase() == GrantPhase::None && is_gone).then(|| Action::RemoveFinalizer.into())
}

/// Whether the account goes only because the agents that have it in their file are away, and its cached objects may wait
/// for them. Read from what is observed now: the deletion itself carries no reason.
fn waits_for_its_agents(facts: &Facts<'_>) -> bool {
    let (observation, account) = (facts.observation, facts.observation.account);
    let zone = account.spec.zone_id.as_ref().or(facts.status.zone_id.as_ref());
    let Some(zone) = zone.filter(|_| account.is_static() && !observation.policy.clean_unused_accounts) else {
        return false;
    };
    facts.gone_since(zone).is_some() || facts.left_listing_it(zone).is_some()
}
