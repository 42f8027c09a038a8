//! The statements on `kubesvc_assignments`.

use std::sync::LazyLock;

use sqlx::sqlite::SqliteConnection;

use super::errors;
use crate::store::batches::{Statements, pieces};
use crate::store::rows;
use crate::store::statements::{ASSIGNMENTS, Dialect, marks, tuples, upsert_values};
use crate::store::{Assignment, AssignmentChanges, StoreError};

static DELETE: LazyLock<Statements> = LazyLock::new(|| {
    Statements::new(|size| {
        format!(
            "DELETE FROM kubesvc_assignments WHERE cd_id = ? AND (account_name, agent_id) IN (VALUES {})",
            tuples(size, 2)
        )
    })
});

static UPSERT: LazyLock<Statements> =
    LazyLock::new(|| Statements::new(|size| upsert_values(Dialect::Sqlite, &ASSIGNMENTS, size)));

static SELECT: LazyLock<String> = LazyLock::new(|| format!("{}?", rows::SELECT_ASSIGNMENTS));

static COUNT: LazyLock<Statements> = LazyLock::new(|| {
    Statements::new(|size| {
        let held = "(SELECT COUNT(DISTINCT s.agent_id) FROM kubesvc_assignments s \
                    WHERE s.account_name = kubesvc_accounts.name AND s.reachable)";
        format!(
            "UPDATE kubesvc_accounts SET connections = {held}, last_updated = ? \
             WHERE name IN ({}) AND uid IS NOT NULL AND connections <> {held}",
            marks(size)
        )
    })
});

/// Writes the assignments of a replica.
pub(super) async fn write(
    connection: &mut SqliteConnection,
    replica_id: &str,
    changes: &AssignmentChanges,
    now: i64,
) -> Result<(), StoreError> {
    for piece in pieces(&changes.deletes, |_| 0, 0) {
        let mut query = sqlx::query(DELETE.of(piece.len())).bind(replica_id);
        for (account, agent) in piece {
            query = query.bind(account.as_str()).bind(agent.as_str());
        }
        query.execute(&mut *connection).await.map_err(errors::classify)?;
    }
    for piece in pieces(&changes.puts, |_| 0, 0) {
        let mut query = sqlx::query(UPSERT.of(piece.len()));
        for row in piece {
            query = rows::bind_assignment!(query, row, replica_id).bind(now);
        }
        query.execute(&mut *connection).await.map_err(errors::classify)?;
    }
    count(connection, &rows::recounted(changes), now).await
}

/// Writes down how many agents hold these accounts; what is right already is not touched. The transaction holds the write
/// lock, so nobody counts meanwhile.
async fn count(connection: &mut SqliteConnection, names: &[&str], now: i64) -> Result<(), StoreError> {
    for piece in pieces(names, |_| 0, 0) {
        let mut query = sqlx::query(COUNT.of(piece.len())).bind(now);
        for name in piece {
            query = query.bind(*name);
        }
        query.execute(&mut *connection).await.map_err(errors::classify)?;
    }
    Ok(())
}

/// Names of accounts of ours with a wrong count.
pub(super) async fn miscounted(connection: &mut SqliteConnection) -> Result<Vec<String>, StoreError> {
    sqlx::query_scalar(rows::SELECT_MISCOUNTED).fetch_all(connection).await.map_err(errors::classify)
}

/// All assignments of a replica.
pub(super) async fn of(
    connection: &mut SqliteConnection,
    replica_id: &str,
) -> Result<Vec<Assignment>, StoreError> {
    let held = sqlx::query(SELECT.as_str()).bind(replica_id).fetch_all(connection).await;
    let held = held.map_err(errors::classify)?;
    held.iter().map(rows::assignment).collect::<Result<_, _>>().map_err(errors::classify)
}
