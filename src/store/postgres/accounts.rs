//! The statements on `kubesvc_accounts`.

use std::collections::HashSet;
use std::sync::{Arc, LazyLock};

use sqlx::postgres::PgConnection;

use super::errors::classify;
use super::fences;
use crate::account::row::AccountRow;
use crate::store::migrations::Schema as _;
use crate::store::rows::{self, ReplacedRows};
use crate::store::server::{bounded, each};
use crate::store::statements::{ACCOUNTS, Dialect, upsert_arrays};
use crate::store::{ForeignRow, StoreError, StoredAccounts, VENDOR_TABLE, limits, vendor};

/// The types of the columns, in their order.
const COLUMN_TYPES: [&str; rows::COLUMNS.len()] = [
    "text", "text", "text", "text", "boolean", "text", "text", "text", "text", "text", "text", "text",
    "bigint", "int", "text", "int", "bigint", "bigint", "bigint",
];

const MAX_ROWS_PER_STATEMENT: usize = 500;
const MAX_BYTES_PER_STATEMENT: usize = 2 << 20;

/// What goes with the rows of these uids, and then the rows.
const DELETES: [&str; 3] = [
    "DELETE FROM kubesvc_assignments s USING kubesvc_accounts a WHERE s.account_name = a.name AND a.uid = ANY($1)",
    "DELETE FROM kubesvc_caching WHERE account_uid = ANY($1)",
    "DELETE FROM kubesvc_accounts WHERE uid = ANY($1)",
];

const LOOK: &str = "SELECT name, uid FROM kubesvc_accounts WHERE name = ANY($1) UNION ALL \
                    SELECT name, uid FROM kubesvc_accounts WHERE uid = ANY($2)";

const LOOK_FOREIGN: &str = "SELECT name FROM kubesvc_accounts WHERE name = ANY($1) AND uid IS NULL";

const DELETE_FOREIGN: &str = "DELETE FROM kubesvc_accounts WHERE name = ANY($1) AND uid IS NULL";

static LEAVE_VENDOR: LazyLock<String> = LazyLock::new(|| vendor::delete(Dialect::Postgres, 1));
static UPSERT: LazyLock<String> = LazyLock::new(|| upsert_arrays(&ACCOUNTS, &COLUMN_TYPES));
static SELECT: LazyLock<String> = LazyLock::new(rows::select_ours);

/// Deletes the rows of these uids, in all tables.
pub(super) async fn delete(connection: &mut PgConnection, uids: &[String]) -> Result<(), StoreError> {
    if uids.is_empty() {
        return Ok(());
    }
    let mut uids: Vec<&str> = uids.iter().map(String::as_str).collect();
    uids.sort_unstable();
    for statement in DELETES {
        bounded(sqlx::query(statement).bind(uids.as_slice()).execute(&mut *connection), classify).await?;
    }
    Ok(())
}

/// Writes rows, each as a whole. No name and no uid may stand among them twice.
pub(super) async fn put(
    connection: &mut PgConnection,
    rows: &[Arc<AccountRow>],
    now: i64,
    taking: ReplacedRows,
) -> Result<(), StoreError> {
    for piece in pieces(&rows::sorted(rows)) {
        let (names, uids) = (column(piece, |row| &*row.name), column(piece, |row| &*row.uid));
        let look = sqlx::query_as(LOOK).bind(&names).bind(&uids).fetch_all(&mut *connection);
        let held = bounded(look, classify).await?;
        let way = rows::conflicting_rows(piece, held, taking)?;
        delete(connection, &way.uids).await?;
        if !way.foreign.is_empty() {
            let foreign = sqlx::query(DELETE_FOREIGN).bind(&way.foreign).execute(&mut *connection);
            bounded(foreign, classify).await?;
        }
        let refused = |error| match piece {
            [row] => limits::of_row(row, error),
            _ => error,
        };
        upsert(connection, piece, now).await.map_err(refused)?;
        fences::keep(connection, piece, now).await?;
        // Somebody else's row that came since the look was locked by the upsert, and left as it is.
        let foreign = sqlx::query_scalar(LOOK_FOREIGN).bind(&names).fetch_all(&mut *connection);
        rows::not_ours(piece, &bounded(foreign, classify).await?)?;
    }
    Ok(())
}

async fn upsert(connection: &mut PgConnection, rows: &[&AccountRow], now: i64) -> Result<(), StoreError> {
    let query = sqlx::query(UPSERT.as_str())
        .bind(column(rows, |row| row.name.as_str()))
        .bind(column(rows, |row| row.uid.as_str()))
        .bind(column(rows, |row| row.status.as_str()))
        .bind(column(rows, |row| row.zone_id.as_deref()))
        .bind(column(rows, |row| row.is_dynamic))
        .bind(column(rows, |row| row.origin.as_str()))
        .bind(column(rows, |row| row.definition.as_str()))
        .bind(column(rows, |row| row.props.as_str()))
        .bind(column(rows, |row| row.kube_host.as_deref()))
        .bind(column(rows, |row| row.kube_version.as_deref()))
        .bind(column(rows, |row| row.cert_fingerprint.as_deref()))
        .bind(column(rows, |row| row.cluster_uid.as_deref()))
        .bind(column(rows, |row| row.max_watch_age_seconds))
        .bind(column(rows, |row| row.namespaces_count))
        .bind(column(rows, |row| row.error_message.as_deref()))
        .bind(column(rows, |row| row.failed_count))
        .bind(column(rows, |row| row.next_retry_time))
        .bind(column(rows, |row| row.generation))
        .bind(column(rows, |row| row.observed_generation))
        .bind(now);
    bounded(query.execute(connection), classify).await.map(drop)
}

