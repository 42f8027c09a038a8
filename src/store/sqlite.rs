//! SQLite: the embedded database for one replica.
//!
//! One connection writes, in `BEGIN IMMEDIATE` transactions that are on the disk when they return (WAL with
//! `synchronous=FULL`); a few others read. The file must lie on a local disk: WAL does not work over a network.
//! `PATH.lock` is held for as long as the store lives, so that two processes never write one file. All of these files
//! are their owner's alone.

use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;
use backon::{ExponentialBuilder, Retryable};
use sqlx::Connection as _;
use sqlx::pool::PoolConnection;
use sqlx::sqlite::{
    Sqlite as Db, SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqlitePool, SqlitePoolOptions,
    SqliteSynchronous,
};

use super::{
    Assignment, AssignmentChanges, Changes, Fence, ForeignRow, NamespaceList, PoolSettings, RaiseOutcome,
    Store, StoreError, StoredAccounts, StoredFence, Term, VendorTables, database_error, limits, now, pools,
    rows::{self, ReplacedRows},
};

mod accounts;
mod assignments;
mod errors;
mod fences;
mod file;
mod schema;
mod terms;
#[cfg(test)]
mod tests;

/// The store in a file of SQLite's.
pub(super) struct Sqlite {
    writer: SqlitePool,
    readers: SqlitePool,
    retry: ExponentialBuilder,
    // Last, so that it is let go of after the connections.
    _lock: file::Lock,
}

/// How long to bear with others, and, for tests, how large the file may grow.
struct SqliteTuning {
    busy_timeout: Duration,
    busy_retries: usize,
    max_pages: Option<u32>,
}

impl Default for SqliteTuning {
    fn default() -> Self {
        // Accounts do not wait for the database once it is known to be locked, so it is known soon.
        Self { busy_timeout: Duration::from_secs(1), busy_retries: 2, max_pages: None }
    }
}

impl Sqlite {
    /// Opens the file, or makes it, and brings its schema up to date.
    pub(super) async fn open(path: &Path, vendor: VendorTables) -> Result<Self, StoreError> {
        Self::open_with(path, vendor, &SqliteTuning::default()).await
    }

    async fn open_with(path: &Path, vendor: VendorTables, tuning: &SqliteTuning) -> Result<Self, StoreError> {
        let path = file::locate(path)?;
        let lock = file::Lock::acquire(&path)?;
        file::inspect(&path)?;
        file::close_to_others(&path)?;
        let mut options = SqliteConnectOptions::new()
            .filename(&path)
            .create_if_missing(true)
            .busy_timeout(tuning.busy_timeout)
            .foreign_keys(true)
            .synchronous(SqliteSynchronous::Full);
        options = sqlx::ConnectOptions::disable_statement_logging(options);
        let mut writing = options.clone().journal_mode(SqliteJournalMode::Wal);
        if let Some(pages) = tuning.max_pages {
            writing = writing.pragma("max_page_count", pages.to_string());
        }
        let pool = || {
            SqlitePoolOptions::new()
                .acquire_timeout(Duration::from_secs(10))
                .idle_timeout(None)
                .max_lifetime(None)
                .test_before_acquire(false)
        };
        let writer = pool()
            .max_connections(1)
            .connect_with(writing)
            .await
            .map_err(|error| errors::at_start(&path, error))?;
        schema::migrate(&writer, &path, vendor).await?;
        let readers = pool().max_connections(4).connect_lazy_with(options.pragma("query_only", "ON"));
        let retry = database_error::retry(tuning.busy_retries);
        Ok(Self { writer, readers, retry, _lock: lock })
    }

    async fn try_write(&self, changes: &Changes) -> Result<(), StoreError> {
        let mut connection = self.writer.acquire().await.map_err(errors::classify)?;
        let result = commit(&mut connection, changes).await;
        drop_if_suspect(&mut connection, &result);
        result
    }

    async fn try_raise_fences(&self, fences: &[&Fence]) -> Result<Vec<(String, RaiseOutcome)>, StoreError> {
        let mut connection = self.writer.acquire().await.map_err(errors::classify)?;
        let result = commit_fences(&mut connection, fences).await;
        drop_if_suspect(&mut connection, &result);
        result
    }

