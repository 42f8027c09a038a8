//! The database of a world: which one it is, and how a test gets at its tables.

use sqlx::mysql::{MySqlConnectOptions, MySqlConnection};
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{AssertSqlSafe, ConnectOptions as _};

use super::{World, row::Row};
use crate::harness::databases::{self, Kind};
use crate::harness::{folder::Folder, must};

/// The databases that kubesvc keeps its tables in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Database {
    /// A file in the world's folder.
    #[default]
    Sqlite,
    /// A database of its own on the MariaDB server of this test process.
    MariaDb,
    /// A database of its own on the PostgreSQL server of this test process.
    Postgres,
}

/// A connection to it.
pub(crate) enum Connection {
    Sqlite(SqliteConnection),
    MariaDb(MySqlConnection),
    Postgres(PgConnection),
}

impl Database {
    /// The URL of an empty database of this kind.
    pub(super) async fn fresh(self, folder: &Folder) -> String {
        match self {
            Self::Sqlite => format!("sqlite://{}", folder.file("kubesvc.db").display()),
            Self::MariaDb => databases::shared(Kind::MariaDb).await.fresh_database().await,
            Self::Postgres => databases::shared(Kind::PostgreSql).await.fresh_database().await,
        }
    }
}

impl World {
    /// The URL of the operator's database.
    pub(crate) fn database_url(&self) -> &str {
        &self.database
    }

    /// A connection to the operator's database.
    pub(crate) async fn open_database(&self) -> sqlx::Result<Connection> {
        connect(&self.database).await
    }

    /// Executes a statement on the operator's database, as somebody does who has the rights; the answer is how many
    /// rows it met.
    pub(crate) async fn execute(&self, statement: &str) -> u64 {
        must(self.try_execute(statement).await)
    }

    /// As [`World::execute`].
    ///
    /// # Errors
    ///
    /// What the database said.
    pub(crate) async fn try_execute(&self, statement: &str) -> Result<u64, String> {
        let done = async { self.open_database().await?.execute(statement).await };
        done.await.map_err(|error| format!("{statement}: {error}"))
    }
}

/// What another program has written of an account.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Theirs<'t> {
    pub(crate) name: &'t str,
    pub(crate) status: &'t str,
    pub(crate) zone: &'t str,
    pub(crate) definition: &'t str,
}

impl World {
    /// Writes rows of another program's into a table of accounts.
    pub(crate) async fn write_theirs(&self, table: &str, rows: &[Theirs<'_>]) {
        for row in rows {
            let texts =
                [row.name, row.status, row.zone, row.definition].map(|text| self.literal(text)).join(", ");
            self.execute(&format!(
                "INSERT INTO {table} (name, status, zone_id, definition) VALUES ({texts})"
            ))
            .await;
        }
    }

    /// Makes the table `kubesvc_accounts` as another product has it: not as ours is.
    pub(crate) async fn make_vendor_table(&self) {
        self.execute(
            "CREATE TABLE kubesvc_accounts (name varchar(255) PRIMARY KEY, kube_host varchar(255), connections int, \
             status varchar(32), zone_id varchar(255), definition text, props text, last_updated bigint)",
        )
        .await;
    }

    /// A text in a statement.
    fn literal(&self, text: &str) -> String {
        let text = text.replace('\'', "''");
        let escaped = if self.database.starts_with("mysql") { text.replace('\\', "\\\\") } else { text };
        format!("'{escaped}'")
    }
}

/// Connects to the database of this URL.
pub(crate) async fn connect(url: &str) -> sqlx::Result<Connection> {
    match url.split("://").next() {
        Some("sqlite") => {
            let path = url.trim_start_matches("sqlite://");
            let patient = std::time::Duration::from_secs(30);
            let options =
                SqliteConnectOptions::new().filename(path).busy_timeout(patient).create_if_missing(true);
            options.connect().await.map(Connection::Sqlite)
        }
        Some("mysql" | "mariadb") => {
            url.parse::<MySqlConnectOptions>()?.connect().await.map(Connection::MariaDb)
        }
        _ => url.parse::<PgConnectOptions>()?.connect().await.map(Connection::Postgres),
    }
}

/// The statement on whichever connection it is.
macro_rules! on {
    ($connection:expr, $database:ident => $done:expr) => {
        match $connection {
            Connection::Sqlite($database) => $done,
            Connection::MariaDb($database) => $done,
            Connection::Postgres($database) => $done,
        }
    };
}

impl Connection {
    /// Executes a statement; the answer is how many rows it changed.
    pub(crate) async fn execute(&mut self, statement: &str) -> sqlx::Result<u64> {
        on!(self, database => {
            let query = sqlx::raw_sql(AssertSqlSafe(statement.to_owned()));
            query.execute(database).await.map(|done| done.rows_affected())
        })
    }

    /// What a statement selects that names a text, a text or NULL, a text and two numbers.
    pub(crate) async fn five(
        &mut self,
        statement: &'static str,
    ) -> sqlx::Result<Vec<(String, Option<String>, String, i64, i64)>> {
        on!(self, database => sqlx::query_as(statement).fetch_all(database).await)
    }

    /// The one number that a statement selects.
    pub(crate) async fn number(&mut self, statement: &'static str) -> sqlx::Result<i64> {
        on!(self, database => sqlx::query_scalar(statement).fetch_one(database).await)
    }

    /// The rows of `kubesvc_accounts`, by name.
    pub(super) async fn rows(&mut self) -> sqlx::Result<Vec<Row>> {
        let mut rows: Vec<Row> =
            on!(self, database => sqlx::query_as(super::row::SELECT).fetch_all(database).await?);
        rows.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(rows)
    }

    /// The replicas that have rows in `kubesvc_assignments`, in order.
    pub(super) async fn assigned_replicas(&mut self) -> sqlx::Result<Vec<String>> {
        const SELECT: &str = "SELECT DISTINCT cd_id FROM kubesvc_assignments ORDER BY 1";
        on!(self, database => sqlx::query_scalar(SELECT).fetch_all(database).await)
    }

    /// Account, epoch and agent of each row of `kubesvc_caching`, in order.
    pub(super) async fn fences(&mut self) -> sqlx::Result<Vec<(String, i64, Option<String>)>> {
        const SELECT: &str = "SELECT account, epoch, agent_id FROM kubesvc_caching ORDER BY 1";
        on!(self, database => sqlx::query_as(SELECT).fetch_all(database).await)
    }

    /// Account and agent of each row of `kubesvc_assignments`, in order.
    pub(super) async fn assignments(&mut self) -> sqlx::Result<Vec<(String, String)>> {
        const SELECT: &str = "SELECT account_name, agent_id FROM kubesvc_assignments ORDER BY 1, 2";
        on!(self, database => sqlx::query_as(SELECT).fetch_all(database).await)
    }
}
