//! The cached objects of the accounts' clusters: the port and its types.
//!
//! `kubesvc_cache` holds the objects, `kubesvc_cache_rel` their relations, `kubesvc_resourceversion` what is watched of
//! each account and up to which version. The streams of objects write through [`CacheStore::write_objects`] and
//! nothing else writes objects; the leader removes what no account needs any more. Neither decides who may write: that
//! is the fence of the account (`fences`), checked and locked first in every transaction here.
//!
//! `objects` and `relations` have the statements of their tables, `scopes` decides what becomes of a scope, `limits`
//! what a row may hold; `writing`, `reading` and `sweeping` are the methods of the port.

use async_trait::async_trait;
use serde::Serialize;
use utoipa::ToSchema;

use super::{BatchClaim, FenceCheck, StoreError, Term};
pub use kubesvc_core::cache::keys::ScopeKey;
pub use kubesvc_core::cache::relations::Relation;
use kubesvc_core::{AgentId, CachingEpoch};

mod limits;
mod objects;
mod reading;
pub(super) mod relations;
pub(super) mod scopes;
mod sweeping;
mod writing;

pub(super) use objects::OBJECTS;
pub use scopes::{FencedScope, ScopeWriter};
pub use writing::RowLimit;

/// Value of `kubesvc_cache.kind` of Kubernetes events, which are removed by age.
const EVENT_KIND: &str = "event";

/// One account's part of a transaction: every batch after `claim.committed` up to `claim.last`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccountBatch {
    /// What the account's fence is passed with. Each uid appears in one batch of a transaction.
    pub claim: BatchClaim,
    /// Name of the account.
    pub account: String,
    /// The agent that saw these objects.
    pub agent_id: AgentId,
    /// Objects to write, each id once; of an id that appears twice the later row counts.
    pub upserts: Vec<ObjectRow>,
    /// Ids of objects to delete, none of them in `upserts`. A missing one is not an error.
    pub deletes: Vec<String>,
    /// Changes of scopes, applied in this order.
    pub scopes: Vec<ScopeChange>,
}

/// A row of `kubesvc_cache`, with its relations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectRow {
    /// Unique name of the object over all accounts; at most 512 characters.
    pub id: String,
    /// Kind in camel form, such as `replicaSet` or `rollout.argoproj.io`.
    pub kind: String,
    /// Name of its application.
    pub application: Option<String>,
    /// Namespace; empty if it has none.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Group and version.
    pub api_version: Option<String>,
    /// uid in its cluster.
    pub uid: Option<String>,
    /// Version in its cluster.
    pub resource_version: String,
    /// Hash of the body, 64 hexadecimal digits. A stored body of the same hash is kept as it is.
    pub body_hash: String,
    /// The object itself.
    pub body: ObjectBody,
    /// All its relations; others that are stored are deleted.
    pub relations: Vec<Relation>,
}

/// The body of an object, as it is stored.
#[derive(Clone, PartialEq, Eq)]
pub enum ObjectBody {
    /// JSON.
    Text(String),
    /// JSON compressed with zstd.
    Zstd(Vec<u8>),
    /// Left out, because it is too large or unreadable. A stored body of the same hash is kept.
    Omitted,
}

/// Only the sizes: bodies never appear in a log.
impl std::fmt::Debug for ObjectBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Text(text) => write!(f, "Text({} bytes)", text.len()),
            Self::Zstd(bytes) => write!(f, "Zstd({} bytes)", bytes.len()),
            Self::Omitted => f.write_str("Omitted"),
        }
    }
}

/// A change of what is watched of an account, and up to which version it is cached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScopeChange {
    /// The scope begins to be watched. One that is stored for this account with the same shape and filter keeps its
    /// checkpoint; any other must be listed.
    Added(ScopeRow),
    /// A list begins. Until the [`ScopeChange::Synced`] of this key, the scope has no checkpoint.
    SyncStarted {
        /// The scope; ignored unless it was added for this account.
        scope: ScopeKey,
        /// Identifies the list.
        sync_key: String,
    },
    /// Everything up to this version is in the transaction. Ignored while the scope is listed.
    Checkpoint {
        /// The scope.
        scope: ScopeKey,
        /// The version.
        resource_version: String,
    },
    /// The list ended. Ignored if `sync_key` is not that of the last list.
    Synced {
        /// The scope.
        scope: ScopeKey,
        /// Identifies the list.
        sync_key: String,
        /// Version of the list.
        resource_version: String,
        /// Number of objects in it.
        objects: i64,
    },
    /// The scope is no longer watched; its objects are swept later.
    Removed(ScopeKey),
    /// Why the scope is not read at present.
    Problem {
        /// The scope.
        scope: ScopeKey,
        /// The reason; `None`: it is read again.
        problem: Option<String>,
    },
}

