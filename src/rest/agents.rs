//! `/armory/agents` and `/armory/agent`: the connected agents, and new elections of the agents that cache accounts.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use futures::FutureExt as _;
use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::RestState;
use super::account_writes::{MAX_ATTEMPTS, patch};
use super::body::{self, MediaTypes, PendingBody};
use super::caller_rules::RestAuthMode;
use super::callers::RestCaller;
use super::dto::{AccountNames, DisconnectRequest};
use super::error::{ErrorBody, RestError};
use super::extract::{Force, InZone, PathId};
use super::lookup::{all, refuse_if_any, summed_up};
use crate::connected_agents::AgentView;
use crate::informers::AccountKey;
use crate::peers::{RelayError, RemoteAgent};
use kubesvc_core::{
    AgentId, AgentKey, ELECT_CACHING_ANNOTATION, KubesvcAccount, KubesvcAccountStatus, ZoneId,
};

/// A connected agent.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct ArmoryAgent {
    /// Names of the accounts that the agent holds, sorted.
    accounts: Vec<String>,
    /// Id of the agent.
    agent_id: String,
    /// Zone of the agent: each zone may have an agent of the same id.
    zone_id: String,
    /// Whether the agent streams the objects of at least one account.
    caching: bool,
    /// Id of the replica that the agent is connected to.
    clouddriver_id: String,
    /// Time when the agent connected.
    last_connection: String,
    /// `kubernetes`.
    #[serde(rename = "type")]
    kind: &'static str,
    /// Whether the agent's replica responds.
    clouddriver_alive: bool,
}

impl ArmoryAgent {
    fn of(key: AgentKey, seen: RemoteAgent, caching: &HashSet<AgentKey>) -> Self {
        let RemoteAgent { agent, replica_answers } = seen;
        let mut accounts = agent.accounts;
        accounts.sort_unstable();
        Self {
            accounts,
            caching: caching.contains(&key),
            agent_id: key.id.into(),
            zone_id: key.zone.into(),
            clouddriver_id: agent.replica_id.into(),
            last_connection: format!("{:.3}", agent.connected_since),
            kind: "kubernetes",
            clouddriver_alive: replica_answers,
        }
    }
}

impl RestState {
    /// Returns the connected agents of all replicas, by id and zone, with the accounts that the caller may see. Agents of a replica that does not answer are shown as
    /// recorded in their objects.
    async fn agents(&self, caller: &RestCaller) -> Result<Vec<ArmoryAgent>, RestError> {
        let accounts = self.accounts.all();
        let statuses = accounts.iter().filter_map(|account| account.status.as_ref());
        let caching: HashSet<_> = statuses.filter_map(KubesvcAccountStatus::caching_agent_key).collect();
        let mut remote = self.peers.agents().await;
        self.fill_in_accounts(&mut remote);
        let own = self.connected_agents.agents().into_iter();
        let own = own.map(|agent| RemoteAgent { agent, replica_answers: true });
        let mut agents = latest(own.chain(remote));
        if caller.has_rights() {
            let visible = caller.visible(accounts.clone()).await?;
            let visible: HashSet<&str> = visible.iter().map(|account| account.account_name()).collect();
            // With `log` too, an agent may hold accounts that the index does not have.
            if caller.mode() == RestAuthMode::Enforce {
                let of_agents = agents.values_mut().map(|seen| &mut seen.agent.accounts);
                of_agents.for_each(|names| names.retain(|name| visible.contains(name.as_str())));
            }
        }
        Ok(agents.into_iter().map(|(key, agent)| ArmoryAgent::of(key, agent, &caching)).collect())
    }

    /// Fills in the account names of agents whose replica does not answer, from the agents that the accounts' status
    /// names.
    fn fill_in_accounts(&self, agents: &mut [RemoteAgent]) {
        let silent = agents.iter_mut().filter(|agent| !agent.replica_answers);
        let mut silent: HashMap<_, _> =
            silent.map(|seen| (key_of(&seen.agent), &mut seen.agent.accounts)).collect();
        if silent.is_empty() {
            return;
        }
        for account in self.accounts.all() {
            for agent in account.status.iter().flat_map(KubesvcAccountStatus::agent_keys) {
                if let Some(names) = silent.get_mut(&agent) {
                    names.push(account.account_name().to_owned());
                }
            }
        }
    }
}

