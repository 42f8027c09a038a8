//! Measurements during a flood.

use std::fmt;
use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use futures::StreamExt;
use kube::Api;
use kube::runtime::watcher::{self, Event};
use kubesvc_core::wire::ops::hub_frame::Frame;
use kubesvc_core::{KubesvcAccount, SessionId, State};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use super::doors::HonestCaller;
use crate::world::{Agent, World};
use kubesvc_testkit::must;
use kubesvc_testkit::simulated_agent::SimulatedAgent;
use kubesvc_testkit::simulated_agent::frames::{Introduction, Policy};

/// Zone of the agents whose hellos are measured; it has no account.
pub(super) const ZONE: &str = "west";
/// Number of agents that take turns in sending a hello: an object is written at most twice a second.
const KNOWN: usize = 12;
/// Interval between heartbeats of the hub.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// Minimum number of measurements during each flood.
const LEAST: usize = 3;
/// Timeout for an answer.
const MAX_WAIT: Duration = Duration::from_secs(30);
/// Pause between two probes.
const PAUSE: Duration = Duration::from_millis(50);
/// Growth of memory that may stay after a flood, in KiB.
const SETTLED_KIB: u64 = 48 * 1024;
/// Source address of probes.
pub(super) const PROBER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 8);

/// Upper bounds on what is measured.
#[derive(Clone, Copy)]
pub(super) struct Bounds {
    pub(super) heartbeat: Duration,
    pub(super) hello: Duration,
    pub(super) liveness: Duration,
    /// Of an honest call through the API of an account.
    pub(super) call: Duration,
    pub(super) growth_kib: u64,
}

/// The endpoint that is probed.
#[derive(Clone, Copy)]
pub(super) struct Probe {
    pub(super) port: u16,
    pub(super) path: &'static str,
}

/// Everything that runs next to a flood.
pub(super) struct Measurements<'w> {
    world: &'w World,
    agent: &'w Agent,
    /// The account that the agent holds.
    account: &'static str,
    /// Makes the honest calls, where the API of accounts is served.
    caller: Option<HonestCaller>,
    session: SessionId,
    probe: Probe,
    /// Process whose memory is measured, and its memory before the floods.
    process: u32,
    memory: u64,
    channel: Channel,
    heartbeats: SimulatedAgent,
    known: Vec<String>,
    hellos: tokio::sync::Mutex<Vec<Introduction>>,
}

/// Measurements during one flood.
#[derive(Debug)]
pub(super) struct FloodMeasurement {
    flood: &'static str,
    heartbeat: Vec<Duration>,
    hello: Vec<Duration>,
    liveness: Vec<Duration>,
    /// Honest calls, where they are made.
    call: Option<Vec<Duration>>,
    /// Growth of memory, in KiB.
    growth: u64,
    /// Events that must never happen.
    trouble: Vec<String>,
}

/// A series of measurements of one operation.
#[derive(Default)]
struct Meter {
    times: Vec<Duration>,
    trouble: Vec<String>,
}

impl Meter {
    /// Measures `once` repeatedly until stopped, at least [`LEAST`] times.
    async fn run<A>(
        stop: &CancellationToken,
        what: &str,
        pause: Duration,
        mut once: impl FnMut() -> A,
    ) -> Self
    where
        A: Future<Output = Result<(), String>>,
    {
        let mut meter = Self::default();
        while !stop.is_cancelled() || meter.times.len() < LEAST {
            let began = Instant::now();
            match tokio::time::timeout(MAX_WAIT, once()).await {
                Ok(Ok(())) => meter.times.push(began.elapsed()),
                Ok(Err(problem)) => meter.trouble.push(format!("{what}: {problem}")),
                Err(_) => meter.trouble.push(format!("{what}: no answer within {MAX_WAIT:?}")),
            }
            if meter.trouble.len() > LEAST {
                break;
            }
            tokio::time::sleep(pause).await;
        }
        meter
    }
}

impl<'w> Measurements<'w> {
    /// Starts with the good agent connected and its account ACTIVE.
    pub(super) async fn new(
        world: &'w World,
        agent: &'w Agent,
        account: &'static str,
        health: Option<u16>,
    ) -> Self {
        let (hub, rest) = (world.operator().hub_port(), world.operator().rest_port());
        let endpoint = Endpoint::from_shared(format!("http://127.0.0.1:{hub}")).expect("an address");
        let channel = must(endpoint.connect().await.map_err(|e| e.to_string()));
        let known: Vec<_> = (0..KNOWN).map(|one| format!("known-{one}")).collect();
        let mut hellos = Vec::new();
        for agent_id in &known {
            hellos.push(must(say_hello(hub, Introduction::new(agent_id, ZONE)).await));
        }
        let introduction = Introduction::new("heartbeats", ZONE);
        let heartbeats = SimulatedAgent::connect(&address(hub), introduction, Policy::default()).await;
        let process = world.operator().id();
        Self {
            world,
            agent,
            account,
            caller: None,
            session: session(world, agent).await,
            probe: Probe { port: health.unwrap_or(rest), path: "/health/liveness" },
            process,
            memory: memory(process),
            channel,
            heartbeats: must(heartbeats.map_err(|e| e.to_string())),
            known,
            hellos: tokio::sync::Mutex::new(hellos),
        }
    }

