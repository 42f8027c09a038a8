//! Agents exit, are paused and lose their connection in the middle of everything.

use std::time::Duration;

use kubesvc_core::{BootId, KubesvcAccount, State};
use serde_json::{Value, json};

use super::hold;
use super::proxy::{Proxy, ProxyMode};
use super::settled::settled;
use crate::world::{Agent, Cluster, MAX_WAIT, Prepare, World, condition};
use kubesvc_testkit::wait::eventually;

/// Creates accounts in zone east and waits until all are ACTIVE.
async fn activate(world: &World, cluster: &Cluster, names: &[&str]) {
    for name in names {
        world.account(name).zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
    }
    for name in names {
        world.until(name, State::Active).await;
    }
}

/// Accounts that exist before everything changes.
const BEFORE: [&str; 4] = ["changed", "stopped", "deleted", "kept"];
/// Expected states afterwards.
const EVERYTHING_CHANGED: [(&str, State); 4] = [
    ("changed", State::Active),
    ("stopped", State::Inactive),
    ("kept", State::Active),
    ("made", State::Active),
];

/// Requests one change of each kind, and waits for none.
async fn change_everything(world: &World, cluster: &Cluster) {
    world.patch("changed", json!({"spec": {"kinds": ["deployment"]}})).await;
    world.patch("stopped", json!({"spec": {"state": "INACTIVE"}})).await;
    world.delete("deleted").await;
    world.account("made").zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
}

/// A world whose agent connects through a proxy. Dropped in this order.
struct ProxiedAgent {
    agent: Agent,
    proxy: Proxy,
    cluster: Cluster,
    world: World,
}

impl ProxiedAgent {
    async fn start(prepare: Prepare) -> Self {
        let world = prepare.start().await;
        let cluster = world.cluster("spinnaker").await;
        let proxy = Proxy::to(world.operator().hub_port()).await;
        let agent = world.agent("agent-1").hub_port(proxy.port()).start().await;
        Self { agent, proxy, cluster, world }
    }
}

/// Number of the operator's writes to the status of accounts.
fn status_writes(world: &World) -> usize {
    world.operator_writes("kubesvcaccounts").iter().filter(|write| write.subresource == "status").count()
}

async fn until_held(world: &World, agent: &Agent, count: usize) {
    eventually(&format!("{count} accounts held by {}", agent.id()), MAX_WAIT, async || {
        let agents = world.try_get("/armory/agents").await?;
        let listed = agents.json.as_array().into_iter().flatten().find(|one| one["agentId"] == agent.id());
        let held = listed.and_then(|one| one["accounts"].as_array()).map_or(0, Vec::len);
        let own = world.ask_agent(agent).await?;
        if held == count && own["accountsHeld"] == count && own["connected"] == true {
            Ok(())
        } else {
            Err(format!("{agents}, and it says {own}"))
        }
    })
    .await;
}

