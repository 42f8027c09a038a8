//! Maps errors of SQLite to [`StoreError`].

use std::path::Path;

use crate::store::StoreError;
use crate::store::sql::error_class::{DatabaseError, ErrorClass};

/// The primary result code, <https://www.sqlite.org/rescode.html>.
fn primary(error: &sqlx::Error) -> Option<i32> {
    let code: i32 = error.as_database_error()?.code()?.parse().ok()?;
    Some(code & 0xff)
}

/// Classifies an error.
pub(super) fn classify(error: sqlx::Error) -> StoreError {
    let trouble = |kind, what, source| DatabaseError::unavailable(kind, what, Some(source));
    match primary(&error) {
        Some(5 | 6 | 15) => trouble(ErrorClass::Busy, "another connection has the SQLite file locked", error),
        Some(13) => trouble(ErrorClass::Other, "the disk of the SQLite file is full: make room", error),
        Some(3 | 8 | 23) => trouble(
            ErrorClass::Other,
            "the SQLite file is not writable: grant kubesvc write access to it",
            error,
        ),
        Some(10) => trouble(ErrorClass::Other, "the disk of the SQLite file reports I/O errors", error),
        Some(14) => trouble(
            ErrorClass::Other,
            "the SQLite file cannot be opened: it or its folder is missing or not accessible",
            error,
        ),
        Some(4 | 7 | 9) => trouble(ErrorClass::Other, "SQLite was interrupted or is out of memory", error),
        Some(11 | 26) => StoreError::Unfit(format!(
            "the SQLite file is damaged ({error}): stop kubesvc and move the file away, together with its -wal and \
             -shm; kubesvc makes its accounts anew from the objects"
        )),
        Some(12 | 18 | 19 | 20) => StoreError::refused("a row", error),
        Some(_) => StoreError::Unfit(format!(
            "the schema of the SQLite file is not as kubesvc left it ({error}): start kubesvc again; if that does \
             not help, move the file away, and kubesvc makes its accounts anew from the objects"
        )),
        None => match error {
            sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) | sqlx::Error::Encode(_) => {
                StoreError::refused("a row", error)
            }
            error => trouble(ErrorClass::Other, "no connection to the SQLite file", error),
        },
    }
}

/// Classifies an error at startup, where an unusable file is a configuration error.
pub(super) fn at_start(path: &Path, error: sqlx::Error) -> StoreError {
    let path = path.display();
    match primary(&error) {
        Some(26) => StoreError::Unfit(not_a_database(&path.to_string())),
        Some(3 | 8 | 14 | 23) => StoreError::Unfit(format!(
            "the database {path} cannot be opened for writing ({error}): check the rights of the file and its folder"
        )),
        _ => match classify(error) {
            StoreError::Unfit(why) => StoreError::Unfit(format!("the database {path}: {why}")),
            other => other,
        },
    }
}

/// The message for a file that is not a SQLite database.
pub(super) fn not_a_database(path: &str) -> String {
    format!(
        "{path} is no SQLite database and was left as it is: give kubesvc.database.url another path, or move it away"
    )
}
