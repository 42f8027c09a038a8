//! The operator dies at once, as in a power failure, just before and just after each of its writes, and in the
//! transaction that writes objects.
//!
//! Each crash point has a world of its own, in which everything happens that an account can go through
//! (`life.rs`). The operator is armed with the point, aborts there, and is started again; callers repeat
//! their calls. At the end, everything must be as if nothing had happened. A point that is never reached
//! fails the test.
//!
//! Every run tries each point on one database, and points of database writes on all of them; `make faults`
//! tries all points on all databases.

mod life;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::os::unix::process::ExitStatusExt;
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use kubesvc_runtime::crash_points::POINTS;
use nix::sys::signal::Signal;
use serde_json::json;

use self::life::{Life, leave_rows};
use crate::world::{Database, MAX_WAIT, World};
use kubesvc_testkit::wait::eventually;

/// Number of worlds that run at the same time.
const BESIDE: usize = 4;
/// Number of accounts applied at once for a crash at the nth write of one kind.
const BATCH: usize = 12;
/// Time in seconds after which the object of a lost agent is removed, for trials about that.
const AGENTS_GONE: &str = "4";

const DATABASES: [Database; 3] = [Database::Sqlite, Database::MariaDb, Database::Postgres];

/// Later occurrences of writes that happen several times for one account, or with many accounts.
const LATER_PASSAGES: &[&str] = &[
    "status:before#2",
    "status:after#2",
    "status:before#3",
    "status:after#3",
    "status:before#7",
    "status:after#11",
    "status:before#16",
    "status:after#20",
    "finalizer-add:after#5",
    "row-insert:before#2",
    "row-insert:after#2",
    "row-update:after#3",
    "add-accounts:after#2",
    "event:before#4",
];

/// Renewals of Leases while the operator works.
const LATER_RENEWALS: &[&str] = &["lease:before#5", "lease:after#6", "replica-lease:after#3"];

/// Sequences of crashes: each start is armed with the next point.
const CHAINS: &[&str] = &[
    "accepted:after agent-object:after status:before",
    "add-accounts:after add-accounts:after row-update:before",
    "status:after status:after#2 finalizer-remove:before row-delete:before",
    "row-insert:after delete-accounts:before delete-accounts:after",
    "adopt-create:after rest-secret:after secret-delete:before secret-delete:after",
];

/// One world: its database, its sequence of crash points, and the number of additional accounts.
#[derive(Clone, Copy, Debug)]
struct Trial {
    database: Database,
    points: &'static str,
    batch: usize,
}

impl Trial {
    fn at(points: &'static str, database: Database) -> Self {
        Self { database, points, batch: 0 }
    }

    fn of_a_batch(self) -> Self {
        Self { batch: BATCH, ..self }
    }

    /// Whether the trial is about writes of cached objects. In the others nothing is cached.
    fn is_about_objects(self) -> bool {
        self.points.starts_with("cache-")
    }

    /// Whether the trial is about writes to agents' objects.
    fn is_about_agents(self) -> bool {
        self.points.contains("agent-")
    }
}

/// The database on which every run tries this point.
fn turn(points: &str) -> Database {
    DATABASES[points.bytes().map(usize::from).sum::<usize>() % DATABASES.len()]
}

/// The points that every run tries on a database.
fn points_on(database: Database) -> Vec<&'static str> {
    // For these, the database determines what is left behind.
    let at_the_database = |point: &str| {
        ["row-", "assignments:", "fence:", "cache-"].iter().any(|prefix| point.starts_with(prefix))
    };
    let is_on = |point: &&str| {
        if is_of_replicas(point) {
            database != Database::Sqlite
        } else {
            at_the_database(point) || turn(point) == database
        }
    };
    let later = LATER_RENEWALS.iter().copied().filter(|_| database != Database::Sqlite);
    POINTS.iter().copied().filter(|point| !is_elsewhere(point)).filter(is_on).chain(later).collect()
}

/// Whether the point is tried elsewhere: `followers.rs` has those that only a replica reaches that does not lead,
/// `operations_faults/crash_points.rs` those of operations, `gateway/certificate.rs` those of the API of accounts.
fn is_elsewhere(point: &str) -> bool {
    ["agent-report:", "operation-", "request-open:", "gateway-"]
        .iter()
        .any(|prefix| point.starts_with(prefix))
}

/// Whether the point is reached only where several replicas are possible, which excludes SQLite. It is first
/// reached at startup, before the operator is ready.
fn is_of_replicas(point: &str) -> bool {
    ["term:", "lease:", "replica-lease:"].iter().any(|prefix| point.starts_with(prefix))
}

async fn try_points_on(database: Database) {
    try_all(points_on(database).into_iter().map(|point| Trial::at(point, database)).collect()).await;
}

