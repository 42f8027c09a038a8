//! The statements that differ between the databases in spelling alone.

use std::fmt::Write as _;

/// How a database spells its statements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    Sqlite,
    MySql,
    Postgres,
}

/// A table that we write, with the columns in the order in which they are bound. `last_updated` comes after them.
pub(super) struct SqlTable {
    pub(super) name: &'static str,
    pub(super) key: &'static [&'static str],
    pub(super) columns: &'static [&'static str],
    /// A row in which this column is NULL is somebody else's, and never written over.
    pub(super) ours: Option<&'static str>,
}

pub(super) const ACCOUNTS: SqlTable =
    SqlTable { name: "kubesvc_accounts", key: &["name"], columns: &super::rows::COLUMNS, ours: Some("uid") };

pub(super) const ASSIGNMENTS: SqlTable = SqlTable {
    name: "kubesvc_assignments",
    key: &["account_name", "agent_id", "cd_id"],
    columns: &["account_name", "agent_id", "cd_id", "connections", "caching", "reachable"],
    ours: None,
};

/// Question marks with commas.
pub(super) fn marks(count: usize) -> String {
    vec!["?"; count].join(",")
}

/// So many rows in parentheses, of so many question marks each.
pub(super) fn tuples(rows: usize, columns: usize) -> String {
    vec![format!("({})", marks(columns)); rows].join(",")
}

/// Inserts what `source` gives, or writes it over the row of the same key. A row that is the same already is not
/// touched, and keeps its `last_updated`.
pub(super) fn upsert(dialect: Dialect, table: &SqlTable, source: &str) -> String {
    let SqlTable { name, columns, key, ours } = table;
    let mut sql = format!("INSERT INTO {name} ({},last_updated) {source} ", columns.join(","));
    let written: Vec<&str> = columns.iter().copied().filter(|column| !key.contains(column)).collect();
    if dialect == Dialect::MySql {
        // From left to right: the first assignment still sees all the old values.
        let mut same: Vec<String> = written
            .iter()
            .map(|column| format!("CAST({column} AS BINARY)<=>CAST(VALUES({column}) AS BINARY)"))
            .collect();
        if ours.is_some() {
            same = vec![format!("({})", same.join(" AND "))];
        }
        let keep = ours.map(|column| format!("{column} IS NULL OR ")).unwrap_or_default();
        let _ = write!(
            sql,
            "ON DUPLICATE KEY UPDATE last_updated=IF({keep}{},last_updated,VALUES(last_updated))",
            same.join(" AND ")
        );
        for column in written {
            let _ = match ours {
                Some(ours) => write!(sql, ",{column}=IF({ours} IS NULL,{column},VALUES({column}))"),
                None => write!(sql, ",{column}=VALUES({column})"),
            };
        }
        return sql;
    }
    let different = if dialect == Dialect::Sqlite { "IS NOT" } else { "IS DISTINCT FROM" };
    let _ = write!(sql, "ON CONFLICT ({}) DO UPDATE SET ", key.join(","));
    for column in &written {
        let _ = write!(sql, "{column}=excluded.{column},");
    }
    let of =
        |table: &str| written.iter().map(|column| format!("{table}.{column}")).collect::<Vec<_>>().join(",");
    let keep = ours.map(|column| format!("{name}.{column} IS NOT NULL AND ")).unwrap_or_default();
    let _ = write!(
        sql,
        "last_updated=excluded.last_updated WHERE {keep}({}) {different} ({})",
        of(name),
        of("excluded")
    );
    sql
}

/// [`upsert`] of so many rows with a question mark for each value.
pub(super) fn upsert_values(dialect: Dialect, table: &SqlTable, rows: usize) -> String {
    upsert(dialect, table, &format!("VALUES {}", tuples(rows, table.columns.len() + 1)))
}

/// [`upsert`] of arrays of PostgreSQL's, one for each column with these types; the last parameter is `last_updated`.
pub(super) fn upsert_arrays(table: &SqlTable, types: &[&str]) -> String {
    let arrays: Vec<String> =
        types.iter().enumerate().map(|(at, kind)| format!("${}::{kind}[]", at + 1)).collect();
    let source = format!("SELECT *, ${}::bigint FROM unnest({})", types.len() + 1, arrays.join(","));
    upsert(Dialect::Postgres, table, &source)
}
