//! The connections to a database: one for writes, and a few for reads. Those of a server may have others for cached
//! objects.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use serde::Serialize;
use sqlx::pool::{Pool, PoolConnection, PoolOptions};
use sqlx::{Connection, Database};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use utoipa::ToSchema;

use crate::error::{self, StoreError};

/// Time limit for connecting to a server, or for checking that a connection still works.
pub(super) const CONNECTION_TIMEOUT: Duration = Duration::from_secs(4);
/// Maximum number of connections for reads.
pub(crate) const MAX_READERS: u32 = 4;

/// Time since its last use within which a connection is not checked. The check is a round trip; no server is started again
/// as soon as this.
const MAX_UNCHECKED_IDLE: Duration = Duration::from_millis(100);

/// Invariant of a borrowed connection.
const CONNECTION_IS_PRESENT: &str = "it is there until it is given back";

/// A pool of connections to the database.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = PoolView)]
pub struct PoolSettings {
    /// Purpose of the connections: `writer` or `readers`.
    pub name: &'static str,
    /// `sqlite`, `mysql` (also MariaDB) or `postgres`.
    pub database: &'static str,
    /// Maximum number of connections.
    pub max_connections: u32,
    /// Minimum number of connections that are kept open.
    pub min_connections: u32,
    /// Maximum time to wait for a connection, in milliseconds.
    pub acquire_timeout_ms: u64,
    /// Maximum idle time of a connection, in milliseconds; absent if unlimited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_timeout_ms: Option<u64>,
    /// Maximum lifetime of a connection, in milliseconds; absent if unlimited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_lifetime_ms: Option<u64>,
    /// Number of open connections.
    pub connections: u32,
    /// Number of open connections that are idle.
    pub idle_connections: usize,
}

/// What a connection is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PoolUse {
    /// Transactions, other than of cached objects.
    Write,
    /// Short reads.
    Read,
    /// Transactions of cached objects.
    WriteObjects,
    /// Long reads of cached objects. One at a time.
    ReadObjects,
    /// Transactions that delete cached objects. One at a time, and none beside a long read.
    Sweep,
}

/// The connection pools of a database.
pub(crate) struct Pools<DB: Database> {
    writer: RwLock<Pool<DB>>,
    readers: RwLock<Pool<DB>>,
    cache: Option<CachePools<DB>>,
    /// Held by long reads and sweeps of cached objects. They wait for it without a time limit, because each holder has
    /// one; waiting for their connection would fail when many wait.
    sweeper_turn: Arc<Semaphore>,
    server: Option<ServerPools<DB>>,
    classify: fn(sqlx::Error) -> StoreError,
}

/// The pools of a server for cached objects.
struct CachePools<DB: Database> {
    writers: RwLock<Pool<DB>>,
    sweeper: RwLock<Pool<DB>>,
    max_writers: u32,
}

/// What is needed to replace the pools of a server.
struct ServerPools<DB: Database> {
    options: PoolOptions<DB>,
    connect: <DB::Connection as Connection>::Options,
}

impl<DB: Database> ServerPools<DB> {
    fn pool(&self, max_connections: u32) -> Pool<DB> {
        self.options.clone().max_connections(max_connections).connect_lazy_with(self.connect.clone())
    }
}

impl<DB: Database> Pools<DB> {
    /// The pools of a file.
    pub(crate) fn of_file(
        writer: Pool<DB>,
        readers: Pool<DB>,
        classify: fn(sqlx::Error) -> StoreError,
    ) -> Self {
        Self::new(writer, readers, None, classify)
    }

    /// The pools of a server. They connect on first use.
    pub(crate) fn of_server(
        options: PoolOptions<DB>,
        connect: <DB::Connection as Connection>::Options,
        classify: fn(sqlx::Error) -> StoreError,
    ) -> Self {
        let options = options
            .acquire_timeout(CONNECTION_TIMEOUT)
            .test_before_acquire(false)
            .before_acquire(|connection, used| {
                Box::pin(async move {
                    if used.idle_for > MAX_UNCHECKED_IDLE {
                        connection.ping().await?;
                    }
                    Ok(true)
                })
            })
            .max_lifetime(Duration::from_secs(30 * 60))
            .idle_timeout(Duration::from_secs(10 * 60));
        let server = ServerPools { options, connect };
        Self::new(server.pool(1), server.pool(MAX_READERS), Some(server), classify)
    }

    fn new(
        writer: Pool<DB>,
        readers: Pool<DB>,
        server: Option<ServerPools<DB>>,
        classify: fn(sqlx::Error) -> StoreError,
    ) -> Self {
        Self {
            writer: RwLock::new(writer),
            readers: RwLock::new(readers),
            cache: None,
            sweeper_turn: Arc::new(Semaphore::new(1)),
            server,
            classify,
        }
    }

