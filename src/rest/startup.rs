//! REST while the process starts: alive, but not ready.

use std::io;
use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::middleware::from_fn;
use axum::routing::get;
use axum::{Json, Router};
use parking_lot::Mutex;
use tokio::net::TcpListener;

use super::error::{self, RestError};
use super::health::{self, Health};

/// What a starting process waits for, as `/health` reports it.
#[derive(Clone)]
pub struct StartupState {
    replica_id: String,
    waits_for: Arc<Mutex<(&'static str, String)>>,
}

impl StartupState {
    /// Creates the state of a replica that waits for `what` because of `why`.
    pub fn new(replica_id: &str, what: &'static str, why: &str) -> Self {
        Self { replica_id: replica_id.to_owned(), waits_for: Arc::new(Mutex::new((what, why.to_owned()))) }
    }

    /// Changes what the process waits for. Returns whether it differs from before.
    pub fn waits_for(&self, what: &'static str, why: &str) -> bool {
        let mut held = self.waits_for.lock();
        let news = (held.0, held.1.as_str()) != (what, why);
        *held = (what, why.to_owned());
        news
    }
}

/// Routes until [`super::router`] takes over: the process is alive, not ready, and reports what is missing.
pub fn starting(starting: StartupState) -> Router {
    Router::new()
        .route("/health/liveness", get(health::liveness))
        .route("/health/readiness", get(readiness))
        .route("/health", get(readiness))
        .fallback(unavailable)
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
async fn readiness(State(starting): State<StartupState>) -> (StatusCode, Json<Health>) {
    let (what, why) = starting.waits_for.lock().clone();
    let missing = [(what.to_owned(), why), ("running".to_owned(), "the operator is starting".to_owned())];
    (StatusCode::SERVICE_UNAVAILABLE, Json(Health::down(&starting.replica_id, missing)))
}

async fn unavailable(State(starting): State<StartupState>) -> RestError {
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
        let state = StartupState::new("replica-1", "database", "it is being opened");
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
