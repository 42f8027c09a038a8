//! Changes and deletes an account: judges the request, writes the result, and judges again after a conflict.
//!
//! A spec change and the retry annotation go into one patch, so that a crash leaves both or neither. A Secret that
//! the new spec needs is written before the patch, and one that it no longer needs is deleted after it. Either is
//! deleted with the account at the latest, and repeating the request leads to the same state. If the patch is not
//! made after all because the account is gone or being deleted, the Secret written for it is deleted.

use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use serde_json::{Map, Value, json};
use ulid::Ulid;

use super::RestState;
use super::api::{ApiCall, ApiError, Resource};
use super::create::{about, check, check_contents};
use super::credential::{AccountSecret, SecretWriteError};
use super::decide::{Request, RequestEffect, decide};
use super::error::RestError;
use super::gitops::gitops_owner;
use crate::account::lifecycle::displayed_state;
use crate::account::owned_secret::{Contents, SecretVersion, keys_named_by};
use crate::account::spec::KubesvcAccountSpec;
use crate::account::spinnaker::AccountInput;
use crate::account::{DesiredState, FIELD_MANAGER, KubesvcAccount, RETRY_ANNOTATION};
use crate::crash;
use crate::objects::AccountKey;

/// Maximum number of times a request is judged, the repetitions after conflicts included.
pub(super) const MAX_ATTEMPTS: usize = 5;

/// A change or deletion of one account.
pub(super) struct AccountChange<'a> {
    /// Name of the account.
    pub(super) name: &'a str,
    /// The request.
    pub(super) request: Request,
    /// The account in the body, if the body has one.
    pub(super) given: Option<&'a AccountInput>,
    /// Whether `given` is written to the spec, and not only validated.
    pub(super) sets: bool,
    /// Whether to change the object even if a GitOps tool manages it.
    pub(super) force: bool,
}

/// The writes that a request needs.
pub(super) struct ChangePlan {
    write: PlannedWrite,
    contents: bool,
}

enum PlannedWrite {
    Nothing,
    Patch { spec: Map<String, Value>, retry: bool },
    Delete,
}

impl AccountChange<'_> {
    /// Returns the plan for the account in its current state, or the reason for a refusal.
    pub(super) fn judge(&self, account: Option<&KubesvcAccount>) -> Result<ChangePlan, RestError> {
        if let Some(account) = account
            && account.is_static()
        {
            return Err(about(self.name, "it comes from an agent's own configuration; change it there"));
        }
        let verdict =
            decide(account.map(|account| (displayed_state(account), account.desired())), self.request);
        let Some(account) = account else {
            return Err(RestError::new(verdict.status, format!("account {:?} does not exist", self.name)));
        };
        if !verdict.status.is_success() {
            let problem = format!("account {:?} is being deleted; wait until it is gone", self.name);
            return Err(RestError::new(verdict.status, problem));
        }
        let plan = self.plan(account, verdict.effect)?;
        if plan.writes()
            && !self.force
            && let Some(keeper) = gitops_owner(account)
        {
            return Err(RestError::conflict(format!(
                "account {:?} is managed by {keeper}; change it there, or repeat the request with ?force=true",
                self.name
            )));
        }
        Ok(plan)
    }

    fn plan(&self, account: &KubesvcAccount, effect: RequestEffect) -> Result<ChangePlan, RestError> {
        let (desired, retry) = match effect {
            RequestEffect::Nothing | RequestEffect::Create => {
                return Ok(ChangePlan { write: PlannedWrite::Nothing, contents: false });
            }
            RequestEffect::Delete => return Ok(ChangePlan { write: PlannedWrite::Delete, contents: false }),
            RequestEffect::RetryDelete => {
                return Ok(ChangePlan {
                    write: PlannedWrite::Patch { spec: Map::new(), retry: true },
                    contents: false,
                });
            }
            RequestEffect::Store => (None, false),
            RequestEffect::Retry => (None, true),
            RequestEffect::Desire(desired) => (Some(desired), false),
            RequestEffect::DesireAndRetry(desired) => (Some(desired), true),
        };
        let spec = self.new_spec(account, desired)?;
        let changes = difference(&json!(account.spec), &json!(spec));
        let write = if changes.is_empty() && !retry {
            PlannedWrite::Nothing
        } else {
            PlannedWrite::Patch { spec: changes, retry }
        };
        Ok(ChangePlan { write, contents: !self.contents().is_empty() })
    }

    fn new_spec(
        &self,
        account: &KubesvcAccount,
        desired: Option<DesiredState>,
    ) -> Result<KubesvcAccountSpec, RestError> {
        let mut spec = account.spec.clone();
        if let Some(given) = self.given.filter(|given| self.sets || !given.is_bare()) {
            let mut changed = spec.clone();
            given.apply_to(&mut changed).map_err(|problem| about(self.name, &problem.to_string()))?;
            given.put_contents_into(&mut changed, account.metadata.name.as_deref().unwrap_or_default());
            check(self.name, &changed)?;
            check_contents(given, &changed)?;
            if self.sets {
                spec = changed;
            }
        }
        if desired.is_some_and(|desired| desired != account.desired()) {
            spec.state = desired;
        }
        Ok(spec)
    }

    fn set(&self) -> Option<&AccountInput> {
        self.given.filter(|_| self.sets)
    }

    fn contents(&self) -> Contents<'_> {
        self.set().map(AccountInput::contents).unwrap_or_default()
    }

    /// Reads the account, judges the request and writes the plan; retries after conflicts.
    pub(super) async fn run(&self, state: &RestState) -> Result<(), RestError> {
        let mut stored = None;
        let result = self.run_storing(state, &mut stored).await;
        if let (Err(_), Some((key, version))) = (&result, &stored) {
            AccountSecret::of(state, key).discard_written(version).await;
        }
        result
    }

    /// `stored` is the Secret that was written and that no patch names yet.
    async fn run_storing(
        &self,
        state: &RestState,
        stored: &mut Option<(AccountKey, SecretVersion)>,
    ) -> Result<(), RestError> {
        for _ in 0..MAX_ATTEMPTS {
            let found = state.find(self.name).await?.account;
            if found.is_none() && self.request == Request::Delete {
                return Ok(()); // It existed when the request was checked.
            }
            let plan = self.judge(found.as_ref())?;
            let Some(account) = found else { break };
            match self.write(state, &account, &plan, stored).await {
                Err(ApiError::Changed | ApiError::NotFound | ApiError::Exists) => {}
                Err(trouble) => {
                    if let ApiError::Unknown(_) = trouble {
                        *stored = None; // The spec may already name it.
                    }
                    return Err(trouble.into());
                }
                Ok(()) => return Ok(()),
            }
        }
        Err(RestError::conflict(format!("account {:?} is being changed by others; try again", self.name)))
    }

    /// Cleans up after a change of source: removes keys of the Secret that are no longer used, and writes the used
    /// ones again if another request has just removed them because the account did not use them.
    async fn tidy(
        &self,
        credential: &AccountSecret<'_>,
        account: &KubesvcAccount,
        plan: &ChangePlan,
    ) -> Result<(), ApiError> {
        let (contents, named) = (self.contents(), keys_named_by(account));
        if plan.contents && !contents.keys().all(|key| named.contains(key)) {
            credential.change(&contents, account).await.map_err(error_answer)?;
        }
        let may_be_unused = named.iter().any(|key| !contents.contains_key(key));
        if self.set().is_some_and(AccountInput::has_source) && may_be_unused {
            credential.discard().await;
        }
        Ok(())
    }

    async fn write(
        &self,
        state: &RestState,
        account: &KubesvcAccount,
        plan: &ChangePlan,
        stored: &mut Option<(AccountKey, SecretVersion)>,
    ) -> Result<(), ApiError> {
        let key = AccountKey::of(account);
        let credential = AccountSecret::of(state, &key);
        if plan.contents
            && let Some(version) = credential.change(&self.contents(), account).await.map_err(error_answer)?
        {
            *stored = Some((key.clone(), version));
        }
        match &plan.write {
            PlannedWrite::Nothing => Ok(()),
            PlannedWrite::Delete => delete(state, &key, account).await,
            PlannedWrite::Patch { spec, retry } => {
                patch(state, &key, account, spec, retry.then_some(RETRY_ANNOTATION)).await?;
                *stored = None;
                self.tidy(&credential, account, plan).await
            }
        }
    }
}