fn column<'r, T>(rows: &[&'r AccountRow], value: impl Fn(&'r AccountRow) -> T) -> Vec<T> {
    rows.iter().map(|row| value(row)).collect()
}

/// Cuts rows into pieces of at most [`MAX_ROWS_PER_STATEMENT`] and [`MAX_BYTES_PER_STATEMENT`], or of a single row.
fn pieces<'a, 'r>(mut rows: &'a [&'r AccountRow]) -> impl Iterator<Item = &'a [&'r AccountRow]> {
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fits = |row: &&&AccountRow| {
            bytes += rows::weight(row);
            bytes <= MAX_BYTES_PER_STATEMENT
        };
        let size = rows.iter().take(MAX_ROWS_PER_STATEMENT).take_while(fits).count().max(1);
        let (piece, rest) = rows.split_at_checked(size)?;
        rows = rest;
        Some(piece)
    })
}

/// All rows of ours.
pub(super) async fn all(connection: &mut PgConnection) -> Result<StoredAccounts, StoreError> {
    let mut accounts = StoredAccounts::default();
    (accounts.unfenced, accounts.stray_fences) = fences::amiss(connection).await?;
    each(sqlx::query(SELECT.as_str()).fetch(connection), classify, |row| {
        rows::collect(&row, || rows::name(&row), &mut accounts);
    })
    .await?;
    Ok(accounts)
}

/// All rows that are not ours.
pub(super) async fn foreign(connection: &mut PgConnection) -> Result<Vec<ForeignRow>, StoreError> {
    let mut held = Vec::new();
    each(sqlx::query(rows::SELECT_FOREIGN).fetch(connection), classify, |row| {
        held.extend(rows::foreign(&row));
    })
    .await?;
    Ok(held)
}

/// The rows of the vendor's table.
pub(super) async fn vendor(connection: &mut PgConnection) -> Result<Vec<ForeignRow>, StoreError> {
    let Some(columns) = vendor_columns(connection).await? else { return Ok(Vec::new()) };
    let mut held = Vec::new();
    let select = sqlx::AssertSqlSafe(columns.select(Dialect::Postgres));
    each(sqlx::query(select).fetch(connection), classify, |row| held.extend(rows::foreign(&row))).await?;
    Ok(held)
}

/// Deletes what the vendor's table has of these accounts.
pub(super) async fn leave_vendor(
    connection: &mut PgConnection,
    rows: &[Arc<AccountRow>],
) -> Result<(), StoreError> {
    if rows.is_empty() || vendor_columns(connection).await?.is_none() {
        return Ok(());
    }
    let names = column(&rows::sorted(rows), |row| &*row.name);
    bounded(sqlx::query(LEAVE_VENDOR.as_str()).bind(names).execute(connection), classify).await.map(drop)
}

async fn vendor_columns(connection: &mut PgConnection) -> Result<Option<vendor::Columns>, StoreError> {
    bounded(connection.columns_of(VENDOR_TABLE), classify).await.map(|columns| vendor::Columns::of(&columns))
}

/// Replaces the namespaces of the rows with these uids. Answers with the uids that have none.
pub(super) async fn put_namespaces(
    connection: &mut PgConnection,
    lists: &[(&str, String)],
    now: i64,
) -> Result<Vec<String>, StoreError> {
    let (uids, texts): (Vec<&str>, Vec<&str>) = lists.iter().map(|(uid, list)| (*uid, list.as_str())).unzip();
    let query = sqlx::query_scalar(
        "UPDATE kubesvc_accounts a SET namespaces = l.list, \
         last_updated = CASE WHEN a.namespaces IS NOT DISTINCT FROM l.list THEN a.last_updated ELSE $3 END \
         FROM unnest($1::text[], $2::text[]) AS l(uid, list) WHERE a.uid = l.uid RETURNING a.uid",
    )
    .bind(&uids)
    .bind(texts)
    .bind(now);
    let there: Vec<String> = bounded(query.fetch_all(connection), classify).await?;
    let there: HashSet<&str> = there.iter().map(String::as_str).collect();
    Ok(uids.into_iter().filter(|uid| !there.contains(uid)).map(str::to_owned).collect())
}

/// The namespaces of the row of this name, as they stand there.
pub(super) async fn namespaces(
    connection: &mut PgConnection,
    name: &str,
) -> Result<Option<String>, StoreError> {
    let query =
        sqlx::query_scalar("SELECT namespaces FROM kubesvc_accounts WHERE name = $1 AND uid IS NOT NULL")
            .bind(name);
    bounded(query.fetch_optional(connection), classify).await.map(Option::flatten)
}
