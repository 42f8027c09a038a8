//! The definition that an account is started with.

use std::fmt;

use secrecy::zeroize::Zeroize;

use crate::wire::ops::AccountSpec;
use crate::wire::ops::account_spec::Credential;

/// An account's definition: an [`AccountSpec`] without the account's reference. A kubeconfig in it is wiped
/// from memory on drop.
#[derive(PartialEq)]
pub struct Definition(AccountSpec);

impl Definition {
    /// Splits a specification into the account reference, if it has one, and the rest.
    pub fn split(mut spec: AccountSpec) -> (Option<crate::wire::common::AccountRef>, Self) {
        (spec.account.take(), Self(spec))
    }

    /// The specification, without an account reference.
    pub fn spec(&self) -> &AccountSpec {
        &self.0
    }

    /// Whether the same definition may later lead to another credential: a file or a mounted token can change
    /// in place.
    pub fn may_change_unseen(&self) -> bool {
        matches!(self.0.credential, Some(Credential::File(_) | Credential::ServiceAccount(_)))
    }
}

impl Drop for Definition {
    fn drop(&mut self) {
        if let Some(Credential::Kubeconfig(bytes)) = &mut self.0.credential {
            bytes.zeroize();
        }
    }
}

impl fmt::Debug for Definition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Definition").field(&self.0.credential).finish()
    }
}
