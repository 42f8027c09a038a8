//! Creates an account: its Secret, then its object. See [`credential`] for the reason for this order.
//!
//! The object is created with its finalizer, which saves the operator a write.
//!
//! [`credential`]: super::credential

use kube::api::PostParams;
use secrecy::ExposeSecret;

use super::RestState;
use super::api::{ApiCall, ApiError, Resource};
use super::credential::{AccountSecret, SecretWriteError};
use super::error::RestError;
use crate::account::kubeconfig;
use crate::account::owned_secret::AGENT_KEY;
use crate::account::spec::{AGENT_SOURCE, KubesvcAccountSpec, OWN_SOURCE};
use crate::account::spinnaker::{AccountInput, AgentSource, ClusterSource, validate};
use crate::account::{
    DesiredState, FIELD_MANAGER, FINALIZER, KubesvcAccount, KubesvcAccountSpec as Spec, ORIGIN_LABEL,
    ORIGIN_REST, names,
};
use crate::crash;
use crate::objects::AccountKey;

/// Result of [`create`].
pub(super) enum CreateOutcome {
    /// The account was created.
    Made,
    /// An account of that name exists; it was created meanwhile.
    Existed(Box<KubesvcAccount>),
}

/// Builds the object for a caller's definition. INACTIVE unless the definition has a state.
pub(super) fn object(given: &AccountInput) -> Result<KubesvcAccount, RestError> {
    let object = names::object_name(&given.name);
    let mut spec = Spec {
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
pub(super) fn check(name: &str, spec: &KubesvcAccountSpec) -> Result<(), RestError> {
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
pub(super) fn check_contents(given: &AccountInput, spec: &KubesvcAccountSpec) -> Result<(), RestError> {
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

/// Creates the account.
pub(super) async fn create(
    state: &RestState,
    given: &AccountInput,
    account: &KubesvcAccount,
) -> Result<CreateOutcome, RestError> {
    let key = AccountKey {
        namespace: state.settings.accounts_namespace.clone(),
        name: account.metadata.name.clone().unwrap_or_default(),
    };
    let credential = AccountSecret::of(state, &key);
    let contents = given.contents();
    let mut prepared = None;
    if !contents.is_empty() {
        match credential.prepare(&contents).await {
            Ok(version) => prepared = Some((&contents, version)),
            Err(SecretWriteError::Taken) => return existing(state, given).await,
            Err(SecretWriteError::Problem(problem)) => return Err(problem),
        }
    }
    crash::point("rest-create:before");
    let call =
        ApiCall { verb: "create", resource: Resource::Account, namespace: &key.namespace, name: &key.name };
    let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
    let made = match state.calls.ask(call, state.api(&key.namespace).create(&params, account)).await {
        Ok(made) => made,
        Err(trouble @ (ApiError::Exists | ApiError::Refused(_))) => {
            // Delete the Secret that this request prepared, unless another request's object uses it.
            if let Some((_, version)) = &prepared {
                credential.discard_written(version).await;
            }
            return match trouble {
                ApiError::Exists => existing(state, given).await,
                trouble => Err(trouble.into()),
            };
        }
        Err(trouble) => return Err(trouble.into()),
    };
    crash::point("rest-create:after");
    if let Some((contents, version)) = &prepared {
        match credential.complete(contents, version, &made).await {
            Ok(()) | Err(SecretWriteError::Taken) => {}
            Err(SecretWriteError::Problem(problem)) => return Err(problem),
        }
    }
    Ok(CreateOutcome::Made)
}

async fn existing(state: &RestState, given: &AccountInput) -> Result<CreateOutcome, RestError> {
    let found = state.find(&given.name).await?;
    match found.account {
        Some(account) => Ok(CreateOutcome::Existed(Box::new(account))),
        None => Err(in_the_way(&given.name, found.in_the_way.as_deref())),
    }
}

/// Returns the error for an object name that another account has, or had a moment ago.
pub(super) fn in_the_way(name: &str, other: Option<&str>) -> RestError {
    let object = names::object_name(name);
    RestError::conflict(match other {
        Some(other) => format!(
            "account {name:?} needs the object name {object}, which account {other:?} has; delete that account, or choose another name"
        ),
        None => format!(
            "account {name:?} was created and deleted by another client during the request; try again"
        ),
    })
}