fn key_of(agent: &AgentView) -> AgentKey {
    AgentKey::new(&agent.agent_id, &agent.zone_id)
}

/// Returns the latest connection of each agent. While an agent moves, two replicas briefly report it.
fn latest(agents: impl Iterator<Item = RemoteAgent>) -> BTreeMap<AgentKey, RemoteAgent> {
    let mut all: BTreeMap<_, RemoteAgent> = BTreeMap::new();
    for seen in agents {
        match all.entry(key_of(&seen.agent)) {
            Entry::Vacant(place) => {
                place.insert(seen);
            }
            Entry::Occupied(mut known) if known.get().agent.connected_since < seen.agent.connected_since => {
                known.insert(seen);
            }
            Entry::Occupied(_) => {}
        }
    }
    all
}

/// List the connected agents of all replicas, sorted by id and zone.
#[utoipa::path(get, path = "/armory/agents", operation_id = "listAgents", tag = "agents",
    responses(
        (status = 200, description = "The connected agents; if an agent's replica does not respond, `clouddriverAlive` is false and the entry shows what the objects record", body = [ArmoryAgent]),
    ))]
pub(super) async fn list(
    State(state): State<RestState>,
    caller: RestCaller,
) -> Result<Json<Vec<ArmoryAgent>>, RestError> {
    Ok(Json(state.agents(&caller).await?))
}

/// Get one connected agent; if several zones have an agent of that id, the one of the first zone by name.
#[utoipa::path(get, path = "/armory/agents/{agentId}", operation_id = "getAgent", tag = "agents",
    params(("agentId" = String, Path, description = "Id of the agent, percent-encoded"), InZone),
    responses(
        (status = 200, description = "The agent", body = ArmoryAgent),
        (status = 400, description = "The id is not percent-encoded UTF-8", body = ErrorBody),
        (status = 404, description = "No such agent is connected", body = ErrorBody),
    ))]
pub(super) async fn get(
    State(state): State<RestState>,
    caller: RestCaller,
    PathId(id): PathId,
    InZone(zone): InZone,
) -> Result<Json<ArmoryAgent>, RestError> {
    let is_meant =
        |agent: &ArmoryAgent| agent.agent_id == id && zone.as_ref().is_none_or(|zone| *zone == agent.zone_id);
    let mut agents = state.agents(&caller).await?.into_iter().filter(is_meant);
    agents.next().map(Json).ok_or_else(|| not_connected(id.as_str()))
}

/// Disconnect the agents of an id, regardless of the replicas that they are connected to.
///
/// The same processes may reconnect at once, another process with an agent's id in its zone after 30 s.
#[utoipa::path(post, path = "/armory/agent/{agentId}/disconnect", operation_id = "disconnectAgent", tag = "agents",
    params(("agentId" = String, Path, description = "Id of the agents, percent-encoded"), InZone),
    request_body(content = DisconnectRequest, description = "Optional"),
    responses(
        (status = 200, description = "The agents were disconnected"),
        (status = 400, description = "The body is malformed", body = ErrorBody),
        (status = 404, description = "No such agent is connected", body = ErrorBody),
        (status = 503, description = "An agent is connected to a replica that is unreachable", body = ErrorBody),
    ))]
pub(super) async fn disconnect(
    State(state): State<RestState>,
    PathId(id): PathId,
    InZone(zone): InZone,
    received: PendingBody,
) -> Result<StatusCode, RestError> {
    disconnect_agents(&state, id, zone, received).await
}

/// Disconnects the agents whose id is `operations`: their path is also one of the calls about operations.
pub(super) async fn disconnect_operations(
    State(state): State<RestState>,
    InZone(zone): InZone,
    received: PendingBody,
) -> Result<StatusCode, RestError> {
    disconnect_agents(&state, "operations".to_owned(), zone, received).await
}

