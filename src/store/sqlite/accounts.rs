//! The statements on `kubesvc_accounts`.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::{Arc, LazyLock};

use sqlx::sqlite::{SqliteConnection, SqliteRow};
use sqlx::{AssertSqlSafe, Decode, Row as _, Sqlite, Type, ValueRef as _};

use super::errors;
use crate::account::row::AccountRow;
use crate::store::{Accounts, Malformed, StoreError, limits};

pub(super) const TABLE: &str = "kubesvc_accounts";

/// The columns of an [`AccountRow`], in the order in which they are bound and read; `name` is the first.
const COLUMNS: [&str; 19] = [
    "name",
    "uid",
    "status",
    "zone_id",
    "is_dynamic",
    "origin",
    "definition",
    "props",
    "kube_host",
    "kube_version",
    "cert_fingerprint",
    "cluster_uid",
    "max_watch_age_seconds",
    "namespaces_count",
    "error_message",
    "failed_count",
    "next_retry_time",
    "generation",
    "observed_generation",
];

/// How many rows one statement takes: few sizes, so that few statements are prepared once and stay so.
const SIZES: [usize; 4] = [256, 64, 8, 1];

/// The statements of one size.
struct Statements {
    size: usize,
    delete: String,
    look: String,
    upsert: String,
}

static STATEMENTS: LazyLock<[Statements; SIZES.len()]> = LazyLock::new(|| {
    SIZES.map(|size| {
        let marks = vec!["?"; size].join(",");
        Statements {
            size,
            delete: format!("DELETE FROM {TABLE} WHERE uid IN ({marks})"),
            look: format!("SELECT rowid, name, uid FROM {TABLE} WHERE name IN ({marks}) OR uid IN ({marks})"),
            upsert: upsert(size),
        }
    })
});

static SELECT: LazyLock<String> = LazyLock::new(|| {
    format!("SELECT {} FROM {TABLE} WHERE uid IS NOT NULL ORDER BY name", COLUMNS.join(","))
});

/// A row that is the same already is not touched, and keeps its `last_updated`.
fn upsert(size: usize) -> String {
    let row = format!("({})", vec!["?"; COLUMNS.len() + 1].join(","));
    let rows = vec![row; size].join(",");
    let (mut set, mut old, mut new) = (String::new(), Vec::new(), Vec::new());
    for column in &COLUMNS[1..] {
        let _ = write!(set, "{column}=excluded.{column},");
        old.push(format!("{TABLE}.{column}"));
        new.push(format!("excluded.{column}"));
    }
    format!(
        "INSERT INTO {TABLE} ({},last_updated) VALUES {rows} ON CONFLICT(name) DO UPDATE SET \
         {set}last_updated=excluded.last_updated WHERE ({}) IS NOT ({})",
        COLUMNS.join(","),
        old.join(","),
        new.join(","),
    )
}

/// Cuts a list into pieces of the sizes there are statements for.
fn pieces<T>(mut items: &[T]) -> impl Iterator<Item = (&'static Statements, &[T])> {
    std::iter::from_fn(move || {
        let statements = STATEMENTS.iter().find(|statements| statements.size <= items.len())?;
        let (piece, rest) = items.split_at(statements.size);
        items = rest;
        Some((statements, piece))
    })
}

/// Deletes the rows of these uids.
pub(super) async fn delete(connection: &mut SqliteConnection, uids: &[String]) -> Result<(), StoreError> {
    for (statements, piece) in pieces(uids) {
        let mut query = sqlx::query(statements.delete.as_str());
        for uid in piece {
            query = query.bind(uid.as_str());
        }
        query.execute(&mut *connection).await.map_err(errors::classify)?;
    }
    Ok(())
}

