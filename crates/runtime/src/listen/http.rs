//! An HTTP/1 server with bounds on every wait and size: connections, heads, pauses, unread answers and shutdown.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::http::Request;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;
use tracing::{debug, warn};

use super::connection_limits::{AddressLimits, AddressSlot, Addresses, Caller, KnownCallers, LogRateLimit};
use super::connection_phase::{ConnectionDeadlines, ConnectionPhase, Overdue, WaitingConnections};
use super::refused_heads::{HeadWatch, RefusedHead, RefusedHeads};
use crate::shutdown::spawn_named;

/// Maximum time for which a caller may read nothing of its answer.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// Pause after a failed accept, which is usually caused by a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The connection of a request, in its extensions: lets an answer wait for a caller that reads nothing.
#[derive(Clone, Debug)]
pub struct UnreadAnswers(Arc<ConnectionPhase>);

impl UnreadAnswers {
    /// Lifts the limit on the time for which the caller may read nothing, as long as the connection is open. For callers
    /// that are known, and whose own callers may stop reading.
    pub fn wait(&self) {
        self.0.wait_for_reader();
    }
}

/// The local address that received a request.
#[derive(Clone, Copy, Debug)]
pub struct CalledAt(pub SocketAddr);

/// Limits of one port.
#[derive(Clone, Debug)]
pub struct HttpLimits {
    /// Maximum number of open connections. A further one displaces a connection that waits for a request head: the
    /// one that has waited longest, of the caller that has the most. If none waits, the new one is closed.
    pub connections: usize,
    /// Limits on the connections of one caller.
    pub addresses: AddressLimits,
    /// Callers for which that limit is raised.
    pub known_callers: Option<Arc<KnownCallers>>,
    /// Maximum time to the end of a request's head.
    pub head_timeout: Duration,
    /// Maximum size of a request's head, in bytes, at least 8 KiB. A larger head is answered with 431.
    pub head_bytes: usize,
    /// Makes the body of that answer.
    pub refused_head: RefusedHead,
    /// Maximum pause between two requests.
    pub idle_timeout: Duration,
    /// Maximum time for running requests to complete at shutdown.
    pub grace: Duration,
}

/// Labels of a closed connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Closed {
    listener: &'static str,
    reason: &'static str,
}

/// Counter of connections closed by a limit. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct HttpMetrics(Family<Closed, Counter>);

impl HttpMetrics {
    /// Registers the counter.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "http_connections_closed",
            "HTTP connections closed, by listener and reason: address, cap, displaced, head, idle",
            self.0.clone(),
        );
    }

    fn count(&self, listener: &'static str, reason: &'static str) {
        self.0.get_or_create(&Closed { listener, reason }).inc();
    }
}

/// An HTTP server on one port.
#[derive(Debug)]
pub struct HttpServer {
    name: &'static str,
    limits: HttpLimits,
    metrics: HttpMetrics,
    addresses: Arc<Addresses>,
    waiting: Arc<WaitingConnections>,
    slots: Arc<Semaphore>,
    log_limit: LogRateLimit,
}

/// Connections that end once their request is answered, when the server stops. Upgraded ones are not waited for.
#[derive(Default)]
struct Graceful {
    stop: CancellationToken,
    connections: TaskTracker,
}

/// The slots that a connection holds while it is open.
struct ConnectionSlot {
    _slot: OwnedSemaphorePermit,
    _address: AddressSlot,
}

impl HttpServer {
    /// Creates a server with these limits. `name` identifies it in metrics and logs.
    pub fn new(name: &'static str, limits: HttpLimits, metrics: HttpMetrics) -> Self {
        let addresses = Addresses::with_known(limits.addresses.clone(), limits.known_callers.clone());
        let slots = Arc::new(Semaphore::new(limits.connections));
        Self {
            name,
            limits,
            metrics,
            addresses,
            waiting: Arc::default(),
            slots,
            log_limit: LogRateLimit::default(),
        }
    }

