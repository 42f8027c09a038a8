//! Which agent caches an account: one of its zone, the same one whatever the operator does, and another one
//! in time.

use std::time::{Duration, Instant};

use kubesvc_core::{AgentId, CachingAssignment, KubesvcAccount, State};
use serde_json::json;

use crate::stories::on_one_server;
use crate::world::{Agent, Call, Database, MAX_WAIT, Operator, Prepare, World};
use kubesvc_testkit::{must, wait::eventually};

on_one_server! {
    caching_agent_is_reelected_in_time_and_the_fence_follows,
    rolling_restart_and_leader_death_keep_the_caching_agent,
}

/// Validity of a Lease, in seconds.
const LEASE: u64 = 6;

fn prepare(database: Database) -> Prepare {
    World::prepare()
        .database(database)
        .setting("kubesvc.leaderElection.leaseDurationSeconds", LEASE)
        .setting("kubesvc.leaderElection.renewDeadlineSeconds", LEASE * 2 / 3)
        .setting("kubesvc.leaderElection.retryPeriodSeconds", 1)
        .setting("kubesvc.dynamicAccounts.orphanGraceSeconds", 60)
}

/// Creates an ACTIVE account `prod` that both agents hold.
async fn held_by_both(world: &World, replica: &Operator) {
    let cluster = world.cluster("spinnaker").await;
    world.account("prod").zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
    world.until("prod", State::Active).await;
    held_again(replica).await;
}

async fn held_again(replica: &Operator) {
    eventually("both agents that hold it", MAX_WAIT, async || {
        let account = replica.get("/armory/accounts/prod").await?;
        if account.json["connections"] == json!(2) { Ok(()) } else { Err(account.to_string()) }
    })
    .await;
}

async fn caching(world: &World) -> CachingAssignment {
    must(caching_of(world.object("prod").await))
}

fn caching_of(account: Option<KubesvcAccount>) -> Result<CachingAssignment, String> {
    let account = account.ok_or("there is no account")?;
    account.status_or_default().caching.clone().ok_or_else(|| "nobody was elected with ACTIVE".to_owned())
}

/// Waits until the fence in the table and the readable columns match the elected process.
async fn until_fenced(world: &World, elected: &CachingAssignment) {
    let wanted = vec![("prod".to_owned(), elected.epoch.0, elected.agent_id.clone().map(String::from))];
    eventually("the fence of who was elected", MAX_WAIT, async || {
        let fences = world.try_fences().await?;
        if fences == wanted { Ok(()) } else { Err(format!("{fences:?}, not {wanted:?}")) }
    })
    .await;
}

/// Waits until a process other than `before` caches the account, and returns how long that took.
async fn until_moved(
    world: &World,
    before: &CachingAssignment,
    since: Instant,
) -> (CachingAssignment, Duration) {
    let moved = eventually("another one that caches it", MAX_WAIT, async || {
        let now = caching_of(world.try_object("prod").await?)?;
        if now.epoch > before.epoch { Ok(now) } else { Err(format!("{now:?}")) }
    })
    .await;
    (moved, since.elapsed())
}

fn of<'a>(agents: &'a [Agent; 2], caching: &CachingAssignment) -> &'a Agent {
    let id = caching.agent_id.as_ref();
    agents.iter().find(|agent| Some(agent.id()) == id.map(AgentId::as_str)).expect("it is one of them")
}

async fn two_agents(world: &World) -> [Agent; 2] {
    [world.agent("agent-1").start().await, world.agent("agent-2").start().await]
}

