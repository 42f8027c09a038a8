//! What comes out of the decisions about an account: what the stream does, and why it is closed.

use std::sync::Arc;

use kubesvc_core::lifecycle::CachingReport;
use kubesvc_core::wire::events::cache_down::Frame;
use kubesvc_core::wire::events::revoked::Reason;

use super::AcceptedBatch;
use crate::hub::caching::batch_check::BatchError;
use crate::hub::caching::scopes::{DeclaredScope, ScopeError};
use crate::hub::caching::transaction_batching::LaneId;

/// What the stream does.
#[derive(Debug, PartialEq)]
pub(crate) enum ReceiverEffect {
    /// Send this to the agent.
    Send(Frame),
    /// Read how far the account is written: for Begin, or for these added scopes.
    ReadProgress {
        lane: LaneId,
        added: Option<Vec<u32>>,
    },
    /// Let the shard take batches of this lane.
    OpenLane(LaneId),
    /// Drop the batches of this lane that wait at the shard.
    CloseLane(LaneId),
    /// Give a batch to the shard.
    Queue(Box<AcceptedBatch>),
    /// These bytes wait for no commit any more.
    Release(u64),
    /// Send the rows of a scope whose list begins.
    SendBasis {
        lane: LaneId,
        scope: Arc<DeclaredScope>,
        sync_key: String,
    },
    /// Show what is left out of the account's objects.
    Report(CachingReport),
    /// Tell that the account's Namespaces may be others than before.
    NamespacesWritten,
    CountRewind,
}

/// Why the stream is closed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ReceiverError {
    #[error("batch {seq} of account {uid} cannot be taken")]
    Batch {
        uid: Arc<str>,
        seq: u64,
        #[source]
        why: BatchError,
    },
    #[error("the scopes of account {uid} cannot be taken")]
    Scope {
        uid: Arc<str>,
        #[source]
        why: ScopeError,
    },
    #[error("batch {seq} of account {uid} came before the answer to Begin; wait for Resume")]
    NotResumed { uid: Arc<str>, seq: u64 },
    #[error("the list of scope {scope_id} of account {uid} has a key of {bytes} bytes; send a ULID")]
    SyncKey { uid: Arc<str>, scope_id: u32, bytes: usize },
    #[error("a {0} names no account; send its fence")]
    NoFence(&'static str),
    #[error("a {what} of account {uid} under epoch {epoch} came without Begin")]
    NotBegun { what: &'static str, uid: String, epoch: u64 },
    #[error("more than {0} scopes on one stream; watch fewer kinds or namespaces")]
    TooManyScopes(usize),
    #[error("more than {0} accounts on one stream")]
    TooManyAccounts(usize),
}

/// Whether the agent of a session streams an account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AssignmentState {
    /// It does, and the fence stands for it. Carries the account's name.
    Stands(Arc<str>),
    /// The fence is not raised for it yet, or what is known of the account is out of date.
    Pending,
    /// It does not, or no longer.
    Revoked(Reason),
}

/// State of an account, as it is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum DeliveryState {
    /// It waits for its scopes, its fence, or the database.
    Waiting,
    /// Some scope has no checkpoint.
    Listing,
    /// All scopes have one.
    Synced,
}
