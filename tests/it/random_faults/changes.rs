//! Executes the changes, like kubectl and through REST. Each change is retried until it is accepted; only
//! then does the next one of the same account follow. No request is abandoned halfway, because it might still
//! be executed later.

use std::time::{Duration, Instant};

use http::StatusCode;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kubesvc_core::KubesvcAccount;
use serde_json::{Value, json};

use super::plan::{self, Change, ChangeKind, REPLICAS, Via};
use super::scene::{Scene, fields, state};
use super::watcher::Watcher;
use crate::world::Call;

/// Pause between two attempts.
const RETRY_DELAY: Duration = Duration::from_millis(300);
/// Number of attempts after which no fault explains the failure.
const MAX_ATTEMPTS: usize = 400;

/// Result of one attempt.
enum Attempt {
    Done,
    Retry(String),
}

impl Scene {
    /// Executes the changes of one account, one after the other.
    pub(super) async fn change_all(&self, watcher: &Watcher, changes: Vec<Change>, begun: Instant) {
        for change in changes {
            tokio::time::sleep_until((begun + change.at).into()).await;
            let name = plan::name(change.account);
            self.event_log.of_account(
                &name,
                format!("asked: {:?} by {:?}: {:?}", change.kind, change.via, change.desired),
            );
            if let Err(why) = self.change(watcher, &name, change).await {
                self.event_log
                    .violation(Some(&name), format!("{:?} of {name} is not taken: {why}", change.kind));
            }
            self.event_log.of_account(&name, format!("taken: {:?}", change.kind));
            self.event_log.count(format!("change:{:?}", change.kind));
        }
    }

    async fn change(&self, watcher: &Watcher, name: &str, change: Change) -> Result<(), String> {
        if matches!(change.kind, ChangeKind::Delete | ChangeKind::Recreate) {
            let uid = self.until_deleted(watcher, name, change.via).await?;
            if let Some(uid) = uid {
                self.until_gone(name, &uid).await?;
            }
        }
        if matches!(change.kind, ChangeKind::Delete) {
            return Ok(());
        }
        until_done(async |number| match change.kind {
            ChangeKind::Create | ChangeKind::Recreate => self.create(name, change, number).await,
            _ => self.set(name, change, number).await,
        })
        .await
    }

    /// Sets the field that the change is about.
    async fn set(&self, name: &str, change: Change, number: usize) -> Attempt {
        let desired = change.desired.expect("it is not deleted");
        let all = fields(desired);
        let field = match change.kind {
            ChangeKind::Activate | ChangeKind::Deactivate => "state",
            ChangeKind::Move => "zoneId",
            ChangeKind::Redefine => "kinds",
            _ => "environment",
        };
        match change.via {
            Via::Client => {
                let patch = Patch::Merge(json!({"spec": {field: all[field]}}));
                client_attempt(self.accounts().patch(name, &PatchParams::default(), &patch).await)
            }
            Via::Rest(replica) if field == "state" => {
                let body = json!([{"name": name, "state": state(desired)}]);
                self.rest(replica + number, "PATCH", "/armory/accounts", &body).await
            }
            Via::Rest(replica) => {
                let body = json!({"name": name, field: all[field]});
                self.rest(replica + number, "PUT", "/armory/accounts/dynamic", &body).await
            }
        }
    }

    async fn create(&self, name: &str, change: Change, number: usize) -> Attempt {
        let desired = change.desired.expect("it is made");
        let mut spec = fields(desired);
        match change.via {
            Via::Client => {
                spec["kubeconfig"] = json!({"secretRef": {"name": name}});
                let spec = serde_json::from_value(spec).expect("a spec as the type has it");
                let account = KubesvcAccount::new(name, spec);
                match self.accounts().create(&PostParams::default(), &account).await {
                    // An earlier attempt was accepted, but its response was lost.
                    Err(kube::Error::Api(status)) if status.code == 409 && number > 0 => Attempt::Done,
                    answer => client_attempt(answer),
                }
            }
            Via::Rest(replica) => {
                spec["name"] = json!(name);
                spec["kubeconfigContents"] = json!(self.cluster.kubeconfig());
                let path = "/armory/accounts/dynamic";
                match self.rest_status(replica + number, "POST", path, &spec).await {
                    Ok((StatusCode::CONFLICT, _)) if number > 0 => Attempt::Done,
                    answer => rest_attempt(answer),
                }
            }
        }
    }

    /// Requests the deletion until it is accepted. Returns the uid of the deleted object, unless it was gone
    /// already.
    async fn until_deleted(&self, watcher: &Watcher, name: &str, via: Via) -> Result<Option<String>, String> {
        let mut uid = None;
        until_done(async |number| {
            let account = match self.accounts().get_opt(name).await {
                Ok(Some(account)) => account,
                Ok(None) => return Attempt::Done,
                Err(error) => return Attempt::Retry(error.to_string()),
            };
            uid.clone_from(&account.metadata.uid);
            if account.metadata.deletion_timestamp.is_some() {
                return Attempt::Done;
            }
            watcher.deletion_requested(uid.as_deref().unwrap_or_default());
            match via {
                Via::Client => client_attempt(self.accounts().delete(name, &DeleteParams::default()).await),
                Via::Rest(replica) => {
                    self.rest(replica + number, "DELETE", "/armory/accounts", &json!([name])).await
                }
            }
        })
        .await?;
        Ok(uid)
    }

    async fn until_gone(&self, name: &str, uid: &str) -> Result<(), String> {
        until_done(async |_| match self.accounts().get_metadata_opt(name).await {
            Ok(Some(account)) if account.metadata.uid.as_deref() == Some(uid) => {
                Attempt::Retry("it is still there".to_owned())
            }
            Ok(_) => Attempt::Done,
            Err(error) => Attempt::Retry(error.to_string()),
        })
        .await
    }

    fn accounts(&self) -> kube::Api<KubesvcAccount> {
        self.world.api()
    }

    async fn rest(&self, replica: usize, method: &str, path: &str, body: &Value) -> Attempt {
        rest_attempt(self.rest_status(replica, method, path, body).await)
    }

    async fn rest_status(
        &self,
        replica: usize,
        method: &str,
        path: &str,
        body: &Value,
    ) -> Result<(StatusCode, String), String> {
        let call = Call::new(method, path).json(body);
        let answer = self.replica(replica % REPLICAS).call(call).await?;
        let status = StatusCode::from_u16(answer.status).map_err(|error| error.to_string())?;
        Ok((status, answer.text))
    }
}

/// Repeats an attempt until it succeeds.
async fn until_done(mut attempt: impl AsyncFnMut(usize) -> Attempt) -> Result<(), String> {
    let mut last = String::new();
    for number in 0..MAX_ATTEMPTS {
        match attempt(number).await {
            Attempt::Done => return Ok(()),
            Attempt::Retry(why) => last = why,
        }
        tokio::time::sleep(RETRY_DELAY).await;
    }
    Err(last)
}

fn client_attempt<T>(answer: Result<T, kube::Error>) -> Attempt {
    match answer {
        Ok(_) => Attempt::Done,
        Err(error) => Attempt::Retry(error.to_string()),
    }
}

/// Interprets the response of a replica. If its list of accounts is outdated, it may not know one yet (400,
/// 404), or still list it (409).
fn rest_attempt(answer: Result<(StatusCode, String), String>) -> Attempt {
    match answer {
        Ok((StatusCode::ACCEPTED, _)) => Attempt::Done,
        Ok((status, text)) => Attempt::Retry(format!("{status}: {text}")),
        Err(why) => Attempt::Retry(why),
    }
}
