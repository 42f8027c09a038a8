//! Settings of the hub and their defaults.

use std::sync::Arc;
use std::time::Duration;

use super::AssignmentChecks;
use kubesvc_core::ReplicaId;
use kubesvc_core::identity::SubjectFilters;
use kubesvc_core::lifecycle::Tick;
use kubesvc_core::wire::MAX_MESSAGE_BYTES;
use kubesvc_runtime::listen::connection_limits::AddressLimits;
use kubesvc_runtime::tls::server::ServerTls;

/// What the identity of an agent decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdentityMode {
    /// Nothing: what would be refused is logged and counted.
    Log,
    /// Whether the agent is let in, and what it may do.
    Bound,
}

/// Settings of the hub, grouped by the part that uses them.
#[derive(Clone, Debug)]
#[cfg_attr(test, derive(Default))]
pub struct HubSettings {
    pub replica_id: ReplicaId,
    /// The port: its address, and the bounds and deadlines of connections.
    pub listener: ListenerSettings,
    pub sessions: SessionSettings,
    /// Registration of agents, and redials after a drain.
    pub admission: AdmissionSettings,
    /// When absent agents, their objects and their accounts are forgotten or removed.
    pub absent_agents: AbsentAgentSettings,
    pub static_accounts: StaticAccountSettings,
    /// Schedule of the checks that repair `kubesvc_assignments`.
    pub assignment_checks: AssignmentChecks,
}

/// The port: its address, and the bounds and deadlines of connections.
#[derive(Clone, Debug)]
pub struct ListenerSettings {
    /// Address to listen on: `*` for all addresses, else an address or a host name.
    pub address: String,
    /// Port to listen on; 0 lets the system choose.
    pub port: u16,
    /// Whether gRPC's health service is served.
    pub health_service: bool,
    /// HTTP/2 pings to agents; `None` disables them.
    pub pings: Option<Pings>,
    /// Maximum number of TCP connections; further ones are closed.
    pub connection_cap: usize,
    /// Maximum number of connections from one address.
    pub limits: AddressLimits,
    /// Maximum number of TCP connections without a stream, those in their TLS handshake included. With one more, a connection of the address that has the most
    /// is closed.
    pub without_stream_cap: usize,
    /// Time limit for the TLS handshake of a connection, and after it for the HTTP/2 preface.
    pub preface_wait: Duration,
    /// Time limit from the preface to the first request.
    pub request_wait: Duration,
    /// Maximum time of a connection without a stream.
    pub idle_wait: Duration,
    /// Time limit for the Hello of a stream.
    pub hello_wait: Duration,
    /// REST port, named in the answer to HTTP/1 clients.
    pub rest_port: Option<u16>,
    /// TLS; `None`: plain text.
    pub tls: Option<Arc<ServerTls>>,
    /// Which subjects the certificates of agents have; `None`: they are not looked at.
    pub subjects: Option<Arc<SubjectFilters>>,
}

impl Default for ListenerSettings {
    fn default() -> Self {
        Self {
            address: "*".to_owned(),
            port: 9091,
            health_service: true,
            pings: Some(Pings::default()),
            connection_cap: 20_000,
            limits: AddressLimits::default(),
            without_stream_cap: 1024,
            preface_wait: Duration::from_secs(10),
            request_wait: Duration::from_secs(10),
            idle_wait: Duration::from_secs(30),
            hello_wait: Duration::from_secs(10),
            rest_port: None,
            tls: None,
            subjects: None,
        }
    }
}

/// The sessions and their frames.
#[derive(Clone, Debug)]
pub struct SessionSettings {
    /// Maximum size of a gRPC message in both directions, in bytes.
    pub max_message_bytes: usize,
    /// Interval between heartbeats, in both directions.
    pub heartbeat: Duration,
    /// Whether the stream of an agent is cut after three missed heartbeats; otherwise only HTTP/2 pings detect a lost
    /// agent.
    pub cuts_off_silent: bool,
    /// Ticks after which an outstanding answer of a session counts as a failure.
    pub operation_wait: Tick,
    /// Whether other replicas may lead. Then an account's object is read from the API server before the account is first
    /// sent to a session.
    pub clustered: bool,
}

impl Default for SessionSettings {
    fn default() -> Self {
        Self {
            max_message_bytes: MAX_MESSAGE_BYTES,
            heartbeat: Duration::from_secs(10),
            cuts_off_silent: true,
            operation_wait: 30,
            clustered: false,
        }
    }
}

/// Registration of agents, and redials after a drain.
#[derive(Clone, Debug)]
pub struct AdmissionSettings {
    /// Whether an agent is approved at its first registration.
    pub approves_new: bool,
    /// Maximum registrations per second; 0: no limit.
    pub registration_qps: u32,
    /// Time after which the accounts of an absent agent become ORPHANED.
    pub orphan_grace: Duration,
}

/// When absent agents, their objects and their accounts are forgotten or removed.
#[derive(Clone, Debug)]
pub struct AbsentAgentSettings {
    /// Ticks after which an absent agent is forgotten: twice the orphan grace.
    pub forget_after: Tick,
    /// Ticks after which the object of an absent agent is removed.
    pub remove_after: Tick,
    /// Ticks after which the object of an absent agent is removed that was never approved.
    pub remove_unapproved_after: Tick,
    /// Time for which the object of an absent agent is kept if a person has set its approval.
    pub forget_approved_after: Duration,
    /// Ticks after which a static account without its agent is deleted.
    pub account_cleanup: Tick,
}

impl Default for AbsentAgentSettings {
    fn default() -> Self {
        Self {
            forget_after: 60,
            remove_after: 600,
            remove_unapproved_after: 60,
            forget_approved_after: Duration::from_secs(2_592_000),
            account_cleanup: 600,
        }
    }
}

/// Accounts of agents' own files.
#[derive(Clone, Debug)]
pub struct StaticAccountSettings {
    /// Namespace in which static accounts are created.
    pub namespace: String,
    /// Whether the operator watches that namespace; if not, static accounts are refused.
    pub watched: bool,
}

/// HTTP/2 pings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pings {
    /// Interval between pings.
    pub every: Duration,
    /// Time limit for the answer to a ping; then the connection is closed.
    pub timeout: Duration,
}

impl Default for Pings {
    fn default() -> Self {
        Self { every: Duration::from_secs(20), timeout: Duration::from_secs(20) }
    }
}
