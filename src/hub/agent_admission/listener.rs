//! The port below gRPC: accepts connections within their bounds, and detects their protocol before tonic gets them.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_util::sync::{CancellationToken, DropGuard, WaitForCancellationFutureOwned};
use tokio_util::task::TaskTracker;
use tonic::transport::server::Connected;
use tracing::{debug, error, warn};

use crate::hub::agent_admission::server::{self, Streams};
use crate::hub::context::HubContext;
use crate::hub::metrics::HubMetrics;
use crate::hub::{HubError, ListenerSettings};
use kubesvc_runtime::listen::connection_limits::{AddressSlot, Addresses, ClientAddress, LogRateLimit};
use kubesvc_runtime::listen::connection_phase::WaitingConnections;
use kubesvc_runtime::listen::listen;
use kubesvc_runtime::shutdown::spawn_named;

/// Time limit for the HTTP/2 preface, and for reading the 505 sent to HTTP/1 clients.
const PREFACE_TIMEOUT: Duration = Duration::from_secs(2);
/// Delay after the system refused to accept, e.g. because of too many open files.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(200);
/// Reason for closing a connection without a stream when there are too many.
pub(super) const DISPLACED: &str = "displaced";
/// Maximum number of detected connections that wait for tonic.
const MAX_READY_CONNECTIONS: usize = 64;
/// The HTTP/2 preface.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Maximum size of an HTTP/1 request that is read before the answer, in bytes.
const HTTP1_PEEK_BYTES: usize = 16;
/// Maximum size read and discarded after an answer, in bytes, so that closing the connection does not discard the
/// answer.
const MAX_DISCARDED_BYTES: u64 = 64 * 1024;

pub(crate) async fn bind(settings: &ListenerSettings) -> Result<TcpListener, HubError> {
    let (address, port) = (&settings.address, settings.port);
    listen(address, port).await.map_err(|source| HubError::Bind { address: address.clone(), port, source })
}

/// Bounds and deadlines of all connections.
pub(crate) struct ConnectionPolicy {
    pub(crate) settings: ListenerSettings,
    pub(crate) metrics: HubMetrics,
    /// Connections by address.
    pub(crate) addresses: Arc<Addresses>,
    /// Connections without a stream, from their start.
    pub(crate) without_stream: Arc<WaitingConnections>,
    /// Closes all connections.
    pub(crate) close: CancellationToken,
    pub(crate) tasks: TaskTracker,
    pub(crate) log_limit: LogRateLimit,
}

impl ConnectionPolicy {
    /// `close` closes all connections.
    pub(crate) fn new(context: &HubContext, close: CancellationToken) -> Self {
        let settings = context.settings.listener.clone();
        Self {
            addresses: Addresses::new(settings.limits.clone()),
            settings,
            metrics: context.metrics.clone(),
            without_stream: Arc::default(),
            close,
            tasks: context.tasks.clone(),
            log_limit: LogRateLimit::default(),
        }
    }
}

/// Accepts from when `ready` completes until stopped, and returns the HTTP/2 connections.
pub(crate) fn accept(
    listener: TcpListener,
    policy: Arc<ConnectionPolicy>,
    ready: impl Future<Output = ()> + Send + 'static,
    stop: CancellationToken,
) -> mpsc::Receiver<io::Result<AgentConnection>> {
    let (begun, taken) = mpsc::channel(MAX_READY_CONNECTIONS);
    let tasks = policy.tasks.clone();
    tasks.spawn(async move {
        if stop.run_until_cancelled(ready).await.is_none() {
            return;
        }
        let permits = Arc::new(Semaphore::new(policy.settings.connection_cap));
        loop {
            let accepted = tokio::select! {
                () = stop.cancelled() => return,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, peer)) => admit(&policy, &permits, stream, peer, &begun, &stop),
                Err(problem) => {
                    error!(error = %problem, "cannot accept connections from agents; retrying");
                    tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                }
            }
        }
    });
    taken
}

