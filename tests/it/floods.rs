//! Floods of unknown callers against the real programs. Measures their effect on a good agent, its account,
//! the Hello of an agent that has an object, and a probe, and the growth of the flooded process.
//!
//! | file | provides |
//! |---|---|
//! | `callers.rs` | unknown callers from any number of addresses: connections, hellos, bodies |
//! | `doors.rs` | callers of the API of accounts and of operations, and an agent whose answers are huge |
//! | `measurements.rs` | what is measured next to them |
//!
//! Each run asserts only what holds on a busy machine as well: every answer arrives, the account is ACTIVE
//! all the time, the session of the good agent remains, memory is bounded. `make faults` runs larger floods
//! against optimised programs, prints the figures as a table, and asserts those that `docs/security.md`
//! promises.

mod callers;
mod doors;
mod measurements;

use std::time::Duration;

use kube::api::{Patch, PatchParams};
use kubesvc_core::{KubesvcAgent, State, ZoneId, object_names};
use serde_json::json;

use self::callers::Callers;
use self::measurements::{Bounds, FloodMeasurement, Measurements, Probe};
use crate::world::{Agent, MAX_WAIT, Prepare, World};
use kubesvc_testkit::{must, ports, wait::eventually};

/// Bounds for unoptimised programs on a busy machine.
const ANSWERED: Bounds = Bounds {
    heartbeat: Duration::from_secs(30),
    hello: Duration::from_secs(20),
    liveness: Duration::from_secs(30),
    call: Duration::from_secs(30),
    growth_kib: 128 * 1024,
};
/// Bounds promised for the released programs.
const PROMISED: Bounds = Bounds {
    heartbeat: Duration::from_secs(2),
    hello: Duration::from_secs(1),
    liveness: Duration::from_millis(500),
    call: Duration::from_secs(1),
    // 64 MiB, except for agents that claim 100,000 accounts each: four such hellos are read at once.
    growth_kib: 96 * 1024,
};

/// The same where no agent claims accounts.
const PROMISED_AT_THE_DOORS: Bounds = Bounds { growth_kib: 64 * 1024, ..PROMISED };

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
async fn flood_with_default_settings_delays_no_answer_and_account_stays_active() {
    let measured = floods(World::prepare().with_the_programs_settings(), None, SHORT).await;
    hold_to("defaults", &measured, ANSWERED);
}

#[tokio::test(flavor = "multi_thread")]
async fn flood_with_shipped_settings_delays_no_answer_and_account_stays_active() {
    let measured = floods(World::prepare().with_shipped_settings(), Some(ports::free()), SHORT).await;
    hold_to("shipped", &measured, ANSWERED);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "five minutes on a machine of its own, with optimised programs: make faults"]
async fn documented_bounds_hold_during_floods() {
    let own = floods(World::prepare().with_the_programs_settings(), None, LONG).await;
    let shipped = floods(World::prepare().with_shipped_settings(), Some(ports::free()), LONG).await;
    println!(
        "| settings | flood | heartbeat ms | Hello ms | liveness ms | growth MiB |\n|---|---|---|---|---|---|"
    );
    for (settings, all) in [("defaults", &own), ("shipped", &shipped)] {
        all.iter().for_each(|measured| println!("| {settings} {measured}"));
    }
    hold_to("defaults", &own, PROMISED);
    hold_to("shipped", &shipped, PROMISED);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "three minutes on a machine of its own, with optimised programs: make floods"]
async fn documented_bounds_hold_during_floods_of_the_api_of_accounts() {
    println!(
        "| flood | heartbeat ms | Hello ms | liveness ms | call ms | growth MiB |\n|---|---|---|---|---|---|"
    );
    let measured = doors::floods(LONG.held).await;
    hold_to("the API of accounts", &measured, PROMISED_AT_THE_DOORS);
}

fn hold_to(settings: &str, all: &[FloodMeasurement], bounds: Bounds) {
    let broken: Vec<_> = all.iter().flat_map(|measured| measured.broken(bounds)).collect();
    assert!(broken.is_empty(), "{settings}: {broken:#?}\n{all:#?}");
}

