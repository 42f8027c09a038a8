//! Carries out actions. Each is one request.

use std::borrow::Cow;
use std::time::Duration;

use kube::Resource;
use kube::api::{DeleteParams, Preconditions};
use serde::Serialize;
use serde_json::json;
use tracing::{error, info};

use super::{Controller, account_rows};
use crate::connected_agents::ConnectedAgentsError;
use crate::secrets::Credential;
use kubesvc_clouddriver::definition::file_on_clouddriver;
use kubesvc_core::conditions;
use kubesvc_core::failure::{Failure, FailureClass};
use kubesvc_core::lifecycle::{Action, CredentialFact, RowFact, StatusWrite};
use kubesvc_core::{FINALIZER, KubesvcAccount, KubesvcAccountStatus};
use kubesvc_runtime::account_secret::AccountSecretError;
use kubesvc_runtime::kube_access::{KubeError, KubeObjects, WriteOptions};
use kubesvc_runtime::rate_limit::Urgency;
use kubesvc_runtime::telemetry::errors::chain;
use kubesvc_store::StoreError;

/// Time after which the status says that a credential is awaited. An API server under load sometimes takes more than
/// a second for a Secret; reporting that would be one more write for each account.
const SLOW_CREDENTIAL_AFTER: Duration = Duration::from_secs(5);

