//! `/armory/accounts`: reading, activating, deactivating and deleting accounts. `/agents/kubernetes/accounts`:
//! Spinnaker's queries about one account.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use futures::FutureExt;
use serde_json::json;

use super::RestState;
use super::account_writes::AccountChange;
use super::body::{self, MediaTypes, PendingBody};
use super::callers::RestCaller;
use super::dto::{AccountNames, AccountOrNone, StateChanges};
use super::error::{ErrorBody, RestError};
use super::extract::{DynamicAccounts, Force, Paging, PathAccount};
use super::lookup::{NOT_READ_YET, all, refuse_if_any, summed_up};
use super::memory_limit::MemoryPermit;
use super::request_rules::AccountVerb;
use super::view::{AccountItem, AccountPage, AccountView};
use crate::account_caches::holders;
use kubesvc_core::spinnaker::AccountInput;
use kubesvc_core::{AgentId, DesiredState, KubesvcAccount};

/// Activate or deactivate accounts, and change other fields of those that are activated.
#[utoipa::path(patch, path = "/armory/accounts", operation_id = "patchAccounts", tag = "accounts",
    params(Force), request_body(content = StateChanges, description = "At most 1,000 accounts"),
    responses(
        (status = 202, description = "Accepted; the states of the accounts show the progress"),
        (status = 400, description = "The body is malformed, or an account is unknown or static; nothing was changed", body = ErrorBody),
        (status = 409, description = "An account is being deleted, or a GitOps tool manages it; nothing was changed", body = ErrorBody),
    ))]
pub(super) async fn patch(
    _: DynamicAccounts,
    State(state): State<RestState>,
    caller: RestCaller,
    Force(force): Force,
    received: PendingBody,
) -> Result<StatusCode, RestError> {
    let (body, held) = body::read(&state, received, MediaTypes::Json).await?;
    let given = body::accounts(body::objects(body)?)?;
    if let Some(stateless) = given.iter().find(|given| given.state.is_none()) {
        let name = &stateless.name;
        return Err(RestError::bad_request(format!("account {name:?}: state must be ACTIVE or INACTIVE")));
    }
    state
        .to_the_end(held, move |state| async move {
            let changes: Vec<_> = given.iter().map(|given| state_change(&caller, given, force)).collect();
            change_all(&state, &changes).await
        })
        .await?;
    Ok(StatusCode::ACCEPTED)
}

/// ACTIVE also sets the other fields of the body; INACTIVE only validates them.
fn state_change<'a>(caller: &'a RestCaller, given: &'a AccountInput, force: bool) -> AccountChange<'a> {
    let (request, sets) = match given.state {
        Some(DesiredState::Active) => (AccountVerb::Activate, true),
        _ => (AccountVerb::Deactivate, false),
    };
    AccountChange { caller, name: &given.name, request, given: Some(given), sets, force }
}

/// Delete accounts.
#[utoipa::path(delete, path = "/armory/accounts", operation_id = "deleteAccounts", tag = "accounts",
    params(Force), request_body(content = AccountNames, description = "Names of at most 1,000 accounts"),
    responses(
        (status = 202, description = "Accepted; each account is removed once its agents have dropped it"),
        (status = 400, description = "The body is malformed, or an account is unknown or static; nothing was deleted", body = ErrorBody),
        (status = 409, description = "A GitOps tool manages an account; nothing was deleted", body = ErrorBody),
    ))]
pub(super) async fn delete(
    _: DynamicAccounts,
    State(state): State<RestState>,
    caller: RestCaller,
    Force(force): Force,
    received: PendingBody,
) -> Result<StatusCode, RestError> {
    let (body, held) = body::read(&state, received, MediaTypes::Lenient).await?;
    delete_all(&state, caller, held, body::names(body)?, force).await
}

