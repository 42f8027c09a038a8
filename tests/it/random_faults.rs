//! Random faults on real processes: three replicas, six agents, an API server and a database server stop, are
//! killed or are paused in an order that a seed determines, while 200 accounts are activated, moved, changed,
//! deleted and recreated. A watcher outside of the programs checks the invariants all the time. After the
//! last fault of each round, everything must be as desired within a minute.
//!
//! The tests run a minute of it on each server; `make random-faults` runs an hour. `KUBESVC_SEED` repeats the
//! decisions of a run, `KUBESVC_FAULT_SECONDS` sets its duration.
//!
//! | file | provides |
//! |---|---|
//! | `plan.rs`, `deck.rs` | which fault happens to what and when, from the seed alone |
//! | `scene.rs`, `balancer.rs` | all participants, and the Service that agents dial |
//! | `processes.rs`, `book.rs` | executing and recording faults |
//! | `changes.rs` | executing changes, through the API server and REST |
//! | `watcher.rs`, `watcher/`, `rules.rs` | the invariants |
//! | `settled.rs` | the conditions at the end |
//! | `chronicle.rs` | the events that led to a violation |

mod balancer;
mod book;
mod changes;
mod chronicle;
mod deck;
mod plan;
mod processes;
mod rules;
mod scene;
mod settled;
mod watcher;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::time::{Duration, Instant};

use futures::future::Either;

use self::chronicle::Chronicle;
use self::plan::{Plan, Round};
use self::processes::Leader;
use self::scene::Scene;
use self::watcher::Watcher;
use crate::harness::databases::Kind;
use crate::harness::must;

/// Duration of the faults in the tests, in seconds.
const A_MINUTE: u64 = 60;
/// Duration in each half of `make random-faults`, in seconds.
const HALF_AN_HOUR: u64 = 1800;
/// Timeout for the accounts to be as desired for the first time.
const BEGIN: Duration = Duration::from_secs(120);

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
    let scene = Scene::start(kind, Chronicle::new(title)).await;
    let (leader, watcher) = (Leader::default(), Watcher::default());
    let told = tokio::select! {
        told = rounds(&scene, &watcher, &leader, &plan) => told,
        () = watcher.watch(&scene) => must(Err("the watcher has stopped".to_owned())),
        () = scene.look_after(&leader) => must(Err("nobody looks after the processes".to_owned())),
    };
    say(&told);
    must(scene.chronicle.verdict());
}

/// Performs all rounds and returns the summary.
async fn rounds(scene: &Scene, watcher: &Watcher, leader: &Leader, plan: &Plan) -> String {
    scene.make(&plan.first).await;
    must(scene.settle(&plan.first, BEGIN).await);
    watcher.all_is_settled();
    let begin = scene.memory();
    let mut slowest = Duration::ZERO;
    for (number, round) in plan.rounds.iter().enumerate() {
        let over = play(scene, watcher, leader, round).await;
        match scene.settle(&round.wishes, settled::LIMIT.saturating_sub(over.elapsed())).await {
            Ok(()) => slowest = slowest.max(over.elapsed()),
            Err(why) => {
                scene
                    .chronicle
                    .violation(None, format!("a minute after the last fault of round {number}: {why}"));
                // Later rounds start from the desired state; without it there is nothing to continue from.
                must(scene.settle(&round.wishes, BEGIN).await);
            }
        }
        if plan.rounds.len() > 1 {
            let violations = scene.chronicle.violations();
            say(&format!(
                "{:6.0} s: round {} of {}, slowest recovery {:.1} s, {violations} violations, memory {:?} MiB",
                scene.chronicle.now().as_secs_f64(),
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
        scene.carry_out(*fault, leader).await;
    }));
    let length = round.changes.last().map_or(Duration::ZERO, |last| last.at);
    let all_over = async {
        faults.await;
        tokio::time::sleep_until((begun + length).into()).await;
        Instant::now()
    };
    match futures::future::select(std::pin::pin!(all_over), &mut changes).await {
        Either::Left((over, _)) => {
            let _ = tokio::time::timeout_at((over + settled::LIMIT).into(), changes).await;
            over
        }
        Either::Right((_, all_over)) => all_over.await,
    }
}

impl Scene {
    fn summary(&self, slowest: Duration, begin: &[u64]) -> String {
        let of = |start: &str| self.chronicle.counts(start);
        format!(
            "  faults: {}\n  changes: {}\n  transitions: {}\n  also: {}\n  slowest recovery {:.1} s; memory of the \
             replicas {begin:?} MiB at the begin, {:?} MiB at the end; {} violations",
            of("fault:"),
            of("change:"),
            of("transition:"),
            of("also:"),
            slowest.as_secs_f64(),
            self.memory(),
            self.chronicle.violations(),
        )
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_minute_of_random_faults_on_postgresql_breaks_nothing() {
    run(Kind::PostgreSql, 1, A_MINUTE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_minute_of_random_faults_on_mariadb_breaks_nothing() {
    run(Kind::MariaDb, 2, A_MINUTE).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "half an hour: make random-faults"]
async fn half_an_hour_of_random_faults_on_postgresql_breaks_nothing() {
    run(Kind::PostgreSql, fastrand::u64(..1_000_000), HALF_AN_HOUR).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "half an hour: make random-faults"]
async fn half_an_hour_of_random_faults_on_mariadb_breaks_nothing() {
    run(Kind::MariaDb, fastrand::u64(..1_000_000), HALF_AN_HOUR).await;
}

#[test]
fn the_same_seed_makes_the_same_decisions() {
    let hour = Duration::from_secs(3600);
    assert_eq!(Plan::new(7, hour), Plan::new(7, hour));
    assert_ne!(Plan::new(7, hour).rounds, Plan::new(8, hour).rounds);
}

#[test]
fn a_minute_has_seen_each_kind_of_process_fail_and_leaves_the_steady_accounts_alone() {
    for seed in 0..50 {
        let plan = Plan::new(seed, Duration::from_secs(60));
        let [round] = &plan.rounds[..] else { unreachable!("a minute is one round") };
        assert!(round.faults.len() >= 12, "seed {seed}: {:#?}", round.faults);
        assert!(round.faults.iter().all(|fault| fault.at + fault.lasts <= Duration::from_secs(60)));
        assert!(round.changes.iter().all(|change| change.account >= plan::STEADY));
        assert!(round.changes.len() > 150, "seed {seed}: {} changes", round.changes.len());
        let ends = round.wishes.iter().filter(|wish| wish.is_some_and(|wish| !wish.active)).count();
        assert!(ends > 10, "seed {seed}: {ends} are to be INACTIVE");
    }
}
