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
use crate::background_tasks::TaskReport;

/// Readiness of this process.
pub trait Readiness: Send + Sync {
    /// What is missing, each with the reason. Empty if the process is ready.
    fn missing(&self) -> Vec<(String, String)>;

    /// The current leader, if this replica knows it.
    fn leader(&self) -> Option<String>;

    /// How long the API server has answered this replica without a gap; zero if it does not answer.
    fn answered_for(&self) -> Duration;
}

/// Health of a replica.
#[derive(Serialize, ToSchema)]
pub(super) struct Health {
    /// `UP` or `DOWN`.
    status: &'static str,
    /// Id of this replica; absent at `/health/liveness`.
    #[serde(skip_serializing_if = "Option::is_none")]
    replica: Option<String>,
    /// Id of the leader, if this replica knows it; absent at `/health/liveness`.
    #[serde(skip_serializing_if = "Option::is_none")]
    leader: Option<String>,
    /// Failed readiness checks.
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

/// A failed readiness check.
#[derive(Serialize, ToSchema)]
pub(super) struct Missing {
    /// Name of the check.
    what: String,
    /// Why the check fails, and what to do.
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

/// Get the readiness of the replica that responds.
#[utoipa::path(get, path = "/health", operation_id = "health", tag = "health",
    responses(
        (status = 200, description = "The replica is ready", body = Health),
        (status = 405, description = "Only GET is allowed", body = super::error::ErrorBody),
        (status = 503, description = "The replica is not ready; `missing` lists the failed checks", body = Health),
    ))]
pub(super) async fn health(State(state): State<RestState>) -> (StatusCode, Json<Health>) {
    ready(&state, &ExcludedChecks::default())
}

/// Get the liveness of the process.
#[utoipa::path(get, path = "/health/liveness", operation_id = "liveness", tag = "health",
    responses(
        (status = 200, description = "The process responds", body = Health),
        (status = 405, description = "Only GET is allowed", body = super::error::ErrorBody),
    ))]
pub(super) async fn liveness() -> Json<Health> {
    Json(Health { status: "UP", replica: None, leader: None, missing: Vec::new() })
}

/// Get the readiness of the replica that responds.
#[utoipa::path(get, path = "/health/readiness", operation_id = "readiness", tag = "health", params(ExcludedChecks),
    responses(
        (status = 200, description = "The replica is ready", body = Health),
        (status = 405, description = "Only GET is allowed", body = super::error::ErrorBody),
        (status = 503, description = "The replica is not ready; `missing` lists the failed checks", body = Health),
    ))]
pub(super) async fn readiness(
    State(state): State<RestState>,
    excluded: ExcludedChecks,
) -> (StatusCode, Json<Health>) {
    ready(&state, &excluded)
}

/// Background tasks of the replica that answers.
#[utoipa::path(get, path = "/health/tasks", operation_id = "backgroundTasks", tag = "health",
    responses(
        (status = 200, description = "The running tasks, by name; the leader's tasks only at the leader", body = [TaskReport]),
        (status = 405, description = "Only GET is allowed", body = super::error::ErrorBody),
    ))]
pub(super) async fn tasks(State(state): State<RestState>) -> Json<Vec<TaskReport>> {
    Json(state.tasks.report())
}

/// Get metrics for Prometheus.
#[utoipa::path(get, path = "/metrics", operation_id = "metrics", tag = "health",
    responses(
        (status = 200, description = "Metrics in the OpenMetrics text format", body = String, content_type = "application/openmetrics-text"),
        (status = 405, description = "Only GET is allowed", body = super::error::ErrorBody),
    ))]
pub(super) async fn metrics(State(state): State<RestState>) -> impl IntoResponse {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], (state.metrics)())
}

/// Get this OpenAPI document.
#[utoipa::path(get, path = "/openapi.json", operation_id = "openapi", tag = "health",
    responses(
        (status = 200, description = "The OpenAPI document", body = std::collections::BTreeMap<String, serde_json::Value>),
        (status = 405, description = "Only GET is allowed", body = super::error::ErrorBody),
    ))]
pub(super) async fn description() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], openapi::text())
}
