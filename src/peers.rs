//! The other replicas: how replicas find one another, and the signed calls between them.
//!
//! | module | owns |
//! |---|---|
//! | `discovery` | whether Endpoints and EndpointSlices may be watched, and the watches |
//! | `membership` | who the replicas are according to these objects, and as last seen |
//! | `key`, `signature` | the key that all replicas share, and signatures under it |
//! | `client`, `calls` | calls to other replicas, and their messages |
//! | `frames` | bytes in signed frames: answers of any length, and both ways after an upgrade |
//! | `relays` | requests to accounts that the agents of another replica make |
//! | `received_calls` | calls of other replicas: verification and replay protection |
//! | `verification` | which of the discovered addresses have answered under the key, and so are replicas |

mod calls;
mod client;
mod discovery;
mod frames;
mod key;
mod membership;
mod received_calls;
mod relays;
mod signature;
#[cfg(test)]
mod tests;
mod verification;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use jiff::Timestamp;
use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;

use crate::informers::AgentIndex;
use client::PeerClient;
use key::PeerKey;
use kubesvc_core::ReplicaId;
use kubesvc_runtime::background_tasks::BackgroundTasks;
use kubesvc_runtime::kube_access::{KubeAccess, KubeError};
use kubesvc_runtime::listen::connection_limits::KnownCallers;
use membership::{Membership, PodNames};
use received_calls::Replays;
use relays::RelayClient;
use verification::VerifiedPeers;

pub use calls::{
    AgentsOfReplica, DisconnectCall, Holders, HoldersQuestion, MAX_UIDS_PER_QUESTION, ReachAnswer,
    RelayError, RemoteAgent, RemoteHolders,
};
pub use client::CallError;
pub use frames::{FrameError, FrameSigner, IncomingBytes, KEEP_ALIVE_INTERVAL, MAX_FRAME_BYTES, PeerFrames};
pub use membership::Replica;
pub use received_calls::{AnswerSigner, UncheckedCall};
pub use relays::{
    FRAMES_PROTOCOL, MAX_RELAYED, RelayFailure, RelayedAnswer, RelayedCall, RemoteAgentProcess, read_stream,
};
pub use signature::SignatureError;

/// This replica, as others reach it.
#[derive(Clone, Debug)]
pub struct PeerIdentity {
    /// Id of the replica.
    pub replica_id: ReplicaId,
    /// Address on which its REST API listens.
    pub address: SocketAddr,
    /// Address or host name of its machine, used in its URL if it listens on all addresses.
    pub host: String,
}

impl PeerIdentity {
    /// Whether `replica` is this one. Without a pod name, this replica recognizes itself only by a fixed
    /// address of its own.
    fn is(&self, replica: &Replica) -> bool {
        let at_own_address = || replica.id == self.address.to_string();
        if replica.named { replica.id == self.replica_id } else { at_own_address() }
    }
}

/// How replicas find one another.
#[derive(Clone, Debug)]
pub struct Lookup {
    /// Namespace of their Endpoints and EndpointSlices.
    pub namespace: String,
    /// Prefix of the name of their Service.
    pub service_name_prefix: String,
    /// Name of the REST port in their Service; empty for an unnamed port.
    pub http_port_name: String,
    /// Domain for pod names by which replicas are reached; `None` to reach them by address.
    pub pod_domain: Option<String>,
    /// Whether it is an error if one of the two kinds may not be watched.
    pub fail_fast: bool,
}

/// Accesses and data needed to join the other replicas.
pub struct JoinPoints {
    /// Access to the operator's own API server, which has the Secret with the key.
    pub own: KubeAccess,
    /// The KubesvcAgents as last seen.
    pub agents: Arc<AgentIndex>,
    /// Where this replica counts the connections of the others apart.
    pub callers: Arc<KnownCallers>,
    /// The operator's namespace.
    pub namespace: String,
    /// Access to the API server that has the Endpoints.
    pub discovery: KubeAccess,
}

/// The replicas, as this one sees them.
pub struct Peers {
    replica_id: ReplicaId,
    identity: PeerIdentity,
    started: Timestamp,
    membership: Arc<Membership>,
    metrics: PeerMetrics,
    /// `None` for a replica that runs alone.
    transport: Option<Arc<PeerTransport>>,
}

