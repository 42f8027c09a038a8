//! Secrets created by kubesvc: deletion at the end of their account, and update of those created by an earlier
//! version.

use std::time::Duration;

use futures::{StreamExt as _, stream};
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::act::{ActionOutcome, BoxedError, timed};
use super::adoption::PermanentRefusal;
use super::leader::Controller;
use crate::account::owned_secret::{self, ObjectName, SecretVersion, is_named_by, is_ours};
use crate::account::{KubesvcAccount, names};
use crate::background_tasks::{Outcome, TaskSpec};
use crate::budget::Urgency;
use crate::crash;
use crate::telemetry::errors::chain;
use crate::telemetry::outages::warn_unless_away;

/// Maximum number of attempts at a write that conflicts with other writes of the same Secret.
const MAX_WRITE_ATTEMPTS: usize = 5;
/// Maximum number of Secrets of an earlier version updated concurrently.
const MAX_CONCURRENT_UPDATES: usize = 8;
/// Delay before failed updates are retried.
const RETRY_DELAY: Duration = Duration::from_secs(5);
/// Maximum number of Secrets taken from the wake set at once.
const MAX_SECRETS_PER_BATCH: usize = 1024;

/// The API server's response about a Secret. A refusal contains nothing of the request.
pub(super) enum SecretResponse<T> {
    Done(T),
    /// The Secret already exists, has another version, or is gone.
    Changed,
    Refused(String),
}

impl Controller {
    /// Deletes the Secret that was created for an account, as the last step before its finalizer is removed. Returns
    /// a conflict if the account was replaced by another. A refusal to delete the Secret does not keep the account.
    pub(super) async fn delete_secret(&self, account: &KubesvcAccount) -> Result<ActionOutcome, BoxedError> {
        if account.is_static() {
            return Ok(ActionOutcome::Done); // Static accounts have no such Secret.
        }
        let place @ (namespace, object) = place(account);
        let (api, name) = (self.secrets(namespace), names::credential_secret_name(object));
        for _ in 0..MAX_WRITE_ATTEMPTS {
            let read = match judge(timed(api.get_metadata(&name)).await)? {
                SecretResponse::Done(secret) => secret.metadata,
                SecretResponse::Changed => return Ok(ActionOutcome::Done),
                SecretResponse::Refused(why) => {
                    outlives(account, &why);
                    return Ok(ActionOutcome::Done);
                }
            };
            if !is_ours(&read, place) {
                return Ok(ActionOutcome::Done);
            }
            // If the account was recreated under its name, the Secret belongs to the new one. It cannot be recreated
            // while this one exists.
            let now = timed(self.api(account).get_metadata_opt(object)).await?;
            if now.is_none_or(|now| now.metadata.uid != account.metadata.uid) {
                return Ok(ActionOutcome::Conflict);
            }
            let points = Some(["secret-delete:before", "secret-delete:after"]);
            match self.remove_secret(&api, &name, &SecretVersion::of(&read), points).await? {
                SecretResponse::Done(()) => return Ok(ActionOutcome::Done),
                SecretResponse::Changed => {}
                SecretResponse::Refused(why) => {
                    outlives(account, &why);
                    return Ok(ActionOutcome::Done);
                }
            }
        }
        Err(format!("others write the Secret {namespace}/{name} at the same time").into())
    }

    /// Sets the current labels on a Secret that an earlier version created for an account, and removes its owner
    /// reference.
    async fn update_secret(&self, account: &KubesvcAccount) -> Result<(), BoxedError> {
        let place @ (namespace, object) = place(account);
        let (api, name) = (self.secrets(namespace), names::credential_secret_name(object));
        for _ in 0..MAX_WRITE_ATTEMPTS {
            let read = match judge(timed(api.get_metadata(&name)).await)? {
                SecretResponse::Done(secret) => secret.metadata,
                SecretResponse::Changed => return Ok(()),
                SecretResponse::Refused(why) => return Err(why.into()),
            };
            let Some(patch) = owned_secret::update_of(&read, place) else { return Ok(()) };
            let (parameters, patch) = (PatchParams::default(), Patch::Merge(patch));
            let patched = api.patch_metadata(&name, &parameters, &patch);
            match self.write_secret(["secret-update:before", "secret-update:after"], patched).await? {
                SecretResponse::Done(_) => {
                    info!(
                        namespace,
                        secret = name,
                        "removed the owner of a Secret and set the labels of its account"
                    );
                    return Ok(());
                }
                SecretResponse::Changed => {}
                SecretResponse::Refused(why) => return Err(why.into()),
            }
        }
        Err("others write it at the same time".into())
    }

