//! Schema migrations, and foreign tables under kubesvc's names. The same code for every database.

use std::future::Future;

use sqlx::migrate::{Migrate, MigrateError, Migration, MigrationType, Migrator};
use sqlx::{AssertSqlSafe, SqlSafeStr as _};

use super::accounts::ACCOUNTS;
use super::cache::OBJECTS;
use super::cache::relations::RELATIONS;
use super::cache::scopes::SCOPES;
use kubesvc_core::Installation;

use super::error::{DatabaseError, SqlFault};
use super::installation;
use super::operations::rows::{HISTORY, OPEN};
use super::sql::statement::SqlTable;
use super::{OpenOptions, StoreError, VendorTables};

/// The table in which sqlx records the applied migrations.
pub(super) const HISTORY_TABLE: &str = "kubesvc_schema_migrations";

/// The migrations of one folder of `migrations`, in order. Every folder has the same.
macro_rules! steps {
    ($folder:literal) => {
        $crate::migrations::steps!(
            $folder: "0001_accounts" "0002_locks" "0003_meta" "0004_assignments" "0005_caching" "0006_connections"
                "0007_cache" "0008_cache_rel" "0009_resourceversion" "0010_ops" "0011_ops_history" "0012_installation"
                "0013_ops_warnings"
        )
    };
    ($folder:literal: $($name:literal)+) => {
        $crate::migrations::migrator(&[$((
            $name,
            include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../migrations/", $folder, "/", $name, ".sql")),
        )),+])
    };
}
pub(super) use steps;

/// Makes migrations of names (`VERSION_DESCRIPTION`) and statements. Each can run again. They run under a lock taken by
/// the caller, because sqlx's own lock does nothing on MariaDB and SQLite.
pub(super) fn migrator(files: &[(&'static str, &'static str)]) -> Migrator {
    let migrations = files.iter().map(|(name, sql)| {
        let (version, description) = name.split_once('_').expect("names are listed above");
        let version = version.parse().expect("names are listed above");
        let sql = AssertSqlSafe(*sql).into_sql_str();
        Migration::new(version, description.into(), MigrationType::Simple, sql, false)
    });
    let mut steps = Migrator::with_migrations(migrations.collect());
    steps.dangerous_set_table_name(HISTORY_TABLE);
    steps.set_locking(false).set_ignore_missing(true);
    steps
}

/// A table: the migration that creates it, and the columns of that one and the unique key that identify it as kubesvc's.
struct OwnTable {
    version: i64,
    name: &'static str,
    columns: Vec<&'static str>,
    key: &'static [&'static str],
}

/// The tables of this version.
fn tables() -> [OwnTable; 11] {
    let table = |version, name, columns, key| OwnTable { version, name, columns, key };
    let with = |of: &SqlTable, more: &[&'static str]| {
        let is_added =
            |column: &&str| ADDED.iter().any(|(_, table, added)| (*table, added) == (of.name, column));
        let columns = of.column_names().into_iter().filter(|column| !is_added(column));
        columns.chain(more.iter().copied()).collect::<Vec<_>>()
    };
    [
        table(1, ACCOUNTS.name, with(&ACCOUNTS, &["namespaces", "last_updated"]), ACCOUNTS.key),
        table(2, "kubesvc_locks", vec!["name", "owner", "token", "expires_at"], &["name"]),
        table(3, "kubesvc_meta", vec!["k", "v"], &["k"]),
        table(
            4,
            "kubesvc_assignments",
            vec!["account_name", "agent_id", "cd_id", "connections", "caching", "reachable", "last_updated"],
            &["account_name", "agent_id", "cd_id"],
        ),
        table(
            5,
            "kubesvc_caching",
            vec![
                "account_uid",
                "account",
                "epoch",
                "agent_id",
                "boot_id",
                "replica_id",
                "committed_seq",
                "last_updated",
            ],
            &["account_uid"],
        ),
        table(7, OBJECTS.name, with(&OBJECTS, &["last_updated"]), OBJECTS.key),
        table(8, RELATIONS.name, with(&RELATIONS, &["last_updated"]), RELATIONS.key),
        table(9, SCOPES.name, with(&SCOPES, &[]), SCOPES.key),
        table(10, OPEN.name, with(&OPEN, &[]), OPEN.key),
        table(11, HISTORY.name, with(&HISTORY, &[]), HISTORY.key),
        table(12, installation::TABLE, vec!["id", "namespace_uid", "namespace", "claimed_at"], &["id"]),
    ]
}

