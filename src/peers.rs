//! The other replicas: how replicas find one another, and the calls between them: HTTP/2 over TLS on a port of their own, where
//! both ends show a certificate of the replicas' authority.
//!
//! | module | owns |
//! |---|---|
//! | `discovery` | whether Endpoints and EndpointSlices may be watched, and the watches |
//! | `membership` | who the replicas are according to these objects, and as last seen |
//! | `authority` | the Secret `kubesvc-replicas`: the authority that signs, and the next one |
//! | `tls` | TLS as the Secret says, at both ends |
//! | `connections`, `listener` | connections to other replicas and of other replicas, and their limits |
//! | `client`, `calls` | calls to other replicas, and their messages |
//! | `relays` | requests to accounts that the agents of another replica make |
//! | `verification` | which of the discovered addresses have answered, and so are replicas |
//!
//! What a replica answers is in [`replica_port`](crate::replica_port).

mod authority;
mod calls;
mod client;
mod connections;
mod discovery;
mod listener;
mod membership;
mod relays;
#[cfg(test)]
mod tests;
mod tls;
mod verification;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use jiff::Timestamp;
use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::informers::AgentIndex;
use client::PeerClient;
use connections::PeerConnections;
use kubesvc_core::ReplicaId;
use kubesvc_runtime::background_tasks::BackgroundTasks;
use kubesvc_runtime::kube_access::{KubeAccess, KubeError};
use kubesvc_runtime::tls::identity::CertificateError;
use membership::{Membership, PodNames};
use relays::MAX_RELAYED;
use tls::PeerTls;
use verification::VerifiedPeers;

pub use calls::{
    AgentsOfReplica, Holders, HoldersQuestion, MAX_UIDS_PER_QUESTION, ReachAnswer, RelayError, RemoteAgent,
    encoded,
};
pub use connections::{CallBody, CallError};
pub use listener::CallingReplica;
pub use membership::Replica;
pub use relays::{NOT_HERE, RelayedAnswer};

/// This replica, as others reach it.
#[derive(Clone, Debug)]
pub struct PeerIdentity {
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
    /// Port at which replicas take calls of others, unless an object names another.
    pub calls_port: u16,
    /// Whether it is an error if one of the two kinds may not be watched.
    pub fail_fast: bool,
}

/// Accesses and data needed to join the other replicas.
pub struct JoinPoints {
    /// Access to the operator's own API server, which has the Secret with the authority.
    pub own: KubeAccess,
    /// The KubesvcAgents as last seen.
    pub agents: Arc<AgentIndex>,
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
    tls: Arc<PeerTls>,
    connections: Arc<PeerConnections>,
    client: PeerClient,
    /// Bounds relayed requests.
    relays: Arc<Semaphore>,
    /// The KubesvcAgents, which stand in for a replica that does not answer.
    agents: Arc<AgentIndex>,
    verified: Arc<VerifiedPeers>,
    /// Replicas that did not answer, and since when, by where they take calls.
    silent: Mutex<HashMap<String, Instant>>,
    /// Connections to the port for replicas without a certificate of theirs.
    refused: Counter,
}

impl PeerTransport {
    fn new(tls: PeerTls, agents: Arc<AgentIndex>) -> Self {
        let (tls, verified) = (Arc::new(tls), Arc::<VerifiedPeers>::default());
        let connections = Arc::new(PeerConnections::new(Arc::clone(&tls)));
        Self {
            client: PeerClient::new(Arc::clone(&connections), Arc::clone(&verified)),
            relays: Arc::new(Semaphore::new(MAX_RELAYED)),
            tls,
            connections,
            agents,
            verified,
            silent: Mutex::default(),
            refused: Counter::default(),
        }
    }
}

