//! The database: one port for each family of tables, and one SQL implementation of all ports. SQL rows never leave
//! this module.
//!
//! Each family is one file that holds its port, its row types and its statements, each written once (`accounts`,
//! `namespaces`, `assignments`, `fences`, `leader_terms`, `cache`, `operations`). What differs between databases is in their
//! [`Dialect`](dialect::Dialect) (`sqlite/dialect.rs`, `mysql/dialect.rs`, `postgres/dialect.rs`); connections,
//! transactions and timeouts are in `sql`. [`open`] returns the store for a URL. [`account_projection`] keeps the rows
//! in step with the objects; nothing else writes `kubesvc_accounts`.
//!
//! To add a family: a file with its port, and a step in `migrations/` for each database. To add a database: a file that
//! opens it and inspects its schema, beside it its dialect and the meaning of its errors, both passing
//! `tests/contract.rs`, and a folder of migrations with the same numbers.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use async_trait::async_trait;

pub use kubesvc_core::account_row::ForeignRow;

pub use accounts::{AccountChanges, AccountStore, StoredAccounts, VENDOR_TABLE};
pub use assignments::{Assignment, AssignmentChanges, AssignmentStore};
pub use cache::{
    AccountBatch, BasisRow, BatchOutcome, CacheStore, FenceHolder, FencedScope, KindCount, NamespaceCount,
    ObjectBody, ObjectRow, ObjectVersion, Relation, RemovedScope, RowLimit, ScopeChange, ScopeKey, ScopeRow,
    ScopeState, ScopeWriter, StoredProgress, StoredScope, Swept,
};
pub use clouddriver_accounts::{
    ClouddriverBody, ClouddriverDatabase, ClouddriverRow, ClouddriverScan, ClouddriverTableError,
    check_clouddriver_url, scan_clouddriver_accounts,
};
pub use error::{Malformed, StoreError};
pub use fences::{BatchClaim, Fence, FenceCheck, FenceStore, RaiseOutcome, StoredFence};
pub use intents::{IntentRow, IntentStore};
pub use leader_terms::{Term, TermStore};
pub use migrations::InstallationClaim;
pub use namespaces::{MAX_NAMESPACES, NamespaceList, NamespaceStore};
pub use operations::{
    AnswerRecord, HandSettlement, MAX_OPERATIONS, OpenOperation, OperationChange, OperationOutcome,
    OperationRecord, OperationState, OperationStore, Overdue, StageRecord,
};
pub use pushed::{PushedRow, PushedStore};
pub use sql::pools::PoolSettings;
pub use vendor_accounts::{VendorAccounts, VendorTableError, read_vendor_accounts};

pub mod account_projection;
mod accounts;
mod assignments;
mod cache;
mod clouddriver_accounts;
mod column_limits;
pub mod copy_database;
mod dialect;
mod error;
mod fences;
mod intents;
mod leader_terms;
mod migrations;
mod mysql;
mod namespaces;
mod operations;
mod postgres;
mod pushed;
mod read_only;
mod sql;
mod sqlite;
#[cfg(test)]
mod tests;
mod url;
mod vendor_accounts;

/// A database. Each method of its ports is one transaction; committed data survives a loss of power.
///
/// `last_updated` is stamped with this process's clock, and only on rows that change.
#[async_trait]
pub trait Store:
    AccountStore
    + NamespaceStore
    + AssignmentStore
    + FenceStore
    + TermStore
    + OperationStore
    + PushedStore
    + IntentStore
{
    /// Checks that the database answers.
    async fn ping(&self) -> Result<(), StoreError>;

    /// The connection pools; empty if the store keeps none.
    fn pools(&self) -> Vec<PoolSettings> {
        Vec::new()
    }
}

