//! `/agents/kubernetes/accounts/{name}/cache`: what is cached of an account.

use axum::Json;
use axum::extract::State;
use axum::http::Uri;

use super::RestState;
use super::callers::RestCaller;
use super::error::{ErrorBody, RestError};
use super::extract::PathAccount;
use crate::access::AccessResource;
use crate::account_caches::{AccountCache, CacheQuery, CacheViewError};

/// Show what is cached of an account.
///
/// With `kind` and `name`, also one object: the version and age of its row, or why it has none.
#[utoipa::path(get, path = "/agents/kubernetes/accounts/{accountName}/cache", operation_id = "getAccountCache", tag = "accounts",
    params(("accountName" = String, Path, description = "Name of the account, percent-encoded", min_length = 1, max_length = 255, pattern = r"^[^\x00-\x1f\x7f-\x9f]*$"), CacheQuery),
    responses(
        (status = 200, description = "The kinds that are watched, and the object", body = AccountCache),
        (status = 400, description = "A parameter is malformed, or several kinds have that name", body = ErrorBody),
        (status = 404, description = "No such account, or it has no such kind", body = ErrorBody),
        (status = 503, description = "The Kubernetes API server or the database is unavailable", body = ErrorBody),
    ))]
pub(super) async fn get(
    State(state): State<RestState>,
    caller: RestCaller,
    PathAccount(name): PathAccount,
    uri: Uri,
) -> Result<Json<AccountCache>, RestError> {
    let query = CacheQuery::read(uri.query())?;
    let account = state
        .find_for(&caller, &name, "get", AccessResource::Cache)
        .await?
        .account
        .ok_or_else(|| RestError::no_account(&name))?;
    Ok(Json(state.caches.view(&account, &query).await?))
}

impl From<CacheViewError> for RestError {
    fn from(error: CacheViewError) -> Self {
        Self::new(error.status(), error.to_string())
    }
}
