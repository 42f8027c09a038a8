//! From an account to its vetted credential.

use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use kube::Client;
use moka::sync::Cache;
use secrecy::ExposeSecret;
use sha2::{Digest, Sha256};

use super::engine::{Engines, Found};
use super::file::Files;
use super::k8s::K8s;
use super::kube_secret::{KubeSecrets, Place};
use super::noop::Noop;
use super::{Credential, CredentialKind, CredentialSource};
use crate::account::KubesvcAccount;
use crate::account::failure::{Failure, FailureClass};
use crate::account::kubeconfig;

/// How long a copy that the leader has just vetted may be sent to an agent without asking again.
const COPY_LIVES: Duration = Duration::from_secs(30);
/// How many bytes of copies are kept.
const COPIES_MAX_BYTES: u64 = 64 * 1024 * 1024;
/// For how many accounts the version of the credential is remembered; one that is forgotten is handed out anew.
const ACCOUNTS_SEEN: u64 = 100_000;

/// Credentials from Secrets and from secret engines.
pub struct Credentials {
    secrets: KubeSecrets,
    engines: Engines,
    /// By uid and generation of the account.
    copies: Cache<(String, i64), Credential>,
    /// By uid of the account: what was read last, and under which version it was first seen.
    seen: Cache<String, Seen>,
}

/// A kubeconfig's content, as a digest, what held it, and the version of that which first held it.
#[derive(Clone)]
struct Seen {
    holder: Option<String>,
    content: [u8; 32],
    version: Option<String>,
}

impl Credentials {
    /// Credentials read with this client, and by the engine `file` below these folders.
    pub fn new(client: Client, folders: Vec<PathBuf>) -> Self {
        let secrets = KubeSecrets::new(client);
        let engines =
            Engines::new(vec![Box::new(Files::new(folders)), Box::new(K8s(secrets.clone())), Box::new(Noop)]);
        let weigh = |_: &(String, i64), credential: &Credential| match &credential.kind {
            CredentialKind::Kubeconfig(bytes) => {
                u32::try_from(bytes.expose_secret().len()).unwrap_or(u32::MAX)
            }
            _ => 64,
        };
        let copies =
            Cache::builder().time_to_live(COPY_LIVES).max_capacity(COPIES_MAX_BYTES).weigher(weigh).build();
        Self { secrets, engines, copies, seen: Cache::new(ACCOUNTS_SEEN) }
    }

    /// The version of a credential for an account. A change of a Secret's labels, owners or other keys, or a file that
    /// is written again, is no change of the credential: the version under which the same content was first seen stays.
    fn version(&self, account: &KubesvcAccount, found: &Found) -> Option<String> {
        let content = Sha256::digest(found.content.expose_secret()).into();
        let holder = found.holder.clone();
        let before = self.seen.get(account.uid());
        if let Some(seen) = before.filter(|seen| seen.content == content && seen.holder == holder) {
            return seen.version;
        }
        let version = found.version.clone();
        self.seen.insert(account.uid().to_owned(), Seen { holder, content, version: version.clone() });
        version
    }

    async fn find(&self, account: &KubesvcAccount) -> Result<Found, Failure> {
        let namespace = account.metadata.namespace.as_deref().unwrap_or_default();
        let source = &account.spec.kubeconfig;
        if let Some(secret) = &source.secret_ref {
            let place = Place {
                namespace,
                name: &secret.name,
                key: secret.key(),
                name_field: "spec.kubeconfig.secretRef.name",
                key_field: "spec.kubeconfig.secretRef.key",
            };
            return self.secrets.read(&place).await;
        }
        if let Some(reference) = &source.reference {
            return self.engines.resolve(reference, namespace).await;
        }
        let message = "spec.kubeconfig names no credential; set one of secretRef, reference, file and serviceAccount: true";
        Err(Failure::new(FailureClass::BadReference, message))
    }

    async fn read(&self, account: &KubesvcAccount) -> Result<Credential, Failure> {
        let found = self.find(account).await?;
        let version = self.version(account, &found);
        let context = account.spec.context.as_deref();
        let vetted = kubeconfig::vet(found.content.expose_secret(), context).map_err(|refusal| {
            let class =
                if refusal.is_exec() { FailureClass::ExecForbidden } else { FailureClass::BadKubeconfig };
            Failure::new(class, format!("kubeconfig refused: {refusal}"))
        })?;
        Ok(Credential { kind: CredentialKind::Kubeconfig(kubeconfig::render(&vetted)), version })
    }
}

#[async_trait]
impl CredentialSource for Credentials {
    async fn resolve(&self, account: &KubesvcAccount, fresh: bool) -> Result<Credential, Failure> {
        let source = &account.spec.kubeconfig;
        let without_content = if let Some(path) = &source.file {
            Some(CredentialKind::File(path.clone()))
        } else if source.service_account == Some(true) {
            Some(CredentialKind::ServiceAccount)
        } else {
            None
        };
        if let Some(kind) = without_content {
            return Ok(Credential { kind, version: None });
        }
        let copy = (account.uid().to_owned(), account.generation());
        if let Some(credential) = self.copies.get(&copy).filter(|_| !fresh) {
            return Ok(credential);
        }
        let credential = self.read(account).await?;
        self.copies.insert(copy, credential.clone());
        Ok(credential)
    }
}
