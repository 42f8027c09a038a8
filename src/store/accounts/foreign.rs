//! Foreign rows: those without a uid in `kubesvc_accounts`, and those of the vendor's own table of accounts. The
//! vendor's columns are not fully known, so its table is read by the columns it has.

use std::sync::Arc;

use super::{names, sorted};
use crate::account::row::AccountRow;
use crate::store::dialect::Dialect;
use crate::store::sql::driver::Driver as _;
use crate::store::sql::session::{RowOf, Session};
use crate::store::sql::statement::Statement;
use crate::store::{ForeignRow, StoreError};

/// Another product's table that was called `kubesvc_accounts`, as renamed at the first start.
pub const VENDOR_TABLE: &str = "kubesvc_accounts_vendor";

/// The columns that [`read`] understands, in its order; each with its possible names.
const COLUMNS: [&[&str]; 5] =
    [&["name"], &["status"], &["zone_id", "zoneId"], &["definition", "def"], &["props", "properties"]];

/// The columns of the vendor's table that kubesvc understands, each spelled as the table spells it.
#[derive(Debug)]
struct Columns([Option<String>; COLUMNS.len()]);

impl Columns {
    /// Selects from all columns of the table; `None` if there is no column `name`, or no table.
    fn of(all: &[String]) -> Option<Self> {
        let column = |names: &[&str]| {
            let found = names.iter().find_map(|name| all.iter().find(|held| held.eq_ignore_ascii_case(name)));
            found.cloned()
        };
        // The `DELETE` statement uses the column under exactly this name.
        all.iter().any(|held| held == "name").then(|| Self(COLUMNS.map(column)))
    }

    /// Selects all rows, in the column order of [`read`].
    fn select<D: Dialect>(&self) -> String {
        let columns = self.0.iter().map(|column| match column {
            None => "NULL".to_owned(),
            Some(column) => D::as_text(column),
        });
        format!("SELECT {} FROM {VENDOR_TABLE} WHERE name IS NOT NULL", columns.collect::<Vec<_>>().join(","))
    }
}

/// Decodes a foreign row. Values that cannot be read are `None`; without a name there is no row.
fn read<D: Dialect>(row: &RowOf<D>) -> Option<ForeignRow> {
    let text = |column: usize| D::Database::text(row, column).ok().flatten();
    Some(ForeignRow {
        name: text(0)?,
        status: text(1).unwrap_or_default(),
        zone_id: text(2),
        definition: text(3),
        props: text(4),
    })
}

async fn select<D: Dialect>(session: &mut Session<'_, D>, sql: &str) -> Result<Vec<ForeignRow>, StoreError> {
    let mut held = Vec::new();
    session.each(Statement::new(sql), |row| held.extend(read::<D>(row))).await?;
    Ok(held)
}

/// All foreign rows of `kubesvc_accounts`.
pub(super) async fn foreign<D: Dialect>(session: &mut Session<'_, D>) -> Result<Vec<ForeignRow>, StoreError> {
    let sql = "SELECT name, status, zone_id, definition, props FROM kubesvc_accounts WHERE uid IS NULL ORDER BY name";
    select(session, sql).await
}

/// The rows of the vendor's table.
pub(super) async fn vendor<D: Dialect>(session: &mut Session<'_, D>) -> Result<Vec<ForeignRow>, StoreError> {
    match Columns::of(&session.columns_of(VENDOR_TABLE).await?) {
        Some(columns) => select(session, &columns.select::<D>()).await,
        None => Ok(Vec::new()),
    }
}

/// Deletes these accounts from the vendor's table, matching names byte by byte: that table may compare names
/// differently from kubesvc's.
pub(super) async fn leave_vendor<D: Dialect>(
    session: &mut Session<'_, D>,
    rows: &[Arc<AccountRow>],
) -> Result<(), StoreError> {
    if rows.is_empty() || Columns::of(&session.columns_of(VENDOR_TABLE).await?).is_none() {
        return Ok(());
    }
    for piece in session.dialect.pieces(&names(&sorted(rows)), |_| 0) {
        let delete = Statement::new(&format!("DELETE FROM {VENDOR_TABLE} WHERE "));
        session.execute(D::text_is_one_of(delete, "name", piece)).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::postgres::Postgres;

    fn columns(all: &[&str]) -> Option<Columns> {
        Columns::of(&all.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn columns_are_taken_by_each_name_they_may_have() {
        let select = |all: &[&str]| columns(all).expect("it has names").select::<Postgres>();
        assert!(select(&["def", "name", "other", "zoneId"]).starts_with(
            r#"SELECT "name"::text,NULL,"zoneId"::text,"def"::text,NULL FROM kubesvc_accounts_vendor"#
        ));
        assert!(select(&["name", "definition", "def"]).contains(r#""definition"::text"#));
    }

    #[test]
    fn a_table_without_names_tells_of_no_account() {
        assert!(columns(&[]).is_none());
        assert!(columns(&["id", "definition"]).is_none());
    }
}
