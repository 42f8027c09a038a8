//! Clouddriver's own table `accounts`, in a database of Clouddriver's. It is only read, in one READ ONLY transaction for
//! each scan, so that a user with SELECT is enough and a scan sees one state of the table.
//!
//! A scan makes one connection and closes it. It reads id and time of every row, and the bodies of the rows that are new
//! or changed.

use std::collections::HashMap;
use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;

use secrecy::SecretString;

use super::error::ServerErrors;
use super::read_only::{ReadOnlySession, TableReading, read_only};
use super::sql::statement::{ColumnType, Statement};
use super::url::{self, DatabaseLocation};

/// Rows of one page of ids and times.
const PAGE_ROWS: usize = 1000;
/// Rows of one statement that reads bodies.
const BODIES_PER_STATEMENT: usize = 100;
/// Maximum number of rows that are read.
const MAX_ROWS: usize = 100_000;
/// Maximum size of a body, in bytes. Of a larger one only the size is read.
const MAX_BODY_BYTES: i64 = 1 << 20;
/// Maximum size of all bodies that one scan reads, in bytes.
const MAX_SCAN_BYTES: usize = 256 << 20;

/// Where Clouddriver's database is.
#[derive(Clone, Debug)]
pub struct ClouddriverDatabase {
    /// `mysql://USER@HOST:PORT/DATABASE` or `postgres://…`, without a password.
    pub url: String,
    /// The user's password.
    pub password: Option<SecretString>,
    /// PEM file with the authority of the server's certificate, which is then verified together with the server's name.
    pub authority: Option<PathBuf>,
}

/// A row of type `kubernetes`.
#[derive(Clone, PartialEq, Eq)]
pub struct ClouddriverRow {
    /// Name of the account.
    pub id: String,
    /// Time of its last change, in milliseconds since the Unix epoch, as Clouddriver wrote it.
    pub last_modified_at: i64,
    /// Its definition.
    pub body: ClouddriverBody,
}

/// The body of a row.
#[derive(Clone, PartialEq, Eq)]
pub enum ClouddriverBody {
    /// Not read: the row is known at this time.
    Known,
    /// The text, which may contain credentials.
    Text(String),
    /// NULL.
    Missing,
    /// Larger than 1 MiB.
    TooLarge,
}

/// What a scan found.
pub struct ClouddriverScan {
    /// The rows, sorted by id.
    pub rows: Vec<ClouddriverRow>,
    /// Why there may be further rows; `None` if there are none.
    pub unread: Option<&'static str>,
}

/// Why the table cannot be read. Contains no password and no row.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ClouddriverTableError {
    /// The URL is of no use.
    #[error(
        "url must be mysql://USER@HOST:PORT/DATABASE or postgres://USER@HOST:PORT/DATABASE, with no other parameters \
         than ssl-mode, ssl-ca, ssl-cert and ssl-key, and with the password in passwordFile"
    )]
    Url,
    /// The server refuses the user.
    #[error(
        "the database {database} refuses the user: check the user in url, and the password in passwordFile"
    )]
    Login {
        /// The database.
        database: String,
        /// The error of the driver.
        #[source]
        source: Arc<dyn Error + Send + Sync>,
    },
    /// The user lacks a right.
    #[error("the user may not read the table {table} of {database}: GRANT SELECT on it")]
    Denied {
        /// The table.
        table: &'static str,
        /// The database.
        database: String,
        /// The error of the driver.
        #[source]
        source: Arc<dyn Error + Send + Sync>,
    },
    /// There is no such database or table.
    #[error(
        "{database} has no table accounts with the columns of Clouddriver: check the database in url, and that \
             Clouddriver has account.storage.enabled"
    )]
    NoTable {
        /// The database.
        database: String,
        /// The error of the driver.
        #[source]
        source: Arc<dyn Error + Send + Sync>,
    },
    /// No answer in time.
    #[error("the database {database} does not answer in time")]
    TooSlow {
        /// The database.
        database: String,
    },
    /// No connection, or another error of the server.
    #[error("the database {database} cannot be read: check that it runs there, and TLS in url")]
    Unavailable {
        /// The database.
        database: String,
        /// The error of the driver.
        #[source]
        source: Arc<dyn Error + Send + Sync>,
    },
}

/// Checks that a URL can name Clouddriver's database, and has no password.
///
/// # Errors
/// [`ClouddriverTableError::Url`].
pub fn check_clouddriver_url(url: &str) -> Result<(), ClouddriverTableError> {
    match url::parse(url) {
        Ok(DatabaseLocation::MySql(address) | DatabaseLocation::Postgres(address))
            if address.password.is_none() =>
        {
            Ok(())
        }
        _ => Err(ClouddriverTableError::Url),
    }
}

