//! What the adapters of database servers share: connections, and an end to every wait.
//!
//! A server that hangs keeps its connections open and answers nothing, and the driver would wait for ever. So every
//! statement is waited for at most [`STATEMENT_TIMEOUT`], and every connection at most [`CONNECTION_TIMEOUT`].

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use backon::Retryable as _;
use futures::TryStreamExt as _;
use futures::stream::Stream;
use parking_lot::RwLock;
use sqlx::pool::{Pool, PoolConnection, PoolOptions};
use sqlx::{Connection, Database};

use super::StoreError;
use super::database_error::{self, DatabaseError, ErrorClass};
use super::pools::{self, PoolSettings};

/// Time limit for a connection, or for the check that it is still good.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(4);
/// Time limit for one statement, or for one row of an answer.
pub(super) const STATEMENT_TIMEOUT: Duration = Duration::from_secs(6);
/// Time limit, in seconds, after which the server ends a statement by itself.
pub(super) const SERVER_STATEMENT_SECONDS: u64 = 60;
/// Time limit, in seconds, for a row lock that another transaction holds.
pub(super) const LOCK_TIMEOUT_SECONDS: u64 = 1;
/// Maximum number of retries of a transaction that conflicts with another.
const MAX_BUSY_RETRIES: usize = 5;

const MAX_READERS: u32 = 4;
/// What holds of a borrowed connection.
const CONNECTION_IS_PRESENT: &str = "it is there until it is given back";

/// The connections to a server: one that writes, and a few that read.
pub(super) struct Pools<DB: Database> {
    options: PoolOptions<DB>,
    connect: <DB::Connection as Connection>::Options,
    writer: RwLock<Pool<DB>>,
    readers: RwLock<Pool<DB>>,
    classify: fn(sqlx::Error) -> StoreError,
}

impl<DB: Database> Pools<DB> {
    /// Connects when first asked to.
    pub(super) fn new(
        options: PoolOptions<DB>,
        connect: <DB::Connection as Connection>::Options,
        classify: fn(sqlx::Error) -> StoreError,
    ) -> Self {
        let options = options
            .acquire_timeout(CONNECTION_TIMEOUT)
            .max_lifetime(Duration::from_secs(30 * 60))
            .idle_timeout(Duration::from_secs(10 * 60));
        let writer = options.clone().max_connections(1).connect_lazy_with(connect.clone());
        let readers = options.clone().max_connections(MAX_READERS).connect_lazy_with(connect.clone());
        Self { options, connect, writer: RwLock::new(writer), readers: RwLock::new(readers), classify }
    }

    /// The connection that writes. Whoever has it gives it back with [`Pools::settle`].
    pub(super) async fn writer(&self) -> Result<Borrowed<DB>, StoreError> {
        let pool = self.writer.read().clone();
        pool.acquire().await.map(Borrowed::from).map_err(self.classify)
    }

    /// A connection that reads. Whoever has it gives it back with [`Pools::settle`].
    pub(super) async fn reader(&self) -> Result<Borrowed<DB>, StoreError> {
        let pool = self.readers.read().clone();
        pool.acquire().await.map(Borrowed::from).map_err(self.classify)
    }

    /// Gives a connection back, unless what came of it says that it should not be used again.
    pub(super) fn settle<T>(&self, connection: Borrowed<DB>, result: &Result<T, StoreError>) {
        if !database_error::is_suspect(result) {
            connection.give_back();
        }
        if let Err(error) = result
            && database_error::is_wrong_server(error)
        {
            self.renew();
        }
    }

    /// What the two pools are set to, and how they are used.
    pub(super) fn settings(&self) -> Vec<PoolSettings> {
        pools::both(&self.writer.read(), &self.readers.read())
    }

    /// All connections are made anew: the name of the server may lead elsewhere by now.
    fn renew(&self) {
        let pool = |most| self.options.clone().max_connections(most).connect_lazy_with(self.connect.clone());
        *self.writer.write() = pool(1);
        *self.readers.write() = pool(MAX_READERS);
    }
}

/// A connection of a pool. Unless it is [given back](Pools::settle) it is closed: whoever was cancelled in the middle of a
/// statement leaves one that may never answer again, and the pool would ask it for ever whether it is good.
pub(super) struct Borrowed<DB: Database>(Option<PoolConnection<DB>>);

impl<DB: Database> From<PoolConnection<DB>> for Borrowed<DB> {
    fn from(connection: PoolConnection<DB>) -> Self {
        Self(Some(connection))
    }
}

