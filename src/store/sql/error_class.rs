//! Why a database cannot be used now.

use std::fmt;
use std::time::Duration;

use backon::ExponentialBuilder;

use crate::store::StoreError;

/// What is wrong, in words that say what to do.
#[derive(Debug)]
pub(in crate::store) struct DatabaseError {
    kind: ErrorClass,
    what: &'static str,
    source: Option<sqlx::Error>,
}

/// What helps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) enum ErrorClass {
    /// Somebody else is at it: the same transaction may go a moment later.
    Busy,
    /// The connections lead to a server that may only be read.
    WrongServer,
    /// Waiting, or a person.
    Other,
}

impl fmt::Display for DatabaseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.what)
    }
}

impl std::error::Error for DatabaseError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| source as _)
    }
}

impl DatabaseError {
    /// The error for the caller.
    pub(in crate::store) fn unavailable(
        kind: ErrorClass,
        what: &'static str,
        source: Option<sqlx::Error>,
    ) -> StoreError {
        StoreError::unavailable(Self { kind, what, source })
    }

    fn kind(error: &StoreError) -> Option<ErrorClass> {
        let StoreError::Unavailable(source) = error else { return None };
        source.downcast_ref::<Self>().map(|trouble| trouble.kind)
    }
}

/// Whether the same transaction may go a moment later.
pub(in crate::store) fn is_busy(error: &StoreError) -> bool {
    DatabaseError::kind(error) == Some(ErrorClass::Busy)
}

/// Whether all connections should be made anew.
pub(in crate::store) fn is_wrong_server(error: &StoreError) -> bool {
    DatabaseError::kind(error) == Some(ErrorClass::WrongServer)
}

/// Whether the connection that gave this error may be in a state that its driver does not know.
pub(in crate::store) fn leaves_suspect(error: &StoreError) -> bool {
    matches!(error, StoreError::Unavailable(_) | StoreError::Unfit(_)) && !is_busy(error)
}

/// Whether the server was reached and TLS with it failed: a certificate that does not verify comes as an error of the
/// stream, and no waiting helps.
pub(in crate::store) fn is_about_tls(error: &sqlx::Error) -> bool {
    let sqlx::Error::Io(error) = error else { return false };
    let Some(inner) = error.get_ref() else { return false };
    inner.is::<rustls::Error>()
}

/// The pauses between tries of a busy database.
pub(in crate::store) fn retry(times: usize) -> ExponentialBuilder {
    ExponentialBuilder::default()
        .with_min_delay(Duration::from_millis(10))
        .with_max_delay(Duration::from_secs(1))
        .with_max_times(times)
        .with_jitter()
}
