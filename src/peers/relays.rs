//! Requests to accounts that the agents of another replica make: which replicas are asked, and the calls. They have
//! connections and a bound of their own, so that long answers hold up no other call.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyDataStream, Full};
use hyper::body::Incoming;
use hyper::upgrade::Upgraded;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use prost::bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{ReadHalf, WriteHalf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};
use tokio_util::io::ReaderStream;

use super::calls::{connected, replicas_of};
use super::client::{CallError, PeerCall, http_client, refused, unproven, unreachable, whole};
use super::frames::{FrameSigner, IncomingBytes, PeerFrames};
use super::key::SigningKey;
use super::signature::{self, CallStamp, FrameSide, RELAYED_FOR, SignedCall};
use super::{PeerTransport, Peers, Replica};
use kubesvc_core::{AgentId, BootId, ReplicaId, ZoneId};
use kubesvc_runtime::telemetry::errors::chain;

/// Maximum number of relayed requests at once.
pub const MAX_RELAYED: usize = 1024;
/// Protocol of a relayed request that is upgraded: frames both ways.
pub const FRAMES_PROTOCOL: &str = "kubesvc-frames";
/// Bytes that are read at once of an upgraded call.
const READ_BYTES: usize = 64 * 1024;
/// Time limit for another replica to say that it asks an agent. The answer of the cluster may be longer in coming.
const OPENING_TIMEOUT: Duration = Duration::from_secs(60);

/// The connections of relayed requests.
pub(super) struct RelayClient {
    http: Client<HttpConnector, Full<Bytes>>,
    slots: Arc<Semaphore>,
}

impl Default for RelayClient {
    fn default() -> Self {
        Self { http: http_client(), slots: Arc::new(Semaphore::new(MAX_RELAYED)) }
    }
}

/// A call that is answered in frames.
#[derive(Clone, Debug)]
pub struct RelayedCall {
    /// Method of the call.
    pub method: Method,
    /// Path and query of the call.
    pub path: String,
    /// For whom it is relayed, in ASCII.
    pub relayed_for: Option<String>,
    /// Body.
    pub body: Bytes,
    /// Whether both sides send frames.
    pub upgrade: bool,
    /// When its caller waits no more.
    pub deadline: Instant,
}

/// An answer in frames.
pub struct RelayedAnswer {
    /// The frames of the other replica.
    pub frames: PeerFrames,
    /// What takes frames of this one, after an upgrade.
    pub upgraded: Option<(WriteHalf<TokioIo<Upgraded>>, FrameSigner)>,
    /// Counts the request as long as its answer is read.
    pub slot: OwnedSemaphorePermit,
}

/// Why another replica does not answer in frames.
#[derive(Debug)]
pub enum RelayFailure {
    /// It has no agent for the request.
    NotHere,
    /// Nothing was executed.
    NotSent(CallError),
    /// The call may have been executed.
    Unsure(CallError),
    /// [`MAX_RELAYED`] requests are relayed.
    TooMany,
}

/// A process of an agent at another replica, according to its object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteAgentProcess {
    /// Id of the agent.
    pub agent_id: AgentId,
    /// The process.
    pub boot_id: BootId,
    /// The replica that has its session.
    pub replica_id: ReplicaId,
}

impl Peers {
    /// The other replicas that may have an agent of a zone: first those of the agents that hold the account, then those
    /// of the zone's other agents. A replica that no object names is asked last.
    pub fn replicas_of_zone(&self, zone: &ZoneId, holders: &[AgentId]) -> Vec<Replica> {
        let Some(link) = &self.transport else { return Vec::new() };
        let of_zone: Vec<_> = link.agents.all().iter().filter_map(|agent| connected(agent)).collect();
        let of_zone = || of_zone.iter().filter(|agent| agent.zone_id == *zone);
        let first: HashSet<_> = of_zone()
            .filter(|agent| holders.contains(&agent.agent_id))
            .map(|agent| &agent.replica_id)
            .collect();
        let second: HashSet<_> = of_zone().map(|agent| &agent.replica_id).collect();
        let rank = |replica: &Replica| match &replica.id {
            id if first.contains(id) => Some(0),
            id if second.contains(id) => Some(1),
            // If Endpoints name no pods, the objects match no replica.
            _ if !replica.named => Some(2),
            _ => None,
        };
        let mut ranked: Vec<_> =
            self.others().into_iter().filter_map(|replica| Some((rank(&replica)?, replica))).collect();
        ranked.sort_by_key(|(rank, _)| *rank);
        ranked.into_iter().map(|(_, replica)| replica).collect()
    }

