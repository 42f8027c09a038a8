//! The database: ports for each family of tables, and one implementation in SQL of them all. Rows never escape as SQL.
//!
//! A family is one file: its port, its rows, and its statements, written once (`accounts`, `namespaces`, `assignments`,
//! `fences`, `terms`). What differs between the databases is in their [`Dialect`](dialect::Dialect) (`sqlite/dialect.rs`,
//! `mysql/dialect.rs`, `postgres/dialect.rs`); connections, transactions and timeouts are in `sql`. [`open`] gives the
//! store that a URL names. [`projection`] keeps its rows in step with the objects; nothing else writes
//! `kubesvc_accounts`.
//!
//! Adding a family: a file with its port, and a step in `migrations/` for each database. Adding a database: a folder with
//! a dialect, errors and a schema, which passes `tests/contract.rs`, and a folder of migrations with the same numbers.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use async_trait::async_trait;

pub use crate::account::row::ForeignRow;

pub use accounts::{AccountStore, Changes, StoredAccounts, VENDOR_TABLE};
pub use assignments::{Assignment, AssignmentChanges, AssignmentStore};
pub use error::{Malformed, StoreError};
pub use fences::{BatchClaim, Fence, FenceCheck, FenceStore, RaiseOutcome, StoredFence};
pub use namespaces::{MAX_NAMESPACES, NamespaceList, NamespaceStore};
pub use sql::pools::PoolSettings;
pub use terms::{Term, TermStore};

mod accounts;
mod assignments;
pub mod copying;
mod dialect;
mod error;
mod fences;
mod limits;
mod migrations;
mod mysql;
mod namespaces;
mod postgres;
pub mod projection;
mod sql;
mod sqlite;
mod terms;
#[cfg(test)]
mod tests;
mod url;

/// A database. Each method of its ports is one transaction, and what is committed survives a loss of power.
///
/// `last_updated` is stamped with this process' clock, and only on rows that change.
#[async_trait]
pub trait Store: AccountStore + NamespaceStore + AssignmentStore + FenceStore + TermStore {
    /// Whether it answers.
    async fn ping(&self) -> Result<(), StoreError>;

    /// Its pools of connections; none where it keeps none.
    fn pools(&self) -> Vec<PoolSettings> {
        Vec::new()
    }
}

/// Opens the database that a URL names, and brings its schema up to date.
///
/// `sqlite:///var/lib/kubesvc/kubesvc.db` is an absolute path, `sqlite://kubesvc.db` one from the working directory;
/// a file that is not there is made. `mysql://user:password@host:port/database` (or `mariadb://`) and
/// `postgres://user:password@host:port/database` are servers; the database must be there. [`StoreError::Unfit`] says in
/// one line what is wrong and what to do, and never holds a password.
pub async fn open(url: &str, vendor: VendorTables) -> Result<Arc<dyn Store>, StoreError> {
    Ok(open_database(url, vendor).await?)
}

/// What becomes of tables of another product that stand under the names of kubesvc's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VendorTables {
    /// The database is not touched: [`StoreError::Unfit`] says which they are.
    Refuse,
    /// They are renamed to `NAME_vendor`, and kept with all they hold.
    Rename,
}

/// Looks whether a URL can name a database, without opening it. The message is as [`open`]'s.
pub fn check_url(url: &str) -> Result<(), StoreError> {
    url::parse(url).map(drop)
}

/// The warning about a connection to a database beyond this machine that is in plain text or verifies nobody.
pub fn exposure(url: &str) -> Option<String> {
    url::exposure(&url::parse(url).ok()?)
}

/// Whether the database that a URL names can serve several replicas.
pub fn serves_several(url: &str) -> bool {
    !matches!(url::parse(url), Ok(url::DatabaseUrl::Sqlite(_)))
}

/// Whether a server's database may be spoken to without TLS beyond this machine.
pub fn may_be_plaintext(url: &str) -> bool {
    match url::parse(url) {
        Ok(url::DatabaseUrl::MySql(address) | url::DatabaseUrl::Postgres(address)) => {
            address.may_be_plaintext()
        }
        _ => false,
    }
}

async fn open_database(
    url: &str,
    vendor: VendorTables,
) -> Result<Arc<dyn copying::ForeignRowStore>, StoreError> {
    Ok(match url::parse(url)? {
        url::DatabaseUrl::Sqlite(path) => Arc::new(sqlite::open(&path, vendor).await?),
        url::DatabaseUrl::MySql(address) => Arc::new(mysql::open(&address, vendor).await?),
        url::DatabaseUrl::Postgres(address) => Arc::new(postgres::open(&address, vendor).await?),
    })
}

/// Epoch milliseconds, for `last_updated`.
fn now() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}
