//! Bringing a schema up to date, and tables that somebody else left under our names. The same on every database.

use std::future::Future;

use sqlx::migrate::{Migrate, MigrateError, Migrator};

use super::accounts::ACCOUNTS;
use super::{StoreError, VendorTables};

/// Where sqlx keeps which steps were run.
pub(super) const HISTORY_TABLE: &str = "kubesvc_schema_migrations";

/// Sets up the steps of a folder. Each can be run again, and they are run under a lock of ours: sqlx's own is none on
/// MariaDB and SQLite.
pub(super) fn steps(mut steps: Migrator) -> Migrator {
    steps.dangerous_set_table_name(HISTORY_TABLE);
    steps.set_locking(false).set_ignore_missing(true);
    steps
}

/// The tables of this version, and the columns and the key without which one of them is not ours.
fn tables() -> [(&'static str, Vec<&'static str>, &'static [&'static str]); 5] {
    let accounts = ACCOUNTS.column_names().into_iter().chain(["namespaces", "last_updated"]).collect();
    [
        (ACCOUNTS.name, accounts, &["name"]),
        ("kubesvc_locks", vec!["name", "owner", "token", "expires_at"], &["name"]),
        ("kubesvc_meta", vec!["k", "v"], &["k"]),
        (
            "kubesvc_assignments",
            vec!["account_name", "agent_id", "cd_id", "connections", "caching", "reachable", "last_updated"],
            &["account_name", "agent_id", "cd_id"],
        ),
        (
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
    ]
}

/// Steps that add a column to the table of an earlier step: version, table, column. SQLite and MySQL cannot add one "if it
/// is not there", so whoever runs the steps looks.
const ADDED: [(i64, &str, &str); 1] = [(6, ACCOUNTS.name, "connections")];

/// A connection whose schema can be looked at and changed.
pub(super) trait Schema: Migrate {
    /// The names of a table's columns; none if there is no such table.
    fn columns_of(&mut self, table: &str) -> impl Future<Output = Result<Vec<String>, sqlx::Error>> + Send;

    /// Whether a table has a unique key of just these columns.
    fn has_key(
        &mut self,
        table: &str,
        columns: &[&str],
    ) -> impl Future<Output = Result<bool, sqlx::Error>> + Send;

    /// The steps that were run.
    fn applied(&mut self) -> impl Future<Output = Result<Vec<i64>, sqlx::Error>> + Send;

    /// Runs a statement whose text is ours alone.
    fn run(&mut self, sql: String) -> impl Future<Output = Result<(), sqlx::Error>> + Send;
}

/// The unique keys of a table from (key, column) pairs in the keys' order.
pub(super) fn has_key(pairs: &[(String, String)], columns: &[&str]) -> bool {
    pairs.chunk_by(|a, b| a.0 == b.0).any(|key| {
        key.len() == columns.len() && columns.iter().all(|column| key.iter().any(|(_, held)| held == column))
    })
}

/// Brings the schema up to date. It can be run any number of times, and goes on where an earlier run ended. The
/// caller holds a lock that keeps other processes from the same.
///
/// A table of another product under one of our names, which lacks columns or a key of ours, is renamed to
/// `NAME_vendor` and kept with all it holds, where that is asked for; else nothing is touched. A database that a newer version has changed is refused, except for one
/// step ahead: new steps only ever add, so that the version before can still run beside it.
pub(super) async fn migrate<C: Schema>(
    connection: &mut C,
    steps: &Migrator,
    place: &str,
    vendor: VendorTables,
    at_start: impl Fn(sqlx::Error) -> StoreError,
) -> Result<(), StoreError> {
    let mut applied: Vec<i64> = Vec::new();
    if !connection.columns_of(HISTORY_TABLE).await.map_err(&at_start)?.is_empty() {
        // A step that is half done: every step has one effect and looks whether it is there, so it is run again.
        let clean = format!("DELETE FROM {HISTORY_TABLE} WHERE NOT success");
        connection.run(clean).await.map_err(&at_start)?;
        applied = connection.applied().await.map_err(&at_start)?;
    }
    let known = steps.iter().map(|step| step.version).max().unwrap_or(0);
    let newest = applied.iter().copied().max().unwrap_or(0);
    if newest > known + 1 {
        return Err(StoreError::Unfit(format!(
            "the database {place} has schema {newest}, and this version of kubesvc knows {known}: start the newer \
             version of kubesvc, or give kubesvc.database.url another database"
        )));
    }
    let strangers = foreign_tables(connection, &applied, &at_start).await?;
    move_foreign_tables(connection, &strangers, place, vendor, &at_start).await?;
    note_added(connection, steps, &applied, place, &at_start).await?;
    steps.run_direct(None, connection, false).await.map_err(|error| failed(place, error, &at_start))?;
    for (table, mut wanted, key) in tables() {
        wanted.extend(ADDED.iter().filter(|(_, of, _)| *of == table).map(|(.., column)| column));
        if let Some(lack) = lack(connection, table, &wanted, key).await.map_err(&at_start)? {
            return Err(StoreError::Unfit(format!(
                "the database {place} has lost {lack} of table {table}: restore it from a backup, or start with an \
                 empty database, and kubesvc makes its accounts anew from the objects"
            )));
        }
    }
    Ok(())
}

/// Enters steps of [`ADDED`] into the history whose column is there without an entry: a process died between the two, or
/// the history was lost. It comes after the tables of others have gone, for they may have such a column too.
async fn note_added<C: Schema>(
    connection: &mut C,
    steps: &Migrator,
    applied: &[i64],
    place: &str,
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
            entered.await.map_err(|error| failed(place, error, &at_start))?;
        }
    }
    Ok(())
}

