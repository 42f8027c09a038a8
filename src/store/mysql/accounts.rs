//! The statements on `kubesvc_accounts`.

use std::sync::{Arc, LazyLock};

use sqlx::mysql::MySqlConnection;

use super::errors::classify;
use super::fences;
use crate::account::row::AccountRow;
use crate::store::batches::{Statements, pieces};
use crate::store::migrations::Schema as _;
use crate::store::rows::{self, ReplacedRows, TABLE, bind_account};
use crate::store::server::{bounded, each};
use crate::store::statements::{ACCOUNTS, Dialect, marks, upsert_values};
use crate::store::{ForeignRow, StoreError, StoredAccounts, VENDOR_TABLE, limits, vendor};

/// What goes with the rows of these uids, and then the rows.
static DELETES: LazyLock<[Statements; 3]> = LazyLock::new(|| {
    [
        Statements::new(|size| {
            format!(
                "DELETE s FROM kubesvc_assignments s JOIN {TABLE} a ON s.account_name = a.name WHERE a.uid IN ({})",
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
        format!(
            "SELECT name, uid FROM {TABLE} WHERE name IN ({marks}) UNION ALL \
             SELECT name, uid FROM {TABLE} WHERE uid IN ({marks})"
        )
    })
});

static LOOK_FOREIGN: LazyLock<Statements> = LazyLock::new(|| {
    Statements::new(|size| {
        format!("SELECT name FROM {TABLE} WHERE name IN ({}) AND uid IS NULL", marks(size))
    })
});

static DELETE_FOREIGN: LazyLock<Statements> = LazyLock::new(|| {
    Statements::new(|size| format!("DELETE FROM {TABLE} WHERE name IN ({}) AND uid IS NULL", marks(size)))
});

static LEAVE_VENDOR: LazyLock<Statements> =
    LazyLock::new(|| Statements::new(|size| vendor::delete(Dialect::MySql, size)));

static UPSERT: LazyLock<Statements> =
    LazyLock::new(|| Statements::new(|size| upsert_values(Dialect::MySql, &ACCOUNTS, size)));

static SELECT: LazyLock<String> = LazyLock::new(rows::select_ours);

/// Deletes the rows of these uids, in all tables.
pub(super) async fn delete(connection: &mut MySqlConnection, uids: &[String]) -> Result<(), StoreError> {
    let mut uids: Vec<&str> = uids.iter().map(String::as_str).collect();
    uids.sort_unstable();
    for piece in pieces(&uids, |_| 0, 0) {
        for statements in &*DELETES {
            let mut query = sqlx::query(statements.of(piece.len()));
            for uid in piece {
                query = query.bind(*uid);
            }
            bounded(query.execute(&mut *connection), classify).await?;
        }
    }
    Ok(())
}

async fn delete_names<N: AsRef<str>>(
    connection: &mut MySqlConnection,
    statements: &'static Statements,
    names: &[N],
) -> Result<(), StoreError> {
    for piece in pieces(names, |_| 0, 0) {
        let mut query = sqlx::query(statements.of(piece.len()));
        for name in piece {
            query = query.bind(name.as_ref());
        }
        bounded(query.execute(&mut *connection), classify).await?;
    }
    Ok(())
}

/// Deletes what the vendor's table has of these accounts.
pub(super) async fn leave_vendor(
    connection: &mut MySqlConnection,
    rows: &[Arc<AccountRow>],
) -> Result<(), StoreError> {
    if rows.is_empty() || vendor_columns(connection).await?.is_none() {
        return Ok(());
    }
    let names: Vec<&str> = rows::sorted(rows).into_iter().map(|row| row.name.as_str()).collect();
    delete_names(connection, &LEAVE_VENDOR, &names).await
}

async fn vendor_columns(connection: &mut MySqlConnection) -> Result<Option<vendor::Columns>, StoreError> {
    bounded(connection.columns_of(VENDOR_TABLE), classify).await.map(|columns| vendor::Columns::of(&columns))
}

/// Writes rows, each as a whole. No name and no uid may stand among them twice. `packet` is the most bytes that the
/// server takes at once.
pub(super) async fn put(
    connection: &mut MySqlConnection,
    rows: &[Arc<AccountRow>],
    now: i64,
    packet: usize,
    taking: ReplacedRows,
) -> Result<(), StoreError> {
    let rows = rows::sorted(rows);
    for row in &rows {
        check(row, packet)?;
    }
    for piece in pieces(&rows, |row| rows::weight(row), packet / 4) {
        let mut look = sqlx::query_as(LOOK.of(piece.len()));
        for row in piece {
            look = look.bind(row.name.as_str());
        }
        for row in piece {
            look = look.bind(row.uid.as_str());
        }
        let held = bounded(look.fetch_all(&mut *connection), classify).await?;
        let way = rows::conflicting_rows(piece, held, taking)?;
        delete(connection, &way.uids).await?;
        delete_names(connection, &DELETE_FOREIGN, &way.foreign).await?;
        let mut upsert = sqlx::query(UPSERT.of(piece.len()));
        for row in piece {
            upsert = bind_account!(upsert, row).bind(now);
        }
        bounded(upsert.execute(&mut *connection), classify).await.map_err(|error| match piece {
            [row] => limits::of_row(row, error),
            _ => error,
        })?;
        fences::keep(connection, piece, now).await?;
        // Somebody else's row that came since the look was locked by the upsert, and left as it is.
        let mut foreign = sqlx::query_scalar(LOOK_FOREIGN.of(piece.len()));
        for row in piece {
            foreign = foreign.bind(row.name.as_str());
        }
        rows::not_ours(piece, &bounded(foreign.fetch_all(&mut *connection), classify).await?)?;
    }
    Ok(())
}

/// What these databases do not take, where the others do.
fn check(row: &AccountRow, packet: usize) -> Result<(), StoreError> {
    if row.name.ends_with(' ') {
        let why = "its name ends with a space, and MySQL takes it for the name without";
        return Err(limits::refused(row, why));
    }
    // The server would cut the connection.
    if rows::weight(row) > packet - packet / 8 {
        return Err(limits::refused(row, "it is larger than the server's max_allowed_packet"));
    }
    Ok(())
}

/// All rows of ours.
pub(super) async fn all(connection: &mut MySqlConnection) -> Result<StoredAccounts, StoreError> {
    let mut accounts = StoredAccounts::default();
    (accounts.unfenced, accounts.stray_fences) = fences::amiss(connection).await?;
    each(sqlx::query(SELECT.as_str()).fetch(connection), classify, |row| {
        rows::collect(&row, || rows::name(&row), &mut accounts);
    })
    .await?;
    Ok(accounts)
}

/// All rows that are not ours.
pub(super) async fn foreign(connection: &mut MySqlConnection) -> Result<Vec<ForeignRow>, StoreError> {
    let mut held = Vec::new();
    each(sqlx::query(rows::SELECT_FOREIGN).fetch(connection), classify, |row| {
        held.extend(rows::foreign(&row));
    })
    .await?;
    Ok(held)
}

/// The rows of the vendor's table.
pub(super) async fn vendor(connection: &mut MySqlConnection) -> Result<Vec<ForeignRow>, StoreError> {
    let Some(columns) = vendor_columns(connection).await? else { return Ok(Vec::new()) };
    let mut held = Vec::new();
    let select = sqlx::AssertSqlSafe(columns.select(Dialect::MySql));
    each(sqlx::query(select).fetch(connection), classify, |row| held.extend(rows::foreign(&row))).await?;
    Ok(held)
}

/// Replaces the namespaces of the row with this uid; false if there is none.
pub(super) async fn put_namespaces(
    connection: &mut MySqlConnection,
    uid: &str,
    list: &str,
    now: i64,
) -> Result<bool, StoreError> {
    // From left to right: the first assignment still sees the old list. Rows that match are counted, changed or not.
    let query = sqlx::query(
        "UPDATE kubesvc_accounts SET last_updated = IF(CAST(namespaces AS BINARY) <=> CAST(? AS BINARY), \
         last_updated, ?), namespaces = ? WHERE uid = ?",
    )
    .bind(list)
    .bind(now)
    .bind(list)
    .bind(uid);
    bounded(query.execute(connection), classify).await.map(|done| done.rows_affected() > 0)
}

/// The namespaces of the row of this name, as they stand there.
pub(super) async fn namespaces(
    connection: &mut MySqlConnection,
    name: &str,
) -> Result<Option<String>, StoreError> {
    let query = sqlx::query_scalar(
        "SELECT namespaces FROM kubesvc_accounts WHERE name = ? AND CAST(name AS BINARY) = CAST(? AS BINARY) \
         AND uid IS NOT NULL",
    )
    .bind(name)
    .bind(name);
    bounded(query.fetch_optional(connection), classify).await.map(Option::flatten)
}
