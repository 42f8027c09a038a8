//! The operator dies at once, as in a power failure, just before and just after each of its writes, and in the
//! transaction that writes objects.
//!
//! Each trial has a world of its own, in which everything happens that an account can go through (`life.rs`). Each
//! start of the operator is armed with the next crash point of the trial, at which it aborts; callers repeat their
//! calls. At the end, everything must be as if nothing had happened. A point that is never reached fails the test.
//!
//! `make test` goes through chains that have every point, on one database or on several. `make test-all` also has a
//! world for each single point on each database, and runs each chain on each.

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
use crate::world::{Database, MAX_WAIT, World, panic_message};
use kubesvc_testkit::wait::eventually;

/// Number of worlds that run at the same time.
const BESIDE: usize = 3;
/// Number of accounts applied at once for a crash at the nth write of one kind.
const BATCH: usize = 12;
/// Time in seconds after which the object of a lost agent is removed, for trials about that.
const AGENTS_GONE: &str = "3";
/// Grace in seconds in those trials. After twice that, an agent that left during a crash is marked as disconnected;
/// its object must still be there.
const SHORT_GRACE: u64 = 1;

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

/// Points that are tried elsewhere: `followers.rs` has those that only a replica reaches that does not lead,
/// `operations_faults/crash_points.rs` those of operations, `gateway/certificate.rs` those of the API of accounts,
/// `hub_tls.rs` those of the certificate for agents,
/// `registration/failures.rs` those of accounts registered in Clouddriver, `credentials/crashes.rs` those of calls that are
/// passed on to it, and `import.rs` those of the plugin.
const ELSEWHERE: &[&str] = &[
    "agent-report:",
    "operation-",
    "request-open:",
    "gateway-",
    "hub-",
    "pushed-row:",
    "push-",
    "intent-",
    "credentials-call:",
    "migration-",
    "import-",
];

/// Points that are reached only where several replicas are possible, which excludes SQLite. They are first reached at
/// startup, before the operator is ready.
const OF_REPLICAS: &[&str] = &["term:", "lease:", "replica-lease:"];

/// Points at which the database determines what a crash leaves behind.
const OF_DATABASES: &[&str] =
    &["row-", "assignments:", "fence:", "cache-", "term:", "lease:", "replica-lease:"];

/// Crash points that one world goes through. Each point is one that a life still passes after the earlier crashes:
/// at every start, later on the way of the same account, or in a later part of the life.
const CHAINS: &[Trial] = &[
    // The beginning of an account.
    Trial::at(
        Database::Sqlite,
        "finalizer-add:before finalizer-add:after row-insert:before row-insert:after \
         assignments:before assignments:after row-update:before row-update:after fence:before fence:after",
    ),
    Trial::at(
        Database::MariaDb,
        "row-insert:before row-insert:after status:before status:after \
         assignments:before assignments:after row-update:before row-update:after fence:before fence:after",
    ),
    Trial::at(
        Database::Postgres,
        "row-insert:before row-insert:after add-accounts:before add-accounts:after add-accounts:after \
         assignments:before assignments:after row-update:before row-update:after fence:before fence:after",
    ),
    // Apart, since no event follows once all accounts have settled.
    Trial::at(Database::Postgres, "event:before event:after"),
    // Adoption, REST, accounts of agents' files, and the end of an account.
    Trial::at(
        Database::Sqlite,
        "rest-secret-claim:before rest-secret-claim:after rest-secret:before rest-secret:after \
         rest-create:before rest-create:after rest-patch:before rest-patch:after \
         rest-delete:before rest-delete:after row-delete:before row-delete:after \
         finalizer-remove:before finalizer-remove:after",
    ),
    Trial::at(
        Database::MariaDb,
        "adopt-secret:before adopt-secret:after row-adopt:before row-adopt:after \
         static-create:before static-create:after object-delete:before object-delete:after \
         row-delete:before row-delete:after",
    ),
    Trial::at(
        Database::Postgres,
        "adopt-create:before adopt-create:after row-adopt:before row-adopt:after probe:before probe:after \
         delete-accounts:before delete-accounts:after row-delete:before row-delete:after \
         secret-delete:before secret-delete:after",
    ),
    // The start of the operator, and cached objects.
    Trial::at(
        Database::Sqlite,
        "row-adopt:before row-adopt:after caching-assignment:before caching-assignment:after \
         cache-commit:before cache-commit:in cache-commit:after static-update:before static-update:after \
         cache-sweep:before cache-sweep:after",
    ),
    Trial::at(
        Database::MariaDb,
        "term:before term:after lease:before lease:after replica-lease:before replica-lease:after \
         cache-commit:before cache-commit:in cache-commit:after cache-sweep:before cache-sweep:after",
    ),
    Trial::at(
        Database::Postgres,
        "secret-update:before secret-update:after replica-lease:before replica-lease:after \
         lease:before#2 lease:after term:before term:after lease:before \
         cache-commit:before cache-commit:in cache-commit:after cache-sweep:before cache-sweep:after",
    ),
    // Agents.
    Trial::at(
        Database::Sqlite,
        "agent-create:before agent-create:after agent-object:before agent-object:after \
         accepted:before accepted:after request-stream:before request-stream:after \
         agent-note:before agent-note:after",
    ),
    Trial::at(Database::MariaDb, "agent-left:before agent-left:after agent-remove:before agent-remove:after"),
    // Many accounts at once.
    Trial::at(
        Database::Sqlite,
        "finalizer-add:after#5 status:before#7 add-accounts:after#2 row-update:after#3 event:before#4",
    )
    .of_a_batch(),
    Trial::at(Database::MariaDb, "row-insert:after#2 status:before#2 status:after#11 status:before#3")
        .of_a_batch(),
    Trial::at(Database::Postgres, "row-insert:before#2 status:after#2 status:after#20 status:after#3")
        .of_a_batch(),
    // What is left of a life after the 16th write of a status may have no 20th one.
    Trial::at(Database::MariaDb, "status:before#16").of_a_batch(),
];

