//! Random faults on real processes: three replicas, six agents, an API server and a database server stop, are
//! killed or are paused in an order that a seed determines, while 200 accounts are activated, moved, changed,
//! deleted and recreated, and the objects of their cluster change, which some of them have cached. A watcher outside of the programs checks the invariants all the time. After the
//! last fault of each round, everything must be as desired within a minute.
//!
//! The tests run a minute of it on each server; `make random-faults` runs an hour. `KUBESVC_SEED` repeats the
//! decisions of a run, `KUBESVC_FAULT_SECONDS` sets its duration.
//!
//! | file | provides |
//! |---|---|
//! | `plan.rs`, `fault_schedule.rs` | which fault happens to what and when, from the seed alone |
//! | `scene.rs`, `balancer.rs` | all participants, and the Service that agents dial |
//! | `processes.rs`, `fault_log.rs` | executing and recording faults |
//! | `changes.rs` | executing changes, through the API server and REST |
//! | `watcher.rs`, `watcher/`, `rules.rs` | the invariants |
//! | `desired_state.rs` | the conditions at the end |
//! | `event_log.rs` | the events that led to a violation |

mod balancer;
mod changes;
mod desired_state;
mod event_log;
mod fault_log;
mod fault_schedule;
mod plan;
mod processes;
mod rules;
mod scene;
mod watcher;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::time::{Duration, Instant};

use futures::future::Either;

use self::event_log::EventLog;
use self::plan::{Plan, Round};
use self::processes::Leader;
use self::scene::Scene;
use self::watcher::Watcher;
use crate::faults::cache::history::History;
use crate::stories::on_one_server;
use crate::world::Database;
use kubesvc_testkit::databases::Kind;
use kubesvc_testkit::must;

on_one_server! { a_minute_of_random_faults_breaks_nothing }

/// Duration of the faults in the tests, in seconds.
const SHORT_RUN_SECONDS: u64 = 60;
/// Duration in each half of `make random-faults`, in seconds.
const LONG_RUN_SECONDS: u64 = 1800;
/// Timeout for the accounts to be as desired for the first time.
const START_TIMEOUT: Duration = Duration::from_secs(120);

/// Reads a number from the environment.
fn from_environment(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| must(Err(format!("{name} is to be a whole number, not {text}")))))
}

fn say(what: &str) {
    let _ = writeln!(std::io::stderr(), "{what}");
}

/// Performs one run from beginning to end.
async fn run(kind: Kind, seed: u64, seconds: u64) {
    let seed = from_environment("KUBESVC_SEED").unwrap_or(seed);
    let lasts = Duration::from_secs(from_environment("KUBESVC_FAULT_SECONDS").unwrap_or(seconds));
    let plan = Plan::new(seed, lasts);
    let title =
        format!("random faults on {kind:?}, KUBESVC_SEED={seed} KUBESVC_FAULT_SECONDS={}", lasts.as_secs());
    say(&title);
    let scene = Scene::start(kind, EventLog::new(title)).await;
    let (leader, watcher, history) = (Leader::default(), Watcher::default(), History::default());
    let summary = tokio::select! {
        summary = rounds(&scene, &watcher, &leader, &plan) => summary,
        never = history.watch(&scene.world, &scene::WRITTEN_KINDS) => match never {},
        never = history.poll_rows(&scene.world) => match never {},
        () = watcher.watch(&scene) => must(Err("the watcher has stopped".to_owned())),
        () = scene.supervise(&leader) => must(Err("the supervision of the processes has stopped".to_owned())),
    };
    say(&summary);
    say(&format!("  rows of objects have shown {} versions", history.versions_shown()));
    if let Err(why) = history.verdict() {
        scene.event_log.violation(None, format!("rows of objects: {why}"));
    }
    must(scene.event_log.verdict());
}

