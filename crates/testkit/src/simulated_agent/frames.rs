//! Configuration of a simulated agent, and what it receives.

use std::{
    fmt,
    time::{Duration, Instant},
};

use kubesvc_core::wire::{
    PROTOCOL_VERSION,
    common::{AccountRef, Failure, failure::Class},
    ops::{ClusterIdentity, HeldAccount, Hello, Refused, hub_frame},
};
use ulid::Ulid;

/// Contents of the agent's hello.
#[derive(Debug, Clone)]
pub struct Introduction {
    /// Id of the agent.
    pub agent_id: String,
    /// Zone that the agent belongs to.
    pub zone_id: String,
    /// A ULID for each process.
    pub boot_id: String,
    /// Number of this connection of the process, from 1.
    pub connect_seq: u64,
    /// Accounts that the agent holds from an earlier connection.
    pub accounts_held: Vec<AccountRef>,
    /// uid of kube-system in the cluster that the agent runs in; may be empty.
    pub cluster_uid: String,
    /// Optional behaviour that the agent announces.
    pub capabilities: Vec<String>,
}

impl Introduction {
    /// The hello of a new process that holds nothing.
    pub fn new(agent_id: &str, zone_id: &str) -> Self {
        Self {
            agent_id: agent_id.into(),
            zone_id: zone_id.into(),
            boot_id: Ulid::generate().to_string(),
            connect_seq: 1,
            accounts_held: Vec::new(),
            cluster_uid: String::new(),
            // It opens no stream of objects, and is elected all the same.
            capabilities: vec!["caching/1".into()],
        }
    }

    pub(super) fn hello(&self) -> Hello {
        let held = |account: &AccountRef| HeldAccount {
            account: Some(account.clone()),
            caching_epoch: 0,
            ..Default::default()
        };
        Hello {
            agent_id: self.agent_id.clone(),
            boot_id: self.boot_id.clone(),
            connect_seq: self.connect_seq,
            zone_id: self.zone_id.clone(),
            version: "simulated".into(),
            protocol_min: PROTOCOL_VERSION,
            protocol_max: PROTOCOL_VERSION,
            accounts_held: self.accounts_held.iter().map(held).collect(),
            cluster_uid: self.cluster_uid.clone(),
            capabilities: self.capabilities.clone(),
            ..Hello::default()
        }
    }
}

/// Answer to accounts that the agent is sent.
#[derive(Debug, Clone)]
pub enum OnAdd {
    /// Held, with this cluster identity.
    Hold(ClusterIdentity),
    /// Failed, with this failure.
    Fail(Failure),
    /// Working; then nothing.
    Working,
    /// No answer.
    Silent,
}

/// Answer to accounts that the agent must drop.
#[derive(Debug, Clone)]
pub enum OnDelete {
    /// Dropped.
    Drop,
    /// Failed, with this failure.
    Fail(Failure),
    /// No answer; the agent still holds them.
    Silent,
}

/// Answers of the agent, and their delays.
#[derive(Debug, Clone)]
pub struct Policy {
    /// Answer to accounts that it is sent.
    pub add: OnAdd,
    /// Delay of that answer.
    pub add_after: Duration,
    /// Answer to accounts that it must drop.
    pub delete: OnDelete,
    /// Delay of that answer.
    pub delete_after: Duration,
}

impl Default for Policy {
    /// Holds and drops everything at once.
    fn default() -> Self {
        Self {
            add: OnAdd::Hold(identity("simulated")),
            add_after: Duration::ZERO,
            delete: OnDelete::Drop,
            delete_after: Duration::ZERO,
        }
    }
}

/// The identity of a fictitious cluster; `name` distinguishes two of them.
pub fn identity(name: &str) -> ClusterIdentity {
    ClusterIdentity {
        kube_system_uid: format!("uid-of-{name}"),
        token_keys_digest: format!("token-keys-of-{name}"),
        authority_key_digest: format!("authority-of-{name}"),
        host: format!("https://{name}.example:6443"),
        cert_fingerprint: vec!["5A"; 32].join(":"),
        version: "v1.36.3".into(),
        namespaces_count: 4,
        namespaces: ["default", "kube-node-lease", "kube-public", "kube-system"].map(str::to_owned).to_vec(),
    }
}

/// A retryable failure of this class.
pub fn failure(class: Class, message: &str) -> Failure {
    Failure { class: class.into(), retryable: true, message: message.into(), ..Failure::default() }
}

/// A frame from the hub.
#[derive(Debug, Clone)]
pub struct Received {
    /// Time of its arrival.
    pub at: Instant,
    /// The frame.
    pub frame: hub_frame::Frame,
}

/// Why no session was established.
#[derive(Debug)]
pub enum NoSession {
    /// Nothing listens there, or it does not speak the protocol.
    Unreachable(String),
    /// The hub refused the agent.
    Refused(Box<Refused>),
    /// The stream ended without an answer.
    Ended(String),
}

impl fmt::Display for NoSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable(reason) => write!(f, "the hub cannot be reached: {reason}"),
            Self::Refused(refused) => {
                write!(f, "the hub refuses: {}: {}", refused.reason().as_str_name(), refused.message)
            }
            Self::Ended(reason) => write!(f, "the stream ended without an answer: {reason}"),
        }
    }
}
