//! The object, its name and its row, before a zone is looked for: names that are taken by another object or by a row
//! that is not ours, the beginning of a life, and the one kind of object that the operator deletes by itself.

use super::Verdict;
use crate::GrantPhase;
use crate::failure::{Failure, FailureClass};
use crate::lifecycle::Action;
use crate::lifecycle::facts::{Facts, earlier};
use crate::lifecycle::observation::{Rival, RowFact};
use crate::lifecycle::status_change::StatusChange;
use crate::lifecycle::zone_choice::ZoneRetention;
use crate::lifecycle::zone_reports::{Blocker, RevokeProgress};
use crate::name_precedence;

/// Writes down that another installation serves the account from now on, before anything else: the former one leaves it
/// alone only then.
pub(super) fn take_over(facts: &Facts<'_>) -> Option<Verdict> {
    let own = facts.observation.policy.installation.as_ref()?;
    let before = facts.status.operator.as_ref()?;
    (before != own).then(|| StatusChange::taken_over().into())
}

/// Deletes the object of an account of an agent's own file, when no agent lists it any more.
pub(super) fn delete_unlisted(facts: &Facts<'_>) -> Option<Verdict> {
    match ZoneRetention::of_static(facts) {
        ZoneRetention::Over if facts.observation.sessions_are_read => Some(Action::DeleteObject.into()),
        ZoneRetention::Over => Some(Action::ReadSessions.into()),
        ZoneRetention::Until(_) => None,
    }
}

/// Leaves the account name to the object that has it: this one waits without a grant, and then without a row.
pub(super) fn give_way(facts: &Facts<'_>) -> Option<Verdict> {
    let first = facts.observation.rival?;
    let failure = name_is_taken(facts, first);
    let said = facts.fails_already_with(&failure) && facts.status.name_holder.as_ref() == Some(&first.object);
    let failed = || StatusChange::failed(&failure).name_held_by(&first.object);
    Some(match (facts.status.phase(), facts.revoke()) {
        (GrantPhase::Open, _) => failed().revoking().into(),
        (_, Some(RevokeProgress::Over)) => failed().released().into(),
        (_, Some(RevokeProgress::ToConfirm)) => Action::ReadSessions.into(),
        _ if !said => failed().into(),
        (_, Some(RevokeProgress::Blocked(blocker))) => still_revoking(facts, failed(), blocker),
        (_, None) if facts.observation.row == RowFact::Present => {
            Action::DeleteRows { keeps_objects: false }.into()
        }
        (_, None) => Verdict::NOTHING,
    })
}

/// What is said of an object whose account name another one has.
fn name_is_taken(facts: &Facts<'_>, first: &Rival) -> Failure {
    let account = facts.observation.account;
    let beside = Some(first.object.namespace.as_str()) == account.metadata.namespace.as_deref();
    let whose = if first.is_static { facts.of_whose_file() } else { String::new() };
    let then = match (first.is_static, beside) {
        (true, true) => "take it out of that file, or give this one another spec.accountName",
        (true, false) => {
            "give this one another spec.accountName, or take the account out of that file and then ask for a retry of this one"
        }
        (false, true) => "delete one of the two, or give this one another spec.accountName",
        (false, false) => {
            "give this one another spec.accountName, or have the other deleted and then ask for a retry of this one"
        }
    };
    let (name, object) = (account.account_name(), &first.object);
    Failure::new(
        FailureClass::DuplicateName,
        format!("account name {name:?} is taken by the object {object}{whose}; {then}"),
    )
}

/// Waits, though the name is free, until somebody asks for it: an object of another namespace had it. No object is named
/// as having it that has it no more.
pub(super) fn await_request(facts: &Facts<'_>) -> Option<Verdict> {
    if !name_precedence::awaits_request(facts.observation.account) {
        return None;
    }
    let name = facts.observation.account.account_name();
    let message = format!(
        "account name {name:?} was taken by an object of another namespace, which has it no more; this one takes it \
         only when it is asked to: ask for a retry, or change its spec"
    );
    Some(fail_once(facts, &Failure::new(FailureClass::DuplicateName, message)))
}

/// Leaves a row of this name alone that somebody else wrote: no grant is opened and no row is written. A grant that is
/// open stays; it is somebody's edit of the table, and not of the account. What is not known now is as it was.
pub(super) fn respect_foreign_row(facts: &Facts<'_>) -> Option<Verdict> {
    if facts.status.phase() != GrantPhase::None {
        return None;
    }
    match facts.observation.row {
        RowFact::Foreign => {
            let message = format!(
                "table kubesvc_accounts has a row {:?} that is not of kubesvc; delete the row, set \
                 kubesvc.dynamicAccounts.adoptRows: true to have such rows taken over, or give this account another \
                 spec.accountName",
                facts.observation.account.account_name()
            );
            Some(fail_once(facts, &Failure::new(FailureClass::RowExists, message)))
        }
        RowFact::Unavailable if facts.failure_class() == Some(FailureClass::RowExists) => {
            Some(Verdict::NOTHING)
        }
        _ => None,
    }
}

/// Waits for the object that loses the name to this one: its agents and its row have it still.
pub(super) fn await_release(facts: &Facts<'_>) -> Option<Verdict> {
    let waits = facts.observation.name_is_held && facts.status.phase() == GrantPhase::None;
    waits.then(|| Verdict::wait_until(facts.observation.now + 1))
}

/// Puts our finalizer on, before anything of the account exists elsewhere.
pub(super) fn add_finalizer(facts: &Facts<'_>) -> Option<Verdict> {
    (!facts.observation.account.has_finalizer()).then(|| Action::AddFinalizer.into())
}

/// Inserts the row, before a zone is given the grant.
pub(super) fn insert_row(facts: &Facts<'_>) -> Option<Verdict> {
    (facts.observation.row == RowFact::Absent).then(|| Action::InsertRow.into())
}

/// FAILED, unless that is said already.
fn fail_once(facts: &Facts<'_>, failure: &Failure) -> Verdict {
    if facts.fails_already_with(failure) { Verdict::NOTHING } else { StatusChange::failed(failure).into() }
}

/// Asks an agent that failed to drop it again, at the slowest pace.
fn still_revoking(facts: &Facts<'_>, failed: StatusChange, blocker: &Blocker) -> Verdict {
    let observation = facts.observation;
    let again = observation.in_state_since.saturating_add(observation.policy.retry_max.max(1));
    match blocker {
        Blocker::Failed(..) if again <= observation.now => failed.revoking().into(),
        Blocker::Failed(_, wake) => Verdict::Wait(earlier(Some(again), *wake)),
        Blocker::Waiting(wake) => Verdict::Wait(*wake),
    }
}
