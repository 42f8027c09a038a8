//! Foreign rows: those without a uid in `kubesvc_accounts`, and those of the vendor's own table of accounts. The
//! vendor's columns are not fully known, so its table is read by the columns it has.
//!
//! Also which rows, foreign or kubesvc's own, conflict with a row to write, and whether it may replace them.

use std::collections::HashMap;
use std::sync::Arc;

use super::{names, sorted};
use crate::dialect::Dialect;
use crate::sql::driver::Driver as _;
use crate::sql::statement::Statement;
use crate::sql::{RowOf, SqlSession};
use crate::{ForeignRow, StoreError, column_limits};
use kubesvc_core::account_row::AccountRow;

/// Another product's table that was called `kubesvc_accounts`, as renamed at the first start.
pub const VENDOR_TABLE: &str = "kubesvc_accounts_vendor";

/// The columns that [`read`] understands, in its order; each with its possible names.
const COLUMNS: [&[&str]; 6] = [
    &["name"],
    &["status"],
    &["zone_id", "zoneId"],
    &["definition", "def"],
    &["props", "properties"],
    &["dynamic", "is_dynamic", "isDynamic"],
];
/// Place of the definition in [`COLUMNS`].
const DEFINITION: usize = 3;
/// Maximum number of characters of a definition that are read from a table of others: more than an account may have.
const MAX_DEFINITION_CHARS: usize = (1 << 20) + 1;

/// The columns of the vendor's table that kubesvc understands, each spelled as the table spells it.
#[derive(Debug)]
pub(crate) struct Columns([Option<String>; COLUMNS.len()]);

impl Columns {
    /// Selects from all columns of the table; `None` if there is no column `name`, or no table.
    pub(crate) fn of(all: &[String]) -> Option<Self> {
        let column = |names: &[&str]| {
            let found = names.iter().find_map(|name| all.iter().find(|held| held.eq_ignore_ascii_case(name)));
            found.cloned()
        };
        // The `DELETE` statement uses the column under exactly this name.
        all.iter().any(|held| held == "name").then(|| Self(COLUMNS.map(column)))
    }

    /// The columns among name, status, definition and dynamic that the table lacks.
    pub(crate) fn lacking(&self) -> Vec<&'static str> {
        let needed = [0, 1, DEFINITION, 5].into_iter();
        needed.filter(|at| self.0[*at].is_none()).map(|at| COLUMNS[at][0]).collect()
    }

    /// Selects all rows, in the column order of [`read`].
    pub(crate) fn select<D: Dialect>(&self, table: &str) -> String {
        let columns = self.0.iter().enumerate().map(|(at, column)| match column {
            None => "NULL".to_owned(),
            Some(column) if at == DEFINITION => {
                format!("SUBSTR({}, 1, {MAX_DEFINITION_CHARS})", D::as_text(column))
            }
            Some(column) => D::as_text(column),
        });
        format!("SELECT {} FROM {table} WHERE name IS NOT NULL", columns.collect::<Vec<_>>().join(","))
    }
}

/// Decodes a foreign row. Values that cannot be read are `None`; without a name there is no row.
pub(crate) fn read<D: Dialect>(row: &RowOf<D>) -> Option<ForeignRow> {
    let text = |column: usize| D::Database::text(row, column).ok().flatten();
    Some(ForeignRow {
        name: text(0)?,
        status: text(1).unwrap_or_default(),
        zone_id: text(2),
        definition: text(3),
        props: text(4),
        // A bit is a byte of its value.
        is_dynamic: text(5).map(|text| {
            matches!(text.to_ascii_lowercase().as_str(), "1" | "\u{1}" | "t" | "true" | "y" | "yes")
        }),
    })
}

async fn select<D: Dialect>(
    session: &mut SqlSession<'_, D>,
    sql: &str,
) -> Result<Vec<ForeignRow>, StoreError> {
    let mut held = Vec::new();
    session.each(Statement::new(sql), |row| held.extend(read::<D>(row))).await?;
    Ok(held)
}

/// All foreign rows of `kubesvc_accounts`.
pub(super) async fn foreign<D: Dialect>(
    session: &mut SqlSession<'_, D>,
) -> Result<Vec<ForeignRow>, StoreError> {
    let sql = "SELECT name, status, zone_id, definition, props, NULL FROM kubesvc_accounts WHERE uid IS NULL ORDER BY name";
    select(session, sql).await
}

/// The rows of the vendor's table.
pub(super) async fn vendor<D: Dialect>(
    session: &mut SqlSession<'_, D>,
) -> Result<Vec<ForeignRow>, StoreError> {
    match Columns::of(&session.columns_of(VENDOR_TABLE).await?) {
        Some(columns) => select(session, &columns.select::<D>(VENDOR_TABLE)).await,
        None => Ok(Vec::new()),
    }
}