    async fn try_begin_term(&self, replica_id: &str) -> Result<Term, StoreError> {
        let mut connection = self.writer.acquire().await.map_err(errors::classify)?;
        let result = commit_term(&mut connection, replica_id).await;
        drop_if_suspect(&mut connection, &result);
        result
    }

    async fn try_put_namespaces(&self, lists: &[(&str, String)]) -> Result<Vec<String>, StoreError> {
        let mut connection = self.writer.acquire().await.map_err(errors::classify)?;
        let result = commit_namespaces(&mut connection, lists).await;
        drop_if_suspect(&mut connection, &result);
        result
    }

    async fn try_write_assignments(
        &self,
        replica_id: &str,
        changes: &AssignmentChanges,
    ) -> Result<(), StoreError> {
        let mut connection = self.writer.acquire().await.map_err(errors::classify)?;
        let result = commit_assignments(&mut connection, replica_id, changes).await;
        drop_if_suspect(&mut connection, &result);
        result
    }

    async fn writer(&self) -> Result<PoolConnection<Db>, StoreError> {
        self.writer.acquire().await.map_err(errors::classify)
    }

    /// Gives a connection back, or closes it.
    #[expect(clippy::unused_self, reason = "as the adapters of servers have it")]
    fn settle<T>(&self, mut connection: PoolConnection<Db>, result: &Result<T, StoreError>) {
        drop_if_suspect(&mut connection, result);
    }

    async fn reader(&self) -> Result<PoolConnection<Db>, StoreError> {
        self.readers.acquire().await.map_err(errors::classify)
    }
}

async fn commit(connection: &mut SqliteConnection, changes: &Changes) -> Result<(), StoreError> {
    let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await.map_err(errors::classify)?;
    terms::hold(&mut transaction, changes.term).await?;
    accounts::delete(&mut transaction, &changes.deletes).await?;
    accounts::put(&mut transaction, &changes.puts, now(), ReplacedRows::Ours).await?;
    accounts::put(&mut transaction, &changes.adopts, now(), ReplacedRows::Theirs).await?;
    accounts::leave_vendor(&mut transaction, &changes.adopts).await?;
    transaction.commit().await.map_err(errors::classify)
}

async fn commit_assignments(
    connection: &mut SqliteConnection,
    replica_id: &str,
    changes: &AssignmentChanges,
) -> Result<(), StoreError> {
    let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await.map_err(errors::classify)?;
    terms::hold(&mut transaction, changes.term).await?;
    assignments::write(&mut transaction, replica_id, changes, now()).await?;
    transaction.commit().await.map_err(errors::classify)
}

async fn commit_fences(
    connection: &mut SqliteConnection,
    fences: &[&Fence],
) -> Result<Vec<(String, RaiseOutcome)>, StoreError> {
    let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await.map_err(errors::classify)?;
    let raised = fences::raise(&mut transaction, fences, now()).await?;
    transaction.commit().await.map_err(errors::classify)?;
    Ok(raised)
}

async fn commit_term(connection: &mut SqliteConnection, replica_id: &str) -> Result<Term, StoreError> {
    let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await.map_err(errors::classify)?;
    let term = terms::begin(&mut transaction, replica_id).await?;
    transaction.commit().await.map_err(errors::classify)?;
    Ok(term)
}

async fn commit_namespaces(
    connection: &mut SqliteConnection,
    lists: &[(&str, String)],
) -> Result<Vec<String>, StoreError> {
    let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await.map_err(errors::classify)?;
    let (mut missing, now) = (Vec::new(), now());
    for (uid, list) in lists {
        if !accounts::put_namespaces(&mut transaction, uid, list, now).await? {
            missing.push((*uid).to_owned());
        }
    }
    transaction.commit().await.map_err(errors::classify)?;
    Ok(missing)
}

/// After a full disk or a failed read SQLite may have ended the transaction by itself, which sqlx does not see. A new
/// connection starts clean.
fn drop_if_suspect<T>(connection: &mut PoolConnection<Db>, result: &Result<T, StoreError>) {
    if database_error::is_suspect(result) {
        connection.close_on_drop();
    }
}

#[async_trait]
impl Store for Sqlite {
    async fn write(&self, changes: &Changes) -> Result<(), StoreError> {
        if changes.is_empty() {
            return Ok(());
        }
        limits::check(changes)?;
        (|| self.try_write(changes)).retry(self.retry).when(database_error::is_busy).await
    }

