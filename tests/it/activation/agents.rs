//! Agents come, go and come back.

use kubesvc_core::{BootId, KubesvcAgent, State};
use serde_json::json;

use super::{activate_another, writes};
use crate::world::{Agent, MAX_WAIT, World};
use kubesvc_testkit::wait::eventually;

#[tokio::test(flavor = "multi_thread")]
async fn account_is_orphaned_when_its_agent_is_killed_and_recovers() {
    // A machine that stalls for a few seconds orphans no account and fails none.
    let patient = World::prepare()
        .setting("kubesvc.dynamicAccounts.orphanGraceSeconds", 8)
        .setting("kubesvc.cache.operationWaitMs", 120_000);
    let world = patient.start().await;
    let cluster = world.cluster("spinnaker").await;
    let agent = world.agent("agent-1").start().await;
    world.account("prod").zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
    let before = world.until("prod", State::Active).await;

    agent.kill();
    let orphan = world.until("prod", State::Orphaned).await;
    world.kubectl_wait("prod", "condition=Ready=False").await;
    world.kubectl_wait("prod", "condition=Reconciling").await;
    assert_eq!(orphan.status_or_default().epoch, before.status_or_default().epoch);
    world.until_row("prod", "ORPHANED").await;
    world.until_connected(&agent, false).await;

    agent.launch();
    let after = world.until("prod", State::Active).await;
    assert_eq!(after.status_or_default().epoch, before.status_or_default().epoch, "the same grant goes on");
    assert_eq!(after.status_or_default().failed_count, 0);
    world.until_row("prod", "ACTIVE").await;
    activate_another(&world, &cluster, "next", "east").await;
    assert_eq!(writes(&world, "prod"), 5, "3, ORPHANED, ACTIVE: {:#?}", world.writes_to("prod"));
}

/// Waits until a process of the agent with another boot id holds an account.
async fn until_held_by_another_process(world: &World, agent: &Agent, boot_before: &BootId, account: &str) {
    eventually("the new process that holds the account", MAX_WAIT, async || {
        let boot = boot_of(world.try_agent_object(agent).await?);
        if boot == *boot_before {
            return Err(format!("its boot id is still {boot}"));
        }
        let agents = world.try_get("/armory/agents").await?;
        let listed = agents.json.as_array().into_iter().flatten();
        let holds =
            listed.filter(|one| one["agentId"] == agent.id()).any(|one| one["accounts"] == json!([account]));
        if holds { Ok(()) } else { Err(agents.to_string()) }
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

#[tokio::test(flavor = "multi_thread")]
async fn agent_restart_within_grace_costs_one_write_of_the_caching_process() {
    let (world, cluster, agent) = World::with_long_timeouts().await;
    world.account("prod").zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
    world.until("prod", State::Active).await;
    for killed in [true, false] {
        let boot = boot_id(&world, &agent).await;
        if killed {
            agent.kill();
        } else {
            assert!(agent.terminate().await.success(), "SIGTERM ends an agent well");
        }
        agent.launch();
        until_held_by_another_process(&world, &agent, &boot, "prod").await;
        let boot = boot_id(&world, &agent).await;
        let cached = world
            .until_account("prod", "is cached by the new process", |account| {
                let caching = account.status_or_default().caching.clone();
                caching.and_then(|caching| caching.boot_id).as_ref() == Some(&boot)
            })
            .await;
        assert_eq!(cached.status_or_default().state(), State::Active);
    }
    assert_eq!(world.shown("prod").await.as_deref(), Some("ACTIVE"));
    assert_eq!(writes(&world, "prod"), 3 + 2, "{:#?}", world.writes_to("prod"));
}

#[tokio::test(flavor = "multi_thread")]
async fn second_agent_of_the_zone_holds_the_account_and_takes_over() {
    let world = World::start().await;
    let cluster = world.cluster("spinnaker").await;
    let first = world.agent("agent-1").start().await;
    world.account("prod").zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
    world.until("prod", State::Active).await;
    let _second = world.agent("agent-2").start().await;
    eventually("two agents that hold the account", MAX_WAIT, async || {
        let answer = world.try_get("/armory/accounts/prod").await?;
        if answer.json["connections"] == 2 { Ok(()) } else { Err(answer.to_string()) }
    })
    .await;
    first.kill();
    world.until_connected(&first, false).await;
    // Longer than the grace: if the loss of one of two agents orphaned an account, it would be orphaned by
    // now.
    world.account("lost").zone("nowhere").kubeconfig(&cluster.kubeconfig()).create().await;
    world.until_reason("lost", State::Failed, "NoAgent").await;
    activate_another(&world, &cluster, "next", "east").await;
    let states: Vec<_> =
        world.events_about("prod").await.iter().map(|event| event["reason"].clone()).collect();
    assert!(!states.contains(&json!("Orphaned")), "{states:?}");
    assert_eq!(world.state("prod").await, Some(State::Active));
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_of_another_zone_never_gets_the_account() {
    let world = World::prepare().with_long_timeouts().start().await;
    let cluster = world.cluster("spinnaker").await;
    let _west = world.agent("agent-2").zone("west").start().await;
    let _east = world.agent("agent-1").zone("east").start().await;
    world.account("prod").zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
    world.until("prod", State::Active).await;
    world.patch("prod", json!({"spec": {"zoneId": "west"}})).await;
    let moved = world
        .until_account("prod", "is ACTIVE in zone west", |account| {
            let status = account.status_or_default();
            status.state() == State::Active && status.granted_zone() == Some(&"west".into())
        })
        .await;
    assert_eq!(moved.status_or_default().agents, ["agent-2"]);
    let agents = world.get("/armory/agents").await;
    let holds = |id: &str| {
        let one = agents.json.as_array().into_iter().flatten().find(|one| one["agentId"] == id);
        one.map(|one| one["accounts"].clone())
    };
    assert_eq!((holds("agent-1"), holds("agent-2")), (Some(json!([])), Some(json!(["prod"]))), "{agents}");
    assert_eq!(writes(&world, "prod"), 3 + 4, "a move takes four: {:#?}", world.writes_to("prod"));
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_reports_its_connection_and_reconnects_after_operator_restart() {
    let world = World::start().await;
    let cluster = world.cluster("spinnaker").await;
    let agent = world.agent("agent-1").start().await;
    world.account("prod").zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
    world.until("prod", State::Active).await;
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
        (&json!("agent-1"), &json!(1)),
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
#[tokio::test(flavor = "multi_thread")]
async fn accounts_are_held_within_seconds_after_either_side_restarts() {
    let world = World::start().await;
    let cluster = world.cluster("spinnaker").await;
    let agent = world.agent("agent-1").start().await;
    world.account("prod").zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
    world.until("prod", State::Active).await;
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
