//! The port for replicas (7004): what this replica answers to the others, below `/internal/v1/`. Who calls is a replica, since its
//! certificate is of the replicas' authority ([`peers`](crate::peers)). Calls are answered by the agents of this replica alone
//! and are never passed on.
//!
//! | module | owns |
//! |---|---|
//! | `relayed_requests` | requests to accounts, by agents of this replica; answers of writes, asked for again |
//! | `reviews` | the rights of those for whom a request is relayed, and its audit lines |

mod relayed_requests;
mod reviews;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use axum::{Extension, Json, Router};
use hyper::body::Body as _;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::access::Access;
use crate::access::audit::AuditLog;
use crate::connected_agents::{ConnectedAgents, ReplicaRequests};
use crate::informers::AccountIndex;
use crate::peers::{
    AgentsOfReplica, CallingReplica, Holders, HoldersQuestion, MAX_UIDS_PER_QUESTION, ReachAnswer,
};
use kubesvc_core::requests::MAX_REQUEST_BODY_BYTES;
use kubesvc_core::{AgentId, ReplicaId, ZoneId};
use kubesvc_runtime::listen::bodies::{BodyMemory, BodyPermit, UnreadBody, collect, kib};

/// Maximum size of a message, in bytes. A question about 1,000 uids fits easily.
const MAX_MESSAGE_BYTES: usize = 256 * 1024;
/// Memory for messages, in KiB.
const MESSAGES_KIB: usize = 16 * 1024;
/// Memory for bodies of relayed requests, in KiB.
const RELAYED_BODIES_KIB: usize = 64 * 1024;

/// What the port asks.
#[derive(Clone)]
pub struct ReplicaPorts {
    pub replica_id: ReplicaId,
    /// Agents connected to this replica.
    pub connected_agents: Arc<dyn ConnectedAgents>,
    /// Requests by the agents of this replica.
    pub requests: Arc<dyn ReplicaRequests>,
    pub accounts: Arc<AccountIndex>,
    /// What callers may do.
    pub access: Arc<dyn Access>,
    pub audit: AuditLog,
    /// How long the API server has answered this replica without a gap; zero if it does not answer now.
    pub answered_for: Arc<dyn Fn() -> Duration + Send + Sync>,
}

/// State shared by all handlers.
#[derive(Clone)]
struct PortState {
    ports: ReplicaPorts,
    /// Memory of bodies, by the replica that sends them.
    messages: Arc<BodyMemory<ReplicaId>>,
    relayed: Arc<BodyMemory<ReplicaId>>,
}

pub fn router(ports: ReplicaPorts) -> Router {
    let state = PortState {
        ports,
        messages: Arc::new(BodyMemory::new(MESSAGES_KIB)),
        relayed: Arc::new(BodyMemory::new(RELAYED_BODIES_KIB.max(kib(MAX_REQUEST_BODY_BYTES)))),
    };
    Router::new()
        .route("/internal/v1/agents", get(agents))
        .route("/internal/v1/agents/{id}/disconnect", post(disconnect))
        .route("/internal/v1/holders", post(holders))
        .route("/internal/v1/reach", get(reach))
        .route("/internal/v1/accounts/{uid}/proxy/", any(relayed_requests::proxy))
        .route("/internal/v1/accounts/{uid}/proxy/{*path}", any(relayed_requests::proxy))
        .route("/internal/v1/accounts/{uid}/apply-settings", get(relayed_requests::apply_settings))
        .route("/internal/v1/requests/forget", post(relayed_requests::forget))
        .route("/internal/v1/requests/{request_id}", get(relayed_requests::recall))
        .fallback(async || CallRefusal::new(StatusCode::NOT_FOUND, "this replica does not know the call"))
        .with_state(state)
}

/// Why a call is refused, in words for the log of the replica that made it.
#[derive(Debug)]
struct CallRefusal {
    status: StatusCode,
    message: String,
}