    async fn begin_term(&self, replica_id: &str) -> Result<Term, StoreError> {
        (|| self.try_begin_term(replica_id)).retry(self.retry).when(database_error::is_busy).await
    }

    async fn raise_fences(&self, fences: &[Fence]) -> Result<Vec<(String, RaiseOutcome)>, StoreError> {
        let fences = super::fences::checked(fences)?;
        (|| self.try_raise_fences(&fences)).retry(self.retry).when(database_error::is_busy).await
    }

    async fn fences(&self) -> Result<Vec<StoredFence>, StoreError> {
        let mut connection = self.reader().await?;
        let result = fences::standing(&mut connection).await;
        drop_if_suspect(&mut connection, &result);
        result
    }

    async fn assigned_replicas(&self) -> Result<Vec<String>, StoreError> {
        let mut connection = self.reader().await?;
        let result = terms::replicas(&mut connection).await;
        drop_if_suspect(&mut connection, &result);
        result
    }

    async fn accounts(&self) -> Result<StoredAccounts, StoreError> {
        let mut connection = self.reader().await?;
        let result = accounts::all(&mut connection).await;
        drop_if_suspect(&mut connection, &result);
        result
    }

    async fn put_namespace_lists(&self, lists: &[NamespaceList]) -> Result<Vec<String>, StoreError> {
        let lists = rows::encode_lists(lists)?;
        (|| self.try_put_namespaces(&lists)).retry(self.retry).when(database_error::is_busy).await
    }

    async fn namespaces(&self, account_name: &str) -> Result<Option<Vec<String>>, StoreError> {
        let mut connection = self.reader().await?;
        let result = accounts::namespaces(&mut connection, account_name).await;
        drop_if_suspect(&mut connection, &result);
        rows::decode_namespaces(account_name, result?)
    }

    async fn write_assignments(
        &self,
        replica_id: &str,
        changes: &AssignmentChanges,
    ) -> Result<(), StoreError> {
        if *changes == AssignmentChanges::default() {
            return Ok(());
        }
        limits::check_assignments(replica_id, changes)?;
        (|| self.try_write_assignments(replica_id, changes))
            .retry(self.retry)
            .when(database_error::is_busy)
            .await
    }

    async fn miscounted(&self) -> Result<Vec<String>, StoreError> {
        let mut connection = self.reader().await?;
        let result = assignments::miscounted(&mut connection).await;
        drop_if_suspect(&mut connection, &result);
        result
    }

    async fn assignments(&self, replica_id: &str) -> Result<Vec<Assignment>, StoreError> {
        let mut connection = self.reader().await?;
        let result = assignments::of(&mut connection, replica_id).await;
        drop_if_suspect(&mut connection, &result);
        result
    }

    async fn foreign(&self) -> Result<Vec<ForeignRow>, StoreError> {
        let mut connection = self.reader().await?;
        let result = accounts::foreign(&mut connection).await;
        drop_if_suspect(&mut connection, &result);
        result
    }

    async fn vendor(&self) -> Result<Vec<ForeignRow>, StoreError> {
        let mut connection = self.reader().await?;
        let result = accounts::vendor(&mut connection).await;
        drop_if_suspect(&mut connection, &result);
        result
    }

    fn pools(&self) -> Vec<PoolSettings> {
        pools::both(&self.writer, &self.readers)
    }

    async fn ping(&self) -> Result<(), StoreError> {
        let mut connection = self.reader().await?;
        let result = sqlx::query("SELECT count(*) FROM kubesvc_meta").fetch_one(&mut *connection).await;
        let result = result.map(drop).map_err(errors::classify);
        drop_if_suspect(&mut connection, &result);
        result
    }
}

super::copying::adapter! { Sqlite, super::statements::Dialect::Sqlite, reader, writer, settle }

#[cfg(test)]
super::fences::contract_tests::streaming! {
    Sqlite,
    "CREATE TABLE streamed (id INTEGER PRIMARY KEY AUTOINCREMENT, account_uid TEXT, epoch INTEGER, seq INTEGER, writer TEXT)",
    "INSERT INTO streamed (account_uid, epoch, seq, writer) VALUES (?, ?, ?, ?)"
}
