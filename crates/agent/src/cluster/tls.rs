//! Trusted certificate authorities, and the certificate of a server.

use std::sync::{Arc, OnceLock};

use moka::sync::Cache;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, VerifierBuilderError, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, TrustAnchor, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, Error as TlsError, RootCertStore, SignatureScheme};
use secrecy::ExposeSecret;
use sha2::{Digest, Sha256};
use tokio::net::TcpStream;
use tokio::task::JoinError;
use tokio_rustls::client::TlsStream;

use crate::cluster::{ClusterEndpoint, ClusterError};
use kubesvc_core::kubeconfig::Authentication;

/// Maximum number of cached verifiers.
const MAX_CACHED_AUTHORITIES: u64 = 256;

/// Why certificates of servers cannot be verified.
#[derive(Clone, Debug, thiserror::Error)]
pub enum TrustError {
    /// The machine has no certificate authorities, or they cannot be read.
    #[error("the agent's machine trusts no certificate authority (ca-certificates)")]
    NoAuthority(#[source] Option<Arc<rustls_native_certs::Error>>),
    /// An authority is no certificate in PEM.
    #[error(transparent)]
    Pem(Arc<pem::Error>),
    /// An authority cannot be used.
    #[error(transparent)]
    Authority(#[from] TlsError),
    /// No verifier can be made of the authorities.
    #[error(transparent)]
    Verifier(#[from] VerifierBuilderError),
    /// Reading the machine's authorities ended early.
    #[error(transparent)]
    Interrupted(Arc<JoinError>),
}

/// Reads the machine's authorities, which may take long.
pub(crate) async fn system_verifier(trust: Trust) -> Result<Arc<dyn ServerCertVerifier>, TrustError> {
    let read = tokio::task::spawn_blocking(move || trust.system());
    read.await.unwrap_or_else(|error| Err(TrustError::Interrupted(Arc::new(error))))
}

/// Verifiers of server certificates. Accounts with the same authority share one; the system's authorities are
/// read once, when first needed.
#[derive(Clone)]
pub struct Trust {
    provider: Arc<CryptoProvider>,
    system: Arc<OnceLock<Result<Arc<dyn ServerCertVerifier>, TrustError>>>,
    authorities: Cache<[u8; 32], Arc<dyn ServerCertVerifier>>,
}

impl Default for Trust {
    fn default() -> Self {
        Self {
            provider: Arc::new(ring::default_provider()),
            system: Arc::default(),
            authorities: Cache::new(MAX_CACHED_AUTHORITIES),
        }
    }
}

impl std::fmt::Debug for Trust {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Trust").field("authorities", &self.authorities.entry_count()).finish_non_exhaustive()
    }
}

impl Trust {
    /// The verifier with the system's authorities. Reads files the first time.
    pub fn system(&self) -> Result<Arc<dyn ServerCertVerifier>, TrustError> {
        self.system.get_or_init(|| self.read_system()).clone()
    }

    #[cfg(test)]
    pub(super) fn authorities_kept(&self) -> u64 {
        self.authorities.run_pending_tasks();
        self.authorities.entry_count()
    }

    fn read_system(&self) -> Result<Arc<dyn ServerCertVerifier>, TrustError> {
        let found = rustls_native_certs::load_native_certs();
        let mut roots = RootCertStore::empty();
        let (good, _) = roots.add_parsable_certificates(found.certs);
        if good == 0 {
            return Err(TrustError::NoAuthority(found.errors.into_iter().next().map(Arc::new)));
        }
        Ok(self.verifier(roots)?)
    }

    fn verifier(&self, roots: RootCertStore) -> Result<Arc<dyn ServerCertVerifier>, VerifierBuilderError> {
        let builder = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), self.provider.clone());
        Ok(builder.build()?)
    }

    /// The verifier with these authorities (PEM).
    pub(crate) fn authority(&self, pem: &[u8]) -> Result<Arc<dyn ServerCertVerifier>, TrustError> {
        let key: [u8; 32] = Sha256::digest(pem).into();
        if let Some(verifier) = self.authorities.get(&key) {
            return Ok(verifier);
        }
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(pem) {
            roots.add(certificate.map_err(|error| TrustError::Pem(Arc::new(error)))?)?;
        }
        let verifier = self.verifier(roots)?;
        self.authorities.insert(key, verifier.clone());
        Ok(verifier)
    }

    /// Digest as in [`ServerCertificate::authority_key_digest`]. The system's authorities sign for everyone, so they do
    /// not identify a cluster.
    fn authority_key_digest(&self, cluster: &ClusterEndpoint, stream: &TlsStream<TcpStream>) -> String {
        let pem = cluster.certificate_authority.as_deref().filter(|_| !cluster.insecure);
        let chain = stream.get_ref().1.peer_certificates();
        pem.zip(chain).and_then(|(pem, chain)| self.leads_to(chain, pem)).unwrap_or_default()
    }