/// A Secret that is taken means that the account was replaced or is being deleted.
fn error_answer(denied: SecretWriteError) -> ApiError {
    match denied {
        SecretWriteError::Taken => ApiError::Changed,
        SecretWriteError::Problem(problem) => ApiError::Refused(problem),
    }
}

impl ChangePlan {
    fn writes(&self) -> bool {
        self.contents || !matches!(self.write, PlannedWrite::Nothing)
    }
}

/// Writes a change of the spec and, if `asks` is given, a new value for that annotation.
pub(super) async fn patch(
    state: &RestState,
    key: &AccountKey,
    account: &KubesvcAccount,
    spec: &Map<String, Value>,
    asks: Option<&str>,
) -> Result<(), ApiError> {
    let mut metadata = json!({ "uid": account.uid(), "resourceVersion": account.metadata.resource_version });
    if let Some(asks) = asks {
        metadata["annotations"] = json!({ asks: Ulid::generate().to_string() });
    }
    let mut body = json!({ "metadata": metadata });
    if !spec.is_empty() {
        body["spec"] = Value::Object(spec.clone());
    }
    let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    crash::point("rest-patch:before");
    let api = state.api(&key.namespace);
    state.calls.ask(call("patch", key), api.patch(&key.name, &params, &Patch::Merge(body))).await?;
    crash::point("rest-patch:after");
    Ok(())
}

async fn delete(state: &RestState, key: &AccountKey, account: &KubesvcAccount) -> Result<(), ApiError> {
    let preconditions = Preconditions { uid: account.metadata.uid.clone(), resource_version: None };
    let params = DeleteParams::background().preconditions(preconditions);
    crash::point("rest-delete:before");
    let api = state.api(&key.namespace);
    state.calls.ask_for(call("delete", key), api.delete(&key.name, &params)).await?;
    crash::point("rest-delete:after");
    Ok(())
}

fn call<'k>(verb: &'static str, key: &'k AccountKey) -> ApiCall<'k> {
    ApiCall { verb, resource: Resource::Account, namespace: &key.namespace, name: &key.name }
}

/// Returns the JSON merge patch between two objects: removed keys are null, equal ones are left out.
fn difference(old: &Value, new: &Value) -> Map<String, Value> {
    let empty = Map::new();
    let (old, new) = (old.as_object().unwrap_or(&empty), new.as_object().unwrap_or(&empty));
    let mut patch: Map<String, Value> =
        old.keys().filter(|key| !new.contains_key(*key)).map(|key| (key.clone(), Value::Null)).collect();
    for (key, value) in new {
        match old.get(key) {
            Some(before) if before == value => {}
            Some(before) if before.is_object() && value.is_object() => {
                patch.insert(key.clone(), Value::Object(difference(before, value)));
            }
            _ => {
                patch.insert(key.clone(), value.clone());
            }
        }
    }
    patch
}

#[cfg(test)]
mod tests;
