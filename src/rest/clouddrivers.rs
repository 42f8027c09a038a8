//! `/armory/clouddrivers`: the replicas of the operator, in the documented terms.

use axum::Json;
use axum::extract::State;

use super::RestState;
use super::error::{ErrorBody, RestError};
use super::extract::PathId;
use crate::peers::Replica;
use kubesvc_store::PoolSettings;

impl RestState {
    fn replicas(&self) -> Vec<Replica> {
        self.peers.replicas(self.readiness.missing().is_empty())
    }
}

/// List the replicas of the operator, sorted by id; the replica that responds is always included.
#[utoipa::path(get, path = "/armory/clouddrivers", operation_id = "listClouddrivers", tag = "replicas",
    responses(
        (status = 200, description = "The replicas", body = [Replica]),
    ))]
pub(super) async fn list(State(state): State<RestState>) -> Json<Vec<Replica>> {
    Json(state.replicas())
}

/// Get one replica.
#[utoipa::path(get, path = "/armory/clouddrivers/{clouddriverId}", operation_id = "getClouddriver", tag = "replicas",
    params(("clouddriverId" = String, Path, description = "Id of the replica, percent-encoded")),
    responses(
        (status = 200, description = "The replica", body = Replica),
        (status = 400, description = "The id is not percent-encoded UTF-8", body = ErrorBody),
        (status = 404, description = "No such replica", body = ErrorBody),
    ))]
pub(super) async fn get(
    State(state): State<RestState>,
    PathId(id): PathId,
) -> Result<Json<Replica>, RestError> {
    let replica = state.replicas().into_iter().find(|replica| replica.id == id);
    replica.map(Json).ok_or_else(|| {
        let shown: String = id.chars().take(255).collect();
        RestError::not_found(format!(
            "no replica has the id {shown:?}; GET /armory/clouddrivers lists the replicas"
        ))
    })
}

/// List the database connection pools of the replica that responds.
#[utoipa::path(get, path = "/armory/clouddrivers/sql/pool/settings", operation_id = "getSqlPoolSettings", tag = "replicas",
    responses(
        (status = 200, description = "The pools", body = [PoolSettings]),
    ))]
pub(super) async fn pools(State(state): State<RestState>) -> Json<Vec<PoolSettings>> {
    Json(state.store.pools())
}
