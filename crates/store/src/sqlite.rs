//! SQLite: the embedded database for one replica.
//!
//! One connection writes, in `BEGIN IMMEDIATE` transactions that are on disk when they return (WAL with
//! `synchronous=FULL`); a few others read. The file must be on a local disk: WAL does not work over a network.
//! `PATH.lock` is held as long as the store lives, so that two processes never write the same file. Only the owner
//! can read or write these files.
//!
//! Each migration is one transaction, together with its record in the history.

use std::path::Path;
use std::sync::LazyLock;
use std::time::Duration;

use sqlx::Connection as _;
use sqlx::migrate::Migrator;
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};

use super::dialect::Dialect as _;
use super::migrations;
use super::sql::pools::{MAX_READERS, Pools};
use super::sql::{self, SqlStore};
use super::{OpenOptions, StoreError};
use dialect::at_start;

mod dialect;
mod file;

static STEPS: LazyLock<Migrator> = LazyLock::new(|| migrations::steps!("sqlite"));

/// A SQLite file.
pub(super) struct Sqlite {
    _lock: file::Lock,
}

/// Lock timeouts and, for tests, the maximum size of the file.
pub(super) struct SqliteTuning {
    pub(super) busy_timeout: Duration,
    pub(super) busy_retries: usize,
    pub(super) max_pages: Option<u32>,
}

impl Default for SqliteTuning {
    fn default() -> Self {
        // Short, because accounts stop waiting for the database only once it is known to be locked.
        Self { busy_timeout: Duration::from_secs(1), busy_retries: 2, max_pages: None }
    }
}

/// Opens the file, or creates it, and migrates its schema.
pub(super) async fn open(path: &Path, opening: &OpenOptions) -> Result<SqlStore<Sqlite>, StoreError> {
    open_with(path, opening, &SqliteTuning::default()).await
}

pub(super) async fn open_with(
    path: &Path,
    opening: &OpenOptions,
    tuning: &SqliteTuning,
) -> Result<SqlStore<Sqlite>, StoreError> {
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
    let writer =
        pool().max_connections(1).connect_with(writing).await.map_err(|error| at_start(&path, error))?;
    migrate(&writer, &path, opening).await?;
    let readers = pool().max_connections(MAX_READERS).connect_lazy_with(options.pragma("query_only", "ON"));
    let pools = Pools::of_file(writer, readers, Sqlite::classify);
    let retry = sql::retry(tuning.busy_retries);
    Ok(SqlStore { pools, retry, dialect: Sqlite { _lock: lock } })
}

/// Migrates the schema; see [`migrations::migrate`].
async fn migrate(pool: &SqlitePool, path: &Path, opening: &OpenOptions) -> Result<(), StoreError> {
    let at_start = |error| at_start(path, error);
    let mut connection = pool.acquire().await.map_err(at_start)?;
    migrations::migrate::<Sqlite>(&mut connection, &STEPS, &path.display().to_string(), opening, at_start)
        .await?;
    // Statements prepared before the migration are stale.
    connection.clear_cached_statements().await.map_err(at_start)
}
