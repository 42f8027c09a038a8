//! Health, metrics and the OpenAPI description.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use serde::Serialize;
use utoipa::ToSchema;

use super::extract::ExcludedChecks;
use super::{RestState, openapi};

/// Readiness of this process.
pub trait Readiness: Send + Sync {
    /// What is missing, each with the reason. Empty if the process is ready.
    fn missing(&self) -> Vec<(String, String)>;

    /// The current leader, if this replica knows it.
    fn leader(&self) -> Option<String>;

    /// How long the API server has answered this replica without a gap; zero if it does not answer.
    fn answered_for(&self) -> Duration;
}

/// How the process is.
#[derive(Serialize, ToSchema)]
pub(super) struct Health {
    /// `UP` or `DOWN`.
    status: &'static str,
    /// This replica; not at `/health/liveness`.
    #[serde(skip_serializing_if = "Option::is_none")]
    replica: Option<String>,
    /// The replica that leads, as far as it is known here; not at `/health/liveness`.
    #[serde(skip_serializing_if = "Option::is_none")]
    leader: Option<String>,
    /// What is missing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    missing: Vec<Missing>,
}

impl Health {
    /// A replica that is not ready because these are missing, each with the reason.
    pub(super) fn down(replica_id: &str, missing: impl IntoIterator<Item = (String, String)>) -> Self {
        let missing = missing.into_iter().map(|(what, why)| Missing { what, why }).collect();
        Self { status: "DOWN", replica: Some(replica_id.to_owned()), leader: None, missing }
    }
}

/// Something that is missing.
#[derive(Serialize, ToSchema)]
pub(super) struct Missing {
    /// What.
    what: String,
    /// Why, and what to do.
    why: String,
}

fn ready(state: &RestState, excluded: &ExcludedChecks) -> (StatusCode, Json<Health>) {
    let missing: Vec<Missing> =
        state.readiness.missing().into_iter().map(|(what, why)| Missing { what, why }).collect();
    let (code, status) = if missing.iter().all(|one| excluded.has(&one.what)) {
        (StatusCode::OK, "UP")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "DOWN")
    };
    let (replica, leader) = (Some(state.settings.replica_id.clone()), state.readiness.leader());
    (code, Json(Health { status, replica, leader, missing }))
}

/// Whether the process can serve.
#[utoipa::path(get, path = "/health", operation_id = "health", tag = "health",
    responses(
        (status = 200, description = "It can serve", body = Health),
        (status = 405, description = "Only GET is allowed", body = super::error::ErrorBody),
        (status = 503, description = "Something is missing", body = Health),
    ))]
pub(super) async fn health(State(state): State<RestState>) -> (StatusCode, Json<Health>) {
    ready(&state, &ExcludedChecks::default())
}

/// Whether the process turns.
#[utoipa::path(get, path = "/health/liveness", operation_id = "liveness", tag = "health",
    responses(
        (status = 200, description = "It turns", body = Health),
        (status = 405, description = "Only GET is allowed", body = super::error::ErrorBody),
    ))]
pub(super) async fn liveness() -> Json<Health> {
    Json(Health { status: "UP", replica: None, leader: None, missing: Vec::new() })
}

/// Whether the process can serve.
#[utoipa::path(get, path = "/health/readiness", operation_id = "readiness", tag = "health", params(ExcludedChecks),
    responses(
        (status = 200, description = "It can serve", body = Health),
        (status = 405, description = "Only GET is allowed", body = super::error::ErrorBody),
        (status = 503, description = "Something is missing", body = Health),
    ))]
pub(super) async fn readiness(
    State(state): State<RestState>,
    excluded: ExcludedChecks,
) -> (StatusCode, Json<Health>) {
    ready(&state, &excluded)
}

/// Metrics for Prometheus.
#[utoipa::path(get, path = "/metrics", operation_id = "metrics", tag = "health",
    responses(
        (status = 200, description = "Metrics in OpenMetrics text", body = String, content_type = "application/openmetrics-text"),
        (status = 405, description = "Only GET is allowed", body = super::error::ErrorBody),
    ))]
pub(super) async fn metrics(State(state): State<RestState>) -> impl IntoResponse {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], (state.metrics)())
}

/// This description.
#[utoipa::path(get, path = "/openapi.json", operation_id = "openapi", tag = "health",
    responses(
        (status = 200, description = "The OpenAPI document", body = std::collections::BTreeMap<String, serde_json::Value>),
        (status = 405, description = "Only GET is allowed", body = super::error::ErrorBody),
    ))]
pub(super) async fn description() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], openapi::text())
}
