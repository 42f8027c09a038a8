//! The statements on `kubesvc_assignments`.

use std::sync::LazyLock;

use sqlx::sqlite::SqliteConnection;

use super::errors;
use crate::store::batches::{Statements, pieces};
use crate::store::rows;
use crate::store::statements::{ASSIGNMENTS, Dialect, tuples, upsert_values};
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
    Ok(())
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
