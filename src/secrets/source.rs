//! From an account to its vetted credential.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use moka::sync::Cache;
use secrecy::ExposeSecret;
use sha2::{Digest, Sha256};
use tokio::sync::Mutex;

use super::engine::{Engines, KubeSecrets, NoopEngine, ResolvedSecret, SecretField};
use super::expiry;
use super::file::FileEngine;
use super::{Credential, CredentialKind, CredentialSource, SharedKey};
use kubesvc_core::KubesvcAccount;
use kubesvc_core::failure::{Failure, FailureClass};
use kubesvc_core::kubeconfig;
use kubesvc_core::secret_reference::sent_secret_of;
use kubesvc_core::source_rules::SourceRules;
use kubesvc_runtime::kube_access::KubeAccess;

/// How long a copy may be sent to agents without reading the source again. A deleted Secret that is not
/// watched may go unnoticed for this long.
const COPY_LIFETIME: Duration = Duration::from_secs(2);
/// Maximum number of recently changed Secrets remembered.
const MAX_CHANGED_SECRETS: u64 = 100_000;
/// Time after which a permit to read that nobody used is forgotten. Longer than a read may take.
const READ_PERMIT_IDLE_TIME: Duration = Duration::from_secs(60);
/// Maximum total size of the copies, in bytes.
const MAX_COPIES_BYTES: u64 = 64 * 1024 * 1024;
/// Maximum number of accounts whose credential versions are remembered. The credential of a forgotten account
/// is sent again.
const MAX_ACCOUNTS: u64 = 100_000;
/// Maximum number of versions with the same content remembered for each account.
const MAX_VERSIONS_PER_ACCOUNT: usize = 8;
/// Number of digest bytes in a version.
const VERSION_DIGEST_BYTES: usize = 16;

/// Credentials from Secrets and from secret engines.
pub struct Credentials {
    secrets: KubeSecrets,
    engines: Engines,
    /// Makes the versions of files the same at all replicas.
    shared_key: Option<Arc<dyn SharedKey>>,
    rules: Arc<SourceRules>,
    /// Copies by uid and generation of the account.
    copies: Cache<(String, i64), CachedCredential>,
    /// One permit for each account and generation whose credential is being read, so that several sessions that want it
    /// at once read it once.
    reads: Cache<(String, i64), Arc<Mutex<()>>>,
    /// When a Secret was last seen to change or go away, by namespace and name.
    changed: Cache<(String, String), Instant>,
    /// What was read last and under which versions, by uid of the account.
    seen: Cache<String, SeenVersions>,
}

/// A credential, and the time at which its read began.
#[derive(Clone)]
struct CachedCredential {
    credential: Credential,
    begun: Instant,
}

/// Digest of a kubeconfig's content, what held it, and the last versions under which it was read.
#[derive(Clone)]
struct SeenVersions {
    holder: Option<String>,
    content: [u8; 32],
    versions: Vec<String>,
}

impl Credentials {
    /// Creates a source that reads Secrets with this access, and files below these folders for the engine
    /// `file`.
    pub fn new(kube: KubeAccess, folders: Vec<PathBuf>) -> Self {
        let secrets = KubeSecrets::new(kube);
        let engines = Engines::new(vec![
            Box::new(FileEngine::new(folders)),
            Box::new(secrets.clone()),
            Box::new(NoopEngine),
        ]);
        let weigh = |_: &(String, i64), copy: &CachedCredential| match &copy.credential.kind {
            CredentialKind::Kubeconfig(bytes) => {
                u32::try_from(bytes.expose_secret().len()).unwrap_or(u32::MAX)
            }
            _ => 64,
        };
        let copies = Cache::builder()
            .time_to_live(COPY_LIFETIME)
            .max_capacity(MAX_COPIES_BYTES)
            .weigher(weigh)
            .build();
        // By the time a change is forgotten, copies from before it have expired.
        let changed =
            Cache::builder().time_to_live(2 * COPY_LIFETIME).max_capacity(MAX_CHANGED_SECRETS).build();
        let rules = Arc::default();
        let reads = Cache::builder().time_to_idle(READ_PERMIT_IDLE_TIME).max_capacity(MAX_ACCOUNTS).build();
        let seen = Cache::new(MAX_ACCOUNTS);
        Self { secrets, engines, shared_key: None, rules, copies, reads, changed, seen }
    }

    /// Records that a Secret has changed or gone away: copies read before now are no longer used.
    pub fn secret_changed(&self, namespace: &str, name: &str) {
        self.changed.insert((namespace.to_owned(), name.to_owned()), Instant::now());
    }

    /// The copy of an account's credential, if there is a recent one and its Secret is not known to have
    /// changed since.
    fn copy(&self, account: &KubesvcAccount, key: &(String, i64)) -> Option<Credential> {
        let copy = self.copies.get(key)?;
        let changed = sent_secret_of(account).and_then(|secret| self.changed.get(&secret));
        changed.is_none_or(|changed| changed < copy.begun).then_some(copy.credential)
    }

    /// Sets the rules about what may be read or sent; without them everything is allowed.
    #[must_use]
    pub fn ruled_by(self, rules: Arc<SourceRules>) -> Self {
        Self { rules, ..self }
    }

    /// Sets the key that is shared with the replicas that read the same credentials.
    #[must_use]
    pub fn shared_by(self, key: Arc<dyn SharedKey>) -> Self {
        Self { shared_key: Some(key), ..self }
    }

