//! The other replicas: how replicas find one another, and the signed calls between them.
//!
//! | module | owns |
//! |---|---|
//! | `members` | who the replicas are, from Endpoints and EndpointSlices: pure |
//! | `discovery`, `membership` | the watches of both kinds, and the replicas as last seen |
//! | `access` | whether both kinds may be watched |
//! | `key`, `signature`, `replays` | the key that all replicas share, signatures under it, and replay protection |
//! | `client`, `messages`, `calls` | calls to other replicas |
//! | `verification` | which of the discovered addresses have answered under the key, and so are replicas |
//! | `sessions` | which replica has which agent, according to the KubesvcAgents |

mod access;
mod calls;
mod client;
mod discovery;
mod error;
mod key;
mod members;
mod membership;
mod messages;
mod metrics;
mod replays;
mod sessions;
mod signature;
mod verification;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Endpoints;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Client;
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;
use tracing::warn;

pub use calls::{RelayError, RemoteAgent, RemoteHolders};
pub use client::CallError;
pub use error::JoinPeersError;
pub use membership::Replica;
pub use messages::{
    AgentsOfReplica, DisconnectCall, Holders, HoldersQuestion, MAX_UIDS_PER_QUESTION, ReachAnswer,
};
pub use signature::SignatureError;

use crate::background_tasks::BackgroundTasks;
use crate::objects::AgentIndex;
use access::WatchableKinds;
use client::PeerClient;
use discovery::DiscoveryScope;
use key::{PeerKey, SigningKey};
use members::PodNames;
use membership::Membership;
use metrics::{PeerMetrics, RefusalLabel};
use replays::Replays;
use sessions::RecordedSessions;
use signature::{CallSignature, Recipient, SignedCall};
use verification::VerifiedPeers;

/// This replica, as others reach it.
#[derive(Clone, Debug)]
pub struct PeerIdentity {
    /// Id of the replica.
    pub replica_id: String,
    /// Address on which its REST API listens.
    pub address: SocketAddr,
    /// Host name of its machine, used in its URL if it listens on all addresses.
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

/// Clients and data needed to join the other replicas.
pub struct JoinPoints {
    /// Client of the operator's own API server, which has the Secret with the key.
    pub own: Client,
    /// The KubesvcAgents as last seen.
    pub agents: Arc<AgentIndex>,
    /// The operator's namespace.
    pub namespace: String,
    /// Client of the API server that has the Endpoints.
    pub discovery: Client,
}

/// The replicas, as this one sees them.
pub struct Peers {
    replica_id: String,
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
    sessions: RecordedSessions,
    verified: Arc<VerifiedPeers>,
    replays: Mutex<Replays>,
    began: Instant,
    /// Replicas that did not answer, and since when, by URL.
    silent: Mutex<HashMap<String, Instant>>,
}

/// A call from another replica whose signature is not verified yet, because its body has not been read.
pub struct UncheckedCall {
    signed: CallSignature,
    key: Arc<SigningKey>,
}

/// Signs the answer to an admitted call.
pub struct AnswerSigner {
    key: Arc<SigningKey>,
    nonce: String,
}

impl AnswerSigner {
    /// Returns the headers that sign an answer.
    pub fn sign(&self, status: StatusCode, body: &[u8]) -> [(HeaderName, HeaderValue); 2] {
        signature::answer_headers(&self.key, &self.nonce, status, body)
    }
}

impl Peers {
    /// Creates a replica that runs alone: it looks for no others and refuses their calls.
    pub fn alone(identity: PeerIdentity) -> Self {
        Self::new(identity, Membership::default(), None)
    }

    /// Joins the other replicas: checks permissions, reads or creates the key, and starts the watches, which
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
        let (allowed, denied) = access::review(&ways.discovery, &lookup.namespace).await?;
        if !denied.is_empty() {
            let problem = cannot_look(&denied, &lookup.namespace);
            if lookup.fail_fast {
                return Err(JoinPeersError::Denied(problem));
            }
            warn!("{problem}; continuing because kubesvc.cluster-kubernetes.failFast is false");
        }
        let key = Arc::new(PeerKey::open(ways.own, &ways.namespace).await?);
        let names =
            lookup.pod_domain.clone().map(|domain| PodNames { namespace: lookup.namespace.clone(), domain });
        let proofs = Arc::new(VerifiedPeers::default());
        let link = PeerTransport {
            client: PeerClient::new(&identity.replica_id, Arc::clone(&key), Arc::clone(&proofs)),
            key,
            sessions: RecordedSessions::new(ways.agents),
            verified: proofs,
            replays: Mutex::default(),
            began: Instant::now(),
            silent: Mutex::default(),
        };
        let link = Arc::new(link);
        let cluster = Self::new(identity, Membership::new(names), Some(Arc::clone(&link)));
        cluster.watch(allowed, lookup, &ways.discovery, background, stop);
        let (membership, identity) = (Arc::clone(&cluster.membership), cluster.identity.clone());
        let is_self = move |replica: &Replica| identity.is(replica);
        verification::start(background, link, membership, is_self);
        Ok(cluster)
    }