fn admit(
    policy: &Arc<ConnectionPolicy>,
    permits: &Arc<Semaphore>,
    stream: TcpStream,
    peer: SocketAddr,
    ready: &mpsc::Sender<io::Result<AgentConnection>>,
    stop: &CancellationToken,
) {
    policy.metrics.connections.inc();
    let refuse = |reason: &'static str, why: &str| {
        policy.metrics.refuse_connection(reason);
        if policy.log_limit.may_log(reason, ClientAddress::of(peer.ip())) {
            warn!(%peer, reason, "connection closed: {why}");
        }
    };
    let Some(address) = policy.addresses.enter(peer.ip()) else {
        return refuse(
            "address",
            "its address has reached its limit of connections (kubesvc.grpc.server.limits)",
        );
    };
    let Ok(connection) = Arc::clone(permits).try_acquire_owned() else {
        return refuse("cap", "the hub has reached its limit of connections");
    };
    let close = policy.close.child_token();
    let caller = ClientAddress::of(peer.ip());
    let (guard, displaced) =
        policy.without_stream.enter_among(policy.settings.without_stream_cap, caller, &close);
    if displaced {
        policy.metrics.refuse_connection(DISPLACED);
        if policy.log_limit.may_log(DISPLACED, caller) {
            warn!(%peer, "closing a connection without a stream to make room for a newer one");
        }
    }
    let permits = (connection, address);
    if let Err(problem) = stream.set_nodelay(true) {
        debug!(%peer, error = %problem, "cannot set TCP_NODELAY");
    }
    let (policy, ready, stop) = (Arc::clone(policy), ready.clone(), stop.clone());
    let tasks = policy.tasks.clone();
    tasks.spawn(async move {
        let mut stream: Box<dyn Transport> = Box::new(stream);
        let mut taken = Vec::new();
        let spoken = tokio::select! {
            () = stop.cancelled() => return,
            () = close.cancelled() => return,
            spoken = tokio::time::timeout(policy.settings.preface_wait, detect_protocol(&mut *stream, &mut taken)) => spoken,
        };
        match spoken {
            Ok(Ok(DetectedProtocol::Http2)) => {
                let streams = Streams::default();
                let watched = server::watch_over(Arc::clone(&policy), streams.clone(), close.clone(), (caller, guard));
                let connection = AgentConnection::new(stream, taken, peer, streams, close, permits);
                // Fails only while the hub stops.
                let _ = ready.send(Ok(connection)).await;
                // Lives as long as the connection, which outlives the hub's sessions while it stops.
                drop(spawn_named("streams of a connection", watched).detach());
            }
            Ok(Ok(other)) => reject_connection(&policy, other, stream, peer).await,
            Ok(Err(problem)) => {
                policy.metrics.refuse_connection("io");
                debug!(%peer, error = %problem, "connection broke before its first byte");
            }
            Err(_) => {
                policy.metrics.refuse_connection("silent");
                debug!(%peer, "connection closed: it did not begin with HTTP/2 in time");
            }
        }
    });
}

async fn reject_connection(
    policy: &ConnectionPolicy,
    spoken: DetectedProtocol,
    mut stream: Box<dyn Transport>,
    peer: SocketAddr,
) {
    match spoken {
        DetectedProtocol::Http1 => {
            policy.metrics.refuse_connection("http1");
            let answered = answer_http1(&mut *stream, policy.settings.rest_port);
            // A client that does not read the answer is closed without it.
            let _ = tokio::time::timeout(PREFACE_TIMEOUT, answered).await;
        }
        DetectedProtocol::Tls => {
            policy.metrics.refuse_connection("tls");
            if policy.log_limit.may_log("tls", ClientAddress::of(peer.ip())) {
                warn!(
                    %peer,
                    "connection closed: it speaks TLS, and TLS is not configured here; \
                     set clouddriver.insecure: true in the agent's settings, or configure TLS for the hub"
                );
            }
        }
        DetectedProtocol::Http2 | DetectedProtocol::Other => {
            policy.metrics.refuse_connection("other");
            debug!(%peer, "connection closed: it does not speak HTTP/2");
        }
    }
}

/// A byte stream below HTTP/2: TCP, or TLS over it.
trait Transport: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Transport for T {}

/// Protocol of a connection, by its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DetectedProtocol {
    /// The HTTP/2 preface.
    Http2,
    /// An HTTP/1 request line.
    Http1,
    /// A TLS ClientHello.
    Tls,
    /// Another protocol, or end of stream.
    Other,
}

/// Detects the protocol; `None` if more bytes are needed.
fn protocol_of(bytes: &[u8]) -> Option<DetectedProtocol> {
    let begins = bytes.len().min(PREFACE.len());
    if bytes[..begins] == PREFACE[..begins] {
        return (begins == PREFACE.len()).then_some(DetectedProtocol::Http2);
    }
    if bytes[0] == 0x16 {
        return match bytes.get(1) {
            None => None,
            Some(0x03) => Some(DetectedProtocol::Tls),
            Some(_) => Some(DetectedProtocol::Other),
        };
    }
    let method = bytes.iter().take_while(|byte| byte.is_ascii_uppercase()).count();
    match bytes.get(method) {
        Some(b' ') if (3..=10).contains(&method) => Some(DetectedProtocol::Http1),
        None if method < HTTP1_PEEK_BYTES => None,
        _ => Some(DetectedProtocol::Other),
    }
}

