//! The Secret that kubesvc writes for the kubeconfigs of one account. The rules are in [`owned_secret`]; REST, the
//! adoption of rows, migrations, the controller and `kubectl kubesvc import` carry them out through [`AccountSecret`].
//!
//! The Secret is written before the object, so that an object never exists without its credential. If the process dies
//! between two steps:
//!
//! | it dies after | what is left | repaired by |
//! |---|---|---|
//! | a claim | the Secret with its old content, marked by the claim | the next attempt to create the account |
//! | the Secret | of a new account: a kubesvc Secret without an account | the next attempt, which reuses the Secret for its own content |
//! | | of a change: the new content under the old spec | the same request again |
//! | the object | everything | |
//!
//! Two concurrent creators of one account both prepare the Secret, and one of them creates the object. If the Secret was
//! written since the winner prepared it, the winner writes its own content once more. From then on the loser finds the
//! object.
//!
//! An annotation for each key (`kubesvc.io/contents-of`, `kubesvc.io/agent-contents-of`) names the owner of its content
//! by the uid of the account. Only writes that know the account set it, together with the content. So the creator can
//! tell content that another one has prepared, which it overwrites, from content that a change has stored meanwhile,
//! which it keeps. If the Secret is absent and the account no longer names it, the creator does not create it.
//!
//! The Secret has one key for the account's own kubeconfig and one for the agents'. A change writes the keys that it
//! gives; of the others, it keeps those that the account names. A key that the spec no longer names is removed, and with
//! the last key the Secret is deleted. If the process dies before that, the unused key remains until the Secret is
//! deleted.
//!
//! A change writes the Secret only if the account still exists and is not being deleted, read after the Secret. If the
//! account disappears before its spec is changed, the Secret is deleted, provided it still has the version that the
//! change wrote. The controller deletes the Secret at the end of its account. A Secret that does not belong to kubesvc
//! is never changed.

use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::DeleteParams;

use crate::kube_access::{ErrorClass, KubeAccess, KubeError, KubeObjects, WriteOptions, unless_stale};
use crate::rate_limit::Urgency;
use crate::telemetry::errors::chain;
use crate::telemetry::outages::warn_unless_away;
use kubesvc_core::owned_secret::{
    self, Contents, ObjectName, Preparation, SecretVersion, brought_to, claim, completion, has_contents_of,
    is_named_by, is_of_earlier_version, is_ours, keys_named_by, preparation, trimmed, update_of,
};
use kubesvc_core::{KubesvcAccount, ORIGIN_MIGRATED, ORIGIN_REST, object_names};

/// Maximum number of attempts at a write that conflicts with other writers of the same Secret.
const MAX_WRITE_ATTEMPTS: usize = 8;
/// Options of a write without crash points.
const UNNAMED_WRITE: WriteOptions = WriteOptions::with(Urgency::Rest);

/// Who creates and changes Secrets, and how.
#[derive(Clone, Copy, Debug)]
pub struct SecretWriter {
    /// Value of the label that names the origin.
    origin: &'static str,
    /// Whether a Secret of an earlier version is taken over. It may belong to anyone, since it is not marked as the
    /// account's.
    takes_earlier: bool,
    contents: WriteOptions,
    claim: WriteOptions,
}

impl SecretWriter {
    /// REST, for kubeconfigs of its callers.
    pub const REST: Self = Self {
        origin: ORIGIN_REST,
        takes_earlier: true,
        contents: UNNAMED_WRITE.at("rest-secret"),
        claim: UNNAMED_WRITE.at("rest-secret-claim"),
    };
    /// Migrations, for kubeconfigs of credentials sources.
    pub const MIGRATION: Self = Self {
        origin: ORIGIN_MIGRATED,
        takes_earlier: false,
        contents: UNNAMED_WRITE.at("migration-secret"),
        claim: UNNAMED_WRITE.at("migration-secret"),
    };
    /// The controller, for kubeconfigs of adopted rows.
    pub const CONTROLLER: Self = Self {
        origin: ORIGIN_MIGRATED,
        takes_earlier: false,
        contents: UNNAMED_WRITE.at("adopt-secret"),
        claim: UNNAMED_WRITE.at("adopt-secret"),
    };
    /// `kubectl kubesvc import`, for kubeconfigs of the vendor's rows.
    pub const IMPORT: Self = Self {
        origin: ORIGIN_MIGRATED,
        takes_earlier: false,
        contents: UNNAMED_WRITE.at("import-secret"),
        claim: UNNAMED_WRITE.at("import-secret"),
    };
}

