//! Client for calls to other replicas: signed, with a timeout, without redirects, and with bounded answers.

use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::Semaphore;

use super::key::{PeerKey, SigningKey};
use super::membership::Replica;
use super::signature::{self, CallStamp, SignedCall};
use super::verification::VerifiedPeers;
use kubesvc_core::ReplicaId;
use kubesvc_runtime::telemetry::errors::chain;

/// Timeout for opening a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Time after which an idle connection is closed: shorter than on the other side.
const IDLE_TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum number of concurrent calls to all replicas; further calls wait within their timeout.
const MAX_CONCURRENT_CALLS: usize = 64;
/// Maximum size of an answer, in bytes.
const MAX_ANSWER_BYTES: usize = 64 * 1024 * 1024;
/// Maximum length, in characters, of an error message that is passed on from another replica.
const MAX_MESSAGE_CHARS: usize = 300;

/// Reason why a call to a replica failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The replica did not answer, or not in time.
    #[error("replica {replica} cannot be reached at {url}: {why}")]
    Unreachable {
        /// Id of the replica.
        replica: ReplicaId,
        /// URL that was called.
        url: String,
        /// What went wrong.
        why: String,
    },
    /// The answer does not prove that it comes from a replica.
    #[error(
        "the server at {url} ({status}) did not prove that it is replica {replica}: it must have the key of Secret kubesvc-peer"
    )]
    Unproven {
        /// Id of the replica.
        replica: ReplicaId,
        /// URL that was called.
        url: String,
        /// HTTP status of the answer.
        status: u16,
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
    replica_id: ReplicaId,
    key: Arc<PeerKey>,
    verified: Arc<VerifiedPeers>,
    http: Client<HttpConnector, Full<Bytes>>,
    slots: Semaphore,
}

impl PeerClient {
    /// Creates a client that calls in the name of this replica and signs with this key.
    pub(super) fn new(replica_id: &ReplicaId, key: Arc<PeerKey>, proofs: Arc<VerifiedPeers>) -> Self {
        Self {
            replica_id: replica_id.to_owned(),
            key,
            verified: proofs,
            http: http_client(),
            slots: Semaphore::new(MAX_CONCURRENT_CALLS),
        }
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
        let (status, body) = self.call(to, ask).await?;
        if !status.is_success() {
            return Err(refused(to, status, &body));
        }
        serde_json::from_slice(&body)
            .map_err(|problem| CallError::Malformed { replica: to.id.clone(), why: problem.to_string() })
    }

    /// Calls a replica. Retries once if the signature is refused and the key has been rotated. An answer
    /// without a valid signature is an error.
    ///
    /// # Errors
    /// There was no answer in time, or none with a valid signature.
    async fn call(&self, to: &Replica, ask: &PeerCall) -> Result<(StatusCode, Bytes), CallError> {
        let calling = async {
            let _slot = self.slots.acquire().await.map_err(|closed| unreachable(to, closed.to_string()))?;
            let key = self.key.current();
            let answer = self.once(to, ask, &key).await;
            if !matches!(answer, Err(CallError::Unproven { status: 401, .. })) {
                return answer;
            }
            match self.key.other_than(&key).await {
                Some(key) => self.once(to, ask, &key).await,
                None => answer,
            }
        };
        tokio::time::timeout(ask.within, calling)
            .await
            .unwrap_or_else(|_| Err(unreachable(to, format!("no answer within {:?}", ask.within))))
    }

    async fn once(
        &self,
        to: &Replica,
        ask: &PeerCall,
        key: &SigningKey,
    ) -> Result<(StatusCode, Bytes), CallError> {
        let (nonce, answer) = self.send(to, ask, key).await?;
        let answer = whole(to, key, &nonce, answer).await?;
        self.verified.given(to);
        Ok(answer)
    }

    /// Signs and sends a call. Returns its nonce with the answer, of which nothing is verified yet.
    async fn send(
        &self,
        to: &Replica,
        ask: &PeerCall,
        key: &SigningKey,
    ) -> Result<(String, Response<Incoming>), CallError> {
        let stamp = CallStamp::new(
            self.replica_id.as_str(),
            to.id.as_str(),
            Timestamp::now().as_millisecond(),
            ulid::Ulid::generate().to_string(),
        );
        let call =
            SignedCall { method: ask.method.as_str(), path: &ask.path, body: &ask.body, relayed_for: None };
        let headers = stamp.headers(key, call).map_err(|why| unreachable(to, why.to_string()))?;
        let mut request = Request::builder()
            .method(&ask.method)
            .uri(format!("{}{}", to.base_url, ask.path))
            .body(Full::new(Bytes::from(ask.body.clone())))
            .map_err(|problem| unreachable(to, problem.to_string()))?;
        if !ask.body.is_empty() {
            request
                .headers_mut()
                .insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
        }
        request.headers_mut().extend(headers.into_iter().map(|(name, value)| (Some(name), value)));
        let answer = self.http.request(request).await.map_err(|problem| unreachable(to, chain(&problem)))?;
        Ok((stamp.nonce, answer))
    }
}

/// A client that opens connections fast, and keeps few.
pub(super) fn http_client() -> Client<HttpConnector, Full<Bytes>> {
    let mut connector = HttpConnector::new();
    connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
    connector.set_nodelay(true);
    Client::builder(TokioExecutor::new())
        .pool_idle_timeout(IDLE_TIMEOUT)
        .pool_timer(TokioTimer::new())
        .pool_max_idle_per_host(4)
        .build(connector)
}

