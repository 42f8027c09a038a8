//! Statements: their text and parameters, the upserts of tables that kubesvc writes, and slices of rows that fit into
//! one statement.

use std::fmt::Write as _;

use sqlx::Database;
use sqlx::error::BoxDynError;

use super::SqlSession;
use super::driver::{Driver, Value};
use crate::StoreError;
use crate::dialect::Dialect;

/// The arguments of a statement in this dialect.
pub(crate) type ArgumentsOf<D> = <<D as Dialect>::Database as Database>::Arguments;

/// A SQL statement. Each parameter is a question mark in its text, whatever the syntax of the database.
pub(crate) struct Statement<D: Dialect> {
    sql: String,
    arguments: ArgumentsOf<D>,
    parameters: usize,
    fault: Option<BoxDynError>,
}

impl<D: Dialect> Statement<D> {
    /// A statement that begins with this text.
    pub(crate) fn new(text: &str) -> Self {
        Self { sql: String::new(), arguments: ArgumentsOf::<D>::default(), parameters: 0, fault: None }
            .text(text)
    }

    /// Appends text.
    pub(crate) fn text(mut self, text: &str) -> Self {
        if !D::NUMBERED_PARAMETERS {
            self.sql.push_str(text);
            return self;
        }
        for (at, part) in text.split('?').enumerate() {
            if at > 0 {
                self.parameters += 1;
                self.sql.push('$');
                self.sql.push_str(&self.parameters.to_string());
            }
            self.sql.push_str(part);
        }
        self
    }

    /// Binds a value to the next parameter.
    pub(crate) fn bind<'v>(self, value: impl Into<Value<'v>>) -> Self {
        let value = value.into();
        self.add(|arguments| D::Database::add(arguments, value))
    }

    /// Binds values to the next parameters.
    pub(crate) fn bind_all<'v>(self, values: impl IntoIterator<Item = Value<'v>>) -> Self {
        values.into_iter().fold(self, Self::bind)
    }

    /// Binds a value of a type that only this database has to the next parameter.
    pub(crate) fn add(mut self, add: impl FnOnce(&mut ArgumentsOf<D>) -> Result<(), BoxDynError>) -> Self {
        if self.fault.is_none() {
            self.fault = add(&mut self.arguments).err();
        }
        self
    }

    /// Appends a condition: the preceding expression equals one of these keys.
    pub(crate) fn one_of<K: AsRef<str>>(self, keys: &[K]) -> Self {
        let keys: Vec<&str> = keys.iter().map(AsRef::as_ref).collect();
        D::one_of(self, &keys)
    }

    /// The text so far.
    #[cfg(test)]
    fn sql(&self) -> &str {
        &self.sql
    }

    /// The text and the arguments to send.
    pub(crate) fn into_parts(self) -> Result<(String, ArgumentsOf<D>), sqlx::Error> {
        match self.fault {
            Some(fault) => Err(sqlx::Error::Encode(fault)),
            None => Ok((self.sql, self.arguments)),
        }
    }
}

/// `count` question marks, separated by commas.
pub(crate) fn marks(count: usize) -> String {
    vec!["?"; count].join(",")
}

/// `rows` tuples in parentheses, of `columns` question marks each.
pub(crate) fn tuples(rows: usize, columns: usize) -> String {
    vec![format!("({})", marks(columns)); rows].join(",")
}

/// The type of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ColumnType {
    Text,
    /// A text of at most this many characters.
    Varchar(usize),
    Boolean,
    Int,
    Bigint,
    Blob,
}

/// A table that kubesvc writes, with its columns in the order in which they are bound. `last_updated` follows them.
pub(crate) struct SqlTable {
    pub(crate) name: &'static str,
    pub(crate) key: &'static [&'static str],
    pub(crate) columns: &'static [(&'static str, ColumnType)],
    /// Rows in which this column is NULL are foreign and never overwritten.
    pub(crate) ours: Option<&'static str>,
}

