//! This replica among the others: the Leases that it holds or competes for, and the way to its peers. An operator that may
//! have no others starts once it holds the leader's Lease.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kube::Config;
use kube::config::{KubeConfigOptions, Kubeconfig};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tracing::{error, warn};

use super::kube_client::RunLocation;
use super::part_settings::may_have_peers;
use super::settings::{ClusterMode, ClusterSettings, OperatorSettings};
use super::{OperatorError, kube_client};
use crate::hub::Hub;
use crate::informers::AgentIndex;
use crate::leases::{Elector, LEADER_LEASE, Leadership, LeaseObjects, OwnLease, Replicas, Times};
use crate::peers::{JoinPoints, Lookup, PeerIdentity, Peers};
use crate::rest::StartupState;
use crate::secrets::SharedKey;
use kubesvc_core::{FIELD_MANAGER, ReplicaId};
use kubesvc_runtime::background_tasks::BackgroundTasks;
use kubesvc_runtime::kube_access::KubeAccess;
use kubesvc_runtime::proxy::client_config;

/// Time limit for resolving the name of this machine.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(2);

/// The Leases, and what is derived from them.
pub(super) struct ReplicaLeases {
    /// `None` if this is the only replica.
    pub(super) leases: Option<LeaseObjects>,
    /// All Leases of the namespace, whether there may be other replicas or not.
    pub(super) all: LeaseObjects,
    namespace: String,
    replica_id: ReplicaId,
    times: Times,
    pub(super) leadership: Arc<Leadership>,
    pub(super) replicas: Arc<Replicas>,
    /// Cancelled when the leader's Lease is to be released.
    pub(super) releasing: CancellationToken,
}

impl ReplicaLeases {
    pub(super) fn new(settings: &OperatorSettings, location: &RunLocation) -> Self {
        let (replica_id, all) =
            (location.replica_id.clone(), LeaseObjects::new(&location.kube, &location.namespace));
        let times = settings.leader_election;
        let has_peers = may_have_peers(settings);
        Self {
            leases: has_peers.then(|| all.clone()),
            all,
            namespace: location.namespace.clone(),
            times,
            leadership: Leadership::unknown(),
            replicas: if has_peers {
                Replicas::unknown(&replica_id, times)
            } else {
                Replicas::alone(&replica_id)
            },
            replica_id,
            releasing: CancellationToken::new(),
        }
    }

    /// Competes for the leader's Lease. Without peers, returns once this process holds it: two operators that each take
    /// themselves for the only one would undo what the other does. Returns `false` if stopped before.
    pub(super) async fn wait_for_turn(
        &self,
        background: &BackgroundTasks,
        starting: &StartupState,
        stop: &CancellationToken,
    ) -> bool {
        if self.leases.is_some() {
            return true;
        }
        self.elect(background, Arc::default());
        let namespace = &self.namespace;
        starting.waits_for(
            "leadership",
            &format!("the Lease {LEADER_LEASE} of namespace {namespace} is not held yet"),
        );
        let taken = self.leadership.taken_after(|other| {
            let why = second_operator(namespace, other);
            if starting.waits_for("leadership", &why) {
                warn!("{why}; waiting for its end");
            }
        });
        if stop.run_until_cancelled(taken).await.is_none() {
            return false;
        }
        let (leadership, namespace, stop) = (Arc::clone(&self.leadership), namespace.clone(), stop.clone());
        background.spawn("only operator", "Stops if another operator has taken the Lease", async move {
            if let Some(other) = stop.run_until_cancelled(leadership.taken_by_another()).await {
                error!("stopping: {}", second_operator(&namespace, &other));
            }
        });
        true
    }

    /// Starts the task that takes, renews and releases the leader's Lease.
    fn elect(&self, background: &BackgroundTasks, changed: Arc<Notify>) {
        let (leases, leadership) = (self.all.clone(), Arc::clone(&self.leadership));
        let elector = Elector::new(leases, &self.replica_id, self.times, leadership, changed);
        let electing = elector.run(self.releasing.clone());
        background.spawn("leader election", "Takes, renews and releases the leader's Lease", electing);
    }

    /// Starts the tasks that maintain the Leases of several replicas: the leader's until `releasing`, and this replica's
    /// own until its agents have `left`.
    pub(super) fn start(&self, background: &BackgroundTasks, hub: &Hub, left: &CancellationToken) {
        let Some(leases) = self.leases.clone() else { return };
        let changed = Arc::new(Notify::new());
        let (watched, told) = (leases.clone(), Arc::clone(&changed));
        let (replicas, until) = (Arc::clone(&self.replicas), self.releasing.clone());
        background.spawn("watch of Leases", "Sees which replicas are alive, and who leads", async move {
            replicas.run(watched, told, until).await;
        });
        let own = OwnLease::new(leases, Arc::clone(&self.replicas), self.times, hub.backlog());
        background.spawn("own Lease", "Renews the Lease of this replica", own.run(left.clone()));
        self.elect(background, changed);
    }
}

