//! Carries out actions. Each is one request.

use std::error::Error;
use std::time::Duration;

use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::{Api, Resource};
use serde::Serialize;
use serde_json::json;

use super::foreign_rows;
use super::leader::Controller;
use super::metrics::Transition;
use crate::account::lifecycle::{Action, CredentialFact, EventDraft, RowFact, StatusWrite};
use crate::account::{FIELD_MANAGER, FINALIZER, KubesvcAccount, KubesvcAccountStatus};
use crate::budget::Urgency;
use crate::crash;
use crate::objects::too_busy;
use crate::store::StoreError;

/// Time limit for one request to the API server.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);
/// Time after which the status says that a credential is awaited. An API server under load sometimes takes more than
/// a second for a Secret; reporting that would be one more write for each account.
const SLOW_CREDENTIAL_AFTER: Duration = Duration::from_secs(5);

pub(super) type BoxedError = Box<dyn Error + Send + Sync>;

/// Result of an action.
pub(super) enum ActionOutcome {
    /// Done; observe again.
    Done,
    /// The object changed since it was observed.
    Conflict,
}

/// The request body of the status subresource.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct StatusBody<'a> {
    api_version: &'a str,
    kind: &'a str,
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

impl Controller {
    /// Carries out an action. Every write carries the resourceVersion that it was decided on.
    pub(super) async fn act(
        &self,
        account: &KubesvcAccount,
        action: Action,
    ) -> Result<ActionOutcome, BoxedError> {
        match action {
            Action::AddFinalizer => {
                let mut finalizers = account.metadata.finalizers.clone().unwrap_or_default();
                finalizers.push(FINALIZER.to_owned());
                self.set_finalizers(account, finalizers, ["finalizer-add:before", "finalizer-add:after"])
                    .await
            }
            Action::RemoveFinalizer => {
                if let ActionOutcome::Conflict = self.delete_secret(account).await? {
                    return Ok(ActionOutcome::Conflict);
                }
                let mut finalizers = account.metadata.finalizers.clone().unwrap_or_default();
                finalizers.retain(|one| one != FINALIZER);
                self.set_finalizers(
                    account,
                    finalizers,
                    ["finalizer-remove:before", "finalizer-remove:after"],
                )
                .await
            }
            Action::InsertRow => self.insert_row(account).await,
            Action::DeleteRows => {
                let projection = &self.context.projection;
                if account.is_being_deleted() {
                    projection.delete(account.uid()).await?;
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

    async fn insert_row(&self, account: &KubesvcAccount) -> Result<ActionOutcome, BoxedError> {
        match self.take_row(account).await {
            // The next observation shows an unavailable database; the account proceeds without its row.
            Ok(()) | Err(StoreError::Unavailable(_)) => {}
            Err(error) => {
                foreign_rows::tell(self);
                let fact = self.context.projection.fact(account.uid(), account.account_name());
                if fact == RowFact::Foreign {
                    // With adoption enabled, a row that was not adopted counts as foreign until adoption tries it
                    // again.
                    let adopts = self.context.adopts.is_some();
                    self.memories.update(account.uid(), |memory| memory.row_refused = adopts);
                } else {
                    let error = crate::telemetry::errors::chain(&error);
                    tracing::error!(
                        account = account.account_name(),
                        error,
                        "the database rejected the account's row; continuing without it"
                    );
                    self.memories.update(account.uid(), |memory| memory.row_refused = true);
                }
            }
        }
        Ok(ActionOutcome::Done)
    }

    /// Reads and vets the credential. If it takes longer than [`SLOW_CREDENTIAL_AFTER`], records that and returns;
    /// the next call waits without a limit.
    async fn resolve_credential(&self, account: &KubesvcAccount) {
        let resolve = self.context.credentials.resolve(account, true);
        let verdict = if self.memories.awaits_credential(account.uid()) {
            resolve.await
        } else {
            match tokio::time::timeout(SLOW_CREDENTIAL_AFTER, resolve).await {
                Ok(verdict) => verdict,
                Err(_) => {
                    self.memories.update(account.uid(), |memory| memory.credential_slow = true);
                    return;
                }
            }
        };
        let verdict = verdict
            .map(|credential| CredentialFact { version: credential.version, same_as: credential.same_as });
        self.memories.judged(account.uid(), verdict);
    }

    /// Reads the sessions of the zone of the grant; without a grant, of the zone that the account was in or shall be
    /// in.
    async fn read_sessions(&self, account: &KubesvcAccount) -> Result<(), BoxedError> {
        let status = account.status_or_default();
        let named = account.spec.zone_id.as_deref().or(status.zone_id.as_deref());
        if let Some(zone) = status.granted_zone().or(named) {
            self.context.fleet.read(zone).await?;
        }
        self.memories.update(account.uid(), |memory| memory.sessions_are_read = true);
        Ok(())
    }

    /// Deletes the object as it was observed. An object that changed since, or was recreated under its name, stays.
    async fn delete_object(&self, account: &KubesvcAccount) -> Result<ActionOutcome, BoxedError> {
        let name = account.metadata.name.as_deref().unwrap_or_default();
        let observed = Preconditions {
            uid: account.metadata.uid.clone(),
            resource_version: account.metadata.resource_version.clone(),
        };
        let parameters = DeleteParams::default().preconditions(observed);
        self.context.budget.take(Urgency::Answer).await;
        tracing::info!(account = account.account_name(), "deleting a static account that no agent lists");
        crash::point("object-delete:before");
        let answer = timed(self.api(account).delete(name, &parameters)).await;
        crash::point("object-delete:after");
        match answer {
            Ok(answer) => match answer.left() {
                Some(deleted) => {
                    let version = account.metadata.resource_version.clone().unwrap_or_default();
                    self.written(Ok(deleted), &version)
                }
                // No finalizer was left: the watch will show the deletion.
                None => Ok(ActionOutcome::Conflict),
            },
            Err(error) => self.written(Err(error), ""),
        }
    }

    async fn set_finalizers(
        &self,
        account: &KubesvcAccount,
        finalizers: Vec<String>,
        [before, after]: [&'static str; 2],
    ) -> Result<ActionOutcome, BoxedError> {
        let version = account.metadata.resource_version.clone().unwrap_or_default();
        let patch = json!({"metadata": {"resourceVersion": version, "finalizers": finalizers}});
        let name = account.metadata.name.as_deref().unwrap_or_default();
        let parameters =
            PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        self.context.budget.take(Urgency::Answer).await;
        crash::point(before);
        let api = self.api(account);
        let answer = timed(api.patch(name, &parameters, &Patch::Merge(&patch))).await;
        crash::point(after);
        self.written(answer, &version)
    }

    async fn write_status(
        &self,
        account: &KubesvcAccount,
        write: StatusWrite,
    ) -> Result<ActionOutcome, BoxedError> {
        let version = account.metadata.resource_version.clone().unwrap_or_default();
        let request = status_request(account, &version, &write.status)?;
        let caching = |status: &KubesvcAccountStatus| status.caching_agent().map(str::to_owned);
        let elected =
            caching(&write.status).filter(|_| write.status.caching != account.status_or_default().caching);
        let _election = elected.map(|agent_id| self.elections.begin(agent_id));
        self.context.budget.take(Urgency::Answer).await;
        crash::point("status:before");
        let answer = timed(self.context.client.request::<KubesvcAccount>(request)).await;
        crash::point("status:after");
        let outcome = self.written(answer, &version)?;
        if matches!(outcome, ActionOutcome::Done) {
            self.memories.wrote_status(account.uid(), self.context.ticks.now());
            self.publish_event(account, &write);
        }
        Ok(outcome)
    }

    /// Publishes a written status: row, Event, log, counter.
    fn publish_event(&self, before: &KubesvcAccount, write: &StatusWrite) {
        let (from, to) = (before.status_or_default().state(), write.status.state());
        if let Some(now) = self.context.accounts.by_uid(before.uid()) {
            self.project_row(&now);
        }
        if from != to {
            self.context
                .metrics
                .transitions
                .get_or_create(&Transition { from: from.as_str(), to: to.as_str() })
                .inc();
            let zone = write.status.zone_id.as_deref().unwrap_or_default();
            let reason = write.status.error_message.as_deref().unwrap_or_default();
            tracing::info!(account = before.account_name(), zoneId = zone, %from, %to, epoch = write.status.epoch.0, reason, "state changed");
        }
        if write.status.caching != before.status_or_default().caching
            && let Some(caching) = &write.status.caching
        {
            let agent = caching.agent_id.as_deref().unwrap_or("nobody");
            tracing::info!(
                account = before.account_name(),
                agentId = agent,
                epoch = caching.epoch.0,
                "the caching agent changed"
            );
        }
        let idle = idle_settings(before, &write.status);
        if let Some(idle) = &idle {
            tracing::warn!(account = before.account_name(), "{}", idle.message);
        }
        for note in write.event.iter().chain(&idle) {
            if !self.events.publish(before, note) {
                self.context.metrics.dropped_events.inc();
            }
        }
    }

    fn written(
        &self,
        answer: Result<KubesvcAccount, BoxedError>,
        version: &str,
    ) -> Result<ActionOutcome, BoxedError> {
        self.context.metrics.writes.inc();
        match answer {
            Ok(account) => {
                self.context.accounts.written(account, version);
                Ok(ActionOutcome::Done)
            }
            Err(error) => match error.downcast_ref::<kube::Error>() {
                // 409: someone else wrote. 404: the object is gone. The watch will show either.
                Some(kube::Error::Api(status)) if status.code == 409 || status.code == 404 => {
                    Ok(ActionOutcome::Conflict)
                }
                Some(problem) => {
                    if let Some(pause) = too_busy(problem) {
                        self.context.budget.pause(pause);
                    }
                    Err(error)
                }
                None => Err(error),
            },
        }
    }

    pub(super) fn api(&self, account: &KubesvcAccount) -> Api<KubesvcAccount> {
        let namespace = account.metadata.namespace.as_deref().unwrap_or_default();
        Api::namespaced(self.context.client.clone(), namespace)
    }
}

/// The Event about settings of the spec that have no effect, once for each generation.
fn idle_settings(before: &KubesvcAccount, status: &KubesvcAccountStatus) -> Option<EventDraft> {
    let is_news = before.status_or_default().observed_generation != status.observed_generation;
    let idle = if is_news { before.spec.without_effect() } else { Vec::new() };
    (!idle.is_empty()).then(|| EventDraft {
        warning: true,
        reason: "SettingWithoutEffect".to_owned(),
        message: format!("in this version these settings of the spec have no effect: {}", idle.join(", ")),
    })
}

/// `PUT …/status` with only the status: the API server takes the rest from the stored object.
fn status_request(
    account: &KubesvcAccount,
    version: &str,
    status: &KubesvcAccountStatus,
) -> Result<http::Request<Vec<u8>>, BoxedError> {
    let name = account.metadata.name.as_deref().unwrap_or_default();
    let namespace = account.metadata.namespace.as_deref().unwrap_or_default();
    let body = StatusBody {
        api_version: &KubesvcAccount::api_version(&()),
        kind: &KubesvcAccount::kind(&()),
        metadata: StatusMetadata { name, namespace, uid: account.uid(), resource_version: version },
        status,
    };
    let path = KubesvcAccount::url_path(&(), Some(namespace));
    let request = http::Request::put(format!("{path}/{name}/status?fieldManager={FIELD_MANAGER}"))
        .header(http::header::CONTENT_TYPE, "application/json")
        .body(serde_json::to_vec(&body)?)?;
    Ok(request)
}

/// Awaits a request to the API server for at most [`REQUEST_TIMEOUT`].
pub(super) async fn timed<T>(request: impl Future<Output = kube::Result<T>>) -> Result<T, BoxedError> {
    match tokio::time::timeout(REQUEST_TIMEOUT, request).await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err("the API server does not answer".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::account::KubesvcAccountSpec;

    #[test]
    fn settings_without_effect_are_reported_once_per_generation() {
        let spec = KubesvcAccountSpec { metrics: Some(true), no_proxy: Some(true), ..Default::default() };
        let account = KubesvcAccount::new("a", spec);
        let seen = KubesvcAccountStatus { observed_generation: 1, ..KubesvcAccountStatus::default() };
        let note = idle_settings(&account, &seen).expect("it is news");
        assert!(note.warning && note.message.ends_with("metrics, noProxy"), "{}", note.message);
        let mut told = account.clone();
        told.status = Some(seen.clone());
        assert!(idle_settings(&told, &seen).is_none());
        let plain = KubesvcAccount::new("b", KubesvcAccountSpec::default());
        assert!(idle_settings(&plain, &seen).is_none());
    }
}
