//! The schema of a PostgreSQL database. Each migration is one transaction, together with its record in the history.

use std::sync::LazyLock;

use sqlx::migrate::Migrator;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _};

use super::errors;
use crate::store::migrations::{self, Schema};
use crate::store::sql::session;
use crate::store::url::ServerAddress;
use crate::store::{StoreError, VendorTables};

static STEPS: LazyLock<Migrator> = LazyLock::new(|| migrations::steps(sqlx::migrate!("migrations/postgres")));

/// Key of the advisory lock: "kubesvc" in ASCII. Its scope is one database.
const ADVISORY_LOCK_KEY: i64 = 0x006b_7562_6573_7663;

/// Migrates the schema on a dedicated connection that holds the lock; see [`migrations::migrate`].
pub(super) async fn migrate(
    options: &PgConnectOptions,
    address: &ServerAddress,
    vendor: VendorTables,
) -> Result<(), StoreError> {
    let at_start = |error| errors::at_start(address, error);
    let mut connection = session::connect(options.connect(), at_start).await?;
    let result = async {
        let wait = format!("SET lock_timeout = '{}s'", session::SERVER_STATEMENT_SECONDS);
        sqlx::query(AssertSqlSafe(wait)).execute(&mut connection).await.map_err(at_start)?;
        sqlx::query("SELECT pg_advisory_lock($1)")
            .bind(ADVISORY_LOCK_KEY)
            .execute(&mut connection)
            .await
            .map_err(at_start)?;
        migrations::migrate(&mut connection, &STEPS, &address.to_string(), vendor, at_start).await
    };
    let result = session::started(result).await;
    // The lock is released with the connection.
    if result.is_ok() {
        connection.close().await.map_err(at_start)?;
    }
    result
}

impl Schema for PgConnection {
    async fn columns_of(&mut self, table: &str) -> Result<Vec<String>, sqlx::Error> {
        sqlx::query_scalar(
            "SELECT attname::text FROM pg_attribute WHERE attrelid = to_regclass($1) AND attnum > 0 \
             AND NOT attisdropped",
        )
        .bind(table)
        .fetch_all(self)
        .await
    }

    async fn has_key(&mut self, table: &str, columns: &[&str]) -> Result<bool, sqlx::Error> {
        let pairs: Vec<(String, String)> = sqlx::query_as(
            "SELECT i.indexrelid::text, a.attname::text FROM pg_index i JOIN pg_attribute a \
             ON a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey) \
             WHERE i.indrelid = to_regclass($1) AND i.indisunique AND i.indpred IS NULL AND i.indisvalid ORDER BY 1",
        )
        .bind(table)
        .fetch_all(self)
        .await?;
        Ok(migrations::has_key(&pairs, columns))
    }

    async fn applied(&mut self) -> Result<Vec<i64>, sqlx::Error> {
        sqlx::query_scalar("SELECT version FROM kubesvc_schema_migrations").fetch_all(self).await
    }

    async fn run(&mut self, sql: String) -> Result<(), sqlx::Error> {
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(self).await.map(drop)
    }
}
