//! `/armory/accounts/dynamic`: accounts from their whole definition.
//!
//! PUT sets the fields that the body names. A field that it does not name keeps its value, and null resets a field to
//! its default. So a definition that was read can be sent back although it holds no credential, and omitting
//! permissions does not remove them.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use futures::FutureExt;
use serde_json::Value;

use super::RestState;
use super::account_writes::{self, AccountChange, create, in_the_way, taken};
use super::accounts::change_all;
use super::body::{self, MediaTypes, PendingBody};
use super::callers::RestCaller;
use super::dto::{AccountDefinition, Definitions, StateChanges};
use super::error::{ErrorBody, RestError};
use super::extract::{DynamicAccounts, Force, PathAccount};
use super::lookup::{FoundAccount, all, refuse_if_any, summed_up};
use super::request_rules::{AccountVerb, RequestEffect, decide};
use super::view::{AccountView, ExistingAccount};
use kubesvc_core::lifecycle::displayed_state;
use kubesvc_core::spinnaker::AccountInput;
use kubesvc_core::{DesiredState, KubesvcAccount};

/// An account may have the name of the last segment of this path.
const OWN_NAME: &str = "dynamic";

/// Add accounts from their definitions.
#[utoipa::path(post, path = "/armory/accounts/dynamic", operation_id = "createAccounts", tag = "accounts",
    request_body(content = Definitions, description = "One account, or a list of at most 1,000"),
    responses(
        (status = 202, description = "Accepted: an empty list", body = [ExistingAccount]),
        (status = 400, description = "The body is malformed; nothing was added", body = ErrorBody),
        (status = 409, description = "These accounts already existed; the others were added", body = [ExistingAccount]),
    ))]
pub(super) async fn post(
    _: DynamicAccounts,
    State(state): State<RestState>,
    caller: RestCaller,
    received: PendingBody,
) -> Result<Response, RestError> {
    let (body, held) = body::read(&state, received, MediaTypes::Json).await?;
    let objects = match body {
        Value::Object(fields) => vec![fields],
        other => body::objects(other)?,
    };
    let wanted: Vec<(AccountInput, KubesvcAccount)> = body::accounts(objects)?
        .into_iter()
        .map(|given| account_writes::object(&given).map(|account| (given, account)))
        .collect::<Result<_, _>>()?;
    let namespace = &state.settings.accounts_namespace;
    let names: Vec<&str> = wanted.iter().map(|(given, _)| given.name.as_str()).collect();
    state.may_create(&caller, &names).await?;
    for (given, account) in &wanted {
        caller.may_use(given, namespace, account.metadata.name.as_deref().unwrap_or_default()).await?;
    }
    refuse_if_any(wanted.iter().filter_map(|(given, _)| state.may_use(given, namespace).err()).collect())?;
    state.watches_accounts()?;
    let creating = move |state: RestState| async move { create_all(&state, &caller, &wanted).await };
    let existing = state.to_the_end(held, creating).await?;
    let status = if existing.is_empty() { StatusCode::ACCEPTED } else { StatusCode::CONFLICT };
    Ok((status, Json(existing)).into_response())
}

/// Creates the accounts that do not exist. Returns those that did, in the order of the request.
async fn create_all(
    state: &RestState,
    caller: &RestCaller,
    wanted: &[(AccountInput, KubesvcAccount)],
) -> Result<Vec<ExistingAccount>, RestError> {
    let names: Vec<_> = wanted.iter().map(|(given, _)| (given.name.as_str(), "get")).collect();
    let found = state.find_all(caller, &names).await?;
    let blocked = names.iter().zip(&found).filter(|(_, found)| found.account.is_none());
    let problem = |((name, _), found): (&(&str, _), &FoundAccount)| match &found.in_the_way {
        _ if found.is_hidden => Some(taken(name)),
        Some(other) => Some(in_the_way(name, Some(other))),
        None => None,
    };
    refuse_if_any(blocked.filter_map(problem).collect())?;
    state.creates(caller, wanted.iter().zip(&found).map(|((given, _), found)| (given.name.as_str(), found)));
    let each = wanted
        .iter()
        .zip(found)
        .map(|((given, account), found)| create_one(state, caller, given, account, found).boxed());
    let results = all(each.collect()).await;
    Ok(summed_up(results)?.into_iter().flatten().collect())
}

