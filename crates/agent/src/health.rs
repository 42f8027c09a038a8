//! Health and status of the agent over HTTP, for probes and people.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use axum::{Json, Router};
use parking_lot::Mutex;
use serde::Serialize;

use crate::AgentOptions;
use crate::account_table::{AccountTable, ListedState, StateCounts};
use crate::caching::SharedStream;
use crate::static_accounts::StaticAccountFile;
use crate::watch_registry::{ListedWatch, WatchRegistry};
use kubesvc_core::wire::common::Failure;
use kubesvc_runtime::background_tasks::TaskRegistry;

/// Maximum number of accounts, or of watches, in one response.
const MAX_SHOWN: usize = 10_000;

/// Status of the agent: written by the link, read by health checks.
#[derive(Debug)]
pub struct AgentStatus {
    agent_id: String,
    zone_id: String,
    version: String,
    hub: String,
    started: Instant,
    own: StaticAccountFile,
    table: Arc<Mutex<AccountTable>>,
    now: Mutex<CurrentStatus>,
}

#[derive(Clone, Debug, Default)]
struct CurrentStatus {
    session: Option<StreamStatus>,
    problem: Option<String>,
}

/// The current session.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StreamStatus {
    pub session_id: String,
    /// The operator replica that has the session.
    pub replica_id: String,
    /// Whether the agent is approved. An agent that is not approved is sent no accounts.
    pub approved: bool,
}

/// Response of `/health`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct HealthReport {
    status: &'static str,
    agent_id: String,
    zone_id: String,
    version: String,
    hub: String,
    uptime_seconds: u64,
    connected: bool,
    #[serde(skip_serializing_if = "Option::is_none", flatten)]
    session: Option<StreamStatus>,
    accounts_held: usize,
    accounts_starting: usize,
    accounts_failed: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
    /// Reason why the current settings files are not in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    config_problem: Option<String>,
}

/// Response of the liveness and readiness probes: the status, and what is missing for it.
#[derive(Debug, Serialize)]
struct AgentReadiness {
    status: &'static str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    missing: Vec<String>,
}

impl AgentStatus {
    /// Creates the status of an agent that has not connected yet.
    pub fn new(options: &AgentOptions, table: Arc<Mutex<AccountTable>>) -> Self {
        Self {
            agent_id: options.agent_id.to_string(),
            zone_id: options.zone_id.clone(),
            version: options.version.clone(),
            hub: options.settings.hub.grpc.clone(),
            started: Instant::now(),
            own: options.own.clone(),
            table,
            now: Mutex::default(),
        }
    }

    /// Records that the hub has accepted the agent.
    pub fn connected(&self, session: StreamStatus) {
        let mut now = self.now.lock();
        now.session = Some(session);
        now.problem = None;
    }

    /// Records that the agent is approved, because the hub sends accounts, whatever it said at first.
    pub fn approved(&self) {
        if let Some(session) = &mut self.now.lock().session {
            session.approved = true;
        }
    }

    /// Records that there is no stream, and why.
    pub fn disconnected(&self, problem: impl Into<String>) {
        let mut now = self.now.lock();
        now.session = None;
        now.problem = Some(problem.into());
    }

    fn report(&self) -> HealthReport {
        let CurrentStatus { session, problem } = self.now.lock().clone();
        let counts = self.table.lock().counts();
        HealthReport {
            status: "UP",
            agent_id: self.agent_id.clone(),
            zone_id: self.zone_id.clone(),
            version: self.version.clone(),
            hub: self.hub.clone(),
            uptime_seconds: self.started.elapsed().as_secs(),
            connected: session.is_some(),
            session,
            accounts_held: counts.held,
            accounts_starting: counts.starting,
            accounts_failed: counts.failed,
            problem,
            config_problem: self.own.problem(),
        }
    }

    fn accounts(&self) -> AccountsReport {
        AccountsReport::of(&self.zone_id, &self.table.lock(), &self.own)
    }

