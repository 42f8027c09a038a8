//! What probes and people ask the agent over HTTP.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use axum::{Json, Router};
use parking_lot::Mutex;
use serde::Serialize;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::agent::{AgentError, AgentOptions};

/// How the agent is. Written by the link, read by health checks.
#[derive(Debug)]
pub struct Status {
    agent_id: String,
    zone_id: String,
    version: String,
    hub: String,
    started: Instant,
    now: Mutex<Now>,
}

#[derive(Clone, Debug, Default)]
struct Now {
    session: Option<Session>,
    problem: Option<String>,
    held: usize,
    starting: usize,
}

/// The stream in force.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Session {
    /// Its id.
    pub session_id: String,
    /// The replica of the operator that holds it.
    pub replica_id: String,
    /// Whether the agent is approved; one that is not is sent no accounts.
    pub approved: bool,
}

/// What the agent answers to whoever asks how it is.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    status: &'static str,
    agent_id: String,
    zone_id: String,
    version: String,
    hub: String,
    uptime_seconds: u64,
    connected: bool,
    #[serde(skip_serializing_if = "Option::is_none", flatten)]
    session: Option<Session>,
    accounts_held: usize,
    accounts_starting: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
}

/// Whether the agent is ready, and what is missing if it is not.
#[derive(Debug, Serialize)]
struct Readiness {
    status: &'static str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    missing: Vec<String>,
}

impl Status {
    /// An agent that has not connected yet.
    pub fn new(options: &AgentOptions) -> Self {
        Self {
            agent_id: options.agent_id.clone(),
            zone_id: options.zone_id.clone(),
            version: options.version.clone(),
            hub: options.hub.clone(),
            started: Instant::now(),
            now: Mutex::default(),
        }
    }

    /// The hub has accepted the agent.
    pub fn connected(&self, session: Session) {
        let mut now = self.now.lock();
        now.session = Some(session);
        now.problem = None;
    }

    /// The hub sends accounts, so the agent is approved, whatever was said first.
    pub fn approved(&self) {
        if let Some(session) = &mut self.now.lock().session {
            session.approved = true;
        }
    }

    /// There is no stream, and why.
    pub fn disconnected(&self, problem: impl Into<String>) {
        let mut now = self.now.lock();
        now.session = None;
        now.problem = Some(problem.into());
    }

    /// How many accounts are held and being started.
    pub fn accounts(&self, held: usize, starting: usize) {
        let mut now = self.now.lock();
        now.held = held;
        now.starting = starting;
    }

    /// Whether the hub has accepted the agent.
    pub fn is_connected(&self) -> bool {
        self.now.lock().session.is_some()
    }

    fn report(&self) -> Report {
        let Now { session, problem, held, starting } = self.now.lock().clone();
        Report {
            status: "UP",
            agent_id: self.agent_id.clone(),
            zone_id: self.zone_id.clone(),
            version: self.version.clone(),
            hub: self.hub.clone(),
            uptime_seconds: self.started.elapsed().as_secs(),
            connected: session.is_some(),
            session,
            accounts_held: held,
            accounts_starting: starting,
            problem,
        }
    }

    fn readiness(&self) -> (StatusCode, Readiness) {
        let now = self.now.lock();
        if now.session.is_some() {
            return (StatusCode::OK, Readiness { status: "UP", missing: Vec::new() });
        }
        let problem = now.problem.as_ref().map(|problem| format!(": {problem}")).unwrap_or_default();
        let missing = vec![format!("not connected to the hub {}{problem}", self.hub)];
        (StatusCode::SERVICE_UNAVAILABLE, Readiness { status: "DOWN", missing })
    }
}

/// Serves health checks.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    status: Arc<Status>,
}

impl Server {
    /// Takes the port.
    ///
    /// # Errors
    ///
    /// [`AgentError::HealthPort`] if it cannot be had.
    pub async fn bind(options: &AgentOptions, status: Arc<Status>) -> Result<Self, AgentError> {
        let host =
            if options.health_address.is_empty() { "0.0.0.0" } else { options.health_address.as_str() };
        let failed =
            |source| AgentError::HealthPort { address: format!("{host}:{}", options.health_port), source };
        let listener = TcpListener::bind((host, options.health_port)).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Self { listener, address, status })
    }

    /// Where it serves.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `stop`.
    pub async fn serve(self, stop: CancellationToken) {
        let stopped = stop.clone();
        let serving =
            axum::serve(self.listener, routes(self.status)).with_graceful_shutdown(stop.cancelled_owned());
        let grace = async {
            stopped.cancelled().await;
            // A probe that keeps its connection must not keep the agent.
            tokio::time::sleep(Duration::from_secs(1)).await;
        };
        tokio::select! {
            result = serving => if let Err(error) = result {
                tracing::error!(%error, "health checks are not served any longer");
            },
            () = grace => {}
        }
    }
}

fn routes(status: Arc<Status>) -> Router {
    Router::new()
        .route("/health", get(async |State(status): State<Arc<Status>>| Json(status.report())))
        .route("/health/liveness", get(async || Json(Readiness { status: "UP", missing: Vec::new() })))
        .route(
            "/health/readiness",
            get(async |State(status): State<Arc<Status>>| {
                let (code, readiness) = status.readiness();
                (code, Json(readiness))
            }),
        )
        .with_state(status)
}