/// Reads Clouddriver's table. `known` is the time of each row whose body is not needed again.
///
/// # Errors
/// See [`ClouddriverTableError`]. Nothing is known about the table then.
pub async fn scan_clouddriver_accounts(
    database: &ClouddriverDatabase,
    known: &HashMap<String, i64>,
) -> Result<ClouddriverScan, ClouddriverTableError> {
    read_only(database, &Scan { known }).await
}

/// One scan of the table.
struct Scan<'s> {
    known: &'s HashMap<String, i64>,
}

impl TableReading for Scan<'_> {
    const TABLE: &'static str = "accounts";
    type Found = ClouddriverScan;

    async fn read<D: ServerErrors>(
        &self,
        session: &mut ReadOnlySession<'_, D>,
    ) -> Result<ClouddriverScan, ClouddriverTableError> {
        let (mut rows, mut unread) = ids(session).await?;
        let changed: Vec<usize> = rows
            .iter()
            .enumerate()
            .filter(|(_, row)| self.known.get(&row.id) != Some(&row.last_modified_at))
            .map(|(at, _)| at)
            .collect();
        let mut bytes = 0;
        let mut dropped = Vec::new();
        for chunk in changed.chunks(BODIES_PER_STATEMENT) {
            if bytes > MAX_SCAN_BYTES {
                dropped.extend(chunk.iter().copied());
                continue;
            }
            let ids: Vec<&str> = chunk.iter().map(|at| rows[*at].id.as_str()).collect();
            let mut bodies = bodies(session, &ids).await?;
            for at in chunk {
                let row = &mut rows[*at];
                row.body = bodies.remove(&row.id).unwrap_or(ClouddriverBody::Missing);
                if let ClouddriverBody::Text(text) = &row.body {
                    bytes += text.len();
                }
            }
        }
        if !dropped.is_empty() {
            unread = Some(
                "its changed rows are larger than 256 MiB together; the others follow with the next read",
            );
            let mut at = 0;
            rows.retain(|_| {
                at += 1;
                dropped.binary_search(&(at - 1)).is_err()
            });
        }
        Ok(ClouddriverScan { rows, unread })
    }
}

/// Id and time of each row.
async fn ids<D: ServerErrors>(
    session: &mut ReadOnlySession<'_, D>,
) -> Result<(Vec<ClouddriverRow>, Option<&'static str>), ClouddriverTableError> {
    let (id, time) = (D::as_text("id"), D::as_bigint("last_modified_at", ColumnType::Bigint));
    let from = format!("SELECT {id}, {time} FROM accounts WHERE {} = 'kubernetes'", D::as_text("type"));
    let mut rows: Vec<ClouddriverRow> = Vec::new();
    loop {
        let mut statement = Statement::<D>::new(&from);
        if let Some(last) = rows.last() {
            statement = statement.text(" AND id > ?").bind(&last.id);
        }
        let statement = statement.text(&format!(" ORDER BY id LIMIT {PAGE_ROWS}"));
        let page: Vec<(String, Option<i64>)> = session.all(statement).await?;
        let is_last = page.len() < PAGE_ROWS;
        rows.extend(page.into_iter().map(|(id, time)| ClouddriverRow {
            id,
            last_modified_at: time.unwrap_or_default(),
            body: ClouddriverBody::Known,
        }));
        if is_last {
            return Ok((rows, None));
        }
        if rows.len() >= MAX_ROWS {
            return Ok((rows, Some("it has more than 100000 accounts")));
        }
    }
}

async fn bodies<D: ServerErrors>(
    session: &mut ReadOnlySession<'_, D>,
    ids: &[&str],
) -> Result<HashMap<String, ClouddriverBody>, ClouddriverTableError> {
    let (id, body) = (D::as_text("id"), D::as_text("body"));
    let size = D::as_bigint(&format!("OCTET_LENGTH({body})"), ColumnType::Bigint);
    let select = format!(
        "SELECT {id}, {size}, CASE WHEN OCTET_LENGTH({body}) <= {MAX_BODY_BYTES} THEN {body} END FROM accounts \
         WHERE {} = 'kubernetes' AND id ",
        D::as_text("type")
    );
    let rows: Vec<(String, Option<i64>, Option<String>)> =
        session.all(Statement::<D>::new(&select).one_of(ids)).await?;
    let body = |(id, size, text): (String, Option<i64>, Option<String>)| {
        let body = match (size, text) {
            (Some(size), _) if size > MAX_BODY_BYTES => ClouddriverBody::TooLarge,
            (_, Some(text)) => ClouddriverBody::Text(text),
            _ => ClouddriverBody::Missing,
        };
        (id, body)
    };
    Ok(rows.into_iter().map(body).collect())
}
