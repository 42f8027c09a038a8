//! Many agents connect at once, and replicas stop or restart: no account is orphaned because of the wait.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kubesvc_core::State;
use kubesvc_core::wire::ops::hub_frame;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::stories::on_one_database;
use crate::world::{Database, MAX_WAIT, World};
use kubesvc_testkit::simulated_agent::SimulatedAgent;
use kubesvc_testkit::simulated_agent::frames::{Introduction, NoSession, Policy};
use kubesvc_testkit::{must, wait::eventually};

on_one_database! { accounts_stay_active_while_registration_takes_longer_than_grace }

/// Number of agents, each with a zone and an account of its own.
const AGENTS: usize = 10;
/// Grace in seconds: far less than registering all agents takes, at one per second.
const GRACE: u64 = 3;

/// Agents that reconnect whenever they are told to, until dropped.
struct ReconnectingAgents {
    connected: Arc<Mutex<BTreeMap<usize, u32>>>,
    /// Maximum number of refusals of one agent between two streams.
    refusals: Arc<Mutex<u32>>,
    stop: CancellationToken,
    stops: BTreeMap<usize, CancellationToken>,
    tasks: TaskTracker,
}

impl Drop for ReconnectingAgents {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl ReconnectingAgents {
    fn gather(hub: u16) -> Self {
        let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
        let (connected, refusals) = (Arc::default(), Arc::default());
        let mut stops = BTreeMap::new();
        for agent in 0..AGENTS {
            let own = stop.child_token();
            stops.insert(agent, own.clone());
            let (connected, refusals) = (Arc::clone(&connected), Arc::clone(&refusals));
            tasks.spawn(async move {
                own.run_until_cancelled(live(agent, hub, &connected, &refusals)).await;
            });
        }
        Self { connected, refusals, stop, stops, tasks }
    }

