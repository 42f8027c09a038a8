//! Tables of another product under kubesvc's names: which they are, whether that product still runs, and their new names.

use super::{columns_of, lack, run, select, tables};
use crate::dialect::Dialect;
use crate::sql::ConnectionOf;
use crate::sql::statement::Statement;
use crate::{StoreError, VendorTables};

/// Tables that existed before their migration ran and are not kubesvc's.
pub(super) async fn foreign_tables<D: Dialect>(
    connection: &mut ConnectionOf<D>,
    applied: &[i64],
    at_start: impl Fn(sqlx::Error) -> StoreError,
) -> Result<Vec<&'static str>, StoreError> {
    let mut foreign = Vec::new();
    for table in tables() {
        let stands = !columns_of::<D>(connection, table.name).await.map_err(&at_start)?.is_empty();
        if !applied.contains(&table.version)
            && stands
            && lack::<D>(connection, &table).await.map_err(&at_start)?.is_some()
        {
            foreign.push(table.name);
        }
    }
    Ok(foreign)
}

/// The table that the vendor's plugin writes once a minute, as kubesvc does.
pub(super) const ASSIGNMENTS: &str = "kubesvc_assignments";
/// Time without a write after which the vendor's plugin counts as stopped, in milliseconds.
const VENDOR_SILENCE_MS: i64 = 180_000;

/// Refuses the tables of a plugin that still runs: it would go on with tables that are not its own.
pub(super) async fn check_vendor_stopped<D: Dialect>(
    connection: &mut ConnectionOf<D>,
    foreign: &[&str],
    database: &str,
    at_start: impl Fn(sqlx::Error) -> StoreError,
) -> Result<(), StoreError> {
    const TIME: &str = "last_updated";
    let columns = columns_of::<D>(connection, ASSIGNMENTS).await.map_err(&at_start)?;
    if !foreign.contains(&ASSIGNMENTS) || !columns.iter().any(|column| column == TIME) {
        return Ok(());
    }
    let newest = Statement::new(&format!(
        "SELECT {} FROM {ASSIGNMENTS} WHERE {TIME} IS NOT NULL ORDER BY {TIME} DESC LIMIT 1",
        D::as_text(TIME)
    ));
    let newest: Option<i64> = select::<D, String>(connection, newest)
        .await
        .map_err(&at_start)?
        .pop()
        .and_then(|time| time.parse().ok());
    let age = newest.map(|time| crate::now().saturating_sub(time));
    let Some(age) = age.filter(|age| *age < VENDOR_SILENCE_MS) else { return Ok(()) };
    Err(StoreError::Unfit(format!(
        "the Scale Agent's plugin still uses the database {database}: it wrote {ASSIGNMENTS} {} s ago, and nothing was \
         touched: remove the plugin from every Clouddriver and start kubesvc {} s later, or give kubesvc.database.url \
         another database",
        age.max(0) / 1000,
        VENDOR_SILENCE_MS / 1000
    )))
}

pub(super) async fn move_foreign_tables<D: Dialect>(
    connection: &mut ConnectionOf<D>,
    foreign: &[&str],
    database: &str,
    vendor: VendorTables,
    at_start: impl Fn(sqlx::Error) -> StoreError,
) -> Result<(), StoreError> {
    if !foreign.is_empty() && vendor == VendorTables::Refuse {
        let renamed: Vec<_> = foreign.iter().map(|table| format!("{table} to {table}_vendor")).collect();
        return Err(StoreError::Unfit(format!(
            "the database {database} holds tables that are not kubesvc's, and nothing of it was touched: set \
             kubesvc.database.takeOver: true, and these are renamed and kept: {}; or give kubesvc.database.url another \
             database",
            renamed.join(", ")
        )));
    }
    for table in foreign {
        let kept = format!("{table}_vendor");
        if !columns_of::<D>(connection, &kept).await.map_err(&at_start)?.is_empty() {
            return Err(StoreError::Unfit(format!(
                "the database {database} holds a table {table} that is not kubesvc's, and {kept} is taken: rename or \
                 drop one of them"
            )));
        }
        let rename = Statement::new(&format!("ALTER TABLE {table} RENAME TO {kept}"));
        run::<D>(connection, rename).await.map_err(&at_start)?;
        tracing::warn!(table, kept, "renamed a table that is not kubesvc's");
    }
    Ok(())
}
