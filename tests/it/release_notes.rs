//! Problems of the Armory Scale Agent with several replicas, according to its release notes, do not occur
//! here.
//!
//! Tests for further ones are in other files: a restart of either side (`end_to_end`), a second process with
//! the id of an agent (`replicas`, `followers`), a replica that dies before it has forwarded an answer
//! (`followers`).

use std::time::Duration;

use kubesvc_core::{KubesvcAccount, KubesvcAgent, State, object_names};
use serde_json::json;
use url::Url;

use crate::faults::proxy::{Proxy, ProxyMode};
use crate::world::{Database, MAX_WAIT, Operator, Prepare, World};
use kubesvc_testkit::simulated_agent::{
    SimulatedAgent,
    frames::{Introduction, OnAdd, Policy, identity},
};
use kubesvc_testkit::{must, wait::eventually};

/// Validity of a Lease unless a test sets another one, in seconds.
const LEASE: u64 = 6;
/// Far longer than a test waits: a condition that comes true did not wait for the expiry of such a Lease.
const ENDLESS: u64 = 600;

fn prepare(grace: u64, lease: u64) -> Prepare {
    World::prepare()
        .database(Database::Postgres)
        .setting("kubesvc.leaderElection.leaseDurationSeconds", lease)
        .setting("kubesvc.leaderElection.renewDeadlineSeconds", lease * 2 / 3)
        .setting("kubesvc.leaderElection.retryPeriodSeconds", 1)
        .setting("kubesvc.dynamicAccounts.orphanGraceSeconds", grace)
}

/// Two replicas; the first one leads.
async fn two(grace: u64) -> (World, Operator) {
    two_of(prepare(grace, LEASE)).await
}

/// Like [`two`], with prepared settings.
async fn two_of(prepare: Prepare) -> (World, Operator) {
    let world = prepare.start().await;
    let follower = world.replica("operator-1").await;
    assert_eq!(world.until_one_leads(&[world.operator(), &follower]).await, 0, "the first one was first");
    (world, follower)
}

async fn connect(replica: &Operator, introduction: Introduction, policy: Policy) -> SimulatedAgent {
    let hub = format!("127.0.0.1:{}", replica.hub_port());
    must(SimulatedAgent::connect(&hub, introduction, policy).await.map_err(|reason| reason.to_string()))
}

async fn agent(replica: &Operator, id: &str) -> SimulatedAgent {
    connect(replica, Introduction::new(id, "east"), Policy::default()).await
}

/// Creates an account in zone east and waits until it is ACTIVE, in its row too.
async fn active(world: &World, name: &str) -> KubesvcAccount {
    let kubeconfig = world.cluster(&format!("{name}-user")).await.kubeconfig();
    world.account(name).zone("east").kubeconfig(&kubeconfig).create().await;
    let account = world.until(name, State::Active).await;
    world.until_row(name, "ACTIVE").await;
    account
}

/// Waits until a simulated agent holds `count` accounts.
async fn holds(agent: &SimulatedAgent, count: usize) {
    eventually(&format!("{agent:?} holds {count}"), MAX_WAIT, async || match agent.held().len() {
        held if held == count => Ok(()),
        held => Err(format!("it holds {held}")),
    })
    .await;
}

/// Waits until the object of an agent in zone east shows the wanted connection state.
async fn until_connected(world: &World, id: &str, wanted: bool) {
    eventually(&format!("agent {id} with connected: {wanted}"), MAX_WAIT, async || {
        let object = world
            .api::<KubesvcAgent>()
            .get(&object_names::agent_object_name(&id.into(), &"east".into()))
            .await;
        let status = object.map_err(|error| error.to_string())?.status.unwrap_or_default();
        if status.connected == wanted { Ok(()) } else { Err(format!("{status:?}")) }
    })
    .await;
}