/// Why a Secret was not written.
#[derive(Debug, thiserror::Error)]
pub enum AccountSecretError {
    /// Another account has the name of the object, or the account is gone or being deleted.
    #[error("another account has the name, or the account is gone or being deleted")]
    Taken,
    /// There is a Secret of this namespace and name that is not kubesvc's.
    #[error(
        "Secret {0} already exists and is not kubesvc's; rename or delete it, because the kubeconfig would be stored there"
    )]
    NotOurs(String),
    /// Other writers changed the Secret at each attempt.
    #[error("others write the Secret {0} at the same time")]
    Contended(String),
    /// A request failed.
    #[error(transparent)]
    Api(#[from] KubeError),
}

impl AccountSecretError {
    /// Whether the same call may succeed later.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Contended(_) => true,
            Self::Api(error) => error.class() == ErrorClass::Retry,
            Self::Taken | Self::NotOurs(_) => false,
        }
    }
}

/// The Secret of one account.
pub struct AccountSecret<'a> {
    object_name: ObjectName<'a>,
    name: String,
    writer: SecretWriter,
    secrets: KubeObjects<Secret>,
    accounts: KubeObjects<KubesvcAccount>,
}

impl<'a> AccountSecret<'a> {
    /// The Secret of the account with this namespace and object name.
    pub fn of(kube: &KubeAccess, object_name: ObjectName<'a>, writer: SecretWriter) -> Self {
        let (namespace, object) = object_name;
        let name = object_names::credential_secret_name(object);
        let (secrets, accounts) = (kube.namespaced(namespace), kube.namespaced(namespace));
        Self { object_name, name, writer, secrets, accounts }
    }

    /// Creates the account, its Secret first. `None`: another account has the name of the object.
    pub async fn create_account(
        &self,
        contents: &Contents<'_>,
        account: &KubesvcAccount,
        options: WriteOptions,
    ) -> Result<Option<KubesvcAccount>, AccountSecretError> {
        let prepared = match contents.is_empty() {
            true => None,
            false => match self.prepare(contents).await {
                Ok(version) => Some(version),
                Err(AccountSecretError::Taken) => return Ok(None),
                Err(error) => return Err(error),
            },
        };
        let made = match self.accounts.create(account, options).await {
            Ok(made) => made,
            Err(error) => {
                // Delete the Secret that was prepared, unless another creator's object uses it.
                if let Some(version) = prepared.filter(|_| error.had_no_effect()) {
                    self.discard_written(&version).await;
                }
                return match error.class() {
                    ErrorClass::Conflict => Ok(None),
                    _ => Err(error.into()),
                };
            }
        };
        if let Some(version) = &prepared {
            self.complete(contents, version, &made).await?;
        }
        Ok(Some(made))
    }

