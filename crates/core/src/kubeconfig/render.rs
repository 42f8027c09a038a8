//! Renders the extract that may be sent.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use secrecy::zeroize::Zeroizing;
use secrecy::{ExposeSecret, SecretSlice};

use crate::kubeconfig::{Authentication, VettedKubeconfig};

/// The names of the only cluster and the only user. The context keeps its name, which people know.
const CLUSTER: &str = "cluster";
const USER: &str = "user";

/// Renders a kubeconfig with one cluster, one user and one context. Vetting it returns `vetted` again, and equal
/// values always render to equal bytes.
pub fn render(vetted: &VettedKubeconfig) -> SecretSlice<u8> {
    // A copy of the exact size, so that boxing it leaves no other copy behind.
    SecretSlice::from(rendered(vetted).to_vec())
}

pub(super) fn rendered(vetted: &VettedKubeconfig) -> Zeroizing<Vec<u8>> {
    let mut lines = KubeconfigWriter(Zeroizing::new(Vec::with_capacity(room(vetted))));
    lines.put("apiVersion: v1\nkind: Config\n");
    lines.put(&format!("clusters:\n- name: {CLUSTER}\n  cluster:\n"));
    lines.text("    server", vetted.server.as_str());
    if let Some(pem) = &vetted.certificate_authority {
        lines.data("    certificate-authority-data", pem);
    }
    if vetted.insecure_skip_tls_verify {
        lines.put("    insecure-skip-tls-verify: true\n");
    }
    if let Some(name) = &vetted.tls_server_name {
        lines.text("    tls-server-name", name);
    }
    lines.put(&format!("users:\n- name: {USER}\n  user:\n"));
    match &vetted.authentication {
        Authentication::Token(token) => lines.text("    token", token.expose_secret()),
        Authentication::ClientCertificate { certificate, key } => {
            lines.data("    client-certificate-data", certificate);
            lines.data("    client-key-data", key.expose_secret());
        }
        Authentication::TokenAndClientCertificate { token, certificate, key } => {
            lines.data("    client-certificate-data", certificate);
            lines.data("    client-key-data", key.expose_secret());
            lines.text("    token", token.expose_secret());
        }
    }
    lines.put("contexts:\n");
    lines.text("- name", &vetted.context);
    lines.put(&format!("  context:\n    cluster: {CLUSTER}\n    user: {USER}\n"));
    if let Some(namespace) = &vetted.namespace {
        lines.text("    namespace", namespace);
    }
    lines.text("current-context", &vetted.context);
    lines.0
}

/// A sufficient capacity, since growing would leave copies of secrets behind.
fn room(vetted: &VettedKubeconfig) -> usize {
    let secrets = match &vetted.authentication {
        Authentication::Token(token) => token.expose_secret().len(),
        Authentication::ClientCertificate { certificate, key } => {
            certificate.len() + key.expose_secret().len()
        }
        Authentication::TokenAndClientCertificate { token, certificate, key } => {
            token.expose_secret().len() + certificate.len() + key.expose_secret().len()
        }
    };
    let authority = vetted.certificate_authority.as_ref().map_or(0, Vec::len);
    4096 + vetted.server.as_str().len() + 4 * (secrets + authority + 2 * vetted.context.len())
}

struct KubeconfigWriter(Zeroizing<Vec<u8>>);

impl KubeconfigWriter {
    fn put(&mut self, text: &str) {
        self.0.extend_from_slice(text.as_bytes());
    }

    /// Writes a text in double quotes. Everything except visible ASCII is escaped, so nothing in the text has a
    /// meaning in YAML.
    fn text(&mut self, key: &str, text: &str) {
        self.put(key);
        self.put(": \"");
        for character in text.chars() {
            match character {
                '"' => self.put("\\\""),
                '\\' => self.put("\\\\"),
                ' '..='~' => self.0.push(character as u8),
                '\u{0}'..='\u{ffff}' => self.put(&format!("\\u{:04x}", u32::from(character))),
                _ => self.put(&format!("\\U{:08x}", u32::from(character))),
            }
        }
        self.put("\"\n");
    }

    fn data(&mut self, key: &str, bytes: &[u8]) {
        let encoded = Zeroizing::new(STANDARD.encode(bytes));
        self.put(key);
        self.put(": ");
        self.put(&encoded);
        self.put("\n");
    }
}