/// Runs all floods, one after the other, and returns what was measured during each.
async fn floods(prepare: Prepare, health: Option<u16>, size: Size) -> Vec<FloodMeasurement> {
    must(kubesvc_runtime::process::raise_open_files().map_err(|e| e.to_string()));
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
    let measurements = Measurements::new(&world, &agent, "good", health).await;
    for agent in measurements.known() {
        approve(&world, agent, measurements::ZONE).await;
    }
    let flooded = Flooded { world: &world, agent: &agent, health, size };
    let mut measured = Vec::new();
    measured.push(
        measurements
            .during("D, names never seen", flooded.claims(&unknown_names("claimant", size.claimants)))
            .await,
    );
    flooded.over().await;
    let claimants = unknown_names("approved", size.claimants);
    flooded.are_approved(&claimants).await;
    measured.push(measurements.during("D, approved", flooded.claims(&claimants)).await);
    flooded.over().await;
    measured.push(measurements.during("E", flooded.hellos()).await);
    flooded.over().await;
    measured.push(measurements.during("F", flooded.idle_callers()).await);
    flooded.over().await;
    measured.push(measurements.during("K, one address", flooded.without_a_stream(1, size.idle_of_one)).await);
    flooded.over().await;
    measured.push(
        measurements.during("K, many addresses", flooded.without_a_stream(100, size.idle_of_many)).await,
    );
    flooded.over().await;
    measured.push(measurements.during("L", flooded.slow_bodies()).await);
    flooded.over().await;
    let measurements =
        measurements.probing(Probe { port: agent.health_port(), path: "/health" }, agent.process_id());
    measured.push(measurements.during("P, 8082", flooded.callers_of_the_agent(agent.health_port())).await);
    let measurements = measurements.probing(Probe { port: metrics, path: "/metrics" }, agent.process_id());
    measured.push(measurements.during("P, 8008", flooded.callers_of_the_agent(metrics)).await);
    measured
}

fn unknown_names(name: &str, count: usize) -> Vec<String> {
    (0..count).map(|one| format!("{name}-{one}")).collect()
}

/// Approves an agent that has an object.
async fn approve(world: &World, agent_id: &str, zone: &str) {
    let (agents, name) =
        (world.api::<KubesvcAgent>(), object_names::agent_object_name(&agent_id.into(), &ZoneId::from(zone)));
    eventually(&format!("agent {agent_id} approved"), MAX_WAIT, async || {
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
    fn hub(&self, first: u8) -> Callers {
        Callers::of(self.world.operator().hub_port(), first)
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
        let names = unknown_names("callers", self.size.hellos);
        let streams = self.hub(2).say_hello(&names, self.agent.zone()).await;
        hold(self.size.held).await;
        drop(streams);
    }

    /// F: connections that send nothing.
    async fn idle_callers(&self) {
        let mut idle =
            Callers::of(self.world.operator().rest_port(), 3).connect(IDLE_CALLERS, 200, b"").await;
        if let Some(port) = self.health {
            idle.extend(Callers::of(port, 4).connect(IDLE_PROBES, 50, b"").await);
        }
        hold(self.size.held).await;
        drop(idle);
    }

    /// K: HTTP/2 connections without a stream.
    async fn without_a_stream(&self, addresses: usize, count: usize) {
        let idle = self.hub(5).connect(count, count.div_ceil(addresses), callers::HTTP2).await;
        hold(self.size.held).await;
        drop(idle);
    }

    /// L: twelve slow bodies from one address, and one from each of four others.
    async fn slow_bodies(&self) {
        let callers = Callers::of(self.world.operator().rest_port(), 6);
        let bodies = async {
            tokio::join!(callers.slow_bodies(12, 12), callers.slow_bodies(4, 1));
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
        let callers = Callers::of(port, 7);
        let idle = callers.connect(IDLE_PROBES, IDLE_PROBES, b"").await;
        let heads = callers.slow_heads(IDLE_PROBES);
        tokio::select! {
            () = heads => {}
            () = hold(self.size.held) => {}
        }
        drop(idle);
    }

    /// Waits until the hub has no sessions of the strangers any more.
    async fn over(&self) {
        eventually("the end of the flood", MAX_WAIT, async || {
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
