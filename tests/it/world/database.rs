//! The database of a world, and access to its tables.

use sqlx::mysql::{MySqlConnectOptions, MySqlConnection};
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{AssertSqlSafe, ConnectOptions as _};

use super::{
    World,
    row::{CachedRow, Row},
};
use kubesvc_testkit::databases::{self, Kind};
use kubesvc_testkit::{folder::Folder, must};

/// Supported kinds of databases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Database {
    /// A file in the world's folder.
    #[default]
    Sqlite,
    /// A separate database on the MariaDB server of this test process.
    MariaDb,
    /// A separate database on the PostgreSQL server of this test process.
    Postgres,
}

/// A connection to a world's database.
pub(crate) enum Connection {
    Sqlite(SqliteConnection),
    MariaDb(MySqlConnection),
    Postgres(PgConnection),
}

impl Database {
    /// The kind of server that has a database of this kind.
    ///
    /// # Panics
    ///
    /// SQLite has no server.
    pub(crate) fn server(self) -> Kind {
        match self {
            Self::Sqlite => unreachable!("a story of servers runs on a server"),
            Self::MariaDb => Kind::MariaDb,
            Self::Postgres => Kind::PostgreSql,
        }
    }

    /// Creates an empty database of this kind and returns its URL.
    pub(super) async fn fresh(self, folder: &Folder) -> String {
        match self {
            Self::Sqlite => format!("sqlite://{}", folder.file("kubesvc.db").display()),
            Self::MariaDb | Self::Postgres => databases::shared(self.server()).await.fresh_database().await,
        }
    }
}

impl World {
    /// URL of the operator's database.
    pub(crate) fn database_url(&self) -> &str {
        &self.database
    }

    /// Connects to the operator's database.
    pub(crate) async fn open_database(&self) -> sqlx::Result<Connection> {
        connect(&self.database).await
    }

    /// Executes a statement on the operator's database, like an administrator's manual change. Returns the number of
    /// affected rows.
    pub(crate) async fn execute(&self, statement: &str) -> u64 {
        must(self.try_execute(statement).await)
    }

    /// Like [`World::execute`], but returns errors.
    ///
    /// # Errors
    ///
    /// Returns the error of the database.
    pub(crate) async fn try_execute(&self, statement: &str) -> Result<u64, String> {
        let done = async { self.open_database().await?.execute(statement).await };
        done.await.map_err(|error| format!("{statement}: {error}"))
    }
}

/// A row that another program has written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ForeignTableRow<'t> {
    pub(crate) name: &'t str,
    pub(crate) status: &'t str,
    pub(crate) zone: &'t str,
    pub(crate) definition: &'t str,
}

impl World {
    /// Inserts rows of another program into a table of accounts.
    pub(crate) async fn write_foreign_rows(&self, table: &str, rows: &[ForeignTableRow<'_>]) {
        for row in rows {
            let texts =
                [row.name, row.status, row.zone, row.definition].map(|text| self.literal(text)).join(", ");
            self.execute(&format!(
                "INSERT INTO {table} (name, status, zone_id, definition) VALUES ({texts})"
            ))
            .await;
        }
    }

    /// Creates the table `kubesvc_accounts` with another product's schema.
    pub(crate) async fn make_vendor_table(&self) {
        self.execute(
            "CREATE TABLE kubesvc_accounts (name varchar(255) PRIMARY KEY, kube_host varchar(255), connections int, \
             status varchar(32), zone_id varchar(255), definition text, props text, last_updated bigint)",
        )
        .await;
    }

    /// Returns a text as SQL literal.
    fn literal(&self, text: &str) -> String {
        let text = text.replace('\'', "''");
        let escaped = if self.database.starts_with("mysql") { text.replace('\\', "\\\\") } else { text };
        format!("'{escaped}'")
    }
}

/// Kind, namespace, name, application and body of a cached object.
pub(crate) type CachedObject = (String, String, String, Option<String>, Option<String>);

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

/// Runs the expression on whichever kind of connection it is.
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
    /// Executes a statement and returns the number of affected rows.
    pub(crate) async fn execute(&mut self, statement: &str) -> sqlx::Result<u64> {
        on!(self, database => {
            let query = sqlx::raw_sql(AssertSqlSafe(statement.to_owned()));
            query.execute(database).await.map(|done| done.rows_affected())
        })
    }

