//! Replicas with a bad connection to their API server.

use std::time::{Duration, Instant};

use kubesvc_core::{KubesvcAccount, SessionId, State};

use crate::faults::proxy::{Proxy, ProxyMode};
use crate::world::{Agent, Database, MAX_WAIT, Operator, Prepare, World};
use kubesvc_testkit::{must, wait::eventually};

/// Validity of a Lease, in seconds.
const LEASE: u64 = 6;

fn prepare(lease: u64) -> Prepare {
    World::prepare()
        .database(Database::Postgres)
        .setting("server.address", "*")
        .setting("kubesvc.leaderElection.leaseDurationSeconds", lease)
        .setting("kubesvc.leaderElection.renewDeadlineSeconds", lease * 2 / 3)
        .setting("kubesvc.leaderElection.retryPeriodSeconds", 1)
        .setting("kubesvc.dynamicAccounts.orphanGraceSeconds", 20)
}

/// A proxied connection to the world's API server.
async fn line_to(world: &World) -> Proxy {
    let server = world.control_plane().server_url();
    let port = server.rsplit(':').next().and_then(|port| port.parse().ok());
    Proxy::to(port.expect("the URL ends with a port")).await
}

/// A replica that reaches the API server through a proxy.
fn replica_over(world: &World, line: &Proxy, id: &str) -> Operator {
    let there = format!("https://127.0.0.1:{}", line.port());
    world.differing_replica(id, &[], |kubeconfig| {
        kubeconfig.replace(&world.control_plane().server_url(), &there)
    })
}

async fn inactive(world: &World, name: &str) {
    world.account(name).zone("east").inactive().kubeconfig("apiVersion: v1\nkind: Config\n").create().await;
}

/// Waits until a replica lists an account, according to its own watch.
async fn until_listed(replica: &Operator, name: &str) {
    eventually(&format!("{name} is listed"), MAX_WAIT, async || {
        let answer = replica.get("/armory/accounts").await?;
        let items = answer.json["items"].as_array().ok_or("no list")?;
        if items.iter().any(|item| item["name"] == name) { Ok(()) } else { Err(answer.to_string()) }
    })
    .await;
}

/// The effect of a control plane node that loses power: nothing ever arrives on existing connections, while
/// new ones reach another node.
#[tokio::test(flavor = "multi_thread")]
async fn replica_with_dead_connections_reconnects_and_can_lead() {
    let world = prepare(LEASE).start().await;
    let line = line_to(&world).await;
    let other = replica_over(&world, &line, "operator-1");
    other.start().await;
    assert_eq!(world.until_one_leads(&[world.operator(), &other]).await, 0, "the first one was first");
    inactive(&world, "one").await;
    until_listed(&other, "one").await;

    line.strand();
    inactive(&world, "two").await;
    until_listed(&other, "two").await;

    line.strand();
    world.operator().kill();
    inactive(&world, "three").await;
    world.until("three", State::Inactive).await;
}

/// Two replicas that know each other. The second one follows, reaches the API server through a proxy, and has
/// the only agent. The agent reaches the hubs as through a Service: a new connection ends at the first
/// replica.
struct ReplicaPair {
    second: Operator,
    line: Proxy,
    agent: Agent,
    _hubs: Proxy,
    world: World,
}

impl ReplicaPair {
    /// Starts the pair with an account that is ACTIVE at the agent.
    async fn start(prepare: Prepare) -> Self {
        let world = prepare.start().await;
        let line = line_to(&world).await;
        let second = replica_over(&world, &line, "operator-1");
        second.start().await;
        assert_eq!(world.until_one_leads(&[world.operator(), &second]).await, 0, "the first one was first");
        world.publish("operator-0", world.operator(), true).await;
        world.publish("operator-1", &second, true).await;
        eventually("the second knows the first", MAX_WAIT, async || {
            let answer = second.get("/armory/clouddrivers").await?;
            match answer.json.as_array().map(Vec::len) {
                Some(2) => Ok(()),
                _ => Err(answer.to_string()),
            }
        })
        .await;
        let hubs = Proxy::to(second.hub_port()).await;
        let agent = world.agent("agent-1").zone("east").hub_port(hubs.port()).start().await;
        hubs.lead_to(world.operator().hub_port());
        let cluster = world.cluster("spinnaker").await;
        world.account("prod").zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
        world.until_row("prod", "ACTIVE").await;
        Self { second, line, agent, _hubs: hubs, world }
    }

