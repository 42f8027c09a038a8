//! A hub for tests: it passes each stream to the test, which plays the operator.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustls::pki_types::CertificateDer;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tokio_util::task::AbortOnDropHandle;
use tonic::transport::Server;
use tonic::{Request, Response, Status, Streaming};

use kubesvc_core::wire::events::{CacheDown, CacheUp};
use kubesvc_core::wire::ops::agent_frame::Frame;
use kubesvc_core::wire::ops::{
    Accepted, AccountSpec, AgentFrame, Hello, HubFrame, RequestDown, RequestUp, hub_frame,
};
use kubesvc_runtime::grpc::events::caching_server::{Caching, CachingServer};
use kubesvc_runtime::grpc::ops::operations_server::{Operations, OperationsServer};
use kubesvc_runtime::tls::server::ServerTls;

/// Longer than any step of a test takes.
const PATIENCE: Duration = Duration::from_secs(10);

pub(super) struct FakeHub {
    pub(super) address: SocketAddr,
    streams: mpsc::Receiver<Stream>,
    /// The certificates that were shown in handshakes, in their order.
    pub(super) shown: Arc<Mutex<Vec<CertificateDer<'static>>>>,
    /// Each stream that was opened, with its values of `authorization`, in their order.
    pub(super) authorizations: Authorizations,
    _tasks: Vec<AbortOnDropHandle<()>>,
}

/// One stream of an agent, as the hub sees it. Dropping it closes the stream.
pub(super) struct Stream {
    frames: Streaming<AgentFrame>,
    answers: mpsc::Sender<Result<HubFrame, Status>>,
    sent: u64,
}

type Authorizations = Arc<Mutex<Vec<(&'static str, Vec<String>)>>>;

#[derive(Clone)]
struct Service {
    streams: mpsc::Sender<Stream>,
    authorizations: Authorizations,
}

impl Service {
    fn note<T>(&self, stream: &'static str, request: &Request<T>) {
        let values = request.metadata().get_all("authorization").iter();
        let values = values.map(|value| value.to_str().expect("ASCII").to_owned()).collect();
        self.authorizations.lock().push((stream, values));
    }
}

#[tonic::async_trait]
impl Operations for Service {
    type GetOpsStream = ReceiverStream<Result<HubFrame, Status>>;

    async fn get_ops(
        &self,
        request: Request<Streaming<AgentFrame>>,
    ) -> Result<Response<Self::GetOpsStream>, Status> {
        self.note("GetOps", &request);
        let (answers, frames) = mpsc::channel(64);
        let stream = Stream { frames: request.into_inner(), answers, sent: 0 };
        self.streams.send(stream).await.map_err(|_| Status::unavailable("the test is over"))?;
        Ok(Response::new(ReceiverStream::new(frames)))
    }

    type RequestsStream = ReceiverStream<Result<RequestDown, Status>>;

    async fn requests(
        &self,
        request: Request<Streaming<RequestUp>>,
    ) -> Result<Response<Self::RequestsStream>, Status> {
        self.note("Requests", &request);
        Err(Status::unimplemented("this hub makes no requests"))
    }
}

#[tonic::async_trait]
impl Caching for Service {
    type StreamStream = ReceiverStream<Result<CacheDown, Status>>;

    async fn stream(
        &self,
        request: Request<Streaming<CacheUp>>,
    ) -> Result<Response<Self::StreamStream>, Status> {
        self.note("Caching", &request);
        Err(Status::unimplemented("this hub takes no objects"))
    }
}

impl FakeHub {
    pub(super) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let (sender, streams) = mpsc::channel(8);
        let authorizations = Authorizations::default();
        let service = Service { streams: sender, authorizations: Arc::clone(&authorizations) };
        let serving = tokio::spawn(async move {
            Server::builder()
                .add_service(OperationsServer::new(service.clone()))
                .add_service(CachingServer::new(service))
                .serve_with_incoming(TcpListenerStream::new(listener))
                .await
                .expect("a server");
        });
        let tasks = vec![AbortOnDropHandle::new(serving)];
        Self { address, streams, shown: Arc::default(), authorizations, _tasks: tasks }
    }

    /// A hub with TLS.
    pub(super) async fn secure(tls: Arc<ServerTls>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let (sender, streams) = mpsc::channel(8);
        let (accepted, incoming) = mpsc::channel(8);
        let shown = Arc::<Mutex<Vec<_>>>::default();
        let certificates = Arc::clone(&shown);
        let accepting = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (tls, accepted, certificates) =
                    (Arc::clone(&tls), accepted.clone(), Arc::clone(&certificates));
                tokio::spawn(async move {
                    let Ok(stream) = tls.accept(stream).await else { return };
                    let leaf = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
                    certificates.lock().extend(leaf.map(|leaf| leaf.clone().into_owned()));
                    let _ = accepted.send(Ok::<_, io::Error>(stream)).await;
                });
            }
        });
        let authorizations = Authorizations::default();
        let service = Service { streams: sender, authorizations: Arc::clone(&authorizations) };
        let serving = tokio::spawn(async move {
            Server::builder()
                .add_service(OperationsServer::new(service))
                .serve_with_incoming(ReceiverStream::new(incoming))
                .await
                .expect("a server");
        });
        let tasks = [accepting, serving].map(AbortOnDropHandle::new);
        Self { address, streams, shown, authorizations, _tasks: tasks.into() }
    }

    /// The next stream and its hello.
    pub(super) async fn stream(&mut self) -> (Stream, Hello) {
        let stream = timeout(PATIENCE, self.streams.recv()).await.expect("a stream in time");
        let mut stream = stream.expect("a stream");
        match stream.next().await {
            Some(Frame::Hello(hello)) => (stream, hello),
            other => panic!("the first frame is {other:?}"),
        }
    }

    /// The next stream, accepted with this heartbeat interval.
    pub(super) async fn accepted(&mut self, heartbeat_ms: u32) -> (Stream, Hello) {
        self.accepted_with(heartbeat_ms, &[]).await
    }

    /// Like [`FakeHub::accepted`], by a hub with these capabilities.
    pub(super) async fn accepted_with(
        &mut self,
        heartbeat_ms: u32,
        capabilities: &[&str],
    ) -> (Stream, Hello) {
        let (mut stream, hello) = self.stream().await;
        stream
            .send(hub_frame::Frame::Accepted(Accepted {
                session_id: "session".to_owned(),
                replica_id: "replica".to_owned(),
                approved: true,
                protocol: 1,
                heartbeat_ms,
                capabilities: capabilities.iter().map(|one| (*one).to_owned()).collect(),
                ..Accepted::default()
            }))
            .await;
        (stream, hello)
    }

    /// Like [`FakeHub::accepted`], after the agent has sent its own accounts.
    pub(super) async fn settled(&mut self, heartbeat_ms: u32) -> (Stream, Hello) {
        let (mut stream, hello) = self.accepted(heartbeat_ms).await;
        stream.own_accounts().await;
        (stream, hello)
    }
}