async fn boot_id(world: &World, agent: &Agent) -> Option<BootId> {
    Some(world.agent_object(agent).await?.status?.session?.boot_id)
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_killed_during_changes_completes_them_after_restart() {
    let (world, cluster, agent) = World::with_agent().await;
    activate(&world, &cluster, &BEFORE).await;
    change_everything(&world, &cluster).await;
    agent.kill();

    // Nothing waits longer than the grace, and each state says what is going on.
    world.until_gone("deleted").await;
    world.until("stopped", State::Inactive).await;
    world.until("kept", State::Orphaned).await;
    world.until_row("kept", "ORPHANED").await;
    let made = eventually("an answer about the account that was made", MAX_WAIT, async || {
        let account = world.try_object("made").await?.ok_or("there is none")?;
        match account.status_or_default().state() {
            State::Failed | State::Orphaned => Ok(account),
            state => Err(state.to_string()),
        }
    })
    .await;
    assert_eq!(condition(&made, "Ready").map(|ready| ready.status).as_deref(), Some("False"), "{made:#?}");

    agent.launch();
    settled(&world, &[&agent], &EVERYTHING_CHANGED).await;
}

/// With other agents, a single late heartbeat left accounts that only a restart of everything brought back.
#[tokio::test(flavor = "multi_thread")]
async fn paused_agent_is_named_then_disconnected_and_resumes() {
    let (world, cluster, agent) = World::with_agent().await;
    activate(&world, &cluster, &["held", "stopped"]).await;
    agent.pause();

    // Past the answer timeout: the message names the agent that was asked, and what is held stays.
    world.account("asked").zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
    world.patch("stopped", json!({"spec": {"state": "INACTIVE"}})).await;
    for name in ["asked", "stopped"] {
        let failed = world.until(name, State::Failed).await;
        let why = failed.status_or_default().error_message.clone().unwrap_or_default();
        assert!(why.contains("agent-1"), "{name}: {why}");
    }
    assert_eq!(world.state("held").await, Some(State::Active), "it is only slow");

    // Past three heartbeats: the agent counts as gone.
    world.until("held", State::Orphaned).await;
    world.until_connected(&agent, false).await;
    world.until("stopped", State::Inactive).await;

    agent.resume();
    let wanted = [("held", State::Active), ("asked", State::Active), ("stopped", State::Inactive)];
    settled(&world, &[&agent], &wanted).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connection_cut_during_changes_loses_none() {
    let ProxiedAgent { world, cluster, proxy, agent } = ProxiedAgent::start(World::prepare()).await;
    activate(&world, &cluster, &BEFORE).await;
    change_everything(&world, &cluster).await;
    proxy.set(ProxyMode::Cut);
    // The agent keeps what it holds, and the operator continues without the agent.
    world.until("kept", State::Orphaned).await;
    world.until_gone("deleted").await;
    world.until("stopped", State::Inactive).await;
    let own = world.ask_agent(&agent).await.expect("it runs");
    assert!(own["connected"] == false && own["accountsHeld"] != 0, "{own}");

    proxy.set(ProxyMode::Open);
    settled(&world, &[&agent], &EVERYTHING_CHANGED).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn delayed_reports_count_when_they_arrive() {
    let ProxiedAgent { world, cluster, proxy, agent } = ProxiedAgent::start(World::prepare()).await;
    activate(&world, &cluster, &BEFORE).await;
    proxy.set(ProxyMode::Held);
    change_everything(&world, &cluster).await;
    for (name, state) in [
        ("changed", State::Failed),
        ("stopped", State::Failed),
        ("deleted", State::DeleteFailed),
        ("made", State::Failed),
    ] {
        let failed = world.until(name, state).await;
        let why = failed.status_or_default().error_message.clone().unwrap_or_default();
        assert!(why.contains("agent-1"), "{name}: {why}");
    }
    assert_eq!(world.state("kept").await, Some(State::Active));

    proxy.set(ProxyMode::Open);
    settled(&world, &[&agent], &EVERYTHING_CHANGED).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_connection_fails_nothing() {
    let prepare = World::prepare().setting("kubesvc.cache.operationWaitMs", 10_000);
    let ProxiedAgent { world, cluster, proxy, agent } = ProxiedAgent::start(prepare).await;
    proxy.set(ProxyMode::Slow(Duration::from_millis(150)));
    let names: Vec<_> = (0..10).map(|number| format!("slow-{number}")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    activate(&world, &cluster, &names).await;
    let wanted: Vec<_> = names.iter().map(|name| (*name, State::Active)).collect();
    settled(&world, &[&agent], &wanted).await;
    for name in names {
        let reasons: Vec<Value> =
            world.events_about(name).await.into_iter().map(|event| event["type"].clone()).collect();
        assert!(!reasons.contains(&json!("Warning")), "{name}: {reasons:?}");
    }
}

/// With other agents, accounts were deleted seconds after a short network interruption.
#[tokio::test(flavor = "multi_thread")]
async fn cut_within_grace_costs_no_write_and_restart_costs_one() {
    let prepare = World::prepare().setting("kubesvc.dynamicAccounts.orphanGraceSeconds", 60);
    let ProxiedAgent { world, cluster, proxy, agent } = ProxiedAgent::start(prepare).await;
    let names = ["one", "two", "three", "four", "five"];
    activate(&world, &cluster, &names).await;
    let before = status_writes(&world);
    assert_eq!(before, 2 * names.len(), "ACTIVATING, ACTIVE");

    proxy.set(ProxyMode::Cut);
    world.until_connected(&agent, false).await;
    proxy.set(ProxyMode::Open);
    world.until_connected(&agent, true).await;
    until_held(&world, &agent, names.len()).await;
    assert_eq!(status_writes(&world), before, "{:#?}", world.operator_writes("kubesvcaccounts"));

    let boot = boot_id(&world, &agent).await;
    agent.kill();
    agent.launch();
    eventually("another process of the agent", MAX_WAIT, async || {
        let now = boot_id(&world, &agent).await;
        if now == boot { Err(format!("{now:?}")) } else { Ok(()) }
    })
    .await;
    until_held(&world, &agent, names.len()).await;

    let boot = boot_id(&world, &agent).await;
    for name in names {
        let wanted = "is cached by the new process";
        let caching = |account: &KubesvcAccount| account.status_or_default().caching.clone();
        world
            .until_account(name, wanted, |account| caching(account).and_then(|one| one.boot_id) == boot)
            .await;
    }
    let wanted = names.map(|name| (name, State::Active));
    settled(&world, &[&agent], &wanted).await;
    // The only write is the process that caches the account; no account was ORPHANED meanwhile.
    assert_eq!(
        status_writes(&world),
        before + names.len(),
        "{:#?}",
        world.operator_writes("kubesvcaccounts")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn second_process_with_an_agent_id_is_refused_until_the_first_is_gone() {
    let world = World::start().await;
    let cluster = world.cluster("spinnaker").await;
    let first = world.agent("agent-1").start().await;
    activate(&world, &cluster, &["one", "two"]).await;
    let (boot, before) = (boot_id(&world, &first).await, status_writes(&world));

    let second = world.agent("agent-1").in_separate_folder().launch();
    eventually("a refusal that names the reason", MAX_WAIT, async || {
        let log = second.log_text();
        if log.contains("DUPLICATE_AGENT_ID") { Ok(()) } else { Err(log) }
    })
    .await;
    settled(&world, &[&first], &[("one", State::Active), ("two", State::Active)]).await;
    assert_eq!(boot_id(&world, &first).await, boot, "the first stays");
    assert_eq!(status_writes(&world), before, "and nothing was written");
    let own = world.ask_agent(&second).await.expect("it runs");
    assert!(own["connected"] == false && own["accountsHeld"] == 0, "{own}");

    first.kill();
    settled(&world, &[&second], &[("one", State::Active), ("two", State::Active)]).await;
    assert_ne!(boot_id(&world, &second).await, boot);
}

#[tokio::test(flavor = "multi_thread")]
async fn flapping_connection_converges_once_stable() {
    let ProxiedAgent { world, cluster, proxy, agent } = ProxiedAgent::start(World::prepare()).await;
    let names: Vec<_> = (0..6).map(|number| format!("flaky-{number}")).collect();
    for name in &names {
        world.account(name).zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
    }
    for (round, name) in names.iter().take(3).enumerate() {
        // Each cut occurs at another moment of an activation.
        hold(Duration::from_millis(70 * (round as u64 + 1))).await;
        proxy.set(ProxyMode::Cut);
        world.patch(name, json!({"spec": {"kinds": ["deployment"]}})).await;
        proxy.set(ProxyMode::Open);
    }
    let wanted: Vec<_> = names.iter().map(|name| (name.as_str(), State::Active)).collect();
    settled(&world, &[&agent], &wanted).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn account_leaves_a_zone_only_after_its_agent_dropped_it() {
    let world = World::start().await;
    let cluster = world.cluster("spinnaker").await;
    let east = world.agent("agent-1").zone("east").start().await;
    let west = world.agent("agent-2").zone("west").start().await;
    activate(&world, &cluster, &["moved"]).await;
    east.pause();
    world.patch("moved", json!({"spec": {"zoneId": "west"}})).await;
    let failed = world.until("moved", State::Failed).await;
    let status = failed.status_or_default();
    assert_eq!(status.granted_zone(), Some(&"east".into()), "it may still hold it: {status:#?}");
    assert!(status.error_message.as_ref().is_some_and(|why| why.contains("agent-1")), "{status:#?}");
    let own = world.ask_agent(&west).await.expect("it runs");
    assert!(own["accountsHeld"] == 0 && own["accountsStarting"] == 0, "{own}");

    east.resume();
    settled(&world, &[&east, &west], &[("moved", State::Active)]).await;
    let moved = world.object("moved").await.expect("it is there");
    assert_eq!(moved.status_or_default().granted_zone(), Some(&"west".into()));
}
