//! The tables, as programs beside the operator see them: what a reader polls, and the bare loop that the hub is compared
//! with, which runs the hub's own statement on the same table.

use kubesvc_store::VendorTables;
use sqlx::{
    AssertSqlSafe, Connection as _, Executor as _,
    mysql::{MySqlConnectOptions, MySqlConnection},
    postgres::{PgConnectOptions, PgConnection},
    sqlite::{SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqliteSynchronous},
};

use crate::recorded::{KIND, NAMESPACE, Recorded};

/// Number of rows in a transaction of the bare loop: the maximum of the hub's.
pub(crate) const BATCH: usize = 512;
/// Numbers of rows in one statement on MySQL and SQLite: those of the store.
const PIECES: [usize; 4] = [256, 64, 8, 1];
/// Columns in the order in which they are bound.
const COLUMNS: &str = "id,agent,kind,account,application,namespace,name,api_version,uid,resource_version,body_hash,\
                       body,body_z,last_updated";
/// Number of [`COLUMNS`].
const COLUMN_COUNT: usize = 14;

/// A connection to the database of an operator, or to one of its own.
pub(crate) enum Tables {
    Sqlite(SqliteConnection),
    MariaDb(MySqlConnection),
    PostgreSql(PgConnection),
}

/// A row of `kubesvc_cache`, as far as it is checked.
#[derive(Debug)]
pub(crate) struct Stored {
    pub(crate) name: String,
    pub(crate) hash: String,
    pub(crate) body: String,
}

/// An object of an account, of which a row is made.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AccountObject<'o> {
    pub(crate) account: &'o str,
    pub(crate) object: &'o Recorded,
}

type Result<T> = std::result::Result<T, String>;

fn problem(error: &sqlx::Error) -> String {
    format!("the database: {error}")
}

/// Creates kubesvc's tables in an empty database.
pub(crate) async fn create(url: &str) -> Result<()> {
    kubesvc_store::open_with_cache(url, VendorTables::Refuse, 1).await.map(drop).map_err(|e| e.in_full())
}

impl Tables {
    /// Connects with the settings of the store's own connections.
    pub(crate) async fn connect(url: &str) -> Result<Self> {
        let connected = async {
            Ok(if let Some(path) = url.strip_prefix("sqlite://") {
                let options = SqliteConnectOptions::new()
                    .filename(path)
                    .journal_mode(SqliteJournalMode::Wal)
                    .synchronous(SqliteSynchronous::Full)
                    .foreign_keys(true);
                Self::Sqlite(SqliteConnection::connect_with(&options).await?)
            } else if url.starts_with("mysql") {
                let options: MySqlConnectOptions = url.parse()?;
                let options = options.charset("utf8mb4").collation("utf8mb4_bin");
                let mut connection = MySqlConnection::connect_with(&options).await?;
                connection.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED").await?;
                Self::MariaDb(connection)
            } else {
                let options: PgConnectOptions = url.parse()?;
                Self::PostgreSql(PgConnection::connect_with(&options).await?)
            })
        };
        connected.await.map_err(|error| problem(&error))
    }

    /// Runs a statement of the benchmark's own.
    pub(crate) async fn execute(&mut self, sql: &str) -> Result<()> {
        let sql = || AssertSqlSafe(sql.to_owned());
        match self {
            Self::Sqlite(connection) => sqlx::raw_sql(sql()).execute(connection).await.map(drop),
            Self::MariaDb(connection) => sqlx::raw_sql(sql()).execute(connection).await.map(drop),
            Self::PostgreSql(connection) => sqlx::raw_sql(sql()).execute(connection).await.map(drop),
        }
        .map_err(|error| problem(&error))
    }

    /// The first column of a query that returns one number.
    pub(crate) async fn number(&mut self, sql: &str) -> Result<i64> {
        let sql = AssertSqlSafe(sql.to_owned());
        match self {
            Self::Sqlite(connection) => sqlx::query_scalar(sql).fetch_one(connection).await,
            Self::MariaDb(connection) => sqlx::query_scalar(sql).fetch_one(connection).await,
            Self::PostgreSql(connection) => sqlx::query_scalar(sql).fetch_one(connection).await,
        }
        .map_err(|error| problem(&error))
    }

