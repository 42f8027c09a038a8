//! Agents of all replicas can be listed and disconnected through any replica.

use k8s_openapi::api::core::v1::Endpoints;
use kube::api::PostParams;
use kubesvc_core::{SessionId, State};
use serde_json::{Value, json};

use super::{FIRST, SECOND, two};
use crate::world::{Agent, Call, Database, MAX_WAIT, Operator, SERVICE, World, address};
use kubesvc_testkit::{must, wait::eventually};

/// Agents as a replica lists them: id, replica, and whether that replica answers.
async fn agents(asked: &Operator) -> Result<Vec<(String, String, bool)>, String> {
    let answer = asked.get("/armory/agents").await?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let one = |agent: &Value| {
        (text(&agent["agentId"]), text(&agent["clouddriverId"]), agent["clouddriverAlive"] == json!(true))
    };
    Ok(answer.json.as_array().ok_or("no list")?.iter().map(one).collect())
}

async fn until_agents(asked: &Operator, expected: &[(&str, &str, bool)]) {
    eventually(&format!("agents {expected:?}"), MAX_WAIT, async || {
        let listed = agents(asked).await?;
        let shown: Vec<_> =
            listed.iter().map(|(id, replica, alive)| (id.as_str(), replica.as_str(), *alive)).collect();
        if shown == expected { Ok(()) } else { Err(format!("{shown:?}")) }
    })
    .await;
}

/// Id of the session in an agent's object.
async fn session(world: &World, agent: &Agent) -> Option<SessionId> {
    let status = world.agent_object(agent).await?.status?;
    status.session.filter(|_| status.connected).map(|session| session.id)
}

fn disconnect(id: &str) -> Call {
    Call::new("POST", &format!("/armory/agent/{id}/disconnect"))
}

#[tokio::test(flavor = "multi_thread")]
async fn every_replica_shows_all_agents_and_the_holders_of_an_account() {
    let (world, second) = two(Database::Postgres).await;
    let cluster = world.cluster("spinnaker").await;
    let _one = world.agent("agent-1").start().await;
    let _two = world.agent("agent-2").hub_port(second.hub_port()).start().await;
    let both = [("agent-1", FIRST, true), ("agent-2", SECOND, true)];
    until_agents(world.operator(), &both).await;
    until_agents(&second, &both).await;
    let one = must(world.operator().get("/armory/agents/agent-2").await);
    assert_eq!(one.json["clouddriverId"], json!(SECOND), "{one}");
    assert_eq!(must(second.get("/armory/agents/agent-3").await).status, 404);

    world.account("prod").zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
    world.until("prod", State::Active).await;
    for replica in [world.operator(), &second] {
        eventually("both agents that hold it", MAX_WAIT, async || {
            let account = replica.get("/armory/accounts/prod").await?;
            let listed = replica.get("/armory/accounts").await?;
            let caching = world
                .try_object("prod")
                .await?
                .and_then(|one| one.status_or_default().caching_agent().map(ToString::to_string));
            let holder = |id: &str| json!({"agentId": id, "caching": caching.as_deref() == Some(id)});
            let holders = json!([holder("agent-1"), holder("agent-2")]);
            let good = account.json["connections"] == json!(2)
                && account.json["agents"] == holders
                && listed.json["items"][0]["agents"] == holders;
            if good { Ok(()) } else { Err(format!("{account} {listed}")) }
        })
        .await;
    }
    let held = must(world.operator().get("/armory/agents/agent-2").await);
    assert_eq!(held.json["accounts"], json!(["prod"]), "{held}");
}

