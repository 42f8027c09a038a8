//! Calls to other replicas with small JSON messages: with a timeout, and with bounded answers.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Bytes, Incoming};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::Semaphore;

use super::connections::{CallBody, CallError, PeerConnections, lost, unreachable};
use super::membership::Replica;
use super::verification::VerifiedPeers;

/// Maximum number of concurrent calls to all replicas, apart from relayed requests; further calls wait within their timeout.
pub(super) const MAX_CONCURRENT_CALLS: usize = 64;
/// Timeout for another replica's answer to a question.
const QUESTION_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum size of an answer, in bytes.
const MAX_ANSWER_BYTES: usize = 64 * 1024 * 1024;
/// Maximum length, in characters, of an error message that is passed on from another replica.
const MAX_MESSAGE_CHARS: usize = 300;

/// A call to another replica.
#[derive(Clone, Debug)]
pub(super) struct PeerCall {
    /// Path and query.
    pub(super) path: String,
    /// JSON of a POST; `None` for a GET.
    message: Option<Vec<u8>>,
    /// Timeout for the whole call.
    within: Duration,
}

impl PeerCall {
    /// A question.
    pub(super) fn get(path: impl Into<String>) -> Self {
        Self { path: path.into(), message: None, within: QUESTION_TIMEOUT }
    }

    /// A call with a message.
    pub(super) fn post(path: impl Into<String>, message: &impl Serialize) -> Self {
        let message = serde_json::to_vec(message).expect("texts and numbers are JSON");
        Self { message: Some(message), ..Self::get(path) }
    }

    pub(super) fn within(self, within: Duration) -> Self {
        Self { within, ..self }
    }
}

/// Calls other replicas.
pub(super) struct PeerClient {
    connections: Arc<PeerConnections>,
    verified: Arc<VerifiedPeers>,
    slots: Semaphore,
}

impl PeerClient {
    /// Creates a client that calls over these connections, and records who has answered.
    pub(super) fn new(connections: Arc<PeerConnections>, verified: Arc<VerifiedPeers>) -> Self {
        Self { connections, verified, slots: Semaphore::new(MAX_CONCURRENT_CALLS) }
    }

    /// Calls a replica and parses its answer.
    ///
    /// # Errors
    /// The replica did not answer in time, refused the call, or sent an unexpected answer.
    pub(super) async fn ask<T: DeserializeOwned>(
        &self,
        to: &Replica,
        ask: &PeerCall,
    ) -> Result<T, CallError> {
        // The time that it waits for its own turn says nothing about the other replica.
        let _slot = self.slots.acquire().await.map_err(|closed| unreachable(to, closed.to_string()))?;
        let calling = tokio::time::timeout(ask.within, self.call(to, ask)).await;
        let answered =
            calling.unwrap_or_else(|_| Err(lost(to, format!("no answer within {:?}", ask.within))));
        let (status, body) = answered?;
        self.verified.given(to);
        if !status.is_success() {
            return Err(refused(to, status, &body));
        }
        serde_json::from_slice(&body)
            .map_err(|problem| CallError::Malformed { replica: to.id.clone(), why: problem.to_string() })
    }

    async fn call(&self, to: &Replica, ask: &PeerCall) -> Result<(StatusCode, Bytes), CallError> {
        let method = if ask.message.is_some() { Method::POST } else { Method::GET };
        let mut request = Request::builder().method(method).uri(url(to, &ask.path));
        if ask.message.is_some() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        let request = request.body(whole_body(ask.message.clone().unwrap_or_default().into()));
        let request = request.map_err(|problem| unreachable(to, problem.to_string()))?;
        let answer = self.connections.send(to, request).await?;
        let (parts, body) = answer.into_parts();
        Ok((parts.status, read_whole(to, body).await?))
    }
}

/// URL of a path at a replica.
pub(super) fn url(to: &Replica, path: &str) -> String {
    format!("https://{}{path}", to.calls_at)
}

/// A body that is all there.
pub(super) fn whole_body(bytes: Bytes) -> CallBody {
    Full::new(bytes).map_err(|never| -> io::Error { match never {} }).boxed_unsync()
}

/// Reads a bounded answer.
pub(super) async fn read_whole(to: &Replica, body: Incoming) -> Result<Bytes, CallError> {
    let body = Limited::new(body, MAX_ANSWER_BYTES).collect().await;
    Ok(body.map_err(|problem| lost(to, problem.to_string()))?.to_bytes())
}

/// Converts an error response into a refusal with the message of the other side.
pub(super) fn refused(to: &Replica, status: StatusCode, body: &[u8]) -> CallError {
    let said: Value = serde_json::from_slice(body).unwrap_or_default();
    let message = said["message"].as_str().unwrap_or("no message").chars().take(MAX_MESSAGE_CHARS).collect();
    CallError::Refused { replica: to.id.clone(), status: status.as_u16(), message }
}
