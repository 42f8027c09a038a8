//! Maps errors of MySQL and MariaDB, <https://mariadb.com/kb/en/mariadb-error-codes/>, to [`StoreError`].

use sqlx::mysql::MySqlDatabaseError;

use crate::store::StoreError;
use crate::store::sql::error_class::{DatabaseError, ErrorClass, is_about_tls};
use crate::store::url::ServerAddress;

fn number(error: &sqlx::Error) -> Option<u16> {
    Some(error.as_database_error()?.try_downcast_ref::<MySqlDatabaseError>()?.number())
}

/// Classifies an error.
pub(super) fn classify(error: sqlx::Error) -> StoreError {
    let trouble = |kind, what, source| DatabaseError::unavailable(kind, what, Some(source));
    let Some(number) = number(&error) else {
        return match error {
            sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) | sqlx::Error::Encode(_) => {
                StoreError::refused("a row", error)
            }
            sqlx::Error::PoolTimedOut => DatabaseError::unavailable(
                ErrorClass::Other,
                "MySQL provided no connection in time: it is down, hangs, or has reached max_connections",
                None,
            ),
            error => trouble(ErrorClass::Other, "no connection to MySQL", error),
        };
    };
    match number {
        1213 | 1205 | 1020 => trouble(ErrorClass::Busy, "a conflict with another MySQL transaction", error),
        1290 | 1792 | 1836 => {
            trouble(ErrorClass::WrongServer, "this MySQL server is read-only: it is not the primary", error)
        }
        1021 | 1041 | 1114 => trouble(ErrorClass::Other, "the disk of MySQL is full: make room", error),
        1040 | 1203 => {
            trouble(ErrorClass::Other, "MySQL takes no more connections: raise max_connections", error)
        }
        1044 | 1045 | 1142 | 1143 | 1227 => {
            trouble(ErrorClass::Other, "MySQL denies the user a privilege: grant it", error)
        }
        1317 | 1969 | 3024 => trouble(ErrorClass::Other, "MySQL took too long for a statement", error),
        1048 | 1062 | 1153 | 1264 | 1265 | 1366 | 1292 | 1364 | 1406 | 1451 | 1452 | 1526 | 3988 => {
            StoreError::refused("a row", error)
        }
        1054 | 1146 | 1305 | 1049 | 1064 => StoreError::Unfit(format!(
            "the schema of the database is not as kubesvc left it ({error}): start kubesvc again; if that does not \
             help, give it an empty database, and kubesvc makes its accounts anew from the objects"
        )),
        _ => trouble(ErrorClass::Other, "MySQL cannot be used", error),
    }
}

/// Classifies an error at startup, where a missing database, user or privilege is a configuration error. An
/// unreachable server is not: it may become available.
pub(super) fn at_start(address: &ServerAddress, error: sqlx::Error) -> StoreError {
    let unfit = |what: &str, todo: &str| StoreError::Unfit(format!("{what} ({error}): {todo}"));
    match number(&error) {
        Some(1045 | 1130 | 1698) => unfit(
            &format!("MySQL refuses the user {:?} of the database {address}", address.user),
            "check user and password in kubesvc.database.url",
        ),
        Some(1049) => unfit(
            &format!("MySQL has no database {address}"),
            "create it with CREATE DATABASE, or correct kubesvc.database.url",
        ),
        Some(1044 | 1142 | 1143 | 1227) => unfit(
            &format!("the user {:?} lacks rights in the database {address}", address.user),
            "grant it SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, DROP and INDEX on the database",
        ),
        Some(1290 | 1836) => unfit(
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
                    "no connection to the database {address} ({error}): check that MySQL or MariaDB runs there, and \
                     host and port in kubesvc.database.url"
                ))
            }
            sqlx::Error::Io(_)
            | sqlx::Error::Tls(_)
            | sqlx::Error::Configuration(_)
            | sqlx::Error::Protocol(_) => unfit(
                &format!("no MySQL or MariaDB server can be used at {address}"),
                "check host, port and TLS in kubesvc.database.url; a user of MySQL 8 with caching_sha2_password needs \
                 TLS",
            ),
            error => classify(error),
        },
    }
}