    fn new(identity: PeerIdentity, membership: Membership, link: Option<Arc<PeerTransport>>) -> Self {
        Self {
            replica_id: identity.replica_id.clone(),
            identity,
            started: Timestamp::now(),
            membership: Arc::new(membership),
            metrics: PeerMetrics::default(),
            transport: link,
        }
    }

    fn watch(
        &self,
        allowed: WatchableKinds,
        lookup: Lookup,
        client: &Client,
        background: &BackgroundTasks,
        stop: &CancellationToken,
    ) {
        let looked = DiscoveryScope {
            namespace: lookup.namespace,
            service_prefix: lookup.service_name_prefix,
            port_name: lookup.http_port_name,
        };
        let (client, membership) = (|| client.clone(), || Arc::clone(&self.membership));
        if allowed.endpoints {
            let watch = discovery::watch::<Endpoints>(client(), looked.clone(), membership(), stop.clone());
            background.spawn("watch of Endpoints", "Finds replicas by their Endpoints", watch);
        }
        if allowed.slices {
            let watch = discovery::watch::<EndpointSlice>(client(), looked, membership(), stop.clone());
            background.spawn("watch of EndpointSlices", "Finds replicas by their EndpointSlices", watch);
        }
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
            id: self.replica_id.clone(),
            base_url: members::base_url(&host, address.port(), None),
            ready,
            last_updated: self.started,
            named: true,
        }
    }

    /// Checks the headers of a call from another replica, before its body is read. `address` is the local
    /// address that received the call. An unknown key id makes it read the Secret again, in case the key was
    /// rotated.
    ///
    /// # Errors
    /// The call has no signature, is not for this replica or not of this time, or is signed with a key that
    /// is not in use.
    pub async fn look_at(
        &self,
        headers: &HeaderMap,
        address: Option<SocketAddr>,
    ) -> Result<UncheckedCall, SignatureError> {
        let since_ms = self.started.as_millisecond();
        let here = Recipient { id: &self.replica_id, address, since_ms };
        let read = match &self.transport {
            None => Err(SignatureError::Alone),
            Some(link) => match CallSignature::read(headers, here, Timestamp::now().as_millisecond()) {
                Err(refusal) => Err(refusal),
                Ok(signed) => {
                    let key = link.key.named(&signed.key_id).await;
                    key.map(|key| UncheckedCall { signed, key }).ok_or(SignatureError::UnknownKey)
                }
            },
        };
        read.map_err(|refusal| self.count(refusal))
    }

    /// Verifies a call from another replica as a whole. Returns what signs its answer. The same call is never
    /// admitted again.
    ///
    /// # Errors
    /// The signature does not match, or the call was seen before.
    pub fn admit(
        &self,
        call: UncheckedCall,
        method: &str,
        path: &str,
        body: &[u8],
    ) -> Result<AnswerSigner, SignatureError> {
        let Some(link) = &self.transport else { return Err(self.count(SignatureError::Alone)) };
        link.admit(call, SignedCall { method, path, body }).map_err(|refusal| self.count(refusal))
    }

    fn count(&self, refusal: SignatureError) -> SignatureError {
        self.metrics.refused.get_or_create(&RefusalLabel { reason: refusal.word() }).inc();
        refusal
    }
}

impl PeerTransport {
    fn admit(
        &self,
        UncheckedCall { signed, key }: UncheckedCall,
        call: SignedCall<'_>,
    ) -> Result<AnswerSigner, SignatureError> {
        if !signed.fits(&key, call) {
            return Err(SignatureError::Wrong);
        }
        let nonce = signed.stamp.nonce;
        // Only nonces of correctly signed calls are remembered, so that strangers cannot fill the memory.
        self.replays.lock().take(nonce.clone(), self.began.elapsed())?;
        Ok(AnswerSigner { key, nonce })
    }
}

fn cannot_look(denied: &[String], namespace: &str) -> String {
    format!(
        "the operator may not {} in namespace {namespace}, and so cannot find other replicas; apply \
         config/rbac/replicas.yaml there, which grants list and watch of endpoints and endpointslices.discovery.k8s.io \
         to its service account, or set kubesvc.cluster: local for one replica",
        denied.join(", nor ")
    )
}

#[cfg(test)]
mod tests;
