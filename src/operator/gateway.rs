//! Starts the API of accounts, if the settings ask for it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::StartError;
use super::kube_client::RunLocation;
use super::startup;
use crate::gateway::{Gateway, GatewayListener, GatewayPorts, OwnCertificate, ServerCertificate, TlsFiles};
use crate::operations::OperationHistory;
use kubesvc_runtime::background_tasks::{BackgroundTasks, Outcome, TaskSpec};
use kubesvc_runtime::config::operator::GatewaySettings;
use kubesvc_runtime::listen::connection_limits::AddressLimits;
use kubesvc_runtime::telemetry::errors::chain;
use kubesvc_store::{OperationChanges, OperationRecord, Store};

/// Interval between two looks at the certificate.
const CERTIFICATE_INTERVAL: Duration = Duration::from_secs(60);

/// The API of accounts, which listens and does not serve yet.
pub(super) struct GatewayPort {
    listener: TcpListener,
    tls_files: Option<(PathBuf, PathBuf)>,
    connections: usize,
    gateway: Arc<Gateway>,
}

impl GatewayPort {
    /// Listens with at most this many connections.
    ///
    /// # Errors
    /// The port cannot be listened on.
    pub(super) async fn open(
        settings: &GatewaySettings,
        location: &RunLocation,
        connections: usize,
        ports: GatewayPorts,
        stop: &CancellationToken,
    ) -> Result<Self, StartError> {
        let names = "kubesvc.gateway.server.address, kubesvc.gateway.server.port";
        let listener = startup::listen(&settings.address, settings.port, names).await?;
        let gateway = Gateway::new(location.replica_id.clone(), ports, stop.clone());
        Ok(Self { listener, tls_files: settings.tls_files.clone(), connections, gateway })
    }

    /// Adds the metrics to a registry.
    pub(super) fn register(&self, registry: &mut Registry) {
        self.gateway.register(registry);
    }

    /// Serves from now on, and keeps the certificate.
    ///
    /// # Errors
    /// TLS cannot be served.
    pub(super) fn serve(
        self,
        location: &RunLocation,
        background: &BackgroundTasks,
        stop: &CancellationToken,
    ) -> Result<(), StartError> {
        let certificate = Arc::<ServerCertificate>::default();
        if let Ok(address) = self.listener.local_addr() {
            info!(%address, "serving the API of accounts");
        }
        let (connections, shown) = (self.connections, Arc::clone(&certificate));
        let listener = GatewayListener::new(self.listener, connections, AddressLimits::default(), shown)
            .map_err(StartError::Tls)?;
        let spec =
            || TaskSpec::<()>::new("gateway certificate", "Keeps the certificate of the API of accounts");
        let spec = spec().every(CERTIFICATE_INTERVAL).at_start();
        match self.tls_files {
            Some((file, key)) => {
                let files = TlsFiles { certificate: file, key };
                background.start(spec, move |_| read_files(files.clone(), Arc::clone(&certificate)));
            }
            None => {
                let own = OwnCertificate::new(location.kube.clone(), &location.namespace, certificate);
                let own = Arc::new(own);
                background.start(spec, move |_| keep(Arc::clone(&own)));
            }
        }
        let (gateway, stop) = (self.gateway, stop.clone());
        background.spawn("API of accounts", "Serves the Kubernetes API of accounts", async move {
            listener.serve(gateway, stop).await;
        });
        Ok(())
    }
}

async fn read_files(files: TlsFiles, certificate: Arc<ServerCertificate>) -> Outcome {
    match files.read().await {
        Ok(read) => {
            if certificate.set(read) {
                info!("the API of accounts has a certificate");
            }
            Outcome::Done
        }
        Err(error) => Outcome::failed(chain(&error)),
    }
}

async fn keep(own: Arc<OwnCertificate>) -> Outcome {
    match own.keep().await {
        Ok(()) => Outcome::Done,
        Err(error) => Outcome::failed(chain(&error)),
    }
}

/// Maximum number of records that wait for the database.
const MAX_WAITING_RECORDS: usize = 10_000;
/// Interval between two writes of records.
const RECORD_INTERVAL: Duration = Duration::from_millis(100);

/// Writes what was done through the API of accounts into the history of operations.
pub(super) struct HistoryWriter(mpsc::Sender<OperationRecord>);

impl HistoryWriter {
    pub(super) fn start(
        store: Arc<dyn Store>,
        background: &BackgroundTasks,
        stop: CancellationToken,
    ) -> Arc<Self> {
        let (sender, mut records) = mpsc::channel(MAX_WAITING_RECORDS);
        background.spawn(
            "history of writes",
            "Writes what was done through the API of accounts",
            async move {
                let mut ends = Vec::new();
                loop {
                    let received = stop.run_until_cancelled(records.recv_many(&mut ends, 500)).await;
                    if received.is_none_or(|count| count == 0) && ends.is_empty() {
                        return;
                    }
                    let changes = OperationChanges { open: Vec::new(), ends: std::mem::take(&mut ends) };
                    while let Err(error) = store.write_operations(&changes).await {
                        warn!(error = error.in_full(), "the history of writes cannot be written");
                        if stop
                            .run_until_cancelled(tokio::time::sleep(Duration::from_secs(1)))
                            .await
                            .is_none()
                        {
                            return;
                        }
                    }
                    tokio::time::sleep(RECORD_INTERVAL).await;
                }
            },
        );
        Arc::new(Self(sender))
    }
}

impl OperationHistory for HistoryWriter {
    fn ended(&self, record: OperationRecord) {
        if self.0.try_send(record).is_err() {
            warn!("a record of a write is lost: too many wait for the database");
        }
    }
}