/// Opens the database at a URL and migrates its schema to the current version.
///
/// `sqlite:///var/lib/kubesvc/kubesvc.db` is an absolute path, `sqlite://kubesvc.db` is relative to the working
/// directory; a missing file is created. `mysql://user:password@host:port/database` (or `mariadb://`) and
/// `postgres://user:password@host:port/database` are servers, where the database must exist.
///
/// # Errors
///
/// [`StoreError::Unfit`] says in one line what is wrong and what to do; it never contains a password.
pub async fn open(url: &str, opening: impl Into<OpenOptions>) -> Result<Arc<dyn Store>, StoreError> {
    Ok(open_database(url, opening).await?)
}

/// Opens a database like [`open`], also as a store of cached objects.
///
/// On a server, objects have connections of their own, so that the rows of accounts never wait for them: up to
/// `cache_writers` for writes, at least one, and one for bases and sweeps. They connect on first use. On SQLite, writes
/// of both kinds take turns on its one connection.
///
/// # Errors
///
/// The same as from [`open`].
pub async fn open_with_cache(
    url: &str,
    opening: impl Into<OpenOptions>,
    cache_writers: u32,
) -> Result<(Arc<dyn Store>, Arc<dyn CacheStore>), StoreError> {
    let opening = &opening.into();
    Ok(match url::parse(url)? {
        url::DatabaseLocation::Sqlite(path) => both_ports(sqlite::open(&path, opening).await?, cache_writers),
        url::DatabaseLocation::MySql(address) => {
            both_ports(mysql::open(&address, opening).await?, cache_writers)
        }
        url::DatabaseLocation::Postgres(address) => {
            both_ports(postgres::open(&address, opening).await?, cache_writers)
        }
    })
}

fn both_ports<D: dialect::Dialect>(
    mut store: sql::SqlStore<D>,
    cache_writers: u32,
) -> (Arc<dyn Store>, Arc<dyn CacheStore>) {
    store.pools.add_cache_pools(cache_writers);
    let store = Arc::new(store);
    (Arc::<sql::SqlStore<D>>::clone(&store), store)
}

/// How a database is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenOptions {
    /// What to do with another product's tables.
    pub vendor: VendorTables,
    /// The installation that the database is to belong to. Without one, the owner is neither checked nor set.
    pub claim: Option<InstallationClaim>,
}

impl From<VendorTables> for OpenOptions {
    fn from(vendor: VendorTables) -> Self {
        Self { vendor, claim: None }
    }
}

/// What to do with another product's tables that have the names of kubesvc's tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VendorTables {
    /// Leave the database unchanged and fail with [`StoreError::Unfit`], which names the tables.
    Refuse,
    /// Rename them to `NAME_vendor`, with all their data.
    Rename,
}

/// Checks that a URL can name a database, without opening it. The error is the same as from [`open`].
pub fn check_url(url: &str) -> Result<(), StoreError> {
    url::parse(url).map(drop)
}

/// What a connection to a database on another machine leaves open to an attacker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatabaseExposure {
    /// Whether the connection may be without TLS. If not, the server is not verified.
    pub may_be_plaintext: bool,
    /// What an attacker on the way can do, and what to do about it; without a password.
    pub warning: String,
}

/// Returns what the connection of a URL leaves open, if anything.
pub fn exposure(url: &str) -> Option<DatabaseExposure> {
    url::exposure(&url::parse(url).ok()?)
}

/// Whether the database at this URL can serve several replicas.
pub fn serves_several(url: &str) -> bool {
    !matches!(url::parse(url), Ok(url::DatabaseLocation::Sqlite(_)))
}

async fn open_database(
    url: &str,
    opening: impl Into<OpenOptions>,
) -> Result<Arc<dyn copy_database::ForeignRowStore>, StoreError> {
    let opening = &opening.into();
    Ok(match url::parse(url)? {
        url::DatabaseLocation::Sqlite(path) => Arc::new(sqlite::open(&path, opening).await?),
        url::DatabaseLocation::MySql(address) => Arc::new(mysql::open(&address, opening).await?),
        url::DatabaseLocation::Postgres(address) => Arc::new(postgres::open(&address, opening).await?),
    })
}

/// The current time in epoch milliseconds, for `last_updated`.
fn now() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}
