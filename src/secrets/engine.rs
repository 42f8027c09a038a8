//! Secret engines: each resolves the references that carry its name.

use std::collections::BTreeMap;

use async_trait::async_trait;
use secrecy::SecretSlice;

use crate::account::failure::{Failure, FailureClass};
use crate::account::secret_reference::{Reference, ReferenceError};

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

/// The failure of a source that does not exist yet.
pub(super) fn missing(message: String) -> Failure {
    Failure::new(FailureClass::CredentialMissing, message)
}