    /// Names of the agents whose hellos are measured.
    pub(super) fn known(&self) -> &[String] {
        &self.known
    }

    /// Probes and measures another process instead.
    pub(super) fn probing(self, probe: Probe, process: u32) -> Self {
        Self { probe, process, memory: memory(process), ..self }
    }

    /// Measures growth from what the process holds with the honest load alone.
    pub(super) async fn after_rest(self, rest: Duration) -> Self {
        let at_rest = self.during("honest load alone", tokio::time::sleep(rest)).await;
        println!("{at_rest}");
        Self { memory: self.memory + at_rest.growth, ..self }
    }

    /// Whether most memory of the last flood is given back, so that the next one is measured by itself.
    pub(super) fn is_settled(&self) -> Result<(), String> {
        let growth = memory(self.process).saturating_sub(self.memory);
        if growth < SETTLED_KIB { Ok(()) } else { Err(format!("still {growth} KiB more than before")) }
    }

    /// Makes honest calls besides.
    pub(super) fn calling(self, caller: HonestCaller) -> Self {
        Self { caller: Some(caller), ..self }
    }

    /// Runs a flood, and returns the measurements during it.
    pub(super) async fn during(
        &self,
        flood: &'static str,
        run: impl Future<Output = ()>,
    ) -> FloodMeasurement {
        let (stop, ends) = (CancellationToken::new(), CancellationToken::new());
        let before = self.heartbeats.received().len();
        let (probe, channel, process) = (self.probe, self.channel.clone(), self.process);
        let (token, until) = (stop.clone(), ends.clone());
        let liveness =
            tokio::spawn(async move { Meter::run(&token, "liveness", PAUSE, || ask(probe)).await });
        let token = stop.clone();
        let trips = tokio::spawn(async move {
            let trip = || {
                let mut client = HealthClient::new(channel.clone());
                async move {
                    let asked = client.check(HealthCheckRequest::default()).await;
                    asked.map(drop).map_err(|status| status.to_string())
                }
            };
            Meter::run(&token, "round trip", PAUSE, trip).await
        });
        let (caller, token) = (self.caller.clone(), stop.clone());
        let calls = tokio::spawn(async move {
            let caller = caller?;
            Some(Meter::run(&token, "call", PAUSE, || caller.call()).await)
        });
        let (accounts, account) = (self.world.api(), self.account);
        let token = until.clone();
        let states = tokio::spawn(async move { other_states(accounts, account, token).await });
        let most = tokio::spawn(async move { most_memory(process, until).await });
        let hellos = self.time_hellos(&stop);
        let flooding = async {
            run.await;
            stop.cancel();
        };
        let (mut hellos, ()) = tokio::join!(hellos, flooding);
        let (liveness, trips) = (liveness.await.expect("no panic"), trips.await.expect("no panic"));
        let mut calls = calls.await.expect("no panic");
        ends.cancel();
        let (states, most) = (states.await.expect("no panic"), most.await.expect("no panic"));

        let mut trouble = std::mem::take(&mut hellos.trouble);
        trouble.extend(liveness.trouble.into_iter().chain(trips.trouble).chain(states));
        trouble.extend(calls.iter_mut().flat_map(|calls| std::mem::take(&mut calls.trouble)));
        if let Some(ended) = self.heartbeats.ended() {
            trouble.push(format!("the session of the heartbeats ended: {ended}"));
        }
        let session = session(self.world, self.agent).await;
        if session != self.session {
            trouble.push(format!("the good agent has another session: {session}"));
        }
        let state = self.world.state(self.account).await;
        if state != Some(State::Active) {
            trouble.push(format!("the account is {state:?}"));
        }
        let heartbeat = trips.times.into_iter().chain(self.heartbeat_delays(before)).collect();
        let growth = most.saturating_sub(self.memory);
        let (liveness, call) = (liveness.times, calls.map(|calls| calls.times));
        FloodMeasurement { flood, heartbeat, hello: hellos.times, liveness, call, growth, trouble }
    }

    async fn time_hellos(&self, stop: &CancellationToken) -> Meter {
        let hub = self.world.operator().hub_port();
        let mut hellos = self.hellos.lock().await;
        let mut meter = Meter::default();
        while !stop.is_cancelled() || meter.times.len() < LEAST {
            let next = hellos.remove(0);
            let began = Instant::now();
            let agent = SimulatedAgent::connect(&address(hub), next.clone(), Policy::default()).await;
            match agent {
                Ok(agent) => {
                    meter.times.push(began.elapsed());
                    hellos.push(agent.again());
                    agent.goodbye().await;
                }
                Err(problem) => {
                    meter.trouble.push(format!("Hello of {}: {problem}", next.agent_id));
                    hellos.push(next);
                    if meter.trouble.len() > LEAST {
                        break;
                    }
                }
            }
            tokio::time::sleep(PAUSE * 2).await;
        }
        meter
    }

