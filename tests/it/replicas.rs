//! Several replicas on one API server and one database: how they find one another, and the calls between
//! them.
//!
//! | file | what |
//! |---|---|
//! | `discovery.rs` | Endpoints and EndpointSlices, and the permissions to watch them |
//! | `agents.rs` | agents of all replicas, through any replica |
//! | `certificates.rs` | the port for replicas: who gets in, and the authority |

mod agents;
mod certificates;
mod discovery;

use crate::world::{Database, MAX_WAIT, Operator, World};
use kubesvc_testkit::wait::eventually;

/// Id of the first operator in each world.
const FIRST: &str = "operator-0";
/// Id of the second operator.
const SECOND: &str = "operator-1";

/// Two replicas that know each other.
async fn two(database: Database) -> (World, Operator) {
    let world = World::prepare().database(database).setting("server.address", "*").start().await;
    let second = world.replica(SECOND).await;
    world.publish(FIRST, world.operator(), true).await;
    world.publish(SECOND, &second, true).await;
    for replica in [world.operator(), &second] {
        until_replicas(replica, &[(FIRST, true), (SECOND, true)]).await;
    }
    (world, second)
}

/// Waits until a replica lists exactly these replicas with their readiness.
async fn until_replicas(asked: &Operator, expected: &[(&str, bool)]) {
    eventually(&format!("replicas {expected:?}"), MAX_WAIT, async || {
        let answer = asked.get("/armory/clouddrivers").await?;
        let listed = answer.json.as_array().ok_or("no list")?.iter();
        let listed: Vec<_> = listed
            .map(|one| (one["id"].as_str().unwrap_or_default(), one["ready"].as_bool().unwrap_or_default()))
            .collect();
        if listed == expected { Ok(()) } else { Err(answer.to_string()) }
    })
    .await;
}
