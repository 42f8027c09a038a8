//! PostgreSQL: a database for several replicas.
//!
//! Rows travel as arrays, so one prepared statement takes any number of them. A transaction that meets another one is
//! tried again as a whole.

use async_trait::async_trait;
use backon::Retryable as _;
use secrecy::ExposeSecret as _;
use sqlx::pool::{PoolConnection, PoolOptions};
use sqlx::postgres::{PgConnectOptions, PgConnection, PgSslMode, Postgres as Db};
use sqlx::{ConnectOptions as _, Connection as _, Executor as _};

use super::server::{self, BUSY_RETRIES, LOCK_SECONDS, Pools, SERVER_SECONDS, bounded};
use super::url::Address;
use super::{
    Accounts, Assignment, AssignmentChanges, Changes, ForeignRow, Store, StoreError, limits, now, rows,
    trouble,
};

mod accounts;
mod assignments;
mod errors;
mod schema;
#[cfg(test)]
mod tests;

/// The store in a database of PostgreSQL's.
pub(super) struct Postgres {
    pools: Pools<Db>,
}

impl Postgres {
    /// Connects, and brings the schema up to date.
    pub(super) async fn open(address: &Address) -> Result<Self, StoreError> {
        let connect = options(address)?;
        schema::migrate(&connect, address).await?;
        let session = format!(
            "SET default_transaction_isolation = 'read committed'; SET statement_timeout = '{SERVER_SECONDS}s'; \
             SET lock_timeout = '{LOCK_SECONDS}s'; SET idle_in_transaction_session_timeout = '{SERVER_SECONDS}s'; \
             SET synchronous_commit = on"
        );
        let pool = PoolOptions::new().after_connect(move |connection: &mut PgConnection, _| {
            let session = sqlx::AssertSqlSafe(session.clone());
            Box::pin(async move { connection.execute(sqlx::raw_sql(session)).await.map(drop) })
        });
        Ok(Self { pools: Pools::new(pool, connect, errors::classify) })
    }

    async fn reader(&self) -> Result<PoolConnection<Db>, StoreError> {
        self.pools.reader().await
    }

    async fn writer(&self) -> Result<PoolConnection<Db>, StoreError> {
        self.pools.writer().await
    }

    fn settle<T>(&self, connection: PoolConnection<Db>, result: &Result<T, StoreError>) {
        self.pools.settle(connection, result);
    }

    async fn try_write(&self, changes: &Changes) -> Result<(), StoreError> {
        let mut connection = self.writer().await?;
        let result = commit(&mut connection, changes).await;
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

    async fn try_put_namespaces(&self, uid: &str, list: &str) -> Result<bool, StoreError> {
        let mut connection = self.writer().await?;
        let result = accounts::put_namespaces(&mut connection, uid, list, now()).await;
        self.settle(connection, &result);
        result
    }
}

/// How to connect to this address. Values that are not in the URL do not come from elsewhere, the password aside.
fn options(address: &Address) -> Result<PgConnectOptions, StoreError> {
    let mut options = PgConnectOptions::new_without_pgpass()
        .host(&address.host)
        .port(address.port)
        .username(&address.user)
        .database(&address.database)
        .application_name("kubesvc");
    if let Some(password) = &address.password {
        options = options.password(password.expose_secret());
    }
    if let Some(mode) = &address.tls_mode {
        let mode: PgSslMode = mode.parse().map_err(|error| errors::at_start(address, error))?;
        options = options.ssl_mode(mode);
    }
    if let Some(path) = &address.authority {
        options = options.ssl_root_cert(path);
    }
    if let Some(path) = &address.certificate {
        options = options.ssl_client_cert(path);
    }
    if let Some(path) = &address.key {
        options = options.ssl_client_key(path);
    }
    Ok(options.disable_statement_logging())
}

/// What goes wrong inside rolls back: a transaction that is dropped does.
async fn commit(connection: &mut PgConnection, changes: &Changes) -> Result<(), StoreError> {
    let mut transaction = bounded(connection.begin(), errors::classify).await?;
    accounts::delete(&mut transaction, &changes.deletes).await?;
    accounts::put(&mut transaction, &changes.puts, now()).await?;
    bounded(transaction.commit(), errors::classify).await
}

async fn commit_assignments(
    connection: &mut PgConnection,
    replica_id: &str,
    changes: &AssignmentChanges,
) -> Result<(), StoreError> {
    let mut transaction = bounded(connection.begin(), errors::classify).await?;
    assignments::write(&mut transaction, replica_id, changes, now()).await?;
    bounded(transaction.commit(), errors::classify).await
}

server::store! { Postgres }
super::copying::adapter! { Postgres, super::statements::Dialect::Postgres, reader, writer, settle }
