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

mod secret;
mod skipped_rows;

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt as _, stream};
use kube::api::PostParams;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::act::{BoxedError, timed};
use super::leader::Controller;
use super::{ROW_COMPARISON_INTERVAL, calls_for_row};
use crate::account::adoption::{self, Adoption};
use crate::account::lifecycle::RowFact;
use crate::account::owned_secret::Contents;
use crate::account::row::{self, ForeignRow};
use crate::account::{FIELD_MANAGER, KubesvcAccount, ORIGIN_LABEL, ORIGIN_MIGRATED, not_watched};
use crate::background_tasks::{Outcome, TaskSpec};
use crate::budget::Urgency;
use crate::crash;
use crate::objects::AccountKey;
use crate::store::StoreError;
use crate::telemetry::errors::chain;
use crate::telemetry::outages::warn_unless_away;

use secret::SecretOutcome;
pub(super) use skipped_rows::SkippedRows;

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
            return Outcome::Done;
        }
        look(controller, home).await.map_or_else(|error| Outcome::failed(chain(&*error)), |()| Outcome::Done)
    };
    context.tasks.drive(task, stop, adopt).await;
}

/// Tries all rows once. An error ends the pass, because it would affect the other rows too.
async fn look(controller: &Controller, home: &AdoptedRows) -> Result<(), BoxedError> {
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
    let looks = rows.into_iter().map(|(at, row)| async move {
        let outcome = one(controller, home, &row, at >= of_vendor).await;
        outcome.map(|outcome| (row.name, outcome))
    });
    let mut looks = stream::iter(looks).buffer_unordered(MAX_CONCURRENT_ROWS);
    let mut left = BTreeMap::new();
    while let Some(looked) = looks.next().await {
        if let (name, AdoptionOutcome::Left(why)) = looked? {
            left.insert(name, why);
        }
    }
    controller.context.metrics.unreadable_rows.set(i64::try_from(left.len()).unwrap_or(i64::MAX));
    controller.skipped.log_new(left);
    controller.context.metrics.adoption_looks.inc();
    Ok(())
}

async fn one(
    controller: &Controller,
    home: &AdoptedRows,
    row: &ForeignRow,
    of_vendor: bool,
) -> Result<AdoptionOutcome, BoxedError> {
    if let Some(account) = controller.context.accounts.by_account_name(&row.name).first() {
        controller.give(account, of_vendor).await;
        return Ok(AdoptionOutcome::Taken);
    }
    let adoption = match adoption::adopt(row, &home.namespace) {
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
            if let Err(error) = self.context.projection.adopt(row::of(account)).await {
                warn!(account = account.account_name(), error = %chain(&error), "cannot take over the vendor's row yet");
            }
            return;
        }
        // The cause of an earlier refusal may be gone.
        self.memories.update(account.uid(), |memory| memory.row_refused = false);
        self.schedule.wakes.wake(AccountKey::of(account));
    }

    /// Creates the account for a row that has none.
    async fn make(&self, adoption: &Adoption) -> Result<AdoptionOutcome, BoxedError> {
        let object = &adoption.object;
        let mut prepared = None;
        let contents: Contents<'_> =
            adoption.kubeconfigs.iter().map(|(key, contents)| (*key, contents)).collect();
        if !contents.is_empty() {
            match self.keep_secret(object, &contents).await? {
                SecretOutcome::Ready(version) => prepared = Some((&contents, version)),
                SecretOutcome::Stands => return Ok(AdoptionOutcome::Taken),
                SecretOutcome::Refused(why) => return Ok(AdoptionOutcome::Left(why)),
            }
        }
        self.context.budget.take(Urgency::Rest).await;
        let parameters =
            PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
        crash::point("adopt-create:before");
        let answer = timed(self.api(object).create(&parameters, object)).await;
        crash::point("adopt-create:after");
        let refused = match answer {
            Ok(made) => {
                if let Some((contents, version)) = &prepared {
                    self.complete_secret(&made, contents, version).await?;
                }
                self.context.metrics.adopted_rows.inc();
                info!(account = object.account_name(), object = %AccountKey::of(object), "adopted a row as an account");
                return Ok(AdoptionOutcome::Taken);
            }
            Err(error) => PermanentRefusal::of(error)?,
        };
        if refused.code == 409 {
            // Someone else created it; the watch will show to whom it belongs.
            return Ok(AdoptionOutcome::Taken);
        }
        if let Some((_, version)) = &prepared {
            self.discard_secret(object, version).await?;
        }
        Ok(AdoptionOutcome::Left(format!("the Kubernetes API server rejected its object: {}", refused.why)))
    }

    /// Writes the row of an account. Replaces a foreign row if adoption is enabled.
    pub(super) async fn take_row(&self, account: &KubesvcAccount) -> Result<(), StoreError> {
        let migrated = account.label(ORIGIN_LABEL) == Some(ORIGIN_MIGRATED);
        let projection = &self.context.projection;
        let foreign = projection.fact(account.uid(), account.account_name()) == RowFact::Foreign;
        let row = row::of(account);
        if self.context.adopts.is_some() && (foreign || migrated) {
            return projection.adopt(row).await;
        }
        projection.insert(row).await
    }
}

/// A refusal by the API server that an immediate retry does not change.
pub(super) struct PermanentRefusal {
    pub(super) code: u16,
    /// Reason, without any value from the request.
    pub(super) why: String,
}

impl PermanentRefusal {
    /// Extracts a refusal. Returns any other error as `Err`; of a 429 or 5xx response only code and reason are kept.
    pub(super) fn of(error: BoxedError) -> Result<Self, BoxedError> {
        let Some(kube::Error::Api(status)) = error.downcast_ref::<kube::Error>() else { return Err(error) };
        if status.code == 429 || !(400..500).contains(&status.code) {
            return Err(format!("the API server answers {} {}", status.code, status.reason).into());
        }
        let causes = status.details.iter().flat_map(|details| &details.causes);
        let fields: Vec<&str> = causes.map(|cause| cause.field.as_str()).collect();
        let fields = if fields.is_empty() { String::new() } else { format!(" ({})", fields.join(", ")) };
        Ok(Self { code: status.code, why: format!("{} {}{fields}", status.code, status.reason) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: serde_json::Value) -> Result<PermanentRefusal, BoxedError> {
        let status = serde_json::from_value(status).expect("a status");
        PermanentRefusal::of(Box::new(kube::Error::Api(status)))
    }

    #[test]
    fn a_refusal_names_fields_and_not_their_values() {
        let refused = answer(serde_json::json!({
            "code": 422, "reason": "Invalid", "message": "s3cret", "details": {
                "causes": [{"reason": "r", "field": "spec.kinds", "message": "Invalid value: \"s3cret\""}]
            }
        }));
        let refused = refused.unwrap_or_else(|error| unreachable!("{error}"));
        assert_eq!((refused.code, refused.why.as_str()), (422, "422 Invalid (spec.kinds)"));
        for code in [429, 500, 503] {
            assert!(answer(serde_json::json!({"code": code})).is_err(), "{code} passes by itself");
        }
    }
}
