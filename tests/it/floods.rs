//! Floods of unknown callers against the real programs. Measures their effect on a good agent, its account,
//! the Hello of an agent that has an object, and a probe, and the growth of the flooded process.
//!
//! | file | provides |
//! |---|---|
//! | `crowd.rs` | strangers from any number of addresses: connections, hellos, bodies |
//! | `beside.rs` | what is measured next to them |
//!
//! Each run asserts only what holds on a busy machine as well: every answer arrives, the account is ACTIVE
//! all the time, the session of the good agent remains, memory is bounded. `make faults` runs larger floods
//! against optimised programs, prints the figures as a table, and asserts those that `docs/security.md`
//! promises.

mod beside;
mod crowd;

use std::time::Duration;

use kube::api::{Patch, PatchParams};
use kubesvc::account::{KubesvcAgent, State, names};
use serde_json::json;

use self::beside::{Beside, Bounds, Noticed, Probe};
use self::crowd::Crowd;
use crate::harness::{must, ports, wait::eventually};
use crate::world::{Agent, PATIENCE, Prepare, World};

/// Bounds for unoptimised programs on a busy machine.
const ANSWERED: Bounds = Bounds {
    heartbeat: Duration::from_secs(30),
    hello: Duration::from_secs(20),
    liveness: Duration::from_secs(30),
    growth_kib: 128 * 1024,
};
/// Bounds promised for the released programs.
const PROMISED: Bounds = Bounds {
    heartbeat: Duration::from_secs(2),
    hello: Duration::from_secs(1),
    liveness: Duration::from_millis(500),
    // 64 MiB, except for agents that claim 100,000 accounts each: four such hellos are read at once.
    growth_kib: 96 * 1024,
};

/// Size and duration of the floods.
#[derive(Clone, Copy)]
struct Size {
    /// Number of concurrent agents that claim 100,000 accounts each, and how often each of them connects.
    claimants: usize,
    rounds: usize,
    /// Number of hellos, each with a name of its own.
    hellos: usize,
    /// HTTP/2 connections without a stream, from one address and from many.
    idle_of_one: usize,
    idle_of_many: usize,
    /// How long idle connections are held.
    held: Duration,
}

const SHORT: Size = Size {
    claimants: 2,
    rounds: 2,
    hellos: 2000,
    idle_of_one: 1000,
    idle_of_many: 1500,
    held: Duration::from_secs(1),
};
const LONG: Size = Size {
    claimants: 4,
    rounds: 6,
    hellos: 8000,
    idle_of_one: 2000,
    idle_of_many: 10_000,
    held: Duration::from_secs(12),
};

/// Idle connections: to REST, slightly more than its limit; to health, and to each port of an agent.
const IDLE_CALLERS: usize = 4100;
const IDLE_PROBES: usize = 200;

#[tokio::test(flavor = "multi_thread")]
async fn beside_floods_all_answers_come_and_the_account_stays_active_with_the_programs_own_settings() {
    let noticed = floods(World::prepare().with_the_programs_settings(), None, SHORT).await;
    hold_to("defaults", &noticed, ANSWERED);
}

#[tokio::test(flavor = "multi_thread")]
async fn beside_floods_all_answers_come_and_the_account_stays_active_with_what_we_ship() {
    let noticed = floods(World::prepare().with_shipped_settings(), Some(ports::free()), SHORT).await;
    hold_to("shipped", &noticed, ANSWERED);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "five minutes on a machine of its own, with optimised programs: make faults"]
async fn beside_floods_what_is_promised_is_kept() {
    let own = floods(World::prepare().with_the_programs_settings(), None, LONG).await;
    let shipped = floods(World::prepare().with_shipped_settings(), Some(ports::free()), LONG).await;
    println!(
        "| settings | flood | heartbeat ms | Hello ms | liveness ms | growth MiB |\n|---|---|---|---|---|---|"
    );
    for (settings, all) in [("defaults", &own), ("shipped", &shipped)] {
        all.iter().for_each(|noticed| println!("| {settings} {noticed}"));
    }
    hold_to("defaults", &own, PROMISED);
    hold_to("shipped", &shipped, PROMISED);
}

