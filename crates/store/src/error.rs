//! Errors of the database: as callers see them, and what resolves one that makes the database unavailable.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use super::dialect::Dialect;
use super::url::ServerAddress;
use kubesvc_core::Installation;

/// An error of the database. Cheap to clone, because every waiter of a commit receives it.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// The database is unreachable, locked, full or read-only. Retry.
    #[error("the database cannot be used now")]
    Unavailable(#[source] Arc<dyn Error + Send + Sync>),
    /// The statement or its data are invalid. Retrying does not help.
    #[error("the database refuses {what}")]
    Refused {
        /// The table and the row's key.
        what: String,
        /// The error reported by the database.
        #[source]
        source: Arc<dyn Error + Send + Sync>,
    },
    /// The settings or the schema do not fit. The message says what to do.
    #[error("{0}")]
    Unfit(String),
    /// The database belongs to another installation; nothing was changed.
    #[error(
        "the database {database} belongs to {owner}: give kubesvc.database.url another database, or, if it was moved or \
         restored from there, run kubesvc-operator claim-database"
    )]
    Claimed {
        /// The database, without its password.
        database: String,
        /// Its owner.
        owner: Installation,
    },
    /// Another process holds the lock of the SQLite database; nothing was changed.
    #[error(
        "another process{} uses the database {database}, and SQLite is for one replica only: end it first (in \
         Kubernetes: one replica with strategy Recreate); several replicas need MySQL, MariaDB or PostgreSQL",
        if owner.is_empty() { String::new() } else { format!(" ({owner})") }
    )]
    InUse {
        /// The file.
        database: String,
        /// Host and process id; empty if the lock does not say.
        owner: String,
    },
    /// Another replica leads under a later term; nothing was written.
    #[error("another replica leads: a later term has begun in kubesvc_locks")]
    Deposed,
}

impl StoreError {
    /// Returns [`StoreError::Unavailable`] with this source.
    pub fn unavailable(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Unavailable(Arc::from(source.into()))
    }

    /// Returns [`StoreError::Refused`] for a table and row, with this source.
    pub fn refused(what: impl Into<String>, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Refused { what: what.into(), source: Arc::from(source.into()) }
    }

    /// Why the database refused a row, as its error code: the text of the error may quote the row.
    pub(crate) fn refusal(&self) -> String {
        let Self::Refused { source, .. } = self else { return self.to_string() };
        let error = source.downcast_ref::<sqlx::Error>().and_then(sqlx::Error::as_database_error);
        match error.and_then(sqlx::error::DatabaseError::code) {
            Some(code) => format!("the database refuses it with error {code}"),
            None => "the driver of the database refuses it".to_owned(),
        }
    }

    /// The error and its causes in one line, without row data.
    pub fn in_full(&self) -> String {
        let mut text = self.to_string();
        let mut cause = self.source();
        while let Some(error) = cause {
            // Some errors include their source in their own text.
            let said = error.to_string();
            if !text.ends_with(&said) {
                text.push_str(": ");
                text.push_str(&said);
            }
            cause = error.source();
        }
        text
    }
}

/// A row with a value that is invalid for its column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// The table.
    pub table: &'static str,
    /// Name of the row, as far as it can be read.
    pub name: String,
    /// uid of the row, if it can be read.
    pub uid: Option<String>,
    /// The first invalid column.
    pub column: String,
    /// What is wrong with the value.
    pub why: String,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "table {}, row {:?}, column {}: {}", self.table, self.name, self.column, self.why)
    }
}

/// What an error of a database means, by what resolves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SqlFault {
    /// Another transaction holds a lock: the same transaction may succeed a moment later.
    Busy,
    /// The server is read-only: new connections may lead to its primary.
    ReadOnly,
    DiskFull,
    /// The server takes no more connections.
    TooManyConnections,
    /// The user lacks a privilege.
    Denied,
    /// The server cancelled a statement that took too long.
    TooSlow,
    /// The database or its driver refuses a value.
    Row,
    /// A table or column is missing.
    Schema,
    NoConnection,
    /// Something that only this database has, and what to do about it.
    Other(&'static str),
    /// A code that is not known.
    Unknown,
}

impl SqlFault {
    /// The meaning of an error that the database did not report itself.
    pub(crate) fn of_driver(error: &sqlx::Error) -> Self {
        match error {
            sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) | sqlx::Error::Encode(_) => Self::Row,
            _ => Self::NoConnection,
        }
    }
}

/// An error of the database, in words that say what to do.
#[derive(Debug)]
pub(crate) struct DatabaseError {
    fault: SqlFault,
    what: String,
    source: Option<sqlx::Error>,
}

impl fmt::Display for DatabaseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl Error for DatabaseError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_ref().map(|source| source as _)
    }
}

impl StoreError {
    /// Returns [`StoreError::Unavailable`] with these words and this source.
    pub(crate) fn of_fault(fault: SqlFault, what: impl Into<String>, source: Option<sqlx::Error>) -> Self {
        Self::unavailable(DatabaseError { fault, what: what.into(), source })
    }

