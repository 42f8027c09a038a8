//! Crowd: many agents that connect at once, compared with a bare server that registers them, and with raw writes at
//! the same rate limit.

use std::{
    net::SocketAddr,
    path::Path,
    pin::Pin,
    process::{Command, ExitCode},
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{StreamExt, future::try_join_all, stream};
use kube::{
    Api, Client, Config,
    api::{Patch, PatchParams, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use kubesvc_core::{
    FIELD_MANAGER, KubesvcAgent, KubesvcAgentSpec, object_names,
    wire::ops::{Accepted, AgentFrame, Hello, HubFrame, agent_frame, hub_frame},
};
use kubesvc_runtime::{
    grpc::ops::operations_server::{Operations, OperationsServer},
    rate_limit::{RateLimit, Urgency},
};
use serde_json::json;
use tokio::net::{TcpListener, TcpSocket};
use tonic::{
    Request, Response, Status, Streaming,
    transport::{Server, server::TcpIncoming},
};

use crate::{
    objects::{ZONE, each},
    operator::{Operator, Site},
    options::Options,
    progress::say,
    report::{Report, Row, Wanted},
    statistics::{Series, shown},
    tls::{self, BenchTls},
};
use kubesvc_testkit::{
    controlplane::ControlPlane,
    folder::Folder,
    namespace::TestNamespace,
    ports,
    process::Process,
    simulated_agent::{
        SimulatedAgent, SimulatedTls,
        frames::{Introduction, NoSession, Policy},
    },
    wait::try_eventually,
};

/// Environment variable that makes this process the bare server, with its port as the value.
const BARE: &str = "BENCH_BARE_REGISTRAR";
/// Environment variables for the bare server's kubeconfig and namespace. Without them it writes nothing.
const KUBECONFIG: &str = "BENCH_BARE_KUBECONFIG";
const NAMESPACE: &str = "BENCH_BARE_NAMESPACE";
/// Environment variable for the folder with the bare server's certificates. Without it, it serves plaintext.
const TLS_FOLDER: &str = "BENCH_BARE_TLS";
/// Registrations per second in the rate-limited runs.
const LIMIT: u32 = 100;
/// Time limit until all agents are accepted.
const ALL: Duration = Duration::from_secs(300);
const GRACE: Duration = Duration::from_secs(30);
/// Number of redials of an agent that was cut off before an answer, and in `REDIAL` the maximum delay of each.
const REDIALS: u32 = 5;
const REDIAL: Duration = Duration::from_secs(1);
/// Accept queue of the bare server, as long as the hub's.
const BACKLOG: u32 = 4096;

#[derive(Debug, Default)]
struct Seconds {
    echoed: Vec<f64>,
    registered: Vec<f64>,
    accepted: Vec<f64>,
    raw: Vec<f64>,
    limited: Vec<f64>,
}

/// Runs the benchmark and adds its results to the report.
///
/// # Errors
///
/// The benchmark could not run.
pub(crate) async fn run(options: &Options, report: &mut Report) -> Result<(), String> {
    let (plane, count) = (crate::control_plane().await?, options.accounts);
    let mut seconds = Seconds::default();
    for round in 1..=options.rounds {
        seconds.echoed.push(at_bare_server(&plane, count, false, None).await?);
        seconds.registered.push(at_bare_server(&plane, count, true, None).await?);
        seconds.accepted.push(at_hub(&plane, count, 0, None).await?);
        seconds.raw.push(raw_writes(&plane, count).await?);
        seconds.limited.push(at_hub(&plane, count, LIMIT, None).await?);
        let last = |all: &[f64]| shown(all[round - 1]);
        say(&format!(
            "crowd {round}/{}: {count} agents: echoed {} s, registered by a bare server {} s, accepted {} s; at {LIMIT}/s: raw {} s, kubesvc {} s",
            options.rounds,
            last(&seconds.echoed),
            last(&seconds.registered),
            last(&seconds.accepted),
            last(&seconds.raw),
            last(&seconds.limited),
        ));
    }
    tell(count, &seconds, report);
    Ok(())
}

fn tell(count: usize, seconds: &Seconds, report: &mut Report) {
    let what = |what: &str| format!("{count} agents at once: {what}");
    let series = |all: &[f64]| all.iter().copied().collect::<Series>();
    let ratio = |over: &[f64], under: &[f64]| over.iter().zip(under).map(|(o, u)| o / u).collect::<Series>();
    let mut add =
        |text: &str, all: &Series, wanted| report.add(Row::series("crowd", &what(text), all, wanted));
    add("a bare server echoes each hello, s", &series(&seconds.echoed), Wanted::Nothing);
    add("a bare server registers each first, s", &series(&seconds.registered), Wanted::Nothing);
    add("accepted by the operator, s", &series(&seconds.accepted), Wanted::Nothing);
    let times = ratio(&seconds.accepted, &seconds.echoed);
    add("times the bare server that only echoes", &times, Wanted::Nothing);
    let times = ratio(&seconds.accepted, &seconds.registered);
    add("times the bare server that registers", &times, Wanted::AtMost(2.0));
    add(&format!("raw writes at {LIMIT}/s, s"), &series(&seconds.raw), Wanted::Nothing);
    add(&format!("all registered at {LIMIT}/s, s"), &series(&seconds.limited), Wanted::Nothing);
    let times = ratio(&seconds.limited, &seconds.raw);
    add("times the raw writes", &times, Wanted::AtMost(1.2));
}

/// Creates the objects of known, approved agents.
async fn known_agents(plane: &ControlPlane, count: usize) -> Result<TestNamespace, String> {
    let namespace = plane.namespace().await;
    let agents: Api<KubesvcAgent> = namespace.api();
    each(count, async |number| {
        let (agent_id, zone_id) = (agent_id(number), ZONE.into());
        let name = object_names::agent_object_name(&agent_id.as_str().into(), &zone_id);
        let agent =
            KubesvcAgent::new(&name, KubesvcAgentSpec { agent_id: agent_id.into(), zone_id, approved: true });
        agents.create(&PostParams::default(), &agent).await.map(drop).map_err(|e| e.to_string())
    })
    .await?;
    Ok(namespace)
}

fn agent_id(number: usize) -> String {
    format!("crowd-{number}")
}

/// Returns the seconds until the operator has accepted all agents, which return when they are told to.
pub(crate) async fn at_hub(
    plane: &ControlPlane,
    count: usize,
    limit: u32,
    tls: Option<&BenchTls>,
) -> Result<f64, String> {
    let namespace = known_agents(plane, count).await?;
    let site = Site::new(plane, namespace.name(), GRACE).await?;
    let site = match tls {
        Some(tls) => site.secured(GRACE, &tls.settings())?,
        None => site,
    };
    site.limit_registrations(GRACE, limit)?;
    let operator = site.start()?;
    operator.ready().await?;
    let accepted = until_all_are_accepted(&site.hub(), count, tls).await;
    let (agents, seconds) = accepted.map_err(|reason| operator.explain(&reason))?;
    check_registered(&namespace, count).await?;
    end(operator, agents).await?;
    Ok(seconds)
}

async fn end(operator: Operator<'_>, agents: Vec<SimulatedAgent>) -> Result<(), String> {
    drop(agents);
    operator.stop().await
}

async fn check_registered(namespace: &TestNamespace, count: usize) -> Result<(), String> {
    let agents: Api<KubesvcAgent> = namespace.api();
    let listed = agents.list(&kube::api::ListParams::default()).await.map_err(|e| e.to_string())?;
    let connected = |agent: &&KubesvcAgent| agent.status.as_ref().is_some_and(|status| status.connected);
    match listed.items.iter().filter(connected).count() {
        all if all == count => Ok(()),
        some => Err(format!("{some} of {count} agents are registered")),
    }
}

async fn until_all_are_accepted(
    hub: &str,
    count: usize,
    tls: Option<&BenchTls>,
) -> Result<(Vec<SimulatedAgent>, f64), String> {
    let tls = tls.map(|tls| &tls.client);
    let start = Instant::now();
    let all = try_join_all((0..count).map(|number| accepted(hub, number, tls)));
    let agents = tokio::time::timeout(ALL, all).await.map_err(|_| format!("not all within {ALL:?}"))??;
    let seconds = start.elapsed().as_secs_f64();
    match agents.iter().find_map(SimulatedAgent::ended) {
        Some(reason) => Err(format!("an agent was cut off: {reason}")),
        None => Ok((agents, seconds)),
    }
}

async fn accepted(hub: &str, number: usize, tls: Option<&SimulatedTls>) -> Result<SimulatedAgent, String> {
    let mut introduction = Introduction::new(&agent_id(number), ZONE);
    let mut redials = 0;
    loop {
        match SimulatedAgent::connect_over(hub, tls, introduction.clone(), Policy::default()).await {
            Ok(agent) => return Ok(agent),
            Err(NoSession::Refused(refused)) if refused.retry_after_ms > 0 => {
                introduction.connect_seq += 1;
                // Like a real agent, wait a little longer than told.
                let asked = Duration::from_millis(refused.retry_after_ms.into());
                let later = (asked / 20).min(Duration::from_secs(1)).mul_f64(fastrand::f64());
                tokio::time::sleep(asked + later).await;
            }
            // Like a real agent, redial: with this many connections at once, the system may drop some.
            Err(NoSession::Unreachable(_) | NoSession::Ended(_)) if redials < REDIALS => {
                redials += 1;
                introduction.connect_seq += 1;
                tokio::time::sleep(REDIAL.mul_f64(fastrand::f64())).await;
            }
            Err(reason) => return Err(format!("agent {number}: {reason}")),
        }
    }
}

/// Makes one write per agent, at the rate limit.
async fn raw_writes(plane: &ControlPlane, count: usize) -> Result<f64, String> {
    let namespace = known_agents(plane, count).await?;
    let agents: Api<KubesvcAgent> = namespace.api();
    let (rate_limit, start) = (RateLimit::new(LIMIT, LIMIT), Instant::now());
    each(count, async |number| {
        rate_limit.take(Urgency::Rest).await;
        register(&agents, &agent_id(number), ZONE).await
    })
    .await?;
    Ok(start.elapsed().as_secs_f64())
}

/// Makes the one write that a registration needs.
async fn register(agents: &Api<KubesvcAgent>, agent_id: &str, zone: &str) -> Result<(), String> {
    let name = object_names::agent_object_name(&agent_id.into(), &zone.into());
    let session = json!({"id": agent_id, "bootId": agent_id, "connectSeq": 1, "replica": "bare"});
    let status =
        json!({"status": {"connected": true, "connectedSince": jiff::Timestamp::now(), "session": session}});
    let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    let written = agents.patch_status(&name, &params, &Patch::Merge(&status)).await;
    written.map(drop).map_err(|e| format!("{name}: {e}"))
}

pub(crate) async fn at_bare_server(
    plane: &ControlPlane,
    count: usize,
    registers: bool,
    tls: Option<&BenchTls>,
) -> Result<f64, String> {
    let namespace = known_agents(plane, count).await?;
    let (port, folder) = (ports::free(), Folder::new("bench-registrar")?);
    let program = std::env::current_exe().map_err(|e| format!("where this program is: {e}"))?;
    let mut command = Command::new(program);
    command.env(BARE, port.to_string()).arg("--bench");
    if registers {
        command.env(KUBECONFIG, plane.kubeconfig_path()).env(NAMESPACE, namespace.name());
    }
    if let Some(tls) = tls {
        command.env(TLS_FOLDER, tls.folder());
    }
    let process = Process::spawn("bare server", &command, &folder.file("log"))?;
    let address = format!("127.0.0.1:{port}");
    try_eventually("the bare server", Duration::from_secs(10), async || {
        process.check_running()?;
        tokio::net::TcpStream::connect(&address).await.map(drop).map_err(|e| e.to_string())
    })
    .await?;
    let accepted = until_all_are_accepted(&address, count, tls).await;
    let (_agents, seconds) = accepted.map_err(|reason| format!("{reason}\n{}", process.log_tail(12)))?;
    Ok(seconds)
}

/// Whether this process was started as the bare server.
pub(crate) fn is_bare_server() -> bool {
    std::env::var_os(BARE).is_some()
}

/// Serves until the process is killed.
pub(crate) fn serve_bare() -> ExitCode {
    let port = std::env::var(BARE).ok().and_then(|port| port.parse::<u16>().ok()).unwrap_or_default();
    // Fails only if a provider is already installed, which is fine.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let served = tokio::runtime::Runtime::new().map_err(|e| e.to_string()).and_then(|runtime| {
        runtime.block_on(async {
            let bare = Bare(Arc::new(agents().await?));
            let mut server = Server::builder();
            if let Some(folder) = std::env::var_os(TLS_FOLDER) {
                server =
                    server.tls_config(tls::of_bare_server(Path::new(&folder))?).map_err(|e| e.to_string())?;
            }
            let server = server.add_service(OperationsServer::new(bare));
            let listener = listen(([127, 0, 0, 1], port).into()).map_err(|e| e.to_string())?;
            server.serve_with_incoming(TcpIncoming::from(listener)).await.map_err(|e| e.to_string())
        })
    });
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("bare server: {reason}");
            ExitCode::FAILURE
        }
    }
}

fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

async fn agents() -> Result<Option<Api<KubesvcAgent>>, String> {
    let (Ok(path), Ok(namespace)) = (std::env::var(KUBECONFIG), std::env::var(NAMESPACE)) else {
        return Ok(None);
    };
    let kubeconfig = Kubeconfig::read_from(path).map_err(|e| e.to_string())?;
    let options = KubeConfigOptions::default();
    let config = Config::from_custom_kubeconfig(kubeconfig, &options).await.map_err(|e| e.to_string())?;
    let client = Client::try_from(config).map_err(|e| e.to_string())?;
    Ok(Some(Api::namespaced(client, &namespace)))
}

/// A server that registers each agent, if it has a kubeconfig, and accepts its hello. Nothing else.
struct Bare(Arc<Option<Api<KubesvcAgent>>>);

impl Bare {
    async fn answer(agents: &Option<Api<KubesvcAgent>>, hello: Hello) -> Result<HubFrame, Status> {
        if let Some(agents) = agents {
            register(agents, &hello.agent_id, &hello.zone_id).await.map_err(Status::internal)?;
        }
        let accepted =
            Accepted { session_id: hello.agent_id, protocol: 1, heartbeat_ms: 10_000, ..Accepted::default() };
        Ok(HubFrame { seq: 1, frame: Some(hub_frame::Frame::Accepted(accepted)), ..HubFrame::default() })
    }
}

