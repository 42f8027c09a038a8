//! The database dies, is paused, slow or cut off, and comes back without its last commits, while objects are written.

use std::convert::Infallible;
use std::io::Write as _;
use std::time::Duration;

use super::load::{ACCOUNT, RowsMay, STILL, create_account, filled, prepare, settled, under_load};
use super::row_oracle::newest_version;
use super::writer::ClusterWriter;
use crate::faults::proxy::ProxyMode;
use crate::faults::servers::RemoteDatabase;
use crate::faults::{hold, resident_kib, until_database};
use crate::world::{MAX_WAIT, connect};
use kubesvc_core::State;
use kubesvc_testkit::databases::{self, Kind};
use kubesvc_testkit::{must, wait::eventually};

/// The rows follow, within the usual time.
const FOLLOW: (RowsMay, Duration) = (RowsMay::OnlyFollow, MAX_WAIT);
/// The rows follow once kinds that have to be listed again are, which is spread over half a minute.
const FOLLOW_AFTER_LISTS: (RowsMay, Duration) =
    (RowsMay::OnlyFollow, MAX_WAIT.saturating_add(Duration::from_secs(60)));
/// Commits are lost. Rows and accounts are compared once a minute.
const LOSE_COMMITS: (RowsMay, Duration) = (RowsMay::GoBack, MAX_WAIT.saturating_add(Duration::from_secs(60)));

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

/// Duration of the long outage. After five minutes without a commit, busy kinds have to be listed again.
const LONG_OUTAGE: Duration = Duration::from_secs(600);
/// Number of writers during it, and the pauses of each in milliseconds: more than 200 changes a second together, less the
/// time in which each waits for answers.
const WRITERS: u64 = 8;
const WRITER_PAUSES: std::ops::Range<u64> = 10..40;
/// Changes a second below which the outage is not under load. 200 are aimed at; two cores, on which the API server and the
/// writers run beside the agent, may give less.
const MIN_CHANGES_PER_SECOND: u64 = 150;
/// Maximum growth of each program's memory during it, in KiB, as the benchmark of outages has it.
const MAX_GROWTH_KIB: u64 = 16 * 1024;
/// Interval between two looks at the memory of the programs.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);

/// Writes with several writers, for ever.
async fn write_at_once(writers: &mut [ClusterWriter]) -> Infallible {
    futures::future::select_all(writers.iter_mut().map(|writer| Box::pin(writer.run()))).await.0
}

/// The largest growth of the memory of each process since the start, for ever.
async fn watch_memory(processes: [u32; 2], growth: &mut [u64; 2]) -> Infallible {
    let start = processes.map(resident_kib);
    loop {
        for ((process, start), growth) in processes.into_iter().zip(start).zip(&mut *growth) {
            *growth = (*growth).max(resident_kib(process).saturating_sub(start));
        }
        tokio::time::sleep(SAMPLE_INTERVAL).await;
    }
}

/// The server is stopped for ten minutes, while there is much to write.
async fn is_away_under_load(kind: Kind) {
    let far = RemoteDatabase::start_as(kind, prepare()).await;
    let world = &far.world;
    let writer = filled(world, 21, STILL).await;
    let agent = world.agent("agent-1").start().await;
    create_account(world, None).await;
    settled(world).await;
    let mut writers = Vec::new();
    for seed in 0..WRITERS {
        writers.push(ClusterWriter::new(world, 30 + seed).await.with_pauses(WRITER_PAUSES));
    }
    let processes = [world.operator().id(), agent.process_id()];
    let mut growth = [0; 2];
    under_load(world, writer, FOLLOW_AFTER_LISTS, async {
        must(far.server.stop().await);
        until_database(world, true).await;
        tokio::select! {
            () = hold(LONG_OUTAGE) => {}
            never = write_at_once(&mut writers) => match never {},
            never = watch_memory(processes, &mut growth) => match never {},
        }
        assert_eq!(world.state(ACCOUNT).await, Some(State::Active), "without a database");
        must(far.server.start().await);
        until_database(world, false).await;
    })
    .await;
    let changes: usize = writers.iter().map(ClusterWriter::changes).sum();
    let rate = u64::try_from(changes).expect("it fits") / LONG_OUTAGE.as_secs();
    let _ = writeln!(
        std::io::stderr(),
        "{kind:?} away for {} s under {rate} changes a second: {} KiB more memory in the operator, {} KiB in the agent",
        LONG_OUTAGE.as_secs(),
        growth[0],
        growth[1]
    );
    assert!(rate >= MIN_CHANGES_PER_SECOND, "{rate} changes a second");
    assert!(growth.iter().all(|growth| *growth < MAX_GROWTH_KIB), "{growth:?} KiB");
    assert!(world.operator().is_running() && agent.exited().is_none(), "a program ended");
}

// `make faults` runs both alone, by their names: beside others, they would not write as fast.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "eleven minutes: make faults"]
async fn objects_catch_up_after_ten_busy_minutes_without_mariadb() {
    is_away_under_load(Kind::MariaDb).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "eleven minutes: make faults"]
async fn objects_catch_up_after_ten_busy_minutes_without_postgresql() {
    is_away_under_load(Kind::PostgreSql).await;
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

/// The server has no room for another object for a while.
async fn is_full(kind: Kind) {
    let server = must(databases::own_small(kind).await);
    let url = server.fresh_database().await;
    let database = url.rsplit('/').next().expect("it has a name");
    let world = prepare().database_url(&url).start().await;
    let writer = filled(&world, 14, STILL).await;
    let _agent = world.agent("agent-1").start().await;
    // PostgreSQL can be filled by a table without rows only.
    let full = must(server.fill(database, "kubesvc_cache").await);
    create_account(&world, None).await;
    under_load(&world, writer, FOLLOW, async {
        let why = until_database(&world, true).await;
        assert!(why.contains("full: make room"), "{why}");
        hold(Duration::from_secs(4)).await;
        must(server.make_room(database, full).await);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "half a minute each: make faults"]
async fn objects_catch_up_after_a_server_was_full() {
    for kind in [Kind::MariaDb, Kind::PostgreSql] {
        is_full(kind).await;
    }
}

/// The server is lost with what it has committed since its data was copied.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a minute: make faults"]
async fn mariadb_with_an_earlier_copy_of_its_data_gets_lost_objects_again() {
    let far = RemoteDatabase::start_as(Kind::MariaDb, prepare()).await;
    let world = &far.world;
    let writer = filled(world, 17, 0).await;
    let _agent = world.agent("agent-1").start().await;
    create_account(world, None).await;
    settled(world).await;
    let database = world.database_url().rsplit('/').next().expect("a URL ends with its name");
    // Past the line, which leads the operator to the server.
    let newest = async || {
        let read = async { newest_version(&mut connect(&far.server.url(database)).await?).await };
        read.await.map_err(|error| error.to_string())
    };
    under_load(world, writer, LOSE_COMMITS, async {
        must(far.server.back_up().await);
        let copied = must(newest().await);
        eventually("commits since the copy", MAX_WAIT, async || {
            let newest = newest().await?;
            if newest > copied { Ok(()) } else { Err(format!("{newest}")) }
        })
        .await;
        hold(Duration::from_secs(4)).await;
        far.line.set(ProxyMode::Cut);
        let lost = must(newest().await);
        must(far.server.restore().await);
        assert!(must(newest().await) < lost, "the last commits are lost");
        far.line.set(ProxyMode::Open);
        until_database(world, false).await;
        hold(Duration::from_secs(2)).await;
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
    under_load(world, writer, LOSE_COMMITS, async {
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
