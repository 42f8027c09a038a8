//! `/agents/kubernetes/accounts`: Spinnaker's queries about one account.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde_json::json;

use super::RestState;
use super::dto::AccountOrNone;
use super::error::{ErrorBody, RestError};
use super::extract::PathName;

/// Get one account, or an empty object if there is none.
#[utoipa::path(get, path = "/agents/kubernetes/accounts/{accountName}", operation_id = "getAgentAccount", tag = "accounts",
    params(("accountName" = String, Path, description = "Name of the account, percent-encoded", min_length = 1, max_length = 255, pattern = r"^[^\x00-\x1f\x7f-\x9f]*$")),
    responses(
        (status = 200, description = "The account, or an empty object", body = AccountOrNone),
        (status = 400, description = "The name is invalid", body = ErrorBody),
        (status = 501, description = "Dynamic accounts are disabled", body = ErrorBody),
        (status = 503, description = "The Kubernetes API server is unavailable", body = ErrorBody),
    ))]
pub(super) async fn account(State(state): State<RestState>, name: PathName) -> Result<Response, RestError> {
    state.dynamic_accounts()?;
    Ok(match state.view(&name.account()?).await? {
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
    name: PathName,
) -> Result<Json<Vec<String>>, RestError> {
    let name = name.account()?;
    let account = state.find(&name).await?.account.ok_or_else(|| RestError::no_account(&name))?;
    let mut namespaces = match state.fleet.namespaces(account.uid()) {
        Some(seen) => seen,
        None => state.stored_namespaces(&name).await?.unwrap_or_else(|| account.spec.namespaces.clone()),
    };
    namespaces.sort_unstable();
    namespaces.dedup();
    Ok(Json(namespaces))
}

impl RestState {
    async fn stored_namespaces(&self, name: &str) -> Result<Option<Vec<String>>, RestError> {
        self.store.namespaces(name).await.map_err(|problem| {
            tracing::warn!(error = %problem, account = name, "cannot read an account's namespaces");
            RestError::unavailable("the database cannot be used now; try again")
        })
    }
}
