//! Transactions and reads in SQL, each wait with a time limit.
//!
//! A server that hangs keeps its connections open and answers nothing, and the driver would wait forever. Every
//! statement is therefore limited to [`STATEMENT_TIMEOUT`], and acquiring a connection to
//! [`CONNECTION_TIMEOUT`](pools::CONNECTION_TIMEOUT).

use std::time::Duration;

use async_trait::async_trait;
use backon::{ExponentialBuilder, Retryable as _};
use futures::TryStreamExt as _;
use sqlx::{Connection as _, Database};

use super::dialect::Dialect;
use super::error::{self, SqlFault};
use super::{Store, StoreError};
use columns::FromColumns;
use driver::Driver as _;
use pools::{PoolSettings, PoolUse, Pools};
use statement::Statement;

pub(super) mod columns;
pub(super) mod driver;
pub(super) mod pools;
pub(super) mod statement;

/// Time limit for one statement, or for one row of a result.
pub(crate) const STATEMENT_TIMEOUT: Duration = Duration::from_secs(6);
/// Time limit, in seconds, after which the server itself cancels a statement.
pub(crate) const SERVER_STATEMENT_SECONDS: u64 = 60;
/// Time limit, in seconds, for a row lock that another transaction holds.
pub(crate) const LOCK_TIMEOUT_SECONDS: u64 = 1;
/// Maximum number of retries of a transaction that conflicts with another, on a server.
pub(crate) const MAX_BUSY_RETRIES: usize = 5;

/// A row of a database.
pub(crate) type RowOf<D> = <<D as Dialect>::Database as Database>::Row;
/// A connection to a database.
pub(crate) type ConnectionOf<D> = <<D as Dialect>::Database as Database>::Connection;

/// The body of one transaction: all of it is committed, or nothing. It runs again from the start after a conflict.
pub(crate) trait Transaction<D: Dialect>: Sync {
    /// Result of the transaction, valid once it is committed.
    type Answer: Send;

    /// Whether each statement commits by itself, which saves two round trips where only one writes.
    fn commits_each_statement(&self, _: &D) -> bool {
        false
    }

    /// Runs the statements. The caller begins and ends the transaction.
    fn run(
        &self,
        session: &mut SqlSession<'_, D>,
    ) -> impl Future<Output = Result<Self::Answer, StoreError>> + Send;
}

/// A store in a SQL database.
pub(crate) struct SqlStore<D: Dialect> {
    pub(crate) pools: Pools<D::Database>,
    /// Back-off between attempts of a transaction that conflicts with another.
    pub(crate) retry: ExponentialBuilder,
    // Declared after the pools so that it is dropped after them.
    pub(crate) dialect: D,
}

impl<D: Dialect> SqlStore<D> {
    /// Runs a transaction, and retries it as a whole after a conflict.
    pub(crate) async fn transact<T: Transaction<D>>(&self, transaction: &T) -> Result<T::Answer, StoreError> {
        self.transact_on(PoolUse::Write, transaction).await
    }

    /// Runs a transaction like [`SqlStore::transact`], on a connection for this use.
    pub(crate) async fn transact_on<T: Transaction<D>>(
        &self,
        pool: PoolUse,
        transaction: &T,
    ) -> Result<T::Answer, StoreError> {
        let attempt = || async {
            let mut connection = self.pools.acquire(pool).await?;
            let result = self.attempt(&mut connection, transaction).await;
            self.pools.give_back(connection, &result);
            result
        };
        attempt.retry(self.retry).when(error::is_busy).await
    }

    async fn attempt<T: Transaction<D>>(
        &self,
        connection: &mut ConnectionOf<D>,
        work: &T,
    ) -> Result<T::Answer, StoreError> {
        if work.commits_each_statement(&self.dialect) {
            return work.run(&mut SqlSession { dialect: &self.dialect, connection }).await;
        }
        let mut transaction = match D::BEGIN {
            Some(begin) => bounded::<D, _>(connection.begin_with(begin)).await?,
            None => bounded::<D, _>(connection.begin()).await?,
        };
        let result = work.run(&mut SqlSession { dialect: &self.dialect, connection: &mut transaction }).await;
        match result {
            Ok(done) => bounded::<D, _>(transaction.commit()).await.map(|()| done),
            // The connection is closed, which ends the transaction.
            Err(error) if error::leaves_suspect(&error) => Err(error),
            // After some errors a server has rolled back only the last statement.
            Err(error) => bounded::<D, _>(transaction.rollback()).await.and(Err(error)),
        }
    }