    /// The version under which all replicas know the content. Of a Secret, its own version. Each replica's
    /// copy of a file was written at another time, so a file's version is a digest of the content under a
    /// secret key: readers of the version cannot test guesses of the content.
    fn version(&self, account: &KubesvcAccount, found: &ResolvedSecret) -> Option<String> {
        let Some(key) = self.shared_key.as_ref().filter(|_| found.is_copy) else {
            return found.version.clone();
        };
        match key.digest(&[account.uid().as_bytes(), found.content.expose_secret()]) {
            Some(digest) => Some(format!("content/{}", hex::encode(&digest[..VERSION_DIGEST_BYTES]))),
            None => found.version.clone(),
        }
    }

    /// Other versions under which the same content was read. A change of a Secret's labels, owners or other
    /// keys makes a new version without changing the credential.
    fn same_as(
        &self,
        account: &KubesvcAccount,
        found: &ResolvedSecret,
        version: Option<&str>,
    ) -> Vec<String> {
        let Some(version) = version else { return Vec::new() };
        let content = Sha256::digest(found.content.expose_secret()).into();
        let mut others = Vec::new();
        self.seen.entry_by_ref(account.uid()).and_upsert_with(|before| {
            let before = before.map(moka::Entry::into_value);
            let same = before.filter(|seen| seen.content == content && seen.holder == found.holder);
            others = same.map(|seen| seen.versions).unwrap_or_default();
            others.retain(|other| other != version);
            let beyond = (others.len() + 1).saturating_sub(MAX_VERSIONS_PER_ACCOUNT);
            others.drain(..beyond);
            let versions = others.iter().cloned().chain([version.to_owned()]).collect();
            SeenVersions { holder: found.holder.clone(), content, versions }
        });
        others
    }

    async fn find(&self, account: &KubesvcAccount) -> Result<ResolvedSecret, Failure> {
        let namespace = account.metadata.namespace.as_deref().unwrap_or_default();
        let (source, field) = (account.spec.agent_source(), account.spec.agent_source_field());
        if let Some(secret) = &source.secret_ref {
            let wanted = SecretField {
                namespace,
                name: &secret.name,
                key: secret.key(),
                name_field: &format!("{field}.secretRef.name"),
                key_field: &format!("{field}.secretRef.key"),
            };
            return self.secrets.read(&wanted).await;
        }
        if let Some(reference) = &source.reference {
            return self.engines.resolve(reference, namespace, field).await;
        }
        let message = format!(
            "{field} names no credential; set one of secretRef, reference, file and serviceAccount: true"
        );
        Err(Failure::new(FailureClass::BadReference, message))
    }

    async fn read(&self, account: &KubesvcAccount) -> Result<Credential, Failure> {
        let found = self.find(account).await?;
        let version = self.version(account, &found);
        let same_as = self.same_as(account, &found, version.as_deref());
        let context = account.spec.context.as_deref();
        let insecure = account.spec.insecure.unwrap_or_default();
        let vetted = kubeconfig::vet(found.content.expose_secret(), context)
            .and_then(|vetted| vetted.with_insecure(insecure));
        let vetted = vetted.map_err(|refusal| {
            let class =
                if refusal.is_exec() { FailureClass::ExecForbidden } else { FailureClass::BadKubeconfig };
            let which = if account.spec.agent_kubeconfig.is_some() { "spec.agentKubeconfig: " } else { "" };
            Failure::new(class, format!("{which}kubeconfig refused: {refusal}"))
        })?;
        let expiry = expiry::of(&vetted.authentication, found.expires);
        let kind = CredentialKind::Kubeconfig(kubeconfig::render(&vetted));
        Ok(Credential { kind, version, same_as, expiry })
    }
}

#[async_trait]
impl CredentialSource for Credentials {
    async fn resolve(&self, account: &KubesvcAccount, fresh: bool) -> Result<Credential, Failure> {
        self.rules.check(account)?;
        let source = account.spec.agent_source();
        let without_content = if let Some(path) = &source.file {
            Some(CredentialKind::File(path.clone()))
        } else if source.service_account == Some(true) {
            if account.spec.insecure == Some(true) {
                let message = "spec.insecure is true although an agent's own service account comes with the certificate \
                               authority of its cluster; remove it";
                return Err(Failure::new(FailureClass::BadKubeconfig, message));
            }
            Some(CredentialKind::ServiceAccount)
        } else {
            None
        };
        if let Some(kind) = without_content {
            return Ok(Credential { kind, version: None, same_as: Vec::new(), expiry: None });
        }
        let key = (account.uid().to_owned(), account.generation());
        if let Some(credential) = self.copy(account, &key).filter(|_| !fresh) {
            return Ok(credential);
        }
        let permit = self.reads.get_with(key.clone(), Arc::default);
        let _permit = if fresh { None } else { Some(permit.lock().await) };
        if let Some(credential) = self.copy(account, &key).filter(|_| !fresh) {
            return Ok(credential);
        }
        let begun = Instant::now();
        let read = self.read(account).await;
        let Ok(credential) = &read else {
            self.copies.invalidate(&key);
            return read;
        };
        self.copies.insert(key, CachedCredential { credential: credential.clone(), begun });
        read
    }
}

#[cfg(test)]
mod tests;
