//! Agents that stream objects die, sleep, or lose their connection to the hub.

use std::time::Duration;

use super::load::{
    ACCOUNT, RowsMay, STILL, api_server_port, create_account, filled, prepare, settled, under_load,
};
use crate::faults::hold;
use crate::faults::proxy::{Proxy, ProxyMode};
use crate::world::{Agent, Database, MAX_WAIT, World};
use kubesvc_testkit::wait::eventually;

/// The rows follow, within the usual time.
const FOLLOW: (RowsMay, Duration) = (RowsMay::OnlyFollow, MAX_WAIT);

/// Delay of each answer of the API server while a list must not end unseen. Lists of ConfigMaps take several pages.
const PAGE_DELAY: Duration = Duration::from_millis(400);

/// Waits until the list of a scope has begun and is not complete.
async fn until_listing(world: &World) {
    eventually("a list that runs", MAX_WAIT, async || {
        let read = async { world.open_database().await?.scopes().await };
        let scopes = read.await.map_err(|error| error.to_string())?;
        let is_listing = |scope: &(String, String, String, _)| scope.0 == ACCOUNT && scope.2 == "LISTING";
        if scopes.iter().any(is_listing) { Ok(()) } else { Err(format!("{scopes:?}")) }
    })
    .await;
}

/// The process dies during the first list, and again while the next process lists or sends what changed.
async fn is_killed_in_mid_list(database: Database, kills: u64) {
    let world = prepare().database(database).start().await;
    let writer = filled(&world, 1, STILL).await;
    let line = Proxy::to(api_server_port(world.control_plane())).await;
    let agent = world.agent("agent-1").start().await;
    under_load(&world, writer, FOLLOW, async {
        // Every page takes so long that the list is seen to run.
        line.set(ProxyMode::Slow(PAGE_DELAY));
        create_account(&world, Some(&format!("https://127.0.0.1:{}", line.port()))).await;
        for kill in 0..kills {
            if kill == 0 {
                until_listing(&world).await;
                line.set(ProxyMode::Held);
            } else {
                hold(Duration::from_millis(kill * 400)).await;
            }
            agent.kill();
            line.set(ProxyMode::Open);
            agent.launch();
            world.until_connected(&agent, true).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_killed_in_mid_list_and_mid_batch_loses_nothing() {
    is_killed_in_mid_list(Database::Sqlite, 3).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a minute each: make faults"]
async fn agent_killed_many_times_in_mid_list_loses_nothing_on_any_database() {
    for database in [Database::Sqlite, Database::MariaDb, Database::Postgres] {
        is_killed_in_mid_list(database, 12).await;
    }
}

/// The hub stands still with a batch that it has not committed, is committing, or has not acknowledged, while the agent
/// dies.
async fn is_killed_before_its_acknowledgement(database: Database, points: &[&str]) {
    let world = prepare().database(database).start().await;
    let writer = filled(&world, 2, 0).await;
    let agent = world.agent("agent-1").start().await;
    create_account(&world, None).await;
    settled(&world).await;
    under_load(&world, writer, FOLLOW, async {
        for point in points {
            world.operator().kill();
            world.operator().launch_with(&[("KUBESVC_STOP_AT", point)]);
            eventually(&format!("a hub that stands still at {point}"), MAX_WAIT, async || {
                if world.operator().is_paused() { Ok(()) } else { Err("it runs".to_owned()) }
            })
            .await;
            agent.kill();
            agent.launch();
            world.operator().resume();
            world.until_connected(&agent, true).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_killed_between_send_and_acknowledgement_loses_nothing() {
    let points = ["cache-commit:before#4", "cache-commit:in#4", "cache-commit:after#4"];
    is_killed_before_its_acknowledgement(Database::Postgres, &points).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a minute each: make faults"]
async fn agent_killed_many_times_before_acknowledgements_loses_nothing_on_any_database() {
    let points: Vec<_> = (1..8)
        .flat_map(|n| ["before", "in", "after"].map(|place| format!("cache-commit:{place}#{n}")))
        .collect();
    let points: Vec<_> = points.iter().map(String::as_str).collect();
    for database in [Database::Sqlite, Database::MariaDb, Database::Postgres] {
        is_killed_before_its_acknowledgement(database, &points).await;
    }
}

/// The connection to the hub is cut, held and stranded in turn.
async fn connection_is_cut(database: Database, cuts: usize) {
    let world = prepare().database(database).start().await;
    let writer = filled(&world, 3, 0).await;
    let line = Proxy::to(world.operator().hub_port()).await;
    let agent = world.agent("agent-1").hub_port(line.port()).start().await;
    create_account(&world, None).await;
    let mut random = fastrand::Rng::with_seed(3);
    under_load(&world, writer, FOLLOW, async {
        for cut in 0..cuts {
            hold(Duration::from_millis(random.u64(200..1_400))).await;
            match cut % 8 {
                5 => line.set(ProxyMode::Held),
                _ => line.set(ProxyMode::Cut),
            }
            hold(Duration::from_millis(random.u64(0..300))).await;
            line.set(ProxyMode::Open);
        }
        world.until_connected(&agent, true).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stream_that_is_cut_again_and_again_loses_nothing() {
    connection_is_cut(Database::MariaDb, 10).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "two minutes each: make faults"]
async fn stream_that_is_cut_a_hundred_times_loses_nothing_on_any_database() {
    for database in [Database::Sqlite, Database::MariaDb, Database::Postgres] {
        connection_is_cut(database, 100).await;
    }
}

/// Time for which an agent sleeps: longer than an account is kept for it.
const SLEEP: Duration = Duration::from_secs(60);

/// The agent that streams sleeps for so long that the other one takes over.
async fn streaming_agent_sleeps(database: Database) {
    let world = prepare().database(database).start().await;
    let writer = filled(&world, 4, 0).await;
    let agents = [world.agent("agent-1").start().await, world.agent("agent-2").start().await];
    create_account(&world, None).await;
    settled(&world).await;
    under_load(&world, writer, FOLLOW, async {
        for _ in 0..2 {
            let fences = world.fences().await;
            let streams = |agent: &&Agent| fences.iter().any(|fence| fence.2.as_deref() == Some(agent.id()));
            let asleep = agents.iter().find(streams).expect("one of both streams");
            asleep.pause();
            hold(SLEEP).await;
            asleep.resume();
            hold(Duration::from_secs(3)).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "two minutes each: make faults"]
async fn agent_that_sleeps_writes_nothing_when_it_wakes() {
    for database in [Database::Sqlite, Database::MariaDb, Database::Postgres] {
        streaming_agent_sleeps(database).await;
    }
}