/// State for talking to other replicas.
struct PeerTransport {
    key: Arc<PeerKey>,
    client: PeerClient,
    relays: RelayClient,
    /// The KubesvcAgents, which stand in for a replica that does not answer.
    agents: Arc<AgentIndex>,
    verified: Arc<VerifiedPeers>,
    replays: Mutex<Replays>,
    began: Instant,
    /// Replicas that did not answer, and since when, by URL.
    silent: Mutex<HashMap<String, Instant>>,
}

/// Why a replica cannot join the others: what is missing, and what to do. Nothing of the key is in it.
#[derive(Debug, thiserror::Error)]
pub enum JoinPeersError {
    /// The API server refuses to say what the operator may do, or cannot be reached.
    #[error("the API server does not say whether the operator may {right}")]
    Review {
        /// What was asked about.
        right: String,
        /// Why not.
        #[source]
        source: KubeError,
    },
    /// The operator may not look for the other replicas.
    #[error("{0}")]
    Denied(String),
    /// The operator may not use the Secret.
    #[error(
        "the operator may not {verb} Secret {secret}, whose key signs calls between replicas; apply config/rbac, or set \
         kubesvc.cluster: local for one replica"
    )]
    SecretForbidden {
        /// The verb as RBAC has it.
        verb: &'static str,
        /// Namespace and name.
        secret: String,
    },
    /// The API server does not take the request, cannot be reached, or does not answer.
    #[error(transparent)]
    Secret(KubeError),
    /// Somebody deletes the Secret as often as it is made.
    #[error("Secret {secret} is made and deleted all the time; let it be")]
    Contended {
        /// Namespace and name.
        secret: String,
    },
    /// The Secret holds no good key.
    #[error(
        "Secret {secret} must have {min_bytes} random bytes or more under {field:?}; delete it, and it is made anew"
    )]
    Unfit {
        /// Namespace and name.
        secret: String,
        /// The key of the Secret.
        field: &'static str,
        /// How long it must be.
        min_bytes: usize,
    },
    /// No key can be made.
    #[error("the system gives no random numbers")]
    NoRandomness,
}

impl Peers {
    /// Creates a replica that runs alone: it looks for no others and refuses their calls.
    pub fn alone(identity: PeerIdentity) -> Self {
        Self::new(identity, Arc::default(), None)
    }

    /// Joins the other replicas: checks permissions, starts the watches, and reads or creates the key. The watches
    /// run until stopped.
    ///
    /// # Errors
    /// One line that names what is missing and what to do: a permission, or a usable key.
    pub(crate) async fn join(
        identity: PeerIdentity,
        lookup: Lookup,
        ways: JoinPoints,
        background: &BackgroundTasks,
        stop: &CancellationToken,
    ) -> Result<Self, JoinPeersError> {
        let names =
            lookup.pod_domain.clone().map(|domain| PodNames { namespace: lookup.namespace.clone(), domain });
        let membership = Arc::new(Membership::new(names));
        discovery::start(&ways.discovery, lookup, &membership, background, stop).await?;
        let key = Arc::new(PeerKey::open(&ways.own, &ways.namespace).await?);
        let proofs = Arc::new(VerifiedPeers::default());
        let link = PeerTransport {
            client: PeerClient::new(&identity.replica_id, Arc::clone(&key), Arc::clone(&proofs)),
            relays: RelayClient::default(),
            key,
            agents: ways.agents,
            verified: proofs,
            replays: Mutex::default(),
            began: Instant::now(),
            silent: Mutex::default(),
        };
        let link = Arc::new(link);
        let cluster = Self::new(identity, membership, Some(Arc::clone(&link)));
        let (membership, identity) = (Arc::clone(&cluster.membership), cluster.identity.clone());
        let is_self = move |replica: &Replica| identity.is(replica);
        verification::start(background, (link, ways.callers), membership, is_self);
        Ok(cluster)
    }

