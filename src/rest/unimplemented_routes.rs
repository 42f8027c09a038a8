//! Documented calls that are not built yet: 501 says so, where 404 would look like a wrong address.

use axum::Router;
use axum::http::StatusCode;
use axum::routing::{any, get, post};

use super::RestState;
use super::agents;
use super::error::RestError;

/// Calls about operations, and Clouddriver's account management.
pub(super) fn routes() -> Router<RestState> {
    Router::new()
        .route("/armory/agent/operations", get(operations).post(operations))
        .route("/armory/agent/operations/{operationId}", get(operations))
        // An agent may have that name.
        .route("/armory/agent/operations/disconnect", get(operations).post(agents::disconnect_operations))
        .route("/armory/agent/operationresults", post(operations))
        .route("/armory/agent/operations/database", get(operations).post(operations))
        .route("/credentials", any(credentials))
        .route("/credentials/{*rest}", any(credentials))
}

async fn operations() -> RestError {
    RestError::new(
        StatusCode::NOT_IMPLEMENTED,
        "operations are not built yet: this version registers accounts and their agents, and deploys nothing",
    )
}

async fn credentials() -> RestError {
    RestError::new(
        StatusCode::NOT_IMPLEMENTED,
        "Clouddriver's account management is not passed on yet; call Clouddriver itself, or /armory/accounts/dynamic here",
    )
}
