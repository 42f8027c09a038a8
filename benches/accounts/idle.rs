//! Idle: the memory of an idle agent's connection, compared with that of a bare tonic server.

use std::{
    pin::Pin,
    process::{Command, ExitCode},
    time::Duration,
};

use futures::{StreamExt, TryStreamExt, stream};
use kubesvc_core::wire::ops::{Accepted, AgentFrame, HubFrame, hub_frame};
use kubesvc_runtime::grpc::ops::operations_server::{Operations, OperationsServer};
use tonic::{Request, Response, Status, Streaming, transport::Server};

use crate::{
    objects::{AT_ONCE, ZONE},
    operator::Site,
    options::Options,
    processes::settled,
    progress::{Bar, say},
    report::{Report, Row, Wanted},
    statistics::Series,
    tls::BenchTls,
};
use kubesvc_testkit::{
    folder::Folder,
    ports,
    process::Process,
    simulated_agent::{
        SimulatedAgent, SimulatedTls,
        frames::{Introduction, Policy},
    },
    wait::try_eventually,
};

/// Environment variable that makes this process the bare server, with its port as the value.
const BARE: &str = "BENCH_BARE_SERVER";
/// Memory that an idle agent may take beyond the bare server's connection, in KiB.
const ALLOWED: f64 = 32.0;

/// Runs the benchmark and adds its results to the report.
///
/// # Errors
///
/// The benchmark could not run.
pub(crate) async fn run(options: &Options, report: &mut Report) -> Result<(), String> {
    let count = options.accounts;
    let (mut bares, mut hubs) = (Vec::new(), Vec::new());
    for round in 1..=options.rounds {
        bares.push(of_bare_server(count).await?);
        hubs.push(of_hub(count, None).await?);
        say(&format!(
            "idle {round}/{}: {:.1} KiB a connection, a bare server {:.1}",
            options.rounds,
            hubs[round - 1],
            bares[round - 1]
        ));
    }
    let more: Series = hubs.iter().zip(&bares).map(|(hub, bare)| hub - bare).collect();
    let (bares, hubs): (Series, Series) = (bares.into_iter().collect(), hubs.into_iter().collect());
    let what = |what: &str| format!("{count} idle agents: {what}");
    report.add(Row::series("idle", &what("KiB a connection of a bare server"), &bares, Wanted::Nothing));
    report.add(Row::series("idle", &what("KiB a connection of the hub"), &hubs, Wanted::Nothing));
    report.add(Row::series("idle", &what("KiB beyond the bare server"), &more, Wanted::AtMost(ALLOWED)));
    Ok(())
}

/// Returns the memory that the operator takes for each of `count` idle agents, in KiB.
pub(crate) async fn of_hub(count: usize, tls: Option<&BenchTls>) -> Result<f64, String> {
    let plane = crate::control_plane().await?;
    let namespace = plane.namespace().await;
    let site = Site::new(&plane, namespace.name(), Duration::from_secs(30)).await?;
    let site = match tls {
        Some(tls) => site.secured(Duration::from_secs(30), &tls.settings())?,
        None => site,
    };
    let operator = site.start()?;
    operator.ready().await?;
    let used = connection(operator.id(), &site.hub(), count, tls.map(|tls| &tls.client)).await;
    let used = used.map_err(|reason| operator.explain(&reason))?;
    operator.stop().await?;
    Ok(used)
}

async fn of_bare_server(count: usize) -> Result<f64, String> {
    let port = ports::free();
    let folder = Folder::new("bench-bare")?;
    let program = std::env::current_exe().map_err(|e| format!("where this program is: {e}"))?;
    let mut command = Command::new(program);
    command.env(BARE, port.to_string()).arg("--bench");
    let process = Process::spawn("bare server", &command, &folder.file("log"))?;
    let address = format!("127.0.0.1:{port}");
    try_eventually("the bare server", Duration::from_secs(10), async || {
        process.check_running()?;
        tokio::net::TcpStream::connect(&address).await.map(drop).map_err(|e| e.to_string())
    })
    .await?;
    connection(process.id(), &address, count, None).await
}

/// Returns the memory that a process takes for each of `count` idle agents, in KiB.
async fn connection(
    process: u32,
    address: &str,
    count: usize,
    tls: Option<&SimulatedTls>,
) -> Result<f64, String> {
    // The first connection allocates what all connections share.
    let _first = connect(address, count, tls).await?;
    let before = settled(process).await?;
    let bar = Bar::start(&format!("{count} agents"), count);
    let agents: Vec<SimulatedAgent> = stream::iter(0..count)
        .map(|number| connect(address, number, tls))
        .buffer_unordered(AT_ONCE)
        .inspect(|_| bar.step())
        .try_collect()
        .await?;
    bar.finish();
    let after = settled(process).await?;
    if let Some(reason) = agents.iter().find_map(SimulatedAgent::ended) {
        return Err(format!("an agent was cut off: {reason}"));
    }
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    let each = (after - before) * 1024.0 / count as f64;
    Ok(each)
}

async fn connect(address: &str, number: usize, tls: Option<&SimulatedTls>) -> Result<SimulatedAgent, String> {
    let introduction = Introduction::new(&format!("idle-{number}"), ZONE);
    SimulatedAgent::connect_over(address, tls, introduction, Policy::default())
        .await
        .map_err(|reason| format!("agent {number}: {reason}"))
}

/// Whether this process was started as the bare server.
pub(crate) fn is_bare_server() -> bool {
    std::env::var_os(BARE).is_some()
}

/// Serves the same service with nothing behind it, until the process is killed.
pub(crate) fn serve_bare() -> ExitCode {
    let port = std::env::var(BARE).ok().and_then(|port| port.parse::<u16>().ok()).unwrap_or_default();
    let served = tokio::runtime::Runtime::new().map_err(|e| e.to_string()).and_then(|runtime| {
        let server = Server::builder().add_service(OperationsServer::new(Bare));
        runtime.block_on(server.serve(([127, 0, 0, 1], port).into())).map_err(|e| e.to_string())
    });
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("bare server: {reason}");
            ExitCode::FAILURE
        }
    }
}

/// A server that accepts each hello, then reads and sends nothing more.
struct Bare;

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
        let accepted = Accepted { protocol: 1, heartbeat_ms: 10_000, ..Accepted::default() };
        let first =
            HubFrame { seq: 1, frame: Some(hub_frame::Frame::Accepted(accepted)), ..HubFrame::default() };
        let rest = request.into_inner().filter_map(async |frame| frame.err().map(Err));
        Ok(Response::new(stream::iter([Ok(first)]).chain(rest).boxed()))
    }
}
