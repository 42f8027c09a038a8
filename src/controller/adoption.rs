//! Turns foreign rows into accounts if `kubesvc.dynamicAccounts.adoptRows` is set: rows of `kubesvc_accounts` without
//! a uid, and rows of the vendor's table, which had that name before it was renamed.
//!
//! Each write leaves a state from which the next pass continues:
//!
//! | written | if the process dies right after it |
//! |---|---|
//! | the Secret, if the row holds a kubeconfig (`adopt-secret`) | no object has the name, so the row is read again |
//! | the object (`adopt-create`) | the row is still foreign: the object takes it like any other account takes its row |
//! | the row, replacing the foreign one (`row-adopt`) | all is done |
//!
//! Only that last commit removes anything from the tables, so a row that cannot be read loses nothing.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt as _, stream};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::Controller;
use super::account_rows::{ROW_COMPARISON_INTERVAL, calls_for_row};
use super::act::ActionError;
use crate::informers::AccountKey;
use kubesvc_core::account_row::ForeignRow;
use kubesvc_core::lifecycle::RowFact;
use kubesvc_core::owned_secret::Contents;
use kubesvc_core::row_adoption::Adoption;
use kubesvc_core::{KubesvcAccount, ORIGIN_LABEL, ORIGIN_MIGRATED, account_row, not_watched, row_adoption};
use kubesvc_runtime::account_secret::{AccountSecretError, SecretWriter};
use kubesvc_runtime::background_tasks::{AttemptOutcome, TaskSpec};
use kubesvc_runtime::kube_access::{ErrorClass, WriteOptions};
use kubesvc_runtime::rate_limit::Urgency;
use kubesvc_runtime::telemetry::errors::chain;
use kubesvc_runtime::telemetry::outages::warn_unless_away;
use kubesvc_store::StoreError;

/// Maximum number of rows adopted concurrently.
const MAX_CONCURRENT_ROWS: usize = 8;
/// Delay after the first failed pass.
const FIRST_RETRY_DELAY: Duration = Duration::from_secs(2);
/// Maximum delay after failed passes, before jitter of up to as much again.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(30);

/// Where the objects of adopted rows are created.
#[derive(Clone, Debug)]
pub struct AdoptedRows {
    /// Namespace of the objects.
    pub namespace: String,
    /// Whether the operator watches the namespace.
    pub watched: bool,
}

/// Result of adopting a row.
enum AdoptionOutcome {
    /// The row belongs to an account, or will.
    Taken,
    /// The row is left alone, for this reason.
    Left(String),
}

/// Adopts foreign rows at the start and once a minute, while the database is available.
pub(super) async fn run(controller: &Controller, stop: &CancellationToken) {
    let context = &controller.context;
    let Some(home) = &context.adopts else { return };
    let task = TaskSpec::new("row adoption", "Makes accounts of rows that are not of kubesvc");
    let task = task.every(ROW_COMPARISON_INTERVAL).at_start().on_change(context.projection.watch());
    let task =
        task.without_deadline().retry_delays(FIRST_RETRY_DELAY, MAX_RETRY_DELAY).log_failure(|error| {
            warn_unless_away!(error, "cannot adopt rows that are not kubesvc's; retrying");
        });
    let adopt = |_: Vec<()>| async {
        if context.projection.problem().is_some() {
            // The next run follows as soon as the database is available.
            return AttemptOutcome::Done;
        }
        adopt_all(controller, home)
            .await
            .map_or_else(|error| AttemptOutcome::failed(chain(&error)), |()| AttemptOutcome::Done)
    };
    context.tasks.drive(task, stop, adopt).await;
}

/// Tries all rows once. An error ends the pass, because it would affect the other rows too.
async fn adopt_all(controller: &Controller, home: &AdoptedRows) -> Result<(), ActionError> {
    let (foreign, vendor) =
        (controller.context.store.foreign().await?, controller.context.store.vendor().await?);
    let of_vendor = foreign.len();
    let mut names = HashSet::new();
    let rows: Vec<(usize, ForeignRow)> = foreign
        .into_iter()
        .chain(vendor)
        .enumerate()
        .filter(|(_, row)| names.insert(row.name.clone()))
        .collect();
    let attempts = rows.into_iter().map(|(at, row)| async move {
        let outcome = adopt_row(controller, home, &row, at >= of_vendor).await;
        outcome.map(|outcome| (row.name, outcome))
    });
    let mut attempts = stream::iter(attempts).buffer_unordered(MAX_CONCURRENT_ROWS);
    let mut left = BTreeMap::new();
    while let Some(attempt) = attempts.next().await {
        if let (name, AdoptionOutcome::Left(why)) = attempt? {
            left.insert(name, why);
        }
    }
    controller.context.metrics.unreadable_rows.set(i64::try_from(left.len()).unwrap_or(i64::MAX));
    controller.skipped.log_new(left);
    controller.context.metrics.adoption_passes.inc();
    Ok(())
}

