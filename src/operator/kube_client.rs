//! The operator's own API server: which one it is, whether it has what kubesvc needs, and where this replica runs;
//! and the clients for API servers.
//!
//! A connection whose peer disappeared silently, such as a node that lost power, must be detected: neither requests
//! nor watches may wait on it for as long as the kernel would, a quarter of an hour.

use std::time::Duration;

use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::api::ListParams;
use kube::client::{ClientBuilder, ConfigExt as _};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tower::{BoxError, ServiceBuilder};

use super::OperatorError;
use super::run_arguments::RunArguments;
use super::settings::OperatorSettings;
use crate::leases::LeaseObjects;
use k8s_openapi::api::core::v1::Namespace;
use kubesvc_core::{FIELD_MANAGER, Installation, KubesvcAccount, KubesvcAgent, ReplicaId};
use kubesvc_runtime::kube_access::{KubeAccess, KubeError};
use kubesvc_runtime::proxy::{ProxyConnector, ProxyServer, client_config};
use kubesvc_runtime::telemetry::outages::Noticing;
use kubesvc_runtime::watch_backoff::WATCH_SECONDS;

/// Time limit for connecting, TLS included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Time without traffic after which TCP keepalive probes are sent.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
/// Interval between keepalive probes.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// Number of unanswered keepalive probes after which the connection is closed.
const MAX_KEEPALIVE_PROBES: u32 = 3;
/// Time limit for the acknowledgement of sent data, equal to the time until a dead idle connection is detected.
const UNACKNOWLEDGED_TIMEOUT: Duration = Duration::from_secs(
    KEEPALIVE_IDLE.as_secs() + KEEPALIVE_INTERVAL.as_secs() * MAX_KEEPALIVE_PROBES as u64,
);
/// Time limit for silence while a response is awaited from a live peer. Watches have the longest silence.
const READ_TIMEOUT: Duration = Duration::from_secs(WATCH_SECONDS as u64 + 10);
/// Time after which an idle connection is closed: the fewer are kept, the fewer may be dead.
const IDLE_TIMEOUT: Duration = Duration::from_secs(15);

/// The identity and location of this replica.
pub(super) struct RunLocation {
    /// Access to the API server, without a limit.
    pub(super) kube: KubeAccess,
    /// Configuration of its client.
    pub(super) config: Config,
    pub(super) namespace: String,
    /// The installation, which is identified by that namespace.
    pub(super) installation: Installation,
    pub(super) replica_id: ReplicaId,
    /// The namespaces to watch; a `None` stands for all.
    pub(super) watched: Vec<Option<String>>,
}

impl RunLocation {
    /// Determines them, and checks that the API server has what kubesvc needs.
    ///
    /// # Errors
    /// No API server can be used, its definitions are missing, or a permission is.
    pub(super) async fn find(
        arguments: &RunArguments,
        settings: &OperatorSettings,
    ) -> Result<Self, OperatorError> {
        let mut config = config(arguments).await?;
        let namespace = arguments.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        config.default_namespace.clone_from(&namespace);
        let server = config.cluster_url.to_string();
        let kube = KubeAccess::new(client(config.clone())?, FIELD_MANAGER);
        let watched = match settings.watch_namespaces.as_slice() {
            [] => vec![Some(namespace.clone())],
            all if all.iter().any(|one| one == "*") => vec![None],
            some => some.iter().cloned().map(Some).collect(),
        };
        check(&kube, &server, &watched).await?;
        let installation = installation(&kube, &server, &namespace).await?;
        let replica_id = std::env::var("POD_NAME").unwrap_or_else(|_| {
            format!("{}-{}", gethostname::gethostname().to_string_lossy(), std::process::id())
        });
        Ok(Self { kube, config, namespace, installation, replica_id: replica_id.into(), watched })
    }

    /// Whether only accounts of the operator's own namespace are watched.
    pub(super) fn watches_own_alone(&self) -> bool {
        self.watched.iter().all(|watched| watched.as_ref() == Some(&self.namespace))
    }

    /// Whether accounts of this namespace are watched.
    pub(super) fn watches(&self, namespace: &str) -> bool {
        self.watched.iter().any(|watched| watched.as_deref().is_none_or(|one| one == namespace))
    }
}

/// The client's configuration: `--kubeconfig`, then `KUBECONFIG`, then the pod's service account. The client's own
/// retries are off: kubesvc decides what is retried.
async fn config(arguments: &RunArguments) -> Result<Config, OperatorError> {
    let options = KubeConfigOptions { context: arguments.context.clone(), ..KubeConfigOptions::default() };
    let mut config = if let Some(path) = &arguments.kubeconfig {
        let invalid = |source| OperatorError::KubeconfigFlag { path: path.clone(), source };
        let kubeconfig = Kubeconfig::read_from(path).map_err(invalid)?;
        client_config(kubeconfig, &options).await.map_err(invalid)?.map_err(OperatorError::Proxy)?
    } else if std::env::var_os("KUBECONFIG").is_some() {
        let kubeconfig = Kubeconfig::read().map_err(OperatorError::KubeconfigVariable)?;
        let config = client_config(kubeconfig, &options).await.map_err(OperatorError::KubeconfigVariable)?;
        config.map_err(OperatorError::Proxy)?
    } else {
        Config::incluster().map_err(OperatorError::NoApiServer)?
    };
    config.default_retry = false;
    Ok(config)
}

