//! The port through which the controller and REST see the connected agents; the hub stands behind it.

mod cluster_sessions;
mod remote_sessions;

use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::account::lifecycle::{SessionFact, Tick};

/// The leader's seconds. Only the leader's clock task advances them.
#[derive(Debug, Default)]
pub struct Ticks(AtomicU64);

pub use cluster_sessions::ClusterSessions;
pub use remote_sessions::RemoteSessions;

impl Ticks {
    /// Now.
    pub fn now(&self) -> Tick {
        self.0.load(Ordering::Relaxed)
    }

    /// One more second has passed while this process was able to lead.
    pub fn advance(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A connected agent, for people and for other replicas.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentView {
    /// The agent.
    pub agent_id: String,
    /// Its zone.
    pub zone_id: String,
    /// The program's version.
    pub version: String,
    /// The replica that holds its stream.
    pub replica_id: String,
    /// Since when the stream stands.
    pub connected_since: Timestamp,
    /// When its last frame came.
    pub last_seen: Timestamp,
    /// Whether it is given accounts.
    pub approved: bool,
    /// Names of the accounts it holds, sorted.
    pub accounts: Vec<String>,
}

/// Why the agents cannot be read.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the agents' objects cannot be read: {0}")]
pub struct FleetError(pub String);

/// The connected agents. Reads are of memory and take no I/O, but for [`read`](Self::read).
#[async_trait]
pub trait Fleet: Send + Sync {
    /// Every session of the fleet with its last word about this account: what the leader decides from.
    fn sessions(&self, uid: &str) -> Vec<SessionFact>;

    /// All connected agents, by id.
    fn agents(&self) -> Vec<AgentView>;

    /// Agents that hold the account with this uid, by id.
    fn holders(&self, uid: &str) -> Vec<AgentView>;

    /// Namespaces that an agent of this replica saw for this account, if one told them since it connected.
    fn namespaces(&self, uid: &str) -> Option<Vec<String>>;

    /// Whether a session finds the credential of the account to be another one than the granted one. A leader that has
    /// not read it since does not know.
    fn credential_mismatch(&self, _uid: &str) -> bool {
        false
    }

    /// Whether every session there may be is a session of this process, so that nothing has to be [read](Self::read).
    fn is_all_here(&self) -> bool;

    /// Makes sure that the sessions of a zone which were registered until now, at any replica, are seen.
    ///
    /// # Errors
    /// The API server cannot be asked.
    async fn read(&self, zone: &str) -> Result<(), FleetError>;

    /// The agents' objects of a zone were read a moment ago: what they say of this process's sessions is taken in now, and
    /// not only when whoever follows them comes to it.
    fn catch_up(&self, _zone: &str) {}

    /// Closes the stream of an agent, which may connect again at once. False if it is not connected.
    fn disconnect(&self, agent_id: &str) -> bool;
}
