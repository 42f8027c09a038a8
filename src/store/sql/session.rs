//! Transactions and reads in SQL, each wait with a time limit.
//!
//! A server that hangs keeps its connections open and answers nothing, and the driver would wait forever. Every
//! statement is therefore limited to [`STATEMENT_TIMEOUT`], and acquiring a connection to
//! [`CONNECTION_TIMEOUT`](super::pools::CONNECTION_TIMEOUT).

use std::time::Duration;

use async_trait::async_trait;
use backon::{ExponentialBuilder, Retryable as _};
use futures::TryStreamExt as _;
use sqlx::{Connection as _, Database};

use super::driver::Driver as _;
use super::error_class::{self, DatabaseError, ErrorClass};
use super::pools::{PoolSettings, Pools};
use super::statement::Statement;
use crate::store::dialect::Dialect;
use crate::store::migrations::Schema as _;
use crate::store::{Store, StoreError};

/// Time limit for one statement, or for one row of a result.
pub(in crate::store) const STATEMENT_TIMEOUT: Duration = Duration::from_secs(6);
/// Time limit, in seconds, after which the server itself cancels a statement.
pub(in crate::store) const SERVER_STATEMENT_SECONDS: u64 = 60;
/// Time limit, in seconds, for a row lock that another transaction holds.
pub(in crate::store) const LOCK_TIMEOUT_SECONDS: u64 = 1;
/// Maximum number of retries of a transaction that conflicts with another, on a server.
pub(in crate::store) const MAX_BUSY_RETRIES: usize = 5;

/// A row of a database.
pub(in crate::store) type RowOf<D> = <<D as Dialect>::Database as Database>::Row;
/// A connection to a database.
pub(in crate::store) type ConnectionOf<D> = <<D as Dialect>::Database as Database>::Connection;

/// The body of one transaction: all of it is committed, or nothing. It runs again from the start after a conflict.
pub(in crate::store) trait Transaction<D: Dialect>: Sync {
    /// Result of the transaction, valid once it is committed.
    type Answer: Send;

    /// Runs the statements. The caller begins and ends the transaction.
    fn run(
        &self,
        session: &mut Session<'_, D>,
    ) -> impl Future<Output = Result<Self::Answer, StoreError>> + Send;
}

/// A store in a SQL database.
pub(in crate::store) struct SqlStore<D: Dialect> {
    pub(in crate::store) pools: Pools<D::Database>,
    /// Back-off between attempts of a transaction that conflicts with another.
    pub(in crate::store) retry: ExponentialBuilder,
    // Declared after the pools so that it is dropped after them.
    pub(in crate::store) dialect: D,
}

impl<D: Dialect> SqlStore<D> {
    /// Runs a transaction, and retries it as a whole after a conflict.
    pub(in crate::store) async fn transact<T: Transaction<D>>(
        &self,
        transaction: &T,
    ) -> Result<T::Answer, StoreError> {
        let attempt = || async {
            let mut connection = self.pools.writer().await?;
            let result = self.attempt(&mut connection, transaction).await;
            self.pools.settle(connection, &result);
            result
        };
        attempt.retry(self.retry).when(error_class::is_busy).await
    }

    async fn attempt<T: Transaction<D>>(
        &self,
        connection: &mut ConnectionOf<D>,
        work: &T,
    ) -> Result<T::Answer, StoreError> {
        let mut transaction = match D::BEGIN {
            Some(begin) => bounded::<D, _>(connection.begin_with(begin)).await?,
            None => bounded::<D, _>(connection.begin()).await?,
        };
        let result = work.run(&mut Session { dialect: &self.dialect, connection: &mut transaction }).await;
        match result {
            Ok(done) => bounded::<D, _>(transaction.commit()).await.map(|()| done),
            // The connection is closed, which ends the transaction.
            Err(error) if error_class::leaves_suspect(&error) => Err(error),
            // After some errors a server has rolled back only the last statement.
            Err(error) => bounded::<D, _>(transaction.rollback()).await.and(Err(error)),
        }
    }

    /// Reads outside of a transaction.
    pub(in crate::store) async fn read<T>(
        &self,
        work: impl AsyncFnOnce(&mut Session<'_, D>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let mut connection = self.pools.reader().await?;
        let result = work(&mut Session { dialect: &self.dialect, connection: &mut connection }).await;
        self.pools.settle(connection, &result);
        result
    }
}

#[async_trait]
impl<D: Dialect> Store for SqlStore<D> {
    async fn ping(&self) -> Result<(), StoreError> {
        self.read(async |session| {
            session.all(Statement::new("SELECT count(*) FROM kubesvc_meta"), |_| Ok(())).await.map(drop)
        })
        .await
    }

    fn pools(&self) -> Vec<PoolSettings> {
        self.pools.settings()
    }
}

/// A connection in use, with the dialect of its database.
pub(in crate::store) struct Session<'c, D: Dialect> {
    pub(in crate::store) dialect: &'c D,
    connection: &'c mut ConnectionOf<D>,
}

impl<D: Dialect> Session<'_, D> {
    /// Runs a statement. Returns the number of rows that it matched or changed.
    pub(in crate::store) async fn execute(&mut self, statement: Statement<D>) -> Result<u64, StoreError> {
        let (sql, arguments) = statement.into_parts().map_err(D::classify)?;
        let done = bounded::<D, _>(D::Database::execute(self.connection, sql, arguments)).await?;
        Ok(D::rows_affected(&done))
    }

    /// Reads the rows of a short result, with one time limit for all.
    pub(in crate::store) async fn all<T: Send>(
        &mut self,
        statement: Statement<D>,
        read: impl Fn(&RowOf<D>) -> Result<T, sqlx::Error> + Send,
    ) -> Result<Vec<T>, StoreError> {
        let (sql, arguments) = statement.into_parts().map_err(D::classify)?;
        let rows: Vec<_> =
            bounded::<D, _>(D::Database::fetch(self.connection, sql, arguments).try_collect()).await?;
        rows.iter().map(read).collect::<Result<_, _>>().map_err(D::classify)
    }

    /// Calls `take` for each row of a result that may be long, with a time limit for each row.
    pub(in crate::store) async fn each(
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
    pub(in crate::store) async fn columns_of(&mut self, table: &str) -> Result<Vec<String>, StoreError> {
        bounded::<D, _>(self.connection.columns_of(table)).await
    }
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
pub(in crate::store) async fn connect<C>(
    connection: impl Future<Output = Result<C, sqlx::Error>>,
    at_start: impl Fn(sqlx::Error) -> StoreError,
) -> Result<C, StoreError> {
    match tokio::time::timeout(STATEMENT_TIMEOUT, connection).await {
        Ok(result) => result.map_err(at_start),
        Err(_) => Err(at_start(sqlx::Error::PoolTimedOut)),
    }
}

/// Awaits a migration at startup, including the wait for another process that migrates, for at most two minutes.
pub(in crate::store) async fn started(
    work: impl Future<Output = Result<(), StoreError>>,
) -> Result<(), StoreError> {
    match tokio::time::timeout(Duration::from_secs(2 * SERVER_STATEMENT_SECONDS), work).await {
        Ok(result) => result,
        Err(_) => Err(hangs()),
    }
}

fn hangs() -> StoreError {
    DatabaseError::unavailable(ErrorClass::Other, "the database does not answer in time", None)
}
