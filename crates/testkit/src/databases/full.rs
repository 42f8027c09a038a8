//! Database servers without space for another row, and with space again.
//!
//! MariaDB keeps all tables in two files of fixed size, the first of which is as it was installed; part of what fills it is released by rolling back a
//! transaction. PostgreSQL has no such limit: the file of the table is replaced by a link to `/dev/full`, where every
//! write fails as on a full disk.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use sqlx::{AssertSqlSafe, Connection, MySqlConnection, PgConnection};

use super::{Kind, Server};

/// Flags of a MariaDB server that can be filled.
pub(super) const SMALL_MARIADB: [&str; 2] =
    ["--innodb-data-file-path=ibdata1:12M;ibdata2:20M", "--innodb-file-per-table=OFF"];
/// Lengths of the values that fill it. The last is so short that no other row fits.
const FILLERS: [u32; 3] = [60_000, 6_000, 600];
/// Number of the longest values that are released: some 16 MB. MariaDB hands out extents of 1 MiB, of which only those
/// that are free as a whole are of use to other tables, and keeps some of them for itself.
const ROOM: usize = 250;
/// Maximum number of values of one length, far more than 32 MB hold.
const MANY: usize = 2_000;
/// Clients that are connected still have the original file open.
const RECONNECT: &str = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                         WHERE datname = current_database() AND pid <> pg_backend_pid()";

/// Keeps a server full.
#[derive(Debug)]
pub enum Filled {
    /// An uncommitted transaction, because a full server cannot even drop a table.
    Rows(Box<MySqlConnection>),
    /// A link in place of this file.
    Link(PathBuf),
}

impl Server {
    /// Uses up the space for another row of a table, which must be empty in PostgreSQL. The server must be an
    /// [`super::own_small`] one.
    ///
    /// # Errors
    ///
    /// The server cannot be filled.
    pub async fn fill(&self, database: &str, table: &str) -> Result<Filled, String> {
        match self.kind() {
            Kind::MariaDb => {
                self.execute(database, "CREATE TABLE filler (filler LONGBLOB)").await?;
                let mut rows = MySqlConnection::connect(&self.url(database)).await.map_err(said)?;
                sqlx::raw_sql("BEGIN").execute(&mut rows).await.map_err(said)?;
                for _ in 0..ROOM {
                    insert(&mut rows, FILLERS[0]).await?;
                }
                let mut others = MySqlConnection::connect(&self.url(database)).await.map_err(said)?;
                // What a failed statement had allocated is released a moment later, so one pass is not enough.
                while fill_once(&mut others).await? > 0 {}
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

    /// Releases the space.
    ///
    /// # Errors
    ///
    /// The space cannot be released.
    pub async fn make_room(&self, database: &str, filled: Filled) -> Result<(), String> {
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

    /// Returns the file of a table in PostgreSQL.
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

/// Inserts values of each length until none fits, and returns how many did.
async fn fill_once(connection: &mut MySqlConnection) -> Result<usize, String> {
    let mut inserted = 0;
    for length in FILLERS {
        inserted += insert_until_full(connection, length).await?;
    }
    Ok(inserted)
}

/// Inserts values of this length until none fits, and returns how many did.
async fn insert_until_full(connection: &mut MySqlConnection, length: u32) -> Result<usize, String> {
    for inserted in 0..MANY {
        match insert(connection, length).await {
            Ok(()) => {}
            Err(full) if full.contains("is full") => return Ok(inserted),
            Err(other) => return Err(other),
        }
    }
    Err(format!("{MANY} values of {length} bytes do not fill it"))
}

/// Returns the path where the original file is kept meanwhile.
fn kept(file: &Path) -> PathBuf {
    file.with_extension("kept")
}

#[expect(clippy::needless_pass_by_value, reason = "`map_err` hands it over")]
fn said(error: sqlx::Error) -> String {
    error.to_string()
}