    /// Waits until each agent was accepted `times` times.
    async fn until_all_were_accepted(&self, times: u32) {
        eventually(&format!("all agents were accepted {times} times"), 2 * MAX_WAIT, async || {
            let connected = self.connected.lock().clone();
            let there = connected.values().filter(|count| **count >= times).count();
            if there == AGENTS { Ok(()) } else { Err(format!("{there} of {AGENTS}")) }
        })
        .await;
    }
}

/// One agent: dials, retries when it is told to, and dials again when its stream ends.
async fn live(agent: usize, hub: u16, connected: &Mutex<BTreeMap<usize, u32>>, refusals: &Mutex<u32>) {
    let hub = format!("127.0.0.1:{hub}");
    let mut introduction = Introduction::new(&format!("agent-{agent}"), &format!("zone-{agent}"));
    let mut refused = 0;
    loop {
        match SimulatedAgent::connect(&hub, introduction.clone(), Policy::default()).await {
            Ok(stream) => {
                *connected.lock().entry(agent).or_default() += 1;
                refused = 0;
                while stream.ended().is_none() {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                introduction = stream.again();
            }
            Err(NoSession::Refused(why)) => {
                refused += 1;
                {
                    let mut most = refusals.lock();
                    *most = refused.max(*most);
                }
                introduction.connect_seq += 1;
                tokio::time::sleep(Duration::from_millis(why.retry_after_ms.into())).await;
            }
            Err(NoSession::Unreachable(_) | NoSession::Ended(_)) => {
                introduction.connect_seq += 1;
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        }
    }
}

/// Limits the operator to one registration per second from its next start on.
fn limit_registrations(world: &World) {
    let file = world.folder().file("kubesvc.yml");
    let text = must(std::fs::read_to_string(&file).map_err(|error| error.to_string()));
    let mut settings: Value = serde_json::from_str(&text).expect("settings are written as JSON");
    settings["kubesvc"]["kubernetes"]["registrationQps"] = json!(1);
    must(std::fs::write(&file, format!("{settings:#}")).map_err(|error| error.to_string()));
}

async fn accounts_stay_active_while_registration_takes_longer_than_grace(database: Database) {
    let world = World::prepare()
        .database(database)
        .setting("kubesvc.dynamicAccounts.orphanGraceSeconds", GRACE)
        .start()
        .await;
    let cluster = world.cluster("prod").await;
    for agent in 0..AGENTS {
        let (name, zone) = (format!("account-{agent}"), format!("zone-{agent}"));
        world.account(&name).zone(&zone).kubeconfig(&cluster.kubeconfig()).create().await;
    }
    let reconnecting = ReconnectingAgents::gather(world.operator().hub_port());
    reconnecting.until_all_were_accepted(1).await;
    for agent in 0..AGENTS {
        world.until(&format!("account-{agent}"), State::Active).await;
    }
    let writes = |agent: usize| world.writes_to(&format!("account-{agent}")).len();
    let before: Vec<_> = (0..AGENTS).map(writes).collect();

    limit_registrations(&world);
    world.operator().kill_and_start().await;
    let since = Instant::now();
    reconnecting.until_all_were_accepted(2).await;
    let queued = since.elapsed();
    assert!(
        queued > Duration::from_secs(2 * GRACE),
        "they waited for {queued:?}: too short to prove anything"
    );
    assert!(*reconnecting.refusals.lock() >= 1, "nobody was told to come again");
    for agent in 0..AGENTS {
        assert_eq!(world.state(&format!("account-{agent}")).await, Some(State::Active));
    }
    assert_eq!((0..AGENTS).map(writes).collect::<Vec<_>>(), before, "nothing was written of any account");

    reconnecting.stops[&0].cancel();
    world.until("account-0", State::Orphaned).await;
    reconnecting.stop.cancel();
    reconnecting.tasks.close();
    reconnecting.tasks.wait().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn terminated_replica_moves_its_agents_and_orphans_nothing() {
    let world = World::prepare()
        .database(Database::Postgres)
        .setting("kubesvc.dynamicAccounts.orphanGraceSeconds", 10)
        .start()
        .await;
    let follower = world.replica("operator-1").await;
    let hub = format!("127.0.0.1:{}", follower.hub_port());
    let cluster = world.cluster("prod").await;
    world.account("prod").zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
    let introduction = Introduction::new("agent-1", "east");
    let agent = SimulatedAgent::connect(&hub, introduction, Policy::default()).await.expect("it is accepted");
    let before = world.until("prod", State::Active).await.status_or_default().last_transition_time.clone();

    let ended = follower.terminate().await;
    assert!(ended.success(), "{ended}");
    let drain = agent.received().into_iter().find_map(|one| match one.frame {
        hub_frame::Frame::Drain(drain) => Some(drain),
        _ => None,
    });
    let drain = drain.expect("it was told");
    assert_eq!(drain.replica_id, "operator-0");
    assert!(u64::from(drain.reconnect_after_ms + drain.jitter_ms) <= 5_000, "{drain:?}");

    let hub = format!("127.0.0.1:{}", world.operator().hub_port());
    let again =
        SimulatedAgent::connect(&hub, agent.again(), Policy::default()).await.expect("it is accepted");
    assert_eq!(again.accepted().replica_id, "operator-0");
    eventually("its object names the other replica", MAX_WAIT, async || {
        let agents = world.api::<kubesvc_core::KubesvcAgent>();
        let listed =
            agents.list(&kube::api::ListParams::default()).await.map_err(|error| error.to_string())?;
        let session =
            listed.items.into_iter().filter_map(|agent| agent.status).find_map(|status| status.session);
        match session {
            Some(session) if session.replica == "operator-0" => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    let after = world.until("prod", State::Active).await.status_or_default().last_transition_time.clone();
    assert_eq!(after, before, "it stayed in its state");
}

#[tokio::test(flavor = "multi_thread")]
async fn restarted_replica_with_its_old_id_has_no_former_agents() {
    // The test would time out if it had to wait for such a Lease to expire: the former process is gone
    // because a new one has started.
    const LEASE: u64 = 600;
    let world = World::prepare()
        .database(Database::Postgres)
        .setting("kubesvc.leaderElection.leaseDurationSeconds", LEASE)
        .setting("kubesvc.leaderElection.renewDeadlineSeconds", LEASE / 2)
        .setting("kubesvc.dynamicAccounts.orphanGraceSeconds", 10)
        .start()
        .await;
    let follower = world.replica("operator-1").await;
    assert_eq!(world.until_one_leads(&[world.operator(), &follower]).await, 0, "the first one was first");
    let hub = format!("127.0.0.1:{}", follower.hub_port());
    let cluster = world.cluster("prod").await;
    world.account("prod").zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
    let introduction = Introduction::new("agent-1", "east");
    let agent = SimulatedAgent::connect(&hub, introduction, Policy::default()).await.expect("it is accepted");
    world.until("prod", State::Active).await;
    follower.kill_and_start().await;
    drop(agent);
    world.until("prod", State::Orphaned).await;
}
