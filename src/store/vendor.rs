//! The vendor's own table of accounts, [`VENDOR_TABLE`]. Nobody outside knows all its columns, so it is read by those that it
//! has.

use super::VENDOR_TABLE;
use super::statements::{Dialect, marks};

/// What of a row says something, in the order in which [`rows::foreign`](super::rows::foreign) reads it; each under the
/// names that it may have.
const COLUMNS: [&[&str]; 5] =
    [&["name"], &["status"], &["zone_id", "zoneId"], &["definition", "def"], &["props", "properties"]];

/// The columns of the table that say something, each as the table writes it.
#[derive(Debug)]
pub(super) struct Columns([Option<String>; COLUMNS.len()]);

impl Columns {
    /// Of all columns of the table; none if it has no names of accounts, or is not there.
    pub(super) fn of(all: &[String]) -> Option<Self> {
        let column = |names: &[&str]| {
            let found = names.iter().find_map(|name| all.iter().find(|held| held.eq_ignore_ascii_case(name)));
            found.cloned()
        };
        // The statement that deletes knows the column by this very name.
        all.iter().any(|held| held == "name").then(|| Self(COLUMNS.map(column)))
    }

    /// Selects all rows, as [`rows::foreign`](super::rows::foreign) reads them.
    pub(super) fn select(&self, dialect: Dialect) -> String {
        let columns = self.0.iter().map(|column| match (column, dialect) {
            (None, _) => "NULL".to_owned(),
            (Some(column), Dialect::Sqlite) => format!("CAST(\"{column}\" AS TEXT)"),
            (Some(column), Dialect::MySql) => format!("CONVERT(`{column}` USING utf8mb4)"),
            (Some(column), Dialect::Postgres) => format!("\"{column}\"::text"),
        });
        format!("SELECT {} FROM {VENDOR_TABLE} WHERE name IS NOT NULL", columns.collect::<Vec<_>>().join(","))
    }
}

/// Deletes the rows of so many names, and no others: the table may compare names in another way than ours does.
pub(super) fn delete(dialect: Dialect, names: usize) -> String {
    match dialect {
        Dialect::Sqlite => {
            format!("DELETE FROM {VENDOR_TABLE} WHERE CAST(name AS TEXT) IN ({})", marks(names))
        }
        Dialect::MySql => format!(
            "DELETE FROM {VENDOR_TABLE} WHERE CAST(CONVERT(name USING utf8mb4) AS BINARY) IN ({})",
            vec!["CAST(? AS BINARY)"; names].join(",")
        ),
        Dialect::Postgres => format!("DELETE FROM {VENDOR_TABLE} WHERE name::text = ANY($1)"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn columns(all: &[&str]) -> Option<Columns> {
        Columns::of(&all.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn columns_are_taken_by_each_name_they_may_have() {
        let select = |all: &[&str]| columns(all).expect("it has names").select(Dialect::Postgres);
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
