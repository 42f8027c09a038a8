//! From what a spec names to the credential itself.

mod kube_secret;

use async_trait::async_trait;
pub use kube_secret::KubeCredentials;
use secrecy::SecretSlice;

use crate::account::KubesvcAccount;
use crate::account::failure::Failure;

/// A credential that was vetted, ready to be sent to an agent of the zone that has the grant. It has no `Debug`.
#[derive(Clone)]
pub struct Credential {
    /// What is sent.
    pub kind: CredentialKind,
    /// The Secret's uid and resourceVersion, joined by a slash; absent where there is no Secret.
    pub version: Option<String>,
}

/// The ways to reach a cluster.
#[derive(Clone)]
pub enum CredentialKind {
    /// The cut-out of a vetted kubeconfig: one cluster, one user, one context.
    Kubeconfig(SecretSlice<u8>),
    /// A path on the agent.
    File(String),
    /// The agent's own service account.
    ServiceAccount,
}

/// Resolves credentials.
#[async_trait]
pub trait CredentialSource: Send + Sync {
    /// Reads and vets the credential of an account. `fresh` asks the source; else a copy of the last seconds will do.
    ///
    /// # Errors
    /// `CredentialMissing` where a Secret or key is not there, `BadKubeconfig`, `ExecForbidden` or `BadReference`
    /// where it is refused, `Internal` where the source cannot be asked. No message holds a credential.
    async fn resolve(&self, account: &KubesvcAccount, fresh: bool) -> Result<Credential, Failure>;
}