#[test]
fn every_crash_point_is_tried_and_spread_over_the_databases() {
    let tried = DATABASES.map(points_on);
    for point in POINTS.iter().filter(|point| !is_elsewhere(point)) {
        assert!(tried.iter().any(|points| points.contains(point)), "{point}");
    }
    for (database, points) in DATABASES.iter().zip(&tried) {
        assert!(points.len() * 4 >= POINTS.len(), "{database:?} has {} points", points.len());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_at_any_write_loses_nothing_and_brings_nothing_back() {
    try_points_on(Database::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_at_any_write_with_mariadb_loses_nothing_and_brings_nothing_back() {
    try_points_on(Database::MariaDb).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_at_any_write_with_postgresql_loses_nothing_and_brings_nothing_back() {
    try_points_on(Database::Postgres).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_at_a_later_write_of_a_batch_loses_nothing_and_brings_nothing_back() {
    try_all(LATER_PASSAGES.iter().map(|point| Trial::at(point, turn(point)).of_a_batch()).collect()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_in_the_recovery_from_a_crash_loses_nothing_and_brings_nothing_back() {
    try_all(CHAINS.iter().map(|chain| Trial::at(chain, turn(chain))).collect()).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "ten minutes: make faults"]
async fn a_crash_at_any_write_on_any_database_loses_nothing_and_brings_nothing_back() {
    let mut trials = Vec::new();
    for database in DATABASES {
        let passed =
            |point: &&&str| !is_elsewhere(point) && (database != Database::Sqlite || !is_of_replicas(point));
        let once = POINTS.iter().filter(passed).chain(CHAINS).map(|points| Trial::at(points, database));
        let later = LATER_PASSAGES.iter().map(|point| Trial::at(point, database).of_a_batch());
        trials.extend(once.chain(later));
    }
    try_all(trials).await;
}

/// Runs all trials, and fails with all failures.
async fn try_all(trials: Vec<Trial>) {
    let (begun, count) = (Instant::now(), trials.len());
    let passages: usize = trials.iter().map(|trial| trial.points.split_whitespace().count()).sum();
    let made = trials.into_iter().map(|trial| async move {
        let begun = Instant::now();
        let result = tokio::spawn(try_points(trial)).await;
        (trial, begun.elapsed(), result.err().map(|error| said(error.into_panic())))
    });
    let made: Vec<_> = futures::stream::iter(made).buffer_unordered(BESIDE).collect().await;
    let mut report = table(&made);
    let failed: Vec<_> = made
        .iter()
        .filter_map(|(trial, _, why)| why.as_ref().map(|why| format!("{trial:?}: {why}")))
        .collect();
    report += &format!(
        "{passages} crash points tried in {} worlds, {} of them failed, in {:.0} s\n",
        made.len(),
        failed.len(),
        begun.elapsed().as_secs_f64()
    );
    // Not captured, because it reports what the test has done.
    let _ = std::io::stderr().write_all(report.as_bytes());
    assert_eq!(made.len(), count);
    assert!(failed.is_empty(), "{} of {count} trials:\n{}", failed.len(), failed.join("\n"));
}

/// Table of points by database, with the seconds that each world took.
fn table(made: &[(Trial, Duration, Option<String>)]) -> String {
    let mut rows: BTreeMap<&str, BTreeMap<String, String>> = BTreeMap::new();
    for (trial, took, why) in made {
        let result = if why.is_some() { "FAILED" } else { "ok" };
        let cell = format!("{result} {:.0} s", took.as_secs_f64());
        rows.entry(trial.points).or_default().insert(format!("{:?}", trial.database), cell);
    }
    let line = |(points, cells): (&str, BTreeMap<String, String>)| {
        let cell = |database| cells.get(&format!("{database:?}")).map_or("", String::as_str);
        let [sqlite, mariadb, postgres] = DATABASES.map(cell);
        format!("{points:<70} {sqlite:<12} {mariadb:<12} {postgres}\n")
    };
    let head = format!("{:<70} {:<12} {:<12} {}\n", "crash points", "SQLite", "MariaDB", "PostgreSQL");
    head + &rows.into_iter().map(line).collect::<String>()
}

/// The message of a panicked task.
fn said(panic: Box<dyn std::any::Any + Send>) -> String {
    panic.downcast::<String>().map_or_else(
        |panic| panic.downcast_ref::<&str>().copied().unwrap_or("it panicked").to_owned(),
        |text| *text,
    )
}

async fn try_points(trial: Trial) {
    let mut prepare = World::prepare()
        .database(trial.database)
        .setting("kubesvc.dynamicAccounts.adoptRows", true)
        .setting("kubesvc.database.takeOver", true)
        .without_operator();
    if trial.is_about_agents() {
        prepare = prepare.operator_env("KUBESVC_AGENTS_GONE_SECONDS", AGENTS_GONE);
    }
    if trial.is_about_objects() {
        prepare = prepare.setting("kubesvc.cache.cacheKinds", json!(["namespace"]));
    }
    let world = prepare.start().await;
    let left = leave_rows(&world, trial.database).await;
    let mut points = trial.points.split_whitespace();
    let first = points.next().expect("there is one");
    world.operator().launch_with(&[("KUBESVC_CRASH_AT", first)]);
    if let Err(why) = world.operator().try_ready().await {
        // Some points are reached before the operator is ready.
        assert!(world.operator().exited().is_some(), "{why}");
    }
    let mut life = Life::begin(&world, trial.batch, left).await;
    if trial.is_about_objects() {
        life = life.with_objects();
    }
    if trial.is_about_agents() {
        tokio::join!(crash(&world, first, points), async {
            life.loses_an_agent().await;
            life.run_changes().await;
        });
    } else {
        tokio::join!(crash(&world, first, points), life.run_changes());
    }
    life.settles().await;
    life.check_recovered().await;
    if trial.is_about_agents() {
        life.until_agent_objects_settle().await;
    }
}

/// Waits until the operator has aborted at each point, and starts it again.
async fn crash(world: &World, first: &str, mut others: impl Iterator<Item = &str>) {
    let mut point = first;
    loop {
        let ended = eventually(&format!("the passage of {point}"), 2 * MAX_WAIT, async || {
            world.operator().exited().ok_or("nobody has passed it".to_owned())
        })
        .await;
        assert_eq!(ended.signal(), Some(Signal::SIGABRT as i32), "{point}: it ended with {ended}");
        let Some(next) = others.next() else { break };
        world.operator().launch_with(&[("KUBESVC_CRASH_AT", next)]);
        point = next;
    }
    world.operator().start().await;
}
