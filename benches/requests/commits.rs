//! Bare commits: what each commit that an operation waits for costs at least. A connection of its own inserts a row as long as
//! an operation's into a table without an index but its key, in the database of the operator.

use std::time::{Duration, Instant};

use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection};

/// Length of a row, in bytes.
const ROW_BYTES: usize = 600;

/// The connection.
pub(crate) struct Commits {
    connection: PgConnection,
    rows: usize,
}

impl Commits {
    /// Connects, and creates the table.
    pub(crate) async fn new(url: &str) -> Result<Self, String> {
        let mut connection = PgConnection::connect(url).await.map_err(|e| e.to_string())?;
        let create = "DROP TABLE IF EXISTS bare_rows; CREATE TABLE bare_rows (id text PRIMARY KEY, row text)";
        sqlx::raw_sql(create).execute(&mut connection).await.map_err(|e| e.to_string())?;
        Ok(Self { connection, rows: 0 })
    }

    /// Commits so many rows, one after the other, and returns the time that it took.
    pub(crate) async fn commit(&mut self, many: usize) -> Result<Duration, String> {
        let begun = Instant::now();
        for _ in 0..many {
            self.rows += 1;
            let row = format!("INSERT INTO bare_rows VALUES ('{}', '{:ROW_BYTES$}')", self.rows, "");
            self.connection.execute(AssertSqlSafe(row)).await.map_err(|e| e.to_string())?;
        }
        Ok(begun.elapsed())
    }
}
