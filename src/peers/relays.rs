//! Requests to accounts that the agents of another replica make: which replicas are asked, and the call. They have a bound of
//! their own, so that long answers keep no other call from being made.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response, StatusCode};
use hyper::body::{Bytes, Incoming};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, timeout_at};

use super::calls::{connected, replicas_of};
use super::client::{PeerCall, read_whole, refused};
use super::connections::{CallBody, CallError, lost, unreachable};
use super::{PeerTransport, Peers, Replica};
use kubesvc_core::{AgentId, BootId, ReplicaId, ZoneId};

/// Maximum number of relayed requests at once.
pub const MAX_RELAYED: usize = 1024;
/// Status of the answer of a replica that has no agent for a request.
pub const NOT_HERE: u16 = StatusCode::MISDIRECTED_REQUEST.as_u16();
/// Time limit for another replica to say that it asks an agent. The answer of the cluster may be longer in coming.
const OPENING_TIMEOUT: Duration = Duration::from_secs(60);

/// The answer of another replica to a relayed request.
pub struct RelayedAnswer {
    /// What it says. Dropping it cancels the call.
    pub body: Incoming,
    /// Counts the request as long as its answer is read.
    pub slot: OwnedSemaphorePermit,
}

/// A process of an agent at another replica, according to its object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteAgentProcess {
    pub agent_id: AgentId,
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
    ) -> Result<RelayedAnswer, CallError> {
        let link = self.transport.as_ref().ok_or_else(|| runs_alone(to))?;
        let slot = Arc::clone(&link.relays).try_acquire_owned();
        let slot = slot.map_err(|_| CallError::TooMany)?;
        if link.is_resting(to) {
            let why = "it did not answer a moment ago".to_owned();
            return Err(unreachable(to, why));
        }
        self.metrics.calls.inc();
        let until = deadline.min(Instant::now() + OPENING_TIMEOUT);
        let opened = timeout_at(until, open(link, to, call)).await;
        let opened = opened.unwrap_or_else(|_| Err(lost(to, "it did not answer in time".to_owned())));
        let body = opened.inspect_err(|error| match error {
            CallError::Refused { status: NOT_HERE, .. } => {}
            error => {
                self.metrics.failed.inc();
                if matches!(error, CallError::Unreachable { may_be_executed: false, .. }) {
                    link.rest(to);
                }
            }
        })?;
        Ok(RelayedAnswer { body, slot })
    }

    /// Another replica by its id.
    pub fn other(&self, replica_id: &ReplicaId) -> Option<Replica> {
        self.others().into_iter().find(|replica| replica.id == *replica_id)
    }

    /// Asks another replica a small question.
    pub async fn ask<T: DeserializeOwned>(&self, to: &Replica, path: &str) -> Result<T, CallError> {
        self.small_call(to, PeerCall::get(path)).await
    }

    /// Tells another replica something small.
    pub async fn tell<T: DeserializeOwned>(
        &self,
        to: &Replica,
        path: &str,
        message: &(impl Serialize + Sync),
    ) -> Result<T, CallError> {
        self.small_call(to, PeerCall::post(path, message)).await
    }

    async fn small_call<T: DeserializeOwned>(&self, to: &Replica, call: PeerCall) -> Result<T, CallError> {
        let link = self.transport.as_ref().ok_or_else(|| runs_alone(to))?;
        self.metrics.calls.inc();
        link.client.ask(to, &call).await.inspect_err(|_| {
            self.metrics.failed.inc();
        })
    }
}

fn runs_alone(to: &Replica) -> CallError {
    unreachable(to, "this replica runs alone".to_owned())
}

async fn open(link: &PeerTransport, to: &Replica, call: Request<CallBody>) -> Result<Incoming, CallError> {
    let answer: Response<Incoming> = link.connections.send(to, call).await?;
    link.verified.given(to);
    let (parts, body) = answer.into_parts();
    let said = match parts.status {
        StatusCode::OK => return Ok(body),
        StatusCode::MISDIRECTED_REQUEST => Bytes::new(),
        _ => read_whole(to, body).await.unwrap_or_default(),
    };
    // It asks an agent only after its head.
    Err(refused(to, parts.status, &said))
}
