//! Tables that kubesvc writes, and the two syntaxes of an upsert.

use std::fmt::Write as _;

use super::driver::Value;
use super::statement::{Statement, tuples};
use crate::store::dialect::Dialect;

/// The type of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) enum ColumnType {
    Text,
    Boolean,
    Int,
    Bigint,
}

/// A table that kubesvc writes, with its columns in the order in which they are bound. `last_updated` follows them.
pub(in crate::store) struct SqlTable {
    pub(in crate::store) name: &'static str,
    pub(in crate::store) key: &'static [&'static str],
    pub(in crate::store) columns: &'static [(&'static str, ColumnType)],
    /// Rows in which this column is NULL are foreign and never overwritten.
    pub(in crate::store) ours: Option<&'static str>,
}

impl SqlTable {
    /// Names of the columns.
    pub(in crate::store) fn column_names(&self) -> Vec<&'static str> {
        self.columns.iter().map(|(name, _)| *name).collect()
    }

    /// The columns that are not part of the key.
    fn written(&self) -> Vec<&'static str> {
        self.column_names().into_iter().filter(|column| !self.key.contains(column)).collect()
    }

    /// Inserts rows.
    pub(in crate::store) fn insert<D: Dialect>(&self, rows: &[Vec<Value<'_>>], now: i64) -> Statement<D> {
        let into = format!("INSERT INTO {} ({},last_updated) ", self.name, self.column_names().join(","));
        D::rows(Statement::new(&into), self, rows, now)
    }

    /// Inserts rows, each overwriting the row with the same key. An identical row is not changed and keeps its
    /// `last_updated`.
    pub(in crate::store) fn upsert<D: Dialect>(&self, rows: &[Vec<Value<'_>>], now: i64) -> Statement<D> {
        self.insert(rows, now).text(" ").text(&D::write_over(self))
    }

    /// The end of [`SqlTable::upsert`] for databases with `ON CONFLICT`. `different` is an operator that compares two
    /// lists that may hold NULL.
    pub(in crate::store) fn on_conflict(&self, different: &str) -> String {
        let (name, written) = (self.name, self.written());
        let mut sql = format!("ON CONFLICT ({}) DO UPDATE SET ", self.key.join(","));
        for column in &written {
            let _ = write!(sql, "{column}=excluded.{column},");
        }
        let of = |table: &str| {
            written.iter().map(|column| format!("{table}.{column}")).collect::<Vec<_>>().join(",")
        };
        let keep = self.ours.map(|column| format!("{name}.{column} IS NOT NULL AND ")).unwrap_or_default();
        let _ = write!(
            sql,
            "last_updated=excluded.last_updated WHERE {keep}({}) {different} ({})",
            of(name),
            of("excluded")
        );
        sql
    }

    /// The end of [`SqlTable::upsert`] for databases with `ON DUPLICATE KEY`.
    pub(in crate::store) fn on_duplicate_key(&self) -> String {
        let written = self.written();
        // MySQL assigns from left to right: the first assignment still sees all old values.
        let mut same = written
            .iter()
            .map(|column| format!("CAST({column} AS BINARY)<=>CAST(VALUES({column}) AS BINARY)"))
            .collect::<Vec<_>>()
            .join(" AND ");
        if let Some(ours) = self.ours {
            same = format!("{ours} IS NULL OR ({same})");
        }
        let mut sql =
            format!("ON DUPLICATE KEY UPDATE last_updated=IF({same},last_updated,VALUES(last_updated))");
        for column in written {
            let _ = match self.ours {
                Some(ours) => write!(sql, ",{column}=IF({ours} IS NULL,{column},VALUES({column}))"),
                None => write!(sql, ",{column}=VALUES({column})"),
            };
        }
        sql
    }
}

/// Appends rows with a question mark for each value; see [`Dialect::rows`].
pub(in crate::store) fn values<D: Dialect>(
    statement: Statement<D>,
    rows: &[Vec<Value<'_>>],
    now: i64,
) -> Statement<D> {
    let columns = rows.first().map_or(0, Vec::len) + 1;
    let statement = statement.text("VALUES ").text(&tuples(rows.len(), columns));
    rows.iter().fold(statement, |statement, row| statement.bind_all(row.iter().copied()).bind(now))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::mysql::MySql;
    use crate::store::postgres::Postgres;
    use crate::store::sqlite::Sqlite;

    const TABLE: SqlTable = SqlTable {
        name: "t",
        key: &["k"],
        columns: &[("k", ColumnType::Text), ("u", ColumnType::Text), ("n", ColumnType::Int)],
        ours: Some("u"),
    };

    fn upsert<D: Dialect>() -> String {
        let row = || vec!["k".into(), "u".into(), 1_i32.into()];
        TABLE.upsert::<D>(&[row(), row()], 7).sql().to_owned()
    }

    #[test]
    fn a_row_of_others_or_one_that_is_the_same_is_not_written_over() {
        let over = "ON CONFLICT (k) DO UPDATE SET u=excluded.u,n=excluded.n,last_updated=excluded.last_updated \
                    WHERE t.u IS NOT NULL AND (t.u,t.n)";
        assert_eq!(
            upsert::<Sqlite>(),
            format!(
                "INSERT INTO t (k,u,n,last_updated) VALUES (?,?,?,?),(?,?,?,?) {over} IS NOT (excluded.u,excluded.n)"
            )
        );
        assert_eq!(
            upsert::<Postgres>(),
            format!(
                "INSERT INTO t (k,u,n,last_updated) SELECT *, $4::bigint FROM unnest($1::text[],$2::text[],$3::int[]) \
                 {over} IS DISTINCT FROM (excluded.u,excluded.n)"
            )
        );
        assert_eq!(
            upsert::<MySql>(),
            "INSERT INTO t (k,u,n,last_updated) VALUES (?,?,?,?),(?,?,?,?) ON DUPLICATE KEY UPDATE \
             last_updated=IF(u IS NULL OR (CAST(u AS BINARY)<=>CAST(VALUES(u) AS BINARY) AND \
             CAST(n AS BINARY)<=>CAST(VALUES(n) AS BINARY)),last_updated,VALUES(last_updated)),\
             u=IF(u IS NULL,u,VALUES(u)),n=IF(u IS NULL,n,VALUES(n))"
        );
    }
}