    /// The error of a database of this name, with its meaning.
    pub(crate) fn of(name: &str, fault: SqlFault, error: sqlx::Error) -> Self {
        let what = match fault {
            SqlFault::Row => return Self::refused("a row", error),
            SqlFault::Schema => {
                return Self::Unfit(format!(
                    "the schema of the database is not as kubesvc left it ({error}): start kubesvc again; if that \
                     does not help, give it an empty database, and kubesvc makes its accounts anew from the objects"
                ));
            }
            SqlFault::Busy => format!("a conflict with another {name} transaction"),
            SqlFault::ReadOnly => format!("this {name} server is read-only: it is not the primary"),
            SqlFault::DiskFull => format!("the disk of {name} is full: make room"),
            SqlFault::TooManyConnections => {
                format!("{name} takes no more connections: raise max_connections")
            }
            SqlFault::Denied => format!("{name} denies the user a privilege: grant it"),
            SqlFault::TooSlow => format!("{name} took too long for a statement"),
            SqlFault::NoConnection if matches!(error, sqlx::Error::PoolTimedOut) => format!(
                "{name} provided no connection in time: it is down, hangs, or has reached max_connections"
            ),
            SqlFault::NoConnection => format!("no connection to {name}"),
            SqlFault::Other(what) => what.to_owned(),
            SqlFault::Unknown => format!("{name} cannot be used"),
        };
        Self::of_fault(fault, what, Some(error))
    }

    /// Names the database in an error that only its administrator can resolve.
    pub(crate) fn of_database(self, database: impl fmt::Display) -> Self {
        match self {
            Self::Unfit(why) => Self::Unfit(format!("the database {database}: {why}")),
            other => other,
        }
    }

    fn fault(&self) -> Option<SqlFault> {
        let Self::Unavailable(source) = self else { return None };
        source.downcast_ref::<DatabaseError>().map(|error| error.fault)
    }
}

/// Whether the same transaction may succeed a moment later.
pub(crate) fn is_busy(error: &StoreError) -> bool {
    error.fault() == Some(SqlFault::Busy)
}

/// Whether all connections should be replaced.
pub(crate) fn is_wrong_server(error: &StoreError) -> bool {
    error.fault() == Some(SqlFault::ReadOnly)
}

/// Whether the connection that returned this error may be in a state unknown to its driver.
pub(crate) fn leaves_suspect(error: &StoreError) -> bool {
    matches!(error, StoreError::Unavailable(_) | StoreError::Unfit(_)) && !is_busy(error)
}

/// An error at startup that a setting resolves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StartFault {
    /// The server refuses the user. What to check.
    User(&'static str),
    /// There is no such database.
    Database,
    /// The user may not change the schema. What to grant.
    Rights(&'static str),
    /// The server is not the primary.
    ReadOnly,
    /// A pooler refuses the connection.
    Pooler,
}

/// A kind of server, for errors at startup.
pub(crate) trait ServerErrors: Dialect {
    /// The servers that this kind covers.
    const SERVERS: &'static str;
    /// What to check if the server cannot be used.
    const CONNECTION_HINT: &'static str;

    /// The setting that resolves an error that the server reported, if one does.
    fn start_fault(error: &sqlx::Error) -> Option<StartFault>;
}

/// Classifies an error of a server at startup, where a missing database, user or privilege is a configuration error. An
/// unreachable server is not: it may become available.
pub(crate) fn at_start<D: ServerErrors>(address: &ServerAddress, error: sqlx::Error) -> StoreError {
    let (name, servers) = (D::NAME, D::SERVERS);
    let (what, todo) = match D::start_fault(&error) {
        Some(StartFault::User(todo)) => {
            (format!("{name} refuses the user {:?} of the database {address}", address.user), todo)
        }
        Some(StartFault::Database) => (
            format!("{name} has no database {address}"),
            "create it with CREATE DATABASE, or correct kubesvc.database.url",
        ),
        Some(StartFault::Rights(todo)) => {
            (format!("the user {:?} lacks rights in the database {address}", address.user), todo)
        }
        Some(StartFault::ReadOnly) => {
            (format!("the database {address} is read-only"), "set kubesvc.database.url to the primary server")
        }
        Some(StartFault::Pooler) => (
            format!("the pooler in front of the database {address} refuses the connection"),
            "check user, password and database in kubesvc.database.url, and the pooler's settings",
        ),
        None => match error {
            sqlx::Error::Io(_) | sqlx::Error::PoolTimedOut if !is_about_tls(&error) => {
                return StoreError::unavailable(format!(
                    "no connection to the database {address} ({error}): check that {servers} runs there, and host and \
                     port in kubesvc.database.url"
                ));
            }
            sqlx::Error::Io(_)
            | sqlx::Error::Tls(_)
            | sqlx::Error::Configuration(_)
            | sqlx::Error::Protocol(_) => {
                (format!("no {servers} server can be used at {address}"), D::CONNECTION_HINT)
            }
            error => return D::classify(error).of_database(address),
        },
    };
    StoreError::Unfit(format!("{what} ({error}): {todo}"))
}

/// Whether the server was reached but TLS failed. A certificate that does not verify is reported as an I/O error, and
/// waiting does not help.
fn is_about_tls(error: &sqlx::Error) -> bool {
    let sqlx::Error::Io(error) = error else { return false };
    let Some(inner) = error.get_ref() else { return false };
    inner.is::<rustls::Error>()
}