#[tonic::async_trait]
impl Operations for Bare {
    type GetOpsStream = Pin<Box<dyn futures::Stream<Item = Result<HubFrame, Status>> + Send>>;
    type RequestsStream =
        Pin<Box<dyn futures::Stream<Item = Result<kubesvc_core::wire::ops::RequestDown, Status>> + Send>>;

    async fn requests(
        &self,
        _: Request<Streaming<kubesvc_core::wire::ops::RequestUp>>,
    ) -> Result<Response<Self::RequestsStream>, Status> {
        Err(Status::unimplemented("it makes no requests"))
    }

    async fn get_ops(
        &self,
        request: Request<Streaming<AgentFrame>>,
    ) -> Result<Response<Self::GetOpsStream>, Status> {
        let mut frames = request.into_inner();
        let agents = Arc::clone(&self.0);
        let first = stream::once(async move {
            match frames.next().await {
                Some(Ok(AgentFrame { frame: Some(agent_frame::Frame::Hello(hello)), .. })) => {
                    (Self::answer(&agents, hello).await, Some(frames))
                }
                _ => (Err(Status::invalid_argument("the first frame must be Hello")), None),
            }
        });
        let answers = first.flat_map(|(answer, frames)| {
            let rest = frames.map(|frames| frames.filter_map(async |frame| frame.err().map(Err)));
            stream::iter([answer]).chain(stream::iter(rest).flatten())
        });
        Ok(Response::new(answers.boxed()))
    }
}
