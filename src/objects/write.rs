//! The port through which accounts are made and changed by others than REST, and its adapter over the Kubernetes API.

use async_trait::async_trait;
use kube::api::PostParams;
use kube::{Api, Client};

use super::busy::too_busy;
use crate::account::{FIELD_MANAGER, KubesvcAccount};
use crate::budget::{Budget, Urgency};
use crate::crash;

/// Why an account was not written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// There is one of that name, or it is another one than was judged, or none: look again.
    #[error("somebody else has written it meanwhile")]
    Changed,
    /// The API server will never take it as it is.
    #[error("{0}")]
    Refused(String),
    /// The API server cannot be reached, is too busy, or denies a right: try again.
    #[error("{0}")]
    Unavailable(String),
}

/// The accounts at the API server.
#[async_trait]
pub trait AccountObjects: Send + Sync {
    /// The account as it is now.
    ///
    /// # Errors
    /// [`WriteError::Unavailable`].
    async fn get(&self, namespace: &str, name: &str) -> Result<Option<KubesvcAccount>, WriteError>;

    /// Makes an account, in the namespace that it names.
    ///
    /// # Errors
    /// [`WriteError::Changed`] where there is one already.
    async fn create(&self, account: &KubesvcAccount) -> Result<KubesvcAccount, WriteError>;

    /// Writes an account, if it still has the resourceVersion that it names.
    ///
    /// # Errors
    /// [`WriteError::Changed`] where it has another one or is gone.
    async fn replace(&self, account: &KubesvcAccount) -> Result<KubesvcAccount, WriteError>;
}

/// Accounts at the operator's API server.
pub struct KubeAccountObjects {
    client: Client,
    budget: Budget,
}

impl KubeAccountObjects {
    /// Accounts written with this client, no faster than the budget allows.
    pub fn new(client: Client, budget: Budget) -> Self {
        Self { client, budget }
    }

    /// Reads what the API server answered, and leaves it alone if it asks for that.
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
        api.get_opt(name).await.map_err(|error| unavailable(&error))
    }

    async fn create(&self, account: &KubesvcAccount) -> Result<KubesvcAccount, WriteError> {
        self.budget.take(Urgency::Rest).await;
        crash::point("static-create:before");
        let created = self.api(account).create(&params(), account).await;
        crash::point("static-create:after");
        created.map_err(|error| self.heed(&error))
    }

    async fn replace(&self, account: &KubesvcAccount) -> Result<KubesvcAccount, WriteError> {
        self.budget.take(Urgency::Rest).await;
        let name = account.metadata.name.as_deref().unwrap_or_default();
        crash::point("static-update:before");
        let replaced = self.api(account).replace(name, &params(), account).await;
        crash::point("static-update:after");
        replaced.map_err(|error| self.heed(&error))
    }
}

fn params() -> PostParams {
    PostParams { dry_run: false, field_manager: Some(FIELD_MANAGER.to_owned()) }
}

fn read(error: &kube::Error) -> WriteError {
    match error {
        // A namespace that is missing or going reads 404 and 403: it may come.
        kube::Error::Api(status) if status.code == 409 || is_gone(status) => WriteError::Changed,
        kube::Error::Api(status) if matches!(status.code, 400 | 413 | 422) => {
            WriteError::Refused(status.message.clone())
        }
        _ => unavailable(error),
    }
}

/// Whether the account itself is not there, rather than its namespace.
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
}
