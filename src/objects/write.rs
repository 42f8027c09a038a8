//! Port for creating and changing accounts outside of REST, and its adapter over the Kubernetes API.

use std::time::Duration;

use async_trait::async_trait;
use kube::api::PostParams;
use kube::{Api, Client};

use super::overload::too_busy;
use crate::account::{FIELD_MANAGER, KubesvcAccount};
use crate::budget::{Budget, Urgency};
use crate::crash;

/// Timeout for one answer of the API server, not counting the wait for the write budget.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);

/// Reason why an account was not written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// The account exists already, has another resourceVersion, or is gone. Read it again before deciding.
    #[error("another client changed the object in the meantime")]
    Changed,
    /// The API server refuses the object as it is; retrying cannot help.
    #[error("{0}")]
    Refused(String),
    /// The API server cannot be reached, is overloaded, or denies a permission. Retry later.
    #[error("{0}")]
    Unavailable(String),
}

/// Reads and writes accounts at the API server.
#[async_trait]
pub trait AccountObjects: Send + Sync {
    /// Reads the current account.
    ///
    /// # Errors
    /// [`WriteError::Unavailable`].
    async fn get(&self, namespace: &str, name: &str) -> Result<Option<KubesvcAccount>, WriteError>;

    /// Creates an account in the namespace that it names.
    ///
    /// # Errors
    /// [`WriteError::Changed`] if it already exists.
    async fn create(&self, account: &KubesvcAccount) -> Result<KubesvcAccount, WriteError>;

    /// Replaces an account if it still has the resourceVersion that `account` names.
    ///
    /// # Errors
    /// [`WriteError::Changed`] if the resourceVersion differs or the account is gone.
    async fn replace(&self, account: &KubesvcAccount) -> Result<KubesvcAccount, WriteError>;
}

/// Accounts at the operator's API server.
pub struct KubeAccountObjects {
    client: Client,
    budget: Budget,
}

impl KubeAccountObjects {
    /// Creates an adapter that writes with this client, within the write budget.
    pub fn new(client: Client, budget: Budget) -> Self {
        Self { client, budget }
    }

    /// Classifies an error of the API server, and pauses the write budget if the API server asks for that.
    fn heed(&self, error: &kube::Error) -> WriteError {
        if let Some(pause) = too_busy(error) {
            self.budget.pause(pause);
        }
        read(error)
    }

    fn api(&self, account: &KubesvcAccount) -> Api<KubesvcAccount> {
        let namespace = account.metadata.namespace.as_deref().unwrap_or_default();
        Api::namespaced(self.client.clone(), namespace)
    }
}

#[async_trait]
impl AccountObjects for KubeAccountObjects {
    async fn get(&self, namespace: &str, name: &str) -> Result<Option<KubesvcAccount>, WriteError> {
        let api: Api<KubesvcAccount> = Api::namespaced(self.client.clone(), namespace);
        timed(api.get_opt(name)).await?.map_err(|error| unavailable(&error))
    }

    async fn create(&self, account: &KubesvcAccount) -> Result<KubesvcAccount, WriteError> {
        self.budget.take(Urgency::Rest).await;
        crash::point("static-create:before");
        let created = timed(self.api(account).create(&params(), account)).await;
        crash::point("static-create:after");
        created?.map_err(|error| self.heed(&error))
    }

    async fn replace(&self, account: &KubesvcAccount) -> Result<KubesvcAccount, WriteError> {
        self.budget.take(Urgency::Rest).await;
        let name = account.metadata.name.as_deref().unwrap_or_default();
        crash::point("static-update:before");
        let replaced = timed(self.api(account).replace(name, &params(), account)).await;
        crash::point("static-update:after");
        replaced?.map_err(|error| self.heed(&error))
    }
}

async fn timed<T>(answer: impl Future<Output = kube::Result<T>>) -> Result<kube::Result<T>, WriteError> {
    let late =
        |_| WriteError::Unavailable(format!("the API server does not answer within {ANSWER_TIMEOUT:?}"));
    tokio::time::timeout(ANSWER_TIMEOUT, answer).await.map_err(late)
}

fn params() -> PostParams {
    PostParams { dry_run: false, field_manager: Some(FIELD_MANAGER.to_owned()) }
}

fn read(error: &kube::Error) -> WriteError {
    match error {
        // A missing or terminating namespace returns 404 or 403; it may be created later.
        kube::Error::Api(status) if status.code == 409 || is_gone(status) => WriteError::Changed,
        kube::Error::Api(status) if matches!(status.code, 400 | 413 | 422) => {
            WriteError::Refused(status.message.clone())
        }
        _ => unavailable(error),
    }
}

/// Whether the account itself does not exist, rather than its namespace.
fn is_gone(status: &kube::core::Status) -> bool {
    let kind = status.details.as_ref().map(|details| details.kind.as_str());
    status.code == 404 && kind == Some("kubesvcaccounts")
}

fn unavailable(error: &kube::Error) -> WriteError {
    WriteError::Unavailable(crate::telemetry::errors::chain(error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::account::KubesvcAccountSpec;

    fn answer(code: u16, kind: &str) -> kube::Error {
        let status = serde_json::json!({"code": code, "details": {"kind": kind}});
        kube::Error::Api(serde_json::from_value(status).expect("a status"))
    }

    #[test]
    fn answers_of_the_api_server_say_whether_to_look_again_to_give_up_or_to_wait() {
        assert_eq!(read(&answer(409, "kubesvcaccounts")), WriteError::Changed);
        assert_eq!(read(&answer(404, "kubesvcaccounts")), WriteError::Changed);
        assert!(matches!(read(&answer(422, "kubesvcaccounts")), WriteError::Refused(_)));
        for (code, kind) in [(404, "namespaces"), (403, ""), (429, ""), (500, ""), (503, "")] {
            assert!(matches!(read(&answer(code, kind)), WriteError::Unavailable(_)), "{code}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_long_wait_for_the_turn_to_write_is_no_failure_of_the_api_server() {
        let created = serde_json::to_vec(&named("a")).expect("it is written as JSON");
        let service = tower::service_fn(move |_: http::Request<kube::client::Body>| {
            let body = kube::client::Body::from(created.clone());
            async move { http::Response::builder().status(201).body(body) }
        });
        let budget = Budget::default();
        budget.pause(ANSWER_TIMEOUT * 3);
        let objects = KubeAccountObjects::new(Client::new(service, "ns"), budget);
        let began = tokio::time::Instant::now();
        objects.create(&named("a")).await.expect("it is only late");
        assert!(began.elapsed() >= ANSWER_TIMEOUT * 3);
    }

    #[tokio::test(start_paused = true)]
    async fn an_api_server_that_does_not_answer_is_said_to() {
        let service = tower::service_fn(|_: http::Request<kube::client::Body>| {
            std::future::pending::<Result<http::Response<kube::client::Body>, std::io::Error>>()
        });
        let objects = KubeAccountObjects::new(Client::new(service, "ns"), Budget::default());
        let problem = objects.create(&named("a")).await.expect_err("there is no answer");
        assert!(problem.to_string().contains("does not answer within 15s"), "{problem}");
    }

    fn named(name: &str) -> KubesvcAccount {
        let mut account = KubesvcAccount::new(name, KubesvcAccountSpec::default());
        account.metadata.namespace = Some("ns".to_owned());
        account
    }
}
