//! The connections to a database: one that writes, and a few that read.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use parking_lot::RwLock;
use sqlx::pool::{Pool, PoolConnection, PoolOptions};
use sqlx::{Connection, Database};

use super::error_class;
use crate::store::StoreError;

/// Time limit for a connection to a server, or for the check that it is still good.
pub(super) const CONNECTION_TIMEOUT: Duration = Duration::from_secs(4);
/// Maximum number of connections that read.
pub(in crate::store) const MAX_READERS: u32 = 4;

/// What holds of a borrowed connection.
const CONNECTION_IS_PRESENT: &str = "it is there until it is given back";

/// A pool of connections: what it is set to, and how it is used now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolSettings {
    /// What its connections do: `writer` or `readers`.
    pub name: &'static str,
    /// The database, as its URL begins: `sqlite`, `mysql` (also MariaDB) or `postgres`.
    pub database: &'static str,
    /// How many connections there may be.
    pub max_connections: u32,
    /// How many are kept open.
    pub min_connections: u32,
    /// How long a connection is waited for.
    pub acquire_timeout: Duration,
    /// How long one may be unused; none: without an end.
    pub idle_timeout: Option<Duration>,
    /// How long one is used at all; none: without an end.
    pub max_lifetime: Option<Duration>,
    /// How many there are now.
    pub connections: u32,
    /// How many of them nobody uses now.
    pub idle_connections: usize,
}

/// The connections to a database.
pub(in crate::store) struct Pools<DB: Database> {
    writer: RwLock<Pool<DB>>,
    readers: RwLock<Pool<DB>>,
    server: Option<ServerPools<DB>>,
    classify: fn(sqlx::Error) -> StoreError,
}

/// How to make the pools of a server anew.
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
    /// Those of a file.
    pub(in crate::store) fn of_file(
        writer: Pool<DB>,
        readers: Pool<DB>,
        classify: fn(sqlx::Error) -> StoreError,
    ) -> Self {
        Self { writer: RwLock::new(writer), readers: RwLock::new(readers), server: None, classify }
    }

    /// Those of a server, which connect when first asked to.
    pub(in crate::store) fn of_server(
        options: PoolOptions<DB>,
        connect: <DB::Connection as Connection>::Options,
        classify: fn(sqlx::Error) -> StoreError,
    ) -> Self {
        let options = options
            .acquire_timeout(CONNECTION_TIMEOUT)
            .max_lifetime(Duration::from_secs(30 * 60))
            .idle_timeout(Duration::from_secs(10 * 60));
        let server = ServerPools { options, connect };
        let (writer, readers) = (RwLock::new(server.pool(1)), RwLock::new(server.pool(MAX_READERS)));
        Self { writer, readers, server: Some(server), classify }
    }

    /// The connection that writes. Whoever has it gives it back with [`Pools::settle`].
    pub(in crate::store) async fn writer(&self) -> Result<Borrowed<DB>, StoreError> {
        let pool = self.writer.read().clone();
        self.borrow(pool).await
    }

    /// A connection that reads. Whoever has it gives it back with [`Pools::settle`].
    pub(in crate::store) async fn reader(&self) -> Result<Borrowed<DB>, StoreError> {
        let pool = self.readers.read().clone();
        self.borrow(pool).await
    }

    async fn borrow(&self, pool: Pool<DB>) -> Result<Borrowed<DB>, StoreError> {
        let connection = Some(pool.acquire().await.map_err(self.classify)?);
        Ok(Borrowed { connection, close_if_abandoned: self.server.is_some() })
    }

    /// Gives a connection back, unless what came of it says that it should not be used again: a server may answer what
    /// was asked before, and after a full disk or a failed read SQLite may have ended the transaction by itself, which
    /// sqlx does not see. A new connection starts clean.
    pub(in crate::store) fn settle<T>(&self, mut connection: Borrowed<DB>, result: &Result<T, StoreError>) {
        let held = connection.connection.take();
        let Err(error) = result else { return };
        if error_class::leaves_suspect(error)
            && let Some(mut held) = held
        {
            held.close_on_drop();
        }
        if error_class::is_wrong_server(error) {
            self.renew();
        }
    }

    /// What the two pools are set to, and how they are used.
    pub(in crate::store) fn settings(&self) -> Vec<PoolSettings> {
        vec![settings("writer", &self.writer.read()), settings("readers", &self.readers.read())]
    }

    /// All connections are made anew: the name of the server may lead elsewhere by now.
    fn renew(&self) {
        if let Some(server) = &self.server {
            *self.writer.write() = server.pool(1);
            *self.readers.write() = server.pool(MAX_READERS);
        }
    }
}

fn settings<DB: Database>(name: &'static str, pool: &Pool<DB>) -> PoolSettings {
    let options = pool.options();
    PoolSettings {
        name,
        database: DB::URL_SCHEMES.first().copied().unwrap_or(DB::NAME),
        max_connections: options.get_max_connections(),
        min_connections: options.get_min_connections(),
        acquire_timeout: options.get_acquire_timeout(),
        idle_timeout: options.get_idle_timeout(),
        max_lifetime: options.get_max_lifetime(),
        connections: pool.size(),
        idle_connections: pool.num_idle(),
    }
}

/// A connection of a pool. One to a server is closed unless it is [given back](Pools::settle): whoever was cancelled in
/// the middle of a statement leaves one that may never answer again, and the pool would ask it for ever whether it is
/// good.
pub(in crate::store) struct Borrowed<DB: Database> {
    connection: Option<PoolConnection<DB>>,
    close_if_abandoned: bool,
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
