//! What goes wrong with the database, as callers see it.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

/// What went wrong with the database. It is cheap to clone, so that all who wait for one commit hear the same.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// It cannot be reached, is locked, full or read-only: try again.
    #[error("the database cannot be used now")]
    Unavailable(#[source] Arc<dyn Error + Send + Sync>),
    /// The statement or its data are at fault: trying again is of no use.
    #[error("the database refuses {what}")]
    Refused {
        /// The table and the row's key.
        what: String,
        /// What it said.
        #[source]
        source: Arc<dyn Error + Send + Sync>,
    },
    /// The settings or the schema do not fit; the message says what to do.
    #[error("{0}")]
    Unfit(String),
    /// Another replica leads: a later term has begun, and nothing was written.
    #[error("another replica leads: a later term has begun in kubesvc_locks")]
    Deposed,
}

impl StoreError {
    /// An [`StoreError::Unavailable`] because of this.
    pub fn unavailable(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Unavailable(Arc::from(source.into()))
    }

    /// A [`StoreError::Refused`] of this table and row because of this.
    pub fn refused(what: impl Into<String>, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Refused { what: what.into(), source: Arc::from(source.into()) }
    }

    /// The error and what caused it, in one line. It holds no row data.
    pub fn in_full(&self) -> String {
        let mut text = self.to_string();
        let mut cause = self.source();
        while let Some(error) = cause {
            // Some errors say their cause themselves.
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

/// A row with a value that its column cannot have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// The table.
    pub table: &'static str,
    /// The row's name, as far as it can be read.
    pub name: String,
    /// Its uid, if that can be read.
    pub uid: Option<String>,
    /// The first column at fault.
    pub column: String,
    /// What is wrong with it.
    pub why: String,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "table {}, row {:?}, column {}: {}", self.table, self.name, self.column, self.why)
    }
}
