//! TLS of the port of REST: its files, which are read again while the operator runs.

use std::sync::Arc;
use std::time::Duration;

use super::OperatorError;
use super::certificate_metrics::CertificateExpiry;
use super::settings::OperatorSettings;
use super::tls_files;
use kubesvc_runtime::background_tasks::BackgroundTasks;
use kubesvc_runtime::tls::server::{ServerIdentity, ServerTls, ServerTlsSettings};

/// Interval between two looks at the files.
const RELOAD_INTERVAL: Duration = Duration::from_secs(10);

/// TLS of the port of REST, as the settings have it.
pub(super) struct RestTls {
    server: Arc<ServerTls>,
    /// Path of the certificate.
    name: String,
}

impl RestTls {
    /// Reads the files; `None`: the port speaks plain text.
    ///
    /// # Errors
    /// One cannot be used.
    pub(super) async fn read(settings: &OperatorSettings) -> Result<Option<Self>, OperatorError> {
        let Some(settings) = &settings.server.tls else { return Ok(None) };
        let server = ServerTls::read(ServerTlsSettings {
            identity: ServerIdentity::Files(settings.files.to_read()),
            client_auth: settings.client_auth,
            authorities: settings.authorities.clone(),
            revocation_lists: Vec::new(),
            protocols: Vec::new(),
            suites: Vec::new(),
            alpn: &[b"http/1.1"],
        });
        let server = server.await.map_err(|source| OperatorError::TlsFiles {
            setting: settings.setting_of(&source),
            source: Box::new(source),
        })?;
        Ok(Some(Self { server: Arc::new(server), name: settings.files.certificate.display().to_string() }))
    }

    /// What the port uses.
    pub(super) fn server(&self) -> Arc<ServerTls> {
        Arc::clone(&self.server)
    }

    /// When the certificate expires.
    pub(super) fn expiry(&self) -> CertificateExpiry {
        let server = self.server();
        CertificateExpiry::new("rest", &self.name, move || server.not_after())
    }

    /// Reads the files again from now on.
    pub(super) fn start(&self, background: &BackgroundTasks) {
        tls_files::follow("REST TLS files", self.server(), RELOAD_INTERVAL, background);
    }
}
