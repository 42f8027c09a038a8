//! The leader's term, and the replicas that have rows.

use sqlx::mysql::MySqlConnection;

use super::errors::classify;
use crate::store::server::bounded;
use crate::store::terms::terms;
use crate::store::{StoreError, rows};

terms! { MySqlConnection, "?", "INSERT IGNORE INTO kubesvc_locks (name) VALUES ('leader')", bounded, classify }

/// The replicas that have assignments.
pub(super) async fn replicas(connection: &mut MySqlConnection) -> Result<Vec<String>, StoreError> {
    bounded(sqlx::query_scalar(rows::SELECT_REPLICAS).fetch_all(connection), classify).await
}