fn hold_to(settings: &str, all: &[Noticed], bounds: Bounds) {
    let broken: Vec<_> = all.iter().flat_map(|noticed| noticed.broken(bounds)).collect();
    assert!(broken.is_empty(), "{settings}: {broken:#?}\n{all:#?}");
}

/// Runs all floods, one after the other, and returns what was measured during each.
async fn floods(prepare: Prepare, health: Option<u16>, size: Size) -> Vec<Noticed> {
    must(kubesvc::process::raise_open_files().map_err(|e| e.to_string()));
    let world = match health {
        Some(port) => prepare.setting("server.health.port", port),
        None => prepare,
    };
    let world = world.start().await;
    let metrics = ports::free();
    let agent = world.agent("good").log_level("info");
    let agent = agent.setting("prometheus", json!({"enabled": true, "port": metrics})).start().await;
    approve(&world, agent.id(), agent.zone()).await;
    let cluster = world.cluster("spinnaker").await;
    world.account("good").zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
    world.until("good", State::Active).await;
    for process in [world.operator().id(), agent.process_id()] {
        opens_all_files(process);
    }
    let beside = Beside::new(&world, &agent, health).await;
    for agent in beside.known() {
        approve(&world, agent, beside::ZONE).await;
    }
    let flooded = Flooded { world: &world, agent: &agent, health, size };
    let mut noticed = Vec::new();
    noticed.push(
        beside.during("D, names never seen", flooded.claims(&strangers("claimant", size.claimants))).await,
    );
    flooded.over().await;
    let claimants = strangers("approved", size.claimants);
    flooded.are_approved(&claimants).await;
    noticed.push(beside.during("D, approved", flooded.claims(&claimants)).await);
    flooded.over().await;
    noticed.push(beside.during("E", flooded.hellos()).await);
    flooded.over().await;
    noticed.push(beside.during("F", flooded.idle_callers()).await);
    flooded.over().await;
    noticed.push(beside.during("K, one address", flooded.without_a_stream(1, size.idle_of_one)).await);
    flooded.over().await;
    noticed.push(beside.during("K, many addresses", flooded.without_a_stream(100, size.idle_of_many)).await);
    flooded.over().await;
    noticed.push(beside.during("L", flooded.slow_bodies()).await);
    flooded.over().await;
    let beside = beside.probing(Probe { port: agent.health_port(), path: "/health" }, agent.process_id());
    noticed.push(beside.during("P, 8082", flooded.callers_of_the_agent(agent.health_port())).await);
    let beside = beside.probing(Probe { port: metrics, path: "/metrics" }, agent.process_id());
    noticed.push(beside.during("P, 8008", flooded.callers_of_the_agent(metrics)).await);
    noticed
}

fn strangers(name: &str, count: usize) -> Vec<String> {
    (0..count).map(|one| format!("{name}-{one}")).collect()
}

/// Approves an agent that has an object.
async fn approve(world: &World, agent_id: &str, zone: &str) {
    let (agents, name) = (world.api::<KubesvcAgent>(), names::agent_object_name(agent_id, zone));
    eventually(&format!("agent {agent_id} approved"), PATIENCE, async || {
        let approved = Patch::Merge(json!({"spec": {"approved": true}}));
        let agent = agents.patch(&name, &PatchParams::default(), &approved).await;
        agent.map(drop).map_err(|e| e.to_string())
    })
    .await;
}

/// Checks that a process started with the usual soft limit of 1,024 open files has raised it.
fn opens_all_files(process: u32) {
    let limits = format!("/proc/{process}/limits");
    let limits = must(std::fs::read_to_string(&limits).map_err(|e| format!("{limits}: {e}")));
    let open_files = limits.lines().find(|line| line.starts_with("Max open files")).unwrap_or_default();
    let bounds: Vec<_> = open_files.split_whitespace().filter(|word| word.parse::<u64>().is_ok()).collect();
    assert!(bounds.len() == 2 && bounds[0] == bounds[1], "{open_files}");
}

