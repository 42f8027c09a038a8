//! Kubeconfigs as text.

use base64::{Engine, engine::general_purpose::STANDARD};

use super::pki::Identity;

/// Credential of a user.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Proof<'a> {
    /// A bearer token.
    Token(&'a str),
    /// A client certificate.
    Certificate(&'a Identity),
    /// No credential: the user is `system:anonymous`.
    None,
}

/// Returns a kubeconfig with one cluster, one user and one context, each named `kubesvc`, and all data inline.
pub(crate) fn yaml(server: &str, authority: &str, proof: Proof<'_>) -> String {
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
