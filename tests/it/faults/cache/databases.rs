//! The database dies, is paused, slow or cut off, and comes back without its last commits, while objects are written.

use std::time::Duration;

use super::load::{RowsMay, create_account, filled, prepare, settled, under_load};
use crate::faults::proxy::ProxyMode;
use crate::faults::servers::RemoteDatabase;
use crate::faults::{hold, until_database};
use crate::world::MAX_WAIT;
use kubesvc_testkit::databases::{self, Kind};
use kubesvc_testkit::must;

/// The rows follow, within the usual time.
const FOLLOW: (RowsMay, Duration) = (RowsMay::OnlyFollow, MAX_WAIT);

/// The server is killed, then paused, for so long each.
async fn is_away(kind: Kind, away: Duration) {
    let far = RemoteDatabase::start_as(kind, prepare()).await;
    let world = &far.world;
    let writer = filled(world, 8, 0).await;
    let _agent = world.agent("agent-1").start().await;
    create_account(world, None).await;
    settled(world).await;
    under_load(world, writer, FOLLOW, async {
        far.server.kill();
        hold(away).await;
        must(far.server.start().await);
        until_database(world, false).await;
        hold(Duration::from_secs(1)).await;
        far.server.pause();
        hold(away).await;
        far.server.resume();
        until_database(world, false).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_catch_up_after_postgresql_was_away() {
    is_away(Kind::PostgreSql, Duration::from_secs(2)).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a minute each: make faults"]
async fn objects_catch_up_after_the_database_was_away_for_20_s() {
    for kind in [Kind::MariaDb, Kind::PostgreSql] {
        is_away(kind, Duration::from_secs(20)).await;
    }
}

/// The connections to the server are cut and held in turn, and slow in between.
async fn connection_fails(kind: Kind, rounds: usize) {
    let far = RemoteDatabase::start_as(kind, prepare()).await;
    let world = &far.world;
    let writer = filled(world, 9, 0).await;
    let _agent = world.agent("agent-1").start().await;
    create_account(world, None).await;
    let mut random = fastrand::Rng::with_seed(9);
    under_load(world, writer, FOLLOW, async {
        for round in 0..rounds {
            far.line.set(ProxyMode::Slow(Duration::from_millis(random.u64(1..60))));
            hold(Duration::from_millis(random.u64(300..1_500))).await;
            far.line.set([ProxyMode::Cut, ProxyMode::Held, ProxyMode::Mute][round % 3]);
            hold(Duration::from_millis(random.u64(100..700))).await;
        }
        far.line.set(ProxyMode::Open);
        until_database(world, false).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_catch_up_over_a_failing_connection_to_mariadb() {
    connection_fails(Kind::MariaDb, 5).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a minute each: make faults"]
async fn objects_catch_up_over_a_failing_connection_to_any_server() {
    for kind in [Kind::MariaDb, Kind::PostgreSql] {
        connection_fails(kind, 40).await;
    }
}

/// The server has no room for another object for a while. (A full MariaDB of the tests has no room for any.)
#[tokio::test(flavor = "multi_thread")]
#[ignore = "half a minute: make faults"]
async fn objects_catch_up_after_postgresql_was_full() {
    let server = must(databases::own_small(Kind::PostgreSql).await);
    let url = server.fresh_database().await;
    let database = url.rsplit('/').next().expect("it has a name");
    let world = prepare().database_url(&url).start().await;
    let writer = filled(&world, 14, 0).await;
    let _agent = world.agent("agent-1").start().await;
    // Only a table without rows can be filled.
    let full = must(server.fill(database, "kubesvc_cache").await);
    create_account(&world, None).await;
    under_load(&world, writer, FOLLOW, async {
        hold(Duration::from_secs(6)).await;
        must(server.make_room(database, full).await);
    })
    .await;
}

/// The first server is lost with what it has committed after the standby stopped following.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a minute: make faults"]
async fn promoted_standby_gets_lost_objects_again() {
    let far = RemoteDatabase::start_as(Kind::PostgreSql, prepare()).await;
    let world = &far.world;
    let writer = filled(world, 10, 0).await;
    let _agent = world.agent("agent-1").start().await;
    create_account(world, None).await;
    settled(world).await;
    let standby = must(far.server.standby().await);
    // Rows and accounts are compared once a minute.
    let may = (RowsMay::GoBack, MAX_WAIT + Duration::from_secs(60));
    under_load(world, writer, may, async {
        hold(Duration::from_secs(2)).await;
        must(standby.stop_following().await);
        hold(Duration::from_secs(4)).await;
        far.server.kill();
        must(standby.promote());
        far.line.lead_to(standby.port());
        until_database(world, false).await;
        hold(Duration::from_secs(2)).await;
    })
    .await;
}
