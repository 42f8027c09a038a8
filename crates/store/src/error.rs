//! Errors of the database: as callers see them, and what resolves one that makes the database unavailable.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

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

/// An error of the database, in words that say what to do.
#[derive(Debug)]
pub(crate) struct DatabaseError {
    kind: SqlFault,
    what: &'static str,
    source: Option<sqlx::Error>,
}

/// Class of an SQL error, by what resolves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SqlFault {
    /// Retrying: another transaction holds a lock, and the same transaction may succeed a moment later.
    Busy,
    /// New connections: the current ones lead to a read-only server.
    WrongServer,
    /// Waiting, or an administrator.
    Other,
}

impl fmt::Display for DatabaseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.what)
    }
}

impl Error for DatabaseError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_ref().map(|source| source as _)
    }
}

impl DatabaseError {
    /// Returns [`StoreError::Unavailable`] with this error.
    pub(crate) fn unavailable(kind: SqlFault, what: &'static str, source: Option<sqlx::Error>) -> StoreError {
        StoreError::unavailable(Self { kind, what, source })
    }

    fn kind(error: &StoreError) -> Option<SqlFault> {
        let StoreError::Unavailable(source) = error else { return None };
        source.downcast_ref::<Self>().map(|trouble| trouble.kind)
    }
}

/// Whether the same transaction may succeed a moment later.
pub(crate) fn is_busy(error: &StoreError) -> bool {
    DatabaseError::kind(error) == Some(SqlFault::Busy)
}

/// Whether all connections should be replaced.
pub(crate) fn is_wrong_server(error: &StoreError) -> bool {
    DatabaseError::kind(error) == Some(SqlFault::WrongServer)
}

/// Whether the connection that returned this error may be in a state unknown to its driver.
pub(crate) fn leaves_suspect(error: &StoreError) -> bool {
    matches!(error, StoreError::Unavailable(_) | StoreError::Unfit(_)) && !is_busy(error)
}

/// Whether the server was reached but TLS failed. A certificate that does not verify is reported as an I/O error, and
/// waiting does not help.
pub(crate) fn is_about_tls(error: &sqlx::Error) -> bool {
    let sqlx::Error::Io(error) = error else { return false };
    let Some(inner) = error.get_ref() else { return false };
    inner.is::<rustls::Error>()
}
