//! The Secret that holds a kubeconfig given to REST. The rules are in [`owned_secret`].
//!
//! The Secret is written before the object, so that an object never exists without its credential. If the process
//! dies between two steps:
//!
//! | it dies after | what is left | repaired by |
//! |---|---|---|
//! | a claim (`rest-secret-claim`) | the Secret with its old content, marked by the claim | the next POST of that name |
//! | the Secret (`rest-secret`) | of a POST: a kubesvc Secret without an account | the next POST of that name, which reuses the Secret for its own content |
//! | | of a PATCH or PUT: the new content under the old spec | the same request again |
//! | the object (`rest-create`) | everything | |
//!
//! Two concurrent POSTs of one name both prepare the Secret, and one of them creates the object. If the Secret was
//! written since the winner prepared it, the winner writes its own content once more. From then on the loser finds
//! the object and answers 409.
//!
//! An annotation for each key (`kubesvc.io/contents-of`, `kubesvc.io/agent-contents-of`) names the owner of its
//! content by the uid of the account. Only writes that know the account set it, together with the content: the last
//! steps of POST, PATCH and PUT. So the last step of a POST can tell content that another POST has prepared, which it
//! overwrites, from content that a PATCH or PUT has stored meanwhile, which it keeps. If the Secret is absent and the
//! account no longer names it, that step does not create it.
//!
//! The Secret has one key for the account's own kubeconfig and one for the agents'. A PATCH or PUT writes the keys
//! that it gives; of the others, it keeps those that the account names. A key that the spec no longer names is
//! removed, and with the last key the Secret is deleted. If the process dies before that, the unused key remains
//! until the Secret is deleted.
//!
//! A PATCH or PUT writes the Secret only if the account that it has judged still exists and is not being deleted,
//! read after the Secret. If the account disappears before its spec is patched, the request deletes the Secret,
//! provided it still has the version that the request wrote. The operator deletes the Secret of a deleted account. A
//! Secret that does not belong to kubesvc is never changed.

use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};

use super::RestState;
use super::api::{ApiCall, ApiError, Resource};
use super::error::RestError;
use crate::account::owned_secret::{
    self, Contents, ObjectName, Preparation, SecretVersion, brought_to, claim, completion, has_contents_of,
    is_named_by, is_of_earlier_version, is_ours, keys_named_by, preparation, trimmed,
};
use crate::account::{FIELD_MANAGER, KubesvcAccount, ORIGIN_REST, names};
use crate::crash;
use crate::objects::AccountKey;
use crate::telemetry::outages::warn_unless_away;

/// Maximum number of attempts at a write that conflicts with other writers of the same Secret.
const MAX_WRITE_ATTEMPTS: usize = 8;

/// The Secret of one account.
pub(super) struct AccountSecret<'a> {
    state: &'a RestState,
    key: &'a AccountKey,
    name: String,
    api: Api<Secret>,
}

/// Why a Secret was not written.
pub(super) enum SecretWriteError {
    /// Another account has the name, or the account is gone or being deleted.
    Taken,
    /// Any other error.
    Problem(RestError),
}

impl From<RestError> for SecretWriteError {
    fn from(problem: RestError) -> Self {
        Self::Problem(problem)
    }
}

impl From<ApiError> for SecretWriteError {
    fn from(trouble: ApiError) -> Self {
        Self::Problem(trouble.into())
    }
}

impl<'a> AccountSecret<'a> {
    pub(super) fn of(state: &'a RestState, key: &'a AccountKey) -> Self {
        let api = Api::namespaced(state.client.clone(), &key.namespace);
        Self { state, key, name: names::credential_secret_name(&key.name), api }
    }

