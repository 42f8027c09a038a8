//! Three replicas with a thousand accounts on fifty agents restart one after the other: no account leaves
//! ACTIVE, and hardly anything is written.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures::{StreamExt as _, TryStreamExt as _, stream};
use kube::runtime::watcher::{self, Event};
use kube::{Api, ResourceExt as _};
use kubesvc_core::{KubesvcAccount, State};
use parking_lot::Mutex;
use serde_json::json;
use tokio_util::task::AbortOnDropHandle;

use crate::world::{Database, MAX_WAIT, Operator, World};
use kubesvc_testkit::simulated_agent::{
    SimulatedAgent,
    frames::{Introduction, Policy},
};
use kubesvc_testkit::{folder::Folder, must, wait::eventually};

const ACCOUNTS: usize = 1000;
const AGENTS: usize = 50;
/// Time in seconds after which an account whose agent is away is orphaned.
const GRACE: u64 = 8;
/// Longer than any delayed write about an agent.
const QUIET: Duration = Duration::from_secs(7);
/// Interval at which an agent checks whether its stream has ended, and dials again.
const LOOK: Duration = Duration::from_millis(50);

fn zone(number: usize) -> String {
    format!("zone-{number:02}")
}

/// An agent that dials the next replica whenever its stream has ended.
struct RedialingAgent {
    connected: Arc<AtomicBool>,
    connects: Arc<AtomicUsize>,
    held: Arc<AtomicUsize>,
    _dialling: AbortOnDropHandle<()>,
}

impl RedialingAgent {
    fn start(number: usize, hubs: Vec<String>) -> Self {
        let connected = Arc::new(AtomicBool::new(false));
        let (connects, held) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (is, count, holds) = (Arc::clone(&connected), Arc::clone(&connects), Arc::clone(&held));
        let dialling = tokio::spawn(async move {
            let mut introduction = Introduction::new(&format!("agent-{number:02}"), &zone(number));
            let mut next = number;
            loop {
                let hub = &hubs[next % hubs.len()];
                next += 1;
                let Ok(agent) = SimulatedAgent::connect(hub, introduction.clone(), Policy::default()).await
                else {
                    tokio::time::sleep(LOOK).await;
                    continue;
                };
                is.store(true, Ordering::SeqCst);
                count.fetch_add(1, Ordering::SeqCst);
                while agent.ended().is_none() {
                    holds.store(agent.held().len(), Ordering::SeqCst);
                    tokio::time::sleep(LOOK).await;
                }
                is.store(false, Ordering::SeqCst);
                introduction = agent.again();
            }
        });
        Self { connected, connects, held, _dialling: AbortOnDropHandle::new(dialling) }
    }
}

/// Records every state other than ACTIVE in which a watch shows an account.
fn watch(accounts: Api<KubesvcAccount>) -> (Arc<Mutex<Vec<String>>>, AbortOnDropHandle<()>) {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let tell = Arc::clone(&seen);
    let watching = tokio::spawn(async move {
        let mut events = std::pin::pin!(watcher::watcher(accounts, watcher::Config::default()));
        while let Some(event) = events.next().await {
            match event {
                Ok(Event::Apply(account) | Event::InitApply(account)) => {
                    let state = account.status_or_default().state();
                    if state != State::Active {
                        tell.lock().push(format!("{} is {state}", account.name_any()));
                    }
                }
                Ok(Event::Delete(account)) => tell.lock().push(format!("{} is gone", account.name_any())),
                Ok(Event::Init | Event::InitDone) => {}
                // The watch restarts with a list, which shows what was missed.
                Err(error) => eprintln!("the watch: {error}"),
            }
        }
    });
    (seen, AbortOnDropHandle::new(watching))
}

async fn create_accounts(world: &World, kubeconfig: &str) {
    world.secret("shared", kubeconfig.as_bytes(), true).await;
    let names = (0..ACCOUNTS).map(|number| (format!("account-{number:04}"), zone(number % AGENTS)));
    stream::iter(names)
        .map(|(name, zone)| async move {
            let shared = json!({"secretRef": {"name": "shared"}});
            world.account(&name).zone(&zone).spec("kubeconfig", shared).create().await;
            Ok::<(), String>(())
        })
        .buffer_unordered(16)
        .try_collect::<()>()
        .await
        .expect("none of it fails but by a panic");
}

async fn all_active(world: &World, agents: &[RedialingAgent]) {
    eventually("all of them ACTIVE, with every agent", 4 * MAX_WAIT, async || {
        let held: usize = agents.iter().map(|agent| agent.held.load(Ordering::SeqCst)).sum();
        let listed = world.api::<KubesvcAccount>().list(&Default::default()).await;
        let listed = listed.map_err(|e| e.to_string())?;
        let active =
            listed.iter().filter(|account| account.status_or_default().state() == State::Active).count();
        if (active, held) == (ACCOUNTS, ACCOUNTS) {
            Ok(())
        } else {
            Err(format!("{active} ACTIVE, {held} held"))
        }
    })
    .await;
}

