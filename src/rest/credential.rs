//! The Secret that holds a kubeconfig given to REST.
//!
//! The order is Secret, object, owner: an object never stands without its credential, and the Secret can be owned
//! only once the object has a uid. What is left if the process dies in between, and who puts it right:
//!
//! | it dies after | what is left | the next request for that name |
//! |---|---|---|
//! | the Secret | a Secret of ours without an owner | POST takes it over, with the content that it brings |
//! | the object | an account that works, its Secret without an owner | POST answers 409 and sets the owner, or 503 if it cannot; so does DELETE, and so does the leader before the account goes |
//! | the owner | all | |
//!
//! Two POSTs of one name at once both prepare the Secret, and one of them creates the object. The winner then writes
//! its own content together with the owner, and from then on the Secret is refused to the loser, which answers 409.
//!
//! Whose the content is stands in an annotation (`kubesvc.io/contents-of`): the uid of the account, written with the
//! content by whoever knew the account, which are the last step of POST, PATCH and PUT. Whoever only sets an owner leaves
//! it alone. So the last step of a POST tells what another POST has prepared, and writes over it, from what a PATCH or
//! PUT has stored meanwhile, and leaves that as it is. It also leaves a Secret absent that the account no longer names.
//!
//! A Secret whose owner is gone (it waits for the garbage collector) is deleted by its uid and made anew, or the
//! collector would take the new account's credential away. A Secret that is not ours is never touched.

use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use secrecy::SecretString;
use tracing::warn;

use super::RestState;
use super::api::{Call, Resource, Trouble};
use super::error::Problem;
use crate::account::owned_secret::{
    self, brought_to, contents_of, is_ours, owner_patch, owners, stale_owner,
};
use crate::account::{FIELD_MANAGER, KubesvcAccount, ORIGIN_REST, names};
use crate::crash;
use crate::objects::AccountKey;

/// How often a write is tried against others that write the same Secret.
const TRIES: usize = 5;

/// Crash points before and after a write.
type Points = (&'static str, &'static str);
/// Of the Secret's content.
const CONTENT: Points = ("rest-secret:before", "rest-secret:after");
/// Of its owner.
const OWNER: Points = ("rest-secret-owner:before", "rest-secret-owner:after");

/// Which step of which request writes the Secret.
#[derive(Clone, Copy)]
pub(super) enum Step<'a> {
    /// The first of a POST: there is no account yet.
    Prepare,
    /// The last of a POST that has made this account.
    Finish(&'a KubesvcAccount),
    /// Of a PATCH or PUT to this account.
    Change(&'a KubesvcAccount),
}

impl<'a> Step<'a> {
    fn owner(self) -> Option<&'a KubesvcAccount> {
        match self {
            Self::Prepare => None,
            Self::Finish(account) | Self::Change(account) => Some(account),
        }
    }

    fn points(self) -> Points {
        match self {
            Self::Prepare | Self::Change(_) => CONTENT,
            Self::Finish(_) => OWNER,
        }
    }
}

/// One account's Secret.
pub(super) struct Credential<'a> {
    state: &'a RestState,
    key: &'a AccountKey,
    name: String,
    api: Api<Secret>,
}

/// Why a Secret was not written.
pub(super) enum Denied {
    /// The account of that object stands: it was created meanwhile.
    Taken,
    /// Anything else.
    Problem(Problem),
}

impl From<Problem> for Denied {
    fn from(problem: Problem) -> Self {
        Self::Problem(problem)
    }
}

impl From<Trouble> for Denied {
    fn from(trouble: Trouble) -> Self {
        Self::Problem(trouble.into())
    }
}

impl<'a> Credential<'a> {
    pub(super) fn of(state: &'a RestState, key: &'a AccountKey) -> Self {
        let api = Api::namespaced(state.client.clone(), &key.namespace);
        Self { state, key, name: names::credential_secret_name(&key.name), api }
    }

    /// Brings the Secret to this content and the step's owner, unless it is that already, or others have gone further.
    pub(super) async fn ensure(&self, contents: &SecretString, step: Step<'_>) -> Result<(), Denied> {
        let (owner, points) = (step.owner(), step.points());
        let wanted = self.wanted(contents, owner);
        for _ in 0..TRIES {
            let Some(present) = self.state.calls.ask_for(self.call("get"), self.api.get(&self.name)).await?
            else {
                if let Step::Finish(made) = step
                    && !self.is_named_by(made).await?
                {
                    return Ok(());
                }
                crash::point(points.0);
                match self
                    .state
                    .calls
                    .ask(self.call("create"), self.api.create(&post_params(), &wanted))
                    .await
                {
                    Err(Trouble::Exists) => continue,
                    Err(trouble) => return Err(trouble.into()),
                    Ok(_) => crash::point(points.1),
                }
                return Ok(());
            };
            self.check_ours(&present.metadata)?;
            if let Step::Finish(made) = step
                && contents_of(&present.metadata) == Some(made.uid())
            {
                return Ok(());
            }
            if let Some(stale) = stale_owner(&present.metadata, owner) {
                self.remove_stale(&present.metadata, stale).await?;
                continue;
            }
            let Some(present) = brought_to(present, &wanted) else { return Ok(()) };
            crash::point(points.0);
            match self
                .state
                .calls
                .ask(self.call("update"), self.api.replace(&self.name, &post_params(), &present))
                .await
            {
                Err(Trouble::Changed | Trouble::NotFound) => {}
                Err(trouble) => return Err(trouble.into()),
                Ok(_) => {
                    crash::point(points.1);
                    return Ok(());
                }
            }
        }
        Err(Problem::from(Trouble::Changed).into())
    }