    /// Resource version of the row with this id; `None` without one.
    pub(crate) async fn version(&mut self, id: &str) -> Result<Option<String>> {
        const WITH_MARK: &str = "SELECT resource_version FROM kubesvc_cache WHERE id = ?";
        const WITH_NUMBER: &str = "SELECT resource_version FROM kubesvc_cache WHERE id = $1";
        match self {
            Self::Sqlite(connection) => {
                sqlx::query_scalar(WITH_MARK).bind(id).fetch_optional(connection).await
            }
            Self::MariaDb(connection) => {
                sqlx::query_scalar(WITH_MARK).bind(id).fetch_optional(connection).await
            }
            Self::PostgreSql(connection) => {
                sqlx::query_scalar(WITH_NUMBER).bind(id).fetch_optional(connection).await
            }
        }
        .map_err(|error| problem(&error))
    }

    /// All rows of `kubesvc_cache` whose names begin with `set`.
    pub(crate) async fn rows(&mut self, set: &str) -> Result<Vec<Stored>> {
        let sql = format!("SELECT name, body_hash, body FROM kubesvc_cache WHERE name LIKE '{set}-%'");
        let sql = AssertSqlSafe(sql);
        macro_rules! read {
            ($connection:expr) => {{
                let rows = sqlx::query(sql).fetch_all($connection).await.map_err(|error| problem(&error))?;
                let row =
                    |row| Ok(Stored { name: text(&row, 0)?, hash: text(&row, 1)?, body: text(&row, 2)? });
                return rows
                    .into_iter()
                    .map(row)
                    .collect::<std::result::Result<_, _>>()
                    .map_err(|error| problem(&error));
            }};
        }
        fn text<'r, R: sqlx::Row>(row: &'r R, at: usize) -> std::result::Result<String, sqlx::Error>
        where
            usize: sqlx::ColumnIndex<R>,
            String: sqlx::Decode<'r, R::Database>,
        {
            row.try_get_unchecked(at)
        }
        match self {
            Self::Sqlite(connection) => read!(connection),
            Self::MariaDb(connection) => read!(connection),
            Self::PostgreSql(connection) => read!(connection),
        }
    }

    /// Writes objects in one transaction, as the hub's statement does.
    pub(crate) async fn write(&mut self, objects: &[AccountObject<'_>]) -> Result<()> {
        let rows = Rows::of(objects);
        match self {
            Self::Sqlite(connection) => rows.write_sqlite(connection).await,
            Self::MariaDb(connection) => rows.write_mariadb(connection).await,
            Self::PostgreSql(connection) => rows.write_postgresql(connection).await,
        }
        .map_err(|error| problem(&error))
    }
}

/// What the hub binds for each row, made from the objects as it does.
struct Rows<'o> {
    objects: &'o [AccountObject<'o>],
    ids: Vec<String>,
    hashes: Vec<String>,
    now: i64,
}

const AGENT: &str = "agent-0";
const CACHED_KIND: &str = "configMap";

