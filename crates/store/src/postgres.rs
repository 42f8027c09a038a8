//! PostgreSQL: a database for several replicas.
//!
//! Rows are sent as arrays, so that one prepared statement takes any number of them. A transaction that conflicts
//! with another one is retried as a whole.
//!
//! Each migration is one transaction, together with its record in the history.

use std::sync::LazyLock;

use secrecy::ExposeSecret as _;
use sqlx::migrate::Migrator;
use sqlx::pool::PoolOptions;
use sqlx::postgres::{PgConnectOptions, PgConnection, PgSslMode};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, Executor as _};

use super::dialect::Dialect as _;
use super::error::at_start;
use super::migrations;
use super::sql::pools::Pools;
use super::sql::{self, LOCK_TIMEOUT_SECONDS, MAX_BUSY_RETRIES, SERVER_STATEMENT_SECONDS, SqlStore};
use super::url::ServerAddress;
use super::{OpenOptions, StoreError};

mod dialect;

static STEPS: LazyLock<Migrator> = LazyLock::new(|| migrations::steps!("postgres"));

/// Key of the advisory lock: "kubesvc" in ASCII. Its scope is one database.
const ADVISORY_LOCK_KEY: i64 = 0x006b_7562_6573_7663;

/// A PostgreSQL database.
pub(super) struct Postgres;

/// Connects and migrates the schema.
pub(super) async fn open(
    address: &ServerAddress,
    opening: &OpenOptions,
) -> Result<SqlStore<Postgres>, StoreError> {
    let connect = options(address)?;
    migrate(&connect, address, opening).await?;
    let session = format!(
        "SET default_transaction_isolation = 'read committed'; SET statement_timeout = '{SERVER_STATEMENT_SECONDS}s'; \
         SET lock_timeout = '{LOCK_TIMEOUT_SECONDS}s'; SET idle_in_transaction_session_timeout = '{SERVER_STATEMENT_SECONDS}s'; \
         SET synchronous_commit = on"
    );
    let pool = PoolOptions::new().after_connect(move |connection: &mut PgConnection, _| {
        let session = AssertSqlSafe(session.clone());
        Box::pin(async move { connection.execute(sqlx::raw_sql(session)).await.map(drop) })
    });
    let pools = Pools::of_server(pool, connect, Postgres::classify);
    Ok(SqlStore { pools, retry: sql::retry(MAX_BUSY_RETRIES), dialect: Postgres })
}

/// Connect options for this address. Except for the password, nothing that the URL leaves out is taken from
/// elsewhere.
pub(super) fn options(address: &ServerAddress) -> Result<PgConnectOptions, StoreError> {
    let mut options = PgConnectOptions::new_without_pgpass()
        .host(&address.host)
        .port(address.port)
        .username(&address.user)
        .database(&address.database)
        .application_name("kubesvc")
        // PgBouncer refuses a parameter that it does not know. Floats, which it is about, are in no table.
        .extra_float_digits(None);
    if let Some(password) = &address.password {
        options = options.password(password.expose_secret());
    }
    // Set the default explicitly, or sqlx would read PGSSLMODE.
    options = options.ssl_mode(match &address.tls_mode {
        Some(mode) => mode.parse().map_err(|error| at_start::<Postgres>(address, error))?,
        None => PgSslMode::Prefer,
    });
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

/// Migrates the schema on a dedicated connection that holds the lock; see [`migrations::migrate`].
async fn migrate(
    options: &PgConnectOptions,
    address: &ServerAddress,
    opening: &OpenOptions,
) -> Result<(), StoreError> {
    let at_start = |error| at_start::<Postgres>(address, error);
    let mut connection = sql::connect(options.connect(), at_start).await?;
    let result = async {
        let wait = format!("SET lock_timeout = '{SERVER_STATEMENT_SECONDS}s'");
        sqlx::query(AssertSqlSafe(wait)).execute(&mut connection).await.map_err(at_start)?;
        sqlx::query("SELECT pg_advisory_lock($1)")
            .bind(ADVISORY_LOCK_KEY)
            .execute(&mut connection)
            .await
            .map_err(at_start)?;
        migrations::migrate::<Postgres>(&mut connection, &STEPS, &address.to_string(), opening, at_start)
            .await
    };
    let result = sql::started(result).await;
    // The lock is released with the connection.
    if result.is_ok() {
        connection.close().await.map_err(at_start)?;
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::url::{DatabaseLocation, parse};

    #[test]
    fn connections_set_no_parameter_that_a_pooler_refuses() {
        let Ok(DatabaseLocation::Postgres(address)) = parse("postgres://u:p@127.0.0.1:1/kubesvc") else {
            unreachable!("it is one")
        };
        let shown = format!("{:?}", options(&address).expect("options"));
        assert!(shown.contains("extra_float_digits: None"), "{shown}");
    }
}
