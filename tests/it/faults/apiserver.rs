//! The API server goes away or is paused while accounts change.

use std::time::Duration;

use kubesvc_core::State;
use serde_json::json;

use super::hold;
use super::settled::settled;
use crate::world::{Agent, MAX_WAIT, World};
use kubesvc_testkit::must;
use kubesvc_testkit::wait::eventually;

/// Number of accounts that change while it is away.
const ACCOUNTS: usize = 20;

/// A world with its own control plane and ACTIVE accounts.
async fn start() -> (World, Agent, Vec<String>) {
    let world = World::prepare().own_control_plane().start().await;
    let cluster = world.cluster("spinnaker").await;
    let agent = world.agent("agent-1").start().await;
    let names: Vec<_> = (0..ACCOUNTS).map(|number| format!("flip-{number:02}")).collect();
    for name in &names {
        world.account(name).zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
    }
    for name in &names {
        world.until(name, State::Active).await;
    }
    (world, agent, names)
}

/// Of each five accounts, two are deactivated, one is changed, one is deleted and one is left alone. All at
/// once, so that the following fault finds them in transition.
async fn flip(world: &World, names: &[String]) {
    let changes = names.iter().enumerate().map(async |(number, name)| match number % 5 {
        0 | 1 => drop(world.patch(name, json!({"spec": {"state": "INACTIVE"}})).await),
        2 => drop(world.patch(name, json!({"spec": {"kinds": ["deployment"]}})).await),
        3 => world.delete(name).await,
        _ => {}
    });
    futures::future::join_all(changes).await;
}

const AWAY: &str = "the API server does not answer";
const BACK: &str = "the API server answers again";

/// The operator's warnings and errors after the first `lines` lines.
fn warnings_since(world: &World, lines: usize) -> Vec<String> {
    let log = world.operator().log_text();
    let is_warning = |line: &&str| [" WARN ", "ERROR "].iter().any(|level| line.contains(level));
    log.lines().skip(lines).filter(is_warning).map(str::to_owned).collect()
}

async fn flipped(world: &World, agent: &Agent, names: &[String]) {
    let wanted: Vec<_> = names
        .iter()
        .enumerate()
        .filter(|(number, _)| number % 5 != 3)
        .map(|(number, name)| (name.as_str(), if number % 5 < 2 { State::Inactive } else { State::Active }))
        .collect();
    settled(world, &[agent], &wanted).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn api_server_restart_only_delays_changes() {
    let (world, agent, names) = start().await;
    let before = world.object(&names[4]).await.expect("it is there").status_or_default().epoch;
    flip(&world, &names).await;
    let said_before = world.operator().log_text().lines().count();
    world.control_plane().stop_apiserver();
    hold(Duration::from_secs(3)).await;
    assert!(world.operator().is_running(), "it waits for the API server");
    assert_eq!(world.get("/health/liveness").await.status, 200);
    // Lists come from the index; a single account is read from the API server, and the error says what is
    // missing.
    assert_eq!(world.get("/armory/accounts").await.status, 200);
    let one = world.get(&format!("/armory/accounts/{}", names[0])).await;
    assert!(one.status == 503 && one.text.contains("API server"), "{one}");
    let warnings = warnings_since(&world, said_before);
    assert_eq!(warnings.len(), 1, "one line, whoever misses it: {warnings:#?}");
    assert!(warnings[0].contains(AWAY), "{warnings:#?}");
    must(world.control_plane().start_apiserver().await);
    flipped(&world, &agent, &names).await;
    let back = eventually("the end of the outage in the log", MAX_WAIT, async || {
        let log = world.operator().log_text();
        let back: Vec<_> = log.lines().filter(|line| line.contains(BACK)).map(str::to_owned).collect();
        if back.is_empty() { Err(log) } else { Ok(back) }
    })
    .await;
    assert!(back.len() == 1 && back[0].contains("seconds"), "{back:#?}");
    let away = warnings_since(&world, said_before).iter().filter(|line| line.contains(AWAY)).count();
    assert_eq!(away, 1, "it was away once");
    let after = world.object(&names[4]).await.expect("it is there").status_or_default().epoch;
    assert_eq!(after, before, "what nobody changed is not activated anew");
}

#[tokio::test(flavor = "multi_thread")]
async fn paused_api_server_only_delays_changes() {
    let (world, agent, names) = start().await;
    flip(&world, &names).await;
    world.control_plane().pause();
    hold(Duration::from_secs(5)).await;
    world.control_plane().resume();
    flipped(&world, &agent, &names).await;
    assert!(world.operator().is_running());
}