/// Waits until all agents are connected, the replicas together list all of them, and one replica leads.
async fn settled(world: &World, replicas: &[&Operator], agents: &[RedialingAgent]) {
    eventually("all agents connected", MAX_WAIT, async || {
        let away = agents.iter().filter(|agent| !agent.connected.load(Ordering::SeqCst)).count();
        if away == 0 { Ok(()) } else { Err(format!("{away} are away")) }
    })
    .await;
    eventually("all agents shown", MAX_WAIT, async || {
        let mut shown = BTreeSet::new();
        for replica in replicas {
            let answer = replica.get("/armory/agents").await?;
            let listed = answer.json.as_array().ok_or_else(|| answer.to_string())?;
            shown.extend(listed.iter().map(|agent| agent["agentId"].to_string()));
        }
        if shown.len() == AGENTS { Ok(()) } else { Err(format!("{} are shown", shown.len())) }
    })
    .await;
    world.until_one_leads(replicas).await;
}

/// Counts the operator's writes by kind, without Leases.
fn writes(world: &World) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for resource in ["kubesvcaccounts", "kubesvcagents", "events", "secrets"] {
        for write in world.operator_writes(resource) {
            *counts
                .entry(format!("{} {} {} {}", write.verb, write.resource, write.subresource, write.code))
                .or_default() += 1;
        }
    }
    counts
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rolling_restart_of_three_replicas_keeps_a_thousand_accounts_active() {
    let folder = must(Folder::new("rolling-restart"));
    let passed = folder.file("passed");
    let world = World::prepare()
        .database(Database::Postgres)
        // A failure can then say which write it was.
        .operator_env("KUBESVC_CRASH_LOG", &passed.display().to_string())
        .setting("kubesvc.leaderElection.leaseDurationSeconds", 6)
        .setting("kubesvc.leaderElection.renewDeadlineSeconds", 4)
        .setting("kubesvc.leaderElection.retryPeriodSeconds", 1)
        .setting("kubesvc.dynamicAccounts.orphanGraceSeconds", GRACE)
        .setting("kubesvc.cache.operationWaitMs", 60_000)
        .setting("logging.level", "info")
        .start()
        .await;
    let (second, third) = (world.replica("operator-1").await, world.replica("operator-2").await);
    let replicas = [world.operator(), &second, &third];
    let hubs: Vec<_> = replicas.iter().map(|replica| format!("127.0.0.1:{}", replica.hub_port())).collect();
    let agents: Vec<_> = (0..AGENTS).map(|number| RedialingAgent::start(number, hubs.clone())).collect();
    settled(&world, &replicas, &agents).await;
    let cluster = world.cluster("spinnaker").await;
    create_accounts(&world, &cluster.kubeconfig()).await;
    all_active(&world, &agents).await;
    // Delayed writes about agents follow a few seconds later, and so do Events.
    quiet(&world).await;

    let (seen, _watching) = watch(world.api());
    let before = writes(&world);
    must(std::fs::write(&passed, "").map_err(|e| e.to_string()));
    let connects = || agents.iter().map(|agent| agent.connects.load(Ordering::SeqCst)).sum::<usize>();
    let connected_before = connects();
    for replica in replicas {
        assert!(replica.terminate().await.success(), "{} ends well", replica.replica_id());
        replica.start().await;
        settled(&world, &replicas, &agents).await;
    }
    // The fault that would show late: an account is orphaned only after the grace.
    tokio::time::sleep(Duration::from_secs(GRACE + 3)).await;
    quiet(&world).await;
    all_active(&world, &agents).await;

    let reconnected = connects() - connected_before;
    assert!(reconnected >= AGENTS, "every agent was moved: {reconnected}");
    let mut since = writes(&world);
    for (what, count) in before {
        *since.entry(what).or_default() -= count;
    }
    since.retain(|_, count| *count > 0);
    let points = must(std::fs::read_to_string(&passed).map_err(|e| e.to_string()));
    let mut kinds = BTreeMap::<&str, usize>::new();
    for point in points.lines().filter_map(|point| point.strip_suffix(":before")) {
        *kinds.entry(point).or_default() += 1;
    }
    eprintln!("{reconnected} agents reconnected, and there was written {since:#?}, by {kinds:?}");
    assert!(seen.lock().is_empty(), "{:#?}", seen.lock());
    assert!(since.keys().all(|what| what.contains(" kubesvcagents ")), "{since:#?}");
    let written: usize = since.values().sum();
    assert!(
        written <= reconnected,
        "{written} writes for {reconnected} agents that reconnected: {since:#?} {kinds:?}"
    );
}

/// Waits until nothing was written for as long as any write may be delayed.
async fn quiet(world: &World) {
    let last = Mutex::new((writes(world), Instant::now()));
    eventually("no more writes", 2 * MAX_WAIT, async || {
        let (now, mut last) = (writes(world), last.lock());
        if now != last.0 {
            *last = (now, Instant::now());
        }
        if last.1.elapsed() > QUIET { Ok(()) } else { Err("they go on".to_owned()) }
    })
    .await;
}
