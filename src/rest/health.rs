//! Health, metrics and the OpenAPI description. While the process starts, it is alive, but not ready.

use std::io;
use std::sync::Arc;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::middleware::from_fn;
use axum::response::IntoResponse;
use axum::{Json, Router};
use parking_lot::Mutex;
use serde::Serialize;
use tokio::net::TcpListener;
use utoipa::ToSchema;

use super::RestState;
use super::access_rules::{AccessRule, GuardedRoutes, get};
use super::error::{self, RestError};
use super::extract::ExcludedChecks;
use kubesvc_core::ReplicaId;
use kubesvc_runtime::background_tasks::TaskReport;

/// Readiness of this process.
pub trait Readiness: Send + Sync {
    /// What is missing, each with the reason. Empty if the process is ready.
    fn missing(&self) -> Vec<(String, String)>;

    /// The current leader, if this replica knows it.
    fn leader(&self) -> Option<ReplicaId>;
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
    fn down(replica_id: &ReplicaId, missing: impl IntoIterator<Item = (String, String)>) -> Self {
        let missing = missing.into_iter().map(|(what, why)| Missing { what, why }).collect();
        Self { status: "DOWN", replica: Some(replica_id.to_string()), leader: None, missing }
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
    let (replica, leader) = (state.settings.replica_id.clone(), state.readiness.leader());
    (code, Json(Health { status, replica: Some(replica.into()), leader: leader.map(String::from), missing }))
}

/// Get the readiness of the replica that responds.
#[utoipa::path(get, path = "/health", operation_id = "health", tag = "health",
    responses(
        (status = 200, description = "The replica is ready", body = Health),
        (status = 503, description = "The replica is not ready; `missing` lists the failed checks", body = Health),
    ))]
pub(super) async fn health(State(state): State<RestState>) -> (StatusCode, Json<Health>) {
    ready(&state, &ExcludedChecks::default())
}

/// Get the liveness of the process.
#[utoipa::path(get, path = "/health/liveness", operation_id = "liveness", tag = "health",
    responses(
        (status = 200, description = "The process responds", body = Health),
    ))]
pub(super) async fn liveness() -> Json<Health> {
    Json(Health { status: "UP", replica: None, leader: None, missing: Vec::new() })
}

/// Get the readiness of the replica that responds.
#[utoipa::path(get, path = "/health/readiness", operation_id = "readiness", tag = "health", params(ExcludedChecks),
    responses(
        (status = 200, description = "The replica is ready", body = Health),
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
    ))]
pub(super) async fn tasks(State(state): State<RestState>) -> Json<Vec<TaskReport>> {
    Json(state.tasks.report())
}

/// Get metrics for Prometheus.
#[utoipa::path(get, path = "/metrics", operation_id = "metrics", tag = "health",
    responses(
        (status = 200, description = "Metrics in the OpenMetrics text format", body = String, content_type = "application/openmetrics-text"),
    ))]
pub(super) async fn metrics(State(state): State<RestState>) -> impl IntoResponse {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], (state.metrics)())
}

/// What a starting process waits for, as `/health` reports it.
#[derive(Clone)]
pub struct StartupState {
    replica_id: ReplicaId,
    waits_for: Arc<Mutex<(&'static str, String)>>,
}

impl StartupState {
    /// Creates the state of a replica that waits for `what` because of `why`.
    pub fn new(replica_id: &ReplicaId, what: &'static str, why: &str) -> Self {
        Self { replica_id: replica_id.to_owned(), waits_for: Arc::new(Mutex::new((what, why.to_owned()))) }
    }

    /// Changes what the process waits for. Returns whether it differs from before.
    pub fn waits_for(&self, what: &'static str, why: &str) -> bool {
        let mut held = self.waits_for.lock();
        let changed = (held.0, held.1.as_str()) != (what, why);
        *held = (what, why.to_owned());
        changed
    }
}

/// Routes until [`super::router`] takes over: the process is alive, not ready, and reports what is missing.
pub fn starting(starting: StartupState) -> Router {
    GuardedRoutes::default()
        .slashed("/health/liveness", get(AccessRule::Open, liveness))
        .slashed("/health/readiness", get(AccessRule::Open, starting_readiness))
        .slashed("/health", get(AccessRule::Open, starting_readiness))
        .into_router()
        .fallback(starting_unavailable)
        .method_not_allowed_fallback(error::wrong_method)
        .with_state(starting)
        .layer(from_fn(error::shape))
}

/// Returns two listeners on the same port. Connections go to either, so none is refused while one server takes over
/// from the other.
///
/// # Errors
/// Returns the error of the system call.
pub fn second_listener(listener: TcpListener) -> io::Result<(TcpListener, TcpListener)> {
    let first = listener.into_std()?;
    let second = first.try_clone()?;
    Ok((TcpListener::from_std(first)?, TcpListener::from_std(second)?))
}

/// Reports 503 whatever is excluded, because a starting process neither accepts agents nor answers for accounts.
async fn starting_readiness(State(starting): State<StartupState>) -> (StatusCode, Json<Health>) {
    let (what, why) = starting.waits_for.lock().clone();
    let missing = [(what.to_owned(), why), ("running".to_owned(), "the operator is starting".to_owned())];
    (StatusCode::SERVICE_UNAVAILABLE, Json(Health::down(&starting.replica_id, missing)))
}

async fn starting_unavailable(State(starting): State<StartupState>) -> RestError {
    let (what, why) = starting.waits_for.lock().clone();
    RestError::unavailable(format!("the operator is starting and waits for the {what}: {why}"))
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::http::Request;
    use http_body_util::BodyExt as _;
    use serde_json::{Value, json};
    use tower::ServiceExt as _;

    use super::*;

    async fn get(router: &Router, path: &str) -> (u16, Value) {
        let request = Request::get(path).body(Body::empty()).expect("a request");
        let answer = router.clone().oneshot(request).await.expect("infallible");
        let status = answer.status().as_u16();
        let body = answer.into_body().collect().await.expect("a body").to_bytes();
        (status, serde_json::from_slice(&body).expect("JSON"))
    }

    #[tokio::test]
    async fn a_process_that_starts_is_alive_not_ready_and_names_what_it_waits_for() {
        let state = StartupState::new(&"replica-1".into(), "database", "it is being opened");
        let router = starting(state.clone());
        assert_eq!(get(&router, "/health/liveness").await, (200, json!({"status": "UP"})));
        assert!(!state.waits_for("database", "it is being opened"));
        assert!(state.waits_for("database", "nobody is there"));
        for path in ["/health", "/health/readiness", "/health/readiness?exclude=database"] {
            let (status, body) = get(&router, path).await;
            assert_eq!(
                (status, &body["status"], &body["replica"]),
                (503, &json!("DOWN"), &json!("replica-1"))
            );
            assert_eq!(body["missing"][0], json!({"what": "database", "why": "nobody is there"}), "{path}");
        }
        let (status, body) = get(&router, "/armory/accounts").await;
        assert_eq!((status, &body["path"]), (503, &json!("/armory/accounts")));
        assert!(body["message"].as_str().is_some_and(|text| text.contains("nobody is there")), "{body}");
    }
}