/// Reads and verifies an answer.
pub(super) async fn whole(
    to: &Replica,
    key: &SigningKey,
    nonce: &str,
    answer: Response<Incoming>,
) -> Result<(StatusCode, Bytes), CallError> {
    let (parts, body) = answer.into_parts();
    if !signature::names_key(&parts.headers, key) {
        return Err(unproven(to, parts.status));
    }
    let body = Limited::new(body, MAX_ANSWER_BYTES).collect().await;
    let body = body.map_err(|problem| unreachable(to, problem.to_string()))?.to_bytes();
    if !signature::answer_fits(&parts.headers, key, nonce, parts.status, &body) {
        return Err(unproven(to, parts.status));
    }
    Ok((parts.status, body))
}

pub(super) fn unreachable(to: &Replica, why: String) -> CallError {
    CallError::Unreachable { replica: to.id.clone(), url: to.base_url.clone(), why }
}

pub(super) fn unproven(to: &Replica, status: StatusCode) -> CallError {
    CallError::Unproven { replica: to.id.clone(), url: to.base_url.clone(), status: status.as_u16() }
}

/// Converts an error response into a refusal with the message of the other side.
pub(super) fn refused(to: &Replica, status: StatusCode, body: &[u8]) -> CallError {
    let said: Value = serde_json::from_slice(body).unwrap_or_default();
    let message = said["message"].as_str().unwrap_or("no message").chars().take(MAX_MESSAGE_CHARS).collect();
    CallError::Refused { replica: to.id.clone(), status: status.as_u16(), message }
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::extract::Request as Asked;
    use axum::response::{IntoResponse, Response};

    use super::super::calls::ReachAnswer;
    use super::*;

    const LONG: &str = r#"{"replicaId":"b","answeredForMs":86400000}"#;

    fn key(byte: u8) -> SigningKey {
        SigningKey::new(vec![byte; 32]).expect("long enough")
    }

    /// Sends a question to a server with this answer. Returns the outcome, and whether the server counts as a
    /// replica.
    async fn asked(
        answer: impl Fn(&str) -> Response + Clone + Send + Sync + 'static,
    ) -> (Result<u64, CallError>, bool) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let at = listener.local_addr().expect("an address");
        let app = Router::new().fallback(async move |request: Asked| {
            answer(request.headers()["x-kubesvc-nonce"].to_str().expect("a nonce"))
        });
        let serving = tokio::spawn(async move { axum::serve(listener, app).await });
        let proofs = Arc::new(VerifiedPeers::default());
        let client = PeerClient::new(&"a".into(), Arc::new(PeerKey::of_test(key(1))), Arc::clone(&proofs));
        let replica = Replica {
            address: None,
            id: "b".into(),
            base_url: format!("http://{at}"),
            ready: true,
            last_updated: Timestamp::UNIX_EPOCH,
            named: true,
        };
        let ask = super::super::calls::get("/internal/v1/reach");
        let said = client.ask::<ReachAnswer>(&replica, &ask).await;
        serving.abort();
        (said.map(|reach| reach.answered_for_ms), proofs.has(&replica))
    }

    fn signed(by: u8, nonce: &str, status: StatusCode) -> Response {
        (
            status,
            signature::answer_headers(&key(by), nonce, status, LONG.as_bytes())
                .into_iter()
                .collect::<http::HeaderMap>(),
            LONG,
        )
            .into_response()
    }

    #[tokio::test]
    async fn an_answer_counts_only_under_the_key_and_for_its_own_question() {
        let (said, proven) = asked(|nonce| signed(1, nonce, StatusCode::OK)).await;
        assert_eq!((said, proven), (Ok(86_400_000), true));
        let unproven = |status| {
            move |(said, proven): (Result<u64, CallError>, bool)| {
                let is_so = matches!(said, Err(CallError::Unproven { status: one, .. }) if one == status);
                assert!(is_so && !proven, "{said:?} {proven}");
            }
        };
        unproven(200)(asked(|_| LONG.into_response()).await);
        unproven(200)(asked(|nonce| signed(2, nonce, StatusCode::OK)).await);
        unproven(200)(asked(|_| signed(1, "of another question", StatusCode::OK)).await);
        let changed = |nonce: &str| {
            let mut answer = signed(1, nonce, StatusCode::OK);
            *answer.body_mut() = LONG.replace("86400000", "96400000").into();
            answer
        };
        unproven(200)(asked(changed).await);
        let other_status = |nonce: &str| {
            let mut answer = signed(1, nonce, StatusCode::OK);
            *answer.status_mut() = StatusCode::NOT_FOUND;
            answer
        };
        unproven(404)(asked(other_status).await);
        unproven(401)(asked(|_| StatusCode::UNAUTHORIZED.into_response()).await);
    }

    #[tokio::test]
    async fn a_refusal_under_the_key_comes_from_a_replica() {
        let (said, proven) = asked(|nonce| signed(1, nonce, StatusCode::NOT_FOUND)).await;
        assert!(matches!(said, Err(CallError::Refused { status: 404, .. })), "{said:?}");
        assert!(proven);
    }
}