/// Writes rows, each as a whole. No name and no uid may stand among them twice.
pub(super) async fn put(
    connection: &mut SqliteConnection,
    rows: &[Arc<AccountRow>],
    now: i64,
) -> Result<(), StoreError> {
    let mut rows: Vec<&AccountRow> = rows.iter().map(AsRef::as_ref).collect();
    rows.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    for (statements, piece) in pieces(&rows) {
        make_way(connection, statements, piece).await?;
        let mut query = sqlx::query(statements.upsert.as_str());
        for row in piece {
            query = query
                .bind(row.name.as_str())
                .bind(row.uid.as_str())
                .bind(row.status.as_str())
                .bind(row.zone_id.as_deref())
                .bind(row.is_dynamic)
                .bind(row.origin.as_str())
                .bind(row.definition.as_str())
                .bind(row.props.as_str())
                .bind(row.kube_host.as_deref())
                .bind(row.kube_version.as_deref())
                .bind(row.cert_fingerprint.as_deref())
                .bind(row.cluster_uid.as_deref())
                .bind(row.max_watch_age_seconds)
                .bind(row.namespaces_count)
                .bind(row.error_message.as_deref())
                .bind(row.failed_count)
                .bind(row.next_retry_time)
                .bind(row.generation)
                .bind(row.observed_generation)
                .bind(now);
        }
        query.execute(&mut *connection).await.map_err(|error| match piece {
            [row] => errors::classify_row(row, error),
            _ => errors::classify(error),
        })?;
    }
    Ok(())
}

/// Removes rows of ours that stand in the way: of the name with another uid, or of the uid with another name. A row
/// of the name that is not ours is refused. The transaction holds the write lock, so nothing comes between.
async fn make_way(
    connection: &mut SqliteConnection,
    statements: &'static Statements,
    rows: &[&AccountRow],
) -> Result<(), StoreError> {
    let mut query = sqlx::query(statements.look.as_str());
    for row in rows {
        query = query.bind(row.name.as_str());
    }
    for row in rows {
        query = query.bind(row.uid.as_str());
    }
    let held = query.fetch_all(&mut *connection).await.map_err(errors::classify)?;
    if held.is_empty() {
        return Ok(());
    }
    let by_name: HashMap<&str, &AccountRow> = rows.iter().map(|row| (row.name.as_str(), *row)).collect();
    for held in &held {
        let wanted = held.try_get::<&str, _>(1).ok().and_then(|name| by_name.get(name));
        if let Some(row) = wanted {
            if held.try_get_raw(2).is_ok_and(|uid| uid.is_null()) {
                return Err(limits::refused(row, NOT_OURS));
            }
            if held.try_get::<&str, _>(2).is_ok_and(|uid| uid == row.uid) {
                continue;
            }
        }
        let rowid: i64 = held.try_get(0).map_err(errors::classify)?;
        sqlx::query("DELETE FROM kubesvc_accounts WHERE rowid = ?")
            .bind(rowid)
            .execute(&mut *connection)
            .await
            .map_err(errors::classify)?;
    }
    Ok(())
}

const NOT_OURS: &str = "a row of that name without a uid is there already and is not kubesvc's; \
                        delete it, or give the account another name";

/// All rows of ours.
pub(super) async fn all(connection: &mut SqliteConnection) -> Result<Accounts, StoreError> {
    let rows = sqlx::query(SELECT.as_str()).fetch_all(connection).await.map_err(errors::classify)?;
    let mut accounts = Accounts { rows: Vec::with_capacity(rows.len()), malformed: Vec::new() };
    for row in &rows {
        match read(row) {
            Ok(account) => accounts.rows.push(account),
            Err((column, why)) => accounts.malformed.push(Malformed {
                table: TABLE,
                name: lossy(row, 0).unwrap_or_default(),
                uid: row.try_get(1).ok(),
                column: column.to_owned(),
                why,
            }),
        }
    }
    Ok(accounts)
}

fn lossy(row: &SqliteRow, column: usize) -> Option<String> {
    let bytes = row.try_get_unchecked::<&[u8], _>(column).ok()?;
    Some(String::from_utf8_lossy(bytes).into_owned())
}