    /// The other replicas, first those that have sessions of the id according to the KubesvcAgents.
    pub fn replicas_for_agent(&self, agent_id: &AgentId) -> Vec<Replica> {
        let Some(link) = &self.transport else { return Vec::new() };
        let holders = replicas_of(&link.agents, agent_id, None);
        let mut others = self.others();
        others.sort_by_key(|replica| !holders.contains(&replica.id));
        others
    }

    /// The processes of a zone's agents that are connected, according to their objects.
    pub fn processes_of_zone(&self, zone: &ZoneId) -> Vec<RemoteAgentProcess> {
        let Some(link) = &self.transport else { return Vec::new() };
        let of_zone = link.agents.all().into_iter().filter(|agent| agent.spec.zone_id == *zone);
        let processes = of_zone.filter_map(|agent| {
            let status = agent.status.as_ref().filter(|status| status.connected)?;
            let session = status.session.as_ref()?;
            Some(RemoteAgentProcess {
                agent_id: agent.spec.agent_id.clone(),
                boot_id: session.boot_id.clone(),
                replica_id: session.replica.clone(),
            })
        });
        processes.collect()
    }

    /// Makes a call that is answered in frames.
    ///
    /// # Errors
    /// The replica has no agent for it, or cannot be asked.
    pub async fn relay_request(
        &self,
        to: &Replica,
        call: &RelayedCall,
    ) -> Result<RelayedAnswer, RelayFailure> {
        let Some(link) = &self.transport else { return Err(RelayFailure::NotHere) };
        let slot = Arc::clone(&link.relays.slots).try_acquire_owned().map_err(|_| RelayFailure::TooMany)?;
        if link.is_resting(to) {
            return Err(RelayFailure::NotSent(unreachable(to, "it did not answer a moment ago".to_owned())));
        }
        self.metrics.calls.inc();
        let key = link.key.current();
        // The head of a watch may be long in coming; the other replica answers at once that it asks.
        let until = call.deadline.min(Instant::now() + OPENING_TIMEOUT);
        let opening = timeout_at(until, self.open(link, to, call, &key));
        let opened = opening.await.unwrap_or_else(|_| {
            Err(RelayFailure::Unsure(unreachable(to, "it did not answer in time".to_owned())))
        });
        match opened {
            Ok((frames, upgraded)) => Ok(RelayedAnswer { frames, upgraded, slot }),
            Err(failure) => {
                if let RelayFailure::NotSent(_) | RelayFailure::Unsure(_) = &failure {
                    self.metrics.failed.inc();
                }
                if matches!(failure, RelayFailure::NotSent(CallError::Unreachable { .. })) {
                    link.rest(to);
                }
                Err(failure)
            }
        }
    }

    async fn open(
        &self,
        link: &PeerTransport,
        to: &Replica,
        call: &RelayedCall,
        key: &Arc<SigningKey>,
    ) -> Result<(PeerFrames, Option<Upgrade>), RelayFailure> {
        let stamp = CallStamp::new(
            self.replica_id.as_str(),
            to.id.as_str(),
            Timestamp::now().as_millisecond(),
            ulid::Ulid::generate().to_string(),
        );
        let request = signed_request(to, call, &stamp, key).map_err(RelayFailure::NotSent)?;
        let answer = link.relays.http.request(request).await.map_err(|problem| {
            let error = unreachable(to, chain(&problem));
            if problem.is_connect() { RelayFailure::NotSent(error) } else { RelayFailure::Unsure(error) }
        })?;
        let nonce = &stamp.nonce;
        if answer.status() == StatusCode::UNAUTHORIZED {
            // The key may be another one by now; the next call has it.
            link.key.other_than(key).await;
        }
        let wanted = if call.upgrade { StatusCode::SWITCHING_PROTOCOLS } else { StatusCode::OK };
        if answer.status() != wanted {
            let (status, body) = whole(to, key, nonce, answer).await.map_err(RelayFailure::Unsure)?;
            link.verified.given(to);
            return Err(match status {
                StatusCode::MISDIRECTED_REQUEST => RelayFailure::NotHere,
                status => RelayFailure::NotSent(refused(to, status, &body)),
            });
        }
        if !signature::answer_fits(answer.headers(), key, nonce, answer.status(), b"") {
            return Err(RelayFailure::Unsure(unproven(to, answer.status())));
        }
        link.verified.given(to);
        let of = format!("of replica {}", to.id);
        let frames = |source| PeerFrames::new(&of, source, key, nonce, FrameSide::Answerer);
        if !call.upgrade {
            return Ok((frames(body_stream(answer)), None));
        }
        let upgraded = hyper::upgrade::on(answer).await;
        let upgraded = upgraded.map_err(|problem| RelayFailure::Unsure(unreachable(to, chain(&problem))))?;
        let (reader, writer) = tokio::io::split(TokioIo::new(upgraded));
        let signer = FrameSigner::new(key, nonce, FrameSide::Caller);
        Ok((frames(read_stream(reader)), Some((writer, signer))))
    }

