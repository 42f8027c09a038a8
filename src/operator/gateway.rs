//! Starts the API of accounts, if the settings ask for it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::info;

use super::OperatorError;
use super::kube_client::RunLocation;
use super::settings::GatewaySettings;
use super::{startup, tls_files};
use crate::gateway::{Gateway, GatewayCertificate, GatewayListener, GatewayPorts};
use kubesvc_runtime::background_tasks::{AttemptOutcome, BackgroundTasks, TaskSpec};
use kubesvc_runtime::listen::connection_limits::AddressLimits;
use kubesvc_runtime::listen::port::HttpMetrics;
use kubesvc_runtime::telemetry::errors::chain;
use kubesvc_runtime::tls::identity::{ServingCertificate, TlsFiles};

/// Interval between two looks at the APIService: no caller is served while one that was just applied trusts no authority.
const API_SERVICE_INTERVAL: Duration = Duration::from_secs(5);

/// The API of accounts, which listens and does not serve yet.
pub(super) struct GatewayPort {
    listener: TcpListener,
    tls_files: Option<(PathBuf, PathBuf)>,
    connections: usize,
    limits: AddressLimits,
    gateway: Arc<Gateway>,
}

impl GatewayPort {
    /// Listens with at most this many connections.
    pub(super) async fn open(
        settings: &GatewaySettings,
        location: &RunLocation,
        connections: usize,
        ports: GatewayPorts,
        stop: &CancellationToken,
    ) -> Result<Self, OperatorError> {
        let names = "kubesvc.gateway.server.address, kubesvc.gateway.server.port";
        let listener = startup::listen(&settings.address, settings.port, names).await?;
        let gateway = Gateway::new(location.replica_id.clone(), ports, stop.clone());
        let (tls_files, limits) = (settings.tls_files(), settings.limits.clone());
        Ok(Self { listener, tls_files, connections, limits, gateway })
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        self.gateway.register(registry);
    }

    /// Serves from now on, and keeps the certificate. `serving` is held until the last request has ended.
    pub(super) fn serve(
        self,
        location: &RunLocation,
        background: &BackgroundTasks,
        metrics: &HttpMetrics,
        stop: &CancellationToken,
        serving: Arc<DropGuard>,
    ) -> Result<(), OperatorError> {
        let certificate = Arc::<ServingCertificate>::default();
        if let Ok(address) = self.listener.local_addr() {
            info!(%address, "serving the API of accounts");
        }
        let (connections, shown) = (self.connections, Arc::clone(&certificate));
        let metrics = metrics.clone();
        let listener = GatewayListener::new(self.listener, connections, self.limits, shown, metrics)
            .map_err(OperatorError::Tls)?;
        let spec = |interval| {
            let does = "Keeps the certificate of the API of accounts";
            TaskSpec::<()>::new("gateway certificate", does).every(interval).at_start()
        };
        match self.tls_files {
            Some((file, key)) => {
                let files = TlsFiles { certificate: file, key, password: None };
                background.start(spec(tls_files::interval()), move |_| {
                    read_files(files.clone(), Arc::clone(&certificate))
                });
            }
            None => {
                let own = GatewayCertificate::new(location.kube.clone(), &location.namespace, certificate);
                let own = Arc::new(own);
                background.start(spec(API_SERVICE_INTERVAL), move |_| keep(Arc::clone(&own)));
            }
        }
        let (gateway, stop) = (self.gateway, stop.clone());
        background.spawn("API of accounts", "Serves the Kubernetes API of accounts", async move {
            listener.serve(gateway, stop).await;
            drop(serving);
        });
        Ok(())
    }
}

async fn read_files(files: TlsFiles, certificate: Arc<ServingCertificate>) -> AttemptOutcome {
    match files.read().await {
        Ok(read) => {
            if certificate.set(read) {
                info!("the API of accounts has a certificate");
            }
            AttemptOutcome::Done
        }
        Err(error) => AttemptOutcome::failed(chain(&error)),
    }
}

async fn keep(own: Arc<GatewayCertificate>) -> AttemptOutcome {
    match own.keep().await {
        Ok(()) => AttemptOutcome::Done,
        Err(error) => AttemptOutcome::failed(chain(&error)),
    }
}
