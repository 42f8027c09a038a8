//! Whether this process may write rows, and under which term.

use std::sync::Arc;

use futures::future::BoxFuture;
use tokio_util::sync::CancellationToken;

use crate::store::Term;

/// Asks whether the replica still leads. It is asked after a term was begun and before it is used: a replica that slept
/// through its lead must not end the term of whoever leads now and go on.
pub type Confirm = Arc<dyn Fn() -> BoxFuture<'static, bool> + Send + Sync>;

/// A lead that has begun.
#[derive(Clone)]
pub struct Lead {
    /// The replica, as it is named in `kubesvc_locks`.
    pub replica_id: String,
    /// Whether it still leads.
    pub confirm: Confirm,
    /// Is cancelled when a later term was found: all work of the leader must end. Once it is cancelled, by whomever,
    /// nothing is written any more.
    pub over: CancellationToken,
}

/// Who writes rows.
#[derive(Clone, Default)]
pub(super) enum Office {
    /// There is only this process.
    #[default]
    Alone,
    /// Another replica does, or nobody.
    Follows,
    /// This one does, once it has a term.
    Elected(Lead),
    /// This one does.
    Leads(Lead, Term),
}

impl Office {
    /// Whether what is said here counts.
    pub(super) fn writes(&self) -> bool {
        match self {
            Self::Alone => true,
            Self::Follows => false,
            Self::Elected(lead) | Self::Leads(lead, _) => !lead.over.is_cancelled(),
        }
    }

    /// The term to write under.
    pub(super) fn term(&self) -> Option<Term> {
        match self {
            Self::Leads(_, term) => Some(*term),
            Self::Alone | Self::Follows | Self::Elected(_) => None,
        }
    }
}
