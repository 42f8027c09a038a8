//! Calls to other replicas: signed, each with an end, no redirects, answers of bounded size.

use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::Semaphore;

use super::key::{Key, PeerKey};
use super::membership::Replica;
use super::signature::{Call, Stamp};
use crate::telemetry::errors::chain;

/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(1);
/// How long an unused connection stays open: less than the other side keeps it.
const IDLE: Duration = Duration::from_secs(20);
/// Calls at once, to all replicas together; the others wait, within their time.
const AT_ONCE: usize = 64;
/// The largest answer, in bytes.
const LARGEST: usize = 64 * 1024 * 1024;
/// How much of another replica's message is told on, in characters.
const LONGEST_MESSAGE: usize = 300;

/// Why a replica did not do what it was asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// It gave no answer, or none in time.
    #[error("replica {replica} cannot be reached at {url}: {why}")]
    Unreachable {
        /// The replica.
        replica: String,
        /// Where it was looked for.
        url: String,
        /// What went wrong.
        why: String,
    },
    /// It answered, and refused.
    #[error("replica {replica} answered {status}: {message}")]
    Refused {
        /// The replica.
        replica: String,
        /// The code.
        status: u16,
        /// What it said.
        message: String,
    },
    /// Its answer cannot be read.
    #[error("the answer of replica {replica} cannot be read: {why}")]
    Malformed {
        /// The replica.
        replica: String,
        /// What is wrong with it.
        why: String,
    },
}

/// What is asked of a replica.
#[derive(Clone, Debug)]
pub(super) struct Ask {
    pub(super) method: Method,
    /// Path and query.
    pub(super) path: String,
    /// JSON; empty for none.
    pub(super) body: Vec<u8>,
    /// How long all of it may take.
    pub(super) within: Duration,
}

/// Calls other replicas.
pub(super) struct PeerClient {
    replica_id: String,
    key: Arc<PeerKey>,
    http: Client<HttpConnector, Full<Bytes>>,
    slots: Semaphore,
}

impl PeerClient {
    /// Calls in the name of this replica, signed with this key.
    pub(super) fn new(replica_id: &str, key: Arc<PeerKey>) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(CONNECT));
        connector.set_nodelay(true);
        let http = Client::builder(TokioExecutor::new())
            .pool_idle_timeout(IDLE)
            .pool_timer(TokioTimer::new())
            .pool_max_idle_per_host(4)
            .build(connector);
        Self { replica_id: replica_id.to_owned(), key, http, slots: Semaphore::new(AT_ONCE) }
    }

    /// Calls a replica and reads its answer.
    ///
    /// # Errors
    /// It gave none in time, refused, or answered something else.
    pub(super) async fn ask<T: DeserializeOwned>(&self, to: &Replica, ask: &Ask) -> Result<T, CallError> {
        let (status, body) = self.call(to, ask).await?;
        if !status.is_success() {
            return Err(refused(to, status, &body));
        }
        serde_json::from_slice(&body)
            .map_err(|problem| CallError::Malformed { replica: to.id.clone(), why: problem.to_string() })
    }

    /// Calls a replica, and once more if it refuses the signature and the key has been changed.
    ///
    /// # Errors
    /// It gave no answer in time.
    pub(super) async fn call(&self, to: &Replica, ask: &Ask) -> Result<(StatusCode, Bytes), CallError> {
        let calling = async {
            let _slot = self.slots.acquire().await.map_err(|closed| unreachable(to, closed.to_string()))?;
            let key = self.key.current();
            let answer = self.once(to, ask, &key).await?;
            if answer.0 != StatusCode::UNAUTHORIZED {
                return Ok(answer);
            }
            match self.key.other_than(&key).await {
                Some(key) => self.once(to, ask, &key).await,
                None => Ok(answer),
            }
        };
        tokio::time::timeout(ask.within, calling)
            .await
            .unwrap_or_else(|_| Err(unreachable(to, format!("no answer within {:?}", ask.within))))
    }

    async fn once(&self, to: &Replica, ask: &Ask, key: &Key) -> Result<(StatusCode, Bytes), CallError> {
        let stamp = Stamp::new(
            &self.replica_id,
            &to.id,
            Timestamp::now().as_millisecond(),
            ulid::Ulid::generate().to_string(),
        );
        let call = Call { method: ask.method.as_str(), path: &ask.path, body: &ask.body };
        let headers = stamp.headers(key, call).map_err(|why| unreachable(to, why))?;
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
        let status = answer.status();
        let body = Limited::new(answer.into_body(), LARGEST).collect().await;
        Ok((status, body.map_err(|problem| unreachable(to, problem.to_string()))?.to_bytes()))
    }
}

fn unreachable(to: &Replica, why: String) -> CallError {
    CallError::Unreachable { replica: to.id.clone(), url: to.base_url.clone(), why }
}

/// The refusal, with what the other side says in the shape of an error.
fn refused(to: &Replica, status: StatusCode, body: &[u8]) -> CallError {
    let said: Value = serde_json::from_slice(body).unwrap_or_default();
    let message = said["message"].as_str().unwrap_or("no message").chars().take(LONGEST_MESSAGE).collect();
    CallError::Refused { replica: to.id.clone(), status: status.as_u16(), message }
}