async fn adopt_row(
    controller: &Controller,
    home: &AdoptedRows,
    row: &ForeignRow,
    of_vendor: bool,
) -> Result<AdoptionOutcome, ActionError> {
    if let Some(account) = controller.context.accounts.by_account_name(&row.name).first() {
        controller.give(account, of_vendor).await;
        return Ok(AdoptionOutcome::Taken);
    }
    let adoption = match row_adoption::adopt(row, &home.namespace) {
        Ok(adoption) => adoption,
        Err(why) => return Ok(AdoptionOutcome::Left(why.to_string())),
    };
    if !home.watched {
        return Ok(AdoptionOutcome::Left(not_watched(&home.namespace)));
    }
    if let Some(other) = controller.context.accounts.get(&AccountKey::of(&adoption.object)) {
        let (key, other) = (AccountKey::of(&other), other.account_name());
        return Ok(AdoptionOutcome::Left(format!(
            "the object {key} is already the account {other:?}; delete one of the two"
        )));
    }
    controller.make(&adoption).await
}

impl Controller {
    /// Lets an existing account take the row of its name.
    async fn give(&self, account: &Arc<KubesvcAccount>, of_vendor: bool) {
        let fact = self.context.projection.fact(account.uid(), account.account_name());
        if of_vendor && fact == RowFact::Present && calls_for_row(&self.context, account) {
            // The vendor's row is deleted last, since only it still records where the account came from.
            if let Err(error) = self.context.projection.adopt(account_row::of(account)).await {
                warn!(account = account.account_name(), error = %chain(&error), "cannot take over the vendor's row yet");
            }
            return;
        }
        // The cause of an earlier refusal may be gone.
        self.transient_states.update(account.uid(), |transient_state| transient_state.row_refused = false);
        self.schedule.wakes.wake(AccountKey::of(account));
    }

    /// Creates the account for a row that has none.
    async fn make(&self, adoption: &Adoption) -> Result<AdoptionOutcome, ActionError> {
        let object = &adoption.object;
        let secret = self.secret(object, SecretWriter::CONTROLLER);
        let contents: Contents<'_> =
            adoption.kubeconfigs.iter().map(|(key, contents)| (*key, contents)).collect();
        let options = WriteOptions::with(Urgency::Rest).at("adopt-create");
        match secret.create_account(&contents, object, options).await {
            Ok(Some(_)) => {
                self.context.metrics.adopted_rows.inc();
                info!(account = object.account_name(), object = %AccountKey::of(object), "adopted a row as an account");
                Ok(AdoptionOutcome::Taken)
            }
            // Someone else created it; the watch will show to whom it belongs.
            Ok(None) | Err(AccountSecretError::Taken) => Ok(AdoptionOutcome::Taken),
            Err(AccountSecretError::Api(error)) => {
                let error = error.without_message();
                if error.class() == ErrorClass::Retry {
                    return Err(error.into());
                }
                let (kind, name, why) = (&error.request().kind, &error.request().name, error.refusal());
                Ok(AdoptionOutcome::Left(format!("its {kind} {name} is refused: {why}")))
            }
            Err(error) if error.is_transient() => Err(error.into()),
            Err(error) => Ok(AdoptionOutcome::Left(error.to_string())),
        }
    }

    /// Writes the row of an account. Replaces a foreign row if adoption is enabled.
    pub(super) async fn take_row(&self, account: &KubesvcAccount) -> Result<(), StoreError> {
        let migrated = account.label(ORIGIN_LABEL) == Some(ORIGIN_MIGRATED);
        let projection = &self.context.projection;
        let foreign = projection.fact(account.uid(), account.account_name()) == RowFact::Foreign;
        let row = account_row::of(account);
        if self.context.adopts.is_some() && (foreign || migrated) {
            return projection.adopt(row).await;
        }
        projection.insert(row).await
    }
}

/// Rows that adoption cannot take, by name, with the reason last logged. Each is logged once for each reason. Bounded
/// by the number of rows.
#[derive(Debug, Default)]
pub(super) struct SkippedRows(Mutex<BTreeMap<String, String>>);

impl SkippedRows {
    /// Records the current rows and logs those that are new or have a new reason.
    fn log_new(&self, rows: BTreeMap<String, String>) {
        for (row, why) in self.not_logged(rows) {
            warn!(row, why, "a foreign row cannot become an account; leaving it unchanged");
        }
    }

    fn not_logged(&self, rows: BTreeMap<String, String>) -> BTreeMap<String, String> {
        let mut logged = self.0.lock();
        let mut new_rows = rows.clone();
        new_rows.retain(|name, why| logged.get(name) != Some(why));
        *logged = rows;
        new_rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_skipped_row_is_logged_once_for_each_reason() {
        let rows = |all: &[(&str, &str)]| -> BTreeMap<String, String> {
            all.iter().map(|(name, why)| ((*name).to_owned(), (*why).to_owned())).collect()
        };
        let left = SkippedRows::default();
        assert_eq!(left.not_logged(rows(&[("a", "x"), ("b", "x")])), rows(&[("a", "x"), ("b", "x")]));
        assert_eq!(left.not_logged(rows(&[("a", "x"), ("b", "y")])), rows(&[("b", "y")]));
        assert_eq!(left.not_logged(rows(&[("b", "y")])), rows(&[]));
        assert_eq!(left.not_logged(rows(&[("a", "x"), ("b", "y")])), rows(&[("a", "x")]), "it was gone");
    }
}
