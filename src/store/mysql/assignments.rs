//! The statements on `kubesvc_assignments`.

use std::sync::LazyLock;

use sqlx::mysql::MySqlConnection;

use super::errors::classify;
use crate::store::batches::{Statements, pieces};
use crate::store::rows;
use crate::store::server::{bounded, each};
use crate::store::statements::{ASSIGNMENTS, Dialect, marks, tuples, upsert_values};
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

/// Locks rows of accounts, in the order of their names. Whoever counts after that sees what others have committed, and
/// nobody else counts until this transaction ends.
static LOCK: LazyLock<Statements> = LazyLock::new(|| {
    Statements::new(|size| {
        format!(
            "SELECT name FROM kubesvc_accounts WHERE name IN ({}) AND uid IS NOT NULL ORDER BY name FOR UPDATE",
            marks(size)
        )
    })
});

static COUNT: LazyLock<Statements> = LazyLock::new(|| {
    Statements::new(|size| {
        let marks = marks(size);
        format!(
            "UPDATE kubesvc_accounts a LEFT JOIN (SELECT account_name, COUNT(DISTINCT agent_id) AS held \
             FROM kubesvc_assignments WHERE reachable AND account_name IN ({marks}) GROUP BY account_name) h \
             ON h.account_name = a.name SET a.connections = COALESCE(h.held, 0), a.last_updated = ? \
             WHERE a.name IN ({marks}) AND a.uid IS NOT NULL AND a.connections <> COALESCE(h.held, 0)"
        )
    })
});

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
    count(connection, &rows::recounted(changes), now).await
}

/// Writes down how many agents hold these accounts; what is right already is not touched.
async fn count(connection: &mut MySqlConnection, names: &[&str], now: i64) -> Result<(), StoreError> {
    for piece in pieces(names, |_| 0, 0) {
        let mut lock = sqlx::query(LOCK.of(piece.len()));
        let mut count = sqlx::query(COUNT.of(piece.len()));
        for name in piece {
            lock = lock.bind(*name);
            count = count.bind(*name);
        }
        count = count.bind(now);
        for name in piece {
            count = count.bind(*name);
        }
        bounded(lock.execute(&mut *connection), classify).await?;
        bounded(count.execute(&mut *connection), classify).await?;
    }
    Ok(())
}

/// Names of accounts of ours with a wrong count.
pub(super) async fn miscounted(connection: &mut MySqlConnection) -> Result<Vec<String>, StoreError> {
    bounded(sqlx::query_scalar(rows::SELECT_MISCOUNTED).fetch_all(connection), classify).await
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
