//! The engine `noop`: the reference is the secret. Who may read the account may read it.

use async_trait::async_trait;
use secrecy::SecretSlice;

use super::engine::{Engine, Found};
use crate::account::failure::Failure;
use crate::account::secret_reference::Reference;

/// Takes the value from the reference itself.
pub(super) struct Noop;

#[async_trait]
impl Engine for Noop {
    fn name(&self) -> &'static str {
        "noop"
    }

    async fn resolve(&self, reference: &Reference, _: &str, _: &str) -> Result<Found, Failure> {
        let value = reference.get("v").unwrap_or_default();
        Ok(Found {
            content: SecretSlice::from(value.as_bytes().to_vec()),
            holder: None,
            version: None,
            is_copy: false,
        })
    }
}
