//! The schema of a MySQL database. MySQL commits after each DDL statement, so a migration has one such statement,
//! which can run again after an interruption.

use std::sync::LazyLock;

use sqlx::migrate::Migrator;
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _};

use super::errors;
use crate::store::migrations::{self, Schema};
use crate::store::sql::session;
use crate::store::url::ServerAddress;
use crate::store::{StoreError, VendorTables};

static STEPS: LazyLock<Migrator> = LazyLock::new(|| migrations::steps(sqlx::migrate!("migrations/mysql")));

/// Migrates the schema on a dedicated connection that holds the lock; see [`migrations::migrate`].
pub(super) async fn migrate(
    options: &MySqlConnectOptions,
    address: &ServerAddress,
    vendor: VendorTables,
) -> Result<(), StoreError> {
    let at_start = |error| errors::at_start(address, error);
    let mut connection = session::connect(options.connect(), at_start).await?;
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
        migrations::migrate(&mut connection, &STEPS, &address.to_string(), vendor, at_start).await
    };
    let result = session::started(result).await;
    if result.is_ok() {
        connection.close().await.map_err(at_start)?;
    }
    result
}

impl Schema for MySqlConnection {
    async fn columns_of(&mut self, table: &str) -> Result<Vec<String>, sqlx::Error> {
        sqlx::query_scalar(
            "SELECT CAST(column_name AS CHAR) FROM information_schema.columns WHERE table_schema = DATABASE() \
             AND table_name = ?",
        )
        .bind(table)
        .fetch_all(self)
        .await
    }

    async fn has_key(&mut self, table: &str, columns: &[&str]) -> Result<bool, sqlx::Error> {
        let pairs: Vec<(String, String)> = sqlx::query_as(
            "SELECT CAST(index_name AS CHAR), CAST(column_name AS CHAR) FROM information_schema.statistics \
             WHERE table_schema = DATABASE() AND table_name = ? AND non_unique = 0 AND sub_part IS NULL \
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
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(self).await.map(drop)
    }
}
