//! Rows about agents, which follow the sessions. Each table family has its own writer task.
//!
//! | module | owns |
//! |---|---|
//! | [`assignments`] | `kubesvc_assignments`: the accounts held by this replica's agents |
//! | [`fences`] | the fences in `kubesvc_caching` |
//! | [`cached_namespaces`] | lists of namespaces that follow the cached objects |
//! | [`caching_commands`] | commands to an agent to stream an account's objects; pure |
//! | [`namespaces`] | the lists of namespaces in the rows of accounts |

pub(super) mod assignments;
pub(super) mod cached_namespaces;
pub(super) mod caching_commands;
pub(super) mod fences;
pub(super) mod namespaces;

use std::sync::Arc;
use std::time::Duration;

use crate::hub::context::HubContext;
use crate::hub::sessions::Sessions;
use assignments::DirtyAssignments;
use fences::DirtyFences;
use kubesvc_store::{AssignmentStore, CacheStore, FenceStore, NamespaceStore, StoreError};
use namespaces::NamespaceLists;

/// Time limit for one request to the database.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// First and maximum delay after a failure of the database, before jitter of up to as much again.
const RETRY_DELAYS: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(15)];
/// Delay before a row that did not exist yet is written again. The leader inserts it shortly.
const ROWLESS_RETRY_DELAY: Duration = Duration::from_secs(1);

async fn with_timeout<T>(request: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
    let late = |_| Err(StoreError::unavailable("it does not answer"));
    tokio::time::timeout(REQUEST_TIMEOUT, request).await.unwrap_or_else(late)
}

/// Dirty sets of the tables, filled by session events.
#[derive(Default)]
pub(super) struct TableWakes {
    pub(super) assignments: Arc<DirtyAssignments>,
    pub(super) fences: Arc<DirtyFences>,
    pub(super) namespaces: Arc<NamespaceLists>,
}

/// Row ports, by table family.
pub(super) struct TableRows {
    pub(super) assignments: Arc<dyn AssignmentStore>,
    pub(super) fences: Arc<dyn FenceStore>,
    pub(super) namespaces: Arc<dyn NamespaceStore>,
    /// The tables of cached objects, if there are any.
    pub(super) cache: Option<Arc<dyn CacheStore>>,
}

/// Writes the rows about this replica's agents.
pub(super) struct TableWriters {
    context: Arc<HubContext>,
    sessions: Arc<Sessions>,
    rows: TableRows,
    wakes: TableWakes,
}

impl TableWriters {
    pub(super) fn new(
        context: Arc<HubContext>,
        sessions: Arc<Sessions>,
        rows: TableRows,
        wakes: TableWakes,
    ) -> Self {
        Self { context, sessions, rows, wakes }
    }
}
