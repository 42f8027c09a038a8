//! Unknown callers.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use futures::StreamExt;
use futures::future::join_all;
use hyper_util::rt::TokioIo;
use kubesvc_core::wire::common::AccountRef;
use kubesvc_core::wire::ops::{AgentFrame, HeldAccount, Hello, HubFrame, agent_frame::Frame};
use kubesvc_core::wire::{MAX_MESSAGE_BYTES, PROTOCOL_VERSION};
use kubesvc_runtime::grpc::ops::operations_client::OperationsClient;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpSocket, TcpStream};
use tonic::Streaming;
use tonic::transport::{Channel, Endpoint};
use ulid::Ulid;

/// Start of an HTTP/2 connection: the preface, and a SETTINGS frame without settings.
pub(super) const HTTP2: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
/// Number of accounts that a Hello claims: the maximum.
const CLAIMS: usize = 100_000;
/// Number of streams on one connection: the maximum that the hub accepts.
const STREAMS: usize = 16;
/// Maximum number of connections with streams from one address.
const CONNECTIONS: usize = 25;
/// Time that a stranger waits for the next message of the hub.
const MAX_WAIT: Duration = Duration::from_secs(5);
/// Silence after which a session has received everything.
const SETTLED: Duration = Duration::from_secs(2);
/// Interval between the pieces of slow requests.
const PACE: Duration = Duration::from_millis(200);

/// Callers of one port, with addresses of their own.
#[derive(Clone, Copy)]
pub(super) struct Callers {
    port: u16,
    network: u8,
}

/// A stream, open as long as this value exists, and the hub's messages on it.
pub(super) struct Stream {
    _frames: tokio::sync::mpsc::Sender<AgentFrame>,
    answers: Streaming<HubFrame>,
}

impl Callers {
    /// Creates callers from the addresses `127.NETWORK.0.0/16`.
    pub(super) fn of(port: u16, network: u8) -> Self {
        Self { port, network }
    }

    /// Address of a caller; `per_address` callers share one.
    pub(super) fn address(self, caller: usize, per_address: usize) -> Ipv4Addr {
        let number = u16::try_from(caller / per_address + 1).expect("there are that many");
        let [high, low] = number.to_be_bytes();
        Ipv4Addr::new(127, self.network, high, low)
    }

    /// Opens connections that send these bytes and then nothing. Closed connections stay closed.
    pub(super) async fn connect(self, count: usize, per_address: usize, bytes: &[u8]) -> Vec<TcpStream> {
        let mut open = Vec::new();
        for caller in 0..count {
            let Ok(mut stream) = dial(self.address(caller, per_address), self.port).await else { continue };
            let _ = stream.write_all(bytes).await;
            open.push(stream);
        }
        open
    }

    pub(super) async fn channel(self, address: Ipv4Addr) -> Option<Channel> {
        let port = self.port;
        let dialled =
            tower::service_fn(move |_: http::Uri| async move { dial(address, port).await.map(TokioIo::new) });
        let endpoint = Endpoint::from_shared(format!("http://127.0.0.1:{port}")).expect("an address");
        endpoint.connect_with_connector(dialled).await.ok()
    }

    /// Sends a hello for each agent on its own stream, and waits for the answer. Returns the streams that
    /// were accepted.
    pub(super) async fn say_hello(self, agents: &[String], zone: &str) -> Vec<Stream> {
        let connections = agents.chunks(STREAMS).enumerate().map(|(number, agents)| async move {
            let Some(channel) = self.channel(self.address(number, CONNECTIONS)).await else {
                return Vec::new();
            };
            join_all(agents.iter().map(|agent| greet(channel.clone(), hello(agent, zone)))).await
        });
        let streams: Vec<_> = futures::stream::iter(connections).buffer_unordered(100).collect().await;
        streams.into_iter().flatten().flatten().collect()
    }

    /// Claims 100,000 accounts that never existed for each agent, and receives what the hub sends.
    pub(super) async fn claim(self, agents: &[String], zone: &str, connect_seq: usize) {
        let claims = agents.iter().enumerate().map(|(number, agent)| async move {
            let channel = self.channel(self.address(number, 1)).await?;
            let claim = |one| {
                let account =
                    AccountRef { uid: format!("u{one}"), name: "n".into(), epoch: 1, ..Default::default() };
                HeldAccount { account: Some(account), caching_epoch: 0, ..Default::default() }
            };
            let connect_seq = u64::try_from(connect_seq).expect("it is small");
            let accounts_held = (0..CLAIMS).map(claim).collect();
            let mut stream =
                greet(channel, Hello { accounts_held, connect_seq, ..hello(agent, zone) }).await?;
            while let Ok(Ok(Some(_))) = tokio::time::timeout(SETTLED, stream.answers.message()).await {}
            Some(())
        });
        join_all(claims).await;
    }

    /// Sends bodies as slowly as allowed, forever; rejected ones are replaced by new ones.
    pub(super) async fn slow_bodies(self, count: usize, per_address: usize) {
        let body = |caller| async move {
            let head = "PATCH /armory/accounts HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
                 Content-Length: 8000000\r\n\r\n[";
            let bytes = [b' '; 4096];
            loop {
                let Ok(mut stream) = dial(self.address(caller, per_address), self.port).await else {
                    continue;
                };
                let mut written = stream.write_all(head.as_bytes()).await;
                while written.is_ok() {
                    tokio::time::sleep(PACE).await;
                    written = stream.write_all(&bytes).await;
                }
            }
        };
        join_all((0..count).map(body)).await;
    }

    /// Sends request heads byte by byte, forever.
    pub(super) async fn slow_heads(self, count: usize) {
        let head = |caller| async move {
            loop {
                let Ok(mut stream) = dial(self.address(caller, count), self.port).await else { continue };
                let mut written = stream.write_all(b"GET /health HTTP/1.1\r\nX-Slow: ").await;
                while written.is_ok() {
                    tokio::time::sleep(PACE).await;
                    written = stream.write_all(b"a").await;
                }
            }
        };
        join_all((0..count).map(head)).await;
    }
}

pub(super) fn hello(agent_id: &str, zone: &str) -> Hello {
    Hello {
        agent_id: agent_id.into(),
        // The same for each connection of an agent, as with a real process.
        boot_id: Ulid::from(u128::from_be_bytes(std::array::from_fn(|at| {
            *agent_id.as_bytes().get(at).unwrap_or(&0) & 0x7f
        })))
        .to_string(),
        connect_seq: 1,
        zone_id: zone.into(),
        version: "flood".into(),
        protocol_min: PROTOCOL_VERSION,
        protocol_max: PROTOCOL_VERSION,
        ..Hello::default()
    }
}

/// Sends a hello and waits for any answer.
async fn greet(channel: Channel, hello: Hello) -> Option<Stream> {
    let (frames, outgoing) = tokio::sync::mpsc::channel(4);
    frames.send(AgentFrame { frame: Some(Frame::Hello(hello)), seq: 1, ack: 0 }).await.ok()?;
    let mut client = OperationsClient::new(channel).max_encoding_message_size(MAX_MESSAGE_BYTES);
    let outgoing = tokio_stream::wrappers::ReceiverStream::new(outgoing);
    let greeted = async {
        let mut answers = client.get_ops(outgoing).await.ok()?.into_inner();
        answers.message().await.ok()?;
        Some(answers)
    };
    let answers = tokio::time::timeout(MAX_WAIT, greeted).await.ok()??;
    Some(Stream { _frames: frames, answers })
}

pub(super) async fn dial(from: Ipv4Addr, port: u16) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::from((from, 0)))?;
    let stream = socket.connect(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}
