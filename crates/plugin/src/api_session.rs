//! The client of the user's API server, configured by their kubeconfig, and messages about the API server's errors.

use std::time::Duration;

use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec, TokenRequestStatus};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::{ListParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::core::Status;
use kube::{Api, Client, Config, Resource};
use serde::de::DeserializeOwned;

use crate::arguments::{CommandError, ScopeArguments};
use kubesvc_runtime::proxy;
use kubesvc_runtime::telemetry::errors::chain;

/// Time limit for one request, retries included.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);
/// Default number of objects in one page of a list.
pub(super) const DEFAULT_PAGE_SIZE: u32 = 500;
/// Maximum number of attempts at a list whose continue token expires.
const MAX_LIST_ATTEMPTS: u32 = 3;
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
    pub(super) async fn open(scope: &ScopeArguments) -> Result<Self, CommandError> {
        Self::open_with(scope, true).await
    }

    /// As [`ApiSession::open`], for the API of accounts: an error is shown at once, since a 503 of it says what is wrong.
    pub(super) async fn open_without_retries(scope: &ScopeArguments) -> Result<Self, CommandError> {
        Self::open_with(scope, false).await
    }

    async fn open_with(scope: &ScopeArguments, retries: bool) -> Result<Self, CommandError> {
        // Fails only if a provider is already installed, which is fine.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut config = config(scope).await?;
        config.connect_timeout = Some(CONNECT_TIMEOUT);
        config.default_retry = retries;
        let server = config.cluster_url.to_string().trim_end_matches('/').to_owned();
        let namespace = scope.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        let client = proxy::client(config).map_err(|error| format!("{server}: {}", chain(&error)))?;
        Ok(Self { client, server, namespace, all_namespaces: scope.all_namespaces, page: DEFAULT_PAGE_SIZE })
    }

    /// Namespace of the scope; `None` means all.
    pub(super) fn scope(&self) -> Option<&str> {
        (!self.all_namespaces).then_some(self.namespace.as_str())
    }

    /// `namespace X`, or `all namespaces`.
    pub(super) fn scope_name(&self) -> String {
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
        asked: ResourceRequest<'_>,
        request: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, CommandError> {
        self.try_ask(request).await?.map_err(|error| self.failed(asked, &error))
    }

    /// The error of a request that the API server refused or did not get.
    pub(super) fn failed(&self, asked: ResourceRequest<'_>, error: &kube::Error) -> CommandError {
        CommandError::Failed(asked.explain(&self.server, error))
    }

    /// Lists objects page by page. If the continue token expires, because too much has changed since the first page, the
    /// list begins anew. Returns what was read before an error with the error.
    pub(super) async fn pages<K: Clone + DeserializeOwned + std::fmt::Debug>(
        &self,
        api: &Api<K>,
        mut parameters: ListParams,
    ) -> Result<(Vec<K>, Option<kube::Error>), CommandError> {
        parameters.limit = Some(self.page);
        let (mut items, mut attempt) = (Vec::new(), 1);
        loop {
            let page = match self.try_ask(api.list(&parameters)).await? {
                Ok(page) => page,
                Err(kube::Error::Api(status)) if status.code == 410 && attempt < MAX_LIST_ATTEMPTS => {
                    attempt += 1;
                    items.clear();
                    parameters.continue_token = None;
                    continue;
                }
                Err(error) => return Ok((items, Some(error))),
            };
            items.extend(page.items);
            parameters.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
            if parameters.continue_token.is_none() {
                return Ok((items, None));
            }
        }
    }

    /// Has the API server make a token of a service account, of which it may shorten the lifetime. `audiences` are to
    /// accept the token; empty: the API server.
    pub(super) async fn service_account_token(
        &self,
        (namespace, name): (&str, &str),
        lifetime: Duration,
        audiences: Vec<String>,
    ) -> Result<TokenRequestStatus, CommandError> {
        let seconds = i64::try_from(lifetime.as_secs()).unwrap_or(i64::MAX);
        let spec = TokenRequestSpec { audiences, expiration_seconds: Some(seconds), ..Default::default() };
        let request = TokenRequest { spec, ..TokenRequest::default() };
        let resource = "serviceaccounts/token";
        let asked = ResourceRequest { verb: "create", resource, namespace: Some(namespace) };
        let (api, parameters) = (self.api::<ServiceAccount>(namespace), PostParams::default());
        let answer = self.ask(asked, api.create_token_request(name, &parameters, &request)).await?;
        answer.status.ok_or_else(|| CommandError::Failed(format!("{} gave no token", self.server)))
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

/// Reads the kubeconfig, and returns how to call it in a message.
pub(super) fn kubeconfig(scope: &ScopeArguments) -> (Result<Kubeconfig, KubeconfigError>, String) {
    match &scope.kubeconfig {
        Some(path) => (Kubeconfig::read_from(path), format!("--kubeconfig {}", path.display())),
        None => (Kubeconfig::read(), "the kubeconfig".to_owned()),
    }
}

async fn config(scope: &ScopeArguments) -> Result<Config, CommandError> {
    let options = KubeConfigOptions { context: scope.context.clone(), ..KubeConfigOptions::default() };
    let (kubeconfig, whence) = kubeconfig(scope);
    let kubeconfig = match kubeconfig {
        Ok(kubeconfig) => kubeconfig,
        Err(error) if scope.kubeconfig.is_none() && is_absent(&error) => return in_cluster(scope, &error),
        Err(error) => return Err(CommandError::Failed(format!("{whence}: {}", chain(&error)))),
    };
    let contexts: Vec<_> = kubeconfig.contexts.iter().map(|context| context.name.clone()).collect();
    let config = proxy::client_config(kubeconfig, &options).await.map_err(|error| {
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
    })?;
    config.map_err(|error| CommandError::Failed(error.to_string()))
}

/// Whether an error means that there is no kubeconfig at all.
pub(super) fn is_absent(error: &KubeconfigError) -> bool {
    match error {
        KubeconfigError::ReadConfig(error, _) => error.kind() == std::io::ErrorKind::NotFound,
        KubeconfigError::FindPath => true,
        _ => false,
    }
}

/// Without a kubeconfig, uses the pod's service account, as kubectl does.
fn in_cluster(scope: &ScopeArguments, error: &KubeconfigError) -> Result<Config, CommandError> {
    if scope.context.is_none()
        && let Ok(config) = Config::incluster()
    {
        return Ok(config);
    }
    Err(CommandError::Failed(format!(
        "no cluster: {}; give --kubeconfig FILE, or set KUBECONFIG",
        chain(error)
    )))
}

/// A request to the API server.
#[derive(Clone, Copy, Debug)]
pub(super) struct ResourceRequest<'a> {
    /// RBAC verb.
    pub(super) verb: &'static str,
    pub(super) resource: &'a str,
    /// Namespace; `None` means all.
    pub(super) namespace: Option<&'a str>,
}

/// Resource name of accounts.
pub(super) const ACCOUNTS: &str = "kubesvcaccounts";
/// Resource name of agents.
pub(super) const AGENTS: &str = "kubesvcagents";

impl ResourceRequest<'_> {
    /// Returns one line about a failed request: what it was, and what to do.
    pub(super) fn explain(&self, server: &str, error: &kube::Error) -> String {
        let scope = match self.namespace {
            Some(namespace) => format!("in namespace {namespace}"),
            None => "in all namespaces".to_owned(),
        };
        match error {
            kube::Error::Api(status) => self.refused(server, &scope, status),
            kube::Error::Auth(error) => {
                format!("no credential for {server}: {}; log in again", chain(error))
            }
            kube::Error::SerdeError(error) => format!(
                "{server} answered with something that this version of kubectl-kubesvc cannot read: {error}; \
                 use the version of the operator"
            ),
            error => format!(
                "{server} cannot be reached: {}; is the cluster up, and the right --context chosen?",
                chain(error)
            ),
        }
    }

    fn refused(&self, server: &str, scope: &str, status: &Status) -> String {
        let Self { verb, resource, .. } = self;
        match status.code {
            401 => format!("{server} does not accept your credential (401); log in again"),
            403 => format!(
                "you may not {verb} {resource} {scope}; ask for a Role with verb {verb} on {resource} ({})",
                status.message
            ),
            404 if !is_about_an_object(status) => format!(
                "{server} does not know {resource}.kubesvc.io: kubesvc is not installed there, or this is another \
                 cluster; check --context, or install it: kubesvc-operator crds | kubectl apply -f -"
            ),
            _ => format!("{verb} {resource} {scope}: {} ({})", status.message, status.code),
        }
    }
}

/// Whether a 404 is about one object rather than an unknown kind.
pub(super) fn is_about_an_object(status: &Status) -> bool {
    status.details.as_ref().is_some_and(|details| !details.name.is_empty())
}

/// Minimum Jaro-Winkler similarity of a name to be suggested, from 0 to 1.
const MIN_SIMILARITY: f64 = 0.8;
/// Maximum number of suggested names.
const MAX_SUGGESTIONS: usize = 3;

/// Returns `; did you mean a or b?`, or an empty string if no name is similar.
pub(super) fn did_you_mean<'a>(name: &str, there: impl IntoIterator<Item = &'a str>) -> String {
    let mut near: Vec<_> = there
        .into_iter()
        .map(|other| (strsim::jaro_winkler(name, other), other))
        .filter(|(alike, _)| *alike >= MIN_SIMILARITY)
        .collect();
    near.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(b.1)));
    near.dedup_by(|a, b| a.1 == b.1);
    let names: Vec<_> = near.into_iter().take(MAX_SUGGESTIONS).map(|(_, name)| name).collect();
    if names.is_empty() { String::new() } else { format!("; did you mean {}?", names.join(" or ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_names_are_offered_the_nearest_first() {
        let there = ["production", "prod-2", "staging"];
        assert_eq!(did_you_mean("prodution", there), "; did you mean production or prod-2?");
        assert_eq!(did_you_mean("zzz", there), "");
    }

    #[test]
    fn a_refusal_names_the_right_that_is_missing() {
        let asked = ResourceRequest { verb: "list", resource: ACCOUNTS, namespace: Some("spin") };
        let status = Status { code: 403, message: "User \"x\" cannot".to_owned(), ..Status::default() };
        let said = asked.explain("https://c", &kube::Error::Api(status.boxed()));
        assert!(said.contains("you may not list kubesvcaccounts in namespace spin"), "{said}");
    }
}