/// A scope that begins to be watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScopeRow {
    /// The scope.
    pub key: ScopeKey,
    /// `kubesvc_cache.kind` of its objects.
    pub cached_kind: String,
    /// Digest of what determines the rows of its objects.
    pub shape: String,
    /// Digest of what it leaves out.
    pub filter: String,
}

/// State of a stored scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
#[schema(as = CachedKindState, description = "How far a kind is.")]
pub enum ScopeState {
    /// It must be listed, or is being listed.
    Listing,
    /// Its objects are cached up to its checkpoint.
    Synced,
    /// It is no longer watched, and its objects wait to be swept.
    Removed,
}

/// A scope as stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredScope {
    /// The scope.
    pub key: ScopeKey,
    /// `kubesvc_cache.kind` of its objects.
    pub cached_kind: String,
    /// uid of the account that added it. Of another uid than the account's: nothing of it counts.
    pub account_uid: String,
    /// The checkpoint; `None`: it must be listed.
    pub resource_version: Option<String>,
    /// Its state.
    pub state: ScopeState,
    /// Its shape when it was added.
    pub shape: Option<String>,
    /// Its filter when it was added.
    pub filter: Option<String>,
    /// Number of objects at the last list that ended under this shape. `None`: there is none, so the rows it covers
    /// may be of another shape, and a list must send every body again.
    pub objects: Option<i64>,
    /// Why it is not read at present.
    pub problem: Option<String>,
    /// Time of the checkpoint, in epoch milliseconds.
    pub last_updated_ms: i64,
}

/// What became of one account's part of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BatchOutcome {
    /// It is committed.
    Committed {
        /// Number of objects written, also without their body.
        written: usize,
        /// Rows that no database takes, or that this one refused: the table, the row's key, and whether it was left
        /// out or written without its body. Without contents of the row.
        refused: Vec<String>,
    },
    /// It did not pass the fence, and nothing of it was written. Never [`FenceCheck::Passed`].
    Stopped(FenceCheck),
}

/// How far an account is cached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoredProgress {
    /// The fence stands at the epoch.
    Stands {
        /// Number of the last batch committed.
        committed: i64,
        /// All scopes stored under the account's name, also removed ones and those of another uid.
        scopes: Vec<StoredScope>,
    },
    /// The fence is not raised yet, and is at this epoch.
    Lower(CachingEpoch),
    /// Another process was elected, under this epoch.
    Higher(CachingEpoch),
    /// The account has no fence: it is gone.
    Gone,
}

/// A cached object in the basis of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BasisRow {
    /// Id of the row.
    pub id: String,
    /// Namespace; empty if it has none.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// uid in its cluster.
    pub uid: Option<String>,
    /// Version in its cluster.
    pub resource_version: String,
}

/// The version at which an object is cached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectVersion {
    /// uid in its cluster.
    pub uid: Option<String>,
    /// Version in its cluster.
    pub resource_version: String,
    /// Whether its body is stored.
    pub has_body: bool,
    /// Time of the write, in epoch milliseconds.
    pub last_updated_ms: i64,
}

/// Number of cached objects of a kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KindCount {
    /// `kubesvc_cache.kind`.
    pub kind: String,
    /// Number of rows.
    pub objects: i64,
}

/// Number of cached objects of a kind in a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceCount {
    /// `kubesvc_cache.kind`.
    pub kind: String,
    /// Namespace; empty for objects without one.
    pub namespace: String,
    /// Number of rows.
    pub objects: i64,
}