async fn caching_agent_is_reelected_in_time_and_the_fence_follows(database: Database) {
    let world = prepare(database).start().await;
    let agents = two_agents(&world).await;
    held_by_both(&world, world.operator()).await;
    let first = caching(&world).await;
    assert_eq!(first.epoch.0, 1);
    until_fenced(&world, &first).await;
    let shown = world.get("/armory/accounts/prod").await;
    let caches = |id: &str| json!({"agentId": id, "caching": first.agent_id.as_ref() == Some(&id.into())});
    assert_eq!(shown.json["agents"], json!([caches("agent-1"), caches("agent-2")]), "{shown}");
    let told = of(&agents, &first);
    eventually("the agent is told", MAX_WAIT, async || {
        let log = told.log_text();
        if log.contains("received a caching assignment") { Ok(()) } else { Err(log) }
    })
    .await;

    // A goodbye: another agent takes over after 2 s.
    let since = Instant::now();
    assert!(told.terminate().await.success());
    let gone = Instant::now();
    let (second, took) = until_moved(&world, &first, since).await;
    assert!(took >= Duration::from_secs(2), "{took:?} after a goodbye");
    assert!(gone.elapsed() < Duration::from_secs(10), "{:?}: as after a cut", gone.elapsed());
    assert_ne!(second.agent_id, first.agent_id);
    until_fenced(&world, &second).await;

    // The agent that comes back changes nothing.
    told.launch();
    held_again(world.operator()).await;
    assert_eq!(caching(&world).await, second);

    // A kill: another agent takes over after 10 s. The minute after the loss of a replica does not apply
    // here.
    let since = Instant::now();
    of(&agents, &second).kill();
    let (third, took) = until_moved(&world, &second, since).await;
    assert!(took >= Duration::from_secs(10), "{took:?} after a cut");
    assert_eq!((third.agent_id.as_ref().map(AgentId::as_str), third.epoch.0), (Some(told.id()), 3));
    until_fenced(&world, &third).await;

    // An election on request elects another agent again.
    of(&agents, &second).launch();
    held_again(world.operator()).await;
    let ask = |names| Call::new("POST", "/armory/agent/assignments").json(&names);
    let unknown = must(world.operator().call(ask(json!(["prod", "nobody"]))).await);
    assert_eq!(unknown.status, 400, "{unknown}");
    let asked = must(world.operator().call(ask(json!(["prod"]))).await);
    assert_eq!((asked.status, asked.text.as_str()), (200, ""), "{asked}");
    let (fourth, _) = until_moved(&world, &third, Instant::now()).await;
    assert_eq!(
        (fourth.agent_id, fourth.epoch.0),
        (second.agent_id, 4),
        "nothing was done by the call that failed"
    );

    // An INACTIVE account is cached by no agent, and the fence says so.
    world.patch("prod", json!({"spec": {"state": "INACTIVE"}})).await;
    world.until("prod", State::Inactive).await;
    let nobody = caching(&world).await;
    assert_eq!((&nobody.agent_id, nobody.epoch.0), (&None, 5));
    until_fenced(&world, &nobody).await;
    world.delete("prod").await;
    world.until_gone("prod").await;
    assert_eq!(world.fences().await, []);
}

/// A rolling restart and the death of the leader do not change the election.
async fn rolling_restart_and_leader_death_keep_the_caching_agent(database: Database) {
    let world = prepare(database).start().await;
    let other = world.replica("operator-1").await;
    assert_eq!(world.until_one_leads(&[world.operator(), &other]).await, 0, "the first one was first");
    let _one = world.agent("agent-1").start().await;
    let _two = world.agent("agent-2").hub_port(other.hub_port()).start().await;
    let cluster = world.cluster("spinnaker").await;
    world.account("prod").zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
    world.until("prod", State::Active).await;
    let elected = caching(&world).await;
    until_fenced(&world, &elected).await;
    let writes = world.writes_to("prod").len();
    for kill in [false, true] {
        for replica in [world.operator(), &other] {
            if kill {
                replica.kill_and_start().await;
            } else {
                assert!(replica.terminate().await.success());
                replica.start().await;
            }
            world.until_one_leads(&[world.operator(), &other]).await;
            eventually("its agent is connected to it again", MAX_WAIT, async || {
                let agents = replica.get("/armory/agents").await?;
                let count = agents.json.as_array().map_or(0, Vec::len);
                if count == 1 { Ok(()) } else { Err(agents.to_string()) }
            })
            .await;
        }
    }
    // Longer than an agent whose stream was cut may be away.
    let since = Instant::now();
    eventually("the time after a cut is over", MAX_WAIT, async || {
        if since.elapsed() > Duration::from_secs(13) { Ok(()) } else { Err("not yet".to_owned()) }
    })
    .await;
    assert_eq!(caching(&world).await, elected);
    assert_eq!(world.writes_to("prod").len(), writes, "{:#?}", world.writes_to("prod"));
}
