//! The statements on `kubesvc_accounts`.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use sqlx::sqlite::{SqliteConnection, SqliteRow};
use sqlx::{Row as _, ValueRef as _};

use super::errors;
use super::fences;
use crate::account::row::AccountRow;
use crate::store::batches::{Statements, pieces};
use crate::store::migrations::Schema as _;
use crate::store::rows::{self, ReplacedRows, TABLE, bind_account};
use crate::store::statements::{ACCOUNTS, Dialect, marks, upsert_values};
use crate::store::{ForeignRow, StoreError, StoredAccounts, VENDOR_TABLE, limits, vendor};

/// What goes with the rows of these uids, and then the rows.
static DELETES: LazyLock<[Statements; 3]> = LazyLock::new(|| {
    [
        Statements::new(|size| {
            format!(
                "DELETE FROM kubesvc_assignments WHERE account_name IN (SELECT name FROM {TABLE} WHERE uid IN ({}))",
                marks(size)
            )
        }),
        Statements::new(|size| format!("DELETE FROM kubesvc_caching WHERE account_uid IN ({})", marks(size))),
        Statements::new(|size| format!("DELETE FROM {TABLE} WHERE uid IN ({})", marks(size))),
    ]
});

static LOOK: LazyLock<Statements> = LazyLock::new(|| {
    Statements::new(|size| {
        let marks = marks(size);
        format!("SELECT rowid, name, uid FROM {TABLE} WHERE name IN ({marks}) OR uid IN ({marks})")
    })
});

static LEAVE_VENDOR: LazyLock<Statements> =
    LazyLock::new(|| Statements::new(|size| vendor::delete(Dialect::Sqlite, size)));

static UPSERT: LazyLock<Statements> =
    LazyLock::new(|| Statements::new(|size| upsert_values(Dialect::Sqlite, &ACCOUNTS, size)));

static SELECT: LazyLock<String> = LazyLock::new(rows::select_ours);

/// Deletes the rows of these uids, in all tables.
pub(super) async fn delete(connection: &mut SqliteConnection, uids: &[String]) -> Result<(), StoreError> {
    for piece in pieces(uids, |_| 0, 0) {
        for statements in &*DELETES {
            let mut query = sqlx::query(statements.of(piece.len()));
            for uid in piece {
                query = query.bind(uid.as_str());
            }
            query.execute(&mut *connection).await.map_err(errors::classify)?;
        }
    }
    Ok(())
}

/// Writes rows, each as a whole. No name and no uid may stand among them twice.
pub(super) async fn put(
    connection: &mut SqliteConnection,
    rows: &[Arc<AccountRow>],
    now: i64,
    taking: ReplacedRows,
) -> Result<(), StoreError> {
    for piece in pieces(&rows::sorted(rows), |_| 0, 0) {
        make_way(connection, piece, taking).await?;
        let mut query = sqlx::query(UPSERT.of(piece.len()));
        for row in piece {
            query = bind_account!(query, row).bind(now);
        }
        query.execute(&mut *connection).await.map_err(|error| match piece {
            [row] => limits::of_row(row, errors::classify(error)),
            _ => errors::classify(error),
        })?;
        fences::keep(connection, piece, now).await?;
    }
    Ok(())
}

/// Removes rows that stand in the way: of the name with another uid or none, or of the uid with another name. What may
/// not be taken the place of refuses these. The transaction holds the write lock, so nothing comes between.
async fn make_way(
    connection: &mut SqliteConnection,
    rows: &[&AccountRow],
    taking: ReplacedRows,
) -> Result<(), StoreError> {
    let mut query = sqlx::query(LOOK.of(rows.len()));
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
            if held.try_get::<Option<&str>, _>(2).is_ok_and(|uid| uid == Some(&*row.uid)) {
                continue;
            }
            taking.judge(row, held.try_get_raw(2).is_ok_and(|uid| !uid.is_null()))?;
        }
        // By its rowid: somebody may have written a uid that is no text.
        let rowid: i64 = held.try_get(0).map_err(errors::classify)?;
        for statement in [
            "DELETE FROM kubesvc_assignments WHERE account_name IN \
             (SELECT name FROM kubesvc_accounts WHERE rowid = ?)",
            "DELETE FROM kubesvc_caching WHERE account_uid IN (SELECT uid FROM kubesvc_accounts WHERE rowid = ?)",
            "DELETE FROM kubesvc_accounts WHERE rowid = ?",
        ] {
            sqlx::query(statement).bind(rowid).execute(&mut *connection).await.map_err(errors::classify)?;
        }
    }
    Ok(())
}

/// All rows of ours.
pub(super) async fn all(connection: &mut SqliteConnection) -> Result<StoredAccounts, StoreError> {
    let (unfenced, stray_fences) = fences::amiss(connection).await?;
    let rows = sqlx::query(SELECT.as_str()).fetch_all(connection).await.map_err(errors::classify)?;
    let mut accounts = StoredAccounts { unfenced, stray_fences, ..StoredAccounts::default() };
    for row in &rows {
        rows::collect(row, || lossy(row, 0).unwrap_or_default(), &mut accounts);
    }
    Ok(accounts)
}

/// All rows that are not ours.
pub(super) async fn foreign(connection: &mut SqliteConnection) -> Result<Vec<ForeignRow>, StoreError> {
    let held = sqlx::query(rows::SELECT_FOREIGN).fetch_all(connection).await.map_err(errors::classify)?;
    Ok(held.iter().filter_map(rows::foreign).collect())
}

/// The rows of the vendor's table.
pub(super) async fn vendor(connection: &mut SqliteConnection) -> Result<Vec<ForeignRow>, StoreError> {
    let Some(columns) = vendor_columns(connection).await? else { return Ok(Vec::new()) };
    let select = sqlx::AssertSqlSafe(columns.select(Dialect::Sqlite));
    let held = sqlx::query(select).fetch_all(connection).await.map_err(errors::classify)?;
    Ok(held.iter().filter_map(rows::foreign).collect())
}

/// Deletes what the vendor's table has of these accounts.
pub(super) async fn leave_vendor(
    connection: &mut SqliteConnection,
    rows: &[Arc<AccountRow>],
) -> Result<(), StoreError> {
    if rows.is_empty() || vendor_columns(connection).await?.is_none() {
        return Ok(());
    }
    for piece in pieces(rows, |_| 0, 0) {
        let mut query = sqlx::query(LEAVE_VENDOR.of(piece.len()));
        for row in piece {
            query = query.bind(row.name.as_str());
        }
        query.execute(&mut *connection).await.map_err(errors::classify)?;
    }
    Ok(())
}

async fn vendor_columns(connection: &mut SqliteConnection) -> Result<Option<vendor::Columns>, StoreError> {
    let columns = connection.columns_of(VENDOR_TABLE).await.map_err(errors::classify)?;
    Ok(vendor::Columns::of(&columns))
}

fn lossy(row: &SqliteRow, column: usize) -> Option<String> {
    let bytes = row.try_get_unchecked::<&[u8], _>(column).ok()?;
    Some(String::from_utf8_lossy(bytes).into_owned())
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
