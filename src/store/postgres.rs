//! PostgreSQL: a database for several replicas.
//!
//! Rows travel as arrays, so one prepared statement takes any number of them. A transaction that meets another one is
//! tried again as a whole.

use secrecy::ExposeSecret as _;
use sqlx::pool::PoolOptions;
use sqlx::postgres::{PgConnectOptions, PgConnection, PgSslMode, Postgres as Db};
use sqlx::{ConnectOptions as _, Connection as _, Executor as _};

use super::rows::ReplacedRows;
use super::server::{self, LOCK_TIMEOUT_SECONDS, Pools, SERVER_STATEMENT_SECONDS, bounded};
use super::url::ServerAddress;
use super::{AssignmentChanges, Changes, Fence, RaiseOutcome, StoreError, Term, VendorTables, now};

mod accounts;
mod assignments;
mod errors;
mod fences;
mod schema;
mod terms;
#[cfg(test)]
mod tests;

/// The store in a database of PostgreSQL's.
pub(super) struct Postgres {
    pools: Pools<Db>,
}

impl Postgres {
    /// Connects, and brings the schema up to date.
    pub(super) async fn open(address: &ServerAddress, vendor: VendorTables) -> Result<Self, StoreError> {
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
        Ok(Self { pools: Pools::new(pool, connect, errors::classify) })
    }
}

/// How to connect to this address. Values that are not in the URL do not come from elsewhere, the password aside.
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
    // Also the default, or PGSSLMODE would be read.
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

/// What goes wrong inside rolls back: a transaction that is dropped does.
async fn commit(_: &Postgres, connection: &mut PgConnection, changes: &Changes) -> Result<(), StoreError> {
    let mut transaction = bounded(connection.begin(), errors::classify).await?;
    terms::hold(&mut transaction, changes.term).await?;
    accounts::delete(&mut transaction, &changes.deletes).await?;
    accounts::put(&mut transaction, &changes.puts, now(), ReplacedRows::Ours).await?;
    accounts::put(&mut transaction, &changes.adopts, now(), ReplacedRows::Theirs).await?;
    accounts::leave_vendor(&mut transaction, &changes.adopts).await?;
    bounded(transaction.commit(), errors::classify).await
}

async fn commit_assignments(
    connection: &mut PgConnection,
    replica_id: &str,
    changes: &AssignmentChanges,
) -> Result<(), StoreError> {
    let mut transaction = bounded(connection.begin(), errors::classify).await?;
    terms::hold(&mut transaction, changes.term).await?;
    assignments::write(&mut transaction, replica_id, changes, now()).await?;
    bounded(transaction.commit(), errors::classify).await
}

async fn commit_fences(
    connection: &mut PgConnection,
    fences: &[&Fence],
) -> Result<Vec<(String, RaiseOutcome)>, StoreError> {
    let mut transaction = bounded(connection.begin(), errors::classify).await?;
    let raised = fences::raise(&mut transaction, fences, now()).await?;
    bounded(transaction.commit(), errors::classify).await.map(|()| raised)
}

async fn commit_term(connection: &mut PgConnection, replica_id: &str) -> Result<Term, StoreError> {
    let mut transaction = bounded(connection.begin(), errors::classify).await?;
    let term = terms::begin(&mut transaction, replica_id).await?;
    bounded(transaction.commit(), errors::classify).await.map(|()| term)
}

async fn commit_namespaces(
    connection: &mut PgConnection,
    lists: &[(&str, String)],
) -> Result<Vec<String>, StoreError> {
    accounts::put_namespaces(connection, lists, now()).await
}

server::store! { Postgres }
super::copying::adapter! { Postgres, super::statements::Dialect::Postgres, reader, writer, settle }

#[cfg(test)]
super::fences::contract_tests::streaming! {
    Postgres,
    "CREATE TABLE streamed (id bigserial PRIMARY KEY, account_uid text, epoch bigint, seq bigint, writer text)",
    "INSERT INTO streamed (account_uid, epoch, seq, writer) VALUES ($1, $2, $3, $4)"
}