impl SqlTable {
    pub(crate) fn column_names(&self) -> Vec<&'static str> {
        self.columns.iter().map(|(name, _)| *name).collect()
    }

    /// The columns that are not part of the key.
    fn written(&self) -> Vec<&'static str> {
        self.column_names().into_iter().filter(|column| !self.key.contains(column)).collect()
    }

    pub(crate) fn insert<D: Dialect>(&self, rows: &[Vec<Value<'_>>], now: i64) -> Statement<D> {
        let into = format!("INSERT INTO {} ({},last_updated) ", self.name, self.column_names().join(","));
        D::rows(Statement::new(&into), self, rows, Some(now))
    }

    /// Inserts rows, each overwriting the row with the same key. An identical row is not changed and keeps its
    /// `last_updated`.
    pub(crate) fn upsert<D: Dialect>(&self, rows: &[Vec<Value<'_>>], now: i64) -> Statement<D> {
        self.insert(rows, now).text(" ").text(&D::write_over(self))
    }

    /// The end of [`SqlTable::upsert`] for databases with `ON CONFLICT`. `different` is an operator that compares two
    /// lists that may hold NULL.
    pub(crate) fn on_conflict(&self, different: &str) -> String {
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
    pub(crate) fn on_duplicate_key(&self) -> String {
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
pub(crate) fn values<D: Dialect>(
    statement: Statement<D>,
    rows: &[Vec<Value<'_>>],
    now: Option<i64>,
) -> Statement<D> {
    let columns = rows.first().map_or(0, Vec::len) + usize::from(now.is_some());
    let statement = statement.text("VALUES ").text(&tuples(rows.len(), columns));
    rows.iter().fold(statement, |statement, row| {
        statement.bind_all(row.iter().copied()).bind_all(now.map(Value::from))
    })
}

/// Numbers of rows in one statement. Only a few sizes, so that few statements are prepared, and those stay prepared.
const BATCH_SIZES: [usize; 4] = [256, 64, 8, 1];

/// Splits a list into slices of these sizes, none heavier than `most` unless it is a single item.
pub(crate) fn pieces<T>(
    mut items: &[T],
    weigh: impl Fn(&T) -> usize,
    most: usize,
) -> impl Iterator<Item = &[T]> {
    std::iter::from_fn(move || {
        let size = BATCH_SIZES.into_iter().find(|size| {
            *size == 1
                || items.get(..*size).is_some_and(|piece| piece.iter().map(&weigh).sum::<usize>() <= most)
        })?;
        let (piece, rest) = items.split_at_checked(size)?;
        items = rest;
        Some(piece)
    })
}

/// Splits a list into slices of at most `count` items, none heavier than `most` unless it is a single item.
pub(crate) fn chunks<T>(
    mut items: &[T],
    weigh: impl Fn(&T) -> usize,
    count: usize,
    most: usize,
) -> impl Iterator<Item = &[T]> {
    std::iter::from_fn(move || {
        let mut weight = 0;
        let fits = |item: &&T| {
            weight += weigh(item);
            weight <= most
        };
        let size = items.iter().take(count).take_while(fits).count().max(1);
        let (piece, rest) = items.split_at_checked(size)?;
        items = rest;
        Some(piece)
    })
}

/// What happens when the database refuses a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnRefusal {
    /// The transaction fails.
    Fail,
    /// The refused rows are found by halving the statement, each half under a savepoint, and are left out.
    LeaveOut,
}

/// Writes rows in as few statements as the database takes. Returns the rows it refuses, with the reason; none with
/// [`OnRefusal::Fail`].
pub(crate) async fn write_rows<'r, D: Dialect, R: Sync>(
    session: &mut SqlSession<'_, D>,
    rows: &'r [R],
    on_refusal: OnRefusal,
    weigh: impl Fn(&R) -> usize + Send + Sync,
    statement: impl Fn(&[R]) -> Statement<D> + Send + Sync,
) -> Result<Vec<(&'r R, StoreError)>, StoreError> {
    let mut refused = Vec::new();
    let mut pieces = session.dialect.pieces(rows, weigh);
    // Taken from the end.
    pieces.reverse();
    while let Some(piece) = pieces.pop() {
        if on_refusal == OnRefusal::Fail {
            session.execute(statement(piece)).await?;
            continue;
        }
        match session.execute_or_undo(statement(piece)).await {
            Ok(_) => {}
            Err(error @ StoreError::Refused { .. }) => match piece {
                [row] => refused.push((row, error)),
                _ => {
                    let (first, second) = piece.split_at(piece.len() / 2);
                    pieces.extend([second, first]);
                }
            },
            Err(error) => return Err(error),
        }
    }
    Ok(refused)
}

/// Assignments that give these columns the values of the row that an `INSERT` could not insert.
pub(crate) fn assignments<D: Dialect>(columns: &[&str]) -> String {
    let assign = |column: &&str| format!("{column}={}", D::inserted(column));
    columns.iter().map(assign).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mysql::MySql;
    use crate::postgres::Postgres;
    use crate::sqlite::Sqlite;

    #[test]
    fn parameters_are_spelled_as_the_database_has_them() {
        fn lock<D: Dialect>() -> String {
            Statement::<D>::new("SELECT name FROM t WHERE epoch = ? AND name ")
                .bind(1_i64)
                .one_of(&["a", "b"])
                .text(" AND uid = ?")
                .bind("u")
                .sql()
                .to_owned()
        }
        assert_eq!(lock::<MySql>(), "SELECT name FROM t WHERE epoch = ? AND name IN (?,?) AND uid = ?");
        assert_eq!(lock::<Postgres>(), "SELECT name FROM t WHERE epoch = $1 AND name = ANY($2) AND uid = $3");
    }

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

    fn sizes(weights: &[usize], most: usize) -> Vec<usize> {
        pieces(weights, |weight| *weight, most).map(<[usize]>::len).collect()
    }

    #[test]
    fn pieces_have_the_known_sizes() {
        assert_eq!(sizes(&[1; 340], usize::MAX / 1024), [256, 64, 8, 8, 1, 1, 1, 1]);
        assert_eq!(sizes(&[], 10), Vec::<usize>::new());
    }

    #[test]
    fn no_piece_is_too_heavy_but_a_single_row() {
        assert_eq!(sizes(&[1; 9], 7), [1; 9]);
        assert_eq!(sizes(&[1, 1, 1, 1, 1, 1, 1, 1, 99], 8), [8, 1]);
    }

    #[test]
    fn chunks_are_bounded_by_count_and_weight() {
        let sizes = |weights: &[usize]| {
            chunks(weights, |weight| *weight, 3, 10).map(<[usize]>::len).collect::<Vec<_>>()
        };
        assert_eq!(sizes(&[1; 7]), [3, 3, 1]);
        assert_eq!(sizes(&[6, 6, 99, 1]), [1, 1, 1, 1]);
        assert_eq!(sizes(&[]), [0; 0]);
    }
}
