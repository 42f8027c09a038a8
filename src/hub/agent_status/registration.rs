//! The port to KubesvcAgent objects. `kube_objects` is its adapter to the Kubernetes API; `status` makes the status.

mod kube_objects;
pub(crate) mod status;

use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;

use crate::hub::agent_admission::queue::AdmissionClass;
use kubesvc_core::agent_resource::SessionEnd;
use kubesvc_core::identity::CredentialMatch;
use kubesvc_core::report_outbox::OutboxEntry;
use kubesvc_core::{AgentId, BootId, ReplicaId, SessionId, ZoneId};

pub use kube_objects::KubeAgentObjects;

/// A session, as it is written to its KubesvcAgent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registration {
    /// Agent id.
    pub agent_id: AgentId,
    /// Zone of the agent.
    pub zone: ZoneId,
    /// ULID of the session.
    pub session_id: SessionId,
    /// ULID of the agent's process.
    pub boot_id: BootId,
    /// Number of the connection, counted by that process.
    pub connect_seq: i64,
    /// Replica that holds the stream.
    pub replica: ReplicaId,
    /// Version of the agent; empty if unknown.
    pub version: String,
    /// Protocol version of the stream.
    pub protocol: u32,
    /// Start of the stream.
    pub connected_since: Timestamp,
    /// uid of kube-system of the cluster that the agent runs in; empty if unknown.
    pub cluster_uid: String,
    /// Whether the agent streams objects.
    pub streams_objects: bool,
    /// Whether the zone has accounts that the agent does not hold. Such agents are registered first.
    pub needs_accounts: bool,
    /// Class of the agent at its hello. Returning agents are registered first.
    pub admission: AdmissionClass,
    /// Identity of the agent; absent where nobody is asked for one.
    pub identity: Option<RegisteredIdentity>,
}

/// The identity of an agent, as it is written to its KubesvcAgent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegisteredIdentity {
    /// Name of its KubesvcIdentity, if it has one.
    pub name: Option<String>,
    /// The match that its credential would have.
    pub credential: Option<CredentialMatch>,
    /// Why no KubesvcIdentity admits it, if none does.
    pub why: Option<String>,
    /// Present where the identity counts in place of an approval.
    pub binding: Option<IdentityBinding>,
}

/// What an identity that counts lets its agent do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdentityBinding {
    /// Whether the agent may offer to take accounts that name no zone.
    pub offers: bool,
}

/// An agent with a valid credential that no KubesvcIdentity admits. It gets no session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stranger {
    pub agent_id: AgentId,
    pub zone: ZoneId,
    pub session_id: SessionId,
    pub boot_id: BootId,
    /// Replica that it dialled.
    pub replica: ReplicaId,
    /// Version of the agent; empty if unknown.
    pub version: String,
    /// The match that its credential would have.
    pub credential: Option<CredentialMatch>,
    /// Why it is not admitted.
    pub why: String,
}

/// A session, as its KubesvcAgent names it. Writes do nothing if the object names another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionRef<'s> {
    /// Agent id.
    pub agent_id: &'s AgentId,
    /// Zone of the agent.
    pub zone: &'s ZoneId,
    /// ULID of the session.
    pub id: &'s SessionId,
}

/// State of a registered agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegisteredAgent {
    pub approved: bool,
    /// Whether it ever was; then it may hold accounts.
    pub approved_once: bool,
    /// Version of the object that names the session.
    pub version: u64,
}

/// Result of writing an outbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutboxWrite {
    /// The object contains the outbox.
    Written,
    /// The object names another session: this one is no longer in force.
    Superseded,
}

/// An agent that has a KubesvcAgent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownAgent {
    /// Agent id.
    pub agent_id: AgentId,
    /// Zone of the agent.
    pub zone: ZoneId,
    /// Session in force, or the last one.
    pub session_id: SessionId,
    /// Replica of that session; empty if there was none.
    pub replica: ReplicaId,
    /// Incarnation of that replica, if recorded.
    pub incarnation: Option<String>,
    /// Whether the agent is approved.
    pub approved: bool,
    /// Whether its credential decided that, and no person.
    pub is_identified_by_credential: bool,
    /// Whether it ever was.
    pub approved_once: bool,
    /// Whether the object says that it is connected.
    pub connected: bool,
    /// End of its last stream, if recorded.
    pub ended_at: Option<Timestamp>,
    /// Whether its last list of own accounts had any.
    pub lists: bool,
    /// uid of the object.
    pub uid: String,
    /// resourceVersion of the object.
    pub resource_version: String,
}

