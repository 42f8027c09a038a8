//! The Secret that holds a kubeconfig given to REST. The rules are in [`owned_secret`].
//!
//! The order is Secret, object: an object never stands without its credential. What is left if the process dies in
//! between, and who puts it right:
//!
//! | it dies after | what is left | who puts it right |
//! |---|---|---|
//! | a claim (`rest-secret-claim`) | the Secret as it was, marked | the next POST of that name |
//! | the Secret (`rest-secret`) | of a POST: a Secret of ours without an account | the next POST of that name takes it over, with the content that it brings |
//! | | of a PATCH or PUT: the new content, under the old spec | the same request again |
//! | the object (`rest-create`) | all | |
//!
//! Two POSTs of one name at once both prepare the Secret, and one of them creates the object. If others have written to
//! the Secret since it was prepared, the winner writes its own content once more, and from then on the loser finds that
//! the object stands, and answers 409.
//!
//! Whose the content is stands in an annotation for each key (`kubesvc.io/contents-of`, `kubesvc.io/agent-contents-of`): the uid of the account, written with the
//! content by whoever knew the account, which are the last step of POST, PATCH and PUT. So the last step of a POST tells
//! what another POST has prepared, and writes over it, from what a PATCH or PUT has stored meanwhile, and leaves that as
//! it is. It also leaves a Secret absent that the account no longer names.
//!
//! It has a key for the account's own kubeconfig and one for the agents'. A PATCH or PUT writes the keys that it gives; of
//! the others it leaves those that the account names. Once the spec names a key no more it is taken out: the Secret then
//! stands without it, or goes with its last. If the process dies before that, the key stays unused until the Secret goes.
//!
//! A PATCH or PUT writes only where the account that it has judged still stands and is not being deleted, as read after
//! the Secret. If the account goes before its spec is patched, the request deletes what it has written, at the version
//! that it has written. The operator deletes the Secret of an account that goes; a Secret that is not ours is never
//! touched.

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

/// How often a write is tried against others that write the same Secret.
const MAX_WRITE_ATTEMPTS: usize = 8;

/// One account's Secret.
pub(super) struct AccountSecret<'a> {
    state: &'a RestState,
    key: &'a AccountKey,
    name: String,
    api: Api<Secret>,
}

/// Why a Secret was not written.
pub(super) enum SecretWriteError {
    /// Another account stands under that name, or none where there was one.
    Taken,
    /// Anything else.
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

    /// The first step of a POST: there is no account yet. The answer is the version that holds these contents.
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

    /// The last step of a POST that has made this account, of which `prepared` is the Secret.
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

    /// Brings the Secret to the contents that a PATCH or PUT gives this account, unless it is that already. The answer is
    /// the version that was written.
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

    /// Takes out of the Secret of an account what it does not name any more. What goes wrong is only logged.
    ///
    /// The Secret is read before the account, and changed or deleted only at the version that was read: a request that has
    /// meanwhile made use of it again has either written it or is seen in the account.
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

    /// Takes out of the Secret, at the version that a request has written, what no account makes use of; without a use for
    /// any of it, because no account stands, or it is being deleted, or names other credentials, deletes it. What goes
    /// wrong is only logged.
    pub(super) async fn discard_written(&self, written: &SecretVersion) {
        let discarded = match self.state.read(self.key).await {
            Ok(Some(now)) if self.is_of(&now) && !now.is_being_deleted() => self.trim(written, &now).await,
            Ok(_) => self.delete(written).await,
            Err(problem) => Err(ApiError::Unknown(problem)),
        };
        match discarded {
            // Others have written it since: it is theirs.
            Ok(()) | Err(ApiError::Changed | ApiError::Exists | ApiError::NotFound) => {}
            Err(trouble) => self.stays(&trouble),
        }
    }

    /// Takes out what the account does not name, if the Secret is still this version.
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
            "a kubeconfig that no account uses stays in its Secret"
        );
    }

    /// Whether the account still stands, and names this Secret.
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
            "the Secret {namespace}/{name} is there already and not of kubesvc; rename or delete it, since the kubeconfig would go there"
        ))
    }

    async fn get(&self) -> Result<Option<Secret>, ApiError> {
        self.state.calls.ask_for(self.call("get"), self.api.get(&self.name)).await
    }

    /// None: others were faster.
    async fn create(&self, secret: &Secret) -> Result<Option<SecretVersion>, ApiError> {
        crash::point("rest-secret:before");
        let params = post_params();
        let created = self.api.create(&params, secret);
        written(self.state.calls.ask(self.call("create"), created).await)
    }

    /// As [`Self::create`].
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
