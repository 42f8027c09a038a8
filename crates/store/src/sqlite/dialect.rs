//! The SQLite dialect, and the meaning of its [errors](https://www.sqlite.org/rescode.html). A transaction locks the whole file, and a column may hold values of any type.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use sqlx::sqlite::{Sqlite as Db, SqliteQueryResult, SqliteRow};
use sqlx::{Row as _, ValueRef as _};

use super::{Sqlite, file};
use crate::StoreError;
use crate::accounts::ReplacedRows;
use crate::dialect::Dialect;
use crate::error::SqlFault;
use crate::sql::SqlSession;
use crate::sql::driver::Value;
use crate::sql::statement::{self, SqlTable, Statement, tuples};
use kubesvc_core::account_row::AccountRow;

impl Dialect for Sqlite {
    type Database = Db;

    const NAME: &'static str = "the SQLite file";
    const COLUMNS_OF: &'static str = "SELECT name FROM pragma_table_info(?)";
    const KEYS_OF: &'static str = "SELECT i.name, c.name FROM pragma_index_list(?) i, pragma_index_info(i.name) c \
                                   WHERE i.\"unique\" ORDER BY 1";

    // A deferred transaction may fail at its first write, regardless of the busy timeout.
    const BEGIN: Option<&'static str> = Some("BEGIN IMMEDIATE");
    const ROW_LOCK: Option<&'static str> = None;
    const STATEMENT_TIMEOUT: Option<Duration> = None;

    fn fault(error: &sqlx::Error) -> SqlFault {
        match primary_code(error) {
            None => match error {
                sqlx::Error::PoolTimedOut => SqlFault::Other("no connection to the SQLite file in time"),
                _ => SqlFault::of_driver(error),
            },
            Some(5 | 6 | 15) => SqlFault::Busy,
            Some(13) => SqlFault::DiskFull,
            Some(3 | 8 | 23) => {
                SqlFault::Other("the SQLite file is not writable: grant kubesvc write access to it")
            }
            Some(10) => SqlFault::Other("the disk of the SQLite file reports I/O errors"),
            Some(14) => SqlFault::Other(
                "the SQLite file cannot be opened: it or its folder is missing or not accessible",
            ),
            Some(4 | 7 | 9) => SqlFault::Other("SQLite was interrupted or is out of memory"),
            Some(12 | 18 | 19 | 20) => SqlFault::Row,
            Some(_) => SqlFault::Schema,
        }
    }

    fn classify(error: sqlx::Error) -> StoreError {
        let fault = Self::fault(&error);
        match primary_code(&error) {
            _ if fault == SqlFault::Busy => {
                StoreError::of_fault(fault, "another connection has the SQLite file locked", Some(error))
            }
            Some(11 | 26) => StoreError::Unfit(format!(
                "the SQLite file is damaged ({error}): stop kubesvc and move the file away, together with its -wal and \
                 -shm; kubesvc makes its accounts anew from the objects"
            )),
            _ => StoreError::of(Self::NAME, fault, error),
        }
    }

    fn rows_affected(done: &SqliteQueryResult) -> u64 {
        done.rows_affected()
    }