    /// Delays of the hub's heartbeats since frame `before`, relative to their interval.
    fn heartbeat_delays(&self, before: usize) -> Vec<Duration> {
        let beats: Vec<_> = self.heartbeats.received();
        let beats = beats.iter().enumerate().filter(|(_, one)| matches!(one.frame, Frame::Heartbeat(_)));
        let beats: Vec<_> = beats.map(|(at, one)| (at, one.at)).collect();
        let gaps = beats.windows(2).filter(|two| two[1].0 >= before);
        gaps.map(|two| two[1].1.duration_since(two[0].1).saturating_sub(HEARTBEAT)).collect()
    }
}

impl FloodMeasurement {
    /// Measurements outside of the bounds.
    pub(super) fn broken(&self, bounds: Bounds) -> Vec<String> {
        let flood = self.flood;
        let mut broken: Vec<_> = self.trouble.iter().map(|one| format!("{flood}: {one}")).collect();
        let calls = self.call.iter().map(|call| ("call", call, bounds.call));
        for (what, times, bound) in [
            ("heartbeat", &self.heartbeat, bounds.heartbeat),
            ("Hello", &self.hello, bounds.hello),
            ("liveness", &self.liveness, bounds.liveness),
        ]
        .into_iter()
        .chain(calls)
        {
            let longest = longest(times);
            if times.len() < LEAST || longest > bound {
                broken.push(format!("{flood}: {what} took {longest:?} of {bound:?}, of {}", times.len()));
            }
        }
        if self.growth > bounds.growth_kib {
            broken.push(format!("{flood}: grew by {} KiB of {}", self.growth, bounds.growth_kib));
        }
        broken
    }
}

/// Formats a row of the table.
impl fmt::Display for FloodMeasurement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "| {} |", self.flood)?;
        for times in [&self.heartbeat, &self.hello, &self.liveness].into_iter().chain(&self.call) {
            let mut sorted = times.clone();
            sorted.sort_unstable();
            let median = sorted.get(sorted.len() / 2).copied().unwrap_or_default();
            write!(
                f,
                " {} (median {}, of {}) |",
                longest(times).as_millis(),
                median.as_millis(),
                times.len()
            )?;
        }
        write!(f, " {} |", self.growth / 1024)?;
        self.trouble.iter().try_for_each(|one| write!(f, " {one};"))
    }
}

fn longest(times: &[Duration]) -> Duration {
    times.iter().max().copied().unwrap_or_default()
}

fn address(port: u16) -> String {
    format!("127.0.0.1:{port}")
}

async fn say_hello(hub: u16, introduction: Introduction) -> Result<Introduction, String> {
    let agent = SimulatedAgent::connect(&address(hub), introduction, Policy::default()).await;
    let agent = agent.map_err(|problem| problem.to_string())?;
    let next = agent.again();
    agent.goodbye().await;
    Ok(next)
}

/// The current session of an agent.
async fn session(world: &World, agent: &Agent) -> SessionId {
    let status = world.agent_object(agent).await.and_then(|object| object.status).unwrap_or_default();
    status.session.map(|session| session.id).unwrap_or_default()
}

/// Sends a request over a connection of its own; the response must be 200.
async fn ask(probe: Probe) -> Result<(), String> {
    let asked = async {
        let socket = TcpSocket::new_v4()?;
        socket.bind(SocketAddr::from((PROBER, 0)))?;
        let mut stream: TcpStream =
            socket.connect(SocketAddr::from((Ipv4Addr::LOCALHOST, probe.port))).await?;
        let request = format!("GET {} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", probe.path);
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        Ok::<_, std::io::Error>(answer)
    };
    let answer = asked.await.map_err(|problem| problem.to_string())?;
    let answer = String::from_utf8_lossy(&answer);
    if answer.starts_with("HTTP/1.1 200 ") { Ok(()) } else { Err(format!("{answer:?}")) }
}

/// Collects the account's states other than ACTIVE, as a watch shows them.
async fn other_states(accounts: Api<KubesvcAccount>, account: &str, ends: CancellationToken) -> Vec<String> {
    let config = watcher::Config::default().fields(&format!("metadata.name={account}"));
    let mut events = std::pin::pin!(watcher::watcher(accounts, config));
    let mut others = Vec::new();
    while let Some(Some(event)) = ends.run_until_cancelled(events.next()).await {
        if let Ok(Event::Apply(account) | Event::InitApply(account)) = event {
            let status = account.status_or_default();
            if status.state() != State::Active {
                others.push(format!("the account was {}: {:?}", status.state(), status.error_message));
            }
        }
    }
    others
}

/// Maximum memory of a process, in KiB.
async fn most_memory(process: u32, ends: CancellationToken) -> u64 {
    let mut most = 0;
    while ends.run_until_cancelled(tokio::time::sleep(PAUSE / 2)).await.is_some() {
        most = most.max(memory(process));
    }
    most
}

/// Memory of a process, in KiB; 0 if it has ended.
fn memory(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.split_whitespace().next().and_then(|number| number.parse().ok()).unwrap_or_default()
}
