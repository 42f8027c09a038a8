//! Names that are taken: by another object, or by a row that is not ours.

use super::context::{Blocker, Context, Progress, earlier};
use super::observation::RowFact;
use super::write::Draft;
use super::{Action, Decision};
use crate::account::KubesvcAccount;
use crate::account::failure::{Failure, FailureClass};
use crate::account::precedence::HOLDER;
use crate::account::state::GrantPhase;

/// Two objects with one account name: one has it, and this one waits without a row and without a grant.
pub(super) fn duplicate(context: &Context<'_>, first: &str) -> Decision {
    let failure = name_is_taken(context.observation.account, first);
    let said = context.fails_already_with(&failure);
    match context.status.phase() {
        GrantPhase::Open => Draft::failed(context, &failure).revoking().into(),
        GrantPhase::Revoking => match context.revoke_progress() {
            Progress::Over => Draft::failed(context, &failure).released().into(),
            Progress::ToConfirm => Action::ReadSessions.into(),
            Progress::Blocked(_) if !said => Draft::failed(context, &failure).into(),
            Progress::Blocked(blocker) => still_revoking(context, &failure, &blocker),
        },
        GrantPhase::None if !said => Draft::failed(context, &failure).into(),
        GrantPhase::None if context.observation.row == RowFact::Present => Action::DeleteRows.into(),
        GrantPhase::None => Decision::nothing(),
    }
}

/// What is said of an object whose account name another one has, given as `NAMESPACE/NAME`. Who has it is read back from
/// the message.
pub(crate) fn name_is_taken(account: &KubesvcAccount, first: &str) -> Failure {
    let beside = first.split('/').next() == account.metadata.namespace.as_deref();
    let then = if beside {
        "delete one of the two, or give this one another spec.accountName"
    } else {
        "give this one another spec.accountName, or have the other deleted and then ask for a retry of this one"
    };
    Failure::new(
        FailureClass::DuplicateName,
        format!("account name {:?} is taken by the{HOLDER}{first}; {then}", account.account_name()),
    )
}

/// Who failed to drop it is asked again at the slowest pace.
fn still_revoking(context: &Context<'_>, failure: &Failure, blocker: &Blocker) -> Decision {
    let observation = context.observation;
    let again = observation.in_state_since.saturating_add(observation.policy.retry_max.max(1));
    match blocker {
        Blocker::Failed(..) if again <= observation.now => Draft::failed(context, failure).revoking().into(),
        Blocker::Failed(_, wake) => Decision { action: None, wake: earlier(Some(again), *wake) },
        Blocker::Waiting(wake) => Decision { action: None, wake: *wake },
    }
}

/// The database has a row of this name that somebody else wrote: no grant is opened and no row is written. A grant that
/// is open stays; it is somebody's edit of the table, and not of the account.
pub(super) fn foreign_row(context: &Context<'_>) -> Option<Decision> {
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
            Some(if said { Decision::nothing() } else { Draft::failed(context, &failure).into() })
        }
        // What is not known now is as it was.
        RowFact::Unavailable if context.failure_class() == Some(FailureClass::RowExists) => {
            Some(Decision::nothing())
        }
        _ => None,
    }
}
