//! The leader's term, and the replicas that have rows.

use sqlx::postgres::PgConnection;

use super::errors::classify;
use crate::store::server::bounded;
use crate::store::terms::terms;
use crate::store::{StoreError, rows};

terms! { PgConnection, "$1", "INSERT INTO kubesvc_locks (name) VALUES ('leader') ON CONFLICT (name) DO NOTHING", bounded, classify }

/// The replicas that have assignments.
pub(super) async fn replicas(connection: &mut PgConnection) -> Result<Vec<String>, StoreError> {
    bounded(sqlx::query_scalar(rows::SELECT_REPLICAS).fetch_all(connection), classify).await
}
