//! Secret engines: who resolves a reference, by the engine's name in it.

use std::collections::BTreeMap;

use async_trait::async_trait;
use secrecy::SecretSlice;

use crate::account::failure::{Failure, FailureClass};
use crate::account::secret_reference::{Reference, ReferenceError};

/// What a source had.
pub(super) struct ResolvedSecret {
    /// The content as it is, not vetted.
    pub(super) content: SecretSlice<u8>,
    /// What holds the content, where one thing may be replaced by another under the same name: a Secret's uid.
    pub(super) holder: Option<String>,
    /// Which version of it this is; none if it changes only with the reference.
    pub(super) version: Option<String>,
    /// Each replica has a copy of its own, and the version says nothing of those of the others.
    pub(super) is_copy: bool,
}

/// Resolves the references that name it.
#[async_trait]
pub(super) trait Engine: Send + Sync {
    /// Its name in references.
    fn name(&self) -> &'static str;

    /// Reads what a reference stands for. Its parameters have been checked; `namespace` is the account's, `field` the one
    /// of its spec that has the reference.
    ///
    /// # Errors
    /// `BadReference` where it cannot be used as it stands, `CredentialMissing` where nothing is there, `Internal`
    /// where the engine cannot be asked. No message holds what was read.
    async fn resolve(
        &self,
        reference: &Reference,
        namespace: &str,
        field: &str,
    ) -> Result<ResolvedSecret, Failure>;
}

/// The engines there are.
pub(super) struct Engines(BTreeMap<&'static str, Box<dyn Engine>>);

impl Engines {
    pub(super) fn new(engines: Vec<Box<dyn Engine>>) -> Self {
        Self(engines.into_iter().map(|engine| (engine.name(), engine)).collect())
    }

    /// Reads what the reference of a source stands for, which stands in this field of the spec.
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

/// A reference that cannot be used as it stands.
pub(super) fn refused(problem: &ReferenceError) -> Failure {
    refused_because(problem.to_string())
}

/// As [`refused`].
pub(super) fn refused_because(problem: impl AsRef<str>) -> Failure {
    Failure::new(FailureClass::BadReference, problem.as_ref().to_owned())
}

/// Nothing is there, yet.
pub(super) fn missing(message: String) -> Failure {
    Failure::new(FailureClass::CredentialMissing, message)
}
