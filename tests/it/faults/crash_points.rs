//! The operator ends at once, as at a loss of power, just before and just after each of its writes.
//!
//! Each crash point has a world of its own, in which all that an account can live through happens. The operator is
//! armed with the point, aborts there, and is started again; whoever was calling it calls again. In the end everything
//! must be as if nothing had happened. A point that is never passed fails the test.

use std::io::Write as _;
use std::os::unix::process::ExitStatusExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Secret;
use kubesvc::account::{KubesvcAccount, State, names};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::settled::settled;
use crate::harness::{must, wait::eventually};
use crate::world::{Agent, Database, PATIENCE, World};

/// How many worlds there are beside one another.
const BESIDE: usize = 4;
/// How many accounts are applied at once where the nth write of one kind is the one to crash at.
const BATCH: usize = 12;
/// How often a caller whose connection broke calls again.
const AGAIN: Duration = Duration::from_millis(100);

/// Writes that there are several of before an account stands, and when there are many accounts.
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

/// One crash after another: each start is armed with the next point.
const CHAINS: &[&str] = &[
    "accepted:after agent-object:after status:before",
    "add-accounts:after add-accounts:after row-update:before",
    "status:after status:after#2 finalizer-remove:before row-delete:before",
    "row-insert:after delete-accounts:before delete-accounts:after",
];

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_at_any_write_loses_nothing_and_brings_nothing_back() {
    let points: Vec<_> = kubesvc::crash::POINTS.iter().map(|point| (*point, 0)).collect();
    try_all(Database::Sqlite, points).await;
}

