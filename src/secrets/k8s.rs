//! The engine `k8s`: a key of a Secret, in the account's own namespace or in one that the source rules allow.

use async_trait::async_trait;

use super::engine::{Engine, ResolvedSecret, refused};
use super::kube_secret::{KubeSecrets, SecretField};
use crate::account::failure::Failure;
use crate::account::secret_reference::Reference;

/// Reads Secrets in the same way as `secretRef`.
pub(super) struct KubernetesEngine(pub(super) KubeSecrets);

#[async_trait]
impl Engine for KubernetesEngine {
    fn name(&self) -> &'static str {
        "k8s"
    }

    async fn resolve(
        &self,
        reference: &Reference,
        namespace: &str,
        field: &str,
    ) -> Result<ResolvedSecret, Failure> {
        let named = reference.secret_key(namespace).map_err(|problem| refused(&problem))?;
        let (namespace, name, key) = named.map(|one| (one.namespace, one.name, one.key)).unwrap_or_default();
        let place = SecretField {
            namespace,
            name,
            key,
            name_field: &format!("n in {field}"),
            key_field: &format!("k in {field}"),
        };
        self.0.read(&place).await
    }
}