    fn pieces<'i, T>(&self, items: &'i [T], _: impl Fn(&T) -> usize) -> Vec<&'i [T]> {
        statement::pieces(items, |_| 0, 0).collect()
    }

    fn pairs(statement: Statement<Self>, pairs: &[(&str, &str)]) -> Statement<Self> {
        let statement = statement.text(&format!("(VALUES {})", tuples(pairs.len(), 2)));
        statement.bind_all(pairs.iter().flat_map(|(one, other)| [*one, *other]).map(Value::from))
    }

    fn same_as_parameter(column: &str) -> String {
        format!("{column} IS ?")
    }

    fn as_text(column: &str) -> String {
        format!("CAST(\"{column}\" AS TEXT)")
    }

    fn write_over(table: &SqlTable) -> String {
        table.on_conflict("IS NOT")
    }

    fn delete_assignments_of(uids: &[&str]) -> Statement<Self> {
        Statement::new(
            "DELETE FROM kubesvc_assignments WHERE account_name IN (SELECT name FROM kubesvc_accounts WHERE uid ",
        )
        .one_of(uids)
        .text(")")
    }

    fn count_connections(names: &[&str], now: i64) -> Statement<Self> {
        const HELD: &str = "(SELECT COUNT(DISTINCT s.agent_id) FROM kubesvc_assignments s \
                            WHERE s.account_name = kubesvc_accounts.name AND s.reachable)";
        Statement::new(&format!(
            "UPDATE kubesvc_accounts SET connections = {HELD}, last_updated = ? WHERE name "
        ))
        .bind(now)
        .one_of(names)
        .text(&format!(" AND uid IS NOT NULL AND connections <> {HELD}"))
    }

    /// The transaction holds the write lock, so nothing can change between the statements.
    async fn make_way(
        session: &mut SqlSession<'_, Self>,
        rows: &[&AccountRow],
        replaced: ReplacedRows,
    ) -> Result<(), StoreError> {
        let names: Vec<&str> = rows.iter().map(|row| row.name.as_str()).collect();
        let uids: Vec<&str> = rows.iter().map(|row| row.uid.as_str()).collect();
        let select = Statement::new("SELECT rowid, name, uid FROM kubesvc_accounts WHERE name ")
            .one_of(&names)
            .text(" OR uid ")
            .one_of(&uids);
        let by_name: HashMap<&str, &AccountRow> = rows.iter().map(|row| (row.name.as_str(), *row)).collect();
        let in_the_way = session.all(select, |held| {
            let rowid: i64 = held.try_get(0)?;
            let Some(row) = held.try_get::<&str, _>(1).ok().and_then(|name| by_name.get(name)) else {
                return Ok(Some((rowid, Ok(()))));
            };
            if held.try_get::<Option<&str>, _>(2).is_ok_and(|uid| uid == Some(&*row.uid)) {
                return Ok(None);
            }
            let ours = held.try_get_raw(2).is_ok_and(|uid| !uid.is_null());
            Ok(Some((rowid, replaced.judge(row, ours))))
        });
        for (rowid, judged) in in_the_way.await?.into_iter().flatten() {
            judged?;
            // Deletes by rowid, because a uid edited by hand may be no text.
            for statement in [
                "DELETE FROM kubesvc_assignments WHERE account_name IN \
                 (SELECT name FROM kubesvc_accounts WHERE rowid = ?)",
                "DELETE FROM kubesvc_caching WHERE account_uid IN (SELECT uid FROM kubesvc_accounts WHERE rowid = ?)",
                "UPDATE kubesvc_resourceversion SET state = 'REMOVED', resourceversion = NULL, sync_key = NULL WHERE \
                 account_uid IN (SELECT uid FROM kubesvc_accounts WHERE rowid = ?)",
                "DELETE FROM kubesvc_accounts WHERE rowid = ?",
            ] {
                session.execute(Statement::new(statement).bind(rowid)).await?;
            }
        }
        Ok(())
    }

    fn readable_name(row: &SqliteRow) -> String {
        row.try_get_unchecked::<&[u8], _>(0)
            .map(|bytes| String::from_utf8_lossy(bytes).into_owned())
            .unwrap_or_default()
    }
}

/// The primary result code, <https://www.sqlite.org/rescode.html>.
fn primary_code(error: &sqlx::Error) -> Option<i32> {
    let code: i32 = error.as_database_error()?.code()?.parse().ok()?;
    Some(code & 0xff)
}

/// Classifies an error at startup, where an unusable file is a configuration error.
pub(super) fn at_start(path: &Path, error: sqlx::Error) -> StoreError {
    let path = path.display();
    match primary_code(&error) {
        Some(26) => StoreError::Unfit(file::not_a_database(&path.to_string())),
        Some(3 | 8 | 14 | 23) => StoreError::Unfit(format!(
            "the database {path} cannot be opened for writing ({error}): check the rights of the file and its folder"
        )),
        _ => Sqlite::classify(error).of_database(path),
    }
}