    fn new(identity: PeerIdentity, membership: Arc<Membership>, link: Option<Arc<PeerTransport>>) -> Self {
        Self {
            replica_id: identity.replica_id.clone(),
            identity,
            started: Timestamp::now(),
            membership,
            metrics: PeerMetrics::default(),
            transport: link,
        }
    }

    /// For tests: a replica beside these others, each with the name of its pod, all with the same key.
    #[cfg(test)]
    pub(crate) fn of_test(
        identity: PeerIdentity,
        agents: Arc<AgentIndex>,
        others: &[(&str, SocketAddr)],
    ) -> Self {
        let membership = Arc::new(Membership::new(None));
        let sightings = others.iter().map(|(pod, address)| membership::Sighting {
            pod: Some((*pod).to_owned()),
            host: address.ip().to_string(),
            port: address.port(),
            ready: true,
        });
        membership.record(membership::EndpointSource::EndpointSlices, "s".into(), sightings.collect());
        let key = Arc::new(PeerKey::of_test(key::SigningKey::new(vec![1; 32]).expect("long enough")));
        let verified = Arc::<VerifiedPeers>::default();
        let transport = PeerTransport {
            client: PeerClient::new(&identity.replica_id, Arc::clone(&key), Arc::clone(&verified)),
            relays: RelayClient::default(),
            key,
            agents,
            verified,
            replays: Mutex::default(),
            began: Instant::now(),
            silent: Mutex::default(),
        };
        Self::new(identity, membership, Some(Arc::new(transport)))
    }

    /// Digest of the parts under the key that the replicas share; `None` for a replica that runs alone. It
    /// reveals nothing without the key. With `fresh`, the key is read again unless that happened recently.
    pub async fn digest(&self, parts: &[&[u8]], fresh: bool) -> Option<[u8; 32]> {
        let link = self.transport.as_ref()?;
        let key = if fresh { link.key.newest().await } else { link.key.current() };
        Some(signature::digest(&key, parts))
    }

    /// Registers the metrics of calls between replicas.
    pub fn register(&self, registry: &mut Registry) {
        self.metrics.register(registry);
    }

    /// All known replicas by id: this one, and those that have answered under the key. `ready` says whether
    /// this replica is ready, in case no object does.
    pub fn replicas(&self, ready: bool) -> Vec<Replica> {
        let counts = |one: &&Replica| {
            self.is_self(one) || self.transport.as_ref().is_none_or(|link| link.verified.has(one))
        };
        let mut all: Vec<_> = self.membership.replicas().iter().filter(counts).cloned().collect();
        match all.iter_mut().find(|replica| self.is_self(replica)) {
            Some(own) => own.id.clone_from(&self.replica_id),
            None => all.push(self.myself(ready)),
        }
        all.sort_by(|one, other| one.id.cmp(&other.id));
        all
    }

    /// The other replicas, ready or not, verified or not.
    fn others(&self) -> Vec<Replica> {
        self.membership.replicas().iter().filter(|replica| !self.is_self(replica)).cloned().collect()
    }

    fn is_self(&self, replica: &Replica) -> bool {
        self.identity.is(replica)
    }

    fn myself(&self, ready: bool) -> Replica {
        let address = self.identity.address;
        let host =
            if address.ip().is_unspecified() { self.identity.host.clone() } else { address.ip().to_string() };
        Replica {
            address: host.parse().ok(),
            id: self.replica_id.clone(),
            base_url: membership::base_url(&host, address.port(), None),
            ready,
            last_updated: self.started,
            named: true,
        }
    }
}

/// Counters of calls between replicas.
#[derive(Clone, Debug, Default)]
struct PeerMetrics {
    /// Calls to other replicas.
    calls: Counter,
    /// Calls to other replicas that failed.
    failed: Counter,
    /// Calls from other replicas that were refused, by reason: one of a fixed set of words.
    refused: Family<[(&'static str, &'static str); 1], Counter>,
}

impl PeerMetrics {
    fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("kubesvc_peer");
        registry.register("calls", "Calls to other replicas", self.calls.clone());
        registry.register(
            "calls_failed",
            "Calls to other replicas without a good answer",
            self.failed.clone(),
        );
        registry.register(
            "calls_refused",
            "Calls of others refused for their signature",
            self.refused.clone(),
        );
    }
}
