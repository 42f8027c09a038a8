//! Ids of agents: strangers who know from REST which exist, and clusters whose agents have the same.

use std::time::Duration;

use kube::api::{Patch, PatchParams};
use kubesvc_core::wire::ops::refused::Reason;
use kubesvc_core::{KubesvcAgent, State, ZoneId, object_names};
use serde_json::json;

use crate::world::{Agent, Call, MAX_WAIT, World};
use kubesvc_testkit::must;
use kubesvc_testkit::simulated_agent::SimulatedAgent;
use kubesvc_testkit::simulated_agent::frames::{Introduction, NoSession, Policy};
use kubesvc_testkit::wait::eventually;

/// Number of hellos that a stranger sends after each disconnect.
const TRIES: usize = 10;

#[tokio::test(flavor = "multi_thread")]
async fn disconnected_agent_id_is_refused_to_other_processes() {
    disconnected_agent_id_is_reserved("auto").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn disconnected_approved_agent_id_is_refused_to_other_processes() {
    disconnected_agent_id_is_reserved("manual").await;
}

async fn disconnected_agent_id_is_reserved(approval: &str) {
    let prepare = World::prepare().setting("kubesvc.agents.approval", approval);
    let world = prepare.setting("kubesvc.dynamicAccounts.orphanGraceSeconds", 120).start().await;
    let cluster = world.cluster("spinnaker").await;
    let agent = world.agent("agent-1").start().await;
    if approval == "manual" {
        approve(&world, &agent).await;
    }
    world.account("prod").zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
    world.until("prod", State::Active).await;

    let listed = world.get("/armory/agents").await;
    let (id, zone) = (listed.json[0]["agentId"].as_str().unwrap_or_default(), agent.zone());
    assert_eq!(id, agent.id(), "{listed}");
    // Once the agent cannot be faster than the stranger, and once it can.
    for is_paused in [true, false] {
        if is_paused {
            agent.pause();
        }
        let path = format!("/armory/agent/{id}/disconnect");
        // The agent's object shows the disconnect late; the response to the call itself shows that the agent
        // is back.
        eventually("the agent is disconnected", MAX_WAIT, async || {
            let answer = world.call(Call::new("POST", &path)).await;
            if answer.status == 200 { Ok(()) } else { Err(answer.to_string()) }
        })
        .await;
        for _ in 0..TRIES {
            is_refused(&world, Introduction::new(id, zone)).await;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        agent.resume();
    }
    world.until_connected(&agent, true).await;
    assert_eq!(world.state("prod").await, Some(State::Active));
    for _ in 0..TRIES {
        is_refused(&world, Introduction::new(id, zone)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_of_two_zones_with_one_id_hold_the_accounts_of_their_zones() {
    const ID: &str = "kubesvc-agent-0";
    let world = World::start().await;
    let cluster = world.cluster("spinnaker").await;
    let zones = ["east", "west"];
    let mut agents = Vec::new();
    for zone in zones {
        agents.push(world.agent(ID).zone(zone).start().await);
        world.account(zone).zone(zone).kubeconfig(&cluster.kubeconfig()).create().await;
    }
    for (zone, agent) in zones.iter().zip(&agents) {
        world.until(zone, State::Active).await;
        world.until_connected(agent, true).await;
    }
    world.until_assigned(&[("east", ID), ("west", ID)]).await;
    let listed = world.get("/armory/agents").await;
    let held: Vec<_> = listed.json.as_array().into_iter().flatten().collect();
    assert_eq!(held.len(), 2, "{listed}");
    for (zone, one) in zones.iter().zip(held) {
        assert_eq!(
            (&one["agentId"], &one["zoneId"], &one["accounts"]),
            (&json!(ID), &json!(zone), &json!([zone]))
        );
    }
    let west = world.get(&format!("/armory/agents/{ID}?zoneId=west")).await;
    assert_eq!(west.json["accounts"], json!(["west"]), "{west}");
    let disconnect = async |query: &str| {
        world.call(Call::new("POST", &format!("/armory/agent/{ID}/disconnect{query}"))).await.status
    };
    assert_eq!((disconnect("?zoneId=south").await, disconnect("").await), (404, 200));
    for (zone, agent) in zones.iter().zip(&agents) {
        world.until_connected(agent, true).await;
        world.until(zone, State::Active).await;
    }
}

async fn is_refused(world: &World, stranger: Introduction) {
    let hub = format!("127.0.0.1:{}", world.operator().hub_port());
    let answer = match SimulatedAgent::connect(&hub, stranger, Policy::default()).await {
        Err(NoSession::Refused(refused)) => Ok(refused.reason()),
        Err(problem) => Err(problem.to_string()),
        Ok(session) => Err(format!("the stranger has {session:?}, and was sent {:?}", session.received())),
    };
    assert_eq!(must(answer), Reason::DuplicateAgentId);
}

async fn approve(world: &World, agent: &Agent) {
    let name = object_names::agent_object_name(&agent.id().into(), &ZoneId::from(agent.zone()));
    let approved = Patch::Merge(json!({"spec": {"approved": true}}));
    let agents = world.api::<KubesvcAgent>();
    must(agents.patch(&name, &PatchParams::default(), &approved).await.map(drop).map_err(|e| e.to_string()));
}
