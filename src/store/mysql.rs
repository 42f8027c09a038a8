//! MySQL and MariaDB: a database for several replicas.
//!
//! Rows are sorted by key, so that two writers rarely wait for one another in a ring; where they do, the transaction
//! is tried again as a whole. Texts are compared byte by byte but for spaces at their end, which these databases pass
//! over: a key that ends with one is refused.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use secrecy::ExposeSecret as _;
use sqlx::mysql::{MySql as Db, MySqlConnectOptions, MySqlConnection, MySqlSslMode};
use sqlx::pool::PoolOptions;
use sqlx::{ConnectOptions as _, Connection as _, Executor as _};

use super::rows::ReplacedRows;
use super::server::{self, LOCK_TIMEOUT_SECONDS, Pools, SERVER_STATEMENT_SECONDS, bounded};
use super::url::ServerAddress;
use super::{
    AssignmentChanges, Changes, Fence, RaiseOutcome, StoreError, Term, VendorTables, database_error, now,
};

mod accounts;
mod assignments;
mod errors;
mod fences;
mod schema;
mod terms;
#[cfg(test)]
mod tests;

/// How long the server keeps a connection that is not used: longer than the pool does, so that it ends only those of
/// a process that stands still. MySQL has no shorter time for one in a transaction, whose locks hold up everybody else.
const IDLE_TIMEOUT_SECONDS: u64 = 11 * 60;

/// The store in a database of MySQL's or MariaDB's.
pub(super) struct MySql {
    pools: Pools<Db>,
    /// `max_allowed_packet` of the newest connection.
    packet: Arc<AtomicUsize>,
}

impl MySql {
    /// Connects, and brings the schema up to date.
    pub(super) async fn open(address: &ServerAddress, vendor: VendorTables) -> Result<Self, StoreError> {
        let connect = options(address)?;
        schema::migrate(&connect, address, vendor).await?;
        // What stands between /*M! and */ is for MariaDB alone.
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
        Ok(Self { pools: Pools::new(pool, connect, errors::classify), packet })
    }
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

async fn commit(
    store: &MySql,
    connection: &mut MySqlConnection,
    changes: &Changes,
) -> Result<(), StoreError> {
    let packet = store.packet.load(Ordering::Relaxed);
    let mut transaction = bounded(connection.begin(), errors::classify).await?;
    let result = async {
        terms::hold(&mut transaction, changes.term).await?;
        accounts::delete(&mut transaction, &changes.deletes).await?;
        accounts::put(&mut transaction, &changes.puts, now(), packet, ReplacedRows::Ours).await?;
        accounts::put(&mut transaction, &changes.adopts, now(), packet, ReplacedRows::Theirs).await?;
        accounts::leave_vendor(&mut transaction, &changes.adopts).await
    }
    .await;
    end(transaction, result).await
}

async fn commit_assignments(
    connection: &mut MySqlConnection,
    replica_id: &str,
    changes: &AssignmentChanges,
) -> Result<(), StoreError> {
    let mut transaction = bounded(connection.begin(), errors::classify).await?;
    let result = async {
        terms::hold(&mut transaction, changes.term).await?;
        assignments::write(&mut transaction, replica_id, changes, now()).await
    }
    .await;
    end(transaction, result).await
}

async fn commit_fences(
    connection: &mut MySqlConnection,
    fences: &[&Fence],
) -> Result<Vec<(String, RaiseOutcome)>, StoreError> {
    let mut transaction = bounded(connection.begin(), errors::classify).await?;
    let result = fences::raise(&mut transaction, fences, now()).await;
    end(transaction, result).await
}

async fn commit_term(connection: &mut MySqlConnection, replica_id: &str) -> Result<Term, StoreError> {
    let mut transaction = bounded(connection.begin(), errors::classify).await?;
    let result = terms::begin(&mut transaction, replica_id).await;
    end(transaction, result).await
}

async fn commit_namespaces(
    connection: &mut MySqlConnection,
    lists: &[(&str, String)],
) -> Result<Vec<String>, StoreError> {
    let mut transaction = bounded(connection.begin(), errors::classify).await?;
    let (mut missing, now) = (Vec::new(), now());
    let result = async {
        for (uid, list) in lists {
            if !accounts::put_namespaces(&mut transaction, uid, list, now).await? {
                missing.push((*uid).to_owned());
            }
        }
        Ok(())
    }
    .await;
    end(transaction, result).await.map(|()| missing)
}

/// Commits, or rolls back: after some errors the server has undone the last statement alone.
async fn end<T>(
    transaction: sqlx::Transaction<'_, Db>,
    result: Result<T, StoreError>,
) -> Result<T, StoreError> {
    match result {
        Ok(done) => bounded(transaction.commit(), errors::classify).await.map(|()| done),
        Err(error) if database_error::is_suspect(&Err::<(), _>(error.clone())) => Err(error),
        Err(error) => bounded(transaction.rollback(), errors::classify).await.and(Err(error)),
    }
}

server::store! { MySql }
super::copying::adapter! { MySql, super::statements::Dialect::MySql, reader, writer, settle }

#[cfg(test)]
super::fences::contract_tests::streaming! {
    MySql,
    "CREATE TABLE streamed (id bigint AUTO_INCREMENT PRIMARY KEY, account_uid varchar(36), epoch bigint, seq bigint, writer varchar(36))",
    "INSERT INTO streamed (account_uid, epoch, seq, writer) VALUES (?, ?, ?, ?)"
}
