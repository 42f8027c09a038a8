//! The leader's term, and the replicas that have rows.

use sqlx::sqlite::SqliteConnection;

use super::errors::classify;
use crate::store::terms::terms;
use crate::store::{StoreError, rows};

terms! {
    SqliteConnection, "?", "INSERT INTO kubesvc_locks (name) VALUES ('leader') ON CONFLICT (name) DO NOTHING",
    waited_for, classify
}

pub(super) async fn waited_for<T>(
    statement: impl Future<Output = Result<T, sqlx::Error>>,
    classify: fn(sqlx::Error) -> StoreError,
) -> Result<T, StoreError> {
    statement.await.map_err(classify)
}

/// The replicas that have assignments.
pub(super) async fn replicas(connection: &mut SqliteConnection) -> Result<Vec<String>, StoreError> {
    sqlx::query_scalar(rows::SELECT_REPLICAS).fetch_all(connection).await.map_err(classify)
}