async fn disconnect_agents(
    state: &RestState,
    id: String,
    zone: Option<ZoneId>,
    received: PendingBody,
) -> Result<StatusCode, RestError> {
    let body = body::read_optional(state, received).await?;
    let relayed = match &body {
        Some((body, _)) => is_relayed(body)?,
        None => false,
    };
    let id = AgentId::from(id);
    let found_here = state.connected_agents.disconnect(&id, zone.as_ref());
    if found_here {
        tracing::info!(agentId = id.as_str(), "disconnected an agent at a caller's request");
    }
    if relayed {
        return if found_here { Ok(StatusCode::OK) } else { Err(not_connected(id.as_str())) };
    }
    match state.peers.disconnect(&id, zone.as_ref(), found_here).await {
        Ok(()) => Ok(StatusCode::OK),
        Err(RelayError::NotConnected) => Err(not_connected(id.as_str())),
        Err(problem) => {
            Err(RestError::unavailable(format!("agent {}: {problem}; try again", shown(id.as_str()))))
        }
    }
}

/// Whether another replica relays the call. Such a call is not relayed again.
fn is_relayed(body: &Value) -> Result<bool, RestError> {
    let Value::Object(fields) = body else {
        return Err(RestError::bad_request("the body must be an object, or empty"));
    };
    let wrong = |field: &str, good: fn(&Value) -> bool| {
        fields.get(field).is_some_and(|value| !value.is_null() && !good(value))
    };
    if wrong("clusterDriven", Value::is_boolean) {
        return Err(RestError::bad_request("clusterDriven must be true or false"));
    }
    if wrong("origin", Value::is_string) {
        return Err(RestError::bad_request("origin must be a string"));
    }
    if wrong("timestamp", Value::is_i64) {
        return Err(RestError::bad_request("timestamp must be a whole number of 64 bits"));
    }
    Ok(fields.get("clusterDriven").and_then(Value::as_bool).unwrap_or_default())
}

pub(super) fn not_connected(id: &str) -> RestError {
    RestError::not_found(format!("agent {} is not connected", shown(id)))
}

fn shown(id: &str) -> String {
    format!("{:?}", id.chars().take(255).collect::<String>())
}

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
    ))]
pub(super) async fn elect(
    State(state): State<RestState>,
    caller: RestCaller,
    Force(force): Force,
    received: PendingBody,
) -> Result<StatusCode, RestError> {
    let (body, held) = body::read(&state, received, MediaTypes::Json).await?;
    let names = body::names(body)?;
    state
        .to_the_end(held, move |state| async move {
            let texts: Vec<&str> = names.iter().map(String::as_str).collect();
            let wanted: Vec<_> = texts.iter().map(|name| (*name, "update")).collect();
            let found = state.find_all(&caller, &wanted).await?;
            let judged = texts
                .iter()
                .zip(&found)
                .map(|(name, found)| judge_election(name, found.account.as_ref(), force));
            refuse_if_any(judged.filter_map(Result::err).collect())?;
            let done = all(texts
                .iter()
                .map(|name| request_election(&state, &caller, name, force).boxed())
                .collect())
            .await;
            summed_up(done)
        })
        .await?;
    Ok(StatusCode::OK)
}

/// Returns the account if the request may ask for an election.
fn judge_election<'a>(
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
    if let Some(owner) = account.gitops_owner().filter(|_| !force) {
        return Err(RestError::conflict(format!(
            "account {name:?} is managed by {owner}; set the annotation {ELECT_CACHING_ANNOTATION} there, or repeat the request with ?force=true"
        )));
    }
    Ok(account)
}

/// Asks for the election of one account; retries after conflicts.
async fn request_election(
    state: &RestState,
    caller: &RestCaller,
    name: &str,
    force: bool,
) -> Result<(), RestError> {
    for _ in 0..MAX_ATTEMPTS {
        let found = state.find_as(caller, name, "update").await?.account;
        let account = judge_election(name, found.as_ref(), force)?;
        let key = AccountKey::of(account);
        match patch(state, &key, account, &Map::new(), Some(ELECT_CACHING_ANNOTATION)).await {
            Err(error) if error.is_stale() => {}
            Err(error) => return Err(error.into()),
            Ok(()) => {
                caller.wrote(name);
                return Ok(());
            }
        }
    }
    Err(RestError::conflict(format!("account {name:?} is being changed by others; try again")))
}