    /// Another replica by its id.
    pub fn other(&self, replica_id: &ReplicaId) -> Option<Replica> {
        self.others().into_iter().find(|replica| replica.id == *replica_id)
    }

    /// Asks another replica a small question.
    ///
    /// # Errors
    /// The replica cannot be asked, or refuses.
    pub async fn ask<T: DeserializeOwned>(&self, to: &Replica, path: &str) -> Result<T, CallError> {
        self.small_call(to, super::calls::get(path)).await
    }

    /// Tells another replica something small.
    ///
    /// # Errors
    /// The replica cannot be asked, or refuses.
    pub async fn tell<T: DeserializeOwned>(
        &self,
        to: &Replica,
        path: &str,
        message: &(impl Serialize + Sync),
    ) -> Result<T, CallError> {
        let body = serde_json::to_vec(message).expect("texts are JSON");
        self.small_call(to, PeerCall { method: Method::POST, body, ..super::calls::get(path) }).await
    }

    async fn small_call<T: DeserializeOwned>(&self, to: &Replica, call: PeerCall) -> Result<T, CallError> {
        let Some(link) = &self.transport else {
            return Err(unreachable(to, "this replica runs alone".to_owned()));
        };
        self.metrics.calls.inc();
        link.client.ask(to, &call).await.inspect_err(|_| {
            self.metrics.failed.inc();
        })
    }
}

/// What takes the frames of this side.
type Upgrade = (WriteHalf<TokioIo<Upgraded>>, FrameSigner);

fn signed_request(
    to: &Replica,
    call: &RelayedCall,
    stamp: &CallStamp,
    key: &SigningKey,
) -> Result<Request<Full<Bytes>>, CallError> {
    let signed = SignedCall {
        method: call.method.as_str(),
        path: &call.path,
        body: &call.body,
        relayed_for: call.relayed_for.as_deref().map(str::as_bytes),
    };
    let headers = stamp.headers(key, signed).map_err(|why| unreachable(to, why.to_string()))?;
    let mut request = Request::builder()
        .method(&call.method)
        .uri(format!("{}{}", to.base_url, call.path))
        .body(Full::new(call.body.clone()))
        .map_err(|problem| unreachable(to, problem.to_string()))?;
    let all: &mut HeaderMap = request.headers_mut();
    all.extend(headers.into_iter().map(|(name, value)| (Some(name), value)));
    if let Some(relayed_for) = &call.relayed_for {
        let value = HeaderValue::from_str(relayed_for);
        all.insert(RELAYED_FOR, value.map_err(|problem| unreachable(to, problem.to_string()))?);
    }
    if call.upgrade {
        all.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        all.insert(header::UPGRADE, HeaderValue::from_static(FRAMES_PROTOCOL));
    }
    Ok(request)
}

fn body_stream(answer: Response<Incoming>) -> IncomingBytes {
    BodyDataStream::new(answer.into_body()).map(|part| part.map_err(io::Error::other)).boxed()
}

/// The bytes of one half of an upgraded call.
pub fn read_stream(reader: ReadHalf<TokioIo<Upgraded>>) -> IncomingBytes {
    ReaderStream::with_capacity(reader, READ_BYTES).boxed()
}
