//! What the demo's programs are started with, and its accounts.

use std::path::Path;

use super::{POLL, REMOVAL_WAIT};

/// The operator's ports on 127.0.0.1.
#[derive(Clone, Copy)]
pub(crate) struct Ports {
    pub(crate) rest: u16,
    pub(crate) hub: u16,
    pub(crate) gateway: u16,
}

/// What the operator reads of Clouddriver's accounts.
pub(crate) struct Sources<'a> {
    /// URL of the database, with a user who may only read its table of accounts.
    pub(crate) database: &'a str,
    /// File with that user's password.
    pub(crate) password: &'a Path,
    /// Clouddriver's YAML file.
    pub(crate) accounts: &'a Path,
}

/// The settings of the operator. `files` are Clouddriver's token and the authority of the gateway, in its pod.
pub(crate) fn operator_settings(
    ports: Ports,
    clouddriver: &str,
    files: (&Path, &Path),
    sources: &Sources<'_>,
    database: &Path,
) -> String {
    let Ports { rest, hub, gateway } = ports;
    format!(
        "server: {{address: 127.0.0.1, port: {rest}}}
kubesvc:
  grpc: {{server: {{address: 127.0.0.1, port: {hub}}}}}
  gateway: {{enabled: true, server: {{address: 127.0.0.1, port: {gateway}}}}}
  database: {{url: 'sqlite://{}'}}
  credentials: {{poller: {{reloadFrequencyMs: {}}}}}
  clouddriver:
    baseUrl: {clouddriver}
    sources:
      - {{name: sql, type: sql, url: '{}', passwordFile: {}}}
      - {{name: yaml, type: file, paths: [{}]}}
    push:
      enabled: true
      gateway: https://localhost:{gateway}
      tokenFile: {}
      caFile: {}
      # Shorter than usual, so that nobody has to wait.
      pollSeconds: {}
      resyncSeconds: 5
      removalWaitSeconds: {}
",
        database.display(),
        POLL.as_millis(),
        sources.database,
        sources.password.display(),
        sources.accounts.display(),
        files.0.display(),
        files.1.display(),
        POLL.as_secs(),
        REMOVAL_WAIT.as_secs(),
    )
}

/// The settings of the agent.
pub(crate) fn agent_settings(hub: u16, health: u16) -> String {
    format!(
        "clouddriver: {{grpc: '127.0.0.1:{hub}', insecure: true}}\n\
         server: {{host: 127.0.0.1, port: {health}}}\nzoneId: east\n"
    )
}

/// An account for a namespace of the same name, and its Secret.
pub(crate) fn account(name: &str, kubeconfig: &str) -> String {
    let indented: String = kubeconfig.lines().map(|line| format!("    {line}\n")).collect();
    format!(
        "apiVersion: v1\nkind: Secret\nmetadata: {{name: {name}}}\nstringData:\n  kubeconfig: |\n{indented}---\n\
         apiVersion: kubesvc.io/v1alpha1\nkind: KubesvcAccount\nmetadata: {{name: {name}}}\n\
         spec:\n  zoneId: east\n  namespaces: [{name}]\n  kubeconfig: {{secretRef: {{name: {name}}}}}\n"
    )
}

/// Clouddriver's YAML file: an account that its table has too, and one that only Clouddriver can use.
pub(crate) const FILE_ACCOUNTS: &str = "kubernetes:
  accounts:
    - {name: account-000, kubeconfigFile: /home/spinnaker/.kube/account-000}
    - {name: own-cluster, serviceAccount: true}
";

/// A migration of all accounts of Clouddriver's table, as Git would hold it.
pub(crate) fn migration(name: &str) -> String {
    format!(
        "apiVersion: kubesvc.io/v1alpha1\nkind: KubesvcMigration\nmetadata: {{name: {name}}}\nspec:\n  \
         patterns: [account-.*]\n  zoneRules: [{{pattern: .*, zoneId: east}}]\n  wave: {{size: 25%, soak: 2s}}\n"
    )
}
