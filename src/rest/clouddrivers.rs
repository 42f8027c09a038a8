//! `/armory/clouddrivers`: the replicas of the operator, in the documented terms.

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use utoipa::ToSchema;

use super::RestState;
use super::error::{ErrorBody, RestError};
use super::extract::PathId;
use crate::peers::Replica;
use kubesvc_store::PoolSettings;

/// A replica of the operator.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct ClouddriverInstance {
    /// Base URL of the replica's REST API.
    base_url: String,
    /// Name of the replica's pod.
    id: String,
    /// Time when the information about the replica last changed.
    last_updated: String,
    /// Whether the replica is among the ready addresses of its Service.
    ready: bool,
}

/// A pool of connections to the database.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct PoolView {
    /// Purpose of the connections: `writer` or `readers`.
    name: &'static str,
    /// `sqlite`, `mysql` (also MariaDB) or `postgres`.
    database: &'static str,
    /// Maximum number of connections.
    max_connections: u32,
    /// Minimum number of connections that are kept open.
    min_connections: u32,
    /// Maximum time to wait for a connection, in milliseconds.
    acquire_timeout_ms: u64,
    /// Maximum idle time of a connection, in milliseconds; absent if unlimited.
    #[serde(skip_serializing_if = "Option::is_none")]
    idle_timeout_ms: Option<u64>,
    /// Maximum lifetime of a connection, in milliseconds; absent if unlimited.
    #[serde(skip_serializing_if = "Option::is_none")]
    max_lifetime_ms: Option<u64>,
    /// Number of open connections.
    connections: u32,
    /// Number of open connections that are idle.
    idle_connections: usize,
}

impl From<Replica> for ClouddriverInstance {
    fn from(replica: Replica) -> Self {
        Self {
            base_url: replica.base_url,
            id: replica.id.into(),
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

/// List the replicas of the operator, sorted by id; the replica that responds is always included.
#[utoipa::path(get, path = "/armory/clouddrivers", operation_id = "listClouddrivers", tag = "replicas",
    responses(
        (status = 200, description = "The replicas", body = [ClouddriverInstance]),
    ))]
pub(super) async fn list(State(state): State<RestState>) -> Json<Vec<ClouddriverInstance>> {
    Json(state.replicas().into_iter().map(Into::into).collect())
}

/// Get one replica.
#[utoipa::path(get, path = "/armory/clouddrivers/{clouddriverId}", operation_id = "getClouddriver", tag = "replicas",
    params(("clouddriverId" = String, Path, description = "Id of the replica, percent-encoded")),
    responses(
        (status = 200, description = "The replica", body = ClouddriverInstance),
        (status = 400, description = "The id is not percent-encoded UTF-8", body = ErrorBody),
        (status = 404, description = "No such replica", body = ErrorBody),
    ))]
pub(super) async fn get(
    State(state): State<RestState>,
    PathId(id): PathId,
) -> Result<Json<ClouddriverInstance>, RestError> {
    let replica = state.replicas().into_iter().find(|replica| replica.id == id);
    replica.map(|replica| Json(replica.into())).ok_or_else(|| {
        let shown: String = id.chars().take(255).collect();
        RestError::not_found(format!(
            "no replica has the id {shown:?}; GET /armory/clouddrivers lists the replicas"
        ))
    })
}

/// List the database connection pools of the replica that responds.
#[utoipa::path(get, path = "/armory/clouddrivers/sql/pool/settings", operation_id = "getSqlPoolSettings", tag = "replicas",
    responses(
        (status = 200, description = "The pools", body = [PoolView]),
    ))]
pub(super) async fn pools(State(state): State<RestState>) -> Json<Vec<PoolView>> {
    Json(state.store.pools().into_iter().map(Into::into).collect())
}
