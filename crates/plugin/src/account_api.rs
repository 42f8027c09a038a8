//! The API of accounts that the operator adds to the caller's own API server: its paths, whether it is served, and reading
//! what it says of an account.

use http::Request;
use kubesvc_core::object_names::account_api_path;
use serde_json::Value;

use crate::api_session::{ApiSession, ResourceRequest};
use crate::arguments::CommandError;
use crate::resources::AccountObject;

/// API group and version.
const GROUP_VERSION: &str = "proxy.kubesvc.io/v1alpha1";
/// The resource on which most rights are given.
const PROXY: &str = "accounts/proxy";
/// What a gateway says of a path that it does not know.
const NOTHING_THERE: &str = "there is nothing at this path";
/// Name of the APIService.
pub(crate) const API_SERVICE: &str = "v1alpha1.proxy.kubesvc.io";
/// What adds the API to an API server.
const APPLY: &str = "apply config/gateway with your installation (components: [../gateway] of its kustomization; \
                     gateway.enabled=true of the chart), see docs/api.md";

/// An account, and the paths of its API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AccountPaths {
    /// Namespace of its object.
    pub(super) namespace: String,
    /// Name of its object.
    pub(super) name: String,
}

impl AccountPaths {
    /// The key of an account's object.
    pub(super) fn of(item: &AccountObject) -> Self {
        Self { namespace: item.namespace().to_owned(), name: item.name().to_owned() }
    }

    fn path(&self, subresource: &str) -> String {
        let Self { namespace, name } = self;
        account_api_path(namespace, name, subresource)
    }

    /// Path below which the account's own API is.
    pub(super) fn proxy_path(&self) -> String {
        self.path("proxy")
    }

    /// Path of what is cached of the account.
    pub(super) fn cache_path(&self) -> String {
        self.path("cache")
    }

    /// Path of the records of what was done with the account.
    pub(super) fn operations_path(&self) -> String {
        self.path("operations")
    }
}

/// Checks that the caller's API server serves the API of accounts.
///
/// # Errors
///
/// It does not: what to apply, or what is wrong with it.
pub(super) async fn require(session: &ApiSession) -> Result<(), CommandError> {
    let server = &session.server;
    match session.try_ask(get(session, &format!("/apis/{GROUP_VERSION}"))).await? {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) => match status.code {
            // Discovery may be closed where the API itself is open.
            403 => Ok(()),
            404 => Err(CommandError::Failed(absent(server))),
            502..=504 => {
                let said = condition(session).await?.unwrap_or_else(|| status.message.clone());
                Err(CommandError::Failed(unavailable(server, &said)))
            }
            _ => Err(failed(PROXY, None, server, &kube::Error::Api(status))),
        },
        Err(error) => Err(failed(PROXY, None, server, &error)),
    }
}

/// Reads something of an account; `None` if the API says that it does not exist.
pub(super) async fn read(
    session: &ApiSession,
    account: &AccountPaths,
    path: &str,
) -> Result<Option<Value>, CommandError> {
    match session.try_ask(get(session, path)).await? {
        Ok(value) => Ok(Some(value)),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        Err(error) => Err(failed(PROXY, Some(&account.namespace), &session.server, &error)),
    }
}

/// Whether the caller's API server serves the API of accounts.
pub(super) async fn is_served(session: &ApiSession) -> Result<bool, CommandError> {
    let asked = session.try_ask(get(session, &format!("/apis/{GROUP_VERSION}"))).await?;
    Ok(!matches!(asked, Err(kube::Error::Api(status)) if status.code == 404))
}

/// Reads what is cached of an account; `None` if the operator's gateway is older and does not show it.
pub(super) async fn read_cache(
    session: &ApiSession,
    account: &AccountPaths,
    query: &str,
) -> Result<Option<Value>, CommandError> {
    match session.try_ask(get(session, &format!("{}{query}", account.cache_path()))).await? {
        Ok(value) => Ok(Some(value)),
        Err(kube::Error::Api(status)) if status.code == 404 && status.message.contains(NOTHING_THERE) => {
            Ok(None)
        }
        Err(error) => Err(failed("accounts/cache", Some(&account.namespace), &session.server, &error)),
    }
}

async fn get(session: &ApiSession, path: &str) -> kube::Result<Value> {
    let request = Request::get(path).body(Vec::new()).map_err(kube::Error::HttpError)?;
    session.client.request(request).await
}

/// What the APIService says about being unavailable, if the caller may read it.
async fn condition(session: &ApiSession) -> Result<Option<String>, CommandError> {
    let path = format!("/apis/apiregistration.k8s.io/v1/apiservices/{API_SERVICE}");
    let answer = session.try_ask(get(session, &path)).await?;
    let conditions = answer.ok().and_then(|object| object["status"]["conditions"].as_array().cloned());
    let available = conditions.into_iter().flatten().find(|one| one["type"] == "Available");
    Ok(available.and_then(|one| one["message"].as_str().map(str::to_owned)))
}

fn absent(server: &str) -> String {
    format!("{server} does not serve the API of accounts: it has no APIService {API_SERVICE}; {APPLY}")
}

fn unavailable(server: &str, said: &str) -> String {
    format!(
        "{server} does not reach the operator's gateway: {said}; see kubectl get apiservice {API_SERVICE}, \
         and whether the operator runs with kubesvc.gateway.enabled: true; or {APPLY}"
    )
}

fn failed(resource: &str, namespace: Option<&str>, server: &str, error: &kube::Error) -> CommandError {
    let asked = ResourceRequest { verb: "get", resource, namespace };
    CommandError::Failed(match error {
        kube::Error::Api(status) if !matches!(status.code, 401 | 403) => {
            format!("the API of accounts says: {} ({})", status.message, status.code)
        }
        error => asked.explain(server, error),
    })
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    #[test]
    fn paths_name_the_object_of_the_account() {
        let account = AccountPaths { namespace: "spinnaker".into(), name: "prod".into() };
        let path = "/apis/proxy.kubesvc.io/v1alpha1/namespaces/spinnaker/accounts/prod";
        assert_eq!(account.proxy_path(), format!("{path}/proxy"));
        assert_eq!(account.operations_path(), format!("{path}/operations"));
    }

    #[test]
    fn what_is_missing_is_named_with_what_to_apply() {
        for said in [absent("https://c"), unavailable("https://c", "no response from 10.0.0.1:6443")] {
            assert!(said.contains(API_SERVICE) && said.contains(APPLY), "{said}");
        }
        let status = Status { code: 403, message: "User \"x\" cannot".to_owned(), ..Status::default() };
        let said =
            format!("{:?}", failed(PROXY, Some("spin"), "https://c", &kube::Error::Api(status.boxed())));
        assert!(said.contains("verb get on accounts/proxy"), "{said}");
        let status = Status { code: 503, message: "no agent holds it".to_owned(), ..Status::default() };
        let said = failed(PROXY, Some("spin"), "https://c", &kube::Error::Api(status.boxed()));
        assert_eq!(
            said,
            CommandError::Failed("the API of accounts says: no agent holds it (503)".to_owned())
        );
    }
}
