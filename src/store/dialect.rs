//! What differs between the databases: how a statement is spelled, what locks, how much is sent at once, and what an
//! error means. The statements themselves stand with their table (`accounts.rs`, `assignments.rs`, …), once for all.

use std::future::Future;
use std::time::Duration;

use sqlx::Database;

use super::accounts::{self, ReplacedRows};
use super::migrations::Schema;
use super::sql::driver::{Driver, Value};
use super::sql::session::{RowOf, STATEMENT_TIMEOUT, Session};
use super::sql::statement::{Statement, marks};
use super::sql::table::{self, ColumnType, SqlTable};
use super::{Assignment, StoreError, namespaces};
use crate::account::row::AccountRow;

/// A kind of database. What is not overridden is what most of them have.
pub(super) trait Dialect: Sized + Send + Sync + 'static {
    /// Its driver.
    type Database: Driver<Connection: Schema>;

    /// Whether parameters are `$1`, `$2` …, and not question marks.
    const NUMBERED_PARAMETERS: bool = false;
    /// Begins a transaction that writes; none: as the driver does.
    const BEGIN: Option<&'static str> = None;
    /// Locks the rows of a `SELECT` until the transaction ends; none: it has the whole database anyhow.
    const ROW_LOCK: Option<&'static str>;
    /// Time limit for a statement, or for one row of an answer; none: it never hangs.
    const STATEMENT_TIMEOUT: Option<Duration> = Some(STATEMENT_TIMEOUT);
    /// Makes the leader's row if there is none.
    const INSERT_LEADER: &'static str =
        "INSERT INTO kubesvc_locks (name) VALUES ('leader') ON CONFLICT (name) DO NOTHING";

    /// What an error means for the caller.
    fn classify(error: sqlx::Error) -> StoreError;

    /// How many rows a statement has found or changed.
    fn rows_affected(done: &<Self::Database as Database>::QueryResult) -> u64;

    /// Cuts rows into pieces, each for one statement. `weigh` says how many bytes one takes, about.
    fn pieces<'i, T>(&self, items: &'i [T], weigh: impl Fn(&T) -> usize) -> Vec<&'i [T]>;

    /// Refuses a row that this database does not take, where others do.
    fn check_account(&self, _: &AccountRow) -> Result<(), StoreError> {
        Ok(())
    }

    /// Refuses an assignment that this database does not take, where others do.
    fn check_assignment(_: &Assignment, _replica_id: &str) -> Result<(), StoreError> {
        Ok(())
    }

    /// A condition: what stands before it is one of these.
    fn one_of(statement: Statement<Self>, keys: &[&str]) -> Statement<Self> {
        let statement = statement.text(&format!("IN ({})", marks(keys.len())));
        statement.bind_all(keys.iter().map(|key| Value::from(*key)))
    }

    /// The right side of `IN`: these pairs.
    fn pairs(statement: Statement<Self>, pairs: &[(String, String)]) -> Statement<Self>;

    /// A condition: a text of any type, in a table of somebody else's, is one of these, byte by byte.
    fn text_is_one_of(statement: Statement<Self>, column: &str, texts: &[&str]) -> Statement<Self> {
        statement.text(&Self::as_text(column)).text(" ").one_of(texts)
    }

    /// A condition: the column `name` is this, byte by byte.
    fn name_is(statement: Statement<Self>, name: &str) -> Statement<Self> {
        statement.text("name = ?").bind(name)
    }

    /// A condition: a column and the next parameter are the same, byte by byte, or both NULL.
    fn same_as_parameter(column: &str) -> String;

    /// A column of any type as a text.
    fn as_text(column: &str) -> String;

    /// A column of this type as a bigint.
    fn as_bigint(column: &str, _: ColumnType) -> String {
        column.to_owned()
    }

    /// The next parameter, a bigint, as what a column of this type takes.
    fn from_bigint(_: ColumnType) -> &'static str {
        "?"
    }

    /// The rows of an `INSERT`, each with the time as its last value.
    fn rows(statement: Statement<Self>, _: &SqlTable, rows: &[Vec<Value<'_>>], now: i64) -> Statement<Self> {
        table::values(statement, rows, now)
    }

    /// The end of an `INSERT` that writes a row over the one of the same key; see [`SqlTable::upsert`].
    fn write_over(table: &SqlTable) -> String;

    /// Deletes the assignments of accounts with these uids.
    fn delete_assignments_of(uids: &[&str]) -> Statement<Self>;

    /// Writes down by how many agents the accounts of these names are held, where that is not what stands there.
    fn count_connections(names: &[&str], now: i64) -> Statement<Self>;

    /// Removes the rows that stand in the way of these; see [`accounts::make_way`].
    fn make_way(
        session: &mut Session<'_, Self>,
        rows: &[&AccountRow],
        replaced: ReplacedRows,
    ) -> impl Future<Output = Result<(), StoreError>> + Send {
        accounts::make_way(session, rows, replaced)
    }

    /// Writes lists of namespaces, each with its uid; answers with the uids that have no row.
    fn put_namespaces(
        session: &mut Session<'_, Self>,
        lists: &[(&str, String)],
        now: i64,
    ) -> impl Future<Output = Result<Vec<String>, StoreError>> + Send {
        namespaces::put_each(session, lists, now)
    }

    /// The text in the first column of a row, as far as it can be read.
    fn readable_name(row: &RowOf<Self>) -> String {
        Self::Database::text(row, 0).ok().flatten().unwrap_or_default()
    }
}
