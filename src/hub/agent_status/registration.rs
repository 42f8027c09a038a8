//! The port to the KubesvcAgent objects. Its adapter over the Kubernetes API is in `kube_objects`, what their status says
//! in `status`.

mod kube_objects;
pub(in crate::hub) mod status;
mod write_pacer;

use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;

use crate::account::agent_resource::SessionEnd;
use crate::account::outbox::OutboxEntry;
use crate::account::{BootId, SessionId};
use crate::hub::admission::queue::AdmissionClass;

pub use kube_objects::KubeAgentObjects;

/// A session, as it is written into its KubesvcAgent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registration {
    /// The agent.
    pub agent_id: String,
    /// Its zone.
    pub zone: String,
    /// The ULID of the session.
    pub session_id: SessionId,
    /// The ULID of the agent's process.
    pub boot_id: BootId,
    /// Counts the connections of that process.
    pub connect_seq: i64,
    /// The replica that holds the stream.
    pub replica: String,
    /// The program's version; empty if it told none.
    pub version: String,
    /// The protocol that both speak.
    pub protocol: u32,
    /// Since when the stream stands.
    pub connected_since: Timestamp,
    /// uid of kube-system of the cluster that it runs in; empty where it has not said.
    pub cluster_uid: String,
    /// Whether its zone has accounts that it does not hold: it is registered before those that have what they need.
    pub needs_accounts: bool,
    /// What was known of the agent when it came: those that were here before are registered first.
    pub admission: AdmissionClass,
}

/// A session, as the object of its agent names it. Nothing is written for one that it does not name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionRef<'s> {
    /// The agent.
    pub agent_id: &'s str,
    /// Its zone.
    pub zone: &'s str,
    /// The ULID of the session.
    pub id: &'s SessionId,
}

/// What the object says of an agent that was registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegisteredAgent {
    /// Whether the agent is given accounts.
    pub approved: bool,
    /// Whether it ever was; then it may hold some.
    pub approved_once: bool,
    /// The version of the object that names the session.
    pub version: u64,
}

/// What became of a session's outbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutboxWrite {
    /// The object says it.
    Written,
    /// The object names another session: this one is no longer in force.
    Superseded,
}

/// An agent that has an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownAgent {
    /// The agent.
    pub agent_id: String,
    /// Its zone.
    pub zone: String,
    /// Its session in force, or its last one.
    pub session_id: SessionId,
    /// The replica of that session; empty if there was none.
    pub replica: String,
    /// The process of that replica, if it is said.
    pub incarnation: Option<String>,
    /// Whether it is given accounts.
    pub approved: bool,
    /// Whether it ever was.
    pub approved_once: bool,
    /// Whether the object says that it is connected.
    pub connected: bool,
    /// When its last stream ended, if that is said.
    pub ended_at: Option<Timestamp>,
    /// Whether it has accounts in its own file, as it said last.
    pub lists: bool,
    /// The object's uid.
    pub uid: String,
    /// The version of the object that says this.
    pub resource_version: String,
}

impl KnownAgent {
    /// The session in force, or the last one.
    pub fn session(&self) -> SessionRef<'_> {
        SessionRef { agent_id: &self.agent_id, zone: &self.zone, id: &self.session_id }
    }
}

/// What an agent's object says of its accounts, for people and for other replicas.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentSummary {
    /// How many accounts it holds.
    pub held: i32,
    /// How many it could not take, or has lost.
    pub failed: i32,
    /// Digests of the names in its own file, sorted; absent until it has listed them.
    pub static_accounts: Option<Vec<String>>,
    /// Digests of those names with their sources, sorted.
    pub static_sources: Option<Vec<String>>,
    /// What is wrong with its own accounts: one word in CamelCase, and a sentence.
    pub problem: Option<(String, String)>,
    /// Accounts that are kept from it because they are bound to another cluster: the first of them, and why.
    pub kept_from: Option<String>,
}

/// Why an object could not be written.
#[derive(Debug, thiserror::Error)]
pub enum RegistrationError {
    /// A later connection of the same process is registered already.
    #[error("a later connection of the same process is registered")]
    Superseded,
    /// Another process is connected under the agent's id, at another replica.
    #[error("another process is connected under this id at replica {0}")]
    ConnectedElsewhere(String),
    /// The agent was disconnected on request, and another process asks for its id too soon.
    #[error("the agent was disconnected on request; its id is kept for its process for {0:?}")]
    Kept(Duration),
    /// The name of the object is taken by another agent; the two names hash alike.
    #[error("KubesvcAgent {0} belongs to another agent; give the agent another AGENT_ID")]
    NameTaken(String),
    /// The API server did not take it.
    #[error("KubesvcAgent {name}: {reason}")]
    Api {
        /// The object, or what was asked for.
        name: String,
        /// What the API server said.
        reason: String,
    },
}

/// The KubesvcAgent objects.
#[async_trait]
pub trait AgentObjects: Send + Sync {
    /// All agents that have an object.
    ///
    /// # Errors
    /// The API server cannot be asked.
    async fn known(&self) -> Result<Vec<KnownAgent>, RegistrationError>;

    /// Writes a session into its object, which is created if need be. Tried once against the API server, and again
    /// only where someone else has written meanwhile.
    ///
    /// # Errors
    /// The API server cannot be reached or refuses; a later connection of the process is there already; another process
    /// is connected under the agent's id.
    async fn register(&self, registration: &Registration) -> Result<RegisteredAgent, RegistrationError>;

    /// Writes that a session has ended, and how; nothing is written if the object names another session or says so already.
    ///
    /// # Errors
    /// The API server cannot be reached or refuses.
    async fn write_disconnected(
        &self,
        session: SessionRef<'_>,
        end: SessionEnd,
    ) -> Result<(), RegistrationError>;

    /// Writes down that an agent was approved; nothing is written if the object names another session, or says so already.
    ///
    /// # Errors
    /// The API server cannot be reached or refuses.
    async fn write_approved(&self, session: SessionRef<'_>) -> Result<(), RegistrationError>;

    /// Writes what is told of an agent's accounts; nothing is written if the object names another session or says so
    /// already. It comes after registrations: false if they use up the budget now, and nothing was done.
    ///
    /// # Errors
    /// The API server cannot be reached or refuses.
    async fn write_summary(
        &self,
        session: SessionRef<'_>,
        note: &AgentSummary,
    ) -> Result<bool, RegistrationError>;

    /// Writes the answers that accounts wait for, where the object names this session.
    ///
    /// # Errors
    /// The API server cannot be reached or refuses.
    async fn write_outbox(
        &self,
        session: SessionRef<'_>,
        outbox: &[OutboxEntry],
    ) -> Result<OutboxWrite, RegistrationError>;

    /// Removes the object of an agent, if it is still the one that was seen.
    ///
    /// # Errors
    /// The API server cannot be reached or refuses.
    async fn remove(&self, agent: &KnownAgent) -> Result<(), RegistrationError>;
}
