//! MySQL and MariaDB: a database for several replicas.
//!
//! Rows are sorted by key, so that two writers rarely deadlock; when they do, the whole transaction is retried. Texts
//! are compared byte by byte except for trailing spaces, which these databases ignore: a key that ends with a space
//! is refused.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use secrecy::ExposeSecret as _;
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection, MySqlSslMode};
use sqlx::pool::PoolOptions;
use sqlx::{ConnectOptions as _, Executor as _};

use super::sql::error_class;
use super::sql::pools::Pools;
use super::sql::session::{LOCK_TIMEOUT_SECONDS, MAX_BUSY_RETRIES, SERVER_STATEMENT_SECONDS, SqlStore};
use super::url::ServerAddress;
use super::{StoreError, VendorTables};

mod dialect;
mod errors;
mod schema;

/// Seconds after which the server closes an idle connection. Longer than the pool keeps one, so that only the
/// connections of a stalled process are affected. MySQL has no shorter limit for a connection in a transaction, whose
/// locks block all others.
const IDLE_TIMEOUT_SECONDS: u64 = 11 * 60;

/// A MySQL or MariaDB database.
pub(super) struct MySql {
    /// `max_allowed_packet` of the newest connection, in bytes.
    packet: Arc<AtomicUsize>,
}

/// Connects and migrates the schema.
pub(super) async fn open(
    address: &ServerAddress,
    vendor: VendorTables,
) -> Result<SqlStore<MySql>, StoreError> {
    let connect = options(address)?;
    schema::migrate(&connect, address, vendor).await?;
    // Only MariaDB reads what is between /*M! and */.
    let session = format!(
        "SET SESSION sql_mode = CONCAT(@@sql_mode, ',STRICT_TRANS_TABLES'), autocommit = 1, \
         innodb_lock_wait_timeout = {LOCK_TIMEOUT_SECONDS}, wait_timeout = {IDLE_TIMEOUT_SECONDS} \
         /*M! , max_statement_time = {SERVER_STATEMENT_SECONDS}, idle_transaction_timeout = {SERVER_STATEMENT_SECONDS} */; \
         SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"
    );
    let packet = Arc::new(AtomicUsize::new(usize::MAX));
    let newest = Arc::clone(&packet);
    let pool = PoolOptions::new().after_connect(move |connection: &mut MySqlConnection, _| {
        let (session, packet) = (sqlx::AssertSqlSafe(session.clone()), Arc::clone(&newest));
        Box::pin(async move {
            connection.execute(sqlx::raw_sql(session)).await?;
            let most: u64 = sqlx::query_scalar("SELECT CAST(@@max_allowed_packet AS UNSIGNED)")
                .fetch_one(connection)
                .await?;
            packet.store(usize::try_from(most).unwrap_or(usize::MAX), Ordering::Relaxed);
            Ok(())
        })
    });
    let pools = Pools::of_server(pool, connect, errors::classify);
    Ok(SqlStore { pools, retry: error_class::retry(MAX_BUSY_RETRIES), dialect: MySql { packet } })
}

fn options(address: &ServerAddress) -> Result<MySqlConnectOptions, StoreError> {
    let mut options = MySqlConnectOptions::new()
        .host(&address.host)
        .port(address.port)
        .username(&address.user)
        .database(&address.database)
        .charset("utf8mb4")
        .collation("utf8mb4_bin");
    if let Some(password) = &address.password {
        options = options.password(password.expose_secret());
    }
    if let Some(mode) = &address.tls_mode {
        let mode: MySqlSslMode = mode.parse().map_err(|error| errors::at_start(address, error))?;
        options = options.ssl_mode(mode);
    }
    if let Some(path) = &address.authority {
        options = options.ssl_ca(path);
    }
    if let Some(path) = &address.certificate {
        options = options.ssl_client_cert(path);
    }
    if let Some(path) = &address.key {
        options = options.ssl_client_key(path);
    }
    Ok(options.disable_statement_logging())
}
