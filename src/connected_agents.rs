//! The port through which the controller and REST see the connected agents. The hub implements it.

mod account_requests;
mod all_replicas;
mod remote_sessions;
mod replica_requests;
mod request_error;

use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

pub use account_requests::{
    AccountRequest, AccountRequests, AccountResponse, AnsweringAgent, AskedAgent, AskedObserver, ByteStream,
    CallerRight, DEFAULT_HEAD_TIMEOUT, Repetition, RequestCaller, RequestClass, UpgradedBytes,
};
pub use all_replicas::ClusterSessions;
pub use remote_sessions::RemoteSessions;
pub use replica_requests::{AccountGrant, MAX_ASKED_AGENTS, ReplicaRequests};
pub use request_error::{RequestError, RequestErrorKind, Retry, Suspects};

use kubesvc_core::lifecycle::{SessionFact, Tick};
use kubesvc_core::{AgentId, ReplicaId, ZoneId};

/// Seconds for which this process was able to lead. Only the leader's clock task advances it.
#[derive(Debug, Default)]
pub struct LeaderClock(AtomicU64);

impl LeaderClock {
    pub fn now(&self) -> Tick {
        self.0.load(Ordering::Relaxed)
    }

    /// Adds one second in which this process was able to lead.
    pub fn advance(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A connected agent, as shown to people and to other replicas.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentView {
    /// Id of the agent.
    pub agent_id: AgentId,
    /// Zone of the agent.
    pub zone_id: ZoneId,
    /// Version of the agent program.
    pub version: String,
    /// The replica that has the agent's session.
    pub replica_id: ReplicaId,
    /// Start of the session.
    pub connected_since: Timestamp,
    /// Time of the last frame from the agent.
    pub last_seen: Timestamp,
    /// Whether the agent is approved, so that it is given accounts.
    pub approved: bool,
    /// Sorted names of the accounts that it holds.
    pub accounts: Vec<String>,
}

/// Reason why the agents cannot be read.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the agents' objects cannot be read: {0}")]
pub struct ConnectedAgentsError(pub String);

/// The connected agents. All methods except [`read`](Self::read) and [`disconnect`](Self::disconnect) only
/// read memory.
#[async_trait]
pub trait ConnectedAgents: Send + Sync {
    /// All sessions relevant to the account, each with its last report about it. The leader decides from
    /// these.
    fn sessions(&self, uid: &str) -> Vec<SessionFact>;

    /// All connected agents, by id.
    fn agents(&self) -> Vec<AgentView>;

    /// Agents that hold the account, by id.
    fn holders(&self, uid: &str) -> Vec<AgentView>;

    /// Namespaces that an agent of this replica has reported for the account since it connected, if any.
    fn namespaces(&self, uid: &str) -> Option<Vec<String>>;

    /// Whether a session reports that the account's credential is not the granted version. The leader does
    /// not notice by itself until it reads the credential again.
    fn credential_mismatch(&self, _uid: &str) -> bool {
        false
    }

    /// Whether all possible sessions belong to this process, so that [`read`](Self::read) is not needed.
    fn is_all_here(&self) -> bool;

    /// Ensures that all sessions of a zone registered so far, at any replica, are visible here.
    ///
    /// # Errors
    /// The API server cannot be read.
    async fn read(&self, zone: &ZoneId) -> Result<(), ConnectedAgentsError>;

    /// Applies the just-read KubesvcAgents of a zone to this process's sessions, without waiting for the task
    /// that follows those objects.
    fn catch_up(&self, _zone: &ZoneId) {}

    /// Closes the sessions of the agents of an id, in one zone or in each; the agents may connect again at once. Returns
    /// false if none is connected.
    fn disconnect(&self, agent_id: &AgentId, zone: Option<&ZoneId>) -> bool;
}
