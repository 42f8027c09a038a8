//! `/armory/agents` and `/armory/agent`: the connected agents.

use std::collections::HashSet;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::RestState;
use super::body;
use super::dto::DisconnectRequest;
use super::error::{ErrorBody, Problem};
use super::extract::PathName;
use super::view::caching_agent;
use crate::fleet::AgentView;

/// A connected agent.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct ArmoryAgent {
    /// Names of the accounts it holds, sorted.
    accounts: Vec<String>,
    /// The agent.
    agent_id: String,
    /// Whether it streams the objects of at least one account.
    caching: bool,
    /// The replica that holds its stream.
    clouddriver_id: String,
    /// Since when its stream stands.
    last_connection: String,
    /// `kubernetes`.
    #[serde(rename = "type")]
    kind: &'static str,
    /// Whether that replica is there.
    clouddriver_alive: bool,
}

impl ArmoryAgent {
    fn of(agent: AgentView, caching: &HashSet<String>) -> Self {
        let mut accounts = agent.accounts;
        accounts.sort_unstable();
        Self {
            accounts,
            caching: caching.contains(&agent.agent_id),
            agent_id: agent.agent_id,
            clouddriver_id: agent.replica_id,
            last_connection: format!("{:.3}", agent.connected_since),
            kind: "kubernetes",
            clouddriver_alive: true,
        }
    }
}

impl RestState {
    /// Agents that stream the objects of an account.
    fn caching_agents(&self) -> HashSet<String> {
        self.accounts.all().iter().filter_map(|account| caching_agent(account).map(str::to_owned)).collect()
    }
}

/// All connected agents, by id.
#[utoipa::path(get, path = "/armory/agents", operation_id = "listAgents", tag = "agents",
    responses(
        (status = 200, description = "The connected agents", body = [ArmoryAgent]),
        (status = 405, description = "Only GET is allowed", body = ErrorBody),
    ))]
pub(super) async fn list(State(state): State<RestState>) -> Json<Vec<ArmoryAgent>> {
    let caching = state.caching_agents();
    let mut agents = state.fleet.agents();
    agents.sort_by(|a, b| a.agent_id.cmp(&b.agent_id));
    Json(agents.into_iter().map(|agent| ArmoryAgent::of(agent, &caching)).collect())
}

/// One connected agent.
#[utoipa::path(get, path = "/armory/agents/{agentId}", operation_id = "getAgent", tag = "agents",
    params(("agentId" = String, Path, description = "Id of the agent, percent-encoded")),
    responses(
        (status = 200, description = "The agent", body = ArmoryAgent),
        (status = 400, description = "No id", body = ErrorBody),
        (status = 404, description = "No such agent is connected", body = ErrorBody),
    ))]
pub(super) async fn get(State(state): State<RestState>, id: PathName) -> Result<Json<ArmoryAgent>, Problem> {
    let id = id.agent()?;
    let agent = state.fleet.agents().into_iter().find(|agent| agent.agent_id == id);
    let agent = agent.ok_or_else(|| not_connected(&id))?;
    Ok(Json(ArmoryAgent::of(agent, &state.caching_agents())))
}

/// Disconnect an agent; it may connect again at once.
#[utoipa::path(post, path = "/armory/agent/{agentId}/disconnect", operation_id = "disconnectAgent", tag = "agents",
    params(("agentId" = String, Path, description = "Id of the agent, percent-encoded")),
    request_body = Option<DisconnectRequest>,
    responses(
        (status = 200, description = "Its stream was closed"),
        (status = 400, description = "Malformed", body = ErrorBody),
        (status = 404, description = "No such agent is connected", body = ErrorBody),
        (status = 413, description = "The body is too large", body = ErrorBody),
        (status = 415, description = "The body is no JSON in UTF-8", body = ErrorBody),
    ))]
pub(super) async fn disconnect(
    State(state): State<RestState>,
    id: PathName,
    headers: HeaderMap,
    body: Body,
) -> Result<StatusCode, Problem> {
    if let Some(body) = body::read_optional(&headers, body, state.settings.max_body_bytes).await? {
        check(&body)?;
    }
    let id = id.agent()?;
    if !state.fleet.disconnect(&id) {
        return Err(not_connected(&id));
    }
    tracing::info!(agentId = id, "disconnected at a caller's request");
    Ok(StatusCode::OK)
}

fn check(body: &Value) -> Result<(), Problem> {
    let Value::Object(fields) = body else {
        return Err(Problem::bad_request("the body must be an object, or empty"));
    };
    let wrong = |field: &str, good: fn(&Value) -> bool| {
        fields.get(field).is_some_and(|value| !value.is_null() && !good(value))
    };
    if wrong("clusterDriven", Value::is_boolean) {
        return Err(Problem::bad_request("clusterDriven must be true or false"));
    }
    if wrong("origin", Value::is_string) {
        return Err(Problem::bad_request("origin must be a string"));
    }
    if wrong("timestamp", Value::is_number) {
        return Err(Problem::bad_request("timestamp must be a number"));
    }
    Ok(())
}

fn not_connected(id: &str) -> Problem {
    let shown: String = id.chars().take(255).collect();
    Problem::not_found(format!("agent {shown:?} is not connected"))
}
