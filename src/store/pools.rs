//! What is told of the pools of connections.

use std::time::Duration;

use sqlx::{Database, Pool};

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

/// The pool that writes and the one that reads.
pub(super) fn both<DB: Database>(writer: &Pool<DB>, readers: &Pool<DB>) -> Vec<PoolSettings> {
    vec![of("writer", writer), of("readers", readers)]
}

fn of<DB: Database>(name: &'static str, pool: &Pool<DB>) -> PoolSettings {
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