/// The points at which the database decides what is left behind.
fn points_at_the_database() -> Vec<(&'static str, usize)> {
    let at_the_database = |point: &&&str| point.starts_with("row-") || point.starts_with("assignments:");
    kubesvc::crash::POINTS.iter().filter(at_the_database).map(|point| (*point, 0)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_at_any_write_to_mariadb_loses_nothing_and_brings_nothing_back() {
    try_all(Database::MariaDb, points_at_the_database()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_at_any_write_to_postgresql_loses_nothing_and_brings_nothing_back() {
    try_all(Database::Postgres, points_at_the_database()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_at_a_later_write_of_a_batch_loses_nothing_and_brings_nothing_back() {
    try_all(Database::Sqlite, LATER_PASSAGES.iter().map(|point| (*point, BATCH)).collect()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_in_the_recovery_from_a_crash_loses_nothing_and_brings_nothing_back() {
    try_all(Database::Sqlite, CHAINS.iter().map(|chain| (*chain, 0)).collect()).await;
}

/// Tries points, each with this many further accounts, and fails with all that failed.
async fn try_all(database: Database, points: Vec<(&'static str, usize)>) {
    let (begun, count) = (Instant::now(), points.len());
    let passages: usize = points.iter().map(|(points, _)| points.split_whitespace().count()).sum();
    let tried = AtomicUsize::new(0);
    let trials = points.into_iter().map(|(point, batch)| {
        let tried = &tried;
        async move {
            let result = tokio::spawn(try_points(database, point, batch)).await;
            tried.fetch_add(1, Ordering::Relaxed);
            result.err().map(|error| format!("{point}: {}", said(error.into_panic())))
        }
    });
    let failed: Vec<_> =
        futures::stream::iter(trials).buffer_unordered(BESIDE).filter_map(std::future::ready).collect().await;
    let tried = tried.into_inner();
    // Not captured: it is the line that says what the test has done.
    let _ = writeln!(
        std::io::stderr(),
        "{passages} crash points tried on {database:?} in {tried} worlds, {} of them failed, in {:.0} s",
        failed.len(),
        begun.elapsed().as_secs_f64()
    );
    assert_eq!(tried, count);
    assert!(failed.is_empty(), "{} of {count} crash points:\n{}", failed.len(), failed.join("\n"));
}

/// What a task said when it panicked.
fn said(panic: Box<dyn std::any::Any + Send>) -> String {
    panic.downcast::<String>().map_or_else(
        |panic| panic.downcast_ref::<&str>().copied().unwrap_or("it panicked").to_owned(),
        |text| *text,
    )
}

/// Tries one point, or several one after another.
async fn try_points(database: Database, points: &'static str, batch: usize) {
    let world = World::prepare().database(database).without_operator().start().await;
    let mut points = points.split_whitespace();
    let first = points.next().expect("there is one");
    world.operator().launch_with(&[("KUBESVC_CRASH_AT", first)]);
    world.operator().ready().await;
    let east = world.agent("agent-1").zone("east").launch();
    let west = world.agent("agent-2").zone("west").launch();
    tokio::join!(crash(&world, first, points), live(&world, [&east, &west], batch));
}

/// Waits until the operator has aborted at each point, and starts it again.
async fn crash(world: &World, first: &str, mut others: impl Iterator<Item = &str>) {
    let mut point = first;
    loop {
        let ended = eventually(&format!("the passage of {point}"), 2 * PATIENCE, async || {
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

/// All that an account can live through.
async fn live(world: &World, agents: [&Agent; 2], batch: usize) {
    let cluster = world.cluster("spinnaker").await;
    let (good, other) = (cluster.kubeconfig(), format!("{}# as changed by REST\n", cluster.kubeconfig()));
    let batch: Vec<_> = (0..batch).map(|number| format!("batch-{number:02}")).collect();

    // Applied, of each kind one.
    for name in
        ["kept", "changed", "moved", "stopped", "deleted"].into_iter().chain(batch.iter().map(String::as_str))
    {
        world.account(name).zone("east").kubeconfig(&good).create().await;
    }
    world.account("idle").zone("east").kubeconfig(&good).inactive().create().await;
    let made = ["rest-kept", "rest-stopped", "rest-gone"]
        .map(|name| json!({"name": name, "kubeconfigContents": good, "zoneId": "east", "state": "ACTIVE"}));
    until_taken(world, "POST", "/armory/accounts/dynamic", &json!(made), &[202, 409]).await;
    for name in ["kept", "changed", "moved", "stopped", "deleted", "rest-kept", "rest-stopped", "rest-gone"] {
        until_object(world, name, "is ACTIVE", |account| {
            account.status_or_default().state() == State::Active
        })
        .await;
    }

    // Brought along in an agent's own file.
    let file = agents[0].kubeconfigs().join("own.yaml");
    must(std::fs::write(&file, &good).map_err(|error| format!("{}: {error}", file.display())));
    let own = |name: &str| json!({"name": name, "kubeconfigFile": file.display().to_string()});
    agents[0].set("kubernetes.accounts", json!([own("own-kept"), own("own-gone")]));
    for name in ["own-kept", "own-gone"] {
        until_object(world, name, "is ACTIVE", |account| {
            account.status_or_default().state() == State::Active
        })
        .await;
    }

    // Changed, moved, deactivated and deleted, by kubectl, by REST and in the agent's file.
    let mut changed = own("own-kept");
    changed["kinds"] = json!(["deployment"]);
    agents[0].set("kubernetes.accounts", json!([changed]));
    world.patch("changed", json!({"spec": {"kinds": ["deployment"]}})).await;
    world.patch("moved", json!({"spec": {"zoneId": "west"}})).await;
    world.patch("stopped", json!({"spec": {"state": "INACTIVE"}})).await;
    must(world.kubectl(&["delete", "ksa", "deleted", "--wait=false"]).await.ok());
    let kept = json!([{"name": "rest-kept", "state": "ACTIVE", "kubeconfigContents": other}]);
    until_taken(world, "PATCH", "/armory/accounts", &kept, &[202]).await;
    let stopped = json!([{"name": "rest-stopped", "state": "INACTIVE"}]);
    until_taken(world, "PATCH", "/armory/accounts/dynamic", &stopped, &[202]).await;
    // 400: a call whose answer was lost has deleted it.
    until_taken(world, "DELETE", "/armory/accounts", &json!(["rest-gone"]), &[202, 400]).await;

    let mut wanted = vec![
        ("kept", State::Active),
        ("changed", State::Active),
        ("moved", State::Active),
        ("stopped", State::Inactive),
        ("idle", State::Inactive),
        ("rest-kept", State::Active),
        ("rest-stopped", State::Inactive),
        ("own-kept", State::Active),
    ];
    wanted.extend(batch.iter().map(|name| (name.as_str(), State::Active)));
    settled(world, &agents, &wanted).await;

    // What was stopped before the crash has stopped for good: a further account goes all the way after it.
    world.account("next").zone("east").kubeconfig(&good).create().await;
    wanted.push(("next", State::Active));
    settled(world, &agents, &wanted).await;
    check_secret(world, "rest-kept", &other).await;
    check_secret(world, "rest-stopped", &good).await;
}

/// Calls the REST API until it answers, as a caller does whose connection breaks, and with one of these codes.
async fn until_taken(world: &World, method: &str, path: &str, body: &Value, codes: &[u16]) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match world.try_rest(method, path, body).await {
            Ok(answer) if codes.contains(&answer.status) => return,
            Ok(answer) => {
                // 409: a change by someone else at the same moment, said to be tried again.
                let passes = answer.status >= 500 || answer.status == 409;
                assert!(passes && Instant::now() < deadline, "{method} {path}: {answer}");
            }
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// As [`World::until_account`], with the patience for a crash on the way.
async fn until_object(world: &World, name: &str, what: &str, holds: impl Fn(&KubesvcAccount) -> bool) {
    eventually(&format!("account {name} that {what}"), 2 * PATIENCE, async || {
        let account = world.object(name).await.ok_or("there is none")?;
        if holds(&account) { Ok(()) } else { Err(format!("{:?}", account.status)) }
    })
    .await;
}

/// The Secret of an account made by REST holds what the caller gave last, and belongs to the account.
async fn check_secret(world: &World, account: &str, kubeconfig: &str) {
    let secret = world.api::<Secret>().get(&names::credential_secret_name(account)).await;
    let secret = must(secret.map_err(|error| format!("the Secret of {account}: {error}")));
    let data = secret.data.unwrap_or_default();
    assert!(
        data.values().any(|content| content.0 == kubeconfig.as_bytes()),
        "the Secret of {account} holds something else"
    );
    let object = world.object(account).await.expect("it is there");
    let owners = secret.metadata.owner_references.unwrap_or_default();
    assert!(
        owners.iter().any(|owner| Some(&owner.uid) == object.metadata.uid.as_ref()),
        "the Secret of {account} has no owner: {owners:?}"
    );
}
