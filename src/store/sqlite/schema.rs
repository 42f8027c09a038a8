//! The schema: its migrations, and tables that somebody else left under our names.

use std::path::Path;
use std::sync::LazyLock;

use sqlx::migrate::{MigrateError, Migrator};
use sqlx::sqlite::{SqliteConnection, SqlitePool};

use super::{accounts, errors};
use crate::store::StoreError;

const HISTORY: &str = "kubesvc_schema_migrations";

/// Each migration is one transaction, together with its entry in the history. They hold no lock of their own: the
/// lock file is held by now.
static MIGRATIONS: LazyLock<Migrator> = LazyLock::new(|| {
    let mut migrations = sqlx::migrate!("migrations/sqlite");
    migrations.dangerous_set_table_name(HISTORY);
    migrations.set_locking(false).set_ignore_missing(true);
    migrations
});

/// The tables of this version, and the columns without which one of them is not ours.
fn tables() -> [(&'static str, Vec<&'static str>); 3] {
    [
        (accounts::TABLE, accounts::columns().collect()),
        ("kubesvc_locks", vec!["name", "owner", "token", "expires_at"]),
        ("kubesvc_meta", vec!["k", "v"]),
    ]
}

/// Brings the schema up to date. It can be run any number of times, and goes on where an earlier run ended.
///
/// A table of another product under one of our names, which lacks columns of ours, is renamed to `NAME_vendor` and
/// kept with all it holds. A database that a newer version has changed is refused, except for one step ahead: new
/// steps only ever add, so that the version before can still run beside it.
pub(super) async fn migrate(pool: &SqlitePool, path: &Path) -> Result<(), StoreError> {
    let at_start = |error| errors::at_start(path, error);
    let mut connection = pool.acquire().await.map_err(at_start)?;
    let has_history = !accounts::columns_of(&mut connection, HISTORY).await.map_err(at_start)?.is_empty();
    let mut applied: Vec<i64> = Vec::new();
    if has_history {
        // Only a hand can have left a step that is half done: in SQLite a step is one transaction. Every step can be
        // run again.
        sqlx::query("DELETE FROM kubesvc_schema_migrations WHERE success = 0")
            .execute(&mut *connection)
            .await
            .map_err(at_start)?;
        applied = sqlx::query_scalar("SELECT version FROM kubesvc_schema_migrations")
            .fetch_all(&mut *connection)
            .await
            .map_err(at_start)?;
    }
    let known = MIGRATIONS.iter().map(|step| step.version).max().unwrap_or(0);
    let newest = applied.iter().copied().max().unwrap_or(0);
    if newest > known + 1 {
        return Err(StoreError::Unfit(format!(
            "the database {} has schema {newest}, and this version of kubesvc knows {known}: start the newer \
             version of kubesvc, or give kubesvc.database.url another path",
            path.display()
        )));
    }
    if applied.is_empty() {
        move_strangers(&mut connection, path).await?;
    }
    MIGRATIONS.run_direct(None, &mut *connection, false).await.map_err(|error| failed(path, error))?;
    for (table, wanted) in tables() {
        let held = accounts::columns_of(&mut connection, table).await.map_err(at_start)?;
        if let Some(missing) = wanted.iter().find(|column| !held.iter().any(|held| held == *column)) {
            return Err(StoreError::Unfit(format!(
                "the database {} has lost column {missing} of table {table}: restore it from a backup, or move the \
                 file away, and kubesvc makes its accounts anew from the objects",
                path.display()
            )));
        }
    }
    Ok(())
}

async fn move_strangers(connection: &mut SqliteConnection, path: &Path) -> Result<(), StoreError> {
    let at_start = |error| errors::at_start(path, error);
    for (table, wanted) in tables() {
        let held = accounts::columns_of(connection, table).await.map_err(at_start)?;
        if held.is_empty() || wanted.iter().all(|column| held.iter().any(|held| held == column)) {
            continue;
        }
        let kept = format!("{table}_vendor");
        if !accounts::columns_of(connection, &kept).await.map_err(at_start)?.is_empty() {
            return Err(StoreError::Unfit(format!(
                "the database {} holds a table {table} that is not kubesvc's, and {kept} is taken: rename or drop one \
                 of them",
                path.display()
            )));
        }
        accounts::rename(connection, table, &kept).await.map_err(at_start)?;
        tracing::warn!(table, kept, "a table that is not kubesvc's stood under this name; it was renamed");
    }
    Ok(())
}

fn failed(path: &Path, error: MigrateError) -> StoreError {
    match error {
        MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _) => {
            errors::at_start(path, error)
        }
        MigrateError::VersionMismatch(version) => StoreError::Unfit(format!(
            "step {version} of the schema of {} is not the one this version of kubesvc knows: start the version \
             that made it, or give kubesvc.database.url another path",
            path.display()
        )),
        error => StoreError::Unfit(format!(
            "the schema of {} cannot be brought up to date: {error}",
            path.display()
        )),
    }
}