    /// First step of a POST, before the account exists. Returns the version that holds these contents.
    pub(super) async fn prepare(&self, contents: &Contents<'_>) -> Result<SecretVersion, SecretWriteError> {
        let wanted = self.wanted(contents, None);
        for _ in 0..MAX_WRITE_ATTEMPTS {
            let present = self.get().await?;
            let stands = present.is_some() && self.state.read(self.key).await?.is_some();
            let read = present.as_ref().map(|secret| secret.metadata.clone()).unwrap_or_default();
            let written = match preparation(present, stands, self.secret_key_of(), &wanted) {
                Preparation::Taken => return Err(SecretWriteError::Taken),
                Preparation::NotOurs => return Err(self.not_ours().into()),
                Preparation::Remove => match self.delete(&SecretVersion::of(&read)).await {
                    Ok(()) | Err(ApiError::Changed | ApiError::NotFound) => continue,
                    Err(trouble) => return Err(trouble.into()),
                },
                Preparation::Claim => {
                    let (params, patch) = (PatchParams::default(), Patch::Merge(claim(&read)));
                    crash::point("rest-secret-claim:before");
                    let claimed = self.api.patch_metadata(&self.name, &params, &patch);
                    match self.state.calls.ask(self.call("patch"), claimed).await {
                        Ok(_) => crash::point("rest-secret-claim:after"),
                        Err(ApiError::Changed | ApiError::NotFound) => {}
                        Err(trouble) => return Err(trouble.into()),
                    }
                    continue;
                }
                Preparation::Create => self.create(&wanted).await,
                Preparation::Replace(secret) => self.replace(&secret).await,
            };
            if let Some(version) = written? {
                return Ok(version);
            }
        }
        Err(RestError::from(ApiError::Changed).into())
    }

    /// Last step of a POST that has created this account. `prepared` is the version of the Secret that its first step
    /// wrote.
    pub(super) async fn complete(
        &self,
        contents: &Contents<'_>,
        prepared: &SecretVersion,
        made: &KubesvcAccount,
    ) -> Result<(), SecretWriteError> {
        let wanted = self.wanted(contents, Some(made));
        for _ in 0..MAX_WRITE_ATTEMPTS {
            let written = match self.get().await? {
                Some(present) => {
                    let Some(secret) = completion(&present, prepared, made, &wanted) else { return Ok(()) };
                    self.check_ours(&present)?;
                    self.replace(&secret).await?
                }
                None if self.is_named_by(made).await? => self.create(&wanted).await?,
                None => return Ok(()),
            };
            if written.is_some() {
                return Ok(());
            }
        }
        Err(RestError::from(ApiError::Changed).into())
    }

