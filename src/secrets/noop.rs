//! The engine `noop`: the reference is the secret itself. Anyone who may read the account may read it.

use async_trait::async_trait;
use secrecy::SecretSlice;

use super::engine::{Engine, ResolvedSecret};
use crate::account::failure::Failure;
use crate::account::secret_reference::Reference;

/// Takes the value from the reference.
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
        })
    }
}
