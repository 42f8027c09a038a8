//! What a simulated agent is told to say, and what it hears.

use std::{
    fmt,
    time::{Duration, Instant},
};

use kubesvc::wire::{
    PROTOCOL_VERSION,
    common::{AccountRef, Failure, failure::Class},
    ops::{ClusterIdentity, HeldAccount, Hello, Refused, hub_frame},
};
use ulid::Ulid;

/// What it says in its hello.
#[derive(Debug, Clone)]
pub(crate) struct Introduction {
    pub(crate) agent_id: String,
    pub(crate) zone_id: String,
    /// A ULID for each process.
    pub(crate) boot_id: String,
    /// Counts the connections of the process from 1.
    pub(crate) connect_seq: u64,
    pub(crate) accounts_held: Vec<AccountRef>,
    /// uid of kube-system of the cluster it runs in; empty where it does not say.
    pub(crate) cluster_uid: String,
}

impl Introduction {
    /// A process that has just begun and holds nothing.
    pub(crate) fn new(agent_id: &str, zone_id: &str) -> Self {
        Self {
            agent_id: agent_id.into(),
            zone_id: zone_id.into(),
            boot_id: Ulid::generate().to_string(),
            connect_seq: 1,
            accounts_held: Vec::new(),
            cluster_uid: String::new(),
        }
    }

    pub(super) fn hello(&self) -> Hello {
        let held = |account: &AccountRef| HeldAccount { account: Some(account.clone()), caching_epoch: 0 };
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
            ..Hello::default()
        }
    }
}

/// What it says about accounts that it is sent.
#[derive(Debug, Clone)]
pub(crate) enum OnAdd {
    /// Held, and this is what it reached.
    Hold(ClusterIdentity),
    /// It cannot be held.
    Fail(Failure),
    /// That it takes long; then nothing.
    Working,
    /// Nothing.
    Silent,
}

/// What it says about accounts that it is to drop.
#[derive(Debug, Clone)]
pub(crate) enum OnDelete {
    /// Dropped.
    Drop,
    /// It cannot be dropped.
    Fail(Failure),
    /// Nothing, and it still holds them.
    Silent,
}

/// How it answers, and after which time.
#[derive(Debug, Clone)]
pub(crate) struct Policy {
    pub(crate) add: OnAdd,
    pub(crate) add_after: Duration,
    pub(crate) delete: OnDelete,
    pub(crate) delete_after: Duration,
}

impl Default for Policy {
    /// Everything is held, and dropped, at once.
    fn default() -> Self {
        Self {
            add: OnAdd::Hold(identity("simulated")),
            add_after: Duration::ZERO,
            delete: OnDelete::Drop,
            delete_after: Duration::ZERO,
        }
    }
}

/// A cluster that does not exist; `name` tells two apart.
pub(crate) fn identity(name: &str) -> ClusterIdentity {
    ClusterIdentity {
        kube_system_uid: format!("uid-of-{name}"),
        token_keys_digest: format!("token-keys-of-{name}"),
        authority_key_digest: format!("authority-of-{name}"),
        host: format!("https://{name}.example:6443"),
        cert_fingerprint: vec!["5A"; 32].join(":"),
        version: "v1.36.3".into(),
        namespaces_count: 4,
        namespaces: ["default", "kube-node-lease", "kube-public", "kube-system"].map(str::to_owned).to_vec(),
        kinds: Vec::new(),
    }
}

/// A failure of a class that may pass.
pub(crate) fn failure(class: Class, message: &str) -> Failure {
    Failure { class: class.into(), retryable: true, message: message.into(), ..Failure::default() }
}

/// A frame of the hub.
#[derive(Debug, Clone)]
pub(crate) struct Received {
    pub(crate) at: Instant,
    pub(crate) frame: hub_frame::Frame,
}

/// Why there is no session.
#[derive(Debug)]
pub(crate) enum NoSession {
    /// Nobody listens there, or not in this language.
    Unreachable(String),
    /// The hub said no.
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
