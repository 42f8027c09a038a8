//! TLS of calls to Clouddriver, with files that may change while the process runs.
//!
//! Clients are made anew when [`RenewedTls::refresh`] finds other files, so that no connection of before is used for a
//! later call. Files that cannot be used change nothing.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, RootCertStore};

use super::client::ClientError;
use kubesvc_runtime::tls::identity::TlsFiles;
use kubesvc_runtime::tls::read_file;

/// Files for calls over TLS.
#[derive(Clone, Debug, Default)]
pub struct ClouddriverTlsFiles {
    /// Certificate authorities; `None`: those of the system.
    pub ca: Option<PathBuf>,
    /// Certificate and private key of this client.
    pub identity: Option<TlsFiles>,
}

/// How Clouddriver is called over TLS, at the time.
pub struct RenewedTls {
    files: ClouddriverTlsFiles,
    current: RwLock<LoadedTls>,
}

/// What the files had when they could last be used.
struct LoadedTls {
    authorities: Option<Vec<u8>>,
    identity: Option<CertifiedKey>,
    config: Arc<ClientConfig>,
}

impl RenewedTls {
    /// Reads the files.
    ///
    /// # Errors
    /// One cannot be used.
    pub async fn read(files: ClouddriverTlsFiles) -> Result<Self, ClientError> {
        let current = LoadedTls::read(&files).await?;
        Ok(Self { files, current: RwLock::new(current) })
    }

    /// Whether there are files at all.
    pub fn has_files(&self) -> bool {
        self.files.ca.is_some() || self.files.identity.is_some()
    }

    /// Reads the files again. Returns whether they are others.
    ///
    /// # Errors
    /// One cannot be used; the former ones stay in use.
    pub async fn refresh(&self) -> Result<bool, ClientError> {
        let loaded = LoadedTls::read(&self.files).await?;
        let mut current = self.current.write();
        let is_same = current.is_of_same_files(&loaded);
        if !is_same {
            *current = loaded;
        }
        Ok(!is_same)
    }

    fn config(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.current.read().config)
    }
}

impl fmt::Debug for RenewedTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RenewedTls").field("files", &self.files).finish_non_exhaustive()
    }
}

impl LoadedTls {
    async fn read(files: &ClouddriverTlsFiles) -> Result<Self, ClientError> {
        let mut roots = RootCertStore::empty();
        let authorities = match &files.ca {
            Some(path) => Some(read_file(path).await?),
            None => None,
        };
        if let (Some(path), Some(pem)) = (&files.ca, &authorities) {
            let found =
                CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>().unwrap_or_default();
            if roots.add_parsable_certificates(found).0 == 0 {
                return Err(ClientError::NoAuthority(path.clone()));
            }
        } else {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
        let identity = match &files.identity {
            Some(identity) => Some(identity.read().await?),
            None => None,
        };
        let config = ClientConfig::builder().with_root_certificates(roots);
        let config = match &identity {
            Some(identity) => {
                config.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(identity.clone())))
            }
            None => config.with_no_client_auth(),
        };
        Ok(Self { authorities, identity, config: Arc::new(config) })
    }

    fn is_of_same_files(&self, other: &Self) -> bool {
        let certificate = |one: &Self| one.identity.as_ref().map(|identity| identity.cert.clone());
        self.authorities == other.authorities && certificate(self) == certificate(other)
    }
}

/// A client over the TLS of the time, made anew when that changes.
pub(super) struct OverTls<C> {
    tls: Arc<RenewedTls>,
    make: fn(&ClientConfig) -> Result<C, ClientError>,
    made: Mutex<(Arc<ClientConfig>, C)>,
}

impl<C: Clone> OverTls<C> {
    /// Makes the client.
    ///
    /// # Errors
    /// It cannot be made.
    pub(super) fn new(
        tls: Arc<RenewedTls>,
        make: fn(&ClientConfig) -> Result<C, ClientError>,
    ) -> Result<Self, ClientError> {
        let config = tls.config();
        let made = make(&config)?;
        Ok(Self { tls, make, made: Mutex::new((config, made)) })
    }

    /// The client for the next call.
    pub(super) fn client(&self) -> C {
        let config = self.tls.config();
        let mut made = self.made.lock();
        if !Arc::ptr_eq(&made.0, &config) {
            // One could be made of the former files, so this does not fail.
            if let Ok(client) = (self.make)(&config) {
                made.1 = client;
            }
            made.0 = config;
        }
        made.1.clone()
    }
}

impl<C> fmt::Debug for OverTls<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OverTls").field("tls", &self.tls).finish_non_exhaustive()
    }
}
