//! `/internal/v1/accounts/{uid}/…` and `/internal/v1/requests/…`: requests to accounts that other replicas relay, because
//! the agent is connected here. Answered in signed frames.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use axum::{Json, Router};
use futures::StreamExt as _;
use futures::stream::BoxStream;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use prost::bytes::Bytes;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;

use super::RestState;
use super::body;
use super::error::RestError;
use super::extract::{PathName, single_value};
use crate::connected_agents::AnsweringAgent;
use crate::peers::{AnswerSigner, FRAMES_PROTOCOL, FrameSigner, read_stream};
use crate::request_routing::received::{self, ApplySettingsAnswer, ForgetCall, ReceivedRequest};
use kubesvc_core::{AgentId, BootId};
use kubesvc_runtime::listen::http::UnreadAnswers;
use kubesvc_runtime::shutdown::spawn_named;

/// Header that says for whom a request is relayed. It is signed.
const RELAYED_FOR: &str = "x-kubesvc-for";

/// Routes of the calls, to be put behind the check of their signatures.
pub(super) fn routes() -> Router<RestState> {
    Router::new()
        .route("/internal/v1/accounts/{uid}/proxy/{*path}", any(proxy))
        .route("/internal/v1/accounts/{uid}/proxy/", any(proxy))
        .route("/internal/v1/accounts/{uid}/apply-settings", get(apply_settings))
        .route("/internal/v1/requests/forget", post(forget))
        .route("/internal/v1/requests/{request_id}", get(recall))
}

/// Whether the body of a call holds the body of a request to an account.
pub(super) fn has_request_body(uri: &Uri) -> bool {
    uri.path().strip_prefix("/internal/v1/accounts/").is_some_and(|rest| rest.contains("/proxy/"))
}

/// Frames of an answer, to be signed one by one.
#[derive(Clone)]
pub(super) struct SignedFrames(Arc<Mutex<Option<BoxStream<'static, Bytes>>>>);

impl SignedFrames {
    fn new(frames: BoxStream<'static, Bytes>) -> Self {
        Self(Arc::new(Mutex::new(Some(frames))))
    }

    /// The body that these frames make.
    pub(super) fn into_body(self, signer: &AnswerSigner) -> Body {
        let frames = self.0.lock().take();
        let mut signer = signer.frames();
        let frames = futures::stream::iter(frames).flatten();
        Body::from_stream(frames.map(move |frame| Ok::<_, std::convert::Infallible>(signer.sign(&frame))))
    }
}

fn in_frames(frames: BoxStream<'static, Bytes>) -> Response {
    let mut answer = Response::new(Body::empty());
    answer.extensions_mut().insert(SignedFrames::new(frames));
    answer
}

fn not_here() -> RestError {
    RestError::new(StatusCode::MISDIRECTED_REQUEST, "no agent of this replica can be asked")
}

/// Makes a request to an account by an agent of this replica.
async fn proxy(
    State(state): State<RestState>,
    uid: PathName,
    request: Request,
) -> Result<Response, RestError> {
    let uid = uid.id()?;
    let (mut parts, body) = request.into_parts();
    let body = body::again(body).await?;
    let relayed_for = parts.headers.get(RELAYED_FOR).and_then(|value| value.to_str().ok());
    let relayed_for =
        relayed_for.ok_or_else(|| RestError::bad_request(format!("the header {RELAYED_FOR} is missing")))?;
    let here = Arc::clone(&state.requests_here);
    let received = received::read(&*here, &uid, relayed_for, body)
        .map_err(|error| RestError::bad_request(error.to_string()))?
        .ok_or_else(not_here)?;
    if let Some(unread) = parts.extensions.get::<UnreadAnswers>() {
        // The replica reads as its own caller does; the agent judges what the cluster sends.
        unread.wait();
    }
    if !received.is_upgrade() {
        return Ok(in_frames(received.frames(here, None)));
    }
    let upgrade = parts.extensions.remove::<OnUpgrade>();
    let signer = parts.extensions.remove::<AnswerSigner>();
    let (Some(upgrade), Some(signer)) = (upgrade, signer) else {
        return Err(RestError::bad_request(format!("the call must be upgraded to {FRAMES_PROTOCOL}")));
    };
    let exchanging = exchange(state, received, upgrade, signer);
    drop(spawn_named("relayed upgrade", exchanging).detach());
    let headers = [
        (header::CONNECTION, HeaderValue::from_static("Upgrade")),
        (header::UPGRADE, HeaderValue::from_static(FRAMES_PROTOCOL)),
    ];
    Ok((StatusCode::SWITCHING_PROTOCOLS, headers).into_response())
}

/// Passes frames on, both ways, until one side ends.
async fn exchange(state: RestState, received: ReceivedRequest, upgrade: OnUpgrade, signer: AnswerSigner) {
    let Ok(upgraded) = upgrade.await else { return };
    let (reader, mut writer) = tokio::io::split(TokioIo::new(upgraded));
    let caller = signer.caller_frames(read_stream(reader));
    let mut frames = received.frames(Arc::clone(&state.requests_here), Some(caller));
    let mut signer: FrameSigner = signer.frames();
    while let Some(frame) = frames.next().await {
        if writer.write_all(&signer.sign(&frame)).await.is_err() || writer.flush().await.is_err() {
            return;
        }
    }
    let _ = writer.shutdown().await;
}

/// Asks a process of an agent of this replica for the answer of a write.
async fn recall(
    State(state): State<RestState>,
    request_id: PathName,
    uri: Uri,
) -> Result<Response, RestError> {
    let request_id = request_id.id()?;
    let value = |name: &'static str| {
        let value = single_value(uri.query(), name)?;
        value.ok_or_else(|| RestError::bad_request(format!("{name} is missing")))
    };
    let within = value("within")?.parse().map_err(|_| RestError::bad_request("within is no number"))?;
    let agent =
        AnsweringAgent { agent_id: AgentId::from(value("agent")?), boot_id: BootId::from(value("boot")?) };
    let here = Arc::clone(&state.requests_here);
    let frames = received::recall(here, request_id, agent, Duration::from_millis(within));
    frames.map(in_frames).ok_or_else(not_here)
}

/// Lets agents forget answers that their callers have.
async fn forget(State(state): State<RestState>, body: Body) -> Result<Json<Value>, RestError> {
    let bytes = body::again(body).await?;
    let call: ForgetCall = serde_json::from_slice(&bytes)
        .map_err(|problem| RestError::bad_request(format!("the body is malformed: {problem}")))?;
    received::forget(&*state.requests_here, &call);
    Ok(Json(json!({})))
}

/// What the owner of the agent that would be asked says of applying.
async fn apply_settings(
    State(state): State<RestState>,
    uid: PathName,
) -> Result<Json<ApplySettingsAnswer>, RestError> {
    let settings = state.requests_here.apply_settings_here(&uid.id()?);
    Ok(Json(ApplySettingsAnswer::new(settings.as_ref())))
}
