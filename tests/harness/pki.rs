//! The certificates of one control plane: an authority of its own, for the server and for users.

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
    /// A new one.
    ///
    /// # Errors
    ///
    /// The system has no randomness.
    pub(crate) fn new(name: &str) -> Result<Self, String> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        Ok(Self(CertifiedIssuer::self_signed(params, key()?).map_err(problem)?))
    }

    /// Its own certificate as PEM.
    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }

    /// A certificate for a server under these names and addresses.
    ///
    /// # Errors
    ///
    /// One of the names cannot be in a certificate.
    pub(crate) fn server(&self, names: &[&str]) -> Result<Identity, String> {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let mut params = CertificateParams::new(names).map_err(problem)?;
        params.distinguished_name.push(DnType::CommonName, "kube-apiserver");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.sign(params)
    }

    /// A certificate with which a Kubernetes client is the user `name`, in `group` if any.
    ///
    /// # Errors
    ///
    /// The name cannot be in a certificate.
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

/// A key pair with which the API server signs service account tokens and checks them: private, public, both as PEM.
///
/// # Errors
///
/// The system has no randomness.
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