struct Flooded<'w> {
    world: &'w World,
    agent: &'w Agent,
    health: Option<u16>,
    size: Size,
}

impl Flooded<'_> {
    fn hub(&self, first: u8) -> Crowd {
        Crowd::of(self.world.operator().hub_port(), first)
    }

    /// D: hellos with 100,000 accounts that never existed.
    async fn claims(&self, agents: &[String]) {
        // The first connection of each may have been the one for its approval.
        for connection in 2..2 + self.size.rounds {
            self.hub(1).claim(agents, self.agent.zone(), connection).await;
        }
    }

    async fn are_approved(&self, agents: &[String]) {
        self.hub(1).say_hello(agents, self.agent.zone()).await;
        for agent in agents {
            approve(self.world, agent, self.agent.zone()).await;
        }
    }

    /// E: thousands of hellos, each with a name of its own.
    async fn hellos(&self) {
        let names = strangers("crowd", self.size.hellos);
        let streams = self.hub(2).say_hello(&names, self.agent.zone()).await;
        hold(self.size.held).await;
        drop(streams);
    }

    /// F: connections that send nothing.
    async fn idle_callers(&self) {
        let mut idle = Crowd::of(self.world.operator().rest_port(), 3).connect(IDLE_CALLERS, 200, b"").await;
        if let Some(port) = self.health {
            idle.extend(Crowd::of(port, 4).connect(IDLE_PROBES, 50, b"").await);
        }
        hold(self.size.held).await;
        drop(idle);
    }

    /// K: HTTP/2 connections without a stream.
    async fn without_a_stream(&self, addresses: usize, count: usize) {
        let idle = self.hub(5).connect(count, count.div_ceil(addresses), crowd::HTTP2).await;
        hold(self.size.held).await;
        drop(idle);
    }

    /// L: twelve slow bodies from one address, and one from each of four others.
    async fn slow_bodies(&self) {
        let crowd = Crowd::of(self.world.operator().rest_port(), 6);
        let bodies = async {
            tokio::join!(crowd.slow_bodies(12, 12), crowd.slow_bodies(4, 1));
        };
        let calls = async {
            hold(self.size.held).await;
            // The body of another caller, large enough to need memory budget.
            let body = format!("[{{\"name\": \"none\", \"state\": \"INACTIVE\"}}]{}", " ".repeat(100_000));
            let answer = self.world.call(
                crate::world::Call::new("PATCH", "/armory/accounts")
                    .header("content-type", "application/json")
                    .bytes(body),
            );
            let answer = answer.await;
            assert!(answer.text.contains("does not exist"), "{answer}");
        };
        tokio::select! {
            () = bodies => {}
            () = calls => {}
        }
    }

    /// P: connections to an agent that send nothing, and request heads that arrive byte by byte.
    async fn callers_of_the_agent(&self, port: u16) {
        let crowd = Crowd::of(port, 7);
        let idle = crowd.connect(IDLE_PROBES, IDLE_PROBES, b"").await;
        let heads = crowd.slow_heads(IDLE_PROBES);
        tokio::select! {
            () = heads => {}
            () = hold(self.size.held) => {}
        }
        drop(idle);
    }

    /// Waits until the hub has no sessions of the strangers any more.
    async fn over(&self) {
        eventually("the end of the flood", PATIENCE, async || {
            let metrics = self.world.try_get("/metrics").await?.text;
            let sessions = metrics.lines().find_map(|line| line.strip_prefix("kubesvc_hub_sessions "));
            // The good agent, and the session that measures heartbeats; one may be in its Hello.
            match sessions.and_then(|number| number.trim().parse::<usize>().ok()) {
                Some(0..=3) => Ok(()),
                sessions => Err(format!("{sessions:?} sessions")),
            }
        })
        .await;
    }
}

/// Holds a flood. The sleep is the flood itself, not a wait for a condition.
async fn hold(flood: Duration) {
    tokio::time::sleep(flood).await;
}
