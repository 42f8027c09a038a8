//! Names that are taken: by another object, or by a row that is not ours.

use super::context::{Blocker, LifecycleContext, RevokeProgress, earlier};
use super::observation::{Rival, RowFact};
use super::write::StatusDraft;
use super::{Action, Decision, listed};
use crate::account::failure::{Failure, FailureClass};
use crate::account::state::GrantPhase;

/// Two objects with one account name: one has it, and this one waits without a row and without a grant.
pub(super) fn duplicate(context: &LifecycleContext<'_>, first: &Rival) -> Decision {
    let failure = name_is_taken(context, first);
    let said =
        context.fails_already_with(&failure) && context.status.name_holder.as_ref() == Some(&first.object);
    let failed = || StatusDraft::failed(context, &failure).name_held_by(&first.object);
    match context.status.phase() {
        GrantPhase::Open => failed().revoking().into(),
        GrantPhase::Revoking => match context.revoke_progress() {
            RevokeProgress::Over => failed().released().into(),
            RevokeProgress::ToConfirm => Action::ReadSessions.into(),
            RevokeProgress::Blocked(_) if !said => failed().into(),
            RevokeProgress::Blocked(blocker) => still_revoking(context, failed(), &blocker),
        },
        GrantPhase::None if !said => failed().into(),
        GrantPhase::None if context.observation.row == RowFact::Present => Action::DeleteRows.into(),
        GrantPhase::None => Decision::nothing(),
    }
}

/// What is said of an object whose account name another one has.
fn name_is_taken(context: &LifecycleContext<'_>, first: &Rival) -> Failure {
    let account = context.observation.account;
    let beside = Some(first.object.namespace.as_str()) == account.metadata.namespace.as_deref();
    let whose = if first.is_static { listed::of_whose_file(context) } else { String::new() };
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

/// The name is free, and this one takes it only when it is asked to: no object is named as having it that has it no more.
pub(super) fn waits(context: &LifecycleContext<'_>) -> Decision {
    let name = context.observation.account.account_name();
    let failure = Failure::new(
        FailureClass::DuplicateName,
        format!(
            "account name {name:?} was taken by an object of another namespace, which has it no more; this one takes it \
             only when it is asked to: ask for a retry, or change its spec"
        ),
    );
    if context.fails_already_with(&failure) {
        return Decision::nothing();
    }
    StatusDraft::failed(context, &failure).into()
}

/// Who failed to drop it is asked again at the slowest pace.
fn still_revoking(context: &LifecycleContext<'_>, failed: StatusDraft<'_>, blocker: &Blocker) -> Decision {
    let observation = context.observation;
    let again = observation.in_state_since.saturating_add(observation.policy.retry_max.max(1));
    match blocker {
        Blocker::Failed(..) if again <= observation.now => failed.revoking().into(),
        Blocker::Failed(_, wake) => Decision { action: None, wake: earlier(Some(again), *wake) },
        Blocker::Waiting(wake) => Decision { action: None, wake: *wake },
    }
}

/// The database has a row of this name that somebody else wrote: no grant is opened and no row is written. A grant that
/// is open stays; it is somebody's edit of the table, and not of the account.
pub(super) fn foreign_row(context: &LifecycleContext<'_>) -> Option<Decision> {
    if context.status.phase() != GrantPhase::None {
        return None;
    }
    match context.observation.row {
        RowFact::Foreign => {
            let failure = Failure::new(
                FailureClass::RowExists,
                format!(
                    "table kubesvc_accounts has a row {:?} that is not of kubesvc; delete the row, set kubesvc.dynamicAccounts.adoptRows: true to have such rows taken over, or give this account another spec.accountName",
                    context.observation.account.account_name()
                ),
            );
            let said = context.fails_already_with(&failure);
            Some(if said { Decision::nothing() } else { StatusDraft::failed(context, &failure).into() })
        }
        // What is not known now is as it was.
        RowFact::Unavailable if context.failure_class() == Some(FailureClass::RowExists) => {
            Some(Decision::nothing())
        }
        _ => None,
    }
}