/// Deletes these accounts from the vendor's table, matching names byte by byte: that table may compare names
/// differently from kubesvc's.
pub(super) async fn leave_vendor<D: Dialect>(
    session: &mut SqlSession<'_, D>,
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

/// Which rows a write may replace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplacedRows {
    /// kubesvc's own rows: [`AccountChanges::puts`](crate::AccountChanges::puts).
    Ours,
    /// Foreign rows: [`AccountChanges::adopts`](crate::AccountChanges::adopts).
    Theirs,
}

impl ReplacedRows {
    /// Checks whether `row` may replace the row that has its name; `ours` if that row has another uid of kubesvc.
    pub(crate) fn judge(self, row: &AccountRow, ours: bool) -> Result<(), StoreError> {
        match (self, ours) {
            (Self::Ours, true) | (Self::Theirs, false) => Ok(()),
            (Self::Ours, false) => Err(column_limits::refused(row, NAME_HAS_FOREIGN_ROW)),
            (Self::Theirs, true) => Err(column_limits::refused(row, NAME_HAS_OUR_ROW)),
        }
    }
}

/// Rows to delete before others can be written.
#[derive(Debug, Default)]
pub(crate) struct ConflictingRows {
    /// uids of kubesvc's own rows: same name with another uid, or same uid with another name.
    pub(crate) uids: Vec<String>,
    /// Names of foreign rows.
    pub(crate) foreign: Vec<String>,
}

/// Returns the rows that conflict with `rows`. `held` is the name and uid of each row in the table that has one of
/// the names or uids. Returns an error if `taking` does not allow one of them to be replaced.
pub(crate) fn conflicting_rows(
    rows: &[&AccountRow],
    held: Vec<(Option<String>, Option<String>)>,
    taking: ReplacedRows,
) -> Result<ConflictingRows, StoreError> {
    let mut way = ConflictingRows::default();
    if held.is_empty() {
        return Ok(way);
    }
    let by_name: HashMap<&str, &AccountRow> = rows.iter().map(|row| (row.name.as_str(), *row)).collect();
    for (name, uid) in held {
        let wanted = name.as_deref().and_then(|name| by_name.get(name));
        match (wanted, uid) {
            (Some(row), Some(uid)) if row.uid == uid => {}
            (Some(row), uid) => {
                taking.judge(row, uid.is_some())?;
                match uid {
                    Some(uid) => way.uids.push(uid),
                    None => way.foreign.extend(name),
                }
            }
            (None, Some(uid)) => way.uids.push(uid),
            (None, None) => {}
        }
    }
    way.uids.sort_unstable();
    way.uids.dedup();
    Ok(way)
}

/// Refuses the first of `rows` that the database considers to have one of these names.
pub(crate) fn not_ours(rows: &[&AccountRow], names: &[String]) -> Result<(), StoreError> {
    // MySQL ignores trailing spaces when it compares names.
    let same = |name: &str, row: &AccountRow| name == row.name || name.trim_end_matches(' ') == row.name;
    match rows.iter().find(|row| names.iter().any(|name| same(name, row))) {
        Some(row) => Err(column_limits::refused(row, NAME_HAS_FOREIGN_ROW)),
        None => Ok(()),
    }
}

/// Reason for refusing a put whose name belongs to a foreign row.
const NAME_HAS_FOREIGN_ROW: &str = "a row of that name without a uid is there already and is not kubesvc's; \
                        delete it, or give the account another name";

/// Reason for refusing an adoption whose name belongs to one of kubesvc's own rows.
const NAME_HAS_OUR_ROW: &str = "a row of that name with another uid is there already; if no object has that uid, it goes \
                     within a minute";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::postgres::Postgres;

    fn columns(all: &[&str]) -> Option<Columns> {
        Columns::of(&all.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn columns_are_taken_by_each_name_they_may_have() {
        let select = |all: &[&str]| columns(all).expect("it has names").select::<Postgres>(VENDOR_TABLE);
        assert!(select(&["def", "name", "other", "zoneId"]).starts_with(
            r#"SELECT "name"::text,NULL,"zoneId"::text,SUBSTR("def"::text, 1, 1048577),NULL,NULL FROM kubesvc_accounts_vendor"#
        ));
        assert!(select(&["name", "definition", "def"]).contains(r#""definition"::text"#));
    }

    #[test]
    fn needed_columns_that_are_missing_are_named() {
        let lacking = |all: &[&str]| columns(all).expect("it has names").lacking();
        assert_eq!(lacking(&["name", "props", "zone_id"]), ["status", "definition", "dynamic"]);
        assert!(lacking(&["name", "STATUS", "def", "isDynamic"]).is_empty());
    }

    #[test]
    fn table_without_names_yields_no_account() {
        assert!(columns(&[]).is_none());
        assert!(columns(&["id", "definition"]).is_none());
    }
}
