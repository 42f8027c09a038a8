//! The statements on `kubesvc_assignments`.

use std::sync::LazyLock;

use sqlx::postgres::PgConnection;

use super::errors::classify;
use crate::store::rows;
use crate::store::server::{bounded, each};
use crate::store::statements::{ASSIGNMENTS, upsert_arrays};
use crate::store::{Assignment, AssignmentChanges, StoreError};

const MAX_ROWS_PER_STATEMENT: usize = 500;

const DELETE: &str = "DELETE FROM kubesvc_assignments s USING unnest($1::text[], $2::text[]) AS gone(account, agent) \
                      WHERE s.account_name = gone.account AND s.agent_id = gone.agent AND s.cd_id = $3";

static UPSERT: LazyLock<String> =
    LazyLock::new(|| upsert_arrays(&ASSIGNMENTS, &["text", "text", "text", "int", "boolean", "boolean"]));
static SELECT: LazyLock<String> = LazyLock::new(|| format!("{}$1", rows::SELECT_ASSIGNMENTS));

/// Locks rows of accounts, in the order of their names. Whoever counts after that sees what others have committed, and
/// nobody else counts until this transaction ends.
const LOCK: &str = "SELECT 1 FROM kubesvc_accounts WHERE name = ANY($1) AND uid IS NOT NULL ORDER BY name \
                    FOR NO KEY UPDATE";

const COUNT: &str = "UPDATE kubesvc_accounts a SET connections = h.held, last_updated = $2 FROM \
                     (SELECT n.name, COUNT(DISTINCT s.agent_id)::int AS held FROM unnest($1::text[]) AS n(name) \
                     LEFT JOIN kubesvc_assignments s ON s.account_name = n.name AND s.reachable GROUP BY n.name) h \
                     WHERE a.name = h.name AND a.uid IS NOT NULL AND a.connections <> h.held";

/// Writes the assignments of a replica.
pub(super) async fn write(
    connection: &mut PgConnection,
    replica_id: &str,
    changes: &AssignmentChanges,
    now: i64,
) -> Result<(), StoreError> {
    for piece in changes.deletes.chunks(MAX_ROWS_PER_STATEMENT) {
        let (accounts, agents): (Vec<&str>, Vec<&str>) =
            piece.iter().map(|(account, agent)| (account.as_str(), agent.as_str())).unzip();
        let query = sqlx::query(DELETE).bind(accounts).bind(agents).bind(replica_id);
        bounded(query.execute(&mut *connection), classify).await?;
    }
    for piece in rows::sorted_assignments(&changes.puts).chunks(MAX_ROWS_PER_STATEMENT) {
        let query = sqlx::query(UPSERT.as_str())
            .bind(column(piece, |row| row.account_name.as_str()))
            .bind(column(piece, |row| row.agent_id.as_str()))
            .bind(column(piece, |_| replica_id))
            .bind(column(piece, |row| row.connections))
            .bind(column(piece, |row| row.caching))
            .bind(column(piece, |row| row.reachable))
            .bind(now);
        bounded(query.execute(&mut *connection), classify).await?;
    }
    count(connection, &rows::recounted(changes), now).await
}

/// Writes down how many agents hold these accounts; what is right already is not touched.
async fn count(connection: &mut PgConnection, names: &[&str], now: i64) -> Result<(), StoreError> {
    for piece in names.chunks(MAX_ROWS_PER_STATEMENT) {
        bounded(sqlx::query(LOCK).bind(piece).execute(&mut *connection), classify).await?;
        bounded(sqlx::query(COUNT).bind(piece).bind(now).execute(&mut *connection), classify).await?;
    }
    Ok(())
}

/// Names of accounts of ours with a wrong count.
pub(super) async fn miscounted(connection: &mut PgConnection) -> Result<Vec<String>, StoreError> {
    bounded(sqlx::query_scalar(rows::SELECT_MISCOUNTED).fetch_all(connection), classify).await
}

fn column<'r, T>(rows: &[&'r Assignment], value: impl Fn(&'r Assignment) -> T) -> Vec<T> {
    rows.iter().map(|row| value(row)).collect()
}

/// All assignments of a replica.
pub(super) async fn of(
    connection: &mut PgConnection,
    replica_id: &str,
) -> Result<Vec<Assignment>, StoreError> {
    let mut held = Vec::new();
    let rows = sqlx::query(SELECT.as_str()).bind(replica_id).fetch(connection);
    each(rows, classify, |row| held.push(rows::assignment(&row))).await?;
    held.into_iter().collect::<Result<_, _>>().map_err(classify)
}