/// Migrations that add a column to the table of an earlier one: version, table, column. SQLite and MySQL have no `ADD
/// COLUMN IF NOT EXISTS`, so [`note_added`] checks.
const ADDED: [(i64, &str, &str); 2] = [(6, ACCOUNTS.name, "connections"), (13, HISTORY.name, "warnings")];

/// A connection whose schema can be inspected and changed.
pub(super) trait Schema: Migrate {
    /// Names of a table's columns; empty if there is no such table.
    fn columns_of(&mut self, table: &str) -> impl Future<Output = Result<Vec<String>, sqlx::Error>> + Send;

    /// Whether a table has a unique key of exactly these columns.
    fn has_key(
        &mut self,
        table: &str,
        columns: &[&str],
    ) -> impl Future<Output = Result<bool, sqlx::Error>> + Send;

    /// Whether another process has begun a migration, so lately that it may still be at it.
    ///
    /// The lock is no proof that none does: Galera and group replication take it on one node only. Databases whose
    /// migrations are transactions show none.
    fn is_migrated_by_another(&mut self) -> impl Future<Output = Result<bool, sqlx::Error>> + Send {
        async { Ok(false) }
    }

    /// Versions of the migrations that were applied.
    fn applied(&mut self) -> impl Future<Output = Result<Vec<i64>, sqlx::Error>> + Send;

    /// Runs a statement whose text contains no outside input.
    fn run(&mut self, sql: String) -> impl Future<Output = Result<(), sqlx::Error>> + Send;

    /// The row of `kubesvc_installation`, if there is one.
    fn owner(&mut self) -> impl Future<Output = Result<Option<Installation>, sqlx::Error>> + Send;

    /// Inserts the row of `kubesvc_installation`.
    fn set_owner(
        &mut self,
        owner: &Installation,
        claimed_at: i64,
    ) -> impl Future<Output = Result<(), sqlx::Error>> + Send;
}

/// Whether a table has a unique key of exactly these columns; `pairs` are (key, column), sorted by key.
pub(super) fn has_key(pairs: &[(String, String)], columns: &[&str]) -> bool {
    pairs.chunk_by(|a, b| a.0 == b.0).any(|key| {
        key.len() == columns.len() && columns.iter().all(|column| key.iter().any(|(_, held)| held == column))
    })
}

/// Migrates the schema to the current version. Can run any number of times, and continues where an earlier run ended.
/// The caller holds a lock that keeps other processes from migrating.
///
/// A database of another installation is not changed, unless it is claimed. A foreign table under one of kubesvc's names (it lacks a column or key of kubesvc's) is renamed to `NAME_vendor`
/// with all its data if `vendor` says so; otherwise nothing is changed. A database migrated by a newer version is
/// refused, except for one step ahead: migrations only add, so the previous version can run beside the new one.
pub(super) async fn migrate<C: Schema>(
    connection: &mut C,
    steps: &Migrator,
    database: &str,
    options: &OpenOptions,
    at_start: impl Fn(sqlx::Error) -> StoreError,
) -> Result<(), StoreError> {
    let owner = installation::check(connection, database, options, &at_start).await?;
    let mut applied: Vec<i64> = Vec::new();
    if !connection.columns_of(HISTORY_TABLE).await.map_err(&at_start)?.is_empty() {
        if connection.is_migrated_by_another().await.map_err(&at_start)? {
            return Err(in_progress(None));
        }
        // A migration that did not finish is run again: each has one effect and checks whether it is already there.
        let clean = format!("DELETE FROM {HISTORY_TABLE} WHERE NOT success");
        connection.run(clean).await.map_err(&at_start)?;
        applied = connection.applied().await.map_err(&at_start)?;
    }
    let known = steps.iter().map(|step| step.version).max().unwrap_or(0);
    let newest = applied.iter().copied().max().unwrap_or(0);
    if newest > known + 1 {
        return Err(StoreError::Unfit(format!(
            "the database {database} has schema {newest}, and this version of kubesvc knows {known}: start the newer \
             version of kubesvc, or give kubesvc.database.url another database"
        )));
    }
    let foreign = foreign_tables(connection, &applied, &at_start).await?;
    move_foreign_tables(connection, &foreign, database, options.vendor, &at_start).await?;
    note_added(connection, steps, &applied, database, &at_start).await?;
    steps.run_direct(None, connection, false).await.map_err(|error| failed(database, error, &at_start))?;
    for mut table in tables() {
        table.columns.extend(ADDED.iter().filter(|(_, of, _)| *of == table.name).map(|(.., column)| column));
        if let Some(lack) = lack(connection, &table).await.map_err(&at_start)? {
            let name = table.name;
            return Err(StoreError::Unfit(format!(
                "the database {database} has lost {lack} of table {name}: restore it from a backup, or start with an \
                 empty database, and kubesvc makes its accounts anew from the objects"
            )));
        }
    }
    installation::claim(connection, owner, options, &at_start).await
}