    pub(super) fn secrets(&self, namespace: &str) -> Api<Secret> {
        Api::namespaced(self.context.client.clone(), namespace)
    }

    pub(super) async fn write_secret<T>(
        &self,
        [before, after]: [&'static str; 2],
        request: impl Future<Output = kube::Result<T>>,
    ) -> Result<SecretResponse<T>, BoxedError> {
        self.context.budget.take(Urgency::Rest).await;
        crash::point(before);
        let answer = timed(request).await;
        crash::point(after);
        judge(answer)
    }

    /// Deletes a Secret in exactly the version that was read or written.
    pub(super) async fn remove_secret(
        &self,
        api: &Api<Secret>,
        name: &str,
        version: &SecretVersion,
        points: Option<[&'static str; 2]>,
    ) -> Result<SecretResponse<()>, BoxedError> {
        let parameters = DeleteParams::default().preconditions(version.preconditions());
        self.context.budget.take(Urgency::Rest).await;
        if let Some([before, _]) = points {
            crash::point(before);
        }
        let answer = timed(api.delete(name, &parameters)).await;
        if let Some([_, after]) = points {
            crash::point(after);
        }
        Ok(match judge(answer)? {
            SecretResponse::Done(_) => SecretResponse::Done(()),
            SecretResponse::Changed => SecretResponse::Changed,
            SecretResponse::Refused(why) => SecretResponse::Refused(why),
        })
    }
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
        let Some(((namespace, secret), error)) = failed.first() else { return Outcome::Done };
        let error = chain(&**error);
        warn_unless_away!(namespace, secret, failed = failed.len(), error, "cannot update Secrets; retrying");
        Outcome::Failed(failed.into_iter().map(|(key, _)| key).collect(), error)
    };
    context.tasks.drive(task, stop, update).await;
}

/// Returns the Secrets that could not be updated, with their errors.
async fn update(
    controller: &Controller,
    secrets: &[(String, String)],
) -> Vec<((String, String), BoxedError)> {
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

fn outlives(account: &KubesvcAccount, why: &str) {
    if is_named_by(account) {
        warn!(
            account = account.account_name(),
            why, "the Secret that was created for the account may outlive it"
        );
    }
}

fn judge<T>(answer: Result<T, BoxedError>) -> Result<SecretResponse<T>, BoxedError> {
    let error = match answer {
        Ok(value) => return Ok(SecretResponse::Done(value)),
        Err(error) => error,
    };
    let is_namespace = matches!(
        error.downcast_ref::<kube::Error>(),
        Some(kube::Error::Api(status)) if status.details.as_ref().is_some_and(|of| of.kind == "namespaces")
    );
    let refused = PermanentRefusal::of(error).map_err(without_contents)?;
    Ok(match refused.code {
        404 | 409 if !is_namespace => SecretResponse::Changed,
        _ => SecretResponse::Refused(refused.why),
    })
}

/// Strips the error of a request that may have contained a kubeconfig.
pub(super) fn without_contents(error: BoxedError) -> BoxedError {
    match error.downcast_ref::<kube::Error>() {
        Some(kube::Error::Api(status)) => {
            format!("the API server answers {} {} for a Secret", status.code, status.reason).into()
        }
        Some(_) => "the API server cannot be asked for a Secret".into(),
        None => error,
    }
}

pub(super) fn place(object: &KubesvcAccount) -> ObjectName<'_> {
    let metadata = &object.metadata;
    (metadata.namespace.as_deref().unwrap_or_default(), metadata.name.as_deref().unwrap_or_default())
}
