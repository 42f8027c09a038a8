//! Servers without room for another row, and room again.
//!
//! MariaDB has one file for all tables, which may not grow; what fills it is given back in part, by a transaction that is
//! rolled back. PostgreSQL knows no such bound: there the file of the table is a link to `/dev/full`, to which every
//! write fails as on a full disk.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use sqlx::{AssertSqlSafe, Connection, MySqlConnection, PgConnection};

use super::databases::{Kind, Server};

/// How a MariaDB is started that can be filled.
pub(super) const SMALL_MARIADB: [&str; 2] =
    ["--innodb-data-file-path=ibdata1:12M", "--innodb-file-per-table=OFF"];
/// Lengths of the values that fill it, the last so short that no other row finds room either.
const FILLERS: [u32; 3] = [60_000, 6_000, 600];
/// How many of the longest are given back.
const ROOM: usize = 20;
/// Far more than 12 MB of them.
const MANY: usize = 2_000;
/// Whoever is connected has the file open as it was.
const RECONNECT: &str = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                         WHERE datname = current_database() AND pid <> pg_backend_pid()";

/// What keeps a server full.
#[derive(Debug)]
pub(crate) enum Filled {
    /// A transaction that is not committed. A full server cannot even drop a table.
    Rows(Box<MySqlConnection>),
    /// A link in the place of this file.
    Link(PathBuf),
}

impl Server {
    /// Takes the room for another row of a table, which has to be empty in PostgreSQL. The server is an
    /// [`super::databases::own_small`] one.
    ///
    /// # Errors
    ///
    /// It cannot be filled.
    pub(crate) async fn fill(&self, database: &str, table: &str) -> Result<Filled, String> {
        match self.kind() {
            Kind::MariaDb => {
                self.execute(database, "CREATE TABLE filler (filler LONGBLOB)").await?;
                let mut rows = MySqlConnection::connect(&self.url(database)).await.map_err(said)?;
                sqlx::raw_sql("BEGIN").execute(&mut rows).await.map_err(said)?;
                for _ in 0..ROOM {
                    insert(&mut rows, FILLERS[0]).await?;
                }
                let mut others = MySqlConnection::connect(&self.url(database)).await.map_err(said)?;
                for length in FILLERS {
                    insert_until_full(&mut others, length).await?;
                }
                Ok(Filled::Rows(Box::new(rows)))
            }
            Kind::PostgreSql => {
                let file = self.file_of(database, table).await?;
                let problem = |error: std::io::Error| format!("{}: {error}", file.display());
                if fs::metadata(&file).map_err(problem)?.len() != 0 {
                    return Err(format!("{} is not empty", file.display()));
                }
                fs::rename(&file, kept(&file)).and_then(|()| symlink("/dev/full", &file)).map_err(problem)?;
                self.execute(database, RECONNECT).await?;
                Ok(Filled::Link(file))
            }
        }
    }

    /// Gives the room back.
    ///
    /// # Errors
    ///
    /// It cannot be given back.
    pub(crate) async fn make_room(&self, database: &str, filled: Filled) -> Result<(), String> {
        match filled {
            Filled::Rows(mut rows) => {
                sqlx::raw_sql("ROLLBACK").execute(&mut *rows).await.map(drop).map_err(said)
            }
            Filled::Link(file) => {
                fs::rename(kept(&file), &file).map_err(|error| format!("{}: {error}", file.display()))?;
                self.execute(database, RECONNECT).await
            }
        }
    }

    /// The file of a table in PostgreSQL.
    async fn file_of(&self, database: &str, table: &str) -> Result<PathBuf, String> {
        let mut connection = PgConnection::connect(&self.url(database)).await.map_err(said)?;
        let question = AssertSqlSafe(format!("SELECT pg_relation_filepath('{table}')"));
        let path: String = sqlx::query_scalar(question).fetch_one(&mut connection).await.map_err(said)?;
        connection.close().await.map_err(said)?;
        Ok(self.data.join(path))
    }
}

async fn insert(connection: &mut MySqlConnection, length: u32) -> Result<(), String> {
    let insert = AssertSqlSafe(format!("INSERT INTO filler VALUES (REPEAT('x', {length}))"));
    sqlx::raw_sql(insert).execute(connection).await.map(drop).map_err(said)
}

/// Inserts values of this length until there is no room for one.
async fn insert_until_full(connection: &mut MySqlConnection, length: u32) -> Result<(), String> {
    for _ in 0..MANY {
        match insert(connection, length).await {
            Ok(()) => {}
            Err(full) if full.contains("is full") => return Ok(()),
            Err(other) => return Err(other),
        }
    }
    Err(format!("{MANY} values of {length} bytes do not fill it"))
}

/// Where the real file is meanwhile.
fn kept(file: &Path) -> PathBuf {
    file.with_extension("kept")
}

#[expect(clippy::needless_pass_by_value, reason = "`map_err` hands it over")]
fn said(error: sqlx::Error) -> String {
    error.to_string()
}