/// Records migrations of [`ADDED`] whose column exists without a record, because a process died in between or the
/// history was lost. Runs after foreign tables were renamed, since those may have such a column too.
async fn note_added<C: Schema>(
    connection: &mut C,
    steps: &Migrator,
    applied: &[i64],
    database: &str,
    at_start: impl Fn(sqlx::Error) -> StoreError,
) -> Result<(), StoreError> {
    for (version, table, column) in ADDED {
        let is_there = async |connection: &mut C| {
            connection.columns_of(table).await.map(|held| held.iter().any(|held| held == column))
        };
        if applied.contains(&version) || !is_there(connection).await.map_err(&at_start)? {
            continue;
        }
        if let Some(step) = steps.iter().find(|step| step.version == version) {
            let entered = async {
                connection.ensure_migrations_table(HISTORY_TABLE).await?;
                connection.skip(HISTORY_TABLE, step).await
            };
            entered.await.map_err(|error| failed(database, error, &at_start))?;
        }
    }
    Ok(())
}

/// Returns what a table lacks to be kubesvc's; `None` if nothing.
async fn lack<C: Schema>(connection: &mut C, table: &OwnTable) -> Result<Option<String>, sqlx::Error> {
    let held = connection.columns_of(table.name).await?;
    if let Some(missing) = table.columns.iter().find(|column| !held.iter().any(|held| held == *column)) {
        return Ok(Some(format!("column {missing}")));
    }
    if connection.has_key(table.name, table.key).await? {
        return Ok(None);
    }
    Ok(Some(format!("the unique key ({})", table.key.join(", "))))
}

/// Tables that existed before their migration ran and are not kubesvc's.
async fn foreign_tables<C: Schema>(
    connection: &mut C,
    applied: &[i64],
    at_start: impl Fn(sqlx::Error) -> StoreError,
) -> Result<Vec<&'static str>, StoreError> {
    let mut foreign = Vec::new();
    for table in tables() {
        let stands = !connection.columns_of(table.name).await.map_err(&at_start)?.is_empty();
        if !applied.contains(&table.version)
            && stands
            && lack(connection, &table).await.map_err(&at_start)?.is_some()
        {
            foreign.push(table.name);
        }
    }
    Ok(foreign)
}

async fn move_foreign_tables<C: Schema>(
    connection: &mut C,
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
        if !connection.columns_of(&kept).await.map_err(&at_start)?.is_empty() {
            return Err(StoreError::Unfit(format!(
                "the database {database} holds a table {table} that is not kubesvc's, and {kept} is taken: rename or \
                 drop one of them"
            )));
        }
        connection.run(format!("ALTER TABLE {table} RENAME TO {kept}")).await.map_err(&at_start)?;
        tracing::warn!(table, kept, "renamed a table that is not kubesvc's");
    }
    Ok(())
}

/// The error of a migration that another process has begun. It passes: the process finishes, or its migration is old enough
/// to be run again.
pub(super) fn in_progress(source: Option<sqlx::Error>) -> StoreError {
    let what = "another process migrates the schema (table kubesvc_schema_migrations); waiting for it";
    DatabaseError::unavailable(SqlFault::Busy, what, source)
}

fn failed(database: &str, error: MigrateError, at_start: impl Fn(sqlx::Error) -> StoreError) -> StoreError {
    match error {
        MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _) => at_start(error),
        // Begun by another process since this one looked.
        MigrateError::Dirty(_) => in_progress(None),
        MigrateError::VersionMismatch(version) => StoreError::Unfit(format!(
            "step {version} of the schema of {database} is not the one this version of kubesvc knows: start the version \
             that made it, or give kubesvc.database.url another database"
        )),
        error => StoreError::Unfit(format!("the schema of {database} cannot be brought up to date: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    #[test]
    fn every_file_of_the_folders_is_a_migration() {
        let folders =
            [("sqlite", steps!("sqlite")), ("mysql", steps!("mysql")), ("postgres", steps!("postgres"))];
        for (folder, steps) in folders {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../migrations").join(folder);
            let mut files: Vec<_> = std::fs::read_dir(path)
                .expect("the folder can be read")
                .map(|file| file.expect("it can be listed").file_name().into_string().expect("UTF-8"))
                .collect();
            files.sort_unstable();
            let known: Vec<_> =
                steps.iter().map(|step| format!("{:04}_{}.sql", step.version, step.description)).collect();
            assert_eq!(known, files, "{folder}");
        }
    }
}
