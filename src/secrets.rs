//! Resolves what a spec names to the credential itself.
//!
//! | module | owns |
//! |---|---|
//! | `source` | from an account to its vetted credential, and when the credential counts as changed |
//! | `engine` | the port of secret engines, the set of available engines, and the engines `k8s` and `noop`; Secrets that a spec names by `secretRef` are read here, too |
//! | `expiry` | when a credential expires, as its token, its certificate or its Secret says |
//! | `file` | the engine `file`: files on the operator's disk |

mod engine;
mod expiry;
mod file;
mod source;
#[cfg(test)]
mod tests;

use async_trait::async_trait;
use secrecy::SecretSlice;
pub use source::Credentials;

use kubesvc_core::KubesvcAccount;
use kubesvc_core::credential_expiry::CredentialExpiry;
use kubesvc_core::failure::Failure;

/// A vetted credential, ready to be sent to an agent of the zone that has the grant. Deliberately without
/// `Debug`.
#[derive(Clone)]
pub struct Credential {
    /// The credential as sent to the agent.
    pub kind: CredentialKind,
    /// Version of what was read, as far as it can change while the KubesvcAccount stays the same. Of a
    /// Secret: uid and resourceVersion, joined by a slash. Of a file: a digest under the key that the
    /// replicas share. It reveals nothing about the content.
    pub version: Option<String>,
    /// Other versions under which this process has read the same content.
    pub same_as: Vec<String>,
    /// When it expires; `None` where nothing says so, and where an agent reads it.
    pub expiry: Option<CredentialExpiry>,
}

impl Credential {
    /// Whether this credential is the one recorded under `version`.
    pub fn is(&self, version: Option<&str>) -> bool {
        self.version.as_deref() == version
            || version.is_some_and(|version| self.same_as.iter().any(|one| one == version))
    }
}

/// Ways to reach a cluster.
#[derive(Clone)]
pub enum CredentialKind {
    /// A vetted kubeconfig, reduced to one cluster, one user and one context.
    Kubeconfig(SecretSlice<u8>),
    /// Path of a file on the agent.
    File(String),
    /// The agent's own service account.
    ServiceAccount,
}

/// A key that only the replicas have.
pub trait SharedKey: Send + Sync {
    /// Returns a digest of the parts under the key, or `None` if there is no key.
    fn digest(&self, parts: &[&[u8]]) -> Option<[u8; 32]>;
}

/// Resolves the credentials of accounts.
#[async_trait]
pub trait CredentialSource: Send + Sync {
    /// Reads and vets the credential of an account. With `fresh`, always asks the source; otherwise a copy
    /// that is a few seconds old is good enough.
    ///
    /// # Errors
    /// `SourceForbidden` if the account may not use its source; `CredentialMissing` if a Secret, key or file
    /// does not exist; `BadKubeconfig`, `ExecForbidden` or `BadReference` if the content or the reference is
    /// refused; `Internal` if the source cannot be read. No message contains a credential.
    async fn resolve(&self, account: &KubesvcAccount, fresh: bool) -> Result<Credential, Failure>;
}
