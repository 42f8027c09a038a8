//! The bare echo: what the hops of a request cost at least. Bare tonic programs stand where operator and agent do, each a
//! process of its own: the caller opens a call at the first server, which passes it on over the one stream of the bare
//! agent, or first to a second server as a replica does; the agent answers at once with as many bytes as the real answer
//! has. They parse nothing, check nothing and record nothing.

use std::{
    collections::HashMap,
    net::{Ipv4Addr, SocketAddr},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use futures::{Stream, StreamExt as _, stream};
use kubesvc_core::wire::ops::{
    AgentFrame, Data, HubFrame, Open, RequestDown, RequestUp, request_down, request_up,
};
use kubesvc_runtime::grpc::ops::{
    operations_client::OperationsClient,
    operations_server::{Operations, OperationsServer},
};
use parking_lot::Mutex;
use prost::bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{
    Request, Response, Status, Streaming,
    transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity, Server, ServerTlsConfig},
};

use crate::parts::Part;
use kubesvc_testkit::{folder::Folder, kubeconfig::Authority, ports, process::Process, wait::try_eventually};

/// Metadata of the stream that is the bare agent's.
const LINK: &str = "x-link";
const START: Duration = Duration::from_secs(10);

/// The bare programs.
pub(crate) struct Echo {
    /// Without a replica between and with one; each plain and with TLS.
    clients: [[OperationsClient<Channel>; 2]; 2],
    _programs: Vec<Process>,
    _folder: Folder,
}

/// The hops of an echo.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Hops {
    /// Whether another replica is between.
    pub(crate) relayed: bool,
    /// Whether the caller's connection has TLS.
    pub(crate) tls: bool,
    /// Round trips between server and agent.
    pub(crate) times: u64,
}

impl Echo {
    /// Starts two servers, and the agent at the second. The first passes calls on to it.
    pub(crate) async fn start() -> Result<Self, String> {
        let folder = Folder::new("bench-echo")?;
        let authority = Authority::new("bench")?;
        let server = authority.server(&["localhost"])?;
        let [far, far_tls, near, near_tls] = std::array::from_fn(|_| ports::free());
        let hub = |plain, tls, next| {
            let (certificate, key) = (server.certificate.clone(), server.key.clone());
            Part::BareHub(BareHub { plain, tls, certificate, key, next })
        };
        let programs = vec![
            hub(far, far_tls, None).start("bare-hub", &folder)?,
            hub(near, near_tls, Some(far)).start("bare-replica", &folder)?,
            Part::BareAgent(BareAgent { hub: far }).start("bare-agent", &folder)?,
        ];
        let pem = authority.pem();
        let clients = [
            [client(far, None).await?, client(far_tls, Some(&pem)).await?],
            [client(near, None).await?, client(near_tls, Some(&pem)).await?],
        ];
        let echo = Self { clients, _programs: programs, _folder: folder };
        let hops = Hops { relayed: true, tls: true, times: 1 };
        try_eventually("the bare echo", START, async || echo.call(hops, 10, 10).await).await?;
        Ok(echo)
    }

    /// Sends as many bytes and gets as many. Returns the time until the last of them.
    pub(crate) async fn call(&self, hops: Hops, up: usize, down: usize) -> Result<Duration, String> {
        let mut client = self.clients[usize::from(hops.relayed)][usize::from(hops.tls)].clone();
        let begun = Instant::now();
        ask(&mut client, packed(hops.times, down), vec![b'x'; up].into()).await.map_err(|e| e.to_string())?;
        Ok(begun.elapsed())
    }
}

/// What a call asks for, as the id of its frame: round trips, and bytes of the answer.
fn packed(times: u64, down: usize) -> u64 {
    (times << 32) | (down as u64 & 0xFFFF_FFFF)
}

async fn client(port: u16, authority: Option<&str>) -> Result<OperationsClient<Channel>, String> {
    let scheme = if authority.is_some() { "https" } else { "http" };
    let mut endpoint = Endpoint::from_shared(format!("{scheme}://localhost:{port}"))
        .map_err(|e| e.to_string())?
        .tcp_nodelay(true);
    if let Some(authority) = authority {
        let tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(authority));
        endpoint = endpoint.tls_config(tls).map_err(|e| e.to_string())?;
    }
    let channel = try_eventually("a bare server", START, async || {
        endpoint.connect().await.map_err(|e| format!("{e:?}"))
    });
    Ok(OperationsClient::new(channel.await?).max_decoding_message_size(64 << 20))
}

/// Makes a call of one frame.
async fn ask(client: &mut OperationsClient<Channel>, id: u64, bytes: Bytes) -> Result<Bytes, Status> {
    let frame = RequestUp { id, frame: Some(request_up::Frame::Data(Data { bytes })) };
    let mut answer = client.requests(stream::iter([frame])).await?.into_inner();
    let frame = answer.message().await?.and_then(|frame| frame.frame);
    // To its end, as a caller reads an answer.
    while answer.message().await?.is_some() {}
    match frame {
        Some(request_down::Frame::Data(data)) => Ok(data.bytes),
        _ => Err(Status::internal("no answer")),
    }
}

