//! This replica among the others: the Leases that it holds or competes for, and the way to its peers.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use kube::Config;
use kube::config::{KubeConfigOptions, Kubeconfig};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::kube_client::RunLocation;
use super::settings::may_have_peers;
use super::{StartError, kube_client};
use crate::hub::Hub;
use crate::informers::AgentIndex;
use crate::leases::{Elector, Leadership, LeaseObjects, OwnLease, Replicas, Times};
use crate::peers::{JoinPoints, Lookup, PeerIdentity, Peers};
use crate::secrets::SharedKey;
use kubesvc_core::{FIELD_MANAGER, ReplicaId};
use kubesvc_runtime::background_tasks::BackgroundTasks;
use kubesvc_runtime::config::operator::{ClusterMode, ClusterSettings, OperatorSettings};
use kubesvc_runtime::kube_access::KubeAccess;
use kubesvc_runtime::listen::connection_limits::KnownCallers;

/// The Leases, and what is derived from them.
pub(super) struct ReplicaLeases {
    /// `None` if this is the only replica.
    pub(super) leases: Option<LeaseObjects>,
    replica_id: ReplicaId,
    times: Times,
    pub(super) leadership: Arc<Leadership>,
    pub(super) replicas: Arc<Replicas>,
}

impl ReplicaLeases {
    pub(super) fn new(settings: &OperatorSettings, location: &RunLocation) -> Self {
        let election = settings.leader_election;
        let times = Times {
            duration: election.duration,
            renew_deadline: election.renew_deadline,
            retry_period: election.retry_period,
        };
        let (id, replica_id) = (&location.replica_id, location.replica_id.clone());
        if may_have_peers(settings) {
            let leases = Some(LeaseObjects::new(&location.kube, &location.namespace));
            let (leadership, replicas) = (Leadership::unknown(), Replicas::unknown(id, times));
            return Self { leases, replica_id, times, leadership, replicas };
        }
        let (leadership, replicas) = (Leadership::alone(id), Replicas::alone(id));
        Self { leases: None, replica_id, times, leadership, replicas }
    }

    /// Starts the tasks that maintain the Leases: the leader's until `releasing`, and this replica's own until its
    /// agents have `left`.
    pub(super) fn start(
        &self,
        background: &BackgroundTasks,
        hub: &Hub,
        releasing: &CancellationToken,
        left: &CancellationToken,
    ) {
        let Some(leases) = self.leases.clone() else { return };
        let changed = Arc::new(Notify::new());
        let (watched, told) = (leases.clone(), Arc::clone(&changed));
        let (replicas, until) = (Arc::clone(&self.replicas), releasing.clone());
        background.spawn("watch of Leases", "Sees which replicas are alive, and who leads", async move {
            replicas.run(watched, told, until).await;
        });
        let own = OwnLease::new(leases.clone(), Arc::clone(&self.replicas), self.times, hub.backlog());
        background.spawn("own Lease", "Renews the Lease of this replica", own.run(left.clone()));
        let elector =
            Elector::new(leases, &self.replica_id, self.times, Arc::clone(&self.leadership), changed);
        let electing = elector.run(releasing.clone());
        background.spawn("leader election", "Takes, renews and releases the leader's Lease", electing);
    }
}

/// Joins the other replicas, or runs alone if the settings say so.
///
/// # Errors
/// A permission, a usable key or the kubeconfig of the API server with the Endpoints is missing.
pub(super) async fn join(
    settings: &OperatorSettings,
    location: &RunLocation,
    (address, callers): (SocketAddr, Arc<KnownCallers>),
    agents: Arc<AgentIndex>,
    background: &BackgroundTasks,
    stop: &CancellationToken,
) -> Result<Peers, StartError> {
    let identity = PeerIdentity {
        replica_id: location.replica_id.clone(),
        address,
        host: gethostname::gethostname().to_string_lossy().into_owned(),
    };
    let settings = &settings.cluster;
    if settings.mode == ClusterMode::Local {
        return Ok(Peers::alone(identity));
    }
    let lookup = Lookup {
        namespace: settings.namespace.clone().unwrap_or_else(|| location.namespace.clone()),
        service_name_prefix: settings.service_name_prefix.clone(),
        http_port_name: settings.http_port_name.clone(),
        pod_domain: settings.pod_domain.clone(),
        fail_fast: settings.fail_fast,
    };
    let ways = JoinPoints {
        own: location.kube.clone(),
        agents,
        callers,
        namespace: location.namespace.clone(),
        discovery: discovery(settings, location).await?,
    };
    Ok(Peers::join(identity, lookup, ways, background, stop).await?)
}

/// The access that discovers replicas: the operator's own, unless the settings say otherwise.
async fn discovery(settings: &ClusterSettings, location: &RunLocation) -> Result<KubeAccess, StartError> {
    let mut config = match &settings.kubeconfig_file {
        Some(path) => from_file(path).await?,
        None if settings.verify_ssl => return Ok(location.kube.clone()),
        None => location.config.clone(),
    };
    config.default_retry = false;
    config.accept_invalid_certs |= !settings.verify_ssl;
    Ok(KubeAccess::new(kube_client::client(config)?, FIELD_MANAGER))
}

async fn from_file(path: &Path) -> Result<Config, StartError> {
    let invalid = |source| StartError::PeersKubeconfig { path: path.to_owned(), source };
    let kubeconfig = Kubeconfig::read_from(path).map_err(invalid)?;
    Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.map_err(invalid)
}

/// The key that the replicas share, for the versions of credentials.
#[async_trait]
impl SharedKey for Peers {
    async fn digest(&self, parts: &[&[u8]], fresh: bool) -> Option<[u8; 32]> {
        self.digest(parts, fresh).await
    }
}
