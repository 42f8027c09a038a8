//! Agents come, go and come back.

use kubesvc_core::{BootId, KubesvcAgent, State};
use serde_json::json;

use super::{Scene, activate_another, held_by, writes};
use crate::world::{Agent, MAX_WAIT, World};
use kubesvc_testkit::wait::eventually;

pub(super) async fn account_is_orphaned_when_its_agent_is_killed_and_recovers(scene: &Scene) {
    let Scene { world, cluster, .. } = scene;
    let agent = world.agent("agent-killed").zone("killed").start().await;
    world.account("orphan").zone("killed").kubeconfig(&cluster.kubeconfig()).create().await;
    let before = world.until("orphan", State::Active).await;

    agent.kill();
    let orphan = world.until("orphan", State::Orphaned).await;
    world.kubectl_wait("orphan", "condition=Ready=False").await;
    world.kubectl_wait("orphan", "condition=Reconciling").await;
    assert_eq!(orphan.status_or_default().epoch, before.status_or_default().epoch);
    world.until_row("orphan", "ORPHANED").await;
    world.until_connected(&agent, false).await;

    agent.launch();
    let after = world.until("orphan", State::Active).await;
    assert_eq!(after.status_or_default().epoch, before.status_or_default().epoch, "the same grant goes on");
    assert_eq!(after.status_or_default().failed_count, 0);
    world.until_row("orphan", "ACTIVE").await;
    activate_another(world, cluster, "after-orphan", "killed").await;
    assert_eq!(writes(world, "orphan"), 5, "3, ORPHANED, ACTIVE: {:#?}", world.writes_to("orphan"));
}

/// Waits until a process of the agent with another boot id holds an account and no other.
async fn until_held_by_another_process(world: &World, agent: &Agent, boot_before: &BootId, account: &str) {
    eventually("the new process that holds the account", MAX_WAIT, async || {
        let boot = boot_of(world.try_agent_object(agent).await?);
        if boot == *boot_before {
            return Err(format!("its boot id is still {boot}"));
        }
        let held = held_by(world, agent).await?;
        if held == [account] { Ok(()) } else { Err(format!("{held:?}")) }
    })
    .await;
}

async fn boot_id(world: &World, agent: &Agent) -> BootId {
    boot_of(world.agent_object(agent).await)
}

fn boot_of(agent: Option<KubesvcAgent>) -> BootId {
    let session = agent.and_then(|object| object.status?.session);
    session.map(|session| session.boot_id).unwrap_or_default()
}

pub(super) async fn agent_restart_within_grace_costs_one_write_of_the_caching_process(scene: &Scene) {
    let Scene { world, cluster, .. } = scene;
    let agent = world.agent("agent-restarts").zone("restarts").start().await;
    world.account("restarted").zone("restarts").kubeconfig(&cluster.kubeconfig()).create().await;
    world.until("restarted", State::Active).await;
    for killed in [true, false] {
        let boot = boot_id(world, &agent).await;
        if killed {
            agent.kill();
        } else {
            assert!(agent.terminate().await.success(), "SIGTERM ends an agent well");
        }
        agent.launch();
        until_held_by_another_process(world, &agent, &boot, "restarted").await;
        let boot = boot_id(world, &agent).await;
        let cached = world
            .until_account("restarted", "is cached by the new process", |account| {
                let caching = account.status_or_default().caching.clone();
                caching.and_then(|caching| caching.boot_id).as_ref() == Some(&boot)
            })
            .await;
        assert_eq!(cached.status_or_default().state(), State::Active);
    }
    assert_eq!(world.shown("restarted").await.as_deref(), Some("ACTIVE"));
    assert_eq!(writes(world, "restarted"), 3 + 2, "{:#?}", world.writes_to("restarted"));
}

