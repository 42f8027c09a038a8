//! `/internal/v1/accounts/{uid}/…` and `/internal/v1/requests/…`: requests to accounts that other replicas relay, because the
//! agent is connected here.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, Query, Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use futures::{StreamExt as _, TryStreamExt as _};
use http_body_util::StreamBody;
use kubesvc_core::requests::MAX_REQUEST_BODY_BYTES;
use kubesvc_core::requests::apply_settings::apply_settings as read_apply_settings;
use kubesvc_core::{AgentId, BootId};
use serde::Deserialize;
use serde_json::{Value, json};

use super::reviews::{RelayedRecord, review};
use super::{CallRefusal, Calling, PortState, id_of, read_bytes};
use crate::connected_agents::AnsweringAgent;
use crate::request_routing::received::{self, AnswerParts, ApplySettingsAnswer, ForgetCall};

fn not_here() -> CallRefusal {
    CallRefusal::new(StatusCode::MISDIRECTED_REQUEST, "no agent of this replica can be asked")
}

fn answer(parts: AnswerParts) -> Response {
    Response::new(Body::new(StreamBody::new(parts)))
}

/// Makes a request to an account by an agent of this replica.
pub(super) async fn proxy(
    State(state): State<PortState>,
    calling: Calling,
    request: Request,
) -> Result<Response, CallRefusal> {
    let (head, body) = request.into_parts();
    let (uid, target) = head
        .uri
        .path_and_query()
        .and_then(|target| uid_and_target(target.as_str()))
        .ok_or_else(|| CallRefusal::bad_request("the path is malformed"))?;
    let requests = Arc::clone(&state.ports.requests);
    let received = received::read(&*requests, &uid, target, &head)
        .map_err(|error| CallRefusal::bad_request(error.to_string()))?;
    let (mut request, asked) = received.ok_or_else(not_here)?;
    let record = RelayedRecord::new(&state.ports, &uid, &request);
    review(&state.ports, &uid, &request.caller).await.inspect_err(|refusal| record.refused(refusal))?;
    if request.upgrade {
        *request.upgraded.lock() = Some(body.into_data_stream().map_err(io::Error::other).boxed());
    } else {
        let permit = state.relayed.permit(id_of(&calling));
        let read = read_bytes(body, MAX_REQUEST_BODY_BYTES, permit).await;
        let (bytes, _permit) = read.inspect_err(|refusal| record.refused(refusal))?;
        request.body = bytes;
    }
    let (observer, stream) = record.observer();
    let parts = received::answer(requests, uid, (request, asked), observer);
    Ok(answer(stream.until_end_of(parts)))
}

/// The uid of the account, and the target as the cluster is to read it, from the path and the query of a call.
fn uid_and_target(path: &str) -> Option<(String, &str)> {
    let (uid, rest) = path.strip_prefix("/internal/v1/accounts/")?.split_once('/')?;
    let uid = percent_encoding::percent_decode_str(uid).decode_utf8().ok()?;
    Some((uid.into_owned(), rest.strip_prefix("proxy")?))
}

/// Which process is asked for an answer, and for how long, in milliseconds.
#[derive(Deserialize)]
pub(super) struct RecallQuery {
    agent: AgentId,
    boot: BootId,
    within: u64,
}

/// Asks a process of an agent of this replica for the answer of a write.
pub(super) async fn recall(
    State(PortState { ports, .. }): State<PortState>,
    Path(request_id): Path<String>,
    Query(RecallQuery { agent, boot, within }): Query<RecallQuery>,
) -> Result<Response, CallRefusal> {
    let agent = AnsweringAgent { agent_id: agent, boot_id: boot };
    let recalled = received::recall(ports.requests, request_id, agent, Duration::from_millis(within));
    recalled.map(answer).ok_or_else(not_here)
}

/// Lets agents forget answers that their callers have.
pub(super) async fn forget(
    State(state): State<PortState>,
    calling: Calling,
    body: Body,
) -> Result<Json<Value>, CallRefusal> {
    let call: ForgetCall = state.message(&calling, body).await?;
    received::forget(&*state.ports.requests, &call);
    Ok(Json(json!({})))
}

/// What the owner of the agent that would be asked says of applying.
pub(super) async fn apply_settings(
    State(PortState { ports, .. }): State<PortState>,
    Path(uid): Path<String>,
) -> Json<ApplySettingsAnswer> {
    let settings = ports.requests.apply_settings_here(&uid);
    Json(ApplySettingsAnswer { apply: settings.as_ref().map(read_apply_settings) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_the_cluster_s_as_it_was_written() {
        let read = |path: &str| uid_and_target(path).map(|(uid, target)| (uid, target.to_owned()));
        let of =
            |target: &str| read(&format!("/internal/v1/accounts/u%2F1/proxy{target}")).expect("a path").1;
        for target in
            ["/", "/api/v1/pods?labelSelector=a%3Db", "/a%2Fb//proxy/", "/?a=/internal/v1/accounts/x/proxy/"]
        {
            assert_eq!(of(target), target);
        }
        assert_eq!(read("/internal/v1/accounts/u%2F1/proxy/").expect("a path").0, "u/1");
        assert!(read("/internal/v1/accounts/u/apply-settings").is_none());
    }
}