/// What a table lacks to be ours; none if nothing.
async fn lack<C: Schema>(
    connection: &mut C,
    table: &str,
    wanted: &[&str],
    key: &[&str],
) -> Result<Option<String>, sqlx::Error> {
    let held = connection.columns_of(table).await?;
    if let Some(missing) = wanted.iter().find(|column| !held.iter().any(|held| held == *column)) {
        return Ok(Some(format!("column {missing}")));
    }
    if connection.has_key(table, key).await? {
        return Ok(None);
    }
    Ok(Some(format!("the unique key ({})", key.join(", "))))
}

/// The tables that stand there before their step was run, and are not ours: somebody else made them.
async fn foreign_tables<C: Schema>(
    connection: &mut C,
    applied: &[i64],
    at_start: impl Fn(sqlx::Error) -> StoreError,
) -> Result<Vec<&'static str>, StoreError> {
    let mut strangers = Vec::new();
    for (step, (table, wanted, key)) in (1..).zip(tables()) {
        let stands = !connection.columns_of(table).await.map_err(&at_start)?.is_empty();
        if !applied.contains(&step)
            && stands
            && lack(connection, table, &wanted, key).await.map_err(&at_start)?.is_some()
        {
            strangers.push(table);
        }
    }
    Ok(strangers)
}

async fn move_foreign_tables<C: Schema>(
    connection: &mut C,
    strangers: &[&str],
    place: &str,
    vendor: VendorTables,
    at_start: impl Fn(sqlx::Error) -> StoreError,
) -> Result<(), StoreError> {
    if !strangers.is_empty() && vendor == VendorTables::Refuse {
        let renamed: Vec<_> = strangers.iter().map(|table| format!("{table} to {table}_vendor")).collect();
        return Err(StoreError::Unfit(format!(
            "the database {place} holds tables that are not kubesvc's, and nothing of it was touched: set \
             kubesvc.database.takeOver: true, and these are renamed and kept: {}; or give kubesvc.database.url another \
             database",
            renamed.join(", ")
        )));
    }
    for table in strangers {
        let kept = format!("{table}_vendor");
        if !connection.columns_of(&kept).await.map_err(&at_start)?.is_empty() {
            return Err(StoreError::Unfit(format!(
                "the database {place} holds a table {table} that is not kubesvc's, and {kept} is taken: rename or \
                 drop one of them"
            )));
        }
        connection.run(format!("ALTER TABLE {table} RENAME TO {kept}")).await.map_err(&at_start)?;
        tracing::warn!(table, kept, "a table that is not kubesvc's stood under this name; it was renamed");
    }
    Ok(())
}

fn failed(place: &str, error: MigrateError, at_start: impl Fn(sqlx::Error) -> StoreError) -> StoreError {
    match error {
        MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _) => at_start(error),
        MigrateError::VersionMismatch(version) => StoreError::Unfit(format!(
            "step {version} of the schema of {place} is not the one this version of kubesvc knows: start the version \
             that made it, or give kubesvc.database.url another database"
        )),
        error => StoreError::Unfit(format!("the schema of {place} cannot be brought up to date: {error}")),
    }
}
