//! The Secret for the kubeconfig of an adopted row. The rules are REST's: the Secret before the object, and a foreign
//! Secret is never touched.

use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};

use super::{BoxedError, Controller, timed};
use crate::account::owned_secret::{
    self, Contents, Preparation, SecretVersion, claim, completion, is_ours, preparation,
};
use crate::account::{FIELD_MANAGER, KubesvcAccount, ORIGIN_MIGRATED, names};
use crate::controller::owned_secrets::{SecretResponse, place, without_contents};

/// Maximum number of attempts at a write that conflicts with other writes of the same Secret.
const MAX_WRITE_ATTEMPTS: usize = 8;
/// Crash points of the writes.
const CRASH_POINTS: [&str; 2] = ["adopt-secret:before", "adopt-secret:after"];

/// Result of writing a Secret.
pub(super) enum SecretOutcome {
    /// It holds the kubeconfig, in this version.
    Ready(SecretVersion),
    /// The object already exists.
    Stands,
    /// It cannot be written, for this reason.
    Refused(String),
}

impl Controller {
    /// Writes these contents to the Secret of an object that is about to be created.
    pub(super) async fn keep_secret(
        &self,
        object: &KubesvcAccount,
        contents: &Contents<'_>,
    ) -> Result<SecretOutcome, BoxedError> {
        let place @ (namespace, object_name) = place(object);
        let wanted = owned_secret::wanted(place, ORIGIN_MIGRATED, contents, None);
        let name = names::credential_secret_name(object_name);
        let (api, post) = (self.secrets(namespace), post());
        let refused = |why| Ok(SecretOutcome::Refused(format!("its Secret {name} is refused: {why}")));
        for _ in 0..MAX_WRITE_ATTEMPTS {
            let present = self.secret(&api, &name).await?;
            let read = present.as_ref().map(|secret| secret.metadata.clone()).unwrap_or_default();
            // A Secret of an earlier version that is not marked as the account's may belong to anyone.
            let is_theirs = present.is_some() && !is_ours(&read, place);
            let stands = match &present {
                Some(_) => timed(self.api(object).get_metadata_opt(object_name)).await?.is_some(),
                None => false,
            };
            let next =
                if is_theirs { Preparation::NotOurs } else { preparation(present, stands, place, &wanted) };
            let written = match next {
                Preparation::Taken => return Ok(SecretOutcome::Stands),
                Preparation::NotOurs => {
                    return Ok(SecretOutcome::Refused(format!(
                        "Secret {namespace}/{name} already exists and is not kubesvc's; rename or delete it, because the kubeconfig would be stored there"
                    )));
                }
                Preparation::Remove => {
                    self.remove_secret(&api, &name, &SecretVersion::of(&read), None).await?;
                    continue;
                }
                Preparation::Claim => {
                    let (parameters, patch) = (PatchParams::default(), Patch::Merge(claim(&read)));
                    let claimed = api.patch_metadata(&name, &parameters, &patch);
                    match self.write_secret(CRASH_POINTS, claimed).await? {
                        SecretResponse::Done(_) | SecretResponse::Changed => continue,
                        SecretResponse::Refused(why) => return refused(why),
                    }
                }
                Preparation::Create => self.write_secret(CRASH_POINTS, api.create(&post, &wanted)).await?,
                Preparation::Replace(secret) => {
                    self.write_secret(CRASH_POINTS, api.replace(&name, &post, &secret)).await?
                }
            };
            match written {
                SecretResponse::Done(secret) => {
                    return Ok(SecretOutcome::Ready(SecretVersion::of(&secret.metadata)));
                }
                SecretResponse::Changed => {}
                SecretResponse::Refused(why) => return refused(why),
            }
        }
        Err(others_write(namespace, &name))
    }

    /// Ensures, after the object was created, that the Secret holds these contents, since others may have written to
    /// it meanwhile.
    pub(super) async fn complete_secret(
        &self,
        made: &KubesvcAccount,
        contents: &Contents<'_>,
        prepared: &SecretVersion,
    ) -> Result<(), BoxedError> {
        let place @ (namespace, object_name) = place(made);
        let wanted = owned_secret::wanted(place, ORIGIN_MIGRATED, contents, Some(made));
        let (api, name) = (self.secrets(namespace), names::credential_secret_name(object_name));
        for _ in 0..MAX_WRITE_ATTEMPTS {
            let Some(present) = self.secret(&api, &name).await? else { return Ok(()) };
            let next = completion(&present, prepared, made, &wanted);
            let Some(secret) = next.filter(|_| is_ours(&present.metadata, place)) else { return Ok(()) };
            match self.write_secret(CRASH_POINTS, api.replace(&name, &post(), &secret)).await? {
                SecretResponse::Done(_) | SecretResponse::Refused(_) => return Ok(()),
                SecretResponse::Changed => {}
            }
        }
        Err(others_write(namespace, &name))
    }

    /// Deletes the Secret of an object that was not created, in exactly the version that was written.
    pub(super) async fn discard_secret(
        &self,
        object: &KubesvcAccount,
        written: &SecretVersion,
    ) -> Result<(), BoxedError> {
        let (namespace, object_name) = place(object);
        let (api, name) = (self.secrets(namespace), names::credential_secret_name(object_name));
        self.remove_secret(&api, &name, written, None).await.map(drop)
    }

    async fn secret(&self, api: &Api<Secret>, name: &str) -> Result<Option<Secret>, BoxedError> {
        timed(api.get_opt(name)).await.map_err(without_contents)
    }
}

fn others_write(namespace: &str, name: &str) -> BoxedError {
    format!("others write the Secret {namespace}/{name} at the same time").into()
}

fn post() -> PostParams {
    PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() }
}