/// Creates one account, or returns the existing one.
async fn create_one(
    state: &RestState,
    caller: &RestCaller,
    given: &AccountInput,
    account: &KubesvcAccount,
    found: FoundAccount,
) -> Result<Option<ExistingAccount>, RestError> {
    let now = found.account.as_ref().map(|existing| (displayed_state(existing), existing.desired()));
    if let (Some(existing), RequestEffect::Nothing) = (found.account, decide(now, AccountVerb::Add).effect) {
        return Ok(Some(ExistingAccount::of(&existing)));
    }
    Ok(create(state, caller, &given.name, &given.contents(), account)
        .await?
        .as_ref()
        .map(ExistingAccount::of))
}

/// Change an account.
#[utoipa::path(put, path = "/armory/accounts/dynamic", operation_id = "updateAccount", tag = "accounts",
    params(Force), request_body = AccountDefinition,
    responses(
        (status = 202, description = "Accepted: an empty list", body = [ExistingAccount]),
        (status = 400, description = "The body is malformed, or the account is static", body = ErrorBody),
        (status = 404, description = "No such account", body = ErrorBody),
        (status = 409, description = "The account is being deleted, or a GitOps tool manages it", body = ErrorBody),
    ))]
pub(super) async fn put(
    _: DynamicAccounts,
    State(state): State<RestState>,
    caller: RestCaller,
    Force(force): Force,
    received: PendingBody,
) -> Result<(StatusCode, Json<Vec<ExistingAccount>>), RestError> {
    let (body, held) = body::read(&state, received, MediaTypes::Json).await?;
    let Value::Object(fields) = body else {
        return Err(RestError::bad_request("the body must be an object: one account"));
    };
    let given = body::account(fields)?;
    state
        .to_the_end(held, move |state| async move {
            let request = match given.state {
                None => AccountVerb::Put,
                Some(DesiredState::Active) => AccountVerb::Activate,
                Some(DesiredState::Inactive) => AccountVerb::Deactivate,
            };
            let (name, sets) = (given.name.as_str(), true);
            let change = AccountChange { caller: &caller, name, request, given: Some(&given), sets, force };
            exists(&state, &change).await?;
            change_all(&state, &[change]).await
        })
        .await?;
    Ok((StatusCode::ACCEPTED, Json(Vec::new())))
}

/// Returns 404 for an unknown account, so that a PUT with a state answers like a PUT without one.
async fn exists(state: &RestState, change: &AccountChange<'_>) -> Result<(), RestError> {
    let found = state.find_as(change.caller, change.name, change.right()).await?;
    found.account.map(drop).ok_or_else(|| RestError::no_account(change.name))
}

/// Get the account named `dynamic`.
#[utoipa::path(get, path = "/armory/accounts/dynamic", operation_id = "getAccountCalledDynamic", tag = "accounts",
    responses(
        (status = 200, description = "The account", body = AccountView),
        (status = 404, description = "No such account", body = ErrorBody),
    ))]
pub(super) async fn get(state: State<RestState>, caller: RestCaller) -> Result<Json<AccountView>, RestError> {
    super::accounts::get(state, caller, PathAccount(OWN_NAME.to_owned())).await
}

/// Delete the account named `dynamic`.
#[utoipa::path(delete, path = "/armory/accounts/dynamic", operation_id = "deleteAccountCalledDynamic", tag = "accounts",
    params(Force),
    responses(
        (status = 202, description = "Accepted; the account is removed once its agents have dropped it"),
        (status = 400, description = "The account is unknown or static", body = ErrorBody),
        (status = 409, description = "A GitOps tool manages the account", body = ErrorBody),
    ))]
pub(super) async fn delete(
    enabled: DynamicAccounts,
    state: State<RestState>,
    caller: RestCaller,
    force: Force,
) -> Result<StatusCode, RestError> {
    super::accounts::delete_one(enabled, state, caller, force, PathAccount(OWN_NAME.to_owned())).await
}

/// Activate or deactivate accounts, as PATCH /armory/accounts does.
#[utoipa::path(patch, path = "/armory/accounts/dynamic", operation_id = "patchDynamicAccounts", tag = "accounts",
    params(Force), request_body(content = StateChanges, description = "At most 1,000 accounts"),
    responses(
        (status = 202, description = "Accepted; the states of the accounts show the progress"),
        (status = 400, description = "The body is malformed, or an account is unknown or static; nothing was changed", body = ErrorBody),
        (status = 409, description = "An account is being deleted, or a GitOps tool manages it; nothing was changed", body = ErrorBody),
    ))]
pub(super) async fn patch(
    enabled: DynamicAccounts,
    state: State<RestState>,
    caller: RestCaller,
    force: Force,
    received: PendingBody,
) -> Result<StatusCode, RestError> {
    super::accounts::patch(enabled, state, caller, force, received).await
}