/// Waits for a newly created account: by then the leader has processed everything before.
async fn until_leader_has_checked(world: &World, name: &str) {
    active(world, name).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn overlapping_agent_pods_orphan_nothing() {
    let (world, follower) = two(2).await;
    let old = agent(&follower, "pod-old").await;
    until_connected(&world, "pod-old", true).await;
    let account = active(&world, "prod").await;
    let writes = world.writes_to("prod").len();
    let new = agent(world.operator(), "pod-new").await;
    holds(&new, 1).await;
    // The old pod is gone without a goodbye, and is flushed a while after the new one connects.
    drop(old);
    until_connected(&world, "pod-old", false).await;
    // The fault: longer than the grace.
    tokio::time::sleep(Duration::from_secs(5)).await;
    until_leader_has_checked(&world, "after").await;
    let now = world.object("prod").await.expect("it is there");
    assert_eq!(now.status_or_default().state(), State::Active);
    assert_eq!(now.status_or_default().epoch, account.status_or_default().epoch);
    assert_eq!(world.writes_to("prod").len(), writes, "{:#?}", world.writes_to("prod"));
}

#[tokio::test(flavor = "multi_thread")]
async fn one_late_heartbeat_leaves_accounts_recoverable() {
    let (world, follower) = two(2).await;
    let agent = agent(&follower, "agent-1").await;
    active(&world, "prod").await;
    // Wait until the agent is cut off and its account is orphaned.
    agent.set_heartbeats(false);
    world.until("prod", State::Orphaned).await;
    let again = agent.again();
    assert_eq!(again.accounts_held.len(), 1, "it has held it all the time");
    drop(agent);
    // The agent connects to the other replica.
    let _agent = connect(world.operator(), again, Policy::default()).await;
    let recovered = world.until("prod", State::Active).await;
    assert_eq!(recovered.status_or_default().failed_count, 0);
    world.until_row("prod", "ACTIVE").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connection_loss_between_replicas_deletes_no_account() {
    let world = prepare(30, LEASE).start().await;
    let server = world.control_plane().server_url();
    let port = must(Url::parse(&server).map_err(|e| e.to_string())).port().expect("it has a port");
    let line = Proxy::to(port).await;
    let through = format!("https://127.0.0.1:{}", line.port());
    let follower = world.differing_replica("operator-1", &[], |text| text.replace(&server, &through));
    follower.start().await;
    assert_eq!(world.until_one_leads(&[world.operator(), &follower]).await, 0);
    let own = world.agent("agent-1").zone("east").hub_port(follower.hub_port()).start().await;
    let cluster = world.cluster("spinnaker").await;
    let file = own.kubeconfigs().join("own.yaml");
    must(std::fs::write(&file, cluster.kubeconfig()).map_err(|error| error.to_string()));
    own.set("kubernetes.accounts", json!([{"name": "own", "kubeconfigFile": file.display().to_string()}]));
    world.until("own", State::Active).await;
    let dynamic = active(&world, "prod").await;
    let listed = world.until_row("own", "ACTIVE").await.uid;
    let writes = || world.writes_to("own").len() + world.writes_to("prod").len();
    let before = writes();

    // The others see no sign of life from it until long after its Lease has expired.
    line.set(ProxyMode::Cut);
    let alive = async |count: usize| {
        eventually(&format!("{count} replicas alive"), MAX_WAIT, async || {
            let log = world.operator().log_text();
            let last = log.lines().rfind(|line| line.contains("live replicas changed")).unwrap_or_default();
            if last.contains(&format!("replicas={count} ")) { Ok(()) } else { Err(last.to_owned()) }
        })
        .await;
    };
    alive(1).await;
    line.set(ProxyMode::Open);
    alive(2).await;
    until_leader_has_checked(&world, "after").await;
    for (name, uid) in [("own", listed.as_deref()), ("prod", Some(dynamic.uid()))] {
        let account = world.object(name).await.expect("it is there");
        assert_eq!(
            (Some(account.uid()), account.status_or_default().state()),
            (uid, State::Active),
            "{name}"
        );
    }
    assert_eq!(writes(), before, "nothing was written of them");
    world.until_assigned(&[("after", "agent-1"), ("own", "agent-1"), ("prod", "agent-1")]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn answer_for_a_dead_replica_reaches_the_leader_and_is_not_resent_forever() {
    // Long enough for everything that happens without a leader, on any machine.
    let (world, follower) =
        two_of(prepare(30, 3 * LEASE).setting("kubesvc.cache.operationWaitMs", 120_000)).await;
    let silent = Policy { add: OnAdd::Silent, ..Policy::default() };
    let agent = connect(&follower, Introduction::new("agent-1", "east"), silent).await;
    let kubeconfig = world.cluster("spinnaker").await.kubeconfig();
    world.account("prod").zone("east").kubeconfig(&kubeconfig).create().await;
    let sent = eventually("the account on its way", MAX_WAIT, async || {
        agent.added().pop().ok_or_else(|| "it was not sent yet".to_owned())
    })
    .await;
    world.operator().kill();
    // The agent answers while there is no leader.
    agent.say_held(sent, identity("prod"));
    agent.set_policy(Policy::default());
    assert_ne!(world.state("prod").await, Some(State::Active), "nobody has decided so");
    let account = world.until("prod", State::Active).await;
    assert_eq!(account.status_or_default().epoch.0, 1, "it was not given anew");
    assert_eq!(agent.added().len(), 1, "and not sent anew");
    world.until_row("prod", "ACTIVE").await;
    until_leader_has_checked(&world, "after").await;
    let reports = world.operator_writes("kubesvcagents").len();
    // The fault would continue forever.
    tokio::time::sleep(Duration::from_secs(8)).await;
    let since = world.operator_writes("kubesvcagents").len() - reports;
    assert!(since <= 1, "beside how many it holds nothing is written: {since}");
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_of_removed_agents_and_dead_replicas_are_pruned() {
    let world = prepare(2, LEASE).operator_env("KUBESVC_AGENTS_GONE_SECONDS", "4").start().await;
    let follower = world.replica("operator-1").await;
    let stays = agent(world.operator(), "agent-0").await;
    let leaves = agent(&follower, "agent-1").await;
    let dies = agent(&follower, "agent-2").await;
    active(&world, "prod").await;
    for agent in [&stays, &leaves, &dies] {
        holds(agent, 1).await;
    }
    world.until_assigned(&[("prod", "agent-0"), ("prod", "agent-1"), ("prod", "agent-2")]).await;
    world.until_connections("prod", 3).await;
    leaves.goodbye().await;
    world.until_assigned(&[("prod", "agent-0"), ("prod", "agent-2")]).await;
    world.until_connections("prod", 2).await;
    // Kill its replica too: nothing remains there that could remove what it has written.
    follower.kill();
    drop(dies);
    world.until_assigned(&[("prod", "agent-0")]).await;
    world.until_connections("prod", 1).await;
    assert_eq!(world.assigned_replicas().await, ["operator-0"]);
    eventually("the objects of both are removed", MAX_WAIT, async || {
        let listed = world.kubectl(&["get", "ksg", "-o", "jsonpath={.items[*].spec.agentId}"]).await.ok()?;
        if listed.trim() == "agent-0" { Ok(()) } else { Err(listed) }
    })
    .await;
    assert_eq!(world.state("prod").await, Some(State::Active));
    world.patch("prod", json!({"spec": {"state": "INACTIVE"}})).await;
    world.until_connections("prod", 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_of_a_stopped_replica_get_accounts_before_its_lease_expires() {
    let (world, follower) = two_of(prepare(20, ENDLESS)).await;
    let agent = agent(&follower, "agent-1").await;
    active(&world, "before").await;
    // Each of these waits ends before the Lease of the dead replica expires.
    follower.kill();
    let again = agent.again();
    drop(agent);
    let agent = connect(world.operator(), again, Policy::default()).await;
    active(&world, "next").await;
    // Back to a process that has just started with the id of the dead one.
    follower.start().await;
    let again = agent.again();
    drop(agent);
    let agent = connect(&follower, again, Policy::default()).await;
    active(&world, "last").await;
    holds(&agent, 3).await;
    assert_eq!(world.state("before").await, Some(State::Active));
}

#[tokio::test(flavor = "multi_thread")]
async fn reloading_agent_settings_twice_starts_each_account_once() {
    let (world, follower) = two(5).await;
    let agent = world.agent("agent-1").zone("east").hub_port(follower.hub_port()).start().await;
    let cluster = world.cluster("spinnaker").await;
    let own = |name: &str| {
        let file = agent.kubeconfigs().join(format!("{name}.yaml"));
        must(std::fs::write(&file, cluster.kubeconfig()).map_err(|error| error.to_string()));
        json!({"name": name, "kubeconfigFile": file.display().to_string()})
    };
    agent.set("kubernetes.accounts", json!([own("one")]));
    let first = world.until("one", State::Active).await;
    agent.set("kubernetes.accounts", json!([own("one"), own("two")]));
    agent.set("kubernetes.accounts", json!([own("one"), own("two"), own("three")]));
    agent.set("kubernetes.accounts", json!([own("one"), own("two"), own("three")]));
    for name in ["two", "three"] {
        world.until(name, State::Active).await;
    }
    world.until_assigned(&[("one", "agent-1"), ("three", "agent-1"), ("two", "agent-1")]).await;
    let told = must(world.ask_agent(&agent).await);
    assert_eq!(told["accountsHeld"], json!(3), "{told}");
    let now = world.object("one").await.expect("it is there");
    assert_eq!(
        (now.uid(), now.status_or_default().epoch),
        (first.uid(), first.status_or_default().epoch),
        "what was listed before was not taken anew"
    );
    assert_eq!(world.rows().await.len(), 3);
}
