//! Documented calls that are not implemented. They answer 501, because 404 would suggest a wrong path.

use axum::Router;
use axum::http::StatusCode;
use axum::routing::{any, get, post};

use super::RestState;
use super::agents;
use super::error::RestError;

/// Routes of operations and of Clouddriver's account management.
pub(super) fn routes() -> Router<RestState> {
    Router::new()
        .route("/armory/agent/operations", get(operations).post(operations))
        .route("/armory/agent/operations/{operationId}", get(operations))
        // An agent may have the id `operations`.
        .route("/armory/agent/operations/disconnect", get(operations).post(agents::disconnect_operations))
        .route("/armory/agent/operationresults", post(operations))
        .route("/armory/agent/operations/database", get(operations).post(operations))
        .route("/credentials", any(credentials))
        .route("/credentials/{*rest}", any(credentials))
}

async fn operations() -> RestError {
    RestError::new(
        StatusCode::NOT_IMPLEMENTED,
        "operations are not implemented yet: this version registers accounts and their agents, and deploys nothing",
    )
}

async fn credentials() -> RestError {
    RestError::new(
        StatusCode::NOT_IMPLEMENTED,
        "requests to Clouddriver's account management are not forwarded yet; call Clouddriver itself, or /armory/accounts/dynamic here",
    )
}