    /// Serves until `stop` is cancelled, then stops accepting connections and waits up to `grace` for running
    /// requests.
    pub async fn serve(self, listener: TcpListener, router: Router, stop: CancellationToken) {
        let graceful = Graceful::default();
        while let Some(accepted) = stop.run_until_cancelled(listener.accept()).await {
            match accepted {
                Ok((stream, peer)) => {
                    let slot = stop.run_until_cancelled(self.slot(peer.ip())).await;
                    let Some(slot) = slot else { break };
                    if let Some(slot) = slot {
                        self.connection(stream, peer, router.clone(), slot, &graceful);
                    }
                }
                Err(error) => {
                    warn!(%error, listener = self.name, "cannot accept a connection");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
        drop(listener);
        graceful.stop.cancel();
        graceful.connections.close();
        if tokio::time::timeout(self.limits.grace, graceful.connections.wait()).await.is_err() {
            let seconds = self.limits.grace.as_secs();
            warn!(listener = self.name, "aborted requests that were still running after {seconds} s");
        }
    }

    /// Returns the slot of a new connection, or `None` if it must be closed.
    async fn slot(&self, peer: IpAddr) -> Option<ConnectionSlot> {
        let Some(address) = self.addresses.enter(peer) else {
            self.close("address", peer, "the limit of connections per address is reached");
            return None;
        };
        if let Ok(slot) = Arc::clone(&self.slots).try_acquire_owned() {
            return Some(ConnectionSlot { _slot: slot, _address: address });
        }
        if !self.waiting.displace() {
            self.close("cap", peer, "the limit of connections is reached, and all are in use");
            return None;
        }
        // The closed connection releases its slot once its task runs.
        let slot = Arc::clone(&self.slots).acquire_owned().await.ok()?;
        Some(ConnectionSlot { _slot: slot, _address: address })
    }

    fn close(&self, reason: &'static str, peer: IpAddr, why: &'static str) {
        self.metrics.count(self.name, reason);
        let caller = Caller::of(peer);
        if self.log_limit.may_log(reason, caller) {
            warn!(listener = self.name, %caller, "connection closed: {why}");
        }
    }

    fn connection(
        &self,
        stream: TcpStream,
        peer: SocketAddr,
        router: Router,
        slot: ConnectionSlot,
        graceful: &Graceful,
    ) {
        let deadlines =
            ConnectionDeadlines { head: self.limits.head_timeout, idle: self.limits.idle_timeout };
        // An answer in parts, such as one relayed in frames, would wait for the acknowledgement of the part before.
        let _ = stream.set_nodelay(true);
        let (called_at, caller) = (stream.local_addr().ok().map(CalledAt), Caller::of(peer.ip()));
        let phase = Arc::new(ConnectionPhase::new(Arc::clone(&self.waiting), caller, deadlines));
        let requests = Arc::clone(&phase);
        let stream =
            MonitoredStream { stream, phase: Arc::clone(&phase), write_deadline: None, _slot: Some(slot) };
        let stream = RefusedHeads::new(stream, self.limits.head_bytes, self.limits.refused_head);
        let heads = stream.watch();
        let service = service_fn(move |mut request: Request<Incoming>| {
            requests.began();
            heads.began();
            request.extensions_mut().insert(caller);
            request.extensions_mut().insert(UnreadAnswers(Arc::clone(&requests)));
            if let Some(called_at) = called_at {
                request.extensions_mut().insert(called_at);
            }
            let (router, phase, heads) = (router.clone(), Arc::clone(&requests), Arc::clone(&heads));
            async move {
                let response = router.oneshot(request.map(Body::new)).await;
                response.map(|response| response.map(|body| TrackedBody { body, phase, heads }))
            }
        });
        let mut builder = http1::Builder::new();
        builder.timer(TokioTimer::new()).header_read_timeout(None).max_buf_size(self.limits.head_bytes);
        let connection = builder.serve_connection(TokioIo::new(stream), service).with_upgrades();
        let (stop, open) = (graceful.stop.clone(), graceful.connections.token());
        let (metrics, name) = (self.metrics.clone(), self.name);
        let serving = spawn_named("HTTP connection", async move {
            let _open = open;
            let mut connection = pin!(connection);
            let serving = async {
                tokio::select! {
                    ended = connection.as_mut() => return ended,
                    () = stop.cancelled() => connection.as_mut().graceful_shutdown(),
                }
                connection.await
            };
            tokio::select! {
                ended = serving => {
                    if let Err(error) = ended {
                        debug!(%error, listener = name, "a connection ended with an error");
                    }
                }
                overdue = phase.overdue() => metrics.count(name, match overdue {
                    Overdue::Head => "head",
                    Overdue::Idle => "idle",
                    Overdue::Displaced => "displaced",
                }),
            }
        });
        drop(serving.detach());
    }
}

/// A stream that reports its reads and writes to the connection's phase, and whose writes fail once the peer has accepted
/// nothing for [`WRITE_TIMEOUT`], unless [`UnreadAnswers`] lifted the limit. Otherwise, a caller that sends requests and never reads would hold its connection slot
/// forever.
struct MonitoredStream<S> {
    stream: S,
    phase: Arc<ConnectionPhase>,
    /// The deadline, while a write is pending.
    write_deadline: Option<Pin<Box<Sleep>>>,
    /// Held as long as the connection is open, also after an upgrade.
    _slot: Option<ConnectionSlot>,
}

impl<S> MonitoredStream<S> {
    /// Passes the result of a write on, or fails it if it has been pending for too long.
    fn bounded<T>(&mut self, written: Poll<io::Result<T>>, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        if written.is_ready() || self.phase.waits_for_reader() {
            self.write_deadline = None;
            return written;
        }
        let until = Instant::now() + WRITE_TIMEOUT;
        let deadline = self.write_deadline.get_or_insert_with(|| {
            let mut deadline = Box::pin(sleep(Duration::ZERO));
            deadline.as_mut().reset(until);
            deadline
        });
        match deadline.as_mut().poll(context) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(()) => {
                Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the caller reads nothing")))
            }
        }
    }

    fn written(
        &mut self,
        written: Poll<io::Result<usize>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        let written = self.bounded(written, context);
        if matches!(written, Poll::Ready(Ok(1..))) {
            self.phase.written();
        }
        written
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for MonitoredStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.phase.read();
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for MonitoredStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.written(written, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.written(written, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.bounded(flushed, context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.stream).poll_shutdown(context);
        self.bounded(shut, context)
    }
}

/// The body of an answer. When it is dropped, the connection waits for a further request.
struct TrackedBody {
    body: Body,
    phase: Arc<ConnectionPhase>,
    heads: Arc<HeadWatch>,
}

impl HttpBody for TrackedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for TrackedBody {
    fn drop(&mut self) {
        self.phase.answered();
        self.heads.answered();
    }
}

#[cfg(test)]
mod tests;