impl KnownAgent {
    /// Returns the session in force, or the last one.
    pub fn session(&self) -> SessionRef<'_> {
        SessionRef { agent_id: &self.agent_id, zone: &self.zone, id: &self.session_id }
    }
}

/// Summary of an agent's accounts, for people and for other replicas.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentSummary {
    /// Number of accounts held.
    pub held: i32,
    /// Number of accounts that failed or were lost.
    pub failed: i32,
    /// Digests of the names in its own file, sorted; absent until it has sent its list.
    pub static_accounts: Option<Vec<String>>,
    /// Digests of those names with their sources, sorted.
    pub static_sources: Option<Vec<String>>,
    /// Problem of its own accounts: a reason in CamelCase and a message.
    pub problem: Option<(String, String)>,
    /// First account that is kept from the agent because it is bound to another cluster, and why.
    pub kept_from: Option<String>,
    /// Another process that connects under the agent's id in its zone, and is refused.
    pub rival: Option<String>,
    /// Whether its identity lets it offer to take accounts; absent where identities do not count.
    pub offers: Option<bool>,
}

/// Reason why an object was not written.
#[derive(Debug, thiserror::Error)]
pub enum RegistrationError {
    /// A later connection of the same process is registered.
    #[error("a later connection of the same process is registered")]
    Superseded,
    /// Another process with the agent's id is connected at another replica.
    #[error("another process is connected under this id at replica {0}")]
    ConnectedElsewhere(ReplicaId),
    /// The agent was disconnected on request, and its id is reserved for its process for this time.
    #[error("the agent was disconnected on request; its id is kept for its process for {0:?}")]
    Kept(Duration),
    /// The object belongs to another agent whose name has the same hash.
    #[error("KubesvcAgent {0} belongs to another agent; give the agent another AGENT_ID")]
    NameTaken(String),
    /// The API server cannot be reached or refused the request.
    #[error("KubesvcAgent {name}: {reason}")]
    Api {
        /// Name of the object, or the kind of request.
        name: String,
        /// Error of the API server.
        reason: String,
    },
}

/// Reads and writes KubesvcAgent objects.
#[async_trait]
pub trait AgentObjects: Send + Sync {
    /// Returns all agents that have an object.
    async fn known(&self) -> Result<Vec<KnownAgent>, RegistrationError>;

    /// Writes a session into its object, which is created if it does not exist. Retries only after a conflict.
    ///
    /// # Errors
    /// The API server cannot be reached or refuses; a later connection of the process is registered; another process
    /// is connected with the agent's id.
    async fn register(&self, registration: &Registration) -> Result<RegisteredAgent, RegistrationError>;

    /// Writes the end of a session. Does nothing if the object names another session or already says so.
    async fn write_disconnected(
        &self,
        session: SessionRef<'_>,
        end: SessionEnd,
    ) -> Result<(), RegistrationError>;

    /// Records that the agent is approved. Does nothing if the object names another session or already says so.
    async fn write_approved(&self, session: SessionRef<'_>) -> Result<(), RegistrationError>;

    /// Writes the summary of an agent's accounts. Does nothing if the object names another session or already says
    /// so. Has the lowest priority: returns false, without a write, while registrations use up the rate limit.
    async fn write_summary(
        &self,
        session: SessionRef<'_>,
        summary: &AgentSummary,
    ) -> Result<bool, RegistrationError>;

    /// Shows an agent that is not admitted, unless the object is of an agent that was approved or is connected.
    async fn show(&self, stranger: &Stranger) -> Result<(), RegistrationError>;

    /// Records a warning about the agent as an Event. Failures are logged.
    async fn warn(&self, session: SessionRef<'_>, reason: &'static str, message: &str);

    /// Writes the reports that accounts wait for.
    async fn write_outbox(
        &self,
        session: SessionRef<'_>,
        outbox: &[OutboxEntry],
    ) -> Result<OutboxWrite, RegistrationError>;

    /// Removes the object of an agent, if it has not changed since it was read.
    async fn remove(&self, agent: &KnownAgent) -> Result<(), RegistrationError>;
}
