//! The invariants that hold at each write and after each step.

use std::collections::BTreeSet;

use crate::{GrantPhase, KubesvcAccount, KubesvcAccountStatus, State};

/// What must hold of a status that is written over another.
pub(super) fn status(
    account: &KubesvcAccount,
    new: &KubesvcAccountStatus,
    heard: &BTreeSet<(String, i64)>,
) -> Result<(), String> {
    let old = account.status_or_default();
    let hold =
        |holds: bool, what: &str| holds.then_some(()).ok_or_else(|| format!("{what}: {old:?} → {new:?}"));
    hold(*old != *new, "a write that changes nothing")?;
    hold(new.epoch >= old.epoch, "the epoch fell")?;
    phases(&old, new)?;
    let became_active = new.state() == State::Active && old.state() != State::Active;
    let said = heard.contains(&(account.uid().to_owned(), new.epoch.0));
    hold(!became_active || said, "ACTIVE without a word for this uid and epoch")?;
    hold(new.failed_count >= old.failed_count || may_reset(&old, new), "failedCount fell")?;
    let round = new.tried_zones.len() <= 3 && (new.tried_zones.is_empty() || new.state() != State::Active);
    hold(round, "a round that does not end")?;
    hold(fits(new), "a state that does not fit its grant")?;
    let told = |kind: &str| new.conditions.iter().any(|one| one.type_ == kind && one.status == "True");
    hold(!(told("Reconciling") && told("Stalled")), "Reconciling and Stalled")?;
    hold(new.observed_generation == account.generation(), "a generation that was not seen")
}

/// While agents wait to be registered nothing follows from that one is not there.
pub(super) fn queue(holds: bool, what: &str) -> Result<(), String> {
    holds.then_some(()).ok_or_else(|| format!("{what} while agents waited to be registered"))
}

fn phases(old: &KubesvcAccountStatus, new: &KubesvcAccountStatus) -> Result<(), String> {
    use GrantPhase::{None, Open, Revoking};
    let grew = new.epoch > old.epoch;
    let allowed = match (old.phase(), new.phase()) {
        (None, Open) | (Open, Revoking) => grew,
        (None, None) | (Revoking, None) | (Open, Open) | (Revoking, Revoking) => true,
        (None, Revoking) | (Open, None) | (Revoking, Open) => false,
    };
    let same_zone = match (old.granted_zone(), new.granted_zone()) {
        (Some(before), Some(after)) => before == after,
        _ => true,
    };
    if allowed && same_zone {
        Ok(())
    } else {
        Err(format!("the grant jumped: {:?} → {:?}", old.grant, new.grant))
    }
}

/// The resets: ACTIVE, INACTIVE, a retry that was asked for, a new generation, a new Secret, a revoke that begins.
fn may_reset(old: &KubesvcAccountStatus, new: &KubesvcAccountStatus) -> bool {
    // Agents are sent it, or asked about it.
    let is_tried = new.phase() == GrantPhase::Open || new.state() == State::ToMigrate;
    matches!(new.state(), State::Active | State::Inactive)
        || new.retry_handled != old.retry_handled
        || new.observed_generation != old.observed_generation
        || (is_tried && new.credential_version != old.credential_version)
        || (old.phase() == GrantPhase::None && new.state() == State::Failed)
        || (old.phase() == GrantPhase::Open && new.phase() == GrantPhase::Revoking)
}

fn fits(status: &KubesvcAccountStatus) -> bool {
    let phase = status.phase();
    match status.state() {
        State::Inactive | State::ToMigrate => phase == GrantPhase::None,
        State::Activating => phase != GrantPhase::None,
        State::Active | State::Orphaned => phase == GrantPhase::Open,
        State::Failed => true,
        State::Deactivating => phase == GrantPhase::Revoking,
        State::Deleting | State::DeleteFailed => phase != GrantPhase::Open,
        State::ToDeactivate => false,
    }
}

/// What must hold when the operator deletes an object by itself.
pub(super) fn deletion(account: &KubesvcAccount, listed: bool) -> Result<(), String> {
    if account.is_being_deleted() {
        return Err("what is being deleted was deleted again".to_owned());
    }
    match (account.is_static(), listed) {
        (false, _) => Err("an account that is not static was deleted".to_owned()),
        (true, true) => Err("a static account was deleted that an agent lists".to_owned()),
        (true, false) => Ok(()),
    }
}

/// An agent that has a static account in its file and is away for less than the cleanup keeps it.
pub(super) fn cleanup(over: bool) -> Result<(), String> {
    let what = "a static account was deleted while an agent that lists it may come back";
    over.then_some(()).ok_or_else(|| what.to_owned())
}

/// What must hold when our finalizer goes.
pub(super) fn finalizer_off(account: &KubesvcAccount, row: Option<&str>) -> Result<(), String> {
    let status = account.status_or_default();
    if !account.is_being_deleted() {
        return Err("the finalizer of a live object was taken off".to_owned());
    }
    if status.phase() != GrantPhase::None {
        return Err(format!("the finalizer went under the grant {:?}", status.grant));
    }
    if row == Some(account.uid()) { Err("the finalizer went before the row".to_owned()) } else { Ok(()) }
}

/// A row has its object, and a live object that was settled has its row.
pub(super) fn rows(row: Option<&str>, object: Option<&KubesvcAccount>) -> Result<(), String> {
    match (row, object) {
        (Some(row), Some(object)) if row == object.uid() => Ok(()),
        (Some(row), _) => Err(format!("the row of {row} outlives its object")),
        (None, _) => Ok(()),
    }
}
