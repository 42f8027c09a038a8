//! Certificates of a control plane: its own authority, a server certificate, and user certificates.

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};

/// A certificate and its key, both as PEM.
#[derive(Debug, Clone)]
pub(crate) struct Identity {
    /// The certificate.
    pub(crate) certificate: String,
    /// The private key.
    pub(crate) key: String,
}

/// A certificate authority.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Authority")
    }
}

impl Authority {
    /// Creates an authority.
    ///
    /// # Errors
    ///
    /// The system provides no randomness.
    pub(crate) fn new(name: &str) -> Result<Self, String> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        Ok(Self(CertifiedIssuer::self_signed(params, key()?).map_err(problem)?))
    }

    /// Returns the authority's certificate as PEM.
    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }

    /// Issues a server certificate for these names and addresses.
    ///
    /// # Errors
    ///
    /// A name is not valid in a certificate.
    pub(crate) fn server(&self, names: &[&str]) -> Result<Identity, String> {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let mut params = CertificateParams::new(names).map_err(problem)?;
        params.distinguished_name.push(DnType::CommonName, "kube-apiserver");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.sign(params)
    }

    /// Issues a client certificate for the Kubernetes user `name`, in `group` if given.
    ///
    /// # Errors
    ///
    /// The name is not valid in a certificate.
    pub(crate) fn client(&self, name: &str, group: Option<&str>) -> Result<Identity, String> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        if let Some(group) = group {
            params.distinguished_name.push(DnType::OrganizationName, group);
        }
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(params)
    }

    fn sign(&self, mut params: CertificateParams) -> Result<Identity, String> {
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        let key = key()?;
        let certificate = params.signed_by(&key, &self.0).map_err(problem)?;
        Ok(Identity { certificate: certificate.pem(), key: key.serialize_pem() })
    }
}

/// Creates the key pair with which the API server signs and verifies service account tokens. Returns the private and
/// the public key as PEM.
///
/// # Errors
///
/// The system provides no randomness.
pub(crate) fn signing_keys() -> Result<(String, String), String> {
    let key = key()?;
    Ok((key.serialize_pem(), key.public_key_pem()))
}

fn key() -> Result<KeyPair, String> {
    KeyPair::generate().map_err(problem)
}

#[expect(clippy::needless_pass_by_value, reason = "the shape that map_err asks for")]
fn problem(e: rcgen::Error) -> String {
    format!("certificates: {e}")
}
