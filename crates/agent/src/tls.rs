//! TLS of the agent: the files of the settings, which may change while it runs. A set of them takes effect as a whole, or
//! not at all.

mod hub;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

pub use hub::DialTls;

use crate::settings::{AgentSettings, ServerSslSettings};
use kubesvc_runtime::background_tasks::{AttemptOutcome, BackgroundTasks, TaskSpec};
use kubesvc_runtime::telemetry::errors::chain;
use kubesvc_runtime::tls::TlsFilesError;
use kubesvc_runtime::tls::identity::{CertificateError, TlsFiles};
use kubesvc_runtime::tls::private_key::PrivateKeyError;
use kubesvc_runtime::tls::server::{ServerIdentity, ServerTls, ServerTlsSettings};

/// Why files of the settings cannot be used. No message has a key or a password.
#[derive(Debug, thiserror::Error)]
#[error("`{setting}` cannot be honoured; {remedy}")]
pub struct TlsSettingError {
    /// The setting that helps.
    pub setting: &'static str,
    remedy: &'static str,
    source: Box<TlsFilesError>,
}

/// The settings that name the files of one use of TLS.
#[derive(Clone, Copy, Debug)]
struct TlsSettingNames {
    certificate: &'static str,
    key: &'static str,
    password: &'static str,
    authorities: &'static str,
}

const HUB: TlsSettingNames = TlsSettingNames {
    certificate: "clouddriver.tls.clientCertFile",
    key: "clouddriver.tls.clientKeyFile",
    password: "clouddriver.tls.clientKeyFilePassword",
    authorities: "clouddriver.tls.cacertFile",
};
const SERVER: TlsSettingNames = TlsSettingNames {
    certificate: "server.ssl.certFile",
    key: "server.ssl.keyFile",
    password: "server.ssl.keyPassword",
    authorities: "server.ssl.caCertFile",
};

impl TlsSettingNames {
    /// Names the setting that an error is about, and what to do.
    fn error(&self, identity: Option<&TlsFiles>, source: TlsFilesError) -> TlsSettingError {
        const READABLE: &str = "name a file that the agent can read";
        const PEM: &str = "name a file with a certificate in PEM";
        let (setting, remedy) = match &source {
            TlsFilesError::File { path, .. } => match identity {
                Some(files) if files.certificate == *path => (self.certificate, READABLE),
                Some(files) if files.key == *path => (self.key, READABLE),
                _ => (self.authorities, READABLE),
            },
            TlsFilesError::Unfit { source, .. } => match source {
                CertificateError::Pem(_) | CertificateError::Empty | CertificateError::Damaged => {
                    (self.certificate, PEM)
                }
                CertificateError::Key(PrivateKeyError::NoPassword) => {
                    (self.password, "set it to the password of the private key")
                }
                CertificateError::Key(PrivateKeyError::WrongPassword) => (self.password, "correct it"),
                CertificateError::Key(_) => {
                    (self.key, "name a file with the certificate's private key in PEM")
                }
                CertificateError::Mismatch(_) => (self.key, "name the private key of the certificate"),
                CertificateError::Version1
                | CertificateError::NoNames
                | CertificateError::NotForServers
                | CertificateError::NotForClients
                | CertificateError::Expired(_)
                | CertificateError::NotYetValid(_) => (self.certificate, "have another certificate issued"),
            },
            TlsFilesError::Clients { .. } => {
                (self.authorities, "name a file with the certificates of the authorities in PEM")
            }
            TlsFilesError::NoSystemAuthority => (self.authorities, "set it, or install ca-certificates"),
            TlsFilesError::Setup(_) | TlsFilesError::Interrupted(_) => {
                (self.certificate, "name another certificate")
            }
        };
        TlsSettingError { setting, remedy, source: Box::new(source) }
    }
}

/// Both uses of TLS, as the settings have them.
#[derive(Clone, Debug, Default)]
pub struct AgentTls {
    /// To the hub; `None`: it is dialled without.
    pub hub: Option<Arc<DialTls>>,
    /// Of the health server; `None`: it has none.
    pub server: Option<Arc<HealthTls>>,
}

impl AgentTls {
    /// Reads the files of the settings.
    ///
    /// # Errors
    /// One cannot be used. The error names the setting.
    pub async fn read(settings: &AgentSettings) -> Result<Self, TlsSettingError> {
        let hub = match settings.hub.insecure {
            true => None,
            false => Some(Arc::new(DialTls::read(settings.hub.tls.clone()).await?)),
        };
        let server = match &settings.server.ssl {
            None => None,
            Some(ssl) => Some(Arc::new(HealthTls::read(ssl).await?)),
        };
        Ok(Self { hub, server })
    }

    /// Looks for changed files, for as long as the agent runs.
    pub fn watch(&self, pace: Duration, background: &BackgroundTasks) {
        if self.hub.is_none() && self.server.is_none() {
            return;
        }
        let task =
            TaskSpec::new("watch of TLS files", "Looks for changed certificates, keys and authorities");
        let (tls, problems) = (self.clone(), Arc::<Mutex<[Option<String>; 2]>>::default());
        background.start(task.every(pace).without_deadline(), move |_: Vec<()>| {
            let (tls, problems) = (tls.clone(), Arc::clone(&problems));
            async move {
                if let Some(hub) = &tls.hub {
                    note("TLS to the hub", hub.refresh().await, &mut problems.lock()[0]);
                }
                if let Some(server) = &tls.server {
                    note("TLS of the health server", server.refresh().await, &mut problems.lock()[1]);
                }
                AttemptOutcome::Done
            }
        });
    }
}

/// Logs what a look at the files has found, each problem once.
fn note(of: &'static str, refreshed: Result<bool, TlsSettingError>, problem: &mut Option<String>) {
    match refreshed {
        Ok(is_other) => {
            let had_problem = problem.take().is_some();
            if is_other {
                tracing::info!("the changed files of {of} take effect");
            } else if had_problem {
                tracing::info!("the files of {of} are again those that are in use");
            }
        }
        Err(error) => {
            let text = chain(&error);
            if problem.as_ref() != Some(&text) {
                tracing::warn!("cannot use the changed files of {of}, and keeps the last ones: {text}");
                *problem = Some(text);
            }
        }
    }
}

/// TLS of the health server.
#[derive(Debug)]
pub struct HealthTls {
    files: TlsFiles,
    /// What the port uses.
    pub port: Arc<ServerTls>,
}

impl HealthTls {
    async fn read(ssl: &ServerSslSettings) -> Result<Self, TlsSettingError> {
        let files = ssl.identity.files();
        let settings = ServerTlsSettings {
            identity: ServerIdentity::Files(files.clone()),
            client_auth: ssl.client_auth,
            authorities: ssl.authorities.clone(),
            revocation_lists: Vec::new(),
            protocols: Vec::new(),
            suites: Vec::new(),
            alpn: &[b"http/1.1"],
        };
        let port = ServerTls::read(settings).await.map_err(|error| SERVER.error(Some(&files), error))?;
        Ok(Self { files, port: Arc::new(port) })
    }

    async fn refresh(&self) -> Result<bool, TlsSettingError> {
        self.port.refresh().await.map_err(|error| SERVER.error(Some(&self.files), error))
    }
}

#[cfg(test)]
pub(crate) mod tests;
