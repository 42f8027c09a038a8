//! TLS of the listener: its certificate, which may change, and the certificates that callers show.

use std::fmt;
use std::sync::Arc;

use parking_lot::RwLock;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{DistinguishedName, ServerConfig};

use crate::certificates::verify_signatures_by;

/// Name of HTTP/2 in the handshake.
pub(super) const HTTP2: &[u8] = b"h2";

/// The certificate in use; none at first, so that handshakes fail until there is one.
#[derive(Default)]
pub struct ServingCertificate(RwLock<Option<Arc<CertifiedKey>>>);

impl fmt::Debug for ServingCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ServerCertificate")
    }
}

impl ServingCertificate {
    /// Uses a certificate from now on. Returns whether it is another one.
    pub fn set(&self, certificate: CertifiedKey) -> bool {
        let mut current = self.0.write();
        let is_same = current.as_ref().is_some_and(|current| current.cert == certificate.cert);
        if !is_same {
            *current = Some(Arc::new(certificate));
        }
        !is_same
    }
}

impl ResolvesServerCert for ServingCertificate {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.read().clone()
    }
}

/// TLS with this certificate, for HTTP/2 and HTTP/1.1. A caller may show a certificate; whose it is, is judged later.
pub(super) fn server_config(certificate: Arc<ServingCertificate>) -> Result<ServerConfig, rustls::Error> {
    let provider = Arc::new(ring::default_provider());
    let verifier = Arc::new(AnyCertificate(Arc::clone(&provider)));
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(certificate);
    config.alpn_protocols = vec![HTTP2.to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

/// Takes any certificate whose private key the caller has. The authority of the front proxy may change while the process
/// runs, and a direct caller may show one that is for somebody else.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ClientCertVerifier for AnyCertificate {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _own: &CertificateDer<'_>,
        _others: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    verify_signatures_by!(0);
}
