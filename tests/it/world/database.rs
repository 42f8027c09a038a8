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

    /// Executes a statement on the operator's database, as somebody does who has the rights.
    pub(crate) async fn execute(&self, statement: &str) {
        let done = async { self.open_database().await?.execute(statement).await };
        must(done.await.map_err(|error| format!("{statement}: {error}")));
    }
}

/// Connects to the database of this URL.
pub(crate) async fn connect(url: &str) -> sqlx::Result<Connection> {
    match url.split("://").next() {
        Some("sqlite") => {
            let path = url.trim_start_matches("sqlite://");
            let patient = std::time::Duration::from_secs(30);
            let options = SqliteConnectOptions::new().filename(path).busy_timeout(patient);
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

    /// The rows of `kubesvc_accounts`, by name.
    pub(super) async fn rows(&mut self) -> sqlx::Result<Vec<Row>> {
        let mut rows: Vec<Row> =
            on!(self, database => sqlx::query_as(super::row::SELECT).fetch_all(database).await?);
        rows.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(rows)
    }

    /// Account and agent of each row of `kubesvc_assignments`, in order.
    pub(super) async fn assignments(&mut self) -> sqlx::Result<Vec<(String, String)>> {
        const SELECT: &str = "SELECT account_name, agent_id FROM kubesvc_assignments ORDER BY 1, 2";
        on!(self, database => sqlx::query_as(SELECT).fetch_all(database).await)
    }
}
