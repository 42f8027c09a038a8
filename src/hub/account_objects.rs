//! Port for reading, creating and changing accounts outside of REST, and its adapter over the Kubernetes API.

use async_trait::async_trait;

use kubesvc_core::KubesvcAccount;
use kubesvc_runtime::kube_access::{KubeAccess, KubeError, WriteOptions};
use kubesvc_runtime::rate_limit::Urgency;

/// Reads and writes accounts at the API server.
#[async_trait]
pub trait AccountObjects: Send + Sync {
    /// Reads the current account.
    ///
    /// # Errors
    /// See [`KubeError`].
    async fn get(&self, namespace: &str, name: &str) -> Result<Option<KubesvcAccount>, KubeError>;

    /// Creates an account in the namespace that it names.
    ///
    /// # Errors
    /// A conflict if it already exists.
    async fn create(&self, account: &KubesvcAccount) -> Result<KubesvcAccount, KubeError>;

    /// Replaces an account if it still has the resourceVersion that `account` names.
    ///
    /// # Errors
    /// A conflict if the resourceVersion differs, or gone.
    async fn replace(&self, account: &KubesvcAccount) -> Result<KubesvcAccount, KubeError>;
}

#[async_trait]
impl AccountObjects for KubeAccess {
    async fn get(&self, namespace: &str, name: &str) -> Result<Option<KubesvcAccount>, KubeError> {
        self.namespaced::<KubesvcAccount>(namespace).get(name).await
    }

    async fn create(&self, account: &KubesvcAccount) -> Result<KubesvcAccount, KubeError> {
        let options = WriteOptions::with(Urgency::Rest).at("static-create");
        self.namespaced(namespace(account)).create(account, options).await
    }

    async fn replace(&self, account: &KubesvcAccount) -> Result<KubesvcAccount, KubeError> {
        let options = WriteOptions::with(Urgency::Rest).at("static-update");
        self.namespaced(namespace(account)).replace(account, options).await
    }
}

fn namespace(account: &KubesvcAccount) -> &str {
    account.metadata.namespace.as_deref().unwrap_or_default()
}