/// Why a replica cannot join the others: what is missing, and what to do. Nothing of a key is in it.
#[derive(Debug, thiserror::Error)]
pub enum JoinPeersError {
    /// The API server refuses to say what the operator may do, or cannot be reached.
    #[error("the API server does not say whether the operator may {right}")]
    Review {
        right: String,
        #[source]
        source: KubeError,
    },
    #[error("{0}")]
    Denied(String),
    #[error(
        "the operator may not {verb} Secret {secret}, which has the authority of calls between replicas; apply config/rbac, \
         or set kubesvc.cluster: local for one replica"
    )]
    SecretForbidden {
        /// The verb as RBAC has it.
        verb: &'static str,
        secret: String,
    },
    /// The API server does not take the request, cannot be reached, or does not answer.
    #[error(transparent)]
    Secret(KubeError),
    /// Somebody deletes the Secret as often as it is made.
    #[error("Secret {secret} is made and deleted all the time; let it be")]
    Contended { secret: String },
    #[error("Secret {} has no usable authority; delete it, and it is made anew", authority::SECRET_NAME)]
    Unfit,
    #[error(
        "the id of this replica, {replica:?}, is not the name of a host, so that other replicas cannot verify its certificate; \
         set POD_NAME to such a name"
    )]
    Name { replica: String },
    #[error("a certificate for calls between replicas cannot be made")]
    Making(#[from] rcgen::Error),
    #[error("a certificate of calls between replicas cannot be used")]
    Certificate(#[from] CertificateError),
    #[error("the system gives no random numbers")]
    NoRandomness,
}

impl Peers {
    /// Creates a replica that runs alone: it looks for no others and refuses their calls.
    pub fn alone(identity: PeerIdentity) -> Self {
        Self::new(identity, Arc::default(), None)
    }

    /// Joins the other replicas: checks permissions, starts the watches, and reads or makes the authority. The watches
    /// run until stopped.
    ///
    /// # Errors
    /// One line that names what is missing and what to do: a permission, or a usable authority.
    pub(crate) async fn join(
        identity: PeerIdentity,
        lookup: Lookup,
        ways: JoinPoints,
        background: &BackgroundTasks,
        stop: &CancellationToken,
    ) -> Result<Self, JoinPeersError> {
        let names =
            lookup.pod_domain.clone().map(|domain| PodNames { namespace: lookup.namespace.clone(), domain });
        let membership = Arc::new(Membership::new(names, lookup.calls_port));
        discovery::start(&ways.discovery, lookup, &membership, background, stop).await?;
        let tls = PeerTls::open(&ways.own, &ways.namespace, &identity.replica_id).await?;
        let link = Arc::new(PeerTransport::new(tls, ways.agents));
        link.tls.start(background);
        let cluster = Self::new(identity, membership, Some(Arc::clone(&link)));
        let (membership, identity) = (Arc::clone(&cluster.membership), cluster.identity.clone());
        verification::start(background, link, membership, move |replica| identity.is(replica));
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

    /// For tests: a replica beside these others, each with the name of its pod and where it takes calls, all under the same
    /// authority.
    #[cfg(test)]
    pub(crate) fn of_test(
        identity: PeerIdentity,
        agents: Arc<AgentIndex>,
        others: &[(&str, SocketAddr)],
    ) -> Self {
        let tls = PeerTls::of_test(&identity.replica_id, false);
        Self::of_test_with(identity, agents, others, tls)
    }

    #[cfg(test)]
    fn of_test_with(
        identity: PeerIdentity,
        agents: Arc<AgentIndex>,
        others: &[(&str, SocketAddr)],
        tls: PeerTls,
    ) -> Self {
        let membership = Arc::new(Membership::new(None, 7004));
        let sightings = others.iter().map(|(pod, address)| membership::Sighting {
            pod: Some((*pod).to_owned()),
            host: address.ip().to_string(),
            port: 7002,
            calls_port: Some(address.port()),
            ready: true,
        });
        membership.record(membership::EndpointSource::EndpointSlices, "s".into(), sightings.collect());
        Self::new(identity, membership, Some(Arc::new(PeerTransport::new(tls, agents))))
    }

    /// Whether other replicas may call this one.
    pub fn takes_calls(&self) -> bool {
        self.transport.is_some()
    }

    /// Digest of the parts under a key that the replicas share; `None` for a replica that runs alone. It reveals nothing
    /// without the key.
    pub fn digest(&self, parts: &[&[u8]]) -> Option<[u8; 32]> {
        Some(self.transport.as_ref()?.tls.current().files.digest(parts))
    }

    /// Registers the metrics of calls between replicas.
    pub fn register(&self, registry: &mut Registry) {
        let refused = self.transport.as_ref().map(|link| link.refused.clone()).unwrap_or_default();
        self.metrics.register(registry, refused);
    }

    /// All known replicas by id: this one, and those that have answered. `ready` says whether
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
            id: self.replica_id.clone(),
            base_url: membership::base_url(&host, address.port()),
            calls_at: String::new(),
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
}

impl PeerMetrics {
    fn register(&self, registry: &mut Registry, refused: Counter) {
        let registry = registry.sub_registry_with_prefix("kubesvc_peer");
        registry.register("calls", "Calls to other replicas", self.calls.clone());
        registry.register(
            "calls_failed",
            "Calls to other replicas without a good answer",
            self.failed.clone(),
        );
        registry.register(
            "connections_refused",
            "Connections to the port for replicas without a certificate of their authority",
            refused,
        );
    }
}
