//! Results of the decisions about an account: effects for the stream, and reasons to close it.

use std::sync::Arc;

use kubesvc_core::lifecycle::CachingReport;
use kubesvc_core::wire::events::cache_down::Frame;
use kubesvc_core::wire::events::revoked::Reason;

use super::AcceptedBatch;
use crate::hub::caching::batch_check::BatchError;
use crate::hub::caching::scopes::{DeclaredScope, ScopeError};
use crate::hub::caching::transaction_batching::LaneId;

/// An action for the stream.
#[derive(Debug, PartialEq)]
pub(crate) enum ReceiverEffect {
    /// Send this frame to the agent.
    Send(Frame),
    /// Read the stored progress of the account, for Begin or for these added scopes.
    ReadProgress {
        lane: LaneId,
        added: Option<Vec<u32>>,
    },
    /// Let the shard accept batches of this lane.
    OpenLane(LaneId),
    /// Drop the queued batches of this lane at the shard.
    CloseLane(LaneId),
    /// Give a batch to the shard.
    Queue(Box<AcceptedBatch>),
    /// Return these bytes of credit: no commit is pending for them.
    Release(u64),
    /// Send the rows of a scope whose list begins.
    SendBasis {
        lane: LaneId,
        scope: Arc<DeclaredScope>,
        sync_key: String,
    },
    /// Show the account's left-out objects.
    Report(CachingReport),
    /// Publish that the account's Namespaces may have changed.
    NamespacesWritten,
    CountRewind,
}

/// Reason to close the stream.
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

/// Assignment of an account to the agent of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AssignmentState {
    /// Assigned, with the fence raised. Carries the account's name.
    Stands(Arc<str>),
    /// The fence is not raised yet, or the known state of the account is out of date.
    Pending,
    /// Not assigned, or no longer.
    Revoked(Reason),
}

/// State of an account in metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum DeliveryState {
    /// Waits for its scopes, its fence, or the database.
    Waiting,
    /// Some scope has no checkpoint.
    Listing,
    /// All scopes have a checkpoint.
    Synced,
}
