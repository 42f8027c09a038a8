//! Executes the changes, like kubectl and through REST. Each change is retried until it is accepted; only
//! then does the next one of the same account follow. No request is abandoned halfway, because it might still
//! be executed later.

use std::time::{Duration, Instant};

use http::StatusCode;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kubesvc::account::KubesvcAccount;
use serde_json::{Value, json};

use super::plan::{self, By, Change, REPLICAS, What};
use super::scene::{Scene, fields, state};
use super::watcher::Watcher;
use crate::world::Call;

/// Pause between two attempts.
const PAUSE: Duration = Duration::from_millis(300);
/// Number of attempts after which no fault explains the failure.
const TRIES: usize = 400;

/// Result of one attempt.
enum Try {
    Done,
    Again(String),
}

impl Scene {
    /// Executes the changes of one account, one after the other.
    pub(super) async fn change_all(&self, watcher: &Watcher, changes: Vec<Change>, begun: Instant) {
        for change in changes {
            tokio::time::sleep_until((begun + change.at).into()).await;
            let name = plan::name(change.account);
            self.chronicle
                .of_account(&name, format!("asked: {:?} by {:?}: {:?}", change.what, change.by, change.wish));
            if let Err(why) = self.change(watcher, &name, change).await {
                self.chronicle
                    .violation(Some(&name), format!("{:?} of {name} is not taken: {why}", change.what));
            }
            self.chronicle.of_account(&name, format!("taken: {:?}", change.what));
            self.chronicle.count(format!("change:{:?}", change.what));
        }
    }

    async fn change(&self, watcher: &Watcher, name: &str, change: Change) -> Result<(), String> {
        if matches!(change.what, What::Delete | What::Recreate) {
            let uid = self.until_deleted(watcher, name, change.by).await?;
            if let Some(uid) = uid {
                self.until_gone(name, &uid).await?;
            }
        }
        if matches!(change.what, What::Delete) {
            return Ok(());
        }
        until_done(async |number| match change.what {
            What::Create | What::Recreate => self.create(name, change, number).await,
            _ => self.set(name, change, number).await,
        })
        .await
    }

    /// Sets the field that the change is about.
    async fn set(&self, name: &str, change: Change, number: usize) -> Try {
        let wish = change.wish.expect("it is not deleted");
        let all = fields(wish);
        let field = match change.what {
            What::Activate | What::Deactivate => "state",
            What::Move => "zoneId",
            What::Redefine => "kinds",
            _ => "environment",
        };
        match change.by {
            By::Client => {
                let patch = Patch::Merge(json!({"spec": {field: all[field]}}));
                told(self.accounts().patch(name, &PatchParams::default(), &patch).await)
            }
            By::Rest(replica) if field == "state" => {
                let body = json!([{"name": name, "state": state(wish)}]);
                self.rest(replica + number, "PATCH", "/armory/accounts", &body).await
            }
            By::Rest(replica) => {
                let body = json!({"name": name, field: all[field]});
                self.rest(replica + number, "PUT", "/armory/accounts/dynamic", &body).await
            }
        }
    }

    async fn create(&self, name: &str, change: Change, number: usize) -> Try {
        let wish = change.wish.expect("it is made");
        let mut spec = fields(wish);
        match change.by {
            By::Client => {
                spec["kubeconfig"] = json!({"secretRef": {"name": name}});
                let spec = serde_json::from_value(spec).expect("a spec as the type has it");
                let account = KubesvcAccount::new(name, spec);
                match self.accounts().create(&PostParams::default(), &account).await {
                    // An earlier attempt was accepted, but its response was lost.
                    Err(kube::Error::Api(status)) if status.code == 409 && number > 0 => Try::Done,
                    answer => told(answer),
                }
            }
            By::Rest(replica) => {
                spec["name"] = json!(name);
                spec["kubeconfigContents"] = json!(self.cluster.kubeconfig());
                let path = "/armory/accounts/dynamic";
                match self.rest_status(replica + number, "POST", path, &spec).await {
                    Ok((StatusCode::CONFLICT, _)) if number > 0 => Try::Done,
                    answer => told_by_rest(answer),
                }
            }
        }
    }

    /// Requests the deletion until it is accepted. Returns the uid of the deleted object, unless it was gone
    /// already.
    async fn until_deleted(&self, watcher: &Watcher, name: &str, by: By) -> Result<Option<String>, String> {
        let mut uid = None;
        until_done(async |number| {
            let account = match self.accounts().get_opt(name).await {
                Ok(Some(account)) => account,
                Ok(None) => return Try::Done,
                Err(error) => return Try::Again(error.to_string()),
            };
            uid.clone_from(&account.metadata.uid);
            if account.metadata.deletion_timestamp.is_some() {
                return Try::Done;
            }
            watcher.asked_to_go(uid.as_deref().unwrap_or_default());
            match by {
                By::Client => told(self.accounts().delete(name, &DeleteParams::default()).await),
                By::Rest(replica) => {
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
                Try::Again("it is still there".to_owned())
            }
            Ok(_) => Try::Done,
            Err(error) => Try::Again(error.to_string()),
        })
        .await
    }

    fn accounts(&self) -> kube::Api<KubesvcAccount> {
        self.world.api()
    }

    async fn rest(&self, replica: usize, method: &str, path: &str, body: &Value) -> Try {
        told_by_rest(self.rest_status(replica, method, path, body).await)
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
async fn until_done(mut attempt: impl AsyncFnMut(usize) -> Try) -> Result<(), String> {
    let mut last = String::new();
    for number in 0..TRIES {
        match attempt(number).await {
            Try::Done => return Ok(()),
            Try::Again(why) => last = why,
        }
        tokio::time::sleep(PAUSE).await;
    }
    Err(last)
}

fn told<T>(answer: Result<T, kube::Error>) -> Try {
    match answer {
        Ok(_) => Try::Done,
        Err(error) => Try::Again(error.to_string()),
    }
}

/// Interprets the response of a replica. If its list of accounts is outdated, it may not know one yet (400,
/// 404), or still list it (409).
fn told_by_rest(answer: Result<(StatusCode, String), String>) -> Try {
    match answer {
        Ok((StatusCode::ACCEPTED, _)) => Try::Done,
        Ok((status, text)) => Try::Again(format!("{status}: {text}")),
        Err(why) => Try::Again(why),
    }
}