/// Who may write the objects of an account, by its fence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FenceHolder {
    /// Epoch of the fence; 0 if it was never raised.
    pub epoch: CachingEpoch,
    /// The agent that was elected; `None`: nobody.
    pub agent_id: Option<AgentId>,
}

/// A scope that is no longer watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemovedScope {
    /// Name of the account.
    pub account: String,
    /// The scope.
    pub key: ScopeKey,
}

/// Result of one sweep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Swept {
    /// Number of objects deleted.
    pub rows: u64,
    /// Whether nothing is left to do: the scope's row is gone, or it is watched again.
    pub finished: bool,
}

/// The cached objects of all accounts. Each method that writes is one transaction.
///
/// Reads of one basis and sweeps wait for one another without a time limit: on a server they share one connection.
#[async_trait]
pub trait CacheStore: Send + Sync {
    /// Writes the parts of several accounts in one transaction, in which each account first passes its fence. Returns
    /// what became of each, in the same order.
    ///
    /// # Errors
    ///
    /// It is unknown whether any of it is committed: call again with the same batches, and those that are committed
    /// come back as [`FenceCheck::Done`].
    async fn write_objects(&self, batches: &[AccountBatch]) -> Result<Vec<BatchOutcome>, StoreError>;

    /// How far an account is cached, if its fence stands at this epoch. Reads the fence before the scopes.
    async fn resume(&self, account_uid: &str, epoch: CachingEpoch) -> Result<StoredProgress, StoreError>;

    /// All scopes stored under the name of an account.
    async fn scopes(&self, account: &str) -> Result<Vec<StoredScope>, StoreError>;

    /// At most `limit` cached objects that a scope covers, after those up to `after`, the last one of the page
    /// before. An empty namespace: in all namespaces.
    async fn basis(
        &self,
        account: &str,
        cached_kind: &str,
        namespace: &str,
        after: Option<&BasisRow>,
        limit: u32,
    ) -> Result<Vec<BasisRow>, StoreError>;

    /// The version at which an object is cached; `None` if it is not.
    async fn object_version(
        &self,
        account: &str,
        cached_kind: &str,
        namespace: &str,
        name: &str,
    ) -> Result<Option<ObjectVersion>, StoreError>;

    /// Number of cached objects of an account, of each kind that has any.
    async fn count_objects(&self, account: &str) -> Result<Vec<KindCount>, StoreError>;

    /// Number of cached objects of an account, of each kind and namespace that has any: as many as there are scopes,
    /// where each has a namespace.
    async fn count_objects_by_namespace(&self, account: &str) -> Result<Vec<NamespaceCount>, StoreError>;

    /// Who may write the objects of an account; `None` if it has no fence.
    async fn fence_holder(&self, account_uid: &str) -> Result<Option<FenceHolder>, StoreError>;

    /// At most `limit` scopes that wait to be swept.
    async fn removed_scopes(&self, limit: u32) -> Result<Vec<RemovedScope>, StoreError>;

    /// Names of the accounts of which Kubernetes events are watched.
    async fn accounts_with_events(&self) -> Result<Vec<String>, StoreError>;

    /// Of the accounts with these uids, those that [`remove_scopes`](Self::remove_scopes) would change.
    async fn accounts_to_remove(&self, account_uids: &[String]) -> Result<Vec<String>, StoreError>;

    /// Marks all scopes of an account as removed, unless its fence names an agent. Returns how many were not marked
    /// before. Deleting an account's row does this too; see
    /// [`AccountChanges::kept_objects`](crate::AccountChanges::kept_objects).
    async fn remove_scopes(&self, term: Option<Term>, account_uid: &str) -> Result<u64, StoreError>;

    /// Deletes at most `limit` objects that this removed scope covers and no scope that the account watches, and the
    /// scope's row once there are none.
    async fn sweep_scope(
        &self,
        term: Option<Term>,
        scope: &RemovedScope,
        limit: u32,
    ) -> Result<Swept, StoreError>;

    /// Deletes at most `limit` Kubernetes events of an account that were last written before a time in epoch
    /// milliseconds. Returns how many.
    async fn sweep_events(
        &self,
        term: Option<Term>,
        account: &str,
        older_than_ms: i64,
        limit: u32,
    ) -> Result<u64, StoreError>;
}