fn second_operator(namespace: &str, other: &ReplicaId) -> String {
    format!(
        "operator {other} holds the Lease {LEADER_LEASE} of namespace {namespace}, and without a database server, or with \
         kubesvc.cluster: local, there can be one only; scale it to one replica, or let all replicas use one database server"
    )
}

/// Joins the other replicas, or runs alone if the settings say so.
///
/// # Errors
/// A permission, a usable authority or the kubeconfig of the API server with the Endpoints is missing.
pub(super) async fn join(
    settings: &OperatorSettings,
    location: &RunLocation,
    address: SocketAddr,
    agents: Arc<AgentIndex>,
    background: &BackgroundTasks,
    stop: &CancellationToken,
) -> Result<Peers, OperatorError> {
    let identity = PeerIdentity { replica_id: location.replica_id.clone(), address, host: own_host().await };
    if settings.cluster_mode == ClusterMode::Local {
        return Ok(Peers::alone(identity));
    }
    let (calls_port, settings) = (settings.replicas_port, &settings.cluster);
    let lookup = Lookup {
        namespace: settings.namespace.clone().unwrap_or_else(|| location.namespace.clone()),
        service_name_prefix: settings.service_name_prefix.clone(),
        http_port_name: settings.http_port_name.clone(),
        pod_domain: settings.pod_domain().map(str::to_owned),
        calls_port,
        fail_fast: settings.fail_fast,
    };
    let ways = JoinPoints {
        own: location.kube.clone(),
        agents,
        namespace: location.namespace.clone(),
        discovery: discovery(settings, location).await?,
    };
    Ok(Peers::join(identity, lookup, ways, background, stop).await?)
}

/// Where others reach this machine: its address as the resolver has it, since a pod finds its own name in `/etc/hosts` and
/// nobody else knows that name; else its name.
async fn own_host() -> String {
    let name = gethostname::gethostname().to_string_lossy().into_owned();
    let resolved = tokio::time::timeout(RESOLVE_TIMEOUT, tokio::net::lookup_host((name.as_str(), 0))).await;
    let addresses: Vec<_> =
        resolved.ok().and_then(Result::ok).into_iter().flatten().map(|address| address.ip()).collect();
    host_of(name, &addresses)
}

/// The first address that leads to this machine from others, else the name.
fn host_of(name: String, addresses: &[IpAddr]) -> String {
    let is_local = |ip: &IpAddr| {
        ip.is_loopback() || ip.is_unspecified() || matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
    };
    addresses.iter().find(|ip| !is_local(ip)).map_or(name, ToString::to_string)
}

/// The access that discovers replicas: the operator's own, unless the settings say otherwise.
async fn discovery(settings: &ClusterSettings, location: &RunLocation) -> Result<KubeAccess, OperatorError> {
    let mut config = match &settings.kubeconfig_file {
        Some(path) => from_file(path).await?,
        None if settings.verify_ssl => return Ok(location.kube.clone()),
        None => location.config.clone(),
    };
    config.default_retry = false;
    config.accept_invalid_certs |= !settings.verify_ssl;
    Ok(KubeAccess::new(kube_client::client(config)?, FIELD_MANAGER))
}

async fn from_file(path: &Path) -> Result<Config, OperatorError> {
    let invalid = |source| OperatorError::PeersKubeconfig { path: path.to_owned(), source };
    let kubeconfig = Kubeconfig::read_from(path).map_err(invalid)?;
    let config = client_config(kubeconfig, &KubeConfigOptions::default()).await.map_err(invalid)?;
    config.map_err(OperatorError::Proxy)
}

/// The key that the replicas share, for the versions of credentials.
impl SharedKey for Peers {
    fn digest(&self, parts: &[&[u8]]) -> Option<[u8; 32]> {
        self.digest(parts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_reached_by_its_address_and_another_machine_by_its_name_if_it_has_no_other() {
        let at = |addresses: &[&str]| {
            let addresses: Vec<IpAddr> = addresses.iter().map(|ip| ip.parse().expect("an address")).collect();
            host_of("kubesvc-operator-7d4f-x2x9p".to_owned(), &addresses)
        };
        assert_eq!(at(&["10.0.15.246"]), "10.0.15.246");
        assert_eq!(at(&["fe80::1", "fd00::5"]), "fd00::5");
        for local in [&["127.0.1.1", "::1"][..], &[]] {
            assert_eq!(at(local), "kubesvc-operator-7d4f-x2x9p");
        }
    }
}