#[tokio::test(flavor = "multi_thread")]
async fn agent_is_disconnected_through_any_replica() {
    let (world, second) = two(Database::MariaDb).await;
    let agent = world.agent("agent/2").hub_port(second.hub_port()).start().await;
    until_agents(world.operator(), &[("agent/2", SECOND, true)]).await;
    let before = session(&world, &agent).await.expect("it is connected");

    let relayed = json!({"clusterDriven": true, "origin": "x", "timestamp": 1});
    let not_again = must(world.operator().call(disconnect("agent%2F2").json(&relayed)).await);
    assert_eq!(not_again.status, 404, "a relayed call is not relayed again: {not_again}");
    assert_eq!(session(&world, &agent).await.as_ref(), Some(&before));
    assert_eq!(must(world.operator().call(disconnect("agent-7")).await).status, 404);

    let done = must(world.operator().call(disconnect("agent%2F2")).await);
    assert_eq!((done.status, done.text.as_str()), (200, ""), "{done}");
    eventually("the agent's next session", MAX_WAIT, async || {
        let now = session(&world, &agent).await;
        if now.is_some() && now.as_ref() != Some(&before) { Ok(()) } else { Err(format!("{now:?}")) }
    })
    .await;
    assert!(second.log_text().contains("relayed by another replica"), "{}", second.log_text());
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_of_a_hanging_replica_are_shown_from_their_objects() {
    let (world, second) = two(Database::Postgres).await;
    let _one = world.agent("agent-1").start().await;
    let _two = world.agent("agent-2").hub_port(second.hub_port()).start().await;
    until_agents(world.operator(), &[("agent-1", FIRST, true), ("agent-2", SECOND, true)]).await;

    second.pause();
    // A caller would give up after half a minute.
    let shown = must(agents(world.operator()).await);
    let expected = [("agent-1", FIRST, true), ("agent-2", SECOND, false)];
    let expected = expected.map(|(id, replica, alive)| (id.to_owned(), replica.to_owned(), alive));
    assert_eq!(shown, expected);
    let log = world.operator().log_text();
    assert!(log.contains("another replica does not answer") && log.contains(SECOND), "{log}");

    let unreachable = must(world.operator().call(disconnect("agent-2")).await);
    assert_eq!(unreachable.status, 503, "{unreachable}");
    let message = unreachable.json["message"].as_str().unwrap_or_default();
    assert!(message.contains("agent-2") && message.contains(SECOND), "{message}");

    second.resume();
    until_agents(world.operator(), &[("agent-1", FIRST, true), ("agent-2", SECOND, true)]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_replica_removes_nothing_shown_by_others() {
    let (world, second) = two(Database::MariaDb).await;
    let _one = world.agent("agent-1").start().await;
    second.kill();
    until_agents(world.operator(), &[("agent-1", FIRST, true)]).await;
    assert_eq!(must(world.operator().call(disconnect("agent-7")).await).status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_without_a_named_pod_are_called_by_address() {
    let world = World::prepare().database(Database::Postgres).setting("server.address", "*").start().await;
    let second = world.replica(SECOND).await;
    let subset = |replica: &Operator| {
        json!({"addresses": [{"ip": address().to_string()}], "ports": [
        {"name": "http", "port": replica.rest_port()}, {"name": "replicas", "port": replica.calls_port()}]})
    };
    let endpoints =
        json!({"metadata": {"name": SERVICE}, "subsets": [subset(world.operator()), subset(&second)]});
    let endpoints: Endpoints = serde_json::from_value(endpoints).expect("Endpoints");
    let created = world.api::<Endpoints>().create(&PostParams::default(), &endpoints).await;
    must(created.map_err(|e| e.to_string()));
    let _one = world.agent("agent-1").start().await;
    let two = world.agent("agent-2").hub_port(second.hub_port()).start().await;
    // Each replica lists its own address too, and recognizes its own answer.
    let both = [("agent-1", FIRST, true), ("agent-2", SECOND, true)];
    until_agents(world.operator(), &both).await;
    until_agents(&second, &both).await;
    let before = session(&world, &two).await;
    let done = must(world.operator().call(disconnect("agent-2")).await);
    assert_eq!(done.status, 200, "{done}");
    eventually("the agent's next session", MAX_WAIT, async || {
        let now = session(&world, &two).await;
        if now.is_some() && now != before { Ok(()) } else { Err(format!("{now:?}")) }
    })
    .await;
}
