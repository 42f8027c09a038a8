//! Reads Secrets from the operator's API server.

use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use secrecy::SecretSlice;

use super::engine::{ResolvedSecret, missing};
use crate::account::failure::{Failure, FailureClass};

/// Timeout for one answer of the API server.
const READ_TIMEOUT: Duration = Duration::from_secs(15);

/// Reads Secrets with the operator's own client.
#[derive(Clone)]
pub(super) struct KubeSecrets {
    client: Client,
}

/// A key of a Secret, and the spec fields that name both.
pub(super) struct SecretField<'a> {
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
    pub(super) key: &'a str,
    pub(super) name_field: &'a str,
    pub(super) key_field: &'a str,
}

impl KubeSecrets {
    pub(super) fn new(client: Client) -> Self {
        Self { client }
    }

    /// Reads a key of a Secret. The version is the Secret's uid and resourceVersion.
    pub(super) async fn read(&self, place: &SecretField<'_>) -> Result<ResolvedSecret, Failure> {
        let SecretField { namespace, name, key, key_field, .. } = place;
        let mut secret = self.get(place).await?;
        let version = version_of(&secret);
        let bytes = secret.data.as_mut().and_then(|data| data.remove(*key)).ok_or_else(|| {
            missing(format!("Secret {namespace}/{name} has no key {key:?}; add it, or correct {key_field}"))
        })?;
        let holder = secret.metadata.uid;
        Ok(ResolvedSecret { content: SecretSlice::from(bytes.0), holder, version, is_copy: false })
    }

    async fn get(&self, place: &SecretField<'_>) -> Result<Secret, Failure> {
        let SecretField { namespace, name, name_field, .. } = place;
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), namespace);
        tokio::time::timeout(READ_TIMEOUT, secrets.get_opt(name))
            .await
            .map_err(|_| unreadable(namespace, name, "the API server does not answer"))?
            .map_err(|error| unreadable(namespace, name, &explain(&error)))?
            .ok_or_else(|| {
                missing(format!("Secret {namespace}/{name} is not there; create it, or correct {name_field}"))
            })
    }
}

/// The Secret's uid and resourceVersion, joined by a slash.
fn version_of(secret: &Secret) -> Option<String> {
    Some(format!("{}/{}", secret.metadata.uid.as_deref()?, secret.metadata.resource_version.as_deref()?))
}

fn unreadable(namespace: &str, name: &str, why: &str) -> Failure {
    Failure::new(FailureClass::Internal, format!("Secret {namespace}/{name} cannot be read: {why}"))
}

/// Describes an error of the client without anything from the Secret.
fn explain(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if status.code == 403 => {
            "the operator may not read Secrets there; grant it `get` on secrets in that namespace".to_owned()
        }
        kube::Error::Api(status) => format!("the API server answered {} {}", status.code, status.reason),
        _ => "the API server cannot be reached".to_owned(),
    }
}
