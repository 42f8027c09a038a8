//! The Secret for the kubeconfig that a row holds. The rules are REST's: Secret, object, owner, in this order, and a
//! Secret that is not ours is never touched.

use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use secrecy::SecretString;
use tracing::warn;

use super::{BoxedError, Controller, Refused, timed};
use crate::account::owned_secret::{self, brought_to, is_ours, owner_patch, owners, stale_owner};
use crate::account::{FIELD_MANAGER, KubesvcAccount, ORIGIN_MIGRATED, names};
use crate::budget::Urgency;
use crate::crash;

/// How often a write is tried against others that write the same Secret.
const TRIES: usize = 5;

/// What became of a Secret.
pub(super) enum Kept {
    /// It holds the kubeconfig, and waits for its owner.
    Ready,
    /// The object that owns it stands.
    Stands,
    /// It cannot be written, and why.
    Refused(String),
}

/// An answer about a Secret: what was refused says nothing of what was sent.
enum Answer<T> {
    Done(T),
    /// It is there already, another version, or gone.
    Changed,
    Refused(String),
}

impl Controller {
    /// Brings the Secret of an object that is to be made to these contents, unless it is that already.
    pub(super) async fn keep_secret(
        &self,
        object: &KubesvcAccount,
        contents: &SecretString,
    ) -> Result<Kept, BoxedError> {
        let place @ (namespace, object_name) = place(object);
        let wanted = owned_secret::wanted(place, ORIGIN_MIGRATED, contents, None);
        let name = names::credential_secret_name(object_name);
        let (api, post) = (self.secrets(namespace), post());
        for _ in 0..TRIES {
            let Some(present) = timed(api.get_opt(&name)).await.map_err(without_contents)? else {
                match self
                    .write(["adopt-secret:before", "adopt-secret:after"], api.create(&post, &wanted))
                    .await?
                {
                    Answer::Done(_) => return Ok(Kept::Ready),
                    Answer::Changed => continue,
                    Answer::Refused(why) => {
                        return Ok(Kept::Refused(format!("its Secret {name} is refused: {why}")));
                    }
                }
            };
            if !is_ours(&present.metadata, object_name) {
                return Ok(Kept::Refused(format!(
                    "the Secret {namespace}/{name} is there already and not of kubesvc; rename or delete it, since the kubeconfig would go there"
                )));
            }
            if let Some(owner) = stale_owner(&present.metadata, None) {
                let standing = timed(self.api(object).get_opt(object_name)).await?;
                if standing.is_some_and(|standing| standing.uid() == owner) {
                    return Ok(Kept::Stands);
                }
                // It waits for the garbage collector, which would take the new account's credential away.
                self.delete(&api, &name, &present.metadata).await?;
                continue;
            }
            let Some(present) = brought_to(present, &wanted) else { return Ok(Kept::Ready) };
            let replaced = api.replace(&name, &post, &present);
            match self.write(["adopt-secret:before", "adopt-secret:after"], replaced).await? {
                Answer::Done(_) => return Ok(Kept::Ready),
                Answer::Changed => {}
                Answer::Refused(why) => {
                    return Ok(Kept::Refused(format!("its Secret {name} is refused: {why}")));
                }
            }
        }
        Err(format!("others write the Secret {namespace}/{name} at the same time").into())
    }

    /// Deletes the Secret that an object was to have, if nobody owns it.
    pub(super) async fn discard_secret(&self, object: &KubesvcAccount) -> Result<(), BoxedError> {
        let (namespace, object_name) = place(object);
        let (api, name) = (self.secrets(namespace), names::credential_secret_name(object_name));
        let found = timed(api.get_metadata_opt(&name)).await.map_err(without_contents)?;
        match found {
            Some(secret) if is_ours(&secret.metadata, object_name) && owners(&secret.metadata).is_empty() => {
                self.delete(&api, &name, &secret.metadata).await
            }
            _ => Ok(()),
        }
    }