impl CallRefusal {
    fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }

    fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }
}

impl IntoResponse for CallRefusal {
    fn into_response(self) -> Response {
        (self.status, Json(json!({"message": self.message}))).into_response()
    }
}

impl From<UnreadBody> for CallRefusal {
    fn from(error: UnreadBody) -> Self {
        Self::new(error.status(), error.to_string())
    }
}

/// The replica that calls; without a connection, a test.
type Calling = Option<Extension<CallingReplica>>;

fn id_of(calling: &Calling) -> ReplicaId {
    calling.as_ref().map_or_else(|| "unknown".into(), |Extension(CallingReplica(id))| id.clone())
}

async fn read_bytes(
    body: Body,
    max_bytes: usize,
    mut permit: BodyPermit,
) -> Result<(Bytes, BodyPermit), CallRefusal> {
    // Memory for all of it first: bodies of one replica that had a part each would wait for one another.
    let announced = body.size_hint().exact().and_then(|bytes| usize::try_from(bytes).ok());
    if let Some(bytes) = announced {
        permit.grow(bytes.min(max_bytes)).await.map_err(UnreadBody::from)?;
    }
    let bytes = collect(body, max_bytes, announced, &mut permit).await?;
    Ok((bytes, permit))
}

impl PortState {
    async fn message<T: DeserializeOwned>(&self, calling: &Calling, body: Body) -> Result<T, CallRefusal> {
        let permit = self.messages.permit(id_of(calling));
        let (bytes, _permit) = read_bytes(body, MAX_MESSAGE_BYTES, permit).await?;
        serde_json::from_slice(&bytes)
            .map_err(|problem| CallRefusal::bad_request(format!("the body is malformed: {problem}")))
    }
}

async fn agents(State(PortState { ports, .. }): State<PortState>) -> Json<AgentsOfReplica> {
    Json(AgentsOfReplica { replica_id: ports.replica_id.clone(), agents: ports.connected_agents.agents() })
}

async fn holders(
    State(state): State<PortState>,
    calling: Calling,
    body: Body,
) -> Result<Json<Holders>, CallRefusal> {
    let HoldersQuestion { uids } = state.message(&calling, body).await?;
    if uids.len() > MAX_UIDS_PER_QUESTION {
        return Err(CallRefusal::bad_request(format!("uids may have {MAX_UIDS_PER_QUESTION} items at most")));
    }
    let ports = &state.ports;
    let of = |uid: String| {
        let agents: Vec<_> =
            ports.connected_agents.holders(&uid).into_iter().map(|agent| agent.agent_id).collect();
        (!agents.is_empty()).then_some((uid, agents))
    };
    let agents = uids.into_iter().filter_map(of).collect();
    Ok(Json(Holders { replica_id: ports.replica_id.clone(), agents }))
}

async fn reach(State(PortState { ports, .. }): State<PortState>) -> Json<ReachAnswer> {
    let answered_for_ms = (ports.answered_for)().as_millis().try_into().unwrap_or(u64::MAX);
    Json(ReachAnswer { replica_id: ports.replica_id.clone(), answered_for_ms })
}

/// Zone of an agent, if the call names one.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct OfZone {
    zone_id: Option<ZoneId>,
}

async fn disconnect(
    State(state): State<PortState>,
    calling: Calling,
    Path(id): Path<String>,
    Query(OfZone { zone_id }): Query<OfZone>,
) -> Result<Json<Value>, CallRefusal> {
    let id = AgentId::from(id);
    if !state.ports.connected_agents.disconnect(&id, zone_id.as_ref()) {
        return Err(CallRefusal::new(StatusCode::NOT_FOUND, format!("agent {id:?} is not connected")));
    }
    tracing::info!(
        agentId = id.as_str(),
        origin = id_of(&calling).as_str(),
        "disconnected an agent at a request relayed by another replica"
    );
    Ok(Json(json!({})))
}