impl<'o> Rows<'o> {
    fn of(objects: &'o [AccountObject<'o>]) -> Self {
        Self {
            objects,
            ids: objects.iter().map(|row| row.object.id(row.account)).collect(),
            hashes: objects.iter().map(|row| hex::encode(row.object.hash)).collect(),
            now: jiff::Timestamp::now().as_millisecond(),
        }
    }

    async fn write_postgresql(&self, connection: &mut PgConnection) -> std::result::Result<(), sqlx::Error> {
        let all = |value: &'static str| vec![value; self.objects.len()];
        let of =
            |text: fn(&Recorded) -> &str| self.objects.iter().map(|row| text(row.object)).collect::<Vec<_>>();
        let mut transaction = connection.begin().await?;
        sqlx::query(AssertSqlSafe(postgresql()))
            .bind(self.ids.iter().map(String::as_str).collect::<Vec<_>>())
            .bind(all(AGENT))
            .bind(all(CACHED_KIND))
            .bind(self.objects.iter().map(|row| row.account).collect::<Vec<_>>())
            .bind(vec![None::<&str>; self.objects.len()])
            .bind(all(NAMESPACE))
            .bind(of(|object| &object.name))
            .bind(all(KIND[1]))
            .bind(of(|object| &object.uid))
            .bind(of(|object| &object.version))
            .bind(self.hashes.iter().map(String::as_str).collect::<Vec<_>>())
            .bind(of(|object| &object.body))
            .bind(vec![None::<&[u8]>; self.objects.len()])
            .bind(self.now)
            .execute(&mut *transaction)
            .await?;
        transaction.commit().await
    }

    async fn write_mariadb(&self, connection: &mut MySqlConnection) -> std::result::Result<(), sqlx::Error> {
        let mut transaction = connection.begin().await?;
        for (begin, end) in pieces(self.objects.len()) {
            let mut query =
                sqlx::query(AssertSqlSafe(values(end - begin, "ON DUPLICATE KEY UPDATE ", "VALUES(", ")")));
            for at in begin..end {
                let AccountObject { account, object } = self.objects[at];
                query = query.bind(&self.ids[at]).bind(AGENT).bind(CACHED_KIND).bind(account);
                query = query.bind(None::<&str>).bind(NAMESPACE).bind(&object.name).bind(KIND[1]);
                query =
                    query.bind(&object.uid).bind(&object.version).bind(&self.hashes[at]).bind(&object.body);
                query = query.bind(None::<&[u8]>).bind(self.now);
            }
            query.execute(&mut *transaction).await?;
        }
        transaction.commit().await
    }

    async fn write_sqlite(&self, connection: &mut SqliteConnection) -> std::result::Result<(), sqlx::Error> {
        let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await?;
        for (begin, end) in pieces(self.objects.len()) {
            let sql = values(end - begin, "ON CONFLICT (id) DO UPDATE SET ", "excluded.", "");
            let mut query = sqlx::query(AssertSqlSafe(sql));
            for at in begin..end {
                let AccountObject { account, object } = self.objects[at];
                query = query.bind(&self.ids[at]).bind(AGENT).bind(CACHED_KIND).bind(account);
                query = query.bind(None::<&str>).bind(NAMESPACE).bind(&object.name).bind(KIND[1]);
                query =
                    query.bind(&object.uid).bind(&object.version).bind(&self.hashes[at]).bind(&object.body);
                query = query.bind(None::<&[u8]>).bind(self.now);
            }
            query.execute(&mut *transaction).await?;
        }
        transaction.commit().await
    }
}

/// Begin and end of each statement for this many rows.
fn pieces(mut rows: usize) -> Vec<(usize, usize)> {
    let (mut pieces, mut begin) = (Vec::new(), 0);
    while let Some(size) = PIECES.into_iter().find(|size| *size <= rows) {
        pieces.push((begin, begin + size));
        begin += size;
        rows -= size;
    }
    pieces
}

/// The store's assignments, bodies first.
fn assignments(before: &str, after: &str) -> String {
    let body = |column: &str| {
        format!(
            "{column}=CASE WHEN kubesvc_cache.body_hash={before}body_hash{after} AND (kubesvc_cache.body IS NOT NULL OR \
             kubesvc_cache.body_z IS NOT NULL) THEN kubesvc_cache.{column} ELSE {before}{column}{after} END"
        )
    };
    let others = COLUMNS.split(',').filter(|column| !["id", "body", "body_z"].contains(column));
    let others = others.map(|column| format!("{column}={before}{column}{after}"));
    [body("body"), body("body_z")].into_iter().chain(others).collect::<Vec<_>>().join(",")
}

fn values(rows: usize, on_same_key: &str, before: &str, after: &str) -> String {
    let row = format!("({})", ["?"; COLUMN_COUNT].join(","));
    format!(
        "INSERT INTO kubesvc_cache ({COLUMNS}) VALUES {} {on_same_key}{}",
        vec![row; rows].join(","),
        assignments(before, after)
    )
}

fn postgresql() -> String {
    let arrays: Vec<String> = (1..=12).map(|number| format!("${number}::text[]")).collect();
    format!(
        "INSERT INTO kubesvc_cache ({COLUMNS}) SELECT *, $14::bigint FROM unnest({},$13::bytea[]) \
         ON CONFLICT (id) DO UPDATE SET {}",
        arrays.join(","),
        assignments("excluded.", "")
    )
}
