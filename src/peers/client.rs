//! Calls to other replicas with small JSON messages: with a timeout, and with bounded answers.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Bytes, Incoming};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::Semaphore;

use super::connections::{CallBody, NoAnswer, PeerConnections};
use super::membership::Replica;
use super::verification::VerifiedPeers;
use kubesvc_core::ReplicaId;

/// Maximum number of concurrent calls to all replicas, apart from relayed requests; further calls wait within their timeout.
pub(super) const MAX_CONCURRENT_CALLS: usize = 64;
/// Maximum size of an answer, in bytes.
const MAX_ANSWER_BYTES: usize = 64 * 1024 * 1024;
/// Maximum length, in characters, of an error message that is passed on from another replica.
const MAX_MESSAGE_CHARS: usize = 300;

/// Reason why a call to a replica failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The replica did not answer in time, or did not prove that it is this replica.
    #[error("replica {replica} cannot be reached at {address}: {why}")]
    Unreachable {
        /// Id of the replica.
        replica: ReplicaId,
        /// Host and port that were called.
        address: String,
        /// What went wrong.
        why: String,
    },
    /// The replica refused the call.
    #[error("replica {replica} answered {status}: {message}")]
    Refused {
        /// Id of the replica.
        replica: ReplicaId,
        /// HTTP status of the answer.
        status: u16,
        /// Error message of the answer.
        message: String,
    },
    /// The answer cannot be parsed.
    #[error("the answer of replica {replica} cannot be read: {why}")]
    Malformed {
        /// Id of the replica.
        replica: ReplicaId,
        /// What is wrong with the answer.
        why: String,
    },
}

/// A call to another replica.
#[derive(Clone, Debug)]
pub(super) struct PeerCall {
    pub(super) method: Method,
    /// Path and query.
    pub(super) path: String,
    /// JSON; empty for no body.
    pub(super) body: Vec<u8>,
    /// Timeout for the whole call.
    pub(super) within: Duration,
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
            calling.unwrap_or_else(|_| Err(unreachable(to, format!("no answer within {:?}", ask.within))));
        let (status, body) = answered?;
        self.verified.given(to);
        if !status.is_success() {
            return Err(refused(to, status, &body));
        }
        serde_json::from_slice(&body)
            .map_err(|problem| CallError::Malformed { replica: to.id.clone(), why: problem.to_string() })
    }

    async fn call(&self, to: &Replica, ask: &PeerCall) -> Result<(StatusCode, Bytes), CallError> {
        let mut request = Request::builder().method(&ask.method).uri(url(to, &ask.path));
        if !ask.body.is_empty() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        let request = request.body(whole_body(ask.body.clone().into()));
        let request = request.map_err(|problem| unreachable(to, problem.to_string()))?;
        let answer = self.connections.send(to, request).await.map_err(|no_answer| {
            let (NoAnswer::NotSent(why) | NoAnswer::Unsure(why)) = no_answer;
            unreachable(to, why)
        })?;
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
    Ok(body.map_err(|problem| unreachable(to, problem.to_string()))?.to_bytes())
}

pub(super) fn unreachable(to: &Replica, why: String) -> CallError {
    CallError::Unreachable { replica: to.id.clone(), address: to.calls_at.clone(), why }
}

/// Converts an error response into a refusal with the message of the other side.
pub(super) fn refused(to: &Replica, status: StatusCode, body: &[u8]) -> CallError {
    let said: Value = serde_json::from_slice(body).unwrap_or_default();
    let message = said["message"].as_str().unwrap_or("no message").chars().take(MAX_MESSAGE_CHARS).collect();
    CallError::Refused { replica: to.id.clone(), status: status.as_u16(), message }
}