impl<DB: Database> Borrowed<DB> {
    fn give_back(mut self) {
        drop(self.0.take());
    }
}

impl<DB: Database> Deref for Borrowed<DB> {
    type Target = DB::Connection;

    fn deref(&self) -> &Self::Target {
        self.0.as_ref().expect(CONNECTION_IS_PRESENT)
    }
}

impl<DB: Database> DerefMut for Borrowed<DB> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.0.as_mut().expect(CONNECTION_IS_PRESENT)
    }
}

impl<DB: Database> Drop for Borrowed<DB> {
    fn drop(&mut self) {
        if let Some(connection) = &mut self.0 {
            connection.close_on_drop();
        }
    }
}

/// Waits for a statement, for at most [`STATEMENT_TIMEOUT`].
pub(super) async fn bounded<T>(
    statement: impl Future<Output = Result<T, sqlx::Error>>,
    classify: fn(sqlx::Error) -> StoreError,
) -> Result<T, StoreError> {
    match tokio::time::timeout(STATEMENT_TIMEOUT, statement).await {
        Ok(result) => result.map_err(classify),
        Err(_) => Err(hangs()),
    }
}

/// Waits for each row of an answer, for at most [`STATEMENT_TIMEOUT`].
pub(super) async fn each<T>(
    mut rows: impl Stream<Item = Result<T, sqlx::Error>> + Unpin,
    classify: fn(sqlx::Error) -> StoreError,
    mut take: impl FnMut(T),
) -> Result<(), StoreError> {
    while let Some(row) = bounded(rows.try_next(), classify).await? {
        take(row);
    }
    Ok(())
}

/// Waits for the first connection of all.
pub(super) async fn connect<C>(
    connection: impl Future<Output = Result<C, sqlx::Error>>,
    at_start: impl Fn(sqlx::Error) -> StoreError,
) -> Result<C, StoreError> {
    match tokio::time::timeout(STATEMENT_TIMEOUT, connection).await {
        Ok(result) => result.map_err(at_start),
        Err(_) => Err(at_start(sqlx::Error::PoolTimedOut)),
    }
}

/// Waits for what is done at the start: bringing the schema up to date, or waiting until another process has.
pub(super) async fn started(work: impl Future<Output = Result<(), StoreError>>) -> Result<(), StoreError> {
    match tokio::time::timeout(Duration::from_secs(2 * SERVER_STATEMENT_SECONDS), work).await {
        Ok(result) => result,
        Err(_) => Err(hangs()),
    }
}

/// Does a transaction, and does it again as a whole where it met another.
pub(super) async fn again<T, F>(transaction: impl FnMut() -> F) -> Result<T, StoreError>
where
    F: Future<Output = Result<T, StoreError>>,
{
    transaction.retry(database_error::retry(MAX_BUSY_RETRIES)).when(database_error::is_busy).await
}

fn hangs() -> StoreError {
    DatabaseError::unavailable(ErrorClass::Other, "the database does not answer in time", None)
}

