//! Maps errors of PostgreSQL, <https://www.postgresql.org/docs/current/errcodes-appendix.html>, to [`StoreError`].

use crate::store::StoreError;
use crate::store::sql::error_class::{DatabaseError, ErrorClass, is_about_tls};
use crate::store::url::ServerAddress;

fn code(error: &sqlx::Error) -> Option<String> {
    Some(error.as_database_error()?.code()?.into_owned())
}

/// Classifies an error.
pub(super) fn classify(error: sqlx::Error) -> StoreError {
    let trouble = |kind, what, source| DatabaseError::unavailable(kind, what, Some(source));
    let Some(code) = code(&error) else {
        return match error {
            sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) | sqlx::Error::Encode(_) => {
                StoreError::refused("a row", error)
            }
            sqlx::Error::PoolTimedOut => DatabaseError::unavailable(
                ErrorClass::Other,
                "PostgreSQL provided no connection in time: it is down, hangs, or has reached max_connections",
                None,
            ),
            error => trouble(ErrorClass::Other, "no connection to PostgreSQL", error),
        };
    };
    match code.as_str() {
        "40001" | "40P01" | "55P03" => {
            trouble(ErrorClass::Busy, "a conflict with another PostgreSQL transaction", error)
        }
        "25006" => trouble(
            ErrorClass::WrongServer,
            "this PostgreSQL server is read-only: it is not the primary",
            error,
        ),
        "53100" => trouble(ErrorClass::Other, "the disk of PostgreSQL is full: make room", error),
        "53300" => {
            trouble(ErrorClass::Other, "PostgreSQL takes no more connections: raise max_connections", error)
        }
        "57014" => trouble(ErrorClass::Other, "PostgreSQL took too long for a statement", error),
        "42501" => trouble(ErrorClass::Other, "PostgreSQL denies the user a privilege: grant it", error),
        code if code.starts_with("22") || code.starts_with("23") || code.starts_with("54") => {
            StoreError::refused("a row", error)
        }
        code if code.starts_with("42") => StoreError::Unfit(format!(
            "the schema of the database is not as kubesvc left it ({error}): start kubesvc again; if that does not \
             help, give it an empty database, and kubesvc makes its accounts anew from the objects"
        )),
        "26000" => trouble(
            ErrorClass::Other,
            "PostgreSQL does not know a prepared statement: a connection pooler must use session mode",
            error,
        ),
        _ => trouble(ErrorClass::Other, "PostgreSQL cannot be used", error),
    }
}

/// Classifies an error at startup, where a missing database, user or privilege is a configuration error. An
/// unreachable server is not: it may become available.
pub(super) fn at_start(address: &ServerAddress, error: sqlx::Error) -> StoreError {
    let unfit = |what: &str, todo: &str| StoreError::Unfit(format!("{what} ({error}): {todo}"));
    match code(&error).as_deref() {
        Some("28P01" | "28000") => unfit(
            &format!("PostgreSQL refuses the user {:?} of the database {address}", address.user),
            "check user and password in kubesvc.database.url, and the server's pg_hba.conf",
        ),
        Some("3D000") => unfit(
            &format!("PostgreSQL has no database {address}"),
            "create it with CREATE DATABASE, or correct kubesvc.database.url",
        ),
        Some("42501") => unfit(
            &format!("the user {:?} may not create tables in the database {address}", address.user),
            "grant it with GRANT CREATE, USAGE ON SCHEMA public, or make it the owner of the database",
        ),
        Some("25006") => unfit(
            &format!("the database {address} is read-only"),
            "set kubesvc.database.url to the primary server",
        ),
        Some(_) => match classify(error) {
            StoreError::Unfit(why) => StoreError::Unfit(format!("the database {address}: {why}")),
            other => other,
        },
        None => match error {
            sqlx::Error::Io(_) | sqlx::Error::PoolTimedOut if !is_about_tls(&error) => {
                StoreError::unavailable(format!(
                    "no connection to the database {address} ({error}): check that PostgreSQL runs there, and host and \
                     port in kubesvc.database.url"
                ))
            }
            sqlx::Error::Io(_)
            | sqlx::Error::Tls(_)
            | sqlx::Error::Configuration(_)
            | sqlx::Error::Protocol(_) => unfit(
                &format!("no PostgreSQL server can be used at {address}"),
                "check host, port and TLS in kubesvc.database.url",
            ),
            error => classify(error),
        },
    }
}
