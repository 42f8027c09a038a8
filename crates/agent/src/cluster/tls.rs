//! Trusted certificate authorities, and the certificate of a server.

use std::sync::{Arc, OnceLock};

use moka::sync::Cache;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, VerifierBuilderError, WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, TrustAnchor, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error as TlsError, RootCertStore, SignatureScheme,
};
use secrecy::ExposeSecret;
use sha2::{Digest, Sha256};
use tokio::net::TcpStream;
use tokio::task::JoinError;
use tokio_rustls::client::TlsStream;

use crate::cluster::{ClusterEndpoint, ClusterError};
use kubesvc_core::kubeconfig::{Authentication, may_serve, unusable_key};
use kubesvc_runtime::tls::completed;

/// Maximum number of cached verifiers.
const MAX_CACHED_AUTHORITIES: u64 = 256;

/// Why certificates of servers cannot be verified.
#[derive(Clone, Debug, thiserror::Error)]
pub enum TrustError {
    /// The machine has no certificate authorities, or they cannot be read.
    #[error("the agent's machine trusts no certificate authority (ca-certificates)")]
    NoAuthority(#[source] Option<Arc<rustls_native_certs::Error>>),
    #[error(transparent)]
    Pem(Arc<pem::Error>),
    #[error(transparent)]
    Authority(#[from] TlsError),
    #[error(transparent)]
    Verifier(#[from] VerifierBuilderError),
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

    fn verifier(&self, roots: RootCertStore) -> Result<Arc<WebPkiServerVerifier>, VerifierBuilderError> {
        WebPkiServerVerifier::builder_with_provider(Arc::new(roots), self.provider.clone()).build()
    }

    /// The verifier with these authorities (PEM).
    pub(crate) fn authority(&self, pem: &[u8]) -> Result<Arc<dyn ServerCertVerifier>, TrustError> {
        let key: [u8; 32] = Sha256::digest(pem).into();
        if let Some(verifier) = self.authorities.get(&key) {
            return Ok(verifier);
        }
        let anchors = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
        let anchors = anchors.map_err(|error| TrustError::Pem(Arc::new(error)))?;
        let mut roots = RootCertStore::empty();
        // As in Go, one that cannot be read takes nothing from the others.
        let problems =
            anchors.iter().filter_map(|anchor| roots.add(anchor.clone()).err()).collect::<Vec<_>>();
        if let Some(problem) = problems.into_iter().next().filter(|_| roots.is_empty()) {
            return Err(TrustError::Authority(problem));
        }
        let paths = AnchorPaths { paths: self.verifier(roots)?, anchors };
        let verifier: Arc<dyn ServerCertVerifier> =
            Arc::new(AnchorVerifier(Some(paths), self.provider.clone()));
        self.authorities.insert(key, verifier.clone());
        Ok(verifier)
    }

    /// The verifier that accepts every certificate.
    pub(crate) fn unverified(&self) -> Arc<dyn ServerCertVerifier> {
        Arc::new(AnchorVerifier(None, self.provider.clone()))
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
        if roots.contains(leaf) {
            return webpki::anchor_from_trusted_cert(leaf).ok().as_ref().map(spki_digest);
        }
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
                let bad = |what: &str| ClusterError::Kubeconfig(what.to_owned());
                let chain: Vec<_> = CertificateDer::pem_slice_iter(certificate)
                    .collect::<Result<_, _>>()
                    .map_err(|_| bad("client-certificate-data is no certificate in PEM"))?;
                let key = PrivateKeyDer::from_pem_slice(key.expose_secret())
                    .map_err(|_| bad("client-key-data is no private key in PEM"))?;
                if let Some(problem) = unusable_key(&key) {
                    return Err(bad(&format!("client-key-data {problem}")));
                }
                builder.with_client_auth_cert(chain, completed(key)).map_err(|error| {
                    bad(match error {
                        TlsError::InconsistentKeys(_) => {
                            "client-key-data is not the key of the certificate in client-certificate-data"
                        }
                        TlsError::InvalidCertificate(_) => {
                            "the first certificate of client-certificate-data cannot be read"
                        }
                        _ => "client-key-data is damaged: no key can be read from it",
                    })
                })?
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
            return Ok(self.unverified());
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

/// Verifies a certificate as Go does: by a path to an anchor, and without one if it is an anchor itself, byte for byte
/// ([RFC 5280, 6.1](https://www.rfc-editor.org/rfc/rfc5280#section-6.1)). Its name and dates are checked either way.
#[derive(Debug)]
struct AnchorPaths {
    paths: Arc<WebPkiServerVerifier>,
    anchors: Vec<CertificateDer<'static>>,
}

/// Verifies a server by the anchors of its cluster, or the hub. `None` trusts every certificate, for settings that ask for
/// it; the certificate is recorded all the same.
#[derive(Debug)]
struct AnchorVerifier(Option<AnchorPaths>, Arc<CryptoProvider>);

impl ServerCertVerifier for AnchorVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, TlsError> {
        let Some(AnchorPaths { paths, anchors }) = &self.0 else {
            return Ok(ServerCertVerified::assertion());
        };
        match paths.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            // Dates are checked before the path, and the name after it.
            Err(TlsError::InvalidCertificate(problem))
                if is_about_the_path(&problem) && anchors.contains(end_entity) =>
            {
                // Of an authority it was not looked at.
                if !may_serve(end_entity) {
                    return Err(CertificateError::InvalidPurpose.into());
                }
                verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
                Ok(ServerCertVerified::assertion())
            }
            found => found,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        let Some(AnchorPaths { paths, .. }) = &self.0 else {
            return Ok(HandshakeSignatureValid::assertion());
        };
        paths.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        let Some(AnchorPaths { paths, .. }) = &self.0 else {
            return Ok(HandshakeSignatureValid::assertion());
        };
        paths.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.1.signature_verification_algorithms.supported_schemes()
    }
}

/// Whether what was found says only that no path leads from a certificate to an anchor.
fn is_about_the_path(problem: &CertificateError) -> bool {
    match problem {
        CertificateError::UnknownIssuer
        | CertificateError::BadSignature
        | CertificateError::UnsupportedSignatureAlgorithmContext { .. }
        | CertificateError::UnsupportedSignatureAlgorithmForPublicKeyContext { .. } => true,
        CertificateError::Other(other) => {
            matches!(other.0.downcast_ref::<webpki::Error>(), Some(webpki::Error::CaUsedAsEndEntity))
        }
        _ => false,
    }
}
