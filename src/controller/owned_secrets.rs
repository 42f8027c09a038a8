//! Secrets created by kubesvc: deletion at the end of their account, and update of those created by an earlier
//! version.

use std::time::Duration;

use futures::{StreamExt as _, stream};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::Controller;
use super::act::ActionOutcome;
use kubesvc_core::KubesvcAccount;
use kubesvc_core::owned_secret::is_named_by;
use kubesvc_runtime::account_secret::{AccountSecret, AccountSecretError, SecretWriter};
use kubesvc_runtime::background_tasks::{AttemptOutcome, TaskSpec};
use kubesvc_runtime::kube_access::{ErrorClass, KubeError};
use kubesvc_runtime::telemetry::errors::chain;
use kubesvc_runtime::telemetry::outages::warn_unless_away;

/// Maximum number of Secrets of an earlier version updated concurrently.
const MAX_CONCURRENT_UPDATES: usize = 8;
/// Delay before failed updates are retried.
const RETRY_DELAY: Duration = Duration::from_secs(5);
/// Maximum number of Secrets taken from the work queue at once.
const MAX_SECRETS_PER_BATCH: usize = 1024;

impl Controller {
    /// Deletes the Secret that was created for an account, as the last step before its finalizer is removed. Returns
    /// a conflict if the account was replaced by another. A refusal to delete the Secret does not keep the account.
    pub(super) async fn delete_secret(
        &self,
        account: &KubesvcAccount,
    ) -> Result<ActionOutcome, AccountSecretError> {
        if account.is_static() {
            return Ok(ActionOutcome::Done); // Static accounts have no such Secret.
        }
        match self.secret(account, SecretWriter::CONTROLLER).delete_with(account).await {
            Ok(true) => Ok(ActionOutcome::Done),
            Ok(false) => Ok(ActionOutcome::Conflict),
            Err(AccountSecretError::Api(error)) if is_refused(&error) => {
                if is_named_by(account) {
                    warn!(
                        account = account.account_name(),
                        why = error.refusal(),
                        "the Secret that was created for the account may outlive it"
                    );
                }
                Ok(ActionOutcome::Done)
            }
            Err(error) => Err(error),
        }
    }

    /// The Secret of an account.
    pub(super) fn secret<'a>(&self, account: &'a KubesvcAccount, writer: SecretWriter) -> AccountSecret<'a> {
        let ObjectMeta { namespace, name, .. } = &account.metadata;
        let place = (namespace.as_deref().unwrap_or_default(), name.as_deref().unwrap_or_default());
        AccountSecret::of(&self.context.kube, place, writer)
    }

    /// Brings a Secret that an earlier version created for an account up to date.
    async fn update_secret(&self, account: &KubesvcAccount) -> Result<(), AccountSecretError> {
        if self.secret(account, SecretWriter::CONTROLLER).update().await? {
            info!(
                account = account.account_name(),
                "removed the owner of a Secret and set the labels of its account"
            );
        }
        Ok(())
    }
}

/// Whether the API server permanently refuses a request about a Secret.
fn is_refused(error: &KubeError) -> bool {
    error.request().kind == "Secret" && error.class() != ErrorClass::Retry
}

/// Updates Secrets of an earlier version as the watch shows them. Only those that an account names: the others are
/// left to the garbage collector.
pub(super) async fn keep_updated(controller: &Controller, stop: &CancellationToken) {
    let context = &controller.context;
    let task = TaskSpec::new("outdated Secrets", "Brings Secrets of an earlier version up to date");
    let task = task.woken_by(&context.outdated_secrets).batch(MAX_SECRETS_PER_BATCH).without_deadline();
    let task = task.retry_delays(RETRY_DELAY, RETRY_DELAY).logs_itself();
    let update = |secrets: Vec<(String, String)>| async move {
        let failed = update(controller, &secrets).await;
        let Some(((namespace, secret), error)) = failed.first() else { return AttemptOutcome::Done };
        let error = chain(error);
        warn_unless_away!(namespace, secret, failed = failed.len(), error, "cannot update Secrets; retrying");
        AttemptOutcome::Failed(failed.into_iter().map(|(key, _)| key).collect(), error)
    };
    context.tasks.drive(task, stop, update).await;
}

/// Returns the Secrets that could not be updated, with their errors.
async fn update(
    controller: &Controller,
    secrets: &[(String, String)],
) -> Vec<((String, String), AccountSecretError)> {
    let mut named = Vec::new();
    for key in secrets {
        let accounts = controller.context.accounts.by_secret(&key.0, &key.1);
        let own = accounts.into_iter().filter(|account| is_named_by(account));
        named.extend(own.map(|account| (key.clone(), account)));
    }
    let updates = named
        .into_iter()
        .map(|(key, account)| async move { (key, controller.update_secret(&account).await) });
    let mut updates = stream::iter(updates).buffer_unordered(MAX_CONCURRENT_UPDATES);
    let mut failed = Vec::new();
    while let Some((key, result)) = updates.next().await {
        failed.extend(result.err().map(|error| (key, error)));
    }
    failed
}
