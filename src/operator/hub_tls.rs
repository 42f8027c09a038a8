//! TLS of the port for agents: its files, which are read again while the operator runs, or the certificate that the operator
//! makes.

use std::sync::Arc;
use std::time::Duration;

use super::OperatorError;
use super::certificate_metrics::CertificateExpiry;
use super::kube_client::RunLocation;
use super::settings::{HubTlsSettings, OperatorSettings};
use super::tls_files;
use crate::hub::{HUB_SECRET, HubCertificate};
use kubesvc_runtime::background_tasks::{AttemptOutcome, BackgroundTasks, TaskSpec};
use kubesvc_runtime::telemetry::errors::chain;
use kubesvc_runtime::tls::identity::ServingCertificate;
use kubesvc_runtime::tls::server::{ServerIdentity, ServerTls, ServerTlsSettings};

/// Interval between two looks at the Secret with the certificate that the operator makes.
const SECRET_INTERVAL: Duration = Duration::from_secs(60);

/// TLS of the port for agents, as the settings have it.
pub(super) struct HubTls {
    server: Arc<ServerTls>,
    /// The certificate that the operator makes.
    made: Option<Arc<ServingCertificate>>,
    /// Path of the certificate, or name of its Secret.
    name: String,
    reload: Duration,
}

impl HubTls {
    /// Reads the files; `None`: the port speaks plain text.
    ///
    /// # Errors
    /// One cannot be used.
    pub(super) async fn read(settings: &OperatorSettings) -> Result<Option<Self>, OperatorError> {
        let Some(settings) = &settings.grpc.tls else { return Ok(None) };
        let made = settings.files.is_none().then(Arc::<ServingCertificate>::default);
        let server = ServerTls::read(server_settings(settings, made.as_ref())).await;
        let server = server.map_err(|source| OperatorError::TlsFiles {
            setting: settings.setting_of(&source),
            source: Box::new(source),
        })?;
        let files = settings.files.as_ref();
        let name =
            files.map_or_else(|| HUB_SECRET.to_owned(), |files| files.certificate.display().to_string());
        Ok(Some(Self { server: Arc::new(server), made, name, reload: settings.reload }))
    }

    /// What the port uses.
    pub(super) fn server(&self) -> Arc<ServerTls> {
        Arc::clone(&self.server)
    }

    /// When the certificate expires.
    pub(super) fn expiry(&self) -> CertificateExpiry {
        let server = self.server();
        CertificateExpiry::new("hub", &self.name, move || server.not_after())
    }

    /// Starts the tasks that read the files again, and keep the certificate that the operator makes. `service` is the
    /// operator's Service.
    pub(super) fn start(&self, service: &str, location: &RunLocation, background: &BackgroundTasks) {
        tls_files::follow("hub TLS files", self.server(), self.reload, background);
        let Some(made) = &self.made else { return };
        let (kube, namespace) = (&location.kube, &location.namespace);
        let own = Arc::new(HubCertificate::new(kube, namespace, service, Arc::clone(made)));
        let spec = TaskSpec::<()>::new("hub certificate", "Keeps the certificate that agents are shown");
        background.start(spec.every(SECRET_INTERVAL).at_start(), move |_| keep(Arc::clone(&own)));
    }
}

fn server_settings(settings: &HubTlsSettings, made: Option<&Arc<ServingCertificate>>) -> ServerTlsSettings {
    let identity = match (&settings.files, made) {
        (Some(files), _) => ServerIdentity::Files(files.to_read()),
        (None, made) => ServerIdentity::Made(made.cloned().unwrap_or_default()),
    };
    ServerTlsSettings {
        identity,
        client_auth: settings.client_auth,
        authorities: settings.authorities.clone(),
        revocation_lists: settings.revocation_lists.clone(),
        protocols: settings.protocols.clone(),
        suites: settings.suites.clone(),
        alpn: &[b"h2"],
    }
}

async fn keep(own: Arc<HubCertificate>) -> AttemptOutcome {
    match own.keep().await {
        Ok(()) => AttemptOutcome::Done,
        Err(error) => AttemptOutcome::failed(chain(&error)),
    }
}
