//! The settings of the hub, and what they are where nothing is set.

use std::time::Duration;

use super::AssignmentChecks;
use crate::account::lifecycle::Tick;
use crate::listen::addresses::AddressLimits;
use crate::wire::MAX_MESSAGE_BYTES;

/// The settings of the hub.
#[derive(Clone, Debug)]
pub struct HubSettings {
    /// Where to listen: `*` for all addresses, else an address or a name.
    pub address: String,
    /// The port; 0 lets the system choose.
    pub port: u16,
    /// Whether gRPC's health service is served.
    pub health_service: bool,
    /// The largest gRPC message in both directions, in bytes.
    pub max_message_bytes: usize,
    /// This replica.
    pub replica_id: String,
    /// How often both sides send Heartbeat.
    pub heartbeat: Duration,
    /// Whether an agent that is silent for three heartbeats is cut off; else only the pings of HTTP/2 find that one is
    /// gone.
    pub cuts_off_silent: bool,
    /// Pings of HTTP/2 to agents; absent: none.
    pub pings: Option<Pings>,
    /// TCP connections at once; more are closed.
    pub connection_cap: usize,
    /// After how many ticks an agent that is away is forgotten: twice the orphan grace.
    pub forget_after: Tick,
    /// Bound on the connections of one address.
    pub limits: AddressLimits,
    /// TCP connections at once that have no stream; with one more, one of the address
    /// that has the most is closed.
    pub without_stream_cap: usize,
    /// How long a connection may take to begin with HTTP/2.
    pub preface_wait: Duration,
    /// How long a connection may take from there to its first request.
    pub request_wait: Duration,
    /// How long a connection may be without a stream.
    pub idle_wait: Duration,
    /// How long a stream may take until its Hello.
    pub hello_wait: Duration,
    /// The port of REST, to be named to whoever speaks HTTP/1 here.
    pub rest_port: Option<u16>,
    /// Where the objects of accounts that agents list are made.
    pub accounts_namespace: String,
    /// Whether the operator watches that namespace; if not, such accounts are not taken.
    pub accounts_watched: bool,
    /// Whether an agent is approved when it is registered for the first time.
    pub approves_new: bool,
    /// After how many ticks the object of an agent that is away is removed.
    pub remove_agents_after: Tick,
    /// After how many ticks the object of an agent is removed that is away and was never approved.
    pub remove_unapproved_after: Tick,
    /// How long the object of an agent that is away is kept where a person has decided whether it is approved.
    pub forget_approved_after: Duration,
    /// When `kubesvc_assignments` is read again and mended.
    pub assignment_checks: AssignmentChecks,
    /// After how many ticks a session that owes an answer has failed.
    pub operation_wait: Tick,
    /// Other replicas may lead: before an account is sent to a session for the first time, its object is read from the
    /// API server itself.
    pub clustered: bool,
    /// How many registrations a second are written; 0: no limit.
    pub registration_qps: u32,
    /// How long an agent may be away before its accounts are ORPHANED.
    pub orphan_grace: Duration,
    /// After how many ticks without its agent a static account is deleted.
    pub account_cleanup: Tick,
}

/// Pings of HTTP/2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pings {
    /// The pace.
    pub every: Duration,
    /// A connection on which a ping is not answered within this time is closed.
    pub timeout: Duration,
}

impl Default for Pings {
    fn default() -> Self {
        Self { every: Duration::from_secs(20), timeout: Duration::from_secs(20) }
    }
}

impl Default for HubSettings {
    fn default() -> Self {
        Self {
            address: "*".to_owned(),
            port: 9091,
            health_service: true,
            max_message_bytes: MAX_MESSAGE_BYTES,
            replica_id: String::new(),
            heartbeat: Duration::from_secs(10),
            cuts_off_silent: true,
            pings: Some(Pings::default()),
            connection_cap: 20_000,
            forget_after: 60,
            limits: AddressLimits::default(),
            without_stream_cap: 1024,
            preface_wait: Duration::from_secs(10),
            request_wait: Duration::from_secs(10),
            idle_wait: Duration::from_secs(30),
            hello_wait: Duration::from_secs(10),
            rest_port: None,
            accounts_namespace: String::new(),
            accounts_watched: true,
            approves_new: true,
            remove_agents_after: 600,
            remove_unapproved_after: 60,
            forget_approved_after: Duration::from_secs(2_592_000),
            assignment_checks: AssignmentChecks::default(),
            operation_wait: 30,
            clustered: false,
            registration_qps: 50,
            orphan_grace: Duration::from_secs(30),
            account_cleanup: 600,
        }
    }
}