/// Why an action failed. It is tried again.
#[derive(Debug, thiserror::Error)]
pub(super) enum ActionError {
    /// A request to the API server.
    #[error(transparent)]
    Kube(#[from] KubeError),
    /// A write of the account's Secret.
    #[error(transparent)]
    Secret(#[from] AccountSecretError),
    /// A write of a row.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A read of the agents.
    #[error(transparent)]
    ConnectedAgents(#[from] ConnectedAgentsError),
}

/// Result of an action.
pub(super) enum ActionOutcome {
    /// Done; observe again.
    Done,
    /// The object changed since it was observed.
    Conflict,
}

/// The request body of the status subresource: the API server takes the rest from the stored object.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct StatusBody<'a> {
    api_version: Cow<'a, str>,
    kind: Cow<'a, str>,
    metadata: StatusMetadata<'a>,
    status: &'a KubesvcAccountStatus,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct StatusMetadata<'a> {
    name: &'a str,
    namespace: &'a str,
    uid: &'a str,
    resource_version: &'a str,
}

impl<'a> StatusBody<'a> {
    fn of(account: &'a KubesvcAccount, version: &'a str, status: &'a KubesvcAccountStatus) -> Self {
        let name = account.metadata.name.as_deref().unwrap_or_default();
        let namespace = account.metadata.namespace.as_deref().unwrap_or_default();
        let metadata = StatusMetadata { name, namespace, uid: account.uid(), resource_version: version };
        Self {
            api_version: KubesvcAccount::api_version(&()),
            kind: KubesvcAccount::kind(&()),
            metadata,
            status,
        }
    }
}

impl Controller {
    /// Carries out an action. Every write carries the resourceVersion that it was decided on.
    pub(super) async fn act(
        &self,
        account: &KubesvcAccount,
        action: Action,
    ) -> Result<ActionOutcome, ActionError> {
        match action {
            Action::AddFinalizer => {
                let mut finalizers = account.metadata.finalizers.clone().unwrap_or_default();
                finalizers.push(FINALIZER.to_owned());
                self.set_finalizers(account, finalizers, "finalizer-add").await
            }
            Action::RemoveFinalizer => {
                if let ActionOutcome::Conflict = self.delete_secret(account).await? {
                    return Ok(ActionOutcome::Conflict);
                }
                let mut finalizers = account.metadata.finalizers.clone().unwrap_or_default();
                finalizers.retain(|one| one != FINALIZER);
                self.set_finalizers(account, finalizers, "finalizer-remove").await
            }
            Action::InsertRow => self.insert_row(account).await,
            Action::DeleteRows { keeps_objects } => {
                let projection = &self.context.projection;
                if account.is_being_deleted() {
                    projection.delete(account.uid(), keeps_objects).await?;
                } else {
                    projection.release(account.uid()).await?;
                }
                Ok(ActionOutcome::Done)
            }
            Action::ResolveCredential => {
                self.resolve_credential(account).await;
                Ok(ActionOutcome::Done)
            }
            Action::ReadSessions => {
                self.read_sessions(account).await?;
                Ok(ActionOutcome::Done)
            }
            Action::DeleteObject => self.delete_object(account).await,
            Action::WriteStatus(write) => self.write_status(account, *write).await,
        }
    }

    async fn insert_row(&self, account: &KubesvcAccount) -> Result<ActionOutcome, ActionError> {
        match self.take_row(account).await {
            // The next observation shows an unavailable database; the account proceeds without its row.
            Ok(()) | Err(StoreError::Unavailable(_)) => {}
            Err(error) => {
                account_rows::report_foreign(self);
                let fact = self.context.projection.fact(account.uid(), account.account_name());
                if fact == RowFact::Foreign {
                    // With adoption enabled, a row that was not adopted counts as foreign until adoption tries it
                    // again.
                    let adopts = self.context.adopts.is_some();
                    self.transient_states
                        .update(account.uid(), |transient_state| transient_state.row_refused = adopts);
                } else {
                    let error = chain(&error);
                    error!(
                        account = account.account_name(),
                        error, "the database rejected the account's row; continuing without it"
                    );
                    self.transient_states
                        .update(account.uid(), |transient_state| transient_state.row_refused = true);
                }
            }
        }
        Ok(ActionOutcome::Done)
    }

    /// Reads and vets the credential. If it takes longer than [`SLOW_CREDENTIAL_AFTER`], records that and returns;
    /// the next call waits without a limit.
    async fn resolve_credential(&self, account: &KubesvcAccount) {
        let rechecked = self.transient_states.rechecks(account.uid());
        let resolve = self.context.credentials.resolve(account, true);
        let verdict = if self.transient_states.awaits_credential(account.uid()) {
            resolve.await
        } else {
            match tokio::time::timeout(SLOW_CREDENTIAL_AFTER, resolve).await {
                Ok(verdict) => verdict,
                Err(_) => {
                    self.transient_states
                        .update(account.uid(), |transient_state| transient_state.credential_slow = true);
                    return;
                }
            }
        };
        let verdict = verdict.map(|Credential { version, same_as, expiry, .. }| CredentialFact {
            version,
            same_as,
            expiry,
        });
        // Of a Secret that stands for a file on Clouddriver it is said where the kubeconfig is.
        let verdict = verdict.map_err(|failure| match file_on_clouddriver(account) {
            Some(message) if failure.class == FailureClass::CredentialMissing => {
                Failure::new(FailureClass::FileOnClouddriver, message)
            }
            _ => failure,
        });
        self.transient_states.judged(account.uid(), rechecked, verdict);
    }

    /// Reads the sessions of the zone of the grant; without a grant, of the zone that the account was in or shall be
    /// in.
    async fn read_sessions(&self, account: &KubesvcAccount) -> Result<(), ActionError> {
        let status = account.status_or_default();
        let named = account.spec.zone_id.as_ref().or(status.zone_id.as_ref());
        if let Some(zone) = status.granted_zone().or(named) {
            self.context.connected_agents.read(zone).await?;
        }
        self.transient_states
            .update(account.uid(), |transient_state| transient_state.sessions_are_read = true);
        Ok(())
    }

    /// Deletes the object as it was observed. An object that changed since, or was recreated under its name, stays.
    async fn delete_object(&self, account: &KubesvcAccount) -> Result<ActionOutcome, ActionError> {
        let name = account.metadata.name.as_deref().unwrap_or_default();
        let observed = Preconditions {
            uid: account.metadata.uid.clone(),
            resource_version: account.metadata.resource_version.clone(),
        };
        info!(account = account.account_name(), "deleting a static account that no agent lists");
        let options = WriteOptions::with(Urgency::Answer).at("object-delete");
        let parameters = DeleteParams::default().preconditions(observed);
        match self.objects(account).delete(name, &parameters, options).await.transpose() {
            Some(answer) => {
                let version = account.metadata.resource_version.clone().unwrap_or_default();
                self.written(answer, &version)
            }
            // No finalizer was left: the watch will show the deletion.
            None => Ok(ActionOutcome::Conflict),
        }
    }

    async fn set_finalizers(
        &self,
        account: &KubesvcAccount,
        finalizers: Vec<String>,
        crash_point: &'static str,
    ) -> Result<ActionOutcome, ActionError> {
        let version = account.metadata.resource_version.clone().unwrap_or_default();
        let patch = json!({"metadata": {"resourceVersion": version, "finalizers": finalizers}});
        let name = account.metadata.name.as_deref().unwrap_or_default();
        let options = WriteOptions::with(Urgency::Answer).at(crash_point);
        let answer = self.objects(account).patch(name, &patch, options).await;
        self.written(answer, &version)
    }

    async fn write_status(
        &self,
        account: &KubesvcAccount,
        write: StatusWrite,
    ) -> Result<ActionOutcome, ActionError> {
        let version = account.metadata.resource_version.clone().unwrap_or_default();
        let elected = write.status.caching_agent_key();
        let elected = elected.filter(|_| write.status.caching != account.status_or_default().caching);
        let _election = elected.map(|agent| self.elections.begin(agent));
        let body = StatusBody::of(account, &version, &write.status);
        let options = WriteOptions::with(Urgency::Answer).at("status");
        let answer = self.objects(account).replace_status(body.metadata.name, &body, options).await;
        let outcome = self.written(answer, &version)?;
        if matches!(outcome, ActionOutcome::Done) {
            let now = self.context.ticks.now();
            self.transient_states.wrote_status(account.uid(), now);
            let left_out =
                |status: &KubesvcAccountStatus| conditions::left_out(&status.conditions).map(str::to_owned);
            if left_out(&write.status) != left_out(&account.status_or_default()) {
                self.transient_states
                    .update(account.uid(), |transient_state| transient_state.left_out_written = Some(now));
            }
            let caching_agent = |status: &KubesvcAccountStatus| status.caching_agent().cloned();
            let elected = caching_agent(&write.status);
            if elected.is_some() && elected != caching_agent(&account.status_or_default()) {
                self.transient_states
                    .update(account.uid(), |transient_state| transient_state.elections.record(now));
            }
            self.publish_written(account, &write);
        }
        Ok(outcome)
    }

    fn written(
        &self,
        answer: Result<KubesvcAccount, KubeError>,
        version: &str,
    ) -> Result<ActionOutcome, ActionError> {
        self.context.metrics.writes.inc();
        match answer {
            Ok(account) => {
                self.context.accounts.written(account, version);
                Ok(ActionOutcome::Done)
            }
            // Someone else wrote, or the object is gone. The watch will show either.
            Err(error) if error.is_stale() => Ok(ActionOutcome::Conflict),
            Err(error) => Err(error.into()),
        }
    }

    pub(super) fn objects(&self, account: &KubesvcAccount) -> KubeObjects<KubesvcAccount> {
        self.context.kube.namespaced(account.metadata.namespace.as_deref().unwrap_or_default())
    }
}
