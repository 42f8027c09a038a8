//! Everything around an account fails, and still nothing is lost, nothing deleted comes back, and people are
//! shown what is going on.
//!
//! | file | what fails |
//! |---|---|
//! | `crash_points.rs`, `crash_points/` | the operator, just before and just after each of its writes |
//! | `operator.rs` | the operator's time: it is suspended, or down while things change |
//! | `agents.rs` | agents, and their connections to the hub |
//! | `frames.rs` | reports of agents: late, repeated, or about accounts they were never sent |
//! | `apiserver.rs` | the API server |
//! | `concurrent_writers.rs` | other clients that write the same objects |
//! | `database.rs` | a database in a file |
//! | `servers.rs` | a database on its own server |
//! | `full_disk.rs` | a database server without room for another row |
//! | `outage.rs` | a database that is away for ten minutes (`make faults`) |
//! | `cache.rs`, `cache/` | anything, clocks included, while objects are streamed into the tables |
//! | `settled.rs` | what holds after the faults |
//! | `proxy.rs` | a connection that can be cut, held and slowed down |

mod agents;
mod apiserver;
pub(crate) mod cache;
mod concurrent_writers;
mod crash_points;
mod database;
mod frames;
mod full_disk;
mod operator;
mod outage;
pub(crate) mod proxy;
mod servers;
mod settled;

use std::time::Duration;

use crate::world::{MAX_WAIT, World};
use kubesvc_testkit::{must, wait::eventually};

/// Holds a fault for a while. The sleep is the fault itself, not a wait for a condition.
async fn hold(fault: Duration) {
    tokio::time::sleep(fault).await;
}

/// Resident memory of a process, in KiB.
pub(crate) fn resident_kib(process: u32) -> u64 {
    let status = format!("/proc/{process}/status");
    let status = must(std::fs::read_to_string(&status).map_err(|error| format!("{status}: {error}")));
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.split_whitespace().next().and_then(|number| number.parse().ok()).expect("the kernel says it in kB")
}

/// Waits until readiness does, or does not, report the database as missing, and returns the reason.
pub(crate) async fn until_database(world: &World, troubled: bool) -> String {
    eventually(&format!("readiness with a troubled database: {troubled}"), MAX_WAIT, async || {
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
