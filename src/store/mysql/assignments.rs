//! The statements on `kubesvc_assignments`.

use std::sync::LazyLock;

use sqlx::mysql::MySqlConnection;

use super::errors::classify;
use crate::store::batches::{Statements, pieces};
use crate::store::rows;
use crate::store::server::{bounded, each};
use crate::store::statements::{ASSIGNMENTS, Dialect, tuples, upsert_values};
use crate::store::{Assignment, AssignmentChanges, StoreError};

static DELETE: LazyLock<Statements> = LazyLock::new(|| {
    Statements::new(|size| {
        format!(
            "DELETE FROM kubesvc_assignments WHERE cd_id = ? AND (account_name, agent_id) IN ({})",
            tuples(size, 2)
        )
    })
});

static UPSERT: LazyLock<Statements> =
    LazyLock::new(|| Statements::new(|size| upsert_values(Dialect::MySql, &ASSIGNMENTS, size)));

static SELECT: LazyLock<String> = LazyLock::new(|| format!("{}?", rows::SELECT_ASSIGNMENTS));

/// Writes the assignments of a replica.
pub(super) async fn write(
    connection: &mut MySqlConnection,
    replica_id: &str,
    changes: &AssignmentChanges,
    now: i64,
) -> Result<(), StoreError> {
    for piece in pieces(&changes.deletes, |_| 0, 0) {
        let mut query = sqlx::query(DELETE.of(piece.len())).bind(replica_id);
        for (account, agent) in piece {
            query = query.bind(account.as_str()).bind(agent.as_str());
        }
        bounded(query.execute(&mut *connection), classify).await?;
    }
    for piece in pieces(&rows::sorted_assignments(&changes.puts), |_| 0, 0) {
        let mut query = sqlx::query(UPSERT.of(piece.len()));
        for row in piece {
            check(row, replica_id)?;
            query = rows::bind_assignment!(query, row, replica_id).bind(now);
        }
        bounded(query.execute(&mut *connection), classify).await?;
    }
    Ok(())
}

fn check(row: &Assignment, replica_id: &str) -> Result<(), StoreError> {
    if [row.account_name.as_str(), &row.agent_id, replica_id].iter().any(|key| key.ends_with(' ')) {
        return Err(StoreError::refused(
            format!(
                "kubesvc_assignments row {:?}, {:?} of replica {replica_id:?}",
                row.account_name, row.agent_id
            ),
            "one of its keys ends with a space, and MySQL takes it for the key without",
        ));
    }
    Ok(())
}

/// All assignments of a replica.
pub(super) async fn of(
    connection: &mut MySqlConnection,
    replica_id: &str,
) -> Result<Vec<Assignment>, StoreError> {
    let mut held = Vec::new();
    let rows = sqlx::query(SELECT.as_str()).bind(replica_id).fetch(connection);
    each(rows, classify, |row| held.push(rows::assignment(&row))).await?;
    held.into_iter().collect::<Result<_, _>>().map_err(classify)
}
