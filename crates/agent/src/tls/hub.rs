//! TLS to the hub: what the agent shows, and which certificate of the hub it accepts.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::RwLock;
use rustls::ClientConfig;
use rustls::client::Resumption;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::ring;
use rustls::pki_types::{InvalidDnsNameError, ServerName};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use tokio::sync::watch;

use super::{HUB, TlsSettingError};
use crate::cluster::{Trust, TrustError, system_verifier};
use crate::settings::{DialTlsSettings, IdentitySettings};
use kubesvc_runtime::tls::identity::{TlsFiles, check_client};
use kubesvc_runtime::tls::{TlsFilesError, clients, digest, read_file};

/// TLS to the hub, as its files had it when they could last be used.
pub struct DialTls {
    settings: DialTlsSettings,
    loaded: RwLock<LoadedDialTls>,
    /// Counts the identities.
    identity: watch::Sender<u64>,
}

struct LoadedDialTls {
    /// Digests of what the files of the identity, and that of the authorities, hold.
    digests: [[u8; 32]; 2],
    identity: Option<Arc<CertifiedKey>>,
    /// `None`: by the authorities that the machine trusts.
    verifier: Option<Arc<dyn ServerCertVerifier>>,
}

impl fmt::Debug for DialTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DialTls").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl DialTls {
    /// Reads the files.
    ///
    /// # Errors
    /// One cannot be used. The error names the setting.
    pub async fn read(settings: DialTlsSettings) -> Result<Self, TlsSettingError> {
        let loaded = DialTlsContents::read(&settings).await?.parsed(&settings).await?;
        Ok(Self { settings, loaded: RwLock::new(loaded), identity: watch::Sender::new(0) })
    }

    /// Reads the files again. Returns whether they are others; then they take effect for further connections.
    ///
    /// # Errors
    /// One cannot be used; the former ones stay in use.
    pub async fn refresh(&self) -> Result<bool, TlsSettingError> {
        let contents = DialTlsContents::read(&self.settings).await?;
        let before = self.loaded.read().digests;
        if contents.digests() == before {
            return Ok(false);
        }
        let loaded = contents.parsed(&self.settings).await?;
        let is_other_identity = loaded.digests[0] != before[0];
        *self.loaded.write() = loaded;
        if is_other_identity {
            self.identity.send_modify(|number| *number += 1);
        }
        Ok(true)
    }

    /// Number of the identity that a connection shows now. It changes when another one is in use.
    pub fn identity(&self) -> watch::Receiver<u64> {
        self.identity.subscribe()
    }

    /// The name that the hub's certificate must have, and that the hub is told, for a hub at this host.
    ///
    /// # Errors
    /// It is neither a host name nor an address.
    pub fn server_name(&self, host: &str) -> Result<ServerName<'static>, InvalidDnsNameError> {
        let name = self.settings.server_name.as_deref();
        let host = host.trim_start_matches('[').trim_end_matches(']');
        ServerName::try_from(name.unwrap_or(host).to_owned())
    }

    /// The name that replaces the host of the hub.
    pub fn other_name(&self) -> Option<&str> {
        self.settings.server_name.as_deref()
    }

    /// Whether the authorities of the hub are set.
    pub fn has_authorities(&self) -> bool {
        self.settings.authorities.is_some()
    }

    /// Whether the agent shows a certificate.
    pub fn shows_certificate(&self) -> bool {
        self.settings.identity.is_some()
    }

    /// The configuration of a connection that offers this protocol. The authorities of the machine are read for each, so that
    /// an updated set of them needs no restart.
    ///
    /// # Errors
    /// The machine has no authorities.
    pub async fn config(&self, protocol: &[u8]) -> Result<ClientConfig, TrustError> {
        let (identity, verifier) = {
            let loaded = self.loaded.read();
            (loaded.identity.clone(), loaded.verifier.clone())
        };
        let verifier = match verifier {
            Some(verifier) => verifier,
            None => system_verifier(Trust::default()).await?,
        };
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .dangerous()
            .with_custom_certificate_verifier(verifier);
        let mut config = match identity {
            Some(identity) => builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(identity))),
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = vec![protocol.to_vec()];
        config.resumption = Resumption::disabled();
        Ok(config)
    }
}

/// What the files hold.
struct DialTlsContents {
    identity: Option<(TlsFiles, Vec<u8>, Vec<u8>)>,
    authorities: Option<(PathBuf, Vec<u8>)>,
}

impl DialTlsContents {
    async fn read(settings: &DialTlsSettings) -> Result<Self, TlsSettingError> {
        let identity = match settings.identity.as_ref().map(IdentitySettings::files) {
            Some(files) => match files.contents().await {
                Ok((certificate, key)) => Some((files, certificate, key)),
                Err(error) => return Err(HUB.error(Some(&files), error)),
            },
            None => None,
        };
        let authorities = match &settings.authorities {
            Some(path) => {
                let bytes = read_file(path).await.map_err(|error| HUB.error(None, error))?;
                Some((path.clone(), bytes))
            }
            None => None,
        };
        Ok(Self { identity, authorities })
    }

    fn digests(&self) -> [[u8; 32]; 2] {
        let identity = self.identity.iter().flat_map(|(_, certificate, key)| [certificate, key]);
        [digest(identity), digest(self.authorities.iter().map(|(_, bytes)| bytes))]
    }

    /// Parses on a thread of its own: a key may be derived from a password by millions of iterations.
    async fn parsed(self, settings: &DialTlsSettings) -> Result<LoadedDialTls, TlsSettingError> {
        let settings = settings.clone();
        let loaded = tokio::task::spawn_blocking(move || self.load(&settings)).await;
        loaded.unwrap_or_else(|error| Err(HUB.error(None, TlsFilesError::Interrupted(error))))
    }

    fn load(&self, settings: &DialTlsSettings) -> Result<LoadedDialTls, TlsSettingError> {
        let trust = Trust::default();
        let verifier = match &self.authorities {
            Some((path, bytes)) => {
                let unusable = |source| TlsFilesError::Clients { path: path.clone(), source };
                clients::authorities(bytes).map_err(|error| HUB.error(None, unusable(error)))?;
                let verifier = trust.authority(bytes);
                Some(verifier.map_err(|_| HUB.error(None, unusable(clients::ClientsError::NoAuthority)))?)
            }
            None => None,
        };
        let verifier = if settings.insecure_skip_verify { Some(trust.unverified()) } else { verifier };
        let identity = match &self.identity {
            Some((files, certificate, key)) => {
                let read = files.parse(certificate, key).and_then(|certified| {
                    let now = jiff::Timestamp::now().as_second();
                    check_client(&certified, now).map_err(|error| files.unfit(error))?;
                    Ok(certified)
                });
                Some(Arc::new(read.map_err(|error| HUB.error(Some(files), error))?))
            }
            None => None,
        };
        Ok(LoadedDialTls { digests: self.digests(), identity, verifier })
    }
}
