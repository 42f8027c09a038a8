//! Requests to accounts that the agents of another replica make: which replicas are asked, and the call. They have a bound of
//! their own, so that long answers keep no other call from being made.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, timeout_at};

use super::calls::{connected, replicas_of};
use super::client::{CallError, PeerCall, read_whole, refused, unreachable};
use super::connections::{CallBody, NoAnswer};
use super::{PeerTransport, Peers, Replica};
use kubesvc_core::{AgentId, BootId, ReplicaId, ZoneId};

/// Maximum number of relayed requests at once.
pub const MAX_RELAYED: usize = 1024;
/// Time limit for another replica to say that it asks an agent. The answer of the cluster may be longer in coming.
const OPENING_TIMEOUT: Duration = Duration::from_secs(60);

/// The answer of another replica to a relayed request.
pub struct RelayedAnswer {
    /// What it says. Dropping it cancels the call.
    pub body: Incoming,
    /// Counts the request as long as its answer is read.
    pub slot: OwnedSemaphorePermit,
}

/// Why another replica does not relay a request.
#[derive(Debug)]
pub enum RelayFailure {
    /// It has no agent for the request.
    NotHere,
    /// It cannot be reached, and has not got the request.
    Unreachable(CallError),
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

    /// URL of a path at another replica.
    pub fn url(&self, to: &Replica, path: &str) -> String {
        super::client::url(to, path)
    }

    /// Makes a call that relays a request, or recalls its answer. `deadline` is for the head of the answer, which the other
    /// replica gives as soon as it asks an agent.
    ///
    /// # Errors
    /// The replica has no agent for it, or cannot be asked.
    pub async fn relay_request(
        &self,
        to: &Replica,
        call: Request<CallBody>,
        deadline: Instant,
    ) -> Result<RelayedAnswer, RelayFailure> {
        let Some(link) = &self.transport else { return Err(RelayFailure::NotHere) };
        let slot = Arc::clone(&link.relays).try_acquire_owned().map_err(|_| RelayFailure::TooMany)?;
        if link.is_resting(to) {
            let why = "it did not answer a moment ago".to_owned();
            return Err(RelayFailure::Unreachable(unreachable(to, why)));
        }
        self.metrics.calls.inc();
        let until = deadline.min(Instant::now() + OPENING_TIMEOUT);
        let opened = timeout_at(until, open(link, to, call)).await.unwrap_or_else(|_| {
            Err(RelayFailure::Unsure(unreachable(to, "it did not answer in time".to_owned())))
        });
        match opened {
            Ok(body) => Ok(RelayedAnswer { body, slot }),
            Err(failure) => {
                if !matches!(failure, RelayFailure::NotHere) {
                    self.metrics.failed.inc();
                }
                if matches!(failure, RelayFailure::Unreachable(_)) {
                    link.rest(to);
                }
                Err(failure)
            }
        }
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

async fn open(link: &PeerTransport, to: &Replica, call: Request<CallBody>) -> Result<Incoming, RelayFailure> {
    let answer: Response<Incoming> =
        link.connections.send(to, call).await.map_err(|problem| match problem {
            NoAnswer::NotSent(why) => RelayFailure::Unreachable(unreachable(to, why)),
            NoAnswer::Unsure(why) => RelayFailure::Unsure(unreachable(to, why)),
        })?;
    link.verified.given(to);
    let (parts, body) = answer.into_parts();
    match parts.status {
        StatusCode::OK => Ok(body),
        StatusCode::MISDIRECTED_REQUEST => Err(RelayFailure::NotHere),
        // It asks an agent only after its head.
        status => {
            let body = read_whole(to, body).await.unwrap_or_default();
            Err(RelayFailure::NotSent(refused(to, status, &body)))
        }
    }
}