/// Checks that both kinds of objects exist and can be read.
async fn check(kube: &KubeAccess, server: &str, namespaces: &[Option<String>]) -> Result<(), OperatorError> {
    let one = ListParams::default().limit(1);
    for namespace in namespaces {
        let accounts = kube.in_namespace::<KubesvcAccount>(namespace.as_deref());
        let listed = accounts.list(&one).await;
        listed.map_err(|error| cannot_list(server, namespace.as_deref(), error))?;
    }
    let agents = kube.namespaced::<KubesvcAgent>(kube.client().default_namespace());
    agents.list(&one).await.map(drop).map_err(|error| cannot_list(server, None, error))
}

/// The installation of the operator in a namespace, and whether it may use Leases there.
async fn installation(kube: &KubeAccess, server: &str, name: &str) -> Result<Installation, OperatorError> {
    let failed = |error: KubeError| cannot_read(server, name, error);
    let namespace = kube.all::<Namespace>().get(name).await.map_err(failed)?;
    let Some(namespace) = namespace else { return Err(OperatorError::NoNamespace(name.to_owned())) };
    LeaseObjects::new(kube, name).may_be_read().await.map_err(failed)?;
    Ok(Installation { namespace: name.to_owned(), uid: namespace.metadata.uid.unwrap_or_default() })
}

fn cannot_read(server: &str, namespace: &str, error: KubeError) -> OperatorError {
    let (server, resource) = (server.to_owned(), error.request().plural.to_string());
    match error.status() {
        Some(status) if matches!(status.code, 401 | 403) => {
            let scope = format!("namespace {namespace}");
            OperatorError::Forbidden { verb: "get", resource, scope, why: status.message.clone() }
        }
        _ => OperatorError::ApiServer { server, source: error },
    }
}

fn cannot_list(server: &str, namespace: Option<&str>, error: KubeError) -> OperatorError {
    let (server, plural) = (server.to_owned(), error.request().plural.to_string());
    match error.status() {
        Some(status) if status.code == 404 => OperatorError::NoDefinitions { server, plural },
        Some(status) if matches!(status.code, 401 | 403) => {
            let whole = || "all namespaces".to_owned();
            let scope = namespace.map_or_else(whole, |namespace| format!("namespace {namespace}"));
            let resource = format!("{plural}.kubesvc.io");
            OperatorError::Forbidden { verb: "list", resource, scope, why: status.message.clone() }
        }
        _ => OperatorError::ApiServer { server, source: error },
    }
}

/// Installs one TLS crypto provider for the whole program.
pub(super) fn install_crypto() {
    // An error means that a provider is already installed, which is fine.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// A client for an API server.
pub(super) fn client(config: Config) -> Result<Client, OperatorError> {
    let server = config.cluster_url.to_string();
    connect(config).map_err(|source| OperatorError::Client { server, source })
}

/// Builds the same client as kube does, over connections that detect a dead peer.
fn connect(config: Config) -> kube::Result<Client> {
    let proxy = config.proxy_url.clone().map(ProxyServer::of);
    let tunnelled = ProxyConnector::new(tcp(), proxy);
    let mut connector = TimeoutConnector::new(config.rustls_https_connector_with_connector(tunnelled)?);
    connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
    connector.set_read_timeout(Some(READ_TIMEOUT));
    // The limit starts at the request, not at the end of the previous response.
    connector.set_reset_reader_on_write(true);
    let http = legacy::Builder::new(TokioExecutor::new())
        .pool_idle_timeout(IDLE_TIMEOUT)
        .pool_timer(TokioTimer::new())
        .build(connector);
    let service = ServiceBuilder::new()
        .layer(Noticing)
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(http);
    Ok(ClientBuilder::new(service, config.default_namespace).build())
}

fn tcp() -> HttpConnector {
    let mut connector = HttpConnector::new();
    // The TLS layer above checks the scheme.
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector.set_keepalive(Some(KEEPALIVE_IDLE));
    connector.set_keepalive_interval(Some(KEEPALIVE_INTERVAL));
    connector.set_keepalive_retries(Some(MAX_KEEPALIVE_PROBES));
    #[cfg(target_os = "linux")]
    connector.set_tcp_user_timeout(Some(UNACKNOWLEDGED_TIMEOUT));
    connector
}