/// Delete one account.
#[utoipa::path(delete, path = "/armory/accounts/{accountName}", operation_id = "deleteAccount", tag = "accounts",
    params(("accountName" = String, Path, description = "Name of the account, percent-encoded", min_length = 1, max_length = 255, pattern = r"^[^\x00-\x1f\x7f-\x9f]*$"), Force),
    responses(
        (status = 202, description = "Accepted; the account is removed once its agents have dropped it"),
        (status = 400, description = "The account is unknown or static", body = ErrorBody),
        (status = 409, description = "A GitOps tool manages the account", body = ErrorBody),
    ))]
pub(super) async fn delete_one(
    _: DynamicAccounts,
    State(state): State<RestState>,
    caller: RestCaller,
    Force(force): Force,
    PathAccount(name): PathAccount,
) -> Result<StatusCode, RestError> {
    delete_all(&state, caller, MemoryPermit::default(), vec![name], force).await
}

async fn delete_all(
    state: &RestState,
    caller: RestCaller,
    held: MemoryPermit,
    names: Vec<String>,
    force: bool,
) -> Result<StatusCode, RestError> {
    state
        .to_the_end(held, move |state| async move {
            let (request, given, sets) = (AccountVerb::Delete, None, false);
            let change = |name| AccountChange { caller: &caller, name, request, given, sets, force };
            let changes: Vec<_> = names.iter().map(|name| change(name)).collect();
            change_all(&state, &changes).await
        })
        .await?;
    Ok(StatusCode::ACCEPTED)
}

/// Judges all changes, and runs them only if none is refused.
pub(super) async fn change_all(state: &RestState, changes: &[AccountChange<'_>]) -> Result<(), RestError> {
    let Some(first) = changes.first() else { return Ok(()) };
    let names: Vec<_> = changes.iter().map(|change| (change.name, change.right())).collect();
    let found = state.find_all(first.caller, &names).await?;
    for (change, found) in changes.iter().zip(&found) {
        change.may_use_sources(found.account.as_ref()).await?;
    }
    let judged = changes.iter().zip(&found).map(|(change, found)| {
        change.judge(found.account.as_ref())?;
        let namespace = found.account.as_ref().and_then(|account| account.metadata.namespace.as_deref());
        change.given.map_or(Ok(()), |given| state.may_use(given, namespace.unwrap_or_default()))
    });
    refuse_if_any(judged.filter_map(Result::err).collect())?;
    let done = all(changes.iter().map(|change| change.run(state).boxed()).collect()).await;
    summed_up(done).map(drop)
}

/// Get one account.
#[utoipa::path(get, path = "/armory/accounts/{accountName}", operation_id = "getAccount", tag = "accounts",
    params(("accountName" = String, Path, description = "Name of the account, percent-encoded", min_length = 1, max_length = 255, pattern = r"^[^\x00-\x1f\x7f-\x9f]*$")),
    responses(
        (status = 200, description = "The account", body = AccountView),
        (status = 400, description = "The name is invalid", body = ErrorBody),
        (status = 404, description = "No such account", body = ErrorBody),
    ))]
pub(super) async fn get(
    State(state): State<RestState>,
    caller: RestCaller,
    PathAccount(name): PathAccount,
) -> Result<Json<AccountView>, RestError> {
    let view = state.view(&caller, &name).await?.ok_or_else(|| RestError::no_account(&name))?;
    Ok(Json(view))
}

/// List all accounts, sorted by name, in pages.
#[utoipa::path(get, path = "/armory/accounts", operation_id = "listAccounts", tag = "accounts",
    params(Paging),
    responses(
        (status = 200, description = "A page of accounts; it has no items if it is past the end", body = AccountPage),
        (status = 400, description = "`page` is not a number from 1, or `limit` is not a number from 1 to 1000", body = ErrorBody),
        (status = 503, description = "The operator has not read the accounts yet", body = ErrorBody),
    ))]
