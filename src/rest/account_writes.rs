//! Creates, changes and deletes an account.
//!
//! A new account's Secret is written first, then its object; see [`AccountSecret`] for the reason for this order. The
//! object is created with its finalizer, which saves the operator a write.
//!
//! A change or deletion is judged, written, and judged again after a conflict. A spec change and the retry annotation
//! go into one patch, so that a crash leaves both or neither. A Secret that the new spec needs is written before the
//! patch, and one that it no longer needs is deleted after it. Either is deleted with the account at the latest, and
//! repeating the request leads to the same state. If the patch is not made after all because the account is gone or
//! being deleted, the Secret written for it is deleted.

use kube::api::{DeleteParams, Preconditions};
use secrecy::ExposeSecret;
use serde_json::{Map, Value, json};
use ulid::Ulid;

use super::RestState;
use super::callers::RestCaller;
use super::error::RestError;
use super::request_rules::{AccountVerb, RequestEffect, decide};
use crate::informers::AccountKey;
use kubesvc_core::json::merge_patch;
use kubesvc_core::kubeconfig;
use kubesvc_core::lifecycle::displayed_state;
use kubesvc_core::owned_secret::{AGENT_KEY, Contents, SecretVersion, keys_named_by};
use kubesvc_core::spec::{AGENT_SOURCE, KubesvcAccountSpec, OWN_SOURCE};
use kubesvc_core::spinnaker::{AccountInput, AgentSource, ClusterSource, validate};
use kubesvc_core::{
    DesiredState, FINALIZER, KubesvcAccount, ORIGIN_LABEL, ORIGIN_REST, RETRY_ANNOTATION, object_names,
};
use kubesvc_runtime::account_secret::{AccountSecret, AccountSecretError};
use kubesvc_runtime::kube_access::{KubeError, WriteOptions, none_if_gone};

/// Maximum number of times a request is judged, the repetitions after conflicts included.
pub(super) const MAX_ATTEMPTS: usize = 5;

/// Builds the object for a caller's definition. INACTIVE unless the definition has a state.
pub(super) fn object(given: &AccountInput) -> Result<KubesvcAccount, RestError> {
    let object = object_names::object_name(&given.name);
    let mut spec = KubesvcAccountSpec {
        account_name: (object != given.name).then(|| given.name.clone()),
        state: Some(given.state.unwrap_or(DesiredState::Inactive)),
        ..KubesvcAccountSpec::default()
    };
    given.apply_to(&mut spec).map_err(|problem| about(&given.name, &problem.to_string()))?;
    if given.source.is_none() {
        return Err(about(
            &given.name,
            "give exactly one of kubeconfigContents, kubeconfigFile and serviceAccount: true",
        ));
    }
    given.put_contents_into(&mut spec, &object);
    check(&given.name, &spec)?;
    check_contents(given, &spec)?;
    let mut account = KubesvcAccount::new(&object, spec);
    account.metadata.labels = Some([(ORIGIN_LABEL.to_owned(), ORIGIN_REST.to_owned())].into());
    account.metadata.finalizers = Some(vec![FINALIZER.to_owned()]);
    Ok(account)
}

/// Refuses a spec that the API server would refuse.
fn check(name: &str, spec: &KubesvcAccountSpec) -> Result<(), RestError> {
    let problems = validate(spec);
    if problems.is_empty() { Ok(()) } else { Err(about(name, &problems.join("; "))) }
}

impl RestState {
    /// Refuses sources that accounts of this namespace may not use.
    pub(super) fn may_use(&self, given: &AccountInput, namespace: &str) -> Result<(), RestError> {
        let agents = match &given.agent_source {
            Some(AgentSource::Set(source)) => Some(source),
            _ => None,
        };
        for (field, source) in [(OWN_SOURCE, given.source.as_ref()), (AGENT_SOURCE, agents)] {
            let Some(source) = source.and_then(ClusterSource::in_spec) else { continue };
            let checked = self.settings.source_rules.check_source(namespace, field, &source);
            checked.map_err(|failure| about(&given.name, &failure.message))?;
        }
        Ok(())
    }
}

/// Refuses a kubeconfig that no agent would be sent, before it is stored.
fn check_contents(given: &AccountInput, spec: &KubesvcAccountSpec) -> Result<(), RestError> {
    given.contents().into_iter().try_for_each(|(key, contents)| {
        let field = if key == AGENT_KEY { "kubeconfigAgent" } else { "kubeconfigContents" };
        kubeconfig::vet(contents.expose_secret().as_bytes(), spec.context.as_deref())
            .and_then(|vetted| vetted.with_insecure(spec.insecure.unwrap_or_default()))
            .map(drop)
            .map_err(|refusal| about(&given.name, &format!("{field} is refused: {refusal}")))
    })
}

pub(super) fn about(name: &str, problem: &str) -> RestError {
    RestError::bad_request(format!("account {name:?}: {problem}"))
}

/// Creates the account. Returns the account that already exists under the name, if there is one.
pub(super) async fn create(
    state: &RestState,
    caller: &RestCaller,
    name: &str,
    contents: &Contents<'_>,
    account: &KubesvcAccount,
) -> Result<Option<KubesvcAccount>, RestError> {
    let key = AccountKey {
        namespace: state.settings.accounts_namespace.clone(),
        name: account.metadata.name.clone().unwrap_or_default(),
    };
    let options = WriteOptions::default().at("rest-create");
    match state.secret(&key).create_account(contents, account, options).await? {
        Some(_) => {
            caller.wrote(name);
            Ok(None)
        }
        None => existing(state, caller, name).await,
    }
}

