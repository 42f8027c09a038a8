//! Schema migrations, foreign tables under kubesvc's names, and the installation that owns a database. The same code for
//! every database.

use futures::TryStreamExt as _;
use sqlx::migrate::{Migrate, MigrateError, Migration, MigrationType, Migrator};
use sqlx::{AssertSqlSafe, SqlSafeStr as _};

use super::accounts::ACCOUNTS;
use super::cache::OBJECTS;
use super::cache::relations::RELATIONS;
use super::cache::scopes::SCOPES;
use super::dialect::Dialect;
use super::error::SqlFault;
use super::intents::INTENTS;
use super::operations::rows::{HISTORY, OPEN};
use super::pushed::PUSHED;
use super::sql::ConnectionOf;
use super::sql::columns::FromColumns;
use super::sql::driver::Driver as _;
use super::sql::statement::{SqlTable, Statement};
use super::{OpenOptions, StoreError, VendorTables};
use kubesvc_core::Installation;

mod foreign_tables;

use foreign_tables::{ASSIGNMENTS, check_vendor_stopped, foreign_tables, move_foreign_tables};

/// The table in which sqlx records the applied migrations.
const HISTORY_TABLE: &str = "kubesvc_schema_migrations";

/// The migrations of one folder of `migrations`, in order. Every folder has the same.
macro_rules! steps {
    ($folder:literal) => {
        $crate::migrations::steps!(
            $folder: "0001_accounts" "0002_locks" "0003_meta" "0004_assignments" "0005_caching" "0006_connections"
                "0007_cache" "0008_cache_rel" "0009_resourceversion" "0010_ops" "0011_ops_history" "0012_installation"
                "0013_ops_warnings" "0014_pushed" "0015_intents"
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
fn tables() -> [OwnTable; 13] {
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
            ASSIGNMENTS,
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
        table(12, INSTALLATION_TABLE, vec!["id", "namespace_uid", "namespace", "claimed_at"], &["id"]),
        table(14, PUSHED.name, with(&PUSHED, &["last_updated"]), PUSHED.key),
        table(15, INTENTS.name, with(&INTENTS, &[]), INTENTS.key),
    ]
}

/// Migrations that add a column to the table of an earlier one: version, table, column. SQLite and MySQL have no `ADD
/// COLUMN IF NOT EXISTS`, so [`note_added`] checks.
const ADDED: [(i64, &str, &str); 2] = [(6, ACCOUNTS.name, "connections"), (13, HISTORY.name, "warnings")];

/// Runs a statement, without the time limit of one that a caller waits for.
async fn run<D: Dialect>(
    connection: &mut ConnectionOf<D>,
    statement: Statement<D>,
) -> Result<(), sqlx::Error> {
    let (sql, arguments) = statement.into_parts()?;
    D::Database::execute(connection, sql, arguments).await.map(drop)
}

/// Reads all rows of a result, without the time limit of one that a caller waits for.
async fn select<D: Dialect, T: FromColumns>(
    connection: &mut ConnectionOf<D>,
    statement: Statement<D>,
) -> Result<Vec<T>, sqlx::Error> {
    let (sql, arguments) = statement.into_parts()?;
    let rows: Vec<_> = D::Database::fetch(connection, sql, arguments).try_collect().await?;
    rows.iter().map(T::from_columns::<D::Database>).collect()
}

async fn columns_of<D: Dialect>(
    connection: &mut ConnectionOf<D>,
    table: &str,
) -> Result<Vec<String>, sqlx::Error> {
    select::<D, _>(connection, Statement::new(D::COLUMNS_OF).bind(table)).await
}

/// Whether a table has a unique key of exactly these columns.
async fn has_key<D: Dialect>(
    connection: &mut ConnectionOf<D>,
    table: &str,
    columns: &[&str],
) -> Result<bool, sqlx::Error> {
    let pairs = Statement::new(D::KEYS_OF).bind(table);
    let pairs: Vec<(String, String)> = select::<D, _>(connection, pairs).await?;
    Ok(pairs.chunk_by(|a, b| a.0 == b.0).any(|key| {
        key.len() == columns.len() && columns.iter().all(|column| key.iter().any(|(_, held)| held == column))
    }))
}

/// Migrates the schema to the current version. Can run any number of times, and continues where an earlier run ended.
/// The caller holds a lock that keeps other processes from migrating.
///
/// A database of another installation is not changed, unless it is claimed. A foreign table under one of kubesvc's
/// names (it lacks a column or key of kubesvc's) is renamed to `NAME_vendor` with all its data if `vendor` says so;
/// otherwise nothing is changed. A database migrated by a newer version is refused, except for one step ahead:
/// migrations only add, so the previous version can run beside the new one.
pub(super) async fn migrate<D: Dialect>(
    connection: &mut ConnectionOf<D>,
    steps: &Migrator,
    database: &str,
    options: &OpenOptions,
    at_start: impl Fn(sqlx::Error) -> StoreError,
) -> Result<(), StoreError> {
    let owner = check_owner::<D>(connection, database, options, &at_start).await?;
    let mut applied: Vec<i64> = Vec::new();
    if !columns_of::<D>(connection, HISTORY_TABLE).await.map_err(&at_start)?.is_empty() {
        if let Some(count) = D::COUNT_OTHERS_MIGRATIONS {
            let begun = select::<D, i64>(connection, Statement::new(count)).await.map_err(&at_start)?;
            if begun.iter().any(|begun| *begun > 0) {
                return Err(in_progress(None));
            }
        }
        // A migration that did not finish is run again: each has one effect and checks whether it is already there.
        let clean = Statement::new(&format!("DELETE FROM {HISTORY_TABLE} WHERE NOT success"));
        run::<D>(connection, clean).await.map_err(&at_start)?;
        let versions = Statement::new(&format!("SELECT version FROM {HISTORY_TABLE}"));
        applied = select::<D, _>(connection, versions).await.map_err(&at_start)?;
    }
    let known = steps.iter().map(|step| step.version).max().unwrap_or(0);
    let newest = applied.iter().copied().max().unwrap_or(0);
    if newest > known + 1 {
        return Err(StoreError::Unfit(format!(
            "the database {database} has schema {newest}, and this version of kubesvc knows {known}: start the newer \
             version of kubesvc, or give kubesvc.database.url another database"
        )));
    }
    let foreign = foreign_tables::<D>(connection, &applied, &at_start).await?;
    if options.vendor == VendorTables::Rename {
        check_vendor_stopped::<D>(connection, &foreign, database, &at_start).await?;
    }
    move_foreign_tables::<D>(connection, &foreign, database, options.vendor, &at_start).await?;
    note_added::<D>(connection, steps, &applied, database, &at_start).await?;
    steps.run_direct(None, connection, false).await.map_err(|error| failed(database, error, &at_start))?;
    for mut table in tables() {
        table.columns.extend(ADDED.iter().filter(|(_, of, _)| *of == table.name).map(|(.., column)| column));
        if let Some(lack) = lack::<D>(connection, &table).await.map_err(&at_start)? {
            let name = table.name;
            return Err(StoreError::Unfit(format!(
                "the database {database} has lost {lack} of table {name}: restore it from a backup, or start with an \
                 empty database, and kubesvc makes its accounts anew from the objects"
            )));
        }
    }
    claim::<D>(connection, owner, options, &at_start).await
}

/// Records migrations of [`ADDED`] whose column exists without a record, because a process died in between or the
/// history was lost. Runs after foreign tables were renamed, since those may have such a column too.
async fn note_added<D: Dialect>(
    connection: &mut ConnectionOf<D>,
    steps: &Migrator,
    applied: &[i64],
    database: &str,
    at_start: impl Fn(sqlx::Error) -> StoreError,
) -> Result<(), StoreError> {
    for (version, table, column) in ADDED {
        let held = columns_of::<D>(connection, table).await.map_err(&at_start)?;
        if applied.contains(&version) || !held.iter().any(|held| held == column) {
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
async fn lack<D: Dialect>(
    connection: &mut ConnectionOf<D>,
    table: &OwnTable,
) -> Result<Option<String>, sqlx::Error> {
    let held = columns_of::<D>(connection, table.name).await?;
    if let Some(missing) = table.columns.iter().find(|column| !held.iter().any(|held| held == *column)) {
        return Ok(Some(format!("column {missing}")));
    }
    if has_key::<D>(connection, table.name, table.key).await? {
        return Ok(None);
    }
    Ok(Some(format!("the unique key ({})", table.key.join(", "))))
}

/// The error of a migration that another process has begun. It passes: the process finishes, or its migration is old enough
/// to be run again.
pub(super) fn in_progress(source: Option<sqlx::Error>) -> StoreError {
    let what = "another process migrates the schema (table kubesvc_schema_migrations); waiting for it";
    StoreError::of_fault(SqlFault::Busy, what, source)
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

/// The table with the installation that owns the database. Two installations on one database would each remove the rows
/// of the other.
const INSTALLATION_TABLE: &str = "kubesvc_installation";

/// The installation that opens a database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstallationClaim {
    /// The installation.
    pub by: Installation,
    /// Whether the database becomes its own if it is that of another one.
    pub replaces: bool,
}

/// Returns the owner of the database.
///
/// # Errors
/// [`StoreError::Claimed`] if that is another installation than the one that opens it.
async fn check_owner<D: Dialect>(
    connection: &mut ConnectionOf<D>,
    database: &str,
    options: &OpenOptions,
    at_start: impl Fn(sqlx::Error) -> StoreError,
) -> Result<Option<Installation>, StoreError> {
    // An older version has no such table.
    if columns_of::<D>(connection, INSTALLATION_TABLE).await.map_err(&at_start)?.is_empty() {
        return Ok(None);
    }
    let owner =
        Statement::new(&format!("SELECT namespace_uid, namespace FROM {INSTALLATION_TABLE} WHERE id = 1"));
    let owner = select::<D, (String, String)>(connection, owner).await.map_err(&at_start)?.pop();
    let owner = owner.map(|(uid, namespace)| Installation { namespace, uid });
    match (&owner, &options.claim) {
        (Some(owner), Some(claim)) if owner.uid != claim.by.uid && !claim.replaces => {
            Err(StoreError::Claimed { database: database.to_owned(), owner: owner.clone() })
        }
        _ => Ok(owner),
    }
}

/// Records the installation that opens the database as its owner.
async fn claim<D: Dialect>(
    connection: &mut ConnectionOf<D>,
    owner: Option<Installation>,
    options: &OpenOptions,
    at_start: impl Fn(sqlx::Error) -> StoreError,
) -> Result<(), StoreError> {
    let Some(claim) = &options.claim else { return Ok(()) };
    match owner {
        Some(owner) if owner == claim.by => return Ok(()),
        Some(_) => {
            run::<D>(connection, Statement::new(&format!("DELETE FROM {INSTALLATION_TABLE}")))
                .await
                .map_err(&at_start)?;
        }
        None => {}
    }
    let columns = "id, namespace_uid, namespace, claimed_at";
    let insert = Statement::new(&format!("INSERT INTO {INSTALLATION_TABLE} ({columns}) VALUES (1, ?, ?, ?)"));
    let insert = insert.bind(&claim.by.uid).bind(&claim.by.namespace).bind(super::now());
    run::<D>(connection, insert).await.map_err(&at_start)
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
