//! What a port presents and accepts. Its files may change: a set of them takes effect as a whole, or not at all.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::RwLock;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, ResolvesServerCert};
use rustls::sign::SingleCertAndKey;
use rustls::{ServerConfig, SupportedCipherSuite, SupportedProtocolVersion};
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::clients::{self, ClientAuth};
use super::identity::{ServingCertificate, TlsFiles, check_server, not_after};
use super::{TlsFilesError, read_file};

/// What a port shows.
#[derive(Clone, Debug)]
pub enum ServerIdentity {
    /// The certificate in these files.
    Files(TlsFiles),
    /// One that the program makes.
    Made(Arc<ServingCertificate>),
}

/// TLS of a port.
#[derive(Clone, Debug)]
pub struct ServerTlsSettings {
    /// What it shows.
    pub identity: ServerIdentity,
    /// Whether clients show a certificate.
    pub client_auth: ClientAuth,
    /// File with the authorities of clients; `None`: those that the machine trusts.
    pub authorities: Option<PathBuf>,
    /// Files with revocation lists; with one, each issuer needs one.
    pub revocation_lists: Vec<PathBuf>,
    /// Versions of TLS; empty: 1.3 and 1.2.
    pub protocols: Vec<&'static SupportedProtocolVersion>,
    /// Cipher suites; empty: all.
    pub suites: Vec<SupportedCipherSuite>,
    /// Protocols above TLS, the preferred one first.
    pub alpn: &'static [&'static [u8]],
}

/// TLS of a port, as its files had it when they could last be used.
pub struct ServerTls {
    settings: ServerTlsSettings,
    provider: Arc<CryptoProvider>,
    loaded: RwLock<LoadedServerTls>,
    /// Counts the sets of authorities and revocation lists.
    trust: watch::Sender<u64>,
}

struct LoadedServerTls {
    /// Digests of what the files of the identity, and those about clients, hold.
    digests: [[u8; 32]; 2],
    config: Arc<ServerConfig>,
    verifier: Option<Arc<dyn ClientCertVerifier>>,
    not_after: Option<i64>,
}

impl fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerTls").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl ServerTls {
    /// Reads the files.
    ///
    /// # Errors
    /// One cannot be used.
    pub async fn read(settings: ServerTlsSettings) -> Result<Self, TlsFilesError> {
        let mut provider = ring::default_provider();
        if !settings.suites.is_empty() {
            provider.cipher_suites.clone_from(&settings.suites);
        }
        let provider = Arc::new(provider);
        let contents = ServerTlsContents::read(&settings).await?;
        let loaded = RwLock::new(contents.load(&settings, &provider)?);
        Ok(Self { settings, provider, loaded, trust: watch::Sender::new(0) })
    }

    /// Reads the files again. Returns whether they are others; then they take effect for further handshakes.
    ///
    /// # Errors
    /// One cannot be used; the former ones stay in use.
    pub async fn refresh(&self) -> Result<bool, TlsFilesError> {
        let contents = ServerTlsContents::read(&self.settings).await?;
        let before = self.loaded.read().digests;
        let digests = contents.digests();
        if digests == before {
            return Ok(false);
        }
        *self.loaded.write() = contents.load(&self.settings, &self.provider)?;
        if digests[1] != before[1] {
            self.trust.send_modify(|number| *number += 1);
        }
        Ok(true)
    }

    /// Changes when other authorities or revocation lists are in use.
    pub fn trust_changes(&self) -> watch::Receiver<u64> {
        self.trust.subscribe()
    }

    /// Verifies a chain that a client has shown, as a handshake does now. An empty one is a client without a certificate.
    ///
    /// # Errors
    /// It is not accepted.
    pub fn verify(&self, chain: &[CertificateDer<'_>]) -> Result<(), rustls::Error> {
        let Some(verifier) = self.loaded.read().verifier.clone() else { return Ok(()) };
        match chain.split_first() {
            Some((leaf, others)) => verifier.verify_client_cert(leaf, others, UnixTime::now()).map(drop),
            None if verifier.client_auth_mandatory() => Err(rustls::Error::NoCertificatesPresented),
            None => Ok(()),
        }
    }

    /// When the certificate that is shown expires, in epoch seconds.
    pub fn not_after(&self) -> Option<i64> {
        match &self.settings.identity {
            ServerIdentity::Files(_) => self.loaded.read().not_after,
            ServerIdentity::Made(certificate) => certificate.not_after(),
        }
    }

    /// Shakes hands. The caller sets the time limit.
    ///
    /// # Errors
    /// The client breaks off, breaks the protocol, or shows no certificate that is accepted.
    pub async fn accept<S: AsyncRead + AsyncWrite + Unpin>(&self, stream: S) -> io::Result<TlsStream<S>> {
        self.accept_or_return(stream).await.map_err(|(error, _)| error)
    }

    /// As [`ServerTls::accept`], and returns the stream of a handshake that fails, so that the client can be given time to
    /// read the alert.
    ///
    /// # Errors
    /// As there.
    pub async fn accept_or_return<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: S,
    ) -> Result<TlsStream<S>, (io::Error, S)> {
        let config = Arc::clone(&self.loaded.read().config);
        TlsAcceptor::from(config).accept(stream).into_fallible().await
    }
}

