//! What differs between databases: spelling of statements, locks, statement size, and the meaning of errors. The
//! statements themselves are written once, in the file of their table (`accounts.rs`, `assignments.rs`, …).

use std::future::Future;
use std::time::Duration;

use sqlx::Database;
use sqlx::migrate::Migrate;

use super::accounts::{self, ReplacedRows};
use super::error::SqlFault;
use super::sql::driver::{Driver, Value};
use super::sql::statement::{self, ColumnType, SqlTable, Statement, marks};
use super::sql::{RowOf, STATEMENT_TIMEOUT, SqlSession};
use super::{Assignment, StoreError, namespaces};
use kubesvc_core::ReplicaId;
use kubesvc_core::account_row::AccountRow;

/// A kind of database. The defaults are what most of them have in common.
pub(super) trait Dialect: Sized + Send + Sync + 'static {
    /// The sqlx driver.
    type Database: Driver<Connection: Migrate>;

    /// Its name in messages.
    const NAME: &'static str;

    /// Selects the names of a table's columns; none if there is no such table.
    const COLUMNS_OF: &'static str;
    /// Selects key and column for each column of the unique keys of a table, sorted by key.
    const KEYS_OF: &'static str;
    /// Counts the migrations that another process has begun so lately that it may still be at it; `None`: each is one
    /// transaction, so there are none to see.
    ///
    /// The lock is no proof that there are none: Galera and group replication take it on one node only.
    const COUNT_OTHERS_MIGRATIONS: Option<&'static str> = None;
    /// Whether parameters are `$1`, `$2`, … instead of question marks.
    const NUMBERED_PARAMETERS: bool = false;
    /// Statement that begins a write transaction; `None`: the driver's default.
    const BEGIN: Option<&'static str> = None;
    /// Clause that locks the rows of a `SELECT` until the transaction ends; `None`: the transaction has the whole
    /// database.
    const ROW_LOCK: Option<&'static str>;
    /// Timeout for a statement, or for one row of a result; `None`: statements never hang.
    const STATEMENT_TIMEOUT: Option<Duration> = Some(STATEMENT_TIMEOUT);
    /// Whether a statement may delete rows of one table and insert into another, so that the end of an operation is one.
    const END_IS_ONE_STATEMENT: bool = false;
    /// Inserts the leader's row if it is missing.
    const INSERT_LEADER: &'static str =
        "INSERT INTO kubesvc_locks (name) VALUES ('leader') ON CONFLICT (name) DO NOTHING";

    /// Beginning and end of a statement that deletes some rows of `kubesvc_cache`; a condition is between them, and the
    /// maximum number of rows is the last parameter. The order is that of an index, so that few rows are sorted.
    const DELETE_SOME_OBJECTS: (&'static str, &'static str) = (
        "DELETE FROM kubesvc_cache WHERE id IN (SELECT id FROM kubesvc_cache WHERE ",
        " ORDER BY namespace, id LIMIT ?)",
    );
    /// The same of a statement that deletes the relations of those rows; `None` where it is as fast to leave them to the
    /// foreign key.
    const DELETE_THEIR_RELATIONS: Option<(&'static str, &'static str)> = None;

    /// What an error means.
    fn fault(error: &sqlx::Error) -> SqlFault;

    /// Maps a driver error to what it means for the caller.
    fn classify(error: sqlx::Error) -> StoreError {
        StoreError::of(Self::NAME, Self::fault(&error), error)
    }

    /// Number of rows that a statement matched or changed.
    fn rows_affected(done: &<Self::Database as Database>::QueryResult) -> u64;

    /// Splits rows into slices of one statement each. `weigh` returns the approximate size of a row in bytes.
    fn pieces<'i, T>(&self, items: &'i [T], weigh: impl Fn(&T) -> usize) -> Vec<&'i [T]>;

    /// Refuses a row that only this database does not accept.
    fn check_account(&self, _: &AccountRow) -> Result<(), StoreError> {
        Ok(())
    }

    /// Refuses an assignment that only this database does not accept.
    fn check_assignment(_: &Assignment, _replica_id: &ReplicaId) -> Result<(), StoreError> {
        Ok(())
    }

    /// Why only this database does not accept a key; `None` if it does.
    fn unfit_key(_: &str) -> Option<&'static str> {
        None
    }

    /// Maximum size of a row in a statement, in bytes.
    fn max_row_bytes(&self) -> usize {
        usize::MAX
    }

    /// Appends a condition: the preceding expression equals one of `keys`.
    fn one_of(statement: Statement<Self>, keys: &[&str]) -> Statement<Self> {
        let statement = statement.text(&format!("IN ({})", marks(keys.len())));
        statement.bind_all(keys.iter().map(|key| Value::from(*key)))
    }

    /// Appends the right side of `IN`: these pairs.
    fn pairs(statement: Statement<Self>, pairs: &[(&str, &str)]) -> Statement<Self>;

    /// Appends a condition: a text column of any type, in a foreign table, equals one of `texts` byte by byte.
    fn text_is_one_of(statement: Statement<Self>, column: &str, texts: &[&str]) -> Statement<Self> {
        statement.text(&Self::as_text(column)).text(" ").one_of(texts)
    }

    /// Appends a condition: the column `name` equals `name` byte by byte.
    fn name_is(statement: Statement<Self>, name: &str) -> Statement<Self> {
        statement.text("name = ?").bind(name)
    }

    /// A condition: a column and the next parameter are equal byte by byte, or both NULL.
    fn same_as_parameter(column: &str) -> String;

    /// Expression for a column of any type as a text.
    fn as_text(column: &str) -> String;

    /// Expression for a column of this type as a bigint.
    fn as_bigint(column: &str, _: ColumnType) -> String {
        column.to_owned()
    }

    /// Expression that converts the next parameter, a bigint, to the type of this column.
    fn from_bigint(_: ColumnType) -> &'static str {
        "?"
    }

    /// Appends the rows of an `INSERT`, each with `now`, if any, as its last value.
    fn rows(
        statement: Statement<Self>,
        _: &SqlTable,
        rows: &[Vec<Value<'_>>],
        now: Option<i64>,
    ) -> Statement<Self> {
        statement::values(statement, rows, now)
    }

    /// Begins the assignments of an `INSERT` to a row with the same value in this column.
    fn on_same_key(column: &str) -> String {
        format!("ON CONFLICT ({column}) DO UPDATE SET ")
    }

    /// Expression for the value of a column that could not be inserted, in those assignments.
    fn inserted(column: &str) -> String {
        format!("excluded.{column}")
    }

    /// The end of an `INSERT` that overwrites a row with the same key; see [`SqlTable::upsert`].
    fn write_over(table: &SqlTable) -> String;

    fn delete_assignments_of(uids: &[&str]) -> Statement<Self>;

    /// Selects `rel_hash` of the relations of these objects.
    fn relations_of(ids: &[&str]) -> Statement<Self> {
        Statement::new("SELECT rel_hash FROM kubesvc_cache_rel WHERE rel1_id ").one_of(ids)
    }

    /// Updates `connections` of these accounts where it differs from the number of agents that hold them.
    fn count_connections(names: &[&str], now: i64) -> Statement<Self>;

    /// Deletes rows that conflict with these; see [`accounts::make_way`].
    fn make_way(
        session: &mut SqlSession<'_, Self>,
        rows: &[&AccountRow],
        replaced: ReplacedRows,
    ) -> impl Future<Output = Result<(), StoreError>> + Send {
        accounts::make_way(session, rows, replaced)
    }

    /// Writes lists of namespaces, each with its uid. Returns the uids that have no row.
    fn put_namespaces(
        session: &mut SqlSession<'_, Self>,
        lists: &[(&str, String)],
        now: i64,
    ) -> impl Future<Output = Result<Vec<String>, StoreError>> + Send {
        namespaces::put_each(session, lists, now)
    }

    /// The text in the first column of a row; empty if it cannot be read.
    fn readable_name(row: &RowOf<Self>) -> String {
        Self::Database::text(row, 0).ok().flatten().unwrap_or_default()
    }
}