    fn leads_to(&self, chain: &[CertificateDer<'_>], pem: &[u8]) -> Option<String> {
        let (leaf, intermediates) = chain.split_first()?;
        let roots: Vec<_> = CertificateDer::pem_slice_iter(pem).filter_map(Result::ok).collect();
        let anchors: Vec<_> =
            roots.iter().filter_map(|root| webpki::anchor_from_trusted_cert(root).ok()).collect();
        let leaf = webpki::EndEntityCert::try_from(leaf).ok()?;
        let algorithms = self.provider.signature_verification_algorithms.all;
        let usage = webpki::KeyUsage::server_auth();
        let path =
            leaf.verify_for_usage(algorithms, &anchors, intermediates, UnixTime::now(), usage, None, None);
        Some(spki_digest(path.ok()?.anchor()))
    }

    /// The TLS configuration for a cluster, which offers these protocols.
    pub(super) async fn client_config(
        &self,
        cluster: &ClusterEndpoint,
        protocols: &[&[u8]],
    ) -> Result<ClientConfig, ClusterError> {
        let verifier = self.verifier_of(cluster).await?;
        let builder = ClientConfig::builder_with_provider(self.provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(ClusterError::TlsSetup)?
            .dangerous()
            .with_custom_certificate_verifier(verifier);
        let mut config = match &cluster.authentication {
            Some(
                Authentication::ClientCertificate { certificate, key }
                | Authentication::TokenAndClientCertificate { certificate, key, .. },
            ) => {
                let bad = |what: &str| ClusterError::Kubeconfig(format!("{what} cannot be used"));
                let chain: Vec<_> = CertificateDer::pem_slice_iter(certificate)
                    .collect::<Result<_, _>>()
                    .map_err(|_| bad("client-certificate-data"))?;
                let key =
                    PrivateKeyDer::from_pem_slice(key.expose_secret()).map_err(|_| bad("client-key-data"))?;
                builder
                    .with_client_auth_cert(chain, key)
                    .map_err(|_| bad("client-certificate-data with client-key-data"))?
            }
            Some(Authentication::Token(_)) | None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        // Connections are rare.
        config.resumption = Resumption::disabled();
        Ok(config)
    }

    async fn verifier_of(
        &self,
        cluster: &ClusterEndpoint,
    ) -> Result<Arc<dyn ServerCertVerifier>, ClusterError> {
        if cluster.insecure {
            return Ok(Arc::new(TrustsAll(self.provider.clone())));
        }
        match &cluster.certificate_authority {
            Some(pem) => self.authority(pem).map_err(ClusterError::Authority),
            None => system_verifier(self.clone()).await.map_err(ClusterError::SystemAuthorities),
        }
    }
}

/// What is known of a server by its certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerCertificate {
    /// SHA-256 of the certificate in DER: upper-case hexadecimal pairs, joined by colons.
    pub fingerprint: String,
    /// SHA-256 of the public key of the cluster's own authority that verified the server, in hexadecimal. Empty if the
    /// system's authorities verified it, or nothing did.
    pub authority_key_digest: String,
}

/// The certificate that a server has shown.
pub(super) fn server_certificate(
    trust: &Trust,
    cluster: &ClusterEndpoint,
    stream: &TlsStream<TcpStream>,
) -> ServerCertificate {
    ServerCertificate {
        fingerprint: fingerprint(stream),
        authority_key_digest: trust.authority_key_digest(cluster, stream),
    }
}

/// SHA-256 of a SubjectPublicKeyInfo in DER. The trust anchor has only its content, so the header is added.
fn spki_digest(anchor: &TrustAnchor<'_>) -> String {
    let content = anchor.subject_public_key_info.as_ref();
    let length = content.len().to_be_bytes();
    let length = &length[content.len().leading_zeros() as usize / 8..];
    let mut digest = Sha256::new();
    digest.update([0x30]);
    match (length, u8::try_from(length.len())) {
        ([short @ 0..0x80], _) => digest.update([*short]),
        (long, octets) => {
            digest.update([0x80 | octets.unwrap_or_default()]);
            digest.update(long);
        }
    }
    digest.update(content);
    hex::encode(digest.finalize())
}

/// SHA-256 of the server certificate in DER: upper-case hexadecimal pairs, joined by colons.
fn fingerprint(stream: &TlsStream<TcpStream>) -> String {
    let (_, connection) = stream.get_ref();
    let Some(leaf) = connection.peer_certificates().and_then(<[_]>::first) else { return String::new() };
    let pairs: Vec<_> = Sha256::digest(leaf).iter().map(|byte| format!("{byte:02X}")).collect();
    pairs.join(":")
}

/// Trusts every certificate, for accounts that ask for it. The server's certificate is recorded all the same.
#[derive(Debug)]
struct TrustsAll(Arc<CryptoProvider>);

impl ServerCertVerifier for TrustsAll {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, TlsError> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
