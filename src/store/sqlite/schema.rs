//! The schema of a SQLite file. Each migration is one transaction, together with its record in the history. The lock
//! file is already held.

use std::path::Path;
use std::sync::LazyLock;

use sqlx::migrate::Migrator;
use sqlx::sqlite::{SqliteConnection, SqlitePool};
use sqlx::{AssertSqlSafe, Connection as _};

use super::errors;
use crate::store::migrations::{self, Schema};
use crate::store::{StoreError, VendorTables};

static STEPS: LazyLock<Migrator> = LazyLock::new(|| migrations::steps(sqlx::migrate!("migrations/sqlite")));

/// Migrates the schema; see [`migrations::migrate`].
pub(super) async fn migrate(pool: &SqlitePool, path: &Path, vendor: VendorTables) -> Result<(), StoreError> {
    let at_start = |error| errors::at_start(path, error);
    let mut connection = pool.acquire().await.map_err(at_start)?;
    migrations::migrate(&mut *connection, &STEPS, &path.display().to_string(), vendor, at_start).await?;
    // Statements prepared before the migration are stale.
    connection.clear_cached_statements().await.map_err(at_start)
}

impl Schema for SqliteConnection {
    async fn columns_of(&mut self, table: &str) -> Result<Vec<String>, sqlx::Error> {
        sqlx::query_scalar("SELECT name FROM pragma_table_info(?)").bind(table).fetch_all(self).await
    }

    async fn has_key(&mut self, table: &str, columns: &[&str]) -> Result<bool, sqlx::Error> {
        let pairs: Vec<(String, String)> = sqlx::query_as(
            "SELECT i.name, c.name FROM pragma_index_list(?) i, pragma_index_info(i.name) c WHERE i.\"unique\" \
             ORDER BY 1",
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
        sqlx::query(AssertSqlSafe(sql)).execute(self).await.map(drop)
    }
}