pub(super) async fn list(
    State(state): State<RestState>,
    caller: RestCaller,
    uri: Uri,
) -> Result<Json<AccountPage>, RestError> {
    let paging = Paging::read(uri.query())?;
    if !state.accounts.is_synced() {
        return Err(RestError::unavailable(NOT_READ_YET));
    }
    let mut accounts = state.accounts.all();
    accounts.sort_by(|a, b| a.account_name().cmp(b.account_name()));
    accounts.dedup_by(|later, earlier| later.account_name() == earlier.account_name());
    let winner = |account: &Arc<KubesvcAccount>| {
        state.accounts.by_account_name(account.account_name()).first().unwrap_or(account).clone()
    };
    let accounts = caller.visible(accounts.iter().map(winner).collect()).await?;
    let shown: Vec<_> = paging.cut(&accounts).iter().map(AsRef::as_ref).collect();
    let holders = state.holders(&shown).await;
    let items = shown.iter().zip(&holders).map(|(account, holders)| AccountItem::of(account, holders));
    Ok(Json(paging.page(items.collect(), accounts.len())))
}

/// Get one account, or an empty object if there is none.
#[utoipa::path(get, path = "/agents/kubernetes/accounts/{accountName}", operation_id = "getAgentAccount", tag = "accounts",
    params(("accountName" = String, Path, description = "Name of the account, percent-encoded", min_length = 1, max_length = 255, pattern = r"^[^\x00-\x1f\x7f-\x9f]*$")),
    responses(
        (status = 200, description = "The account, or an empty object", body = AccountOrNone),
        (status = 400, description = "The name is invalid", body = ErrorBody),
    ))]
pub(super) async fn get_or_empty(
    _: DynamicAccounts,
    State(state): State<RestState>,
    caller: RestCaller,
    PathAccount(name): PathAccount,
) -> Result<Response, RestError> {
    Ok(match state.view(&caller, &name).await? {
        Some(view) => Json(view).into_response(),
        None => Json(json!({})).into_response(),
    })
}

/// List the namespaces of an account: those that an agent last saw, otherwise the configured ones.
#[utoipa::path(get, path = "/agents/kubernetes/accounts/{accountName}/namespaces", operation_id = "getAccountNamespaces", tag = "accounts",
    params(("accountName" = String, Path, description = "Name of the account, percent-encoded", min_length = 1, max_length = 255, pattern = r"^[^\x00-\x1f\x7f-\x9f]*$")),
    responses(
        (status = 200, description = "Names, sorted", body = [String]),
        (status = 400, description = "The name is invalid", body = ErrorBody),
        (status = 404, description = "No such account", body = ErrorBody),
        (status = 503, description = "The Kubernetes API server or the database is unavailable", body = ErrorBody),
    ))]
pub(super) async fn namespaces(
    State(state): State<RestState>,
    caller: RestCaller,
    PathAccount(name): PathAccount,
) -> Result<Json<Vec<String>>, RestError> {
    let account =
        state.find_as(&caller, &name, "get").await?.account.ok_or_else(|| RestError::no_account(&name))?;
    let mut namespaces = match state.connected_agents.namespaces(account.uid()) {
        Some(seen) => seen,
        None => state.stored_namespaces(&name).await?.unwrap_or_else(|| account.spec.namespaces.clone()),
    };
    namespaces.sort_unstable();
    namespaces.dedup();
    Ok(Json(namespaces))
}

impl RestState {
    /// Returns one account, read from the API server.
    async fn view(&self, caller: &RestCaller, name: &str) -> Result<Option<AccountView>, RestError> {
        let Some(account) = self.find_as(caller, name, "get").await?.account else { return Ok(None) };
        let holders = self.holders(&[&account]).await.pop().unwrap_or_default();
        Ok(Some(AccountView::of(&account, &holders)))
    }

    /// Returns the ids of the agents that hold each of these accounts, sorted.
    pub(super) async fn holders(&self, accounts: &[&KubesvcAccount]) -> Vec<Vec<AgentId>> {
        holders(&*self.connected_agents, &self.peers, accounts).await
    }

    async fn stored_namespaces(&self, name: &str) -> Result<Option<Vec<String>>, RestError> {
        let read = self.store.namespaces(name).await;
        read.map_err(|problem| RestError::database(&problem, name, "an account's namespaces"))
    }
}