/// Reads until the protocol is known. The bytes read are kept in `peeked`.
async fn detect_protocol(
    stream: &mut (dyn Transport + '_),
    peeked: &mut Vec<u8>,
) -> io::Result<DetectedProtocol> {
    let mut buffer = [0; PREFACE.len()];
    loop {
        let missing = PREFACE.len() - peeked.len();
        let count = stream.read(&mut buffer[..missing]).await?;
        peeked.extend_from_slice(&buffer[..count]);
        match protocol_of_peeked(peeked, count) {
            Some(spoken) => return Ok(spoken),
            None if peeked.len() == PREFACE.len() => return Ok(DetectedProtocol::Other),
            None => {}
        }
    }
}

fn protocol_of_peeked(peeked: &[u8], count: usize) -> Option<DetectedProtocol> {
    if count == 0 { Some(DetectedProtocol::Other) } else { protocol_of(peeked) }
}

/// Answers an HTTP/1 request with 505 and a message, and gives the client time to read it.
async fn answer_http1(stream: &mut (dyn Transport + '_), rest_port: Option<u16>) -> io::Result<()> {
    let place = rest_port.map(|port| format!("; REST is on port {port}")).unwrap_or_default();
    let sentence = format!("this port speaks gRPC over HTTP/2{place}\n");
    let answer = format!(
        "HTTP/1.1 505 HTTP Version Not Supported\r\ncontent-type: text/plain; charset=utf-8\r\n\
         content-length: {}\r\nconnection: close\r\n\r\n{sentence}",
        sentence.len()
    );
    stream.write_all(answer.as_bytes()).await?;
    stream.shutdown().await?;
    tokio::io::copy(&mut stream.take(MAX_DISCARDED_BYTES), &mut tokio::io::sink()).await?;
    Ok(())
}

/// An HTTP/2 connection for tonic. Frees its permits when dropped. Once the hub closes, it reads as ended and fails
/// to write.
pub(crate) struct AgentConnection {
    stream: Box<dyn Transport>,
    /// Bytes read during detection.
    peeked: Vec<u8>,
    given: usize,
    peer: SocketAddr,
    closed: Pin<Box<WaitForCancellationFutureOwned>>,
    streams: Streams,
    _permits: (OwnedSemaphorePermit, AddressSlot),
    /// Its watcher ends with it.
    _gone: DropGuard,
}

impl AgentConnection {
    fn new(
        stream: Box<dyn Transport>,
        peeked: Vec<u8>,
        peer: SocketAddr,
        streams: Streams,
        close: CancellationToken,
        permits: (OwnedSemaphorePermit, AddressSlot),
    ) -> Self {
        Self {
            stream,
            peeked,
            given: 0,
            peer,
            closed: Box::pin(close.clone().cancelled_owned()),
            streams,
            _permits: permits,
            _gone: close.drop_guard(),
        }
    }

    /// A write that the agent does not read must not keep the hub from stopping.
    fn fail_if_closed(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        match self.closed.as_mut().poll(cx) {
            Poll::Ready(()) => Err(io::ErrorKind::ConnectionAborted.into()),
            Poll::Pending => Ok(()),
        }
    }
}

/// The client of a connection, as an extension of its requests.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub(crate) address: SocketAddr,
    pub(crate) streams: Streams,
}

impl Connected for AgentConnection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        Peer { address: self.peer, streams: self.streams.clone() }
    }
}

impl AsyncRead for AgentConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.closed.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Ok(()));
        }
        if self.given < self.peeked.len() {
            let count = buffer.remaining().min(self.peeked.len() - self.given);
            buffer.put_slice(&self.peeked[self.given..self.given + count]);
            self.given += count;
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut *self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for AgentConnection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.fail_if_closed(cx)?;
        Pin::new(&mut *self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.fail_if_closed(cx)?;
        Pin::new(&mut *self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.fail_if_closed(cx)?;
        Pin::new(&mut *self.stream).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protocol_is_detected_from_the_first_bytes() {
        for (bytes, expected) in [
            (PREFACE, Some(DetectedProtocol::Http2)),
            (&PREFACE[..5], None),
            (b"GET / HTTP/1.1\r\n", Some(DetectedProtocol::Http1)),
            (b"P", None),
            (b"POST /", Some(DetectedProtocol::Http1)),
            (b"PRI * HTTP/1.1", Some(DetectedProtocol::Http1)),
            (b"\x16\x03\x01", Some(DetectedProtocol::Tls)),
            (b"\x16", None),
            (b"\x16\x00", Some(DetectedProtocol::Other)),
            (b"\x00", Some(DetectedProtocol::Other)),
            (b"hello", Some(DetectedProtocol::Other)),
            (b"AAAAAAAAAAAAAAAAAAAAAAAA", Some(DetectedProtocol::Other)),
        ] {
            assert_eq!(protocol_of(bytes), expected, "{bytes:?}");
        }
    }
}
