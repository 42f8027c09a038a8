//! PostgreSQL: a database for several replicas.
//!
//! Rows are sent as arrays, so that one prepared statement takes any number of them. A transaction that conflicts
//! with another one is retried as a whole.

use secrecy::ExposeSecret as _;
use sqlx::pool::PoolOptions;
use sqlx::postgres::{PgConnectOptions, PgConnection, PgSslMode};
use sqlx::{ConnectOptions as _, Executor as _};

use super::sql::error_class;
use super::sql::pools::Pools;
use super::sql::session::{LOCK_TIMEOUT_SECONDS, MAX_BUSY_RETRIES, SERVER_STATEMENT_SECONDS, SqlStore};
use super::url::ServerAddress;
use super::{StoreError, VendorTables};

mod dialect;
mod errors;
mod schema;

/// A PostgreSQL database.
pub(super) struct Postgres;

/// Connects and migrates the schema.
pub(super) async fn open(
    address: &ServerAddress,
    vendor: VendorTables,
) -> Result<SqlStore<Postgres>, StoreError> {
    let connect = options(address)?;
    schema::migrate(&connect, address, vendor).await?;
    let session = format!(
        "SET default_transaction_isolation = 'read committed'; SET statement_timeout = '{SERVER_STATEMENT_SECONDS}s'; \
         SET lock_timeout = '{LOCK_TIMEOUT_SECONDS}s'; SET idle_in_transaction_session_timeout = '{SERVER_STATEMENT_SECONDS}s'; \
         SET synchronous_commit = on"
    );
    let pool = PoolOptions::new().after_connect(move |connection: &mut PgConnection, _| {
        let session = sqlx::AssertSqlSafe(session.clone());
        Box::pin(async move { connection.execute(sqlx::raw_sql(session)).await.map(drop) })
    });
    let pools = Pools::of_server(pool, connect, errors::classify);
    Ok(SqlStore { pools, retry: error_class::retry(MAX_BUSY_RETRIES), dialect: Postgres })
}

/// Connect options for this address. Except for the password, nothing that the URL leaves out is taken from
/// elsewhere.
fn options(address: &ServerAddress) -> Result<PgConnectOptions, StoreError> {
    let mut options = PgConnectOptions::new_without_pgpass()
        .host(&address.host)
        .port(address.port)
        .username(&address.user)
        .database(&address.database)
        .application_name("kubesvc");
    if let Some(password) = &address.password {
        options = options.password(password.expose_secret());
    }
    // Set the default explicitly, or sqlx would read PGSSLMODE.
    options = options.ssl_mode(match &address.tls_mode {
        Some(mode) => mode.parse().map_err(|error| errors::at_start(address, error))?,
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
