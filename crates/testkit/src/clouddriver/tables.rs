//! Clouddriver's tables, read and written past it.

use sha2::{Digest, Sha256};
use sqlx::{AssertSqlSafe, Connection, MySqlConnection, PgConnection};

/// Everything in the two tables, a text for each row.
const ALL_ROWS: [&str; 2] = [
    "SELECT CONCAT_WS('|', id, type, body, created_at, last_modified_at, last_modified_by) FROM accounts ORDER BY id",
    "SELECT CONCAT_WS('|', id, version, type, body, last_modified_at, is_deleted) FROM accounts_history \
     ORDER BY id, version",
];

/// A row of `accounts`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// Name of the account.
    pub id: String,
    /// The definition, JSON.
    pub body: String,
    /// Milliseconds since the epoch.
    pub last_modified_at: i64,
    /// User of the last change.
    pub last_modified_by: String,
}

/// A database with Clouddriver's tables.
#[derive(Debug)]
pub struct Tables {
    url: String,
    is_postgres: bool,
}

enum Database {
    MariaDb(MySqlConnection),
    PostgreSql(PgConnection),
}

impl Tables {
    /// # Errors
    ///
    /// The URL is of another kind of database.
    pub(super) fn at(url: &str) -> Result<Self, String> {
        let is_postgres = match url.split(':').next() {
            Some("postgres") => true,
            Some("mysql") => false,
            _ => return Err(format!("{url}: Clouddriver needs a database mysql://… or postgres://…")),
        };
        Ok(Self { url: url.to_owned(), is_postgres })
    }

    /// URL, user and password for Java.
    pub(super) fn jdbc(&self) -> (String, String, String) {
        let rest = self.url.split_once("://").map_or("", |(_, rest)| rest);
        let (login, place) = rest.rsplit_once('@').unwrap_or(("", rest));
        let (user, password) = login.split_once(':').unwrap_or((login, ""));
        let kind = if self.is_postgres { "postgresql" } else { "mysql" };
        (format!("jdbc:{kind}://{place}"), unescaped(user), unescaped(password))
    }

    /// Returns a digest of both tables, for tests in which nothing may be written.
    ///
    /// # Errors
    ///
    /// The database does not answer.
    pub async fn checksum(&self) -> Result<String, String> {
        let mut digest = Sha256::new();
        for question in ALL_ROWS {
            for row in self.texts(question).await? {
                digest.update(row);
                digest.update([0]);
            }
        }
        Ok(hex::encode(digest.finalize()))
    }

    /// Returns the row of an account.
    ///
    /// # Errors
    ///
    /// The database does not answer.
    pub async fn row(&self, id: &str) -> Result<Option<Row>, String> {
        type Columns = (String, String, i64, String);
        let question = |body: &str, name: &str| {
            let columns = format!("id, {body}, last_modified_at, last_modified_by");
            AssertSqlSafe(format!("SELECT {columns} FROM accounts WHERE id = {name}"))
        };
        let found: Option<Columns> = match self.connect().await? {
            Database::MariaDb(mut database) => {
                sqlx::query_as(question("body", "?")).bind(id).fetch_optional(&mut database).await
            }
            Database::PostgreSql(mut database) => {
                sqlx::query_as(question("body::text", "$1")).bind(id).fetch_optional(&mut database).await
            }
        }
        .map_err(said)?;
        Ok(found.map(|(id, body, last_modified_at, last_modified_by)| Row {
            id,
            body,
            last_modified_at,
            last_modified_by,
        }))
    }

    /// Stores a row past Clouddriver, whatever its body is: neither checked nor in the history.
    ///
    /// # Errors
    ///
    /// The database refuses it, as it does text that is not JSON.
    pub async fn insert(&self, id: &str, body: &str) -> Result<(), String> {
        const INSERT: &str =
            "INSERT INTO accounts (id, type, body, created_at, last_modified_at, last_modified_by) VALUES ";
        match self.connect().await? {
            Database::MariaDb(mut database) => {
                let statement = AssertSqlSafe(format!("{INSERT}(?, 'kubernetes', ?, 1, 1, 'raw')"));
                sqlx::query(statement).bind(id).bind(body).execute(&mut database).await.map(drop)
            }
            Database::PostgreSql(mut database) => {
                let statement = AssertSqlSafe(format!("{INSERT}($1, 'kubernetes', $2::json, 1, 1, 'raw')"));
                sqlx::query(statement).bind(id).bind(body).execute(&mut database).await.map(drop)
            }
        }
        .map_err(said)
    }

    /// Runs statements, such as those that take a table away.
    ///
    /// # Errors
    ///
    /// Returns the error of the server.
    pub async fn execute(&self, statements: &str) -> Result<(), String> {
        let statements = sqlx::raw_sql(AssertSqlSafe(statements.to_owned()));
        match self.connect().await? {
            Database::MariaDb(mut database) => statements.execute(&mut database).await.map(drop),
            Database::PostgreSql(mut database) => statements.execute(&mut database).await.map(drop),
        }
        .map_err(said)
    }

    async fn texts(&self, question: &'static str) -> Result<Vec<String>, String> {
        match self.connect().await? {
            Database::MariaDb(mut database) => sqlx::query_scalar(question).fetch_all(&mut database).await,
            Database::PostgreSql(mut database) => sqlx::query_scalar(question).fetch_all(&mut database).await,
        }
        .map_err(said)
    }

    async fn connect(&self) -> Result<Database, String> {
        Ok(if self.is_postgres {
            Database::PostgreSql(PgConnection::connect(&self.url).await.map_err(said)?)
        } else {
            Database::MariaDb(MySqlConnection::connect(&self.url).await.map_err(said)?)
        })
    }
}

#[expect(clippy::needless_pass_by_value, reason = "an argument of map_err")]
fn said(error: sqlx::Error) -> String {
    format!("Clouddriver's tables: {error}")
}

/// Resolves the escapes of a URL.
fn unescaped(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut plain = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        let escape =
            bytes.get(at + 1..at + 3).filter(|_| *byte == b'%').and_then(|two| hex::decode(two).ok());
        match escape {
            Some(decoded) => {
                plain.extend(decoded);
                at += 3;
            }
            None => {
                plain.push(*byte);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&plain).into_owned()
}
