//! Kubeconfigs as text, and the certificates behind them: a control plane's own authority, its server certificate, and
//! user certificates.

use base64::{Engine, engine::general_purpose::STANDARD};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};
use serde_json::{Value, json};

/// Credential of a user.
#[derive(Debug, Clone, Copy)]
pub enum Proof<'a> {
    /// A bearer token.
    Token(&'a str),
    /// A client certificate.
    Certificate(&'a Identity),
    /// No credential: the user is `system:anonymous`.
    None,
}

/// Returns a kubeconfig with a context for each name, which has the first cluster and the first user of its kubeconfig. The
/// first one is the current one.
///
/// # Errors
///
/// A kubeconfig is no YAML.
pub fn with_contexts(named: &[(&str, &str)]) -> Result<String, String> {
    let (mut clusters, mut users, mut contexts) = (Vec::new(), Vec::new(), Vec::new());
    for (name, kubeconfig) in named {
        let one: Value = serde_saphyr::from_str(kubeconfig).map_err(|e| format!("{name}: {e}"))?;
        clusters.push(json!({"name": name, "cluster": one["clusters"][0]["cluster"]}));
        users.push(json!({"name": name, "user": one["users"][0]["user"]}));
        contexts.push(json!({"name": name, "context": {"cluster": name, "user": name}}));
    }
    let current = named.first().map(|(name, _)| name);
    let kubeconfig = json!({
        "apiVersion": "v1", "kind": "Config", "clusters": clusters, "users": users, "contexts": contexts,
        "current-context": current,
    });
    Ok(kubeconfig.to_string())
}

/// Returns a kubeconfig with one cluster, one user and one context, each named `kubesvc`, and all data inline.
pub fn yaml(server: &str, authority: &str, proof: Proof<'_>) -> String {
    let user = match proof {
        Proof::Token(token) => format!("{{token: {token:?}}}"),
        Proof::Certificate(identity) => format!(
            "{{client-certificate-data: {}, client-key-data: {}}}",
            STANDARD.encode(&identity.certificate),
            STANDARD.encode(&identity.key)
        ),
        Proof::None => "{}".into(),
    };
    format!(
        "apiVersion: v1
kind: Config
clusters:
- name: kubesvc
  cluster:
    server: {server}
    certificate-authority-data: {authority}
users:
- name: kubesvc
  user: {user}
contexts:
- name: kubesvc
  context: {{cluster: kubesvc, user: kubesvc, namespace: default}}
current-context: kubesvc
",
        authority = STANDARD.encode(authority),
    )
}

/// A certificate and its key, both as PEM.
#[derive(Debug, Clone)]
pub struct Identity {
    /// The certificate.
    pub certificate: String,
    /// The private key.
    pub key: String,
}

/// A certificate authority.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

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
    pub fn new(name: &str) -> Result<Self, String> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        Ok(Self(CertifiedIssuer::self_signed(params, key()?).map_err(problem)?))
    }

    /// Returns the authority's certificate as PEM.
    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// Issues a server certificate for these names and addresses.
    ///
    /// # Errors
    ///
    /// A name is not valid in a certificate.
    pub fn server(&self, names: &[&str]) -> Result<Identity, String> {
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
    pub fn client(&self, name: &str, group: Option<&str>) -> Result<Identity, String> {
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
pub fn signing_keys() -> Result<(String, String), String> {
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
