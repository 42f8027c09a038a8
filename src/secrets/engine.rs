//! Secret engines: each resolves the references that carry its name. Here are the port, the set of available engines, and
//! the engines `k8s` and `noop`; the engine `file` is in [`file`](super::file).

use std::collections::BTreeMap;

use async_trait::async_trait;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use secrecy::SecretSlice;
use tracing::warn;

use kubesvc_core::credential_expiry::EXPIRES_ANNOTATION;
use kubesvc_core::failure::{Failure, FailureClass};
use kubesvc_core::secret_reference::{Reference, ReferenceError};
use kubesvc_runtime::kube_access::{KubeAccess, KubeCause, KubeError};

/// Content read from a source.
pub(super) struct ResolvedSecret {
    /// The content, not vetted.
    pub(super) content: SecretSlice<u8>,
    /// Identity of the object that holds the content, if another one can take its name: a Secret's uid.
    pub(super) holder: Option<String>,
    /// Version of the content; `None` if it changes only with the reference.
    pub(super) version: Option<String>,
    /// Whether each replica has its own copy, so that the version means nothing to other replicas.
    pub(super) is_copy: bool,
    /// When the content expires, as the object that holds it says.
    pub(super) expires: Option<Timestamp>,
}

/// Resolves the references that name this engine.
#[async_trait]
pub(super) trait Engine: Send + Sync {
    /// Name of the engine in references.
    fn name(&self) -> &'static str;

    /// Reads what a reference stands for. The parameters have been checked. `namespace` is that of the
    /// account, `field` the spec field that contains the reference.
    ///
    /// # Errors
    /// `BadReference` if the reference cannot be used as it is, `CredentialMissing` if nothing is there,
    /// `Internal` if the engine cannot be read. No message contains what was read.
    async fn resolve(
        &self,
        reference: &Reference,
        namespace: &str,
        field: &str,
    ) -> Result<ResolvedSecret, Failure>;
}

/// The available engines.
pub(super) struct Engines(BTreeMap<&'static str, Box<dyn Engine>>);

impl Engines {
    pub(super) fn new(engines: Vec<Box<dyn Engine>>) -> Self {
        Self(engines.into_iter().map(|engine| (engine.name(), engine)).collect())
    }

    /// Reads what a reference stands for. `source` is the spec field that contains it.
    pub(super) async fn resolve(
        &self,
        text: &str,
        namespace: &str,
        source: &str,
    ) -> Result<ResolvedSecret, Failure> {
        let field = format!("{source}.reference");
        self.read(text, namespace, &field).await.map_err(|failure| match failure.class {
            FailureClass::BadReference => {
                Failure::new(FailureClass::BadReference, format!("{field}: {}", failure.message))
            }
            _ => failure,
        })
    }

    async fn read(&self, text: &str, namespace: &str, field: &str) -> Result<ResolvedSecret, Failure> {
        let reference = Reference::parse(text).map_err(|problem| refused(&problem))?;
        let Some(engine) = self.0.get(reference.engine()) else {
            let there: Vec<_> = self.0.keys().copied().collect();
            return Err(refused_because(format!(
                "secret engine {:?} is not available; there are {}",
                reference.engine(),
                there.join(", ")
            )));
        };
        reference.check_parameters().map_err(|problem| refused(&problem))?;
        engine.resolve(&reference, namespace, field).await
    }
}

/// The failure of a reference that cannot be used as it is.
pub(super) fn refused(problem: &ReferenceError) -> Failure {
    refused_because(problem.to_string())
}

/// Like [`refused`], with the reason as text.
pub(super) fn refused_because(problem: impl AsRef<str>) -> Failure {
    Failure::new(FailureClass::BadReference, problem.as_ref().to_owned())
}

/// Maximum number of keys of a Secret in a message.
const MAX_SHOWN_KEYS: usize = 8;

/// The failure of a source that does not exist yet.
pub(super) fn missing(message: String) -> Failure {
    Failure::new(FailureClass::CredentialMissing, message)
}

/// Reads Secrets with the operator's own rights, for `secretRef` and as the engine `k8s`: a key of a Secret, in the
/// account's own namespace or in one that the source rules allow.
#[derive(Clone)]
pub(super) struct KubeSecrets(KubeAccess);

/// A key of a Secret, and the spec fields that name both.
pub(super) struct SecretField<'a> {
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
    pub(super) key: &'a str,
    pub(super) name_field: &'a str,
    pub(super) key_field: &'a str,
}

impl KubeSecrets {
    pub(super) fn new(kube: KubeAccess) -> Self {
        Self(kube)
    }

