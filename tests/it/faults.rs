//! What may go wrong around an account does go wrong, and then: nothing is lost, nothing comes back from the dead, and
//! what a person is shown says what is going on.
//!
//! | file | what fails |
//! |---|---|
//! | `crash_points.rs`, `crash_points/` | the operator, just before and just after each of its writes |
//! | `operator.rs` | the operator's time: it sleeps, or is away while things change |
//! | `agents.rs` | agents, and the connection between them and the hub |
//! | `frames.rs` | what agents say: late, twice, or about what they were never sent |
//! | `apiserver.rs` | the API server |
//! | `others.rs` | whoever else writes the same objects |
//! | `database.rs` | a database in a file |
//! | `servers.rs` | a database on a server of its own |
//! | `full.rs` | the same, without room for another row |
//! | `outage.rs` | a database that is away for ten minutes (`make faults`) |
//! | `settled.rs` | what holds once the faults are over |
//! | `proxy.rs` | a connection that can be cut, held and slowed down |

mod agents;
mod apiserver;
mod crash_points;
mod database;
mod frames;
mod full;
mod operator;
mod others;
mod outage;
pub(crate) mod proxy;
mod servers;
mod settled;

use std::time::Duration;

use crate::harness::wait::eventually;
use crate::world::{PATIENCE, World};

/// Holds a fault for a while. This is the fault itself: nothing is waited for.
async fn hold(fault: Duration) {
    tokio::time::sleep(fault).await;
}

/// Waits until readiness is or is not troubled by the database, and tells why.
async fn until_database(world: &World, troubled: bool) -> String {
    eventually(&format!("readiness with a troubled database: {troubled}"), PATIENCE, async || {
        let answer = world.try_get("/health/readiness").await?;
        let missing = answer.json["missing"].as_array().cloned().unwrap_or_default();
        let why = missing.iter().find(|one| one["what"] == "database").map(|one| one["why"].to_string());
        if (answer.status == 503 && why.is_some()) == troubled {
            Ok(why.unwrap_or_default())
        } else {
            Err(answer.to_string())
        }
    })
    .await
}
