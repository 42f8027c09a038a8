//! Credentials from Secrets beside the account.

use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use moka::sync::Cache;
use secrecy::ExposeSecret;
use sha2::{Digest, Sha256};

use super::{Credential, CredentialKind, CredentialSource};
use crate::account::failure::{Failure, FailureClass};
use crate::account::kubeconfig;
use crate::account::spec::SecretKeyReference;
use crate::account::{KubesvcAccount, ORIGIN_LABEL};

/// How long a copy that the leader has just vetted may be sent to an agent without asking again.
const COPY_LIVES: Duration = Duration::from_secs(30);
/// How many bytes of copies are kept.
const COPIES_MAX_BYTES: u64 = 64 * 1024 * 1024;
/// For how many accounts the version of the credential is remembered; one that is forgotten is handed out anew.
const ACCOUNTS_SEEN: u64 = 100_000;
/// How often a Secret of a REST call is looked at again for its owner, and how long after one another.
const LOOKS_FOR_OWNER: u32 = 20;
const BETWEEN_LOOKS: Duration = Duration::from_millis(100);
/// How long the API server may take.
const READ_TIMEOUT: Duration = Duration::from_secs(15);

/// Reads Secrets with the operator's own client.
pub struct KubeCredentials {
    client: Client,
    /// By uid and generation of the account.
    copies: Cache<(String, i64), Credential>,
    /// By uid of the account: what was read last, and under which version it was first seen.
    seen: Cache<String, Seen>,
}

/// A kubeconfig's content, as a digest, and the version of the Secret that first held it.
#[derive(Clone)]
struct Seen {
    secret_uid: Option<String>,
    content: [u8; 32],
    version: Option<String>,
}

impl KubeCredentials {
    /// Credentials read with this client.
    pub fn new(client: Client) -> Self {
        let weigh = |_: &(String, i64), credential: &Credential| match &credential.kind {
            CredentialKind::Kubeconfig(bytes) => {
                u32::try_from(bytes.expose_secret().len()).unwrap_or(u32::MAX)
            }
            _ => 64,
        };
        let copies =
            Cache::builder().time_to_live(COPY_LIVES).max_capacity(COPIES_MAX_BYTES).weigher(weigh).build();
        Self { client, copies, seen: Cache::new(ACCOUNTS_SEEN) }
    }

    /// The version of a Secret for an account. A change of its labels, owners or other keys is no change of the
    /// credential: the version under which the same content was first seen stays.
    fn version(&self, account: &KubesvcAccount, secret: &Secret, content: &[u8]) -> Option<String> {
        let content = Sha256::digest(content).into();
        let secret_uid = secret.metadata.uid.clone();
        let before = self.seen.get(account.uid());
        if let Some(seen) = before.filter(|seen| seen.content == content && seen.secret_uid == secret_uid) {
            return seen.version;
        }
        let version = version_of(secret);
        self.seen.insert(account.uid().to_owned(), Seen { secret_uid, content, version: version.clone() });
        version
    }

    async fn get(&self, namespace: &str, name: &str) -> Result<Secret, Failure> {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), namespace);
        tokio::time::timeout(READ_TIMEOUT, secrets.get_opt(name))
            .await
            .map_err(|_| unreadable(namespace, name, "the API server does not answer"))?
            .map_err(|error| unreadable(namespace, name, &explain(&error)))?
            .ok_or_else(|| {
                missing(format!(
                    "Secret {namespace}/{name} is not there; create it, or correct spec.kubeconfig.secretRef.name"
                ))
            })
    }

    async fn read(
        &self,
        account: &KubesvcAccount,
        reference: &SecretKeyReference,
    ) -> Result<Credential, Failure> {
        let namespace = account.metadata.namespace.as_deref().unwrap_or_default();
        let name = reference.name.as_str();
        let mut secret = self.get(namespace, name).await?;
        for _ in 0..LOOKS_FOR_OWNER {
            if !awaits_its_owner(&secret) {
                break;
            }
            tokio::time::sleep(BETWEEN_LOOKS).await;
            secret = self.get(namespace, name).await?;
        }
        let key = reference.key();
        let bytes = secret.data.as_ref().and_then(|data| data.get(key)).ok_or_else(|| {
            missing(format!(
                "Secret {namespace}/{name} has no key {key:?}; add it, or correct spec.kubeconfig.secretRef.key"
            ))
        })?;
        let version = self.version(account, &secret, &bytes.0);
        let vetted = kubeconfig::vet(&bytes.0, account.spec.context.as_deref()).map_err(|refusal| {
            let class =
                if refusal.is_exec() { FailureClass::ExecForbidden } else { FailureClass::BadKubeconfig };
            Failure::new(class, format!("kubeconfig refused: {refusal}"))
        })?;
        Ok(Credential { kind: CredentialKind::Kubeconfig(kubeconfig::render(&vetted)), version })
    }
}