    /// Adds the pools of a server for cached objects. Without them, and for a file, the others are used.
    pub(crate) fn add_cache_pools(&mut self, max_writers: u32) {
        let max_writers = max_writers.max(1);
        self.cache = self.server.as_ref().map(|server| CachePools {
            writers: RwLock::new(server.pool(max_writers)),
            sweeper: RwLock::new(server.pool(1)),
            max_writers,
        });
    }

    /// Borrows a connection for this use. The caller returns it with [`Pools::give_back`].
    pub(crate) async fn acquire(&self, of: PoolUse) -> Result<Borrowed<DB>, StoreError> {
        let turn = match of {
            PoolUse::ReadObjects | PoolUse::Sweep => {
                let turn = Arc::clone(&self.sweeper_turn).acquire_owned().await;
                Some(turn.expect("the semaphore is never closed"))
            }
            PoolUse::Write | PoolUse::Read | PoolUse::WriteObjects => None,
        };
        let pool = match (of, &self.cache) {
            (PoolUse::WriteObjects, Some(cache)) => &cache.writers,
            (PoolUse::ReadObjects | PoolUse::Sweep, Some(cache)) => &cache.sweeper,
            (PoolUse::Write | PoolUse::WriteObjects | PoolUse::Sweep, _) => &self.writer,
            (PoolUse::Read | PoolUse::ReadObjects, _) => &self.readers,
        };
        let pool = pool.read().clone();
        let connection = Some(pool.acquire().await.map_err(self.classify)?);
        Ok(Borrowed { connection, close_if_abandoned: self.server.is_some(), _turn: turn })
    }

    /// Returns a connection to its pool, or closes it if `result` says that it is suspect: a server may still send
    /// the answer to an earlier statement, and after a full disk or a failed read SQLite may have rolled back by
    /// itself, which sqlx does not notice. A new connection starts clean. If the server is read-only, all connections
    /// are replaced.
    pub(crate) fn give_back<T>(&self, mut connection: Borrowed<DB>, result: &Result<T, StoreError>) {
        let held = connection.connection.take();
        let Err(error) = result else { return };
        if error::leaves_suspect(error)
            && let Some(mut held) = held
        {
            held.close_on_drop();
        }
        if error::is_wrong_server(error) {
            self.renew();
        }
    }

    /// The settings and current use of all pools.
    pub(crate) fn settings(&self) -> Vec<PoolSettings> {
        let mut all =
            vec![settings("writer", &self.writer.read()), settings("readers", &self.readers.read())];
        if let Some(cache) = &self.cache {
            all.push(settings("cache_writers", &cache.writers.read()));
            all.push(settings("cache_sweeper", &cache.sweeper.read()));
        }
        all
    }

    /// Replaces all connections: the server's name may resolve to another server by now.
    fn renew(&self) {
        if let Some(server) = &self.server {
            *self.writer.write() = server.pool(1);
            *self.readers.write() = server.pool(MAX_READERS);
            if let Some(cache) = &self.cache {
                *cache.writers.write() = server.pool(cache.max_writers);
                *cache.sweeper.write() = server.pool(1);
            }
        }
    }
}

fn settings<DB: Database>(name: &'static str, pool: &Pool<DB>) -> PoolSettings {
    let options = pool.options();
    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    PoolSettings {
        name,
        database: DB::URL_SCHEMES.first().copied().unwrap_or(DB::NAME),
        max_connections: options.get_max_connections(),
        min_connections: options.get_min_connections(),
        acquire_timeout_ms: millis(options.get_acquire_timeout()),
        idle_timeout_ms: options.get_idle_timeout().map(millis),
        max_lifetime_ms: options.get_max_lifetime().map(millis),
        connections: pool.size(),
        idle_connections: pool.num_idle(),
    }
}

/// A pooled connection. A connection to a server is closed unless it is [returned](Pools::give_back): a caller
/// cancelled in the middle of a statement leaves one that may never answer again, and the pool would wait forever to
/// check it.
pub(crate) struct Borrowed<DB: Database> {
    connection: Option<PoolConnection<DB>>,
    close_if_abandoned: bool,
    // Declared after the connection, so that the next one that waits finds it in its pool.
    _turn: Option<OwnedSemaphorePermit>,
}

impl<DB: Database> Deref for Borrowed<DB> {
    type Target = DB::Connection;

    fn deref(&self) -> &Self::Target {
        self.connection.as_ref().expect(CONNECTION_IS_PRESENT)
    }
}

impl<DB: Database> DerefMut for Borrowed<DB> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.connection.as_mut().expect(CONNECTION_IS_PRESENT)
    }
}

impl<DB: Database> Drop for Borrowed<DB> {
    fn drop(&mut self) {
        if self.close_if_abandoned
            && let Some(connection) = &mut self.connection
        {
            connection.close_on_drop();
        }
    }
}