    /// Reads a key of a Secret. The version is the Secret's uid and resourceVersion.
    pub(super) async fn read(&self, wanted: &SecretField<'_>) -> Result<ResolvedSecret, Failure> {
        let SecretField { namespace, name, key, key_field, .. } = wanted;
        let mut secret = self.get(wanted).await?;
        let version = version_of(&secret);
        let Some(bytes) = secret.data.as_mut().and_then(|data| data.remove(*key)) else {
            let keys = keys_of(&secret);
            return Err(missing(format!(
                "Secret {namespace}/{name} has no key {key:?}, and has {keys}; name one in {key_field}, or add {key:?}"
            )));
        };
        let expires = expires_of(&secret);
        let holder = secret.metadata.uid;
        Ok(ResolvedSecret { content: SecretSlice::from(bytes.0), holder, version, is_copy: false, expires })
    }

    async fn get(&self, wanted: &SecretField<'_>) -> Result<Secret, Failure> {
        let SecretField { namespace, name, name_field, .. } = wanted;
        let read = self.0.namespaced(namespace).get(name).await;
        read.map_err(|error| {
            let why = format!("Secret {namespace}/{name} cannot be read: {}", explain(&error));
            Failure::new(FailureClass::Internal, why)
        })?
        .ok_or_else(|| {
            missing(format!("Secret {namespace}/{name} is not there; create it, or correct {name_field}"))
        })
    }
}

#[async_trait]
impl Engine for KubeSecrets {
    fn name(&self) -> &'static str {
        "k8s"
    }

    async fn resolve(
        &self,
        reference: &Reference,
        namespace: &str,
        field: &str,
    ) -> Result<ResolvedSecret, Failure> {
        let named = reference.secret_key(namespace).map_err(|problem| refused(&problem))?;
        let (namespace, name, key) = named.map(|one| (one.namespace, one.name, one.key)).unwrap_or_default();
        let wanted = SecretField {
            namespace,
            name,
            key,
            name_field: &format!("n in {field}"),
            key_field: &format!("k in {field}"),
        };
        self.read(&wanted).await
    }
}

/// The keys of a Secret for a message: the first few, without the values.
fn keys_of(secret: &Secret) -> String {
    let mut keys = secret.data.iter().flat_map(|data| data.keys());
    let shown: Vec<_> = keys.by_ref().take(MAX_SHOWN_KEYS).map(|key| format!("{key:?}")).collect();
    match (shown.is_empty(), keys.count()) {
        (true, _) => "none".to_owned(),
        (_, 0) => shown.join(", "),
        (_, more) => format!("{} and {more} more", shown.join(", ")),
    }
}

/// The Secret's uid and resourceVersion, joined by a slash.
fn version_of(secret: &Secret) -> Option<String> {
    Some(format!("{}/{}", secret.metadata.uid.as_deref()?, secret.metadata.resource_version.as_deref()?))
}

/// When the content of a Secret expires, as its annotation says.
fn expires_of(secret: &Secret) -> Option<Timestamp> {
    let text = secret.metadata.annotations.as_ref()?.get(EXPIRES_ANNOTATION)?;
    let (namespace, name) = (secret.metadata.namespace.as_deref(), secret.metadata.name.as_deref());
    let (namespace, name) = (namespace.unwrap_or_default(), name.unwrap_or_default());
    text.parse::<Timestamp>()
        .inspect_err(|error| {
            warn!(
                "no warning before Secret {namespace}/{name} expires: its annotation {EXPIRES_ANNOTATION} is no time such as \
                 2027-01-31T12:00:00Z: {error}"
            );
        })
        .ok()
}

fn explain(error: &KubeError) -> String {
    match error.cause() {
        KubeCause::Status(status) if status.code == 403 => {
            "the operator may not read Secrets there; grant it `get` on secrets in that namespace".to_owned()
        }
        KubeCause::NoAnswer(_) => "the API server does not answer".to_owned(),
        _ => error.why(),
    }
}

/// The engine `noop`: the reference is the secret itself. Anyone who may read the account may read it.
pub(super) struct NoopEngine;

#[async_trait]
impl Engine for NoopEngine {
    fn name(&self) -> &'static str {
        "noop"
    }

    async fn resolve(&self, reference: &Reference, _: &str, _: &str) -> Result<ResolvedSecret, Failure> {
        let value = reference.get("v").unwrap_or_default();
        Ok(ResolvedSecret {
            content: SecretSlice::from(value.as_bytes().to_vec()),
            holder: None,
            version: None,
            is_copy: false,
            expires: None,
        })
    }
}