async fn existing(
    state: &RestState,
    caller: &RestCaller,
    name: &str,
) -> Result<Option<KubesvcAccount>, RestError> {
    let found = state.find_as(caller, name, "get").await?;
    if found.is_hidden {
        return Err(taken(name));
    }
    match found.account {
        Some(account) => Ok(Some(account)),
        None => Err(in_the_way(name, found.in_the_way.as_deref())),
    }
}

/// Returns the error for a name, or its object name, that something has of which the caller may not know.
pub(super) fn taken(name: &str) -> RestError {
    RestError::conflict(format!("account {name:?}: the name is taken; choose another one"))
}

/// Returns the error for an object name that another account has, or had a moment ago.
pub(super) fn in_the_way(name: &str, other: Option<&str>) -> RestError {
    let object = object_names::object_name(name);
    RestError::conflict(match other {
        Some(other) => format!(
            "account {name:?} needs the object name {object}, which account {other:?} has; delete that account, or choose another name"
        ),
        None => format!(
            "account {name:?} was created and deleted by another client during the request; try again"
        ),
    })
}

/// A change or deletion of one account.
pub(super) struct AccountChange<'a> {
    /// Who makes it.
    pub(super) caller: &'a RestCaller,
    /// Name of the account.
    pub(super) name: &'a str,
    /// The request.
    pub(super) request: AccountVerb,
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
    /// The right on the account that it needs.
    pub(super) fn right(&self) -> &'static str {
        if self.request == AccountVerb::Delete { "delete" } else { "update" }
    }

    /// Refuses sources that the caller may not use.
    pub(super) async fn may_use_sources(&self, account: Option<&KubesvcAccount>) -> Result<(), RestError> {
        let (Some(given), Some(account)) = (self.set(), account) else { return Ok(()) };
        let AccountKey { namespace, name } = AccountKey::of(account);
        self.caller.may_use(given, &namespace, &name).await
    }

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
            && let Some(owner) = account.gitops_owner()
        {
            return Err(RestError::conflict(format!(
                "account {:?} is managed by {owner}; change it there, or repeat the request with ?force=true",
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
        let changes = merge_patch(&json!(account.spec), &json!(spec));
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
            state.secret(key).discard_written(version).await;
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
            let found = state.find_as(self.caller, self.name, self.right()).await?.account;
            if found.is_none() && self.request == AccountVerb::Delete {
                return Ok(()); // It existed when the request was checked.
            }
            // What is written may be another object than the one that was looked at when the request was checked.
            self.may_use_sources(found.as_ref()).await?;
            let plan = self.judge(found.as_ref())?;
            let Some(account) = found else { break };
            if let Some(given) = self.set() {
                state.may_use(given, &AccountKey::of(&account).namespace)?;
            }
            match self.write(state, &account, &plan, stored).await {
                Ok(()) => {
                    self.caller.wrote(self.name);
                    return Ok(());
                }
                Err(AccountSecretError::Taken) => {}
                Err(AccountSecretError::Api(error)) if error.is_stale() => {}
                Err(error) => return Err(error.into()),
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
    ) -> Result<(), AccountSecretError> {
        let (contents, named) = (self.contents(), keys_named_by(account));
        if plan.contents && !contents.keys().all(|key| named.contains(key)) {
            credential.change(&contents, account).await?;
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
    ) -> Result<(), AccountSecretError> {
        let key = AccountKey::of(account);
        let credential = state.secret(&key);
        if plan.contents
            && let Some(version) = credential.change(&self.contents(), account).await?
        {
            *stored = Some((key.clone(), version));
        }
        match &plan.write {
            PlannedWrite::Nothing => Ok(()),
            PlannedWrite::Delete => Ok(delete(state, &key, account).await?),
            PlannedWrite::Patch { spec, retry } => {
                let patched = patch(state, &key, account, spec, retry.then_some(RETRY_ANNOTATION)).await;
                // Without an answer, the spec may already name the Secret.
                if !patched.as_ref().is_err_and(KubeError::had_no_effect) {
                    *stored = None;
                }
                patched?;
                self.tidy(&credential, account, plan).await
            }
        }
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
) -> Result<(), KubeError> {
    let mut metadata = json!({ "uid": account.uid(), "resourceVersion": account.metadata.resource_version });
    if let Some(asks) = asks {
        metadata["annotations"] = json!({ asks: Ulid::generate().to_string() });
    }
    let mut body = json!({ "metadata": metadata });
    if !spec.is_empty() {
        body["spec"] = Value::Object(spec.clone());
    }
    let options = WriteOptions::default().at("rest-patch");
    state.objects(&key.namespace).patch(&key.name, &body, options).await.map(drop)
}

async fn delete(state: &RestState, key: &AccountKey, account: &KubesvcAccount) -> Result<(), KubeError> {
    let preconditions = Preconditions { uid: account.metadata.uid.clone(), resource_version: None };
    let parameters = DeleteParams::background().preconditions(preconditions);
    let options = WriteOptions::default().at("rest-delete");
    none_if_gone(state.objects(&key.namespace).delete(&key.name, &parameters, options).await).map(drop)
}

#[cfg(test)]
mod tests;