    /// Reads outside of a transaction.
    pub(crate) async fn read<T>(
        &self,
        work: impl AsyncFnOnce(&mut SqlSession<'_, D>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.read_on(PoolUse::Read, work).await
    }

    /// Reads outside of a transaction, on a connection for this use.
    pub(crate) async fn read_on<T>(
        &self,
        pool: PoolUse,
        work: impl AsyncFnOnce(&mut SqlSession<'_, D>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let mut connection = self.pools.acquire(pool).await?;
        let result = work(&mut SqlSession { dialect: &self.dialect, connection: &mut connection }).await;
        self.pools.give_back(connection, &result);
        result
    }

    /// Reads the first columns of all rows of a result.
    pub(crate) async fn select<T: FromColumns>(&self, statement: Statement<D>) -> Result<Vec<T>, StoreError> {
        self.read(async |session| session.select(statement).await).await
    }
}

#[async_trait]
impl<D: Dialect> Store for SqlStore<D> {
    async fn ping(&self) -> Result<(), StoreError> {
        self.select::<i64>(Statement::new("SELECT count(*) FROM kubesvc_meta")).await.map(drop)
    }

    fn pools(&self) -> Vec<PoolSettings> {
        self.pools.settings()
    }
}

/// A connection in use, with the dialect of its database.
pub(crate) struct SqlSession<'c, D: Dialect> {
    pub(crate) dialect: &'c D,
    connection: &'c mut ConnectionOf<D>,
}

impl<D: Dialect> SqlSession<'_, D> {
    /// Runs a statement. Returns the number of rows that it matched or changed.
    pub(crate) async fn execute(&mut self, statement: Statement<D>) -> Result<u64, StoreError> {
        let (sql, arguments) = statement.into_parts().map_err(D::classify)?;
        let done = bounded::<D, _>(D::Database::execute(self.connection, sql, arguments)).await?;
        Ok(D::rows_affected(&done))
    }

    /// Runs a statement under a savepoint. If the database refuses it, the transaction goes on as if it had not been
    /// run.
    pub(crate) async fn execute_or_undo(&mut self, statement: Statement<D>) -> Result<u64, StoreError> {
        let (sql, arguments) = statement.into_parts().map_err(D::classify)?;
        let mut savepoint = bounded::<D, _>(self.connection.begin()).await?;
        match bounded::<D, _>(D::Database::execute(&mut savepoint, sql, arguments)).await {
            Ok(done) => bounded::<D, _>(savepoint.commit()).await.map(|()| D::rows_affected(&done)),
            // The connection is closed, which ends the transaction.
            Err(error) if error::leaves_suspect(&error) => Err(error),
            Err(error) => bounded::<D, _>(savepoint.rollback()).await.and(Err(error)),
        }
    }

    /// Reads all rows of a result, with a time limit for each row.
    pub(crate) async fn all<T: Send>(
        &mut self,
        statement: Statement<D>,
        read: impl Fn(&RowOf<D>) -> Result<T, sqlx::Error> + Send + Sync,
    ) -> Result<Vec<T>, StoreError> {
        let mut found = Vec::new();
        self.each(statement, |row| found.push(read(row))).await?;
        found.into_iter().collect::<Result<_, _>>().map_err(D::classify)
    }

    /// Reads the first columns of all rows of a result, with a time limit for each row.
    pub(crate) async fn select<T: FromColumns>(
        &mut self,
        statement: Statement<D>,
    ) -> Result<Vec<T>, StoreError> {
        self.all(statement, T::from_columns::<D::Database>).await
    }

    /// Calls `take` for each row of a result, with a time limit for each row.
    pub(crate) async fn each(
        &mut self,
        statement: Statement<D>,
        mut take: impl FnMut(&RowOf<D>) + Send,
    ) -> Result<(), StoreError> {
        let (sql, arguments) = statement.into_parts().map_err(D::classify)?;
        let mut rows = D::Database::fetch(self.connection, sql, arguments);
        while let Some(row) = bounded::<D, _>(rows.try_next()).await? {
            take(&row);
        }
        Ok(())
    }

    /// Names of a table's columns; empty if there is no such table.
    pub(crate) async fn columns_of(&mut self, table: &str) -> Result<Vec<String>, StoreError> {
        self.select(Statement::new(D::COLUMNS_OF).bind(table)).await
    }
}

/// Back-off between attempts on a busy database: 10 ms to 1 s, with jitter, `times` retries.
pub(crate) fn retry(times: usize) -> ExponentialBuilder {
    ExponentialBuilder::default()
        .with_min_delay(Duration::from_millis(10))
        .with_max_delay(Duration::from_secs(1))
        .with_max_times(times)
        .with_jitter()
}

/// Awaits a statement for at most [`Dialect::STATEMENT_TIMEOUT`].
async fn bounded<D: Dialect, T>(
    statement: impl Future<Output = Result<T, sqlx::Error>> + Send,
) -> Result<T, StoreError> {
    let Some(limit) = D::STATEMENT_TIMEOUT else { return statement.await.map_err(D::classify) };
    match tokio::time::timeout(limit, statement).await {
        Ok(result) => result.map_err(D::classify),
        Err(_) => Err(hangs()),
    }
}

/// Awaits the first connection to a server, for at most [`STATEMENT_TIMEOUT`].
pub(crate) async fn connect<C>(
    connection: impl Future<Output = Result<C, sqlx::Error>>,
    at_start: impl Fn(sqlx::Error) -> StoreError,
) -> Result<C, StoreError> {
    match tokio::time::timeout(STATEMENT_TIMEOUT, connection).await {
        Ok(result) => result.map_err(at_start),
        Err(_) => Err(at_start(sqlx::Error::PoolTimedOut)),
    }
}

/// Awaits a migration at startup, including the wait for another process that migrates, for at most two minutes.
pub(crate) async fn started(work: impl Future<Output = Result<(), StoreError>>) -> Result<(), StoreError> {
    match tokio::time::timeout(Duration::from_secs(2 * SERVER_STATEMENT_SECONDS), work).await {
        Ok(result) => result,
        Err(_) => Err(hangs()),
    }
}

fn hangs() -> StoreError {
    StoreError::of_fault(SqlFault::TooSlow, "the database does not answer in time", None)
}