impl Stream {
    pub(super) async fn send(&mut self, frame: hub_frame::Frame) {
        self.sent += 1;
        let frame = HubFrame { seq: self.sent, ack: 0, frame: Some(frame) };
        self.answers.send(Ok(frame)).await.expect("the agent is there");
    }

    /// Ends the stream with a status.
    pub(super) async fn fail(self, status: Status) {
        self.answers.send(Err(status)).await.expect("the agent is there");
    }

    /// The next frame; `None` at the end of the stream.
    pub(super) async fn next(&mut self) -> Option<Frame> {
        let frame = timeout(PATIENCE, self.frames.message()).await.expect("a frame in time");
        frame.ok().flatten().and_then(|frame| frame.frame)
    }

    /// The next complete list of the agent's own accounts.
    pub(super) async fn own_accounts(&mut self) -> Vec<AccountSpec> {
        let mut accounts = Vec::new();
        loop {
            match self.next_word().await {
                Some(Frame::StaticAccounts(frame)) => {
                    assert!(frame.accounts.len() <= 50, "{} accounts in a frame", frame.accounts.len());
                    accounts.extend(frame.accounts);
                    if frame.complete {
                        return accounts;
                    }
                }
                other => panic!("{other:?} where the agent's own accounts were awaited"),
            }
        }
    }

    /// The next frame other than a heartbeat and the agent's own accounts.
    pub(super) async fn next_but_own_accounts(&mut self) -> Option<Frame> {
        loop {
            match self.next_word().await {
                Some(Frame::StaticAccounts(_)) => {}
                other => return other,
            }
        }
    }

    /// The next frame other than a heartbeat.
    pub(super) async fn next_word(&mut self) -> Option<Frame> {
        loop {
            match self.next().await {
                Some(Frame::Heartbeat(_)) => {}
                other => return other,
            }
        }
    }
}
