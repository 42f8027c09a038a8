//! TLS of the listener, and the certificates that callers show.

use std::sync::Arc;

use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DistinguishedName, ServerConfig};

use crate::certificates::verify_signatures_by;
use kubesvc_runtime::tls::identity::ServingCertificate;

/// Name of HTTP/2 in the handshake.
pub(super) const HTTP2: &[u8] = b"h2";

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
