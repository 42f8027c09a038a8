//! Port for reading, creating and changing accounts outside of REST, and its adapter over the Kubernetes API.

use async_trait::async_trait;

use crate::informers::AccountKey;
use kubesvc_core::{GrantPhase, KubesvcAccount};
use kubesvc_runtime::kube_access::{KubeAccess, KubeError, WriteOptions};
use kubesvc_runtime::rate_limit::Urgency;

/// Reads and writes accounts at the API server.
#[async_trait]
pub trait AccountObjects: Send + Sync {
    /// Reads the current account.
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

/// Whether the API server confirms that the grant is open for the zone and epoch of an account as it was seen. A leader
/// that ends a revoke asks the sessions registered by then. A session that registers later must not be sent an account, or
/// a request to it, because of a stale watch; an object read after the registration is not older than that.
pub(crate) async fn is_still_granted(
    objects: &dyn AccountObjects,
    seen: &KubesvcAccount,
) -> Result<bool, KubeError> {
    let key = AccountKey::of(seen);
    let Some(now) = objects.get(&key.namespace, &key.name).await? else { return Ok(false) };
    let (before, after) = (seen.status_or_default(), now.status_or_default());
    Ok(now.uid() == seen.uid()
        && after.phase() == GrantPhase::Open
        && after.epoch == before.epoch
        && after.granted_zone() == before.granted_zone())
}

fn namespace(account: &KubesvcAccount) -> &str {
    account.metadata.namespace.as_deref().unwrap_or_default()
}
