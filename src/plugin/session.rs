//! The client of the user's API server, configured by their kubeconfig.

use std::time::Duration;

use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Api, Client, Config, Resource};

use super::arguments::ScopeArguments;
use super::failure::{ApiRequest, CommandError, did_you_mean};
use crate::telemetry::errors::chain;

/// Time limit for one request, retries included.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);
/// Default number of objects in one page of a list.
pub(super) const DEFAULT_PAGE_SIZE: u32 = 500;
/// Time limit for establishing a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A client and the scope of a command.
#[derive(Clone)]
pub(super) struct ApiSession {
    pub(super) client: Client,
    /// URL of the API server.
    pub(super) server: String,
    /// Namespace of `--namespace`, else of the context.
    pub(super) namespace: String,
    /// Whether the scope is all namespaces.
    pub(super) all_namespaces: bool,
    /// Number of objects per page of a list; 0 requests all at once.
    pub(super) page: u32,
}

impl ApiSession {
    /// Reads the kubeconfig and creates a client. Sends no request.
    pub(super) async fn open(place: &ScopeArguments) -> Result<Self, CommandError> {
        // Fails only if a provider is already installed, which is fine.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut config = config(place).await?;
        config.connect_timeout = Some(CONNECT_TIMEOUT);
        let server = config.cluster_url.to_string().trim_end_matches('/').to_owned();
        let namespace = place.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        let client = Client::try_from(config).map_err(|error| format!("{server}: {}", chain(&error)))?;
        Ok(Self { client, server, namespace, all_namespaces: place.all_namespaces, page: DEFAULT_PAGE_SIZE })
    }

    /// Namespace of the scope; `None` means all.
    pub(super) fn scope(&self) -> Option<&str> {
        (!self.all_namespaces).then_some(self.namespace.as_str())
    }

    /// `namespace X`, or `all namespaces`.
    pub(super) fn place(&self) -> String {
        self.scope().map_or_else(|| "all namespaces".to_owned(), |namespace| format!("namespace {namespace}"))
    }

    /// Returns the API of a namespaced resource.
    pub(super) fn api<K>(&self, namespace: &str) -> Api<K>
    where
        K: Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType: Default>,
    {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// Sends a request and waits for the answer, at most [`REQUEST_TIMEOUT`].
    pub(super) async fn ask<T>(
        &self,
        asked: ApiRequest<'_>,
        request: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, CommandError> {
        match self.try_ask(request).await? {
            Ok(answer) => Ok(answer),
            Err(error) => Err(CommandError::Failed(asked.explain(&self.server, &error))),
        }
    }

    /// Like [`ApiSession::ask`], but returns the API server's errors to the caller.
    pub(super) async fn try_ask<T>(
        &self,
        request: impl Future<Output = kube::Result<T>>,
    ) -> Result<kube::Result<T>, CommandError> {
        tokio::time::timeout(REQUEST_TIMEOUT, request).await.map_err(|_| {
            CommandError::Failed(format!(
                "{} does not answer within {} s; is the cluster up, and the right --context chosen?",
                self.server,
                REQUEST_TIMEOUT.as_secs()
            ))
        })
    }
}

async fn config(place: &ScopeArguments) -> Result<Config, CommandError> {
    let options = KubeConfigOptions { context: place.context.clone(), ..KubeConfigOptions::default() };
    let (kubeconfig, whence) = match &place.kubeconfig {
        Some(path) => (Kubeconfig::read_from(path), format!("--kubeconfig {}", path.display())),
        None => (Kubeconfig::read(), "the kubeconfig".to_owned()),
    };
    let kubeconfig = match kubeconfig {
        Ok(kubeconfig) => kubeconfig,
        Err(error) if place.kubeconfig.is_none() && is_absent(&error) => return in_cluster(place, &error),
        Err(error) => return Err(CommandError::Failed(format!("{whence}: {}", chain(&error)))),
    };
    let contexts: Vec<_> = kubeconfig.contexts.iter().map(|context| context.name.clone()).collect();
    Config::from_custom_kubeconfig(kubeconfig, &options).await.map_err(|error| {
        CommandError::Failed(match error {
            KubeconfigError::LoadContext(name) => format!(
                "{whence} has no context {name:?}{}",
                did_you_mean(&name, contexts.iter().map(String::as_str))
            ),
            KubeconfigError::CurrentContextNotSet => format!(
                "{whence} has no current-context; choose one: kubectl config use-context NAME, or --context NAME"
            ),
            error => format!("{whence}: {}", chain(&error)),
        })
    })
}

fn is_absent(error: &KubeconfigError) -> bool {
    match error {
        KubeconfigError::ReadConfig(error, _) => error.kind() == std::io::ErrorKind::NotFound,
        KubeconfigError::FindPath => true,
        _ => false,
    }
}

/// Without a kubeconfig, uses the pod's service account, as kubectl does.
fn in_cluster(place: &ScopeArguments, error: &KubeconfigError) -> Result<Config, CommandError> {
    if place.context.is_none()
        && let Ok(config) = Config::incluster()
    {
        return Ok(config);
    }
    Err(CommandError::Failed(format!(
        "no cluster: {}; give --kubeconfig FILE, or set KUBECONFIG",
        chain(error)
    )))
}
