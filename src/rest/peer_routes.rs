//! `/internal/v1`: calls of other replicas. Every call is signed, and an unsigned call is refused before anything
//! else is checked. Not meant for callers, so the OpenAPI description omits it.

use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use axum::routing::{any, get, post};
use axum::{Json, Router};
use serde_json::{Value, json};

use super::RestState;
use super::agents::not_connected;
use super::body::{self, PeerBody, PendingBody};
use super::error::{self, RestError, no_route};
use super::extract::{InZone, PathName};
use super::relayed_requests::{self, SignedFrames, has_request_body};
use super::unknown_callers::UnknownCaller;
use crate::peers::{
    AgentsOfReplica, DisconnectCall, Holders, HoldersQuestion, MAX_UIDS_PER_QUESTION, ReachAnswer,
    SignatureError,
};
use kubesvc_core::AgentId;
use kubesvc_runtime::listen::http::CalledAt;

/// Routes of the calls, behind the check of their signatures.
pub(super) fn routes(state: &RestState) -> Router<RestState> {
    relayed_requests::routes()
        .route("/internal/v1/agents", get(agents))
        .route("/internal/v1/agents/{id}/disconnect", post(disconnect))
        .route("/internal/v1/holders", post(holders))
        .route("/internal/v1/reach", get(reach))
        .route("/internal", any(no_route))
        .route("/internal/{*rest}", any(no_route))
        .route_layer(from_fn_with_state(state.clone(), signed))
}

/// Middleware that admits each signed call once and signs its answer.
async fn signed(State(state): State<RestState>, request: Request, next: Next) -> Result<Response, RestError> {
    let (mut parts, body) = request.into_parts();
    let address = parts.extensions.get::<CalledAt>().map(|CalledAt(address)| *address);
    let unchecked =
        state.peers.check_headers(&parts.headers, address).await.map_err(|refusal| refuse(&refusal))?;
    let received = PendingBody::new(parts.headers.clone(), body, parts.extensions.get().copied());
    let size = if has_request_body(&parts.uri) { PeerBody::OfRequest } else { PeerBody::Message };
    let (body, _permit) = body::of_replica(&state, received, size).await?;
    let admitted = state.peers.admit(unchecked, &parts, &body);
    let answerable = admitted.map_err(|refusal| refuse(&refusal))?;
    UnknownCaller::of(&parts).known();
    parts.extensions.insert(answerable.clone());
    // Shape errors here, because the signature covers the final body.
    let answer = error::shape(Request::from_parts(parts, Body::from(body)), next).await;
    let (mut parts, body) = answer.into_parts();
    if let Some(frames) = parts.extensions.remove::<SignedFrames>() {
        parts.headers.extend(answerable.sign(parts.status, b"").map(|(name, value)| (Some(name), value)));
        return Ok(Response::from_parts(parts, frames.into_body(&answerable)));
    }
    let body = to_bytes(body, usize::MAX).await.map_err(|problem| {
        RestError::new(StatusCode::INTERNAL_SERVER_ERROR, format!("the response ended early: {problem}"))
    })?;
    parts.headers.extend(answerable.sign(parts.status, &body).map(|(name, value)| (Some(name), value)));
    Ok(Response::from_parts(parts, Body::from(body)))
}

fn refuse(refusal: &SignatureError) -> RestError {
    // No warning: anyone on the network could fill the log with it. The refusal is counted, and a replica logs its
    // own failed calls.
    tracing::debug!(%refusal, "rejected a call to /internal");
    match refusal {
        SignatureError::TooMany => RestError::unavailable(refusal.to_string()),
        _ => RestError::unauthorized(refusal.to_string()),
    }
}

async fn agents(State(state): State<RestState>) -> Json<AgentsOfReplica> {
    Json(AgentsOfReplica {
        replica_id: state.settings.replica_id.clone(),
        agents: state.connected_agents.agents(),
    })
}

async fn holders(State(state): State<RestState>, body: Body) -> Result<Json<Holders>, RestError> {
    let HoldersQuestion { uids } = read(body).await?;
    if uids.len() > MAX_UIDS_PER_QUESTION {
        return Err(RestError::bad_request(format!("uids may have {MAX_UIDS_PER_QUESTION} items at most")));
    }
    let of = |uid: String| {
        let agents: Vec<_> =
            state.connected_agents.holders(&uid).into_iter().map(|agent| agent.agent_id).collect();
        (!agents.is_empty()).then_some((uid, agents))
    };
    let agents = uids.into_iter().filter_map(of).collect();
    Ok(Json(Holders { replica_id: state.settings.replica_id.clone(), agents }))
}

async fn reach(State(state): State<RestState>) -> Json<ReachAnswer> {
    let answered_for_ms = state.readiness.answered_for().as_millis().try_into().unwrap_or(u64::MAX);
    Json(ReachAnswer { replica_id: state.settings.replica_id.clone(), answered_for_ms })
}

async fn disconnect(
    State(state): State<RestState>,
    id: PathName,
    zone: InZone,
    body: Body,
) -> Result<Json<Value>, RestError> {
    let DisconnectCall { origin, .. } = read(body).await?;
    let id = AgentId::from(id.id()?);
    if !state.connected_agents.disconnect(&id, zone.read()?.as_ref()) {
        return Err(not_connected(id.as_str()));
    }
    tracing::info!(
        agentId = id.as_str(),
        origin = origin.as_str(),
        "disconnected an agent at a request relayed by another replica"
    );
    Ok(Json(json!({})))
}

async fn read<T: serde::de::DeserializeOwned>(body: Body) -> Result<T, RestError> {
    let bytes = body::again(body).await?;
    serde_json::from_slice(&bytes).map_err(|problem| {
        RestError::new(StatusCode::BAD_REQUEST, format!("the body is malformed: {problem}"))
    })
}
