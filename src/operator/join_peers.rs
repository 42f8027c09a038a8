//! Joins the other replicas according to the settings.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tokio_util::sync::CancellationToken;

use super::kube_connection;
use super::run_location::RunLocation;
use crate::background_tasks::BackgroundTasks;
use crate::config::operator::{ClusterMode, ClusterSettings, OperatorSettings};
use crate::objects::AgentIndex;
use crate::peers::{JoinPoints, Lookup, PeerIdentity, Peers};
use crate::secrets::SharedKey;
use crate::telemetry::errors::chain;

/// The key that the replicas share, for the versions of credentials.
pub(super) struct KeyOfReplicas(pub(super) Arc<Peers>);

#[async_trait]
impl SharedKey for KeyOfReplicas {
    async fn digest(&self, parts: &[&[u8]], fresh: bool) -> Option<[u8; 32]> {
        self.0.digest(parts, fresh).await
    }
}

/// Joins the other replicas, or runs alone if the settings say so.
///
/// # Errors
/// One line that says what is missing and what to do.
pub(super) async fn join(
    settings: &OperatorSettings,
    location: &RunLocation,
    address: SocketAddr,
    agents: Arc<AgentIndex>,
    background: &BackgroundTasks,
    stop: &CancellationToken,
) -> Result<Peers, String> {
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
        own: location.client.clone(),
        agents,
        namespace: location.namespace.clone(),
        discovery: discovery(settings, location).await?,
    };
    Peers::join(identity, lookup, ways, background, stop).await.map_err(|error| chain(&error))
}

/// The client that discovers replicas: the operator's own, unless the settings say otherwise.
async fn discovery(settings: &ClusterSettings, location: &RunLocation) -> Result<Client, String> {
    let mut config = match &settings.kubeconfig_file {
        Some(path) => from_file(path).await?,
        None if settings.verify_ssl => return Ok(location.client.clone()),
        None => location.config.clone(),
    };
    config.default_retry = false;
    config.accept_invalid_certs |= !settings.verify_ssl;
    kube_connection::client(config)
}

async fn from_file(path: &Path) -> Result<Config, String> {
    let unusable = |error: &(dyn std::error::Error + 'static)| {
        format!("kubesvc.cluster-kubernetes.kubeconfigFile {}: {}", path.display(), chain(error))
    };
    let kubeconfig = Kubeconfig::read_from(path).map_err(|error| unusable(&error))?;
    let options = KubeConfigOptions::default();
    Config::from_custom_kubeconfig(kubeconfig, &options).await.map_err(|error| unusable(&error))
}