    /// Whether [`Self::create_account`] would create the account now. The API server checks what would be written, and
    /// stores nothing.
    pub async fn try_account(
        &self,
        contents: &Contents<'_>,
        account: &KubesvcAccount,
    ) -> Result<bool, AccountSecretError> {
        if !contents.is_empty() {
            match self.secrets.get_metadata(&self.name).await? {
                Some(present) => self.check_ours(&present)?,
                None => drop(self.secrets.try_create(&self.wanted(contents, None)).await?),
            }
        }
        match self.accounts.try_create(account).await {
            Ok(_) => Ok(true),
            Err(error) if error.class() == ErrorClass::Conflict => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// First step of creating an account. Returns the version that holds these contents.
    async fn prepare(&self, contents: &Contents<'_>) -> Result<SecretVersion, AccountSecretError> {
        let wanted = self.wanted(contents, None);
        for _ in 0..MAX_WRITE_ATTEMPTS {
            let present = self.secrets.get(&self.name).await?;
            let read = present.as_ref().map(|secret| secret.metadata.clone());
            let stands = match &read {
                Some(read) => {
                    self.check_ours(read)?;
                    self.accounts.get_metadata(self.object_name.1).await?.is_some()
                }
                None => false,
            };
            let read = read.unwrap_or_default();
            let written = match preparation(present, stands, &wanted) {
                Preparation::Taken => return Err(AccountSecretError::Taken),
                Preparation::Remove => {
                    unless_stale(self.delete(&SecretVersion::of(&read), UNNAMED_WRITE).await)?;
                    continue;
                }
                Preparation::Claim => {
                    let claim = claim(&read);
                    unless_stale(self.secrets.patch_metadata(&self.name, &claim, self.writer.claim).await)?;
                    continue;
                }
                Preparation::Create => self.create(&wanted).await?,
                Preparation::Replace(secret) => self.replace(&secret).await?,
            };
            if let Some(version) = written {
                return Ok(version);
            }
        }
        Err(self.contended())
    }

    /// Last step of creating an account. `prepared` is the version that the first step wrote.
    async fn complete(
        &self,
        contents: &Contents<'_>,
        prepared: &SecretVersion,
        made: &KubesvcAccount,
    ) -> Result<(), AccountSecretError> {
        let wanted = self.wanted(contents, Some(made));
        for _ in 0..MAX_WRITE_ATTEMPTS {
            let written = match self.secrets.get(&self.name).await? {
                Some(present) => {
                    let Some(secret) = completion(&present, prepared, made, &wanted) else { return Ok(()) };
                    self.check_ours(&present.metadata)?;
                    self.replace(&secret).await?
                }
                None if self.is_named_by(made).await? => self.create(&wanted).await?,
                None => return Ok(()),
            };
            if written.is_some() {
                return Ok(());
            }
        }
        Err(self.contended())
    }

    /// Writes new contents of an existing account. Returns the written version, or `None` if the Secret already has
    /// them.
    pub async fn change(
        &self,
        contents: &Contents<'_>,
        account: &KubesvcAccount,
    ) -> Result<Option<SecretVersion>, AccountSecretError> {
        let wanted = self.wanted(contents, Some(account));
        for _ in 0..MAX_WRITE_ATTEMPTS {
            let present = self.secrets.get(&self.name).await?;
            let is_of_account =
                present.as_ref().is_some_and(|secret| has_contents_of(&secret.metadata, account.uid()));
            if !is_of_account {
                let now = self.accounts.get(self.object_name.1).await?;
                if now.is_none_or(|now| now.uid() != account.uid() || now.is_being_deleted()) {
                    return Err(AccountSecretError::Taken);
                }
            }
            let written = match present {
                None => self.create(&wanted).await?,
                Some(present) => {
                    self.check_ours(&present.metadata)?;
                    let Some(secret) = brought_to(present, &wanted, &keys_named_by(account)) else {
                        return Ok(None);
                    };
                    self.replace(&secret).await?
                }
            };
            if written.is_some() {
                return Ok(written);
            }
        }
        Err(self.contended())
    }

    /// Removes what the account no longer names. Errors are only logged.
    ///
    /// The Secret is read before the account, and changed or deleted only at the version that was read. A request that
    /// has meanwhile started to use it again has either written the Secret or is visible in the account.
    pub async fn discard(&self) {
        match self.secrets.get_metadata(&self.name).await {
            Ok(Some(read)) if is_ours(&read, self.object_name) => {
                self.discard_written(&SecretVersion::of(&read)).await;
            }
            Ok(_) => {}
            Err(error) => self.stays(&error),
        }
    }

    /// Removes, at the version that the caller has written, what no account uses. Deletes the Secret if none of it is
    /// used: no account exists, the account is being deleted, or it names other credentials. Errors are only logged.
    pub async fn discard_written(&self, written: &SecretVersion) {
        let discarded = match self.accounts.get(self.object_name.1).await {
            Ok(Some(now)) if self.is_of(&now) && !now.is_being_deleted() => self.trim(written, &now).await,
            Ok(_) => self.delete(written, UNNAMED_WRITE).await,
            Err(error) => Err(error),
        };
        // If it is stale, another writer is now responsible for it.
        if let Err(error) = unless_stale(discarded) {
            self.stays(&error);
        }
    }

    /// Deletes the Secret at the end of its account. Returns false if another account has taken the place; the Secret
    /// belongs to that one. A new account cannot take the place while this one exists.
    pub async fn delete_with(&self, account: &KubesvcAccount) -> Result<bool, AccountSecretError> {
        for _ in 0..MAX_WRITE_ATTEMPTS {
            let read = self.secrets.get_metadata(&self.name).await?;
            let Some(read) = read.filter(|read| is_ours(read, self.object_name)) else { return Ok(true) };
            let now = self.accounts.get_metadata(self.object_name.1).await?;
            if now.is_none_or(|now| now.uid != account.metadata.uid) {
                return Ok(false);
            }
            let deleted = self.delete(&SecretVersion::of(&read), UNNAMED_WRITE.at("secret-delete")).await;
            if unless_stale(deleted)?.is_some() {
                return Ok(true);
            }
        }
        Err(self.contended())
    }

    /// Sets the current labels on a Secret of an earlier version, and removes its owner reference. Returns whether it
    /// needed that.
    pub async fn update(&self) -> Result<bool, AccountSecretError> {
        for _ in 0..MAX_WRITE_ATTEMPTS {
            let read = self.secrets.get_metadata(&self.name).await?;
            let Some(patch) = read.and_then(|read| update_of(&read, self.object_name)) else {
                return Ok(false);
            };
            let options = UNNAMED_WRITE.at("secret-update");
            if unless_stale(self.secrets.patch_metadata(&self.name, &patch, options).await)?.is_some() {
                return Ok(true);
            }
        }
        Err(self.contended())
    }

    /// Removes what the account does not name, if the Secret still has this version.
    async fn trim(&self, version: &SecretVersion, account: &KubesvcAccount) -> Result<(), KubeError> {
        let Some(present) = self.secrets.get(&self.name).await? else { return Ok(()) };
        match trimmed(&present, &keys_named_by(account)) {
            Some(secret) if SecretVersion::of(&present.metadata) == *version => {
                self.replace(&secret).await.map(drop)
            }
            _ => Ok(()),
        }
    }

    fn stays(&self, error: &KubeError) {
        let (namespace, secret, error) = (self.object_name.0, &self.name, chain(error));
        warn_unless_away!(namespace, secret, error, "cannot delete an unused kubeconfig from its Secret");
    }

    /// Whether the account still exists and names this Secret.
    async fn is_named_by(&self, account: &KubesvcAccount) -> Result<bool, KubeError> {
        let now = self.accounts.get(self.object_name.1).await?;
        Ok(now.is_some_and(|now| now.uid() == account.uid() && self.is_of(&now) && !now.is_being_deleted()))
    }

    /// Whether an account's spec names this Secret.
    fn is_of(&self, account: &KubesvcAccount) -> bool {
        account.metadata.name.as_deref() == Some(self.object_name.1) && is_named_by(account)
    }

    fn wanted(&self, contents: &Contents<'_>, account: Option<&KubesvcAccount>) -> Secret {
        owned_secret::wanted(self.object_name, self.writer.origin, contents, account)
    }

    fn check_ours(&self, present: &ObjectMeta) -> Result<(), AccountSecretError> {
        let is_earlier = || self.writer.takes_earlier && is_of_earlier_version(present, self.object_name);
        if is_ours(present, self.object_name) || is_earlier() {
            return Ok(());
        }
        Err(AccountSecretError::NotOurs(self.path()))
    }

    fn contended(&self) -> AccountSecretError {
        AccountSecretError::Contended(self.path())
    }

    fn path(&self) -> String {
        format!("{}/{}", self.object_name.0, self.name)
    }

    /// Creates the Secret. Returns `None` after a conflict.
    async fn create(&self, secret: &Secret) -> Result<Option<SecretVersion>, KubeError> {
        written(self.secrets.create(secret, self.writer.contents).await)
    }

    /// Replaces the Secret. Returns `None` after a conflict.
    async fn replace(&self, secret: &Secret) -> Result<Option<SecretVersion>, KubeError> {
        written(self.secrets.replace(secret, self.writer.contents).await)
    }

    async fn delete(&self, version: &SecretVersion, options: WriteOptions) -> Result<(), KubeError> {
        let parameters = DeleteParams::default().preconditions(version.preconditions());
        self.secrets.delete(&self.name, &parameters, options).await.map(drop)
    }
}

fn written(answer: Result<Secret, KubeError>) -> Result<Option<SecretVersion>, KubeError> {
    match answer {
        Ok(secret) => Ok(Some(SecretVersion::of(&secret.metadata))),
        // The conflict may be one of the namespace's quota.
        Err(error) if error.is_stale() || error.code() == Some(409) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use kube::Client;
    use parking_lot::Mutex;
    use serde_json::{Value, json};

    use super::*;

    const OBJECT_NAME: ObjectName<'_> = ("ns", "prod");

    /// An API server with this Secret and an account with this uid, and the methods of the writes that it received.
    /// Writes change nothing.
    fn api_server(secret: &Value, uid: Option<&str>) -> (KubeAccess, Arc<Mutex<Vec<String>>>) {
        let log = Arc::new(Mutex::new(Vec::new()));
        let account = uid.map(|uid| json!({"metadata": {"name": "prod", "uid": uid}}));
        let (secret, writes) = (secret.clone(), Arc::clone(&log));
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let is_account = request.uri().path().contains("/kubesvcaccounts/");
            let shown = if is_account { account.clone() } else { Some(secret.clone()) };
            if request.method() != http::Method::GET {
                writes.lock().push(request.method().to_string());
            }
            let name = request.uri().path().rsplit('/').next().unwrap_or_default();
            let absent = json!({"code": 404, "reason": "NotFound", "details": {"name": name}});
            let (code, body) = shown.map_or((404, absent), |shown| (200, shown));
            let body = kube::client::Body::from(body.to_string().into_bytes());
            async move { http::Response::builder().status(code).body(body) }
        });
        (KubeAccess::new(Client::new(service, "ns"), "test"), log)
    }

    fn secret_of_earlier_version() -> Value {
        let metadata = json!({"name": "prod-kubeconfig", "uid": "s", "resourceVersion": "7",
            "labels": {kubesvc_core::ORIGIN_LABEL: ORIGIN_REST}});
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata})
    }

    fn secret_of_account() -> Value {
        json!(owned_secret::wanted(OBJECT_NAME, ORIGIN_REST, &Contents::new(), None))
    }

    #[tokio::test]
    async fn only_rest_takes_over_a_secret_of_an_earlier_version() {
        let (kube, writes) = api_server(&secret_of_earlier_version(), None);
        let prepared =
            AccountSecret::of(&kube, OBJECT_NAME, SecretWriter::CONTROLLER).prepare(&Contents::new()).await;
        let error = prepared.expect_err("it may be anyone's");
        assert!(matches!(error, AccountSecretError::NotOurs(_)) && !error.is_transient(), "{error}");
        assert!(writes.lock().is_empty());
        let prepared =
            AccountSecret::of(&kube, OBJECT_NAME, SecretWriter::REST).prepare(&Contents::new()).await;
        let error = prepared.expect_err("it stays as it is");
        assert!(matches!(error, AccountSecretError::Contended(_)) && error.is_transient(), "{error}");
        assert_eq!(*writes.lock(), ["PATCH"; MAX_WRITE_ATTEMPTS]);
    }

    #[tokio::test]
    async fn the_secret_of_an_account_that_stands_is_not_prepared() {
        let (kube, writes) = api_server(&secret_of_account(), Some("another"));
        for writer in [SecretWriter::REST, SecretWriter::CONTROLLER] {
            let prepared = AccountSecret::of(&kube, OBJECT_NAME, writer).prepare(&Contents::new()).await;
            assert!(matches!(prepared, Err(AccountSecretError::Taken)), "{prepared:?}");
        }
        assert!(writes.lock().is_empty());
    }

    #[tokio::test]
    async fn the_secret_is_deleted_at_the_end_of_its_own_account_only() {
        let mut account = KubesvcAccount::new("prod", kubesvc_core::KubesvcAccountSpec::default());
        account.metadata.uid = Some("own".to_owned());
        for (there, is_own, expected) in [("own", true, &["DELETE"][..]), ("another", false, &[][..])] {
            let (kube, writes) = api_server(&secret_of_account(), Some(there));
            let secret = AccountSecret::of(&kube, OBJECT_NAME, SecretWriter::CONTROLLER);
            assert_eq!(secret.delete_with(&account).await.expect("an answer"), is_own, "{there}");
            assert_eq!(*writes.lock(), expected, "{there}");
        }
        let (kube, writes) = api_server(&json!({"metadata": {"name": "prod-kubeconfig"}}), Some("own"));
        let secret = AccountSecret::of(&kube, OBJECT_NAME, SecretWriter::CONTROLLER);
        assert!(secret.delete_with(&account).await.expect("an answer"), "a foreign one stays");
        assert!(writes.lock().is_empty());
    }
}