    /// Gives a Secret without an owner its owner, as a crash may have left it. Whose its content is stays open.
    pub(super) async fn adopt(&self, account: &KubesvcAccount) -> Result<(), Problem> {
        if !self.is_of(account) {
            return Ok(());
        }
        for _ in 0..TRIES {
            let got = self.state.calls.ask_for(self.call("get"), self.api.get_metadata(&self.name)).await?;
            let Some(metadata) = got.map(|secret| secret.metadata) else { return Ok(()) };
            if !is_ours(&metadata, &self.key.name) || !owners(&metadata).is_empty() {
                return Ok(());
            }
            let patch = owner_patch(&metadata, account);
            crash::point(OWNER.0);
            let (params, patch) = (PatchParams::apply(FIELD_MANAGER), Patch::Merge(patch));
            let patched = self.api.patch_metadata(&self.name, &params, &patch);
            match self.state.calls.ask(self.call("patch"), patched).await {
                Err(Trouble::Changed | Trouble::NotFound) => {}
                Err(trouble) => return Err(trouble.into()),
                Ok(_) => {
                    crash::point(OWNER.1);
                    return Ok(());
                }
            }
        }
        Err(Problem::unavailable(format!(
            "others write the Secret {}/{} at the same time; try again",
            self.key.namespace, self.name
        )))
    }

    /// Deletes a Secret of ours that no account uses any more: one without an owner, or owned by this account. What goes
    /// wrong is only logged.
    ///
    /// The Secret is read before the account, and deleted only at the version that was read: a request that has
    /// meanwhile made use of it again has either written it or is seen in the account.
    pub(super) async fn discard(&self, account: Option<&KubesvcAccount>) {
        for _ in 0..TRIES {
            match self.discard_as_read(account).await {
                Ok(()) => return,
                Err(Trouble::Changed | Trouble::Exists | Trouble::NotFound) => {}
                Err(trouble) => {
                    return warn!(
                        secret = self.name,
                        ?trouble,
                        "cannot delete the Secret that no account uses"
                    );
                }
            }
        }
        warn!(secret = self.name, "the Secret that no account uses is being written by others, and stays");
    }

    async fn discard_as_read(&self, account: Option<&KubesvcAccount>) -> Result<(), Trouble> {
        let found = self.state.calls.ask_for(self.call("get"), self.api.get_metadata(&self.name)).await?;
        let Some(metadata) = found.map(|secret| secret.metadata) else { return Ok(()) };
        if !is_ours(&metadata, &self.key.name) || stale_owner(&metadata, account).is_some() {
            return Ok(());
        }
        match self.state.read(self.key).await {
            Ok(Some(now)) if self.is_of(&now) => Ok(()),
            Ok(_) => self.delete(&metadata).await,
            Err(problem) => Err(Trouble::Unknown(problem)),
        }
    }

    /// Whether the account still stands, and names this Secret.
    async fn is_named_by(&self, account: &KubesvcAccount) -> Result<bool, Problem> {
        let now = self.state.read(self.key).await?;
        Ok(now.is_some_and(|now| now.uid() == account.uid() && self.is_of(&now)))
    }

    /// Whether an account's spec names this Secret.
    pub(super) fn is_of(&self, account: &KubesvcAccount) -> bool {
        account.spec.kubeconfig.secret_ref.as_ref().is_some_and(|secret| secret.name == self.name)
    }

    fn call(&self, verb: &'static str) -> Call<'_> {
        Call { verb, resource: Resource::Secret, namespace: &self.key.namespace, name: &self.name }
    }

    fn wanted(&self, contents: &SecretString, owner: Option<&KubesvcAccount>) -> Secret {
        owned_secret::wanted((&self.key.namespace, &self.key.name), ORIGIN_REST, contents, owner)
    }

    fn check_ours(&self, metadata: &ObjectMeta) -> Result<(), Problem> {
        if is_ours(metadata, &self.key.name) {
            return Ok(());
        }
        let (namespace, name) = (&self.key.namespace, &self.name);
        Err(Problem::conflict(format!(
            "the Secret {namespace}/{name} is there already and not of kubesvc; rename or delete it, since the kubeconfig would go there"
        )))
    }

    /// Deletes a Secret that waits for the garbage collector, if its owner is really gone.
    async fn remove_stale(&self, metadata: &ObjectMeta, owner_uid: &str) -> Result<(), Denied> {
        let account = self.state.read(self.key).await?;
        if account.is_some_and(|account| account.uid() == owner_uid) {
            return Err(Denied::Taken);
        }
        match self.delete(metadata).await {
            Ok(()) | Err(Trouble::Changed | Trouble::NotFound) => Ok(()),
            Err(trouble) => Err(trouble.into()),
        }
    }

    async fn delete(&self, metadata: &ObjectMeta) -> Result<(), Trouble> {
        let preconditions =
            Preconditions { uid: metadata.uid.clone(), resource_version: metadata.resource_version.clone() };
        let params = DeleteParams::default().preconditions(preconditions);
        self.state.calls.ask(self.call("delete"), self.api.delete(&self.name, &params)).await.map(drop)
    }
}

fn post_params() -> PostParams {
    PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() }
}