#[async_trait]
impl CredentialSource for KubeCredentials {
    async fn resolve(&self, account: &KubesvcAccount, fresh: bool) -> Result<Credential, Failure> {
        let source = &account.spec.kubeconfig;
        if let Some(reference) = &source.secret_ref {
            let copy = (account.uid().to_owned(), account.generation());
            if let Some(credential) = self.copies.get(&copy).filter(|_| !fresh) {
                return Ok(credential);
            }
            let credential = self.read(account, reference).await?;
            self.copies.insert(copy, credential.clone());
            return Ok(credential);
        }
        let kind = if let Some(path) = &source.file {
            CredentialKind::File(path.clone())
        } else if source.service_account == Some(true) {
            CredentialKind::ServiceAccount
        } else if let Some(reference) = &source.reference {
            return Err(Failure::new(FailureClass::BadReference, unsupported(reference)));
        } else {
            let message = "spec.kubeconfig names no credential; set one of secretRef, reference, file and serviceAccount: true";
            return Err(Failure::new(FailureClass::BadReference, message));
        };
        Ok(Credential { kind, version: None })
    }
}

/// A REST call has made the Secret, and is about to write its owner: the version that counts is the next one. After a
/// crash just there the owner stays away, and so this is waited for only a while.
fn awaits_its_owner(secret: &Secret) -> bool {
    let by_rest = secret
        .metadata
        .labels
        .as_ref()
        .is_some_and(|all| all.get(ORIGIN_LABEL).is_some_and(|one| one == "rest"));
    by_rest && secret.metadata.owner_references.as_ref().is_none_or(Vec::is_empty)
}

/// The Secret's uid and resourceVersion.
fn version_of(secret: &Secret) -> Option<String> {
    Some(format!("{}/{}", secret.metadata.uid.as_deref()?, secret.metadata.resource_version.as_deref()?))
}

fn missing(message: String) -> Failure {
    Failure::new(FailureClass::CredentialMissing, message)
}

fn unreadable(namespace: &str, name: &str, why: &str) -> Failure {
    Failure::new(FailureClass::Internal, format!("Secret {namespace}/{name} cannot be read: {why}"))
}

/// An error of the client in words that hold nothing of the Secret.
fn explain(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if status.code == 403 => {
            "the operator may not read Secrets there; grant it `get` on secrets in that namespace".to_owned()
        }
        kube::Error::Api(status) => format!("the API server answered {} {}", status.code, status.reason),
        _ => "the API server cannot be reached".to_owned(),
    }
}

fn unsupported(reference: &str) -> String {
    let engine: String = reference
        .trim_start_matches("encryptedFile:")
        .trim_start_matches("encrypted:")
        .trim_start_matches("secret://")
        .chars()
        .take_while(char::is_ascii_alphanumeric)
        .take(32)
        .collect();
    format!(
        "secret engine {engine:?} is not available; put the kubeconfig into a Secret and name it in spec.kubeconfig.secretRef"
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

    use super::*;

    #[test]
    fn only_a_secret_of_rest_without_an_owner_is_waited_for() {
        let mut secret = Secret::default();
        assert!(!awaits_its_owner(&secret), "a person's Secret has no owner");
        secret.metadata.labels = Some(BTreeMap::from([(ORIGIN_LABEL.to_owned(), "rest".to_owned())]));
        assert!(awaits_its_owner(&secret));
        secret.metadata.owner_references = Some(vec![OwnerReference::default()]);
        assert!(!awaits_its_owner(&secret));
    }
}
