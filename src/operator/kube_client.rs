//! Finds the operator's own API server and checks that it has what kubesvc needs.

use kube::api::ListParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};

use super::arguments::RunArguments;
use crate::account::{KubesvcAccount, KubesvcAgent};
use crate::telemetry::errors::chain;

/// Installs one TLS crypto provider for the whole program.
pub(super) fn install_crypto() {
    // An error means that a provider is already installed, which is fine.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// The client's configuration: `--kubeconfig`, then `KUBECONFIG`, then the pod's service account. The client's own
/// retries are off: kubesvc decides what is retried.
pub(super) async fn config(arguments: &RunArguments) -> Result<Config, String> {
    let options = KubeConfigOptions { context: arguments.context.clone(), ..KubeConfigOptions::default() };
    let mut config = if let Some(path) = &arguments.kubeconfig {
        let kubeconfig = Kubeconfig::read_from(path)
            .map_err(|error| format!("--kubeconfig {}: {}", path.display(), chain(&error)))?;
        Config::from_custom_kubeconfig(kubeconfig, &options)
            .await
            .map_err(|error| format!("--kubeconfig {}: {}", path.display(), chain(&error)))?
    } else if std::env::var_os("KUBECONFIG").is_some() {
        Config::from_kubeconfig(&options).await.map_err(|error| format!("KUBECONFIG: {}", chain(&error)))?
    } else {
        Config::incluster().map_err(|error| {
            format!(
                "no API server: this is no pod ({}); give --kubeconfig FILE or set KUBECONFIG",
                chain(&error)
            )
        })?
    };
    config.default_retry = false;
    Ok(config)
}

/// Checks that both kinds of objects exist and can be read.
pub(super) async fn check(
    client: &Client,
    server: &str,
    namespaces: &[Option<String>],
) -> Result<(), String> {
    for namespace in namespaces {
        let accounts: Api<KubesvcAccount> = match namespace {
            Some(namespace) => Api::namespaced(client.clone(), namespace),
            None => Api::all(client.clone()),
        };
        explain(
            accounts.list(&ListParams::default().limit(1)).await.map(drop),
            server,
            "kubesvcaccounts",
            namespace.as_deref(),
        )?;
    }
    let agents: Api<KubesvcAgent> = Api::default_namespaced(client.clone());
    explain(agents.list(&ListParams::default().limit(1)).await.map(drop), server, "kubesvcagents", None)
}

fn explain(
    answer: kube::Result<()>,
    server: &str,
    plural: &str,
    namespace: Option<&str>,
) -> Result<(), String> {
    let location =
        namespace.map_or_else(|| "all namespaces".to_owned(), |namespace| format!("namespace {namespace}"));
    match answer {
        Ok(()) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 => Err(format!(
            "the API server {server} does not know {plural}.kubesvc.io; install the definitions: kubesvc-operator crds | kubectl apply -f -"
        )),
        Err(kube::Error::Api(status)) if status.code == 403 || status.code == 401 => Err(format!(
            "the operator may not list {plural}.kubesvc.io in {location}; apply config/rbac, or give it a kubeconfig that may ({})",
            status.message
        )),
        Err(error) => Err(format!("the API server {server} cannot be used: {}", chain(&error))),
    }
}
