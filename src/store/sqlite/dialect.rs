//! The SQLite dialect: a transaction locks the whole file, and a column may hold values of any type.

use std::collections::HashMap;
use std::time::Duration;

use sqlx::sqlite::{Sqlite as Db, SqliteQueryResult, SqliteRow};
use sqlx::{Row as _, ValueRef as _};

use super::{Sqlite, errors};
use crate::account::row::AccountRow;
use crate::store::StoreError;
use crate::store::accounts::ReplacedRows;
use crate::store::dialect::Dialect;
use crate::store::sql::batches;
use crate::store::sql::driver::Value;
use crate::store::sql::session::Session;
use crate::store::sql::statement::{Statement, tuples};
use crate::store::sql::table::SqlTable;

impl Dialect for Sqlite {
    type Database = Db;

    // A deferred transaction may fail at its first write, regardless of the busy timeout.
    const BEGIN: Option<&'static str> = Some("BEGIN IMMEDIATE");
    const ROW_LOCK: Option<&'static str> = None;
    const STATEMENT_TIMEOUT: Option<Duration> = None;

    fn classify(error: sqlx::Error) -> StoreError {
        errors::classify(error)
    }

    fn rows_affected(done: &SqliteQueryResult) -> u64 {
        done.rows_affected()
    }

    fn pieces<'i, T>(&self, items: &'i [T], _: impl Fn(&T) -> usize) -> Vec<&'i [T]> {
        batches::pieces(items, |_| 0, 0).collect()
    }

    fn pairs(statement: Statement<Self>, pairs: &[(String, String)]) -> Statement<Self> {
        let statement = statement.text(&format!("(VALUES {})", tuples(pairs.len(), 2)));
        statement
            .bind_all(pairs.iter().flat_map(|(one, other)| [one, other]).map(|key| Value::from(key.as_str())))
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
        session: &mut Session<'_, Self>,
        rows: &[&AccountRow],
        replaced: ReplacedRows,
    ) -> Result<(), StoreError> {
        let names: Vec<&str> = rows.iter().map(|row| row.name.as_str()).collect();
        let uids: Vec<&str> = rows.iter().map(|row| row.uid.as_str()).collect();
        let look = Statement::new("SELECT rowid, name, uid FROM kubesvc_accounts WHERE name ")
            .one_of(&names)
            .text(" OR uid ")
            .one_of(&uids);
        let by_name: HashMap<&str, &AccountRow> = rows.iter().map(|row| (row.name.as_str(), *row)).collect();
        let in_the_way = session.all(look, |held| {
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