type Fault = (&'static str, String);

fn get<'r, T>(row: &'r SqliteRow, column: usize) -> Result<T, Fault>
where
    T: Decode<'r, Sqlite> + Type<Sqlite>,
{
    // The driver would take NULL for an empty text or for zero.
    maybe(row, column)?.ok_or_else(|| (COLUMNS[column], "it is NULL".to_owned()))
}

fn maybe<'r, T>(row: &'r SqliteRow, column: usize) -> Result<Option<T>, Fault>
where
    T: Decode<'r, Sqlite> + Type<Sqlite>,
{
    row.try_get(column).map_err(|error| {
        let why = match error {
            sqlx::Error::ColumnDecode { source, .. } => source.to_string(),
            error => error.to_string(),
        };
        (COLUMNS[column], why)
    })
}

fn read(row: &SqliteRow) -> Result<AccountRow, Fault> {
    Ok(AccountRow {
        name: get(row, 0)?,
        uid: get(row, 1)?,
        status: get(row, 2)?,
        zone_id: maybe(row, 3)?,
        is_dynamic: get(row, 4)?,
        origin: get(row, 5)?,
        definition: get(row, 6)?,
        props: get(row, 7)?,
        kube_host: maybe(row, 8)?,
        kube_version: maybe(row, 9)?,
        cert_fingerprint: maybe(row, 10)?,
        cluster_uid: maybe(row, 11)?,
        max_watch_age_seconds: get(row, 12)?,
        namespaces_count: maybe(row, 13)?,
        error_message: maybe(row, 14)?,
        failed_count: get(row, 15)?,
        next_retry_time: maybe(row, 16)?,
        generation: get(row, 17)?,
        observed_generation: get(row, 18)?,
    })
}

/// Replaces the namespaces of the row with this uid; false if there is none.
pub(super) async fn put_namespaces(
    connection: &mut SqliteConnection,
    uid: &str,
    list: &str,
    now: i64,
) -> Result<bool, StoreError> {
    sqlx::query(
        "UPDATE kubesvc_accounts SET namespaces = ?1, \
         last_updated = CASE WHEN namespaces IS ?1 THEN last_updated ELSE ?2 END WHERE uid = ?3",
    )
    .bind(list)
    .bind(now)
    .bind(uid)
    .execute(connection)
    .await
    .map(|done| done.rows_affected() > 0)
    .map_err(errors::classify)
}

/// The namespaces of the row of this name, as they stand there.
pub(super) async fn namespaces(
    connection: &mut SqliteConnection,
    name: &str,
) -> Result<Option<String>, StoreError> {
    let row = sqlx::query("SELECT namespaces FROM kubesvc_accounts WHERE name = ? AND uid IS NOT NULL")
        .bind(name)
        .fetch_optional(connection)
        .await
        .map_err(errors::classify)?;
    let Some(row) = row else { return Ok(None) };
    row.try_get(0).map_err(|error| {
        StoreError::refused(format!("table {TABLE}, row {name:?}, column namespaces"), error)
    })
}

/// The names of a table's columns; none if there is no such table.
pub(super) async fn columns_of(
    connection: &mut SqliteConnection,
    table: &str,
) -> Result<Vec<String>, sqlx::Error> {
    sqlx::query_scalar("SELECT name FROM pragma_table_info(?)").bind(table).fetch_all(connection).await
}

/// Renames a table. Both names are ours, never a user's.
pub(super) async fn rename(
    connection: &mut SqliteConnection,
    from: &'static str,
    to: &str,
) -> Result<(), sqlx::Error> {
    sqlx::query(AssertSqlSafe(format!("ALTER TABLE {from} RENAME TO {to}")))
        .execute(connection)
        .await
        .map(drop)
}

/// What a table must have to be taken for ours.
pub(super) fn columns() -> impl Iterator<Item = &'static str> {
    COLUMNS.into_iter().chain(["namespaces", "last_updated"])
}
