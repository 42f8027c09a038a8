//! Replicas that write objects die before, in and after a commit, sleep with batches in hand, and change places; accounts
//! move between agents.

use std::os::unix::process::ExitStatusExt as _;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::json;

use super::load::{ACCOUNT, RowsMay, create_account, filled, prepare, settled, under_load};
use crate::faults::hold;
use crate::world::{Call, Database, MAX_WAIT, Operator, Prepare, World};
use kubesvc_testkit::wait::eventually;

/// The rows follow, within the usual time.
const FOLLOW: (RowsMay, Duration) = (RowsMay::OnlyFollow, MAX_WAIT);
/// Maximum delay of an agent that dials again, in nanoseconds.
const MAX_DELAY: u64 = 2_000_000_000;
/// Validity of a Lease, in seconds.
const LEASE: u64 = 6;

/// The hub dies at each of these points in turn.
async fn dies_at(database: Database, points: &[&str]) {
    let world = prepare().database(database).start().await;
    let writer = filled(&world, 5, 0).await;
    // The hub lives for a second each time, so the agent's delay would grow to minutes.
    let agent = world.agent("agent-1").setting("clouddriver.backoff.maxDelay", json!(MAX_DELAY));
    let agent = agent.start().await;
    create_account(&world, None).await;
    under_load(&world, writer, FOLLOW, async {
        for point in points {
            world.operator().kill();
            world.operator().launch_with(&[("KUBESVC_CRASH_AT", point)]);
            let ended = eventually(&format!("the passage of {point}"), MAX_WAIT, async || {
                world.operator().exited().ok_or("no commit has passed it".to_owned())
            })
            .await;
            assert_eq!(ended.signal(), Some(Signal::SIGABRT as i32), "{point}: it ended with {ended}");
        }
        world.operator().start().await;
        world.until_connected(&agent, true).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hub_that_dies_around_commits_loses_nothing_on_sqlite() {
    dies_at(Database::Sqlite, &["cache-commit:before#2", "cache-commit:in#2", "cache-commit:after#3"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hub_that_dies_around_commits_loses_nothing_on_mariadb() {
    dies_at(Database::MariaDb, &["cache-commit:after", "cache-commit:in#3", "cache-commit:before#4"]).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a minute each: make faults"]
async fn hub_that_dies_around_many_commits_loses_nothing_on_any_database() {
    let points =
        (1..7).flat_map(|n| ["before", "in", "after"].map(|place| format!("cache-commit:{place}#{n}")));
    let points: Vec<_> = points.collect();
    let points: Vec<_> = points.iter().map(String::as_str).collect();
    for database in [Database::Sqlite, Database::MariaDb, Database::Postgres] {
        dies_at(database, &points).await;
    }
}

/// Asks a replica for an election; whether it is done is seen in the fence.
async fn ask_for_election(replica: &Operator) {
    let call = Call::new("POST", "/armory/agent/assignments").json(&json!([ACCOUNT]));
    let _ = replica.call(call).await;
}

/// The account moves between two agents under load.
async fn is_moved(database: Database, moves: usize) {
    let world = prepare().database(database).start().await;
    let writer = filled(&world, 6, 0).await;
    let _agents = [world.agent("agent-1").start().await, world.agent("agent-2").start().await];
    create_account(&world, None).await;
    let mut random = fastrand::Rng::with_seed(6);
    let before = world.fences().await[0].1;
    under_load(&world, writer, FOLLOW, async {
        for _ in 0..moves {
            ask_for_election(world.operator()).await;
            hold(Duration::from_millis(random.u64(0..900))).await;
        }
    })
    .await;
    assert!(world.fences().await[0].1 > before + 1, "caching has moved");
}

#[tokio::test(flavor = "multi_thread")]
async fn account_that_moves_between_agents_loses_nothing() {
    is_moved(Database::Postgres, 10).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a minute each: make faults"]
async fn account_that_moves_many_times_loses_nothing_on_any_database() {
    for database in [Database::Sqlite, Database::MariaDb, Database::Postgres] {
        is_moved(database, 80).await;
    }
}

fn of_replicas(database: Database) -> Prepare {
    prepare()
        .database(database)
        .setting("kubesvc.leaderElection.leaseDurationSeconds", LEASE)
        .setting("kubesvc.leaderElection.renewDeadlineSeconds", LEASE * 2 / 3)
        .setting("kubesvc.leaderElection.retryPeriodSeconds", 1)
        .setting("kubesvc.dynamicAccounts.orphanGraceSeconds", 30)
}

/// Two replicas with an agent each die and sleep in turn, while the account moves between the agents.
async fn replicas_change_places(database: Database, sleep: Duration) {
    let world: World = of_replicas(database).start().await;
    let other = world.replica("operator-1").await;
    let writer = filled(&world, 7, 0).await;
    let _one = world.agent("agent-1").start().await;
    let _two = world.agent("agent-2").hub_port(other.hub_port()).start().await;
    create_account(&world, None).await;
    settled(&world).await;
    let replicas = [world.operator(), &other];
    let limit = (RowsMay::OnlyFollow, 2 * MAX_WAIT);
    under_load(&world, writer, limit, async {
        for (round, asleep) in [0, 1, 0, 1].into_iter().enumerate() {
            let awake = replicas[1 - asleep];
            replicas[asleep].pause();
            hold(sleep / 2).await;
            ask_for_election(awake).await;
            hold(sleep / 2).await;
            replicas[asleep].resume();
            ask_for_election(replicas[asleep]).await;
            hold(Duration::from_secs(2)).await;
            if round % 2 == 1 {
                replicas[asleep].kill_and_start().await;
                ask_for_election(awake).await;
            }
        }
        world.until_one_leads(&replicas).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "two minutes each: make faults"]
async fn replicas_that_sleep_with_batches_in_hand_write_nothing_twice() {
    for database in [Database::MariaDb, Database::Postgres] {
        replicas_change_places(database, Duration::from_secs(15)).await;
    }
}