    /// Gives an account's Secret its owner, if it is ours and has none. That this is refused keeps nothing from going on.
    pub(in crate::controller) async fn own_secret(&self, account: &KubesvcAccount) -> Result<(), BoxedError> {
        if let Some(why) = self.try_to_own(account).await? {
            warn!(
                account = account.account_name(),
                why, "a Secret is given no owner, and may stay behind when its account goes"
            );
        }
        Ok(())
    }

    /// The answer is why it is refused, if it is.
    async fn try_to_own(&self, account: &KubesvcAccount) -> Result<Option<String>, BoxedError> {
        let (namespace, object_name) = place(account);
        let (api, name) = (self.secrets(namespace), names::credential_secret_name(object_name));
        for _ in 0..TRIES {
            let secret = match judge(timed(api.get_metadata(&name)).await)? {
                Answer::Done(secret) => secret,
                Answer::Changed => return Ok(None),
                Answer::Refused(why) => return Ok(Some(format!("the Secret {namespace}/{name}: {why}"))),
            };
            if !is_ours(&secret.metadata, object_name) || !owners(&secret.metadata).is_empty() {
                return Ok(None);
            }
            let (parameters, patch) =
                (PatchParams::apply(FIELD_MANAGER), Patch::Merge(owner_patch(&secret.metadata, account)));
            let patched = api.patch_metadata(&name, &parameters, &patch);
            match self.write(["adopt-secret-owner:before", "adopt-secret-owner:after"], patched).await? {
                Answer::Done(_) => return Ok(None),
                Answer::Changed => {}
                Answer::Refused(why) => return Ok(Some(format!("the Secret {namespace}/{name}: {why}"))),
            }
        }
        Err(format!("others write the Secret {namespace}/{name} at the same time").into())
    }

    fn secrets(&self, namespace: &str) -> Api<Secret> {
        Api::namespaced(self.context.client.clone(), namespace)
    }

    async fn write<T>(
        &self,
        [before, after]: [&'static str; 2],
        request: impl Future<Output = kube::Result<T>>,
    ) -> Result<Answer<T>, BoxedError> {
        self.context.budget.take(Urgency::Rest).await;
        crash::point(before);
        let answer = timed(request).await;
        crash::point(after);
        judge(answer)
    }

    /// Deletes a Secret as it was read.
    async fn delete(&self, api: &Api<Secret>, name: &str, read: &ObjectMeta) -> Result<(), BoxedError> {
        let preconditions =
            Preconditions { uid: read.uid.clone(), resource_version: read.resource_version.clone() };
        let parameters = DeleteParams::default().preconditions(preconditions);
        self.context.budget.take(Urgency::Rest).await;
        match judge(timed(api.delete(name, &parameters)).await)? {
            Answer::Done(_) | Answer::Changed => Ok(()),
            Answer::Refused(why) => Err(format!("the Secret {name} is not deleted: {why}").into()),
        }
    }
}

fn judge<T>(answer: Result<T, BoxedError>) -> Result<Answer<T>, BoxedError> {
    let error = match answer {
        Ok(value) => return Ok(Answer::Done(value)),
        Err(error) => error,
    };
    let is_namespace = matches!(
        error.downcast_ref::<kube::Error>(),
        Some(kube::Error::Api(status)) if status.details.as_ref().is_some_and(|of| of.kind == "namespaces")
    );
    let refused = Refused::of(error).map_err(without_contents)?;
    Ok(match refused.code {
        404 | 409 if !is_namespace => Answer::Changed,
        _ => Answer::Refused(refused.why),
    })
}

/// An error of a request that may have held a kubeconfig.
fn without_contents(error: BoxedError) -> BoxedError {
    match error.downcast_ref::<kube::Error>() {
        Some(kube::Error::Api(status)) => {
            format!("the API server answers {} {} for a Secret", status.code, status.reason).into()
        }
        Some(_) => "the API server cannot be asked for a Secret".into(),
        None => error,
    }
}

fn place(object: &KubesvcAccount) -> (&str, &str) {
    let metadata = &object.metadata;
    (metadata.namespace.as_deref().unwrap_or_default(), metadata.name.as_deref().unwrap_or_default())
}

fn post() -> PostParams {
    PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() }
}