    /// Runs a query whose rows are a text, a text or NULL, a text and two numbers.
    pub(crate) async fn five(
        &mut self,
        statement: &'static str,
    ) -> sqlx::Result<Vec<(String, Option<String>, String, i64, i64)>> {
        on!(self, database => sqlx::query_as(statement).fetch_all(database).await)
    }

    /// Returns the single number that a query selects.
    pub(crate) async fn number(&mut self, statement: &'static str) -> sqlx::Result<i64> {
        on!(self, database => sqlx::query_scalar(statement).fetch_one(database).await)
    }

    /// Returns the rows of `kubesvc_accounts`, by name.
    pub(super) async fn rows(&mut self) -> sqlx::Result<Vec<Row>> {
        let mut rows: Vec<Row> =
            on!(self, database => sqlx::query_as(super::row::SELECT).fetch_all(database).await?);
        rows.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(rows)
    }

    /// Returns the replicas that have rows in `kubesvc_assignments`, in order.
    pub(super) async fn assigned_replicas(&mut self) -> sqlx::Result<Vec<String>> {
        const SELECT: &str = "SELECT DISTINCT cd_id FROM kubesvc_assignments ORDER BY 1";
        on!(self, database => sqlx::query_scalar(SELECT).fetch_all(database).await)
    }

    /// Returns account, epoch and agent of each row of `kubesvc_caching`, in order.
    pub(super) async fn fences(&mut self) -> sqlx::Result<Vec<(String, i64, Option<String>)>> {
        const SELECT: &str = "SELECT account, epoch, agent_id FROM kubesvc_caching ORDER BY 1";
        on!(self, database => sqlx::query_as(SELECT).fetch_all(database).await)
    }

    /// Returns kind, namespace, name, application and body of each row of `kubesvc_cache`, in order.
    pub(super) async fn cached_objects(&mut self) -> sqlx::Result<Vec<CachedObject>> {
        const SELECT: &str =
            "SELECT kind, namespace, name, application, body FROM kubesvc_cache ORDER BY 1, 2, 3";
        on!(self, database => sqlx::query_as(SELECT).fetch_all(database).await)
    }

    /// Returns the rows of `kubesvc_cache`, in no order.
    pub(crate) async fn cached_rows(&mut self) -> sqlx::Result<Vec<CachedRow>> {
        const SELECT: &str = "SELECT kind, account, namespace, name, id, uid, resource_version, application, body \
                              FROM kubesvc_cache";
        on!(self, database => sqlx::query_as(SELECT).fetch_all(database).await)
    }

    /// Returns id, type and id of what it is related to, of each row of `kubesvc_cache_rel`, in order.
    pub(crate) async fn cached_relations(&mut self) -> sqlx::Result<Vec<(String, String, String)>> {
        const SELECT: &str =
            "SELECT rel1_id, COALESCE(rel2_type, ''), rel2_id FROM kubesvc_cache_rel ORDER BY 1, 2, 3";
        on!(self, database => sqlx::query_as(SELECT).fetch_all(database).await)
    }

    /// Returns account, scope, state and version of each row of `kubesvc_resourceversion`, in order.
    pub(crate) async fn scopes(&mut self) -> sqlx::Result<Vec<(String, String, String, Option<String>)>> {
        const SELECT: &str = "SELECT account, ns_group_kind, state, resourceversion FROM kubesvc_resourceversion \
                              ORDER BY 1, 2";
        on!(self, database => sqlx::query_as(SELECT).fetch_all(database).await)
    }

    /// Returns account and agent of each row of `kubesvc_assignments`, in order.
    pub(super) async fn assignments(&mut self) -> sqlx::Result<Vec<(String, String)>> {
        const SELECT: &str = "SELECT account_name, agent_id FROM kubesvc_assignments ORDER BY 1, 2";
        on!(self, database => sqlx::query_as(SELECT).fetch_all(database).await)
    }
}