    /// The replica and the session that the agent's object names.
    async fn session(&self) -> (String, SessionId) {
        let agent = self.world.agent_object(&self.agent).await.and_then(|agent| agent.status);
        let session = agent.and_then(|status| status.session).expect("it is registered");
        (session.replica.into(), session.id)
    }

    async fn until_ready(&self, ready: bool) {
        eventually(&format!("the second is ready: {ready}"), MAX_WAIT, async || {
            let answer = self.second.get("/health/readiness").await?;
            let cut_off = answer.text.contains("the API server answers other replicas and not this one");
            if (answer.status == 200, cut_off) == (ready, !ready) { Ok(()) } else { Err(answer.to_string()) }
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn isolated_replica_moves_its_agents_and_orphans_nothing() {
    let pair = ReplicaPair::start(prepare(LEASE)).await;
    let writes = pair.world.writes_to("prod").len();
    pair.line.set(ProxyMode::Held);
    pair.until_ready(false).await;
    eventually("the agent is at the first", MAX_WAIT, async || match pair.session().await {
        (replica, _) if replica == "operator-0" => Ok(()),
        (replica, _) => Err(replica),
    })
    .await;
    let first = pair.world.operator();
    eventually("the first has the account", MAX_WAIT, async || {
        let agents = first.get("/armory/agents").await?;
        if agents.json[0]["accounts"] == serde_json::json!(["prod"]) {
            Ok(())
        } else {
            Err(agents.to_string())
        }
    })
    .await;
    assert_eq!(pair.world.state("prod").await, Some(State::Active));
    assert_eq!(
        pair.world.writes_to("prod").len(),
        writes,
        "nothing was written of it: it was never ORPHANED"
    );
    pair.line.set(ProxyMode::Open);
    pair.until_ready(true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_replica_drains_when_all_lack_the_api_server() {
    let pair = ReplicaPair::start(prepare(LEASE).own_control_plane()).await;
    let before = pair.session().await;
    pair.world.control_plane().stop_apiserver();
    // The fault: long enough for a Lease to expire more than twice.
    tokio::time::sleep(Duration::from_secs(LEASE * 3)).await;
    must(pair.world.control_plane().start_apiserver().await);
    pair.world.until_one_leads(&[pair.world.operator(), &pair.second]).await;
    pair.world.publish("operator-2", &pair.second, false).await;
    assert_eq!(pair.session().await, before, "it is where it was, on the same stream");
    assert!(!pair.second.log_text().contains("sending its agents"), "{}", pair.second.log_text());
    assert!(!pair.world.operator().log_text().contains("sending its agents"));
}

/// A leader behind a proxy, which fails in the middle of its work on an account.
async fn busy_leader(bad: ProxyMode) -> (World, Proxy, Operator) {
    let world = prepare(30).start().await;
    let line = line_to(&world).await;
    let leader = replica_over(&world, &line, "operator-1");
    leader.start().await;
    assert!(world.operator().terminate().await.success());
    world.until_one_leads(&[&leader]).await;
    // It has started to lead: the connection fails during its work, not during its preparations.
    inactive(&world, "zero").await;
    world.until("zero", State::Inactive).await;
    line.set(bad);
    (world, line, leader)
}

#[tokio::test(flavor = "multi_thread")]
async fn leader_with_slow_api_server_releases_its_lease_before_exit() {
    let (world, _line, leader) = busy_leader(ProxyMode::Slow(Duration::from_millis(600))).await;
    for name in ["one", "two", "three"] {
        inactive(&world, name).await;
    }
    world.until_account("one", "is being looked at", KubesvcAccount::has_finalizer).await;
    let asked = Instant::now();
    assert!(leader.terminate().await.success());
    assert!(asked.elapsed() < Duration::from_secs(18), "{:?}", asked.elapsed());
    let lease = world.lease("kubesvc-operator").await.and_then(|lease| lease.spec);
    assert_eq!(lease.and_then(|spec| spec.holder_identity).as_deref(), Some(""), "nobody holds it");
}

#[tokio::test(flavor = "multi_thread")]
async fn leader_with_silent_api_server_exits_in_time() {
    let (world, _line, leader) = busy_leader(ProxyMode::Mute).await;
    // The watch still shows the account; the response to the write that follows never arrives.
    inactive(&world, "one").await;
    eventually("an action under way", MAX_WAIT, async || {
        let acts = leader.log_text().lines().any(|line| line.contains("acting") && line.contains("one"));
        if acts { Ok(()) } else { Err("none".to_owned()) }
    })
    .await;
    assert!(leader.terminate().await.success());
}
