//! Why a database is unavailable.

use std::fmt;
use std::time::Duration;

use backon::ExponentialBuilder;

use crate::store::StoreError;

/// An error of the database, in words that say what to do.
#[derive(Debug)]
pub(in crate::store) struct DatabaseError {
    kind: ErrorClass,
    what: &'static str,
    source: Option<sqlx::Error>,
}

/// What resolves the error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) enum ErrorClass {
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

impl std::error::Error for DatabaseError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| source as _)
    }
}

impl DatabaseError {
    /// Returns [`StoreError::Unavailable`] with this error.
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

/// Whether the same transaction may succeed a moment later.
pub(in crate::store) fn is_busy(error: &StoreError) -> bool {
    DatabaseError::kind(error) == Some(ErrorClass::Busy)
}

/// Whether all connections should be replaced.
pub(in crate::store) fn is_wrong_server(error: &StoreError) -> bool {
    DatabaseError::kind(error) == Some(ErrorClass::WrongServer)
}

/// Whether the connection that returned this error may be in a state unknown to its driver.
pub(in crate::store) fn leaves_suspect(error: &StoreError) -> bool {
    matches!(error, StoreError::Unavailable(_) | StoreError::Unfit(_)) && !is_busy(error)
}

/// Whether the server was reached but TLS failed. A certificate that does not verify is reported as an I/O error, and
/// waiting does not help.
pub(in crate::store) fn is_about_tls(error: &sqlx::Error) -> bool {
    let sqlx::Error::Io(error) = error else { return false };
    let Some(inner) = error.get_ref() else { return false };
    inner.is::<rustls::Error>()
}

/// Back-off between attempts on a busy database: 10 ms to 1 s, with jitter, `times` retries.
pub(in crate::store) fn retry(times: usize) -> ExponentialBuilder {
    ExponentialBuilder::default()
        .with_min_delay(Duration::from_millis(10))
        .with_max_delay(Duration::from_secs(1))
        .with_max_times(times)
        .with_jitter()
}
