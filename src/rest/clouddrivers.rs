//! `/armory/clouddrivers`: the replicas of the operator, in the documented terms.

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;

use super::RestState;
use super::error::{ErrorBody, RestError};
use super::extract::PathName;
use crate::peers::Replica;
use crate::store::PoolSettings;

/// A replica of the operator.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct ClouddriverInstance {
    /// Where its REST is.
    base_url: String,
    /// The name of its pod.
    id: String,
    /// When what is known of it last changed.
    last_updated: String,
    /// Whether it is among the ready addresses of its Service.
    ready: bool,
}

/// A pool of connections to the database.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct PoolView {
    /// What its connections do: `writer`, `readers`.
    name: &'static str,
    /// `sqlite`, `mysql` (also MariaDB) or `postgres`.
    database: &'static str,
    /// How many connections there may be.
    max_connections: u32,
    /// How many are kept open.
    min_connections: u32,
    /// How long a connection is waited for.
    acquire_timeout_ms: u64,
    /// How long one may be unused; absent: without an end.
    #[serde(skip_serializing_if = "Option::is_none")]
    idle_timeout_ms: Option<u64>,
    /// How long one is used at all; absent: without an end.
    #[serde(skip_serializing_if = "Option::is_none")]
    max_lifetime_ms: Option<u64>,
    /// How many there are now.
    connections: u32,
    /// How many of them nobody uses now.
    idle_connections: usize,
}

impl From<Replica> for ClouddriverInstance {
    fn from(replica: Replica) -> Self {
        Self {
            base_url: replica.base_url,
            id: replica.id,
            last_updated: format!("{:.3}", replica.last_updated),
            ready: replica.ready,
        }
    }
}

impl From<PoolSettings> for PoolView {
    fn from(pool: PoolSettings) -> Self {
        let millis = |time: std::time::Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        Self {
            name: pool.name,
            database: pool.database,
            max_connections: pool.max_connections,
            min_connections: pool.min_connections,
            acquire_timeout_ms: millis(pool.acquire_timeout),
            idle_timeout_ms: pool.idle_timeout.map(millis),
            max_lifetime_ms: pool.max_lifetime.map(millis),
            connections: pool.connections,
            idle_connections: pool.idle_connections,
        }
    }
}

impl RestState {
    fn replicas(&self) -> Vec<Replica> {
        self.peers.replicas(self.readiness.missing().is_empty())
    }
}

/// The replicas of the operator, by id; the one that answers is always among them.
#[utoipa::path(get, path = "/armory/clouddrivers", operation_id = "listClouddrivers", tag = "replicas",
    responses(
        (status = 200, description = "The replicas", body = [ClouddriverInstance]),
        (status = 405, description = "Only GET is allowed", body = ErrorBody),
    ))]
pub(super) async fn list(State(state): State<RestState>) -> Json<Vec<ClouddriverInstance>> {
    Json(state.replicas().into_iter().map(Into::into).collect())
}

/// One replica.
#[utoipa::path(get, path = "/armory/clouddrivers/{clouddriverId}", operation_id = "getClouddriver", tag = "replicas",
    params(("clouddriverId" = String, Path, description = "Id of the replica, percent-encoded")),
    responses(
        (status = 200, description = "The replica", body = ClouddriverInstance),
        (status = 400, description = "No id", body = ErrorBody),
        (status = 404, description = "No such replica", body = ErrorBody),
    ))]
pub(super) async fn get(
    State(state): State<RestState>,
    id: PathName,
) -> Result<Json<ClouddriverInstance>, RestError> {
    let id = id.replica()?;
    let replica = state.replicas().into_iter().find(|replica| replica.id == id);
    replica.map(|replica| Json(replica.into())).ok_or_else(|| {
        let shown: String = id.chars().take(255).collect();
        RestError::not_found(format!("there is no replica {shown:?}; GET /armory/clouddrivers lists them"))
    })
}

/// The pools of connections to the database of the replica that answers.
#[utoipa::path(get, path = "/armory/clouddrivers/sql/pool/settings", operation_id = "getSqlPoolSettings", tag = "replicas",
    responses(
        (status = 200, description = "The pools", body = [PoolView]),
        (status = 405, description = "Only GET is allowed", body = ErrorBody),
    ))]
pub(super) async fn pools(State(state): State<RestState>) -> Json<Vec<PoolView>> {
    Json(state.store.pools().into_iter().map(Into::into).collect())
}