/// A bare program where the operator stands.
#[derive(Serialize, Deserialize)]
pub(crate) struct BareHub {
    plain: u16,
    tls: u16,
    certificate: String,
    key: String,
    /// The server that has the agent; `None`: this one.
    next: Option<u16>,
}

impl BareHub {
    /// Serves until the process is killed.
    pub(crate) async fn serve(self) -> Result<(), String> {
        let identity = Identity::from_pem(&self.certificate, &self.key);
        let next = match self.next {
            Some(next) => Some(client(next, None).await?),
            None => None,
        };
        let hub = Hub(Arc::new(HubParts { next, ..HubParts::default() }));
        let address = |port: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let service = || OperationsServer::new(hub.clone()).max_encoding_message_size(64 << 20);
        let plain = Server::builder().add_service(service()).serve(address(self.plain));
        let secure = Server::builder()
            .tls_config(ServerTlsConfig::new().identity(identity))
            .map_err(|e| e.to_string())?
            .add_service(service())
            .serve(address(self.tls));
        tokio::try_join!(plain, secure).map(drop).map_err(|e| e.to_string())
    }
}

/// A bare program where the agent stands.
#[derive(Serialize, Deserialize)]
pub(crate) struct BareAgent {
    hub: u16,
}

impl BareAgent {
    /// Answers until the process is killed.
    pub(crate) async fn serve(self) -> Result<(), String> {
        let mut client = client(self.hub, None).await?;
        let (up, frames) = mpsc::channel(64);
        let mut request = Request::new(ReceiverStream::new(frames));
        request.metadata_mut().insert(LINK, "1".parse().map_err(|_| "metadata")?);
        let mut down = client.requests(request).await.map_err(|e| e.to_string())?.into_inner();
        while let Some(frame) = down.message().await.map_err(|e| e.to_string())? {
            let Some(request_down::Frame::Open(open)) = frame.frame else { continue };
            let bytes = vec![b'x'; open.head_within_ms as usize].into();
            let frame = RequestUp { id: frame.id, frame: Some(request_up::Frame::Data(Data { bytes })) };
            up.send(frame).await.map_err(|e| e.to_string())?;
        }
        Ok(())
    }
}

#[derive(Default)]
struct HubParts {
    next: Option<OperationsClient<Channel>>,
    link: Mutex<Option<mpsc::Sender<Result<RequestDown, Status>>>>,
    waiting: Mutex<HashMap<u64, oneshot::Sender<RequestUp>>>,
    last: AtomicU64,
}

#[derive(Clone)]
struct Hub(Arc<HubParts>);

impl HubParts {
    /// Passes a call on, and waits for its answer.
    async fn pass_on(&self, asked: u64, bytes: Bytes) -> Result<Bytes, Status> {
        if let Some(next) = &self.next {
            return ask(&mut next.clone(), asked, bytes).await;
        }
        let link = self.link.lock().clone().ok_or_else(|| Status::unavailable("no agent"))?;
        let mut answered = Bytes::new();
        for _ in 0..asked >> 32 {
            let id = self.last.fetch_add(1, Ordering::Relaxed);
            let (tell, told) = oneshot::channel();
            self.waiting.lock().insert(id, tell);
            let size = u32::try_from(asked & 0xFFFF_FFFF).unwrap_or_default();
            let open = Open { target: bytes.to_vec(), head_within_ms: size, ..Open::default() };
            let frame = RequestDown { id, frame: Some(request_down::Frame::Open(open)) };
            let gone = || Status::unavailable("the agent is gone");
            link.send(Ok(frame)).await.map_err(|_| gone())?;
            if let Some(request_up::Frame::Data(data)) = told.await.map_err(|_| gone())?.frame {
                answered = data.bytes;
            }
        }
        Ok(answered)
    }
}

type Frames<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl Operations for Hub {
    type GetOpsStream = Frames<HubFrame>;
    type RequestsStream = Frames<RequestDown>;

    async fn get_ops(
        &self,
        _: Request<Streaming<AgentFrame>>,
    ) -> Result<Response<Self::GetOpsStream>, Status> {
        Err(Status::unimplemented("it has no sessions"))
    }

    async fn requests(
        &self,
        request: Request<Streaming<RequestUp>>,
    ) -> Result<Response<Self::RequestsStream>, Status> {
        let is_link = request.metadata().contains_key(LINK);
        let (mut frames, parts) = (request.into_inner(), Arc::clone(&self.0));
        if is_link {
            let (link, down) = mpsc::channel(64);
            *parts.link.lock() = Some(link);
            tokio::spawn(async move {
                while let Ok(Some(frame)) = frames.message().await {
                    let waiting = parts.waiting.lock().remove(&frame.id);
                    if let Some(tell) = waiting {
                        let _ = tell.send(frame);
                    }
                }
            });
            return Ok(Response::new(ReceiverStream::new(down).boxed()));
        }
        let Some(RequestUp { id, frame: Some(request_up::Frame::Data(data)) }) = frames.message().await?
        else {
            return Err(Status::invalid_argument("the frame must be Data"));
        };
        let bytes = parts.pass_on(id, data.bytes).await?;
        let frame = RequestDown { id, frame: Some(request_down::Frame::Data(Data { bytes })) };
        Ok(Response::new(stream::iter([Ok(frame)]).boxed()))
    }
}