/// Implements the trait for an adapter that has `pools`, and whose modules have the functions that are called here:
/// `commit` and `commit_assignments` write in one transaction.
macro_rules! store {
    ($adapter:ident) => {
        impl $adapter {
            async fn reader(&self) -> Result<$crate::store::server::Borrowed<Db>, StoreError> {
                self.pools.reader().await
            }

            async fn writer(&self) -> Result<$crate::store::server::Borrowed<Db>, StoreError> {
                self.pools.writer().await
            }

            fn settle<T>(
                &self,
                connection: $crate::store::server::Borrowed<Db>,
                result: &Result<T, StoreError>,
            ) {
                self.pools.settle(connection, result);
            }

            async fn try_write(&self, changes: &Changes) -> Result<(), StoreError> {
                let mut connection = self.writer().await?;
                let result = commit(self, &mut connection, changes).await;
                self.settle(connection, &result);
                result
            }

            async fn try_write_assignments(
                &self,
                replica_id: &str,
                changes: &AssignmentChanges,
            ) -> Result<(), StoreError> {
                let mut connection = self.writer().await?;
                let result = commit_assignments(&mut connection, replica_id, changes).await;
                self.settle(connection, &result);
                result
            }

            async fn try_raise_fences(
                &self,
                fences: &[&$crate::store::Fence],
            ) -> Result<Vec<(String, $crate::store::RaiseOutcome)>, StoreError> {
                let mut connection = self.writer().await?;
                let result = commit_fences(&mut connection, fences).await;
                self.settle(connection, &result);
                result
            }

            async fn try_begin_term(&self, replica_id: &str) -> Result<Term, StoreError> {
                let mut connection = self.writer().await?;
                let result = commit_term(&mut connection, replica_id).await;
                self.settle(connection, &result);
                result
            }

            async fn try_put_namespaces(&self, lists: &[(&str, String)]) -> Result<Vec<String>, StoreError> {
                let mut connection = self.writer().await?;
                let result = commit_namespaces(&mut connection, lists).await;
                self.settle(connection, &result);
                result
            }
        }

        #[async_trait::async_trait]
        impl $crate::store::Store for $adapter {
            async fn write(&self, changes: &Changes) -> Result<(), StoreError> {
                if changes.is_empty() {
                    return Ok(());
                }
                $crate::store::limits::check(changes)?;
                $crate::store::server::again(|| self.try_write(changes)).await
            }

            async fn begin_term(&self, replica_id: &str) -> Result<Term, StoreError> {
                $crate::store::server::again(|| self.try_begin_term(replica_id)).await
            }

            async fn raise_fences(
                &self,
                fences: &[$crate::store::Fence],
            ) -> Result<Vec<(String, $crate::store::RaiseOutcome)>, StoreError> {
                let fences = $crate::store::fences::checked(fences)?;
                $crate::store::server::again(|| self.try_raise_fences(&fences)).await
            }

            async fn fences(&self) -> Result<Vec<$crate::store::StoredFence>, StoreError> {
                let mut connection = self.reader().await?;
                let result = fences::standing(&mut connection).await;
                self.settle(connection, &result);
                result
            }

            async fn assigned_replicas(&self) -> Result<Vec<String>, StoreError> {
                let mut connection = self.reader().await?;
                let result = terms::replicas(&mut connection).await;
                self.settle(connection, &result);
                result
            }

            async fn accounts(&self) -> Result<$crate::store::StoredAccounts, StoreError> {
                let mut connection = self.reader().await?;
                let result = accounts::all(&mut connection).await;
                self.settle(connection, &result);
                result
            }

            async fn put_namespace_lists(
                &self,
                lists: &[$crate::store::NamespaceList],
            ) -> Result<Vec<String>, StoreError> {
                let lists = $crate::store::rows::encode_lists(lists)?;
                $crate::store::server::again(|| self.try_put_namespaces(&lists)).await
            }

            async fn namespaces(&self, account_name: &str) -> Result<Option<Vec<String>>, StoreError> {
                let mut connection = self.reader().await?;
                let result = accounts::namespaces(&mut connection, account_name).await;
                self.settle(connection, &result);
                $crate::store::rows::decode_namespaces(account_name, result?)
            }

            async fn write_assignments(
                &self,
                replica_id: &str,
                changes: &AssignmentChanges,
            ) -> Result<(), StoreError> {
                if *changes == AssignmentChanges::default() {
                    return Ok(());
                }
                $crate::store::limits::check_assignments(replica_id, changes)?;
                $crate::store::server::again(|| self.try_write_assignments(replica_id, changes)).await
            }

            async fn miscounted(&self) -> Result<Vec<String>, StoreError> {
                let mut connection = self.reader().await?;
                let result = assignments::miscounted(&mut connection).await;
                self.settle(connection, &result);
                result
            }

            async fn assignments(
                &self,
                replica_id: &str,
            ) -> Result<Vec<$crate::store::Assignment>, StoreError> {
                let mut connection = self.reader().await?;
                let result = assignments::of(&mut connection, replica_id).await;
                self.settle(connection, &result);
                result
            }

            async fn foreign(&self) -> Result<Vec<$crate::store::ForeignRow>, StoreError> {
                let mut connection = self.reader().await?;
                let result = accounts::foreign(&mut connection).await;
                self.settle(connection, &result);
                result
            }

            async fn vendor(&self) -> Result<Vec<$crate::store::ForeignRow>, StoreError> {
                let mut connection = self.reader().await?;
                let result = accounts::vendor(&mut connection).await;
                self.settle(connection, &result);
                result
            }

            fn pools(&self) -> Vec<$crate::store::PoolSettings> {
                self.pools.settings()
            }

            async fn ping(&self) -> Result<(), StoreError> {
                let mut connection = self.reader().await?;
                let statement = sqlx::query("SELECT count(*) FROM kubesvc_meta").fetch_one(&mut *connection);
                let result = bounded(statement, errors::classify).await.map(drop);
                self.settle(connection, &result);
                result
            }
        }
    };
}
pub(super) use store;
