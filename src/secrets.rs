//! From what a spec names to the credential itself.
//!
//! | module | owns |
//! |---|---|
//! | `source` | the way from an account to its vetted credential, and when that counts as changed |
//! | `engine` | the port of secret engines, and which of them there are |
//! | `kube_secret`, `k8s` | Secrets beside the account, by `secretRef` and by reference |
//! | `file` | files on the operator's disk |
//! | `noop` | a reference that is the secret itself |

mod engine;
mod file;
mod k8s;
mod kube_secret;
mod noop;
mod source;
#[cfg(test)]
mod tests;

use async_trait::async_trait;
use secrecy::SecretSlice;
pub use source::Credentials;

use crate::account::KubesvcAccount;
use crate::account::failure::Failure;

/// A credential that was vetted, ready to be sent to an agent of the zone that has the grant. It has no `Debug`.
#[derive(Clone)]
pub struct Credential {
    /// What is sent.
    pub kind: CredentialKind,
    /// What was read, as far as it can change while the object stays: of a Secret its uid and resourceVersion, joined
    /// by a slash; of a file a digest under the key that replicas share. It says nothing of the content.
    pub version: Option<String>,
    /// Other versions under which this process has read the same content.
    pub same_as: Vec<String>,
}

impl Credential {
    /// Whether it is the one that is written down under this version.
    pub fn is(&self, version: Option<&str>) -> bool {
        self.version.as_deref() == version
            || version.is_some_and(|version| self.same_as.iter().any(|one| one == version))
    }
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

/// A key that all replicas have, and nobody else.
#[async_trait]
pub trait SharedKey: Send + Sync {
    /// A digest of these parts under the key; none where there is no key. `fresh`: under the newest key, as it may have
    /// been changed.
    async fn digest(&self, parts: &[&[u8]], fresh: bool) -> Option<[u8; 32]>;
}

/// Resolves credentials.
#[async_trait]
pub trait CredentialSource: Send + Sync {
    /// Reads and vets the credential of an account. `fresh` asks the source; else a copy of the last seconds will do.
    ///
    /// # Errors
    /// `SourceForbidden` where the account may not use its source, `CredentialMissing` where a Secret, key or file is not there, `BadKubeconfig`, `ExecForbidden` or
    /// `BadReference` where it is refused, `Internal` where the source cannot be asked. No message holds a credential.
    async fn resolve(&self, account: &KubesvcAccount, fresh: bool) -> Result<Credential, Failure>;
}
