//! The composition root of `kubesvc-operator`: the only place that assembles its parts.

mod agent_identities;
mod cache_sweeps;
mod caching_adapter;
mod certificate_metrics;
mod check;
mod cli;
mod gateway;
mod hub_tls;
mod kube_client;
mod lead;
mod part_settings;
mod program_settings;
mod readiness;
mod replicas;
mod rest_tls;
mod run;
mod run_arguments;
mod security_warnings;
pub mod settings;
mod startup;
mod state_metrics;
mod tls_files;

use std::io;
use std::path::PathBuf;

use kube::config::{InClusterError, KubeconfigError};

use crate::agent_tokens::BearerSetupError;
use crate::clouddriver::ClientError;
use crate::hub::HubError;
use crate::peers::JoinPeersError;
use kubesvc_clouddriver::migration::SelectionError;
use kubesvc_runtime::kube_access::KubeError;
use kubesvc_runtime::proxy::ProxyError;
use kubesvc_runtime::telemetry::errors::chain;
use kubesvc_runtime::tls::TlsFilesError;
use kubesvc_store::StoreError;

pub use cli::main;
pub use program_settings::program_settings;

/// Why the operator cannot start, or ended by itself: what is missing, and what to do. A cause in the middle of a text
/// is no source, since its text would stand there twice.
#[derive(Debug, thiserror::Error)]
enum OperatorError {
    #[error("signals cannot be caught")]
    Signals(#[source] io::Error),
    /// The file of `--kubeconfig` cannot be used.
    #[error("--kubeconfig {}", .path.display())]
    KubeconfigFlag { path: PathBuf, source: KubeconfigError },
    /// The file of the variable `KUBECONFIG` cannot be used.
    #[error("KUBECONFIG")]
    KubeconfigVariable(#[source] KubeconfigError),
    #[error("proxy")]
    Proxy(#[source] ProxyError),
    /// No kubeconfig is given, and the process runs in no pod.
    #[error("no API server: this is no pod ({}); give --kubeconfig FILE or set KUBECONFIG", chain(.0))]
    NoApiServer(InClusterError),
    #[error("no client for {server}")]
    Client { server: String, source: kube::Error },
    #[error(
        "the API server {server} does not know {plural}.kubesvc.io; install the definitions: kubesvc-operator crds | kubectl apply -f -"
    )]
    NoDefinitions { server: String, plural: String },
    #[error(
        "the operator may not {verb} {resource} in {scope}; apply config/rbac, or give it a kubeconfig that may ({why})"
    )]
    Forbidden { verb: &'static str, resource: String, scope: String, why: String },
    #[error("namespace {0} does not exist; create it, or give --namespace")]
    NoNamespace(String),
    /// The API server does not answer, or refuses otherwise.
    #[error("the API server {server} cannot be used")]
    ApiServer { server: String, source: KubeError },
    #[error("kubesvc.cluster-kubernetes.kubeconfigFile {}", .path.display())]
    PeersKubeconfig { path: PathBuf, source: KubeconfigError },
    #[error(transparent)]
    JoinPeers(#[from] JoinPeersError),
    #[error(
        "cannot listen on {address}:{port} ({settings}): {cause}; choose another port, or stop the process that uses it"
    )]
    Listen { address: String, port: u16, settings: &'static str, cause: io::Error },
    #[error("the API of accounts cannot be served over TLS")]
    Tls(#[source] rustls::Error),
    #[error(transparent)]
    Listener(io::Error),
    /// Files of the settings cannot be used.
    #[error("`{setting}` cannot be honoured")]
    TlsFiles { setting: String, source: Box<TlsFilesError> },
    /// A file that says whose tokens are accepted cannot be used.
    #[error(transparent)]
    AgentTokens(#[from] BearerSetupError),
    /// The file for audit lines cannot be used.
    #[error("`kubesvc.audit.output` cannot be honoured: {}", path.display())]
    AuditOutput { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Hub(#[from] HubError),
    /// URL, login, schema or tables of the database are wrong. Waiting does not help there.
    #[error(transparent)]
    Database(#[from] StoreError),
    #[error("kubesvc.clouddriver.baseUrl is no URL")]
    ClouddriverUrl(#[source] url::ParseError),
    #[error(transparent)]
    Clouddriver(#[from] ClientError),
    #[error(transparent)]
    Patterns(#[from] SelectionError),
    #[error("an essential task ended: {0}")]
    TaskEnded(String),
}

impl OperatorError {
    /// Whether the settings are wrong, and nothing else.
    fn is_about_settings(&self) -> bool {
        matches!(self, Self::TlsFiles { .. } | Self::AgentTokens(_) | Self::AuditOutput { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_the_start_names_its_cause_once_and_what_to_do() {
        let cause = || io::Error::from(io::ErrorKind::AddrInUse);
        let address = "127.0.0.1".to_owned();
        let settings = "server.address, server.port";
        assert_eq!(
            chain(&OperatorError::Listen { address, port: 7002, settings, cause: cause() }),
            "cannot listen on 127.0.0.1:7002 (server.address, server.port): address in use; choose another port, or stop \
             the process that uses it"
        );
        assert_eq!(chain(&OperatorError::Signals(cause())), "signals cannot be caught: address in use");
        assert_eq!(chain(&OperatorError::Listener(cause())), "address in use");
        let store = StoreError::Refused { what: "table t".to_owned(), source: std::sync::Arc::new(cause()) };
        assert_eq!(chain(&OperatorError::Database(store)), "the database refuses table t: address in use");
        let (path, source) = (PathBuf::from("/k"), KubeconfigError::FindPath);
        let why = chain(&source);
        assert_eq!(chain(&OperatorError::KubeconfigFlag { path, source }), format!("--kubeconfig /k: {why}"));
    }
}
