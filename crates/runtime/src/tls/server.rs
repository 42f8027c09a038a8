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
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::clients::{self, ClientAuth};
use super::identity::{ServingCertificate, TlsFiles, check_server, not_after};
use super::{TlsFilesError, digest, read_file};

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
    identity: LoadedIdentity,
    clients: LoadedClients,
    config: Arc<ServerConfig>,
}

/// What the port shows.
struct LoadedIdentity {
    /// Digest of what its files hold.
    digest: [u8; 32],
    resolver: Arc<dyn ResolvesServerCert>,
    /// When the certificate of files expires, in epoch seconds.
    not_after: Option<i64>,
}

/// Which clients the port accepts.
struct LoadedClients {
    /// Digest of what its files hold.
    digest: [u8; 32],
    verifier: Option<Arc<dyn ClientCertVerifier>>,
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
        let identity = IdentityContents::read(&settings).await?.load().await?;
        let clients = ClientsContents::read(&settings).await?.load(settings.client_auth, &provider).await?;
        let config = config(&settings, &provider, &identity, &clients)?;
        let loaded = RwLock::new(LoadedServerTls { identity, clients, config });
        Ok(Self { settings, provider, loaded, trust: watch::Sender::new(0) })
    }

    /// Reads the files again. Returns whether they are others; then they take effect for further handshakes. The certificate
    /// with its key is one set, what is known of clients another one: one that cannot be used holds up no revocation.
    ///
    /// # Errors
    /// A set cannot be used; the former one stays in use.
    pub async fn refresh(&self) -> Result<bool, TlsFilesError> {
        let (identity, clients) = (self.next_identity().await, self.next_clients().await);
        let (mut is_changed, mut is_trust_changed) = (false, false);
        {
            let mut loaded = self.loaded.write();
            let LoadedServerTls { identity: shown, clients: accepted, .. } = &mut *loaded;
            if let Ok(Some(next)) = &identity {
                (shown.digest, shown.not_after) = (next.digest, next.not_after);
                shown.resolver = Arc::clone(&next.resolver);
                is_changed = true;
            }
            if let Ok(Some(next)) = &clients {
                (accepted.digest, accepted.verifier) = (next.digest, next.verifier.clone());
                (is_changed, is_trust_changed) = (true, true);
            }
            if is_changed {
                loaded.config = config(&self.settings, &self.provider, &loaded.identity, &loaded.clients)?;
            }
        }
        if is_trust_changed {
            self.trust.send_modify(|number| *number += 1);
        }
        clients?;
        identity?;
        Ok(is_changed)
    }

    async fn next_identity(&self) -> Result<Option<LoadedIdentity>, TlsFilesError> {
        let contents = IdentityContents::read(&self.settings).await?;
        let is_same = contents.digest() == self.loaded.read().identity.digest;
        if is_same { Ok(None) } else { contents.load().await.map(Some) }
    }

    async fn next_clients(&self) -> Result<Option<LoadedClients>, TlsFilesError> {
        let contents = ClientsContents::read(&self.settings).await?;
        let is_same = contents.digest() == self.loaded.read().clients.digest;
        if is_same {
            return Ok(None);
        }
        contents.load(self.settings.client_auth, &self.provider).await.map(Some)
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
        let Some(verifier) = self.loaded.read().clients.verifier.clone() else { return Ok(()) };
        match chain.split_first() {
            Some((leaf, others)) => verifier.verify_client_cert(leaf, others, UnixTime::now()).map(drop),
            None if verifier.client_auth_mandatory() => Err(rustls::Error::NoCertificatesPresented),
            None => Ok(()),
        }
    }

    /// When the certificate that is shown expires, in epoch seconds.
    pub fn not_after(&self) -> Option<i64> {
        match &self.settings.identity {
            ServerIdentity::Files(_) => self.loaded.read().identity.not_after,
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

/// TLS with what was loaded.
fn config(
    settings: &ServerTlsSettings,
    provider: &Arc<CryptoProvider>,
    identity: &LoadedIdentity,
    clients: &LoadedClients,
) -> Result<Arc<ServerConfig>, rustls::Error> {
    let versions: &[_] = match settings.protocols.as_slice() {
        [] => rustls::DEFAULT_VERSIONS,
        some => some,
    };
    let builder =
        ServerConfig::builder_with_provider(Arc::clone(provider)).with_protocol_versions(versions)?;
    let builder = match &clients.verifier {
        Some(verifier) => builder.with_client_cert_verifier(Arc::clone(verifier)),
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_cert_resolver(Arc::clone(&identity.resolver));
    config.alpn_protocols = settings.alpn.iter().map(|protocol| protocol.to_vec()).collect();
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

/// What the files of the certificate hold.
enum IdentityContents {
    Files { files: TlsFiles, certificate: Vec<u8>, key: Vec<u8> },
    Made(Arc<ServingCertificate>),
}

impl IdentityContents {
    async fn read(settings: &ServerTlsSettings) -> Result<Self, TlsFilesError> {
        Ok(match &settings.identity {
            ServerIdentity::Files(files) => {
                let (certificate, key) = files.contents().await?;
                Self::Files { files: files.clone(), certificate, key }
            }
            ServerIdentity::Made(made) => Self::Made(Arc::clone(made)),
        })
    }

    fn digest(&self) -> [u8; 32] {
        let files = match self {
            Self::Files { certificate, key, .. } => Some([certificate, key]),
            Self::Made(_) => None,
        };
        digest(files.into_iter().flatten())
    }

    async fn load(self) -> Result<LoadedIdentity, TlsFilesError> {
        let digest = self.digest();
        let (files, certificate, key) = match self {
            Self::Files { files, certificate, key } => (files, certificate, key),
            Self::Made(resolver) => return Ok(LoadedIdentity { digest, resolver, not_after: None }),
        };
        // A key may be derived from a password by millions of iterations.
        let parsed = tokio::task::spawn_blocking(move || {
            let certified = files.parse(&certificate, &key)?;
            let now = jiff::Timestamp::now().as_second();
            check_server(&certified, now).map_err(|error| files.unfit(error))?;
            Ok::<_, TlsFilesError>(certified)
        });
        let certified = parsed.await??;
        let not_after = not_after(&certified.cert);
        Ok(LoadedIdentity { digest, resolver: Arc::new(SingleCertAndKey::from(certified)), not_after })
    }
}

/// What the files about clients hold.
struct ClientsContents {
    authorities: Option<(PathBuf, Vec<u8>)>,
    revocation_lists: Vec<(PathBuf, Vec<u8>)>,
}

impl ClientsContents {
    async fn read(settings: &ServerTlsSettings) -> Result<Self, TlsFilesError> {
        let asks = settings.client_auth != ClientAuth::None;
        let authorities = match settings.authorities.as_ref().filter(|_| asks) {
            Some(path) => Some((path.clone(), read_file(path).await?)),
            None => None,
        };
        let mut revocation_lists = Vec::new();
        for path in settings.revocation_lists.iter().filter(|_| asks) {
            revocation_lists.push((path.clone(), read_file(path).await?));
        }
        Ok(Self { authorities, revocation_lists })
    }

    fn digest(&self) -> [u8; 32] {
        digest(self.authorities.iter().chain(&self.revocation_lists).map(|(_, bytes)| bytes))
    }

    async fn load(
        self,
        client_auth: ClientAuth,
        provider: &Arc<CryptoProvider>,
    ) -> Result<LoadedClients, TlsFilesError> {
        let (digest, provider) = (self.digest(), Arc::clone(provider));
        if client_auth == ClientAuth::None {
            return Ok(LoadedClients { digest, verifier: None });
        }
        // The authorities of the machine are many files.
        let loaded = tokio::task::spawn_blocking(move || self.verifier(client_auth, &provider));
        Ok(LoadedClients { digest, verifier: Some(loaded.await??) })
    }

    fn verifier(
        &self,
        client_auth: ClientAuth,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Arc<dyn ClientCertVerifier>, TlsFilesError> {
        let of = |path: &PathBuf| {
            let path = path.clone();
            move |source| TlsFilesError::Clients { path, source }
        };
        let roots = match &self.authorities {
            Some((path, bytes)) => clients::authorities(bytes).map_err(of(path))?,
            None => clients::system_authorities()?,
        };
        let (mut lists, now) = (Vec::new(), jiff::Timestamp::now().as_second());
        for (path, bytes) in &self.revocation_lists {
            let read = clients::revocation_lists(bytes, now).map_err(of(path))?;
            // Each by itself first, so that the file of a damaged one is named.
            clients::verifier(Arc::clone(provider), roots.clone(), read.clone(), client_auth)
                .map_err(of(path))?;
            lists.extend(read);
        }
        if let Some((path, bytes)) = self.authorities.as_ref().filter(|_| !lists.is_empty()) {
            clients::check_each_has_a_list(bytes, &lists).map_err(of(path))?;
        }
        let path = self.authorities.as_ref().map(|(path, _)| path.clone()).unwrap_or_default();
        clients::verifier(Arc::clone(provider), roots, lists, client_auth).map_err(of(&path))
    }
}

#[cfg(test)]
pub(crate) mod tests;