/// Performs all rounds and returns the summary.
async fn rounds(scene: &Scene, watcher: &Watcher, leader: &Leader, plan: &Plan) -> String {
    let mut writer = scene.fill_cluster(plan.seed).await;
    scene.make(&plan.first).await;
    must(scene.settle(&plan.first, START_TIMEOUT).await);
    watcher.mark_settled();
    let begin = scene.memory();
    let mut slowest = Duration::ZERO;
    for (number, round) in plan.rounds.iter().enumerate() {
        let over = tokio::select! {
            over = play(scene, watcher, leader, round) => over,
            never = writer.run() => match never {},
        };
        match scene.settle(&round.desired_accounts, desired_state::LIMIT.saturating_sub(over.elapsed())).await
        {
            Ok(()) => slowest = slowest.max(over.elapsed()),
            Err(why) => {
                scene
                    .event_log
                    .violation(None, format!("a minute after the last fault of round {number}: {why}"));
                // Later rounds start from the desired state; without it there is nothing to continue from.
                must(scene.settle(&round.desired_accounts, START_TIMEOUT).await);
            }
        }
        if plan.rounds.len() > 1 {
            let violations = scene.event_log.violations();
            say(&format!(
                "{:6.0} s: round {} of {}, slowest recovery {:.1} s, {violations} violations, memory {:?} MiB",
                scene.event_log.now().as_secs_f64(),
                number + 1,
                plan.rounds.len(),
                slowest.as_secs_f64(),
                scene.memory(),
            ));
        }
    }
    scene.summary(slowest, &begin)
}

/// Performs the faults and changes of one round, and returns the time at which the last fault was over. A
/// change that is not accepted within the recovery time after that is left to the final checks.
async fn play(scene: &Scene, watcher: &Watcher, leader: &Leader, round: &Round) -> Instant {
    let begun = Instant::now();
    let mut of_accounts = BTreeMap::<usize, Vec<_>>::new();
    for change in &round.changes {
        of_accounts.entry(change.account).or_default().push(*change);
    }
    let changes = of_accounts.into_values().map(|changes| scene.change_all(watcher, changes, begun));
    let mut changes = std::pin::pin!(futures::future::join_all(changes));
    let faults = futures::future::join_all(round.faults.iter().map(async |fault| {
        tokio::time::sleep_until((begun + fault.at).into()).await;
        scene.execute(*fault, leader).await;
    }));
    let length = round.changes.last().map_or(Duration::ZERO, |last| last.at);
    let all_over = async {
        faults.await;
        tokio::time::sleep_until((begun + length).into()).await;
        Instant::now()
    };
    match futures::future::select(std::pin::pin!(all_over), &mut changes).await {
        Either::Left((over, _)) => {
            let _ = tokio::time::timeout_at((over + desired_state::LIMIT).into(), changes).await;
            over
        }
        Either::Right((_, all_over)) => all_over.await,
    }
}

impl Scene {
    fn summary(&self, slowest: Duration, begin: &[u64]) -> String {
        let of = |start: &str| self.event_log.counts(start);
        format!(
            "  faults: {}\n  changes: {}\n  transitions: {}\n  also: {}\n  slowest recovery {:.1} s; memory of the \
             replicas {begin:?} MiB at the begin, {:?} MiB at the end; {} violations",
            of("fault:"),
            of("change:"),
            of("transition:"),
            of("also:"),
            slowest.as_secs_f64(),
            self.memory(),
            self.event_log.violations(),
        )
    }
}

async fn a_minute_of_random_faults_breaks_nothing(database: Database) {
    run(database.server(), 1, SHORT_RUN_SECONDS).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "half an hour: make random-faults"]
async fn half_an_hour_of_random_faults_on_postgresql_breaks_nothing() {
    run(Kind::PostgreSql, fastrand::u64(..1_000_000), LONG_RUN_SECONDS).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "half an hour: make random-faults"]
async fn half_an_hour_of_random_faults_on_mariadb_breaks_nothing() {
    run(Kind::MariaDb, fastrand::u64(..1_000_000), LONG_RUN_SECONDS).await;
}

#[test]
fn the_same_seed_makes_the_same_decisions() {
    let hour = Duration::from_secs(3600);
    assert_eq!(Plan::new(7, hour), Plan::new(7, hour));
    assert_ne!(Plan::new(7, hour).rounds, Plan::new(8, hour).rounds);
}

#[test]
fn a_minute_includes_every_kind_of_fault_and_never_changes_steady_accounts() {
    for seed in 0..50 {
        let plan = Plan::new(seed, Duration::from_secs(60));
        let [round] = &plan.rounds[..] else { unreachable!("a minute is one round") };
        assert!(round.faults.len() >= 12, "seed {seed}: {:#?}", round.faults);
        assert!(round.faults.iter().all(|fault| fault.at + fault.lasts <= Duration::from_secs(60)));
        assert!(round.changes.iter().all(|change| change.account >= plan::STEADY));
        assert!(round.changes.len() > 150, "seed {seed}: {} changes", round.changes.len());
        let ends = round
            .desired_accounts
            .iter()
            .filter(|desired| desired.is_some_and(|desired| !desired.active))
            .count();
        assert!(ends > 10, "seed {seed}: {ends} are to be INACTIVE");
    }
}