    fn readiness(&self) -> (StatusCode, AgentReadiness) {
        let now = self.now.lock();
        if now.session.is_some() {
            return (StatusCode::OK, AgentReadiness { status: "UP", missing: Vec::new() });
        }
        let problem = now.problem.as_ref().map(|problem| format!(": {problem}")).unwrap_or_default();
        let missing = vec![format!("not connected to the hub {}{problem}", self.hub)];
        (StatusCode::SERVICE_UNAVAILABLE, AgentReadiness { status: "DOWN", missing })
    }
}

/// Response of `/accounts`: the accounts of an agent, the first 10,000 by name.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct AccountsReport {
    total: usize,
    accounts: Vec<AccountReport>,
}

#[derive(Debug, Serialize)]
struct AccountReport {
    name: String,
    /// `HELD`, `STARTING`, `FAILED`, or `REFUSED` for an account of the agent's own file that the hub does
    /// not accept.
    state: &'static str,
    zone: String,
    /// `static` for an account of the agent's own file, otherwise `hub`.
    source: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    class: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

impl AccountsReport {
    fn of(zone: &str, table: &AccountTable, own: &StaticAccountFile) -> Self {
        let listing = table.listing(MAX_SHOWN, &own.current());
        let mut refused = own.refused();
        let mut accounts: BTreeMap<String, AccountReport> = BTreeMap::new();
        for one in listing {
            refused.remove(&one.name);
            let state = match one.state {
                ListedState::Held => "HELD",
                ListedState::Starting => "STARTING",
                ListedState::Failed => "FAILED",
            };
            let mut report = account_report(zone, one.name.clone(), state, one.is_own, one.failure);
            report.since = one.since.map(|since| since.to_string());
            accounts.insert(one.name, report);
        }
        let StateCounts { held, starting, failed } = table.counts();
        let total = held + starting + failed + refused.len();
        for (name, failure) in refused {
            accounts.insert(name.clone(), account_report(zone, name, "REFUSED", true, Some(failure)));
        }
        Self { total, accounts: accounts.into_values().take(MAX_SHOWN).collect() }
    }
}

fn account_report(
    zone: &str,
    name: String,
    state: &'static str,
    is_own: bool,
    failure: Option<Failure>,
) -> AccountReport {
    AccountReport {
        name,
        state,
        zone: zone.to_owned(),
        source: if is_own { "static" } else { "hub" },
        since: None,
        class: failure.as_ref().map(|failure| failure.class().as_str_name()),
        reason: failure.map(|failure| failure.message),
    }
}

/// Response of `/watches`: what is read of clusters, the first 10,000 by account, kind, group and namespace.
#[derive(Debug, Serialize)]
struct WatchesReport {
    total: usize,
    watches: Vec<ListedWatch>,
}

impl WatchesReport {
    fn of((registry, stream): &(WatchRegistry, Arc<SharedStream>)) -> Self {
        let (total, watches) = registry.listing(MAX_SHOWN, stream);
        Self { total, watches }
    }
}

/// The HTTP routes that name accounts. `watches` are what is read of clusters.
pub(super) fn account_routes(
    status: Arc<AgentStatus>,
    watches: (WatchRegistry, Arc<SharedStream>),
) -> Router {
    Router::new()
        .route("/watches", get(async move || Json(WatchesReport::of(&watches))))
        .route("/accounts", get(async |State(status): State<Arc<AgentStatus>>| Json(status.accounts())))
        .with_state(status)
}

/// The HTTP routes for everyone.
pub(super) fn routes(status: Arc<AgentStatus>, tasks: TaskRegistry) -> Router {
    Router::new()
        .route("/health", get(async |State(status): State<Arc<AgentStatus>>| Json(status.report())))
        .route("/health/tasks", get(async move || Json(tasks.report())))
        .route("/health/liveness", get(async || Json(AgentReadiness { status: "UP", missing: Vec::new() })))
        .route(
            "/health/readiness",
            get(async |State(status): State<Arc<AgentStatus>>| {
                let (code, readiness) = status.readiness();
                (code, Json(readiness))
            }),
        )
        .with_state(status)
}
