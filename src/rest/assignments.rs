//! `/armory/agent/assignments`: a new election of the agents that cache accounts.

use axum::extract::State;
use axum::http::StatusCode;
use futures::FutureExt as _;
use serde_json::Map;

use super::RestState;
use super::accounts::{refuse_if_any, summed_up};
use super::api::ApiError;
use super::body::{self, MediaTypes, PendingBody};
use super::change::{MAX_ATTEMPTS, patch};
use super::dto::AccountNames;
use super::error::{ErrorBody, RestError};
use super::extract::Force;
use super::gitops::gitops_owner;
use super::lookup::all;
use crate::account::{ELECT_CACHING_ANNOTATION, KubesvcAccount};
use crate::objects::AccountKey;

/// Elect a new caching agent for each of these accounts.
///
/// If another agent holds the account, it is elected. This works even if dynamic accounts are disabled, because accounts
/// from agents' own files need it.
#[utoipa::path(post, path = "/armory/agent/assignments", operation_id = "electCachingAgents", tag = "agents",
    params(Force),
    request_body(content = AccountNames, description = "Names of at most 1,000 accounts", example = json!(["prod"])),
    responses(
        (status = 200, description = "Stored; the election takes place at once for accounts that are ACTIVE, and for others when they become ACTIVE"),
        (status = 400, description = "The body is malformed, or an account is unknown or named twice; no election was requested", body = ErrorBody),
        (status = 409, description = "An account is being deleted, or a GitOps tool manages it; no election was requested", body = ErrorBody),
        (status = 413, description = "The body is too large", body = ErrorBody),
        (status = 415, description = "The body is not JSON in UTF-8", body = ErrorBody),
        (status = 503, description = "The Kubernetes API server is unavailable", body = ErrorBody),
    ))]
pub(super) async fn elect(
    State(state): State<RestState>,
    force: Force,
    received: PendingBody,
) -> Result<StatusCode, RestError> {
    let force = force.read()?;
    let (body, held) = body::read(&state, received, MediaTypes::Json).await?;
    let names = body::names(body)?;
    state
        .to_the_end(held, move |state| async move {
            let texts: Vec<&str> = names.iter().map(String::as_str).collect();
            let found = state.find_all(&texts).await?;
            let judged =
                texts.iter().zip(&found).map(|(name, found)| judge(name, found.account.as_ref(), force));
            refuse_if_any(judged.filter_map(Result::err).collect())?;
            let done = all(texts.iter().map(|name| ask(&state, name, force).boxed()).collect()).await;
            summed_up(done)
        })
        .await?;
    Ok(StatusCode::OK)
}

/// Returns the account if the request may ask for an election.
fn judge<'a>(
    name: &str,
    account: Option<&'a KubesvcAccount>,
    force: bool,
) -> Result<&'a KubesvcAccount, RestError> {
    let Some(account) = account else {
        return Err(RestError::bad_request(format!("account {name:?} does not exist")));
    };
    if account.is_being_deleted() {
        return Err(RestError::conflict(format!("account {name:?} is being deleted; wait until it is gone")));
    }
    if let Some(keeper) = gitops_owner(account).filter(|_| !force) {
        return Err(RestError::conflict(format!(
            "account {name:?} is managed by {keeper}; set the annotation {ELECT_CACHING_ANNOTATION} there, or repeat the request with ?force=true"
        )));
    }
    Ok(account)
}

/// Asks for the election of one account; retries after conflicts.
async fn ask(state: &RestState, name: &str, force: bool) -> Result<(), RestError> {
    for _ in 0..MAX_ATTEMPTS {
        let found = state.find(name).await?.account;
        let account = judge(name, found.as_ref(), force)?;
        let key = AccountKey::of(account);
        match patch(state, &key, account, &Map::new(), Some(ELECT_CACHING_ANNOTATION)).await {
            Err(ApiError::Changed | ApiError::NotFound | ApiError::Exists) => {}
            Err(trouble) => return Err(trouble.into()),
            Ok(()) => return Ok(()),
        }
    }
    Err(RestError::conflict(format!("account {name:?} is being changed by others; try again")))
}