/// One world: its database, its sequence of crash points, and the number of additional accounts.
#[derive(Clone, Copy, Debug)]
struct Trial {
    database: Database,
    points: &'static str,
    batch: usize,
}

impl Trial {
    const fn at(database: Database, points: &'static str) -> Self {
        Self { database, points, batch: 0 }
    }

    const fn of_a_batch(self) -> Self {
        Self { batch: BATCH, ..self }
    }

    fn points(self) -> impl Iterator<Item = &'static str> {
        self.points.split_whitespace()
    }

    fn has(self, point: &str) -> bool {
        self.points().any(|one| one == point)
    }

    /// Whether one of its points begins so.
    fn is_about(self, prefixes: &[&str]) -> bool {
        self.points().any(|point| begins(point, prefixes))
    }

    /// Whether its database allows several replicas, if it has points of those.
    fn is_possible(self) -> bool {
        self.database != Database::Sqlite || !self.is_about(OF_REPLICAS)
    }

    /// Whether the trial is about writes of cached objects. In the others nothing is cached.
    fn is_about_objects(self) -> bool {
        self.is_about(&["cache-"])
    }

    /// Whether the trial is about an agent that does not come back.
    fn is_about_lost_agents(self) -> bool {
        self.is_about(&["agent-left:", "agent-remove:"])
    }
}

fn begins(point: &str, prefixes: &[&str]) -> bool {
    prefixes.iter().any(|prefix| point.starts_with(prefix))
}

#[test]
fn every_crash_point_is_in_a_chain_and_those_of_databases_in_one_on_each() {
    for point in POINTS.iter().chain(LATER_PASSAGES).filter(|point| !begins(point, ELSEWHERE)) {
        let chains = CHAINS.iter().filter(|chain| chain.has(point));
        let databases: Vec<_> = chains.map(|chain| chain.database).collect();
        assert!(!databases.is_empty(), "{point}");
        if begins(point, OF_DATABASES) && !point.contains('#') {
            let all = DATABASES.into_iter().filter(|database| Trial::at(*database, point).is_possible());
            for database in all {
                assert!(databases.contains(&database), "{point} on {database:?}");
            }
        }
    }
    assert!(CHAINS.iter().all(|chain| chain.is_possible()), "SQLite has one replica");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chain_of_crashes_at_writes_loses_nothing_and_brings_nothing_back() {
    try_all(CHAINS.to_vec()).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "make test-all"]
async fn a_crash_at_any_write_on_any_database_loses_nothing_and_brings_nothing_back() {
    let mut trials = Vec::new();
    for database in DATABASES {
        let points = POINTS.iter().chain(LATER_RENEWALS).filter(|point| !begins(point, ELSEWHERE));
        trials.extend(points.map(|point| Trial::at(database, point)));
        trials.extend(LATER_PASSAGES.iter().map(|point| Trial::at(database, point).of_a_batch()));
        let chains = CHAINS.iter().filter(|chain| chain.database != database);
        trials.extend(chains.map(|chain| Trial { database, ..*chain }));
    }
    trials.retain(|trial| trial.is_possible());
    try_all(trials).await;
}

/// Runs all trials, and fails with all failures.
async fn try_all(trials: Vec<Trial>) {
    let (begun, count) = (Instant::now(), trials.len());
    let passages: usize = trials.iter().map(|trial| trial.points().count()).sum();
    let made = trials.into_iter().map(|trial| async move {
        let begun = Instant::now();
        let result = tokio::spawn(try_points(trial)).await;
        (trial, begun.elapsed(), result.err().map(|error| panic_message(&*error.into_panic()).to_owned()))
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
        format!("{sqlite:<12} {mariadb:<12} {postgres:<12} {points}\n")
    };
    let head = format!("{:<12} {:<12} {:<12} {}\n", "SQLite", "MariaDB", "PostgreSQL", "crash points");
    head + &rows.into_iter().map(line).collect::<String>()
}

async fn try_points(trial: Trial) {
    let mut prepare = World::prepare()
        .database(trial.database)
        .setting("kubesvc.dynamicAccounts.adoptRows", true)
        .setting("kubesvc.database.takeOver", true)
        .without_operator();
    if trial.is_about_lost_agents() {
        prepare = prepare
            .operator_env("KUBESVC_AGENTS_GONE_SECONDS", AGENTS_GONE)
            .setting("kubesvc.dynamicAccounts.orphanGraceSeconds", SHORT_GRACE);
    }
    if trial.is_about_objects() {
        prepare = prepare.setting("kubesvc.cache.cacheKinds", json!(["namespace"]));
    }
    let world = prepare.start().await;
    let left = leave_rows(&world, trial.database).await;
    let mut points = trial.points();
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
    if trial.is_about_lost_agents() {
        tokio::join!(crash(&world, first, points), async {
            life.loses_an_agent().await;
            life.run_changes().await;
        });
    } else {
        tokio::join!(crash(&world, first, points), life.run_changes());
    }
    life.settles().await;
    life.check_recovered().await;
    if trial.is_about(&["agent-"]) {
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