pub(super) async fn second_agent_of_the_zone_holds_the_account_and_takes_over(scene: &Scene) {
    let Scene { world, cluster, .. } = scene;
    let first = world.agent("agent-pair-1").zone("pair").start().await;
    world.account("paired").zone("pair").kubeconfig(&cluster.kubeconfig()).create().await;
    world.until("paired", State::Active).await;
    let _second = world.agent("agent-pair-2").zone("pair").start().await;
    eventually("two agents that hold the account", MAX_WAIT, async || {
        let answer = world.try_get("/armory/accounts/paired").await?;
        if answer.json["connections"] == 2 { Ok(()) } else { Err(answer.to_string()) }
    })
    .await;
    let alone = world.agent("agent-alone").zone("alone").start().await;
    world.account("unpaired").zone("alone").kubeconfig(&cluster.kubeconfig()).create().await;
    world.until("unpaired", State::Active).await;
    first.kill();
    world.until_connected(&first, false).await;
    // If the loss of one of two agents orphaned an account, it would be orphaned before one that loses its only
    // agent later.
    alone.kill();
    world.until("unpaired", State::Orphaned).await;
    activate_another(world, cluster, "after-paired", "pair").await;
    let states: Vec<_> =
        world.events_about("paired").await.iter().map(|event| event["reason"].clone()).collect();
    assert!(!states.contains(&json!("Orphaned")), "{states:?}");
    assert_eq!(world.state("paired").await, Some(State::Active));
}

pub(super) async fn agent_of_another_zone_never_gets_the_account(scene: &Scene) {
    let Scene { world, cluster, .. } = scene;
    let west = world.agent("agent-2").zone("west").start().await;
    let south = world.agent("agent-3").zone("south").start().await;
    world.account("moved").zone("south").kubeconfig(&cluster.kubeconfig()).create().await;
    world.until("moved", State::Active).await;
    world.patch("moved", json!({"spec": {"zoneId": "west"}})).await;
    let moved = world
        .until_account("moved", "is ACTIVE in zone west", |account| {
            let status = account.status_or_default();
            status.state() == State::Active && status.granted_zone() == Some(&"west".into())
        })
        .await;
    assert_eq!(moved.status_or_default().agents, ["agent-2"]);
    let held = (held_by(world, &south).await, held_by(world, &west).await);
    assert_eq!(held, (Ok(vec![]), Ok(vec!["moved".to_owned()])));
    assert_eq!(writes(world, "moved"), 3 + 4, "a move takes four: {:#?}", world.writes_to("moved"));
}

pub(super) async fn agent_reports_its_connection_and_reconnects_after_operator_restart(scene: &Scene) {
    let Scene { world, cluster, .. } = scene;
    let agent = world.agent("agent-reports").zone("reports").start().await;
    world.account("reported").zone("reports").kubeconfig(&cluster.kubeconfig()).create().await;
    world.until("reported", State::Active).await;
    let ready = async |wanted: u16| {
        eventually(&format!("an agent that answers {wanted}"), MAX_WAIT, async || {
            let answer = agent.try_get("/health/readiness").await?;
            if answer.status == wanted { Ok(answer) } else { Err(answer.to_string()) }
        })
        .await
    };
    ready(200).await;
    let report = agent.get("/health").await;
    assert_eq!(
        (&report.json["agentId"], &report.json["accountsHeld"]),
        (&json!("agent-reports"), &json!(1)),
        "{report}"
    );
    world.operator().kill();
    let down = ready(503).await;
    assert!(
        down.json["missing"][0].as_str().is_some_and(|why| why.contains("not connected to the hub")),
        "{down}"
    );
    assert_eq!(agent.get("/health/liveness").await.status, 200);
    world.operator().start().await;
    ready(200).await;
}

/// With other agents, a restart of either side caused minutes of timeouts.
pub(super) async fn accounts_are_held_within_seconds_after_either_side_restarts(scene: &Scene) {
    let Scene { world, cluster, agent } = scene;
    for (after, name) in [("the agent", "after-agent"), ("the operator", "after-operator")] {
        if after == "the agent" {
            agent.kill();
            agent.launch();
        } else {
            world.operator().kill_and_start().await;
        }
        let kubeconfig = cluster.kubeconfig();
        let taken = async {
            world.account(name).zone("east").kubeconfig(&kubeconfig).create().await;
            world.until(name, State::Active).await;
            world.until_row(name, "ACTIVE").await;
        };
        let in_time = tokio::time::timeout(std::time::Duration::from_secs(20), taken).await;
        assert!(in_time.is_ok(), "20 s after a restart of {after} an account is not yet taken");
    }
}