enum IdentityContents {
    Files { files: TlsFiles, certificate: Vec<u8>, key: Vec<u8> },
    Made(Arc<ServingCertificate>),
}

impl IdentityContents {
    fn parts(&self) -> impl Iterator<Item = &Vec<u8>> {
        let files = match self {
            Self::Files { certificate, key, .. } => Some([certificate, key]),
            Self::Made(_) => None,
        };
        files.into_iter().flatten()
    }

    /// What shows the certificate, and when that expires if it is one of files.
    fn resolver(&self) -> Result<(Arc<dyn ResolvesServerCert>, Option<i64>), TlsFilesError> {
        let (files, certificate, key) = match self {
            Self::Files { files, certificate, key } => (files, certificate, key),
            Self::Made(made) => return Ok((Arc::clone(made) as _, None)),
        };
        let certified = files.parse(certificate, key)?;
        let now = jiff::Timestamp::now().as_second();
        check_server(&certified, now).map_err(|error| files.unfit(error))?;
        let not_after = not_after(&certified.cert);
        Ok((Arc::new(SingleCertAndKey::from(certified)), not_after))
    }
}

/// What the files hold.
struct ServerTlsContents {
    identity: IdentityContents,
    authorities: Option<(PathBuf, Vec<u8>)>,
    revocation_lists: Vec<(PathBuf, Vec<u8>)>,
}

impl ServerTlsContents {
    async fn read(settings: &ServerTlsSettings) -> Result<Self, TlsFilesError> {
        let identity = match &settings.identity {
            ServerIdentity::Files(files) => {
                let (certificate, key) = files.contents().await?;
                IdentityContents::Files { files: files.clone(), certificate, key }
            }
            ServerIdentity::Made(made) => IdentityContents::Made(Arc::clone(made)),
        };
        let asks = settings.client_auth != ClientAuth::None;
        let authorities = match settings.authorities.as_ref().filter(|_| asks) {
            Some(path) => Some((path.clone(), read_file(path).await?)),
            None => None,
        };
        let mut revocation_lists = Vec::new();
        for path in settings.revocation_lists.iter().filter(|_| asks) {
            revocation_lists.push((path.clone(), read_file(path).await?));
        }
        Ok(Self { identity, authorities, revocation_lists })
    }

    fn digests(&self) -> [[u8; 32]; 2] {
        let clients = self.authorities.iter().chain(&self.revocation_lists).map(|(_, bytes)| bytes);
        [digest(self.identity.parts()), digest(clients)]
    }

    fn load(
        &self,
        settings: &ServerTlsSettings,
        provider: &Arc<CryptoProvider>,
    ) -> Result<LoadedServerTls, TlsFilesError> {
        let verifier = self.verifier(settings, provider)?;
        let (resolver, not_after) = self.identity.resolver()?;
        let versions: &[_] = match settings.protocols.as_slice() {
            [] => rustls::DEFAULT_VERSIONS,
            some => some,
        };
        let builder =
            ServerConfig::builder_with_provider(Arc::clone(provider)).with_protocol_versions(versions)?;
        let builder = match &verifier {
            Some(verifier) => builder.with_client_cert_verifier(Arc::clone(verifier)),
            None => builder.with_no_client_auth(),
        };
        let mut config = builder.with_cert_resolver(resolver);
        config.alpn_protocols = settings.alpn.iter().map(|protocol| protocol.to_vec()).collect();
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(LoadedServerTls { digests: self.digests(), config: Arc::new(config), verifier, not_after })
    }

    fn verifier(
        &self,
        settings: &ServerTlsSettings,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Option<Arc<dyn ClientCertVerifier>>, TlsFilesError> {
        if settings.client_auth == ClientAuth::None {
            return Ok(None);
        }
        let of = |path: &PathBuf| {
            let path = path.clone();
            move |source| TlsFilesError::Clients { path, source }
        };
        let roots = match &self.authorities {
            Some((path, bytes)) => clients::authorities(bytes).map_err(of(path))?,
            None => clients::system_authorities()?,
        };
        let mut lists = Vec::new();
        for (path, bytes) in &self.revocation_lists {
            let read = clients::revocation_lists(bytes).map_err(of(path))?;
            // Each by itself first, so that the file of a damaged one is named.
            clients::verifier(Arc::clone(provider), roots.clone(), read.clone(), settings.client_auth)
                .map_err(of(path))?;
            lists.extend(read);
        }
        let path = self.authorities.as_ref().map(|(path, _)| path.clone()).unwrap_or_default();
        clients::verifier(Arc::clone(provider), roots, lists, settings.client_auth)
            .map(Some)
            .map_err(of(&path))
    }
}

fn digest<'p>(parts: impl Iterator<Item = &'p Vec<u8>>) -> [u8; 32] {
    let mut digest = Sha256::new();
    for part in parts {
        digest.update(part.len().to_be_bytes());
        digest.update(part);
    }
    digest.finalize().into()
}

#[cfg(test)]
pub(crate) mod tests;