    /// Writes the contents that a PATCH or PUT gives this account. Returns the written version, or `None` if the
    /// Secret already has them.
    pub(super) async fn change(
        &self,
        contents: &Contents<'_>,
        account: &KubesvcAccount,
    ) -> Result<Option<SecretVersion>, SecretWriteError> {
        let wanted = self.wanted(contents, Some(account));
        for _ in 0..MAX_WRITE_ATTEMPTS {
            let present = self.get().await?;
            let is_of_account =
                present.as_ref().is_some_and(|secret| has_contents_of(&secret.metadata, account.uid()));
            if !is_of_account {
                let now = self.state.read(self.key).await?;
                if now.is_none_or(|now| now.uid() != account.uid() || now.is_being_deleted()) {
                    return Err(SecretWriteError::Taken);
                }
            }
            let written = match present {
                None => self.create(&wanted).await?,
                Some(present) => {
                    self.check_ours(&present)?;
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
        Err(RestError::from(ApiError::Changed).into())
    }

    /// Removes from an account's Secret what the account no longer names. Errors are only logged.
    ///
    /// The Secret is read before the account, and changed or deleted only at the version that was read. A request
    /// that has meanwhile started to use it again has either written the Secret or is visible in the account.
    pub(super) async fn discard(&self) {
        let read = self.state.calls.ask_for(self.call("get"), self.api.get_metadata(&self.name)).await;
        match read {
            Ok(Some(secret)) if is_ours(&secret.metadata, self.secret_key_of()) => {
                self.discard_written(&SecretVersion::of(&secret.metadata)).await;
            }
            Ok(_) => {}
            Err(trouble) => self.stays(&trouble),
        }
    }

    /// Removes from the Secret, at the version that a request has written, what no account uses. Deletes the Secret
    /// if none of it is used: no account exists, the account is being deleted, or it names other credentials. Errors
    /// are only logged.
    pub(super) async fn discard_written(&self, written: &SecretVersion) {
        let discarded = match self.state.read(self.key).await {
            Ok(Some(now)) if self.is_of(&now) && !now.is_being_deleted() => self.trim(written, &now).await,
            Ok(_) => self.delete(written).await,
            Err(problem) => Err(ApiError::Unknown(problem)),
        };
        match discarded {
            // Another request has written it since and is now responsible for it.
            Ok(()) | Err(ApiError::Changed | ApiError::Exists | ApiError::NotFound) => {}
            Err(trouble) => self.stays(&trouble),
        }
    }

    /// Removes what the account does not name, if the Secret still has this version.
    async fn trim(&self, version: &SecretVersion, account: &KubesvcAccount) -> Result<(), ApiError> {
        let Some(present) = self.get().await? else { return Ok(()) };
        match trimmed(&present, &keys_named_by(account)) {
            Some(secret) if SecretVersion::of(&present.metadata) == *version => {
                self.replace(&secret).await.map(drop)
            }
            _ => Ok(()),
        }
    }

    fn stays(&self, trouble: &ApiError) {
        let namespace = &self.key.namespace;
        warn_unless_away!(
            namespace,
            secret = self.name,
            ?trouble,
            "cannot delete an unused kubeconfig from its Secret"
        );
    }

    /// Whether the account still exists and names this Secret.
    async fn is_named_by(&self, account: &KubesvcAccount) -> Result<bool, RestError> {
        let now = self.state.read(self.key).await?;
        Ok(now.is_some_and(|now| now.uid() == account.uid() && self.is_of(&now) && !now.is_being_deleted()))
    }

    /// Whether an account's spec names this Secret.
    pub(super) fn is_of(&self, account: &KubesvcAccount) -> bool {
        account.metadata.name.as_deref() == Some(self.key.name.as_str()) && is_named_by(account)
    }

    fn secret_key_of(&self) -> ObjectName<'_> {
        (&self.key.namespace, &self.key.name)
    }

    fn call(&self, verb: &'static str) -> ApiCall<'_> {
        ApiCall { verb, resource: Resource::Secret, namespace: &self.key.namespace, name: &self.name }
    }

    fn wanted(&self, contents: &Contents<'_>, account: Option<&KubesvcAccount>) -> Secret {
        owned_secret::wanted(self.secret_key_of(), ORIGIN_REST, contents, account)
    }

    fn check_ours(&self, present: &Secret) -> Result<(), RestError> {
        let metadata = &present.metadata;
        let ours =
            is_ours(metadata, self.secret_key_of()) || is_of_earlier_version(metadata, self.secret_key_of());
        if ours { Ok(()) } else { Err(self.not_ours()) }
    }

    fn not_ours(&self) -> RestError {
        let (namespace, name) = (&self.key.namespace, &self.name);
        RestError::conflict(format!(
            "Secret {namespace}/{name} already exists and is not kubesvc's; rename or delete it, because the kubeconfig would be stored there"
        ))
    }

    async fn get(&self) -> Result<Option<Secret>, ApiError> {
        self.state.calls.ask_for(self.call("get"), self.api.get(&self.name)).await
    }

    /// Creates the Secret. Returns `None` after a conflict.
    async fn create(&self, secret: &Secret) -> Result<Option<SecretVersion>, ApiError> {
        crash::point("rest-secret:before");
        let params = post_params();
        let created = self.api.create(&params, secret);
        written(self.state.calls.ask(self.call("create"), created).await)
    }

    /// Replaces the Secret. Returns `None` after a conflict.
    async fn replace(&self, secret: &Secret) -> Result<Option<SecretVersion>, ApiError> {
        crash::point("rest-secret:before");
        let params = post_params();
        let replaced = self.api.replace(&self.name, &params, secret);
        written(self.state.calls.ask(self.call("update"), replaced).await)
    }

    async fn delete(&self, version: &SecretVersion) -> Result<(), ApiError> {
        let params = DeleteParams::default().preconditions(version.preconditions());
        self.state.calls.ask(self.call("delete"), self.api.delete(&self.name, &params)).await.map(drop)
    }
}

fn written(answer: Result<Secret, ApiError>) -> Result<Option<SecretVersion>, ApiError> {
    match answer {
        Ok(secret) => {
            crash::point("rest-secret:after");
            Ok(Some(SecretVersion::of(&secret.metadata)))
        }
        Err(ApiError::Exists | ApiError::Changed | ApiError::NotFound) => Ok(None),
        Err(trouble) => Err(trouble),
    }
}

fn post_params() -> PostParams {
    PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() }
}
