//! Which row each object calls for, and the periodic comparison with the rows that exist. Foreign rows of
//! `kubesvc_accounts` are left alone and reported in the log, unless they are [adopted](super::adoption).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{Controller, ControllerContext};
use crate::informers::AccountKey;
use kubesvc_core::account_row::AccountRow;
use kubesvc_core::failure::FailureClass;
use kubesvc_core::lifecycle::RowFact;
use kubesvc_core::name_precedence::awaits_request;
use kubesvc_core::{GrantPhase, KubesvcAccount, account_row};
use kubesvc_runtime::background_tasks::{AttemptOutcome, TaskSpec};
use kubesvc_runtime::telemetry::errors::chain;

/// Interval between comparisons of rows and objects.
pub(super) const ROW_COMPARISON_INTERVAL: Duration = Duration::from_secs(60);
/// Maximum number of names in one log line; its count covers all rows.
const MAX_NAMES_LOGGED: usize = 10;

/// Repairs rows that were edited, or that a crash left behind their object: immediately, then once a minute, and
/// whenever the database is available again.
pub(super) async fn repair(controller: &Controller, stop: &CancellationToken) {
    let projection = &controller.context.projection;
    let task = TaskSpec::new("row comparison", "Repairs rows that differ from their objects");
    let task = task.every(ROW_COMPARISON_INTERVAL).at_start().on_change(projection.watch());
    let task = task.without_deadline().logs_itself();
    controller.context.tasks.drive(task, stop, |_: Vec<()>| compare_rows(controller)).await;
}

async fn compare_rows(controller: &Controller) -> AttemptOutcome {
    let projection = &controller.context.projection;
    if projection.problem().is_some() {
        // The next run follows as soon as the database is available.
        return AttemptOutcome::Done;
    }
    let outcome = match projection.repair(|| expected_rows(&controller.context)).await {
        Ok(repair) if repair.is_nothing() => AttemptOutcome::Done,
        Ok(repair) => {
            info!(
                inserted = repair.inserted,
                updated = repair.updated,
                deleted = repair.deleted,
                refused = repair.refused,
                "repaired rows"
            );
            AttemptOutcome::Done
        }
        Err(error) => {
            warn!(error = %chain(&error), "cannot compare rows with their objects; retrying in a minute");
            AttemptOutcome::Refused(chain(&error))
        }
    };
    report_foreign(controller);
    // Accounts that waited for the database, or for a foreign row to go, can continue.
    let all = controller.context.accounts.all();
    let waiting = all.iter().filter(|one| one.is_being_deleted() || waits_for_its_row(one));
    controller.schedule.wakes.wake_all(waiting.map(|one| AccountKey::of(one)));
    outcome
}

/// Whether the account has no row because a foreign row has its name.
fn waits_for_its_row(account: &KubesvcAccount) -> bool {
    account.status_or_default().failure_class() == Some(FailureClass::RowExists)
}

/// The rows that should exist: one for each account that has kubesvc's finalizer and its name to itself. An account
/// that is being deleted keeps its row but gets no new one.
fn expected_rows(context: &ControllerContext) -> Vec<AccountRow> {
    let accounts = context.accounts.all();
    accounts
        .iter()
        .filter(|account| calls_for_row(context, account))
        .map(|account| account_row::of(account))
        .collect()
}

/// Whether an account should have a row, and the row can be written without the lifecycle.
pub(super) fn calls_for_row(context: &ControllerContext, account: &KubesvcAccount) -> bool {
    let may = match context.projection.fact(account.uid(), account.account_name()) {
        RowFact::Present => true,
        RowFact::Foreign => false,
        RowFact::Absent | RowFact::Unavailable => !account.is_being_deleted() && !waits_for_its_row(account),
    };
    may && account.has_finalizer() && rival_of(context, account).is_none() && !awaits_request(account)
}

/// The object that takes precedence over this one under the same account name, if any.
pub(super) fn rival_of(context: &ControllerContext, account: &KubesvcAccount) -> Option<Arc<KubesvcAccount>> {
    let first = context.accounts.by_account_name(account.account_name()).into_iter().next()?;
    context.accounts.precedence().takes_precedence(&first, account).then_some(first)
}

/// Whether another object still has a grant under the account's name, although this one takes precedence.
pub(super) fn is_name_held(context: &ControllerContext, account: &KubesvcAccount) -> bool {
    let namesakes = context.accounts.by_account_name(account.account_name());
    let precedence = context.accounts.precedence();
    let holds = |other: &Arc<KubesvcAccount>| {
        precedence.takes_precedence(account, other) && other.status_or_default().phase() != GrantPhase::None
    };
    namesakes.iter().any(holds)
}

/// Names of the foreign rows as last logged.
#[derive(Debug, Default)]
pub(super) struct ForeignRows(Mutex<BTreeSet<String>>);

impl ForeignRows {
    /// Records the current rows. Returns the text to log if they changed and there are any.
    fn update(&self, names: BTreeSet<String>) -> Option<String> {
        let mut known = self.0.lock();
        let is_new = *known != names && !names.is_empty();
        let text = is_new.then(|| first_of(&names));
        *known = names;
        text
    }
}

/// Updates the gauge of known foreign rows, and logs their names if they changed.
pub(super) fn report_foreign(controller: &Controller) {
    let names = controller.context.projection.foreign();
    let count = names.len();
    controller.context.metrics.foreign_rows.set(i64::try_from(count).unwrap_or(i64::MAX));
    // With adoption enabled, rows are logged one by one.
    if let Some(names) = controller.foreign_rows.update(names).filter(|_| controller.context.adopts.is_none())
    {
        warn!(
            rows = count,
            names, "table kubesvc_accounts contains rows that are not kubesvc's; leaving them unchanged"
        );
    }
}

/// The first names, quoted.
pub(super) fn first_of(names: &BTreeSet<String>) -> String {
    let named =
        names.iter().take(MAX_NAMES_LOGGED).map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ");
    if names.len() > MAX_NAMES_LOGGED { format!("{named}, …") } else { named }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(count: usize) -> BTreeSet<String> {
        (0..count).map(|number| format!("a{number:02}")).collect()
    }

    #[test]
    fn at_most_ten_foreign_rows_are_named_in_the_log() {
        assert_eq!(first_of(&names(2)), r#""a00", "a01""#);
        assert_eq!(first_of(&names(10)).matches("\"a").count(), 10);
        let many = first_of(&names(11));
        assert!(many.ends_with(r#""a09", …"#) && !many.contains("a10"), "{many}");
    }

    #[test]
    fn foreign_rows_are_logged_when_they_change() {
        let rows = ForeignRows::default();
        assert_eq!(rows.update(names(0)), None);
        assert!(rows.update(names(1)).is_some());
        assert_eq!(rows.update(names(1)), None, "it was told");
        assert!(rows.update(names(2)).is_some());
        assert_eq!(rows.update(names(0)), None, "there is nobody to name");
    }
}
