//! MySQL and MariaDB: a database for several replicas.
//!
//! Rows are sorted by key, so that two writers rarely deadlock; when they do, the whole transaction is retried. Texts
//! are compared byte by byte except for trailing spaces, which these databases ignore: a key that ends with a space
//! is refused.
//!
//! MySQL commits after each DDL statement, so a migration has one such statement, which can run again after an
//! interruption.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use secrecy::ExposeSecret as _;
use sqlx::migrate::Migrator;
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection, MySqlSslMode};
use sqlx::pool::PoolOptions;
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, Executor as _};

use super::dialect::Dialect as _;
use super::error::is_busy;
use super::migrations;
use super::sql::pools::Pools;
use super::sql::{self, LOCK_TIMEOUT_SECONDS, MAX_BUSY_RETRIES, SERVER_STATEMENT_SECONDS, SqlStore};
use super::url::ServerAddress;
use super::{OpenOptions, StoreError};
use dialect::at_start;

mod dialect;

static STEPS: LazyLock<Migrator> = LazyLock::new(|| migrations::steps!("mysql"));

/// Seconds after which the server closes an idle connection. Longer than the pool keeps one, so that only the
/// connections of a stalled process are affected. MySQL has no shorter limit for a connection in a transaction, whose
/// locks block all others.
const IDLE_TIMEOUT_SECONDS: u64 = 11 * 60;

/// Interval at which a migration of another process is looked at.
const MIGRATION_POLL_INTERVAL: Duration = Duration::from_millis(250);

/// A MySQL or MariaDB database.
pub(super) struct MySql {
    /// `max_allowed_packet` of the newest connection, in bytes.
    packet: Arc<AtomicUsize>,
}

/// Connects and migrates the schema.
pub(super) async fn open(
    address: &ServerAddress,
    opening: &OpenOptions,
) -> Result<SqlStore<MySql>, StoreError> {
    let connect = options(address)?;
    migrate(&connect, address, opening).await?;
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
        let (session, packet) = (AssertSqlSafe(session.clone()), Arc::clone(&newest));
        Box::pin(async move {
            connection.execute(sqlx::raw_sql(session)).await?;
            let most: u64 = sqlx::query_scalar("SELECT CAST(@@max_allowed_packet AS UNSIGNED)")
                .fetch_one(connection)
                .await?;
            packet.store(usize::try_from(most).unwrap_or(usize::MAX), Ordering::Relaxed);
            Ok(())
        })
    });
    let pools = Pools::of_server(pool, connect, MySql::classify);
    Ok(SqlStore { pools, retry: sql::retry(MAX_BUSY_RETRIES), dialect: MySql { packet } })
}

/// Connect options for this address.
pub(super) fn options(address: &ServerAddress) -> Result<MySqlConnectOptions, StoreError> {
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
        let mode: MySqlSslMode = mode.parse().map_err(|error| at_start(address, error))?;
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

/// Migrates the schema on a dedicated connection that holds the lock; see [`migrations::migrate`].
async fn migrate(
    options: &MySqlConnectOptions,
    address: &ServerAddress,
    opening: &OpenOptions,
) -> Result<(), StoreError> {
    let at_start = |error| at_start(address, error);
    let mut connection = sql::connect(options.connect(), at_start).await?;
    let result = async {
        // The lock is global to the server and is released with the connection. NULL and 0 mean that it was not
        // acquired.
        while sqlx::query_scalar::<_, Option<i64>>("SELECT GET_LOCK('kubesvc.migrate', 10)")
            .fetch_one(&mut connection)
            .await
            .map_err(at_start)?
            != Some(1)
        {
            tracing::info!(database = %address, "waiting for another process to migrate the schema");
        }
        loop {
            let database = address.to_string();
            match migrations::migrate::<MySql>(&mut connection, &STEPS, &database, opening, at_start).await {
                Err(error) if is_busy(&error) => {
                    tracing::info!(
                        database,
                        why = error.in_full(),
                        "waiting for another process to migrate the schema"
                    );
                    tokio::time::sleep(MIGRATION_POLL_INTERVAL).await;
                }
                result => break result,
            }
        }
    };
    let result = sql::started(result).await;
    if result.is_ok() {
        connection.close().await.map_err(at_start)?;
    }
    result
}
