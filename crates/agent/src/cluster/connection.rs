//! One connection to a cluster, over HTTP/1.1 or HTTP/2, with a count of the requests that use it.

use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::FutureExt as _;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::{TrySendError, http1, http2};
use hyper::rt::Executor;
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::sync::{Notify, OwnedSemaphorePermit};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_rustls::client::TlsStream;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::AbortOnDropHandle;
use tracing::Span;

use crate::cluster::exchange::RequestBody;
use crate::cluster::pool::{Pool, PoolLimits};
use crate::cluster::tls::{self, ServerCertificate};
use crate::cluster::{ClusterContext, ClusterEndpoint, ClusterError, Use, dial};
use kubesvc_runtime::shutdown::spawn_named;

/// Maximum number of headers of an HTTP/1.1 response.
const MAX_HEADERS: usize = 128;
/// Maximum size of the head of an HTTP/1.1 response, in bytes.
const MAX_HEAD_BYTES: usize = 128 * 1024;
/// Maximum size of the headers of an HTTP/2 response, in bytes.
const MAX_HEADER_LIST_BYTES: u32 = 128 * 1024;
/// HTTP/2 receive window of a stream, in bytes.
const STREAM_WINDOW_BYTES: u32 = 256 * 1024;
/// HTTP/2 receive window of a connection, in bytes. It exceeds that of a stream, so that one stream that is not read
/// does not stop the others.
const CONNECTION_WINDOW_BYTES: u32 = 1024 * 1024;
/// Maximum size of what waits to be sent on an HTTP/2 stream, in bytes.
const SEND_BUFFER_BYTES: usize = 256 * 1024;

type TlsIo = TokioIo<TlsStream<TcpStream>>;
type Http2Connection = http2::Connection<TlsIo, RequestBody, ConnectionExecutor>;
type Http1Sender = http1::SendRequest<RequestBody>;

/// A connection. It closes when it is dropped.
#[derive(Debug)]
pub(super) struct Connection {
    server: Arc<ServerCertificate>,
    sender: Sender,
    usage: Arc<Usage>,
    task: AbortOnDropHandle<()>,
    _permit: Arc<OwnedSemaphorePermit>,
}

#[derive(Debug)]
enum Sender {
    /// `None` while a request uses it.
    Http1(Mutex<Option<Http1Sender>>),
    Http2 {
        sender: http2::SendRequest<RequestBody>,
        /// Knows the server's limit on streams. `None` once the connection has ended.
        connection: Arc<Mutex<Option<Http2Connection>>>,
        /// The server's limit as last known.
        served_streams: AtomicUsize,
        /// The pool's limit.
        max_streams: usize,
    },
}

/// The requests that use a connection.
#[derive(Debug)]
struct Usage {
    state: Mutex<UsageState>,
    changed: Notify,
}

#[derive(Debug)]
struct UsageState {
    streams: usize,
    /// Whether no further request may use it.
    is_closing: bool,
    /// Whether it is closed, and no request uses it any more.
    has_ended: bool,
}

/// The way to send one request.
#[derive(Debug)]
pub(super) enum StreamSender {
    Http1(Http1Sender),
    Http2(http2::SendRequest<RequestBody>),
}

impl StreamSender {
    /// Sends a request and waits for the head of its response.
    pub(super) async fn send(
        &mut self,
        request: Request<RequestBody>,
    ) -> Result<Response<Incoming>, Box<TrySendError<Request<RequestBody>>>> {
        let sent = match self {
            Self::Http1(sender) => sender.try_send_request(request).await,
            Self::Http2(sender) => sender.try_send_request(request).await,
        };
        sent.map_err(Box::new)
    }
}

impl Connection {
    /// Connects, for a first request that uses the connection from the start.
    pub(super) async fn open(
        (endpoint, context): (&ClusterEndpoint, &ClusterContext),
        (purpose, limits): (Use, &PoolLimits),
        pool: Weak<Pool>,
    ) -> Result<Self, ClusterError> {
        let permit = Arc::new(context.budget.connection(purpose).await);
        let _handshake = context.budget.handshake(purpose).await;
        let deadline = Instant::now() + context.limits.connect;
        let stream = dial::tls(endpoint, &context.trust, limits.protocols(), deadline).await?;
        let server = Arc::new(tls::server_certificate(&context.trust, endpoint, &stream));
        let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        let usage = Arc::new(Usage::default());
        let executor = ConnectionExecutor {
            stop: CancellationToken::new(),
            span: tracing::info_span!(parent: None, "cluster_connection", cluster = endpoint.url()),
            permit: permit.clone(),
        };
        let guard = EndGuard { usage: usage.clone(), pool, _tasks: executor.stop.clone().drop_guard() };
        let handshake = async {
            hyper::Result::Ok(if is_http2 {
                let (sender, connection) = http2_handshake(stream, limits, executor.clone()).await?;
                let connection = Arc::new(Mutex::new(Some(connection)));
                let driver = Http2Driver(connection.clone());
                let task = drive(driver, limits.idle_timeout, guard, executor);
                let (max_streams, served_streams) = (limits.streams, limits.streams.into());
                (Sender::Http2 { sender, connection, served_streams, max_streams }, task)
            } else {
                let (sender, connection) = http1_handshake(stream).await?;
                let task = drive(connection.with_upgrades(), limits.idle_timeout, guard, executor);
                (Sender::Http1(Mutex::new(Some(sender))), task)
            })
        };
        let (sender, task) = match timeout_at(deadline, handshake).await {
            Ok(Ok(opened)) => opened,
            Ok(Err(source)) => {
                let step = format!("connecting to {}", endpoint.url()).into();
                return Err(ClusterError::Broken { step, source: source.into(), before_send: true });
            }
            Err(_) => return Err(dial::too_slow(endpoint)),
        };
        Ok(Self { server, sender, usage, task, _permit: permit })
    }

    pub(super) fn server(&self) -> &Arc<ServerCertificate> {
        &self.server
    }

    /// Whether it takes several requests at once.
    pub(super) fn is_http2(&self) -> bool {
        matches!(self.sender, Sender::Http2 { .. })
    }

    /// Whether the connection is closed, and no request uses it any more.
    pub(super) fn has_ended(&self) -> bool {
        self.usage.state.lock().has_ended
    }

    /// Whether no request uses it.
    pub(super) fn is_idle(&self) -> bool {
        let state = self.usage.state.lock();
        state.streams == 0 && !state.is_closing
    }

    /// Counts one more request, unless the connection is closing or full.
    pub(super) fn reserve(&self) -> bool {
        let max_streams = match &self.sender {
            Sender::Http1(_) => 1,
            Sender::Http2 { connection, served_streams, max_streams, .. } => {
                // Locked only while it is polled; the limit that was last known will do then.
                if let Some(connection) = connection.try_lock().as_deref().and_then(Option::as_ref) {
                    served_streams.store(connection.current_max_send_streams(), Ordering::Relaxed);
                }
                served_streams.load(Ordering::Relaxed).min(*max_streams)
            }
        };
        let mut state = self.usage.state.lock();
        if state.is_closing || state.streams >= max_streams {
            return false;
        }
        state.streams += 1;
        drop(state);
        self.usage.changed.notify_waiters();
        true
    }

    /// The sender for the first request. Its error says why the connection could not be used.
    pub(super) fn first_sender(&self) -> Option<StreamSender> {
        Some(match &self.sender {
            Sender::Http1(slot) => StreamSender::Http1(slot.lock().take()?),
            Sender::Http2 { sender, .. } => StreamSender::Http2(sender.clone()),
        })
    }

    /// Waits until the connection can take another request; `None` if it has ended.
    pub(super) async fn next_sender(&self) -> Option<StreamSender> {
        let mut sender = self.first_sender()?;
        let ready = match &mut sender {
            StreamSender::Http1(sender) => sender.ready().await,
            StreamSender::Http2(sender) => sender.ready().await,
        };
        ready.is_ok().then_some(sender)
    }

    /// Ends the use by one request. `reusable` is its sender, if another request may follow it; an HTTP/1.1 connection
    /// without one closes.
    pub(super) fn release(&self, reusable: Option<StreamSender>) {
        match (&self.sender, reusable) {
            (Sender::Http1(slot), Some(StreamSender::Http1(sender))) => *slot.lock() = Some(sender),
            (Sender::Http1(_), _) => {
                self.retire();
                self.task.abort();
            }
            (Sender::Http2 { .. }, _) => {}
        }
        self.usage.change(|state| state.streams -= 1);
    }

    /// Takes no further requests, and closes after the last one that uses it.
    pub(super) fn retire(&self) {
        self.usage.change(|state| state.is_closing = true);
    }
}

impl Default for Usage {
    /// Used by one request.
    fn default() -> Self {
        let state = UsageState { streams: 1, is_closing: false, has_ended: false };
        Self { state: Mutex::new(state), changed: Notify::new() }
    }
}

impl Usage {
    fn change(&self, change: impl FnOnce(&mut UsageState)) {
        change(&mut self.state.lock());
        self.changed.notify_waiters();
    }

    /// Waits until nothing has used the connection for this time, or until it is closing and nothing uses it.
    async fn until_idle(&self, idle_timeout: Duration) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // From here on, no change is missed.
            changed.as_mut().enable();
            let (streams, is_closing) = {
                let state = self.state.lock();
                (state.streams, state.is_closing)
            };
            match (streams, is_closing) {
                (0, true) => return,
                (0, false) => {
                    if timeout(idle_timeout, changed).await.is_err() {
                        let mut state = self.state.lock();
                        state.is_closing |= state.streams == 0;
                    }
                }
                _ => changed.await,
            }
        }
    }
}

/// Polls an HTTP/2 connection, and drops it at the end.
struct Http2Driver(Arc<Mutex<Option<Http2Connection>>>);

impl Future for Http2Driver {
    type Output = hyper::Result<()>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.0.lock().as_mut() {
            Some(connection) => connection.poll_unpin(cx),
            None => Poll::Ready(Ok(())),
        }
    }
}

impl Drop for Http2Driver {
    fn drop(&mut self) {
        let connection = self.0.lock().take();
        drop(connection);
    }
}

/// Marks a connection as ended, makes room for another one, and stops the connection's tasks.
struct EndGuard {
    usage: Arc<Usage>,
    pool: Weak<Pool>,
    _tasks: DropGuard,
}

impl Drop for EndGuard {
    fn drop(&mut self) {
        self.usage.change(|state| (state.is_closing, state.has_ended) = (true, true));
        if let Some(pool) = self.pool.upgrade() {
            pool.remove_ended();
        }
    }
}

/// Runs the tasks of a connection: the one that drives it, and those into which hyper divides HTTP/2. They end with the
/// first, and the connection counts against the budget until the last has ended. An upgraded connection counts for as
/// long as its user keeps it.
#[derive(Clone)]
struct ConnectionExecutor {
    stop: CancellationToken,
    span: Span,
    permit: Arc<OwnedSemaphorePermit>,
}

impl<F: Future<Output: Send> + Send + 'static> Executor<F> for ConnectionExecutor {
    fn execute(&self, part: F) {
        let Self { stop, span, permit } = self.clone();
        let part = async move {
            let _permit = permit;
            stop.run_until_cancelled_owned(part).await;
        };
        drop(span.in_scope(|| spawn_named("part of a connection", part)).detach());
    }
}

/// Runs a connection until it ends or is idle, and then until no request uses it. Requests on it receive its error.
fn drive(
    connection: impl Future<Output = hyper::Result<()>> + Send + 'static,
    idle_timeout: Duration,
    guard: EndGuard,
    executor: ConnectionExecutor,
) -> AbortOnDropHandle<()> {
    let span = executor.span.clone();
    let driving = async move {
        let _executor = executor;
        tokio::select! {
            _ = connection => {}
            () = guard.usage.until_idle(idle_timeout) => {}
        }
        // An upgraded connection, or the last streams of an HTTP/2 connection that the server is closing.
        guard.usage.change(|state| state.is_closing = true);
        guard.usage.until_idle(idle_timeout).await;
    };
    span.in_scope(|| spawn_named("connection", driving))
}

async fn http1_handshake(
    stream: TlsStream<TcpStream>,
) -> hyper::Result<(Http1Sender, http1::Connection<TlsIo, RequestBody>)> {
    let mut builder = http1::Builder::new();
    builder.max_headers(MAX_HEADERS).max_buf_size(MAX_HEAD_BYTES);
    builder.handshake(TokioIo::new(stream)).await
}

async fn http2_handshake(
    stream: TlsStream<TcpStream>,
    limits: &PoolLimits,
    executor: ConnectionExecutor,
) -> hyper::Result<(http2::SendRequest<RequestBody>, Http2Connection)> {
    let mut builder = http2::Builder::new(executor);
    builder
        .timer(TokioTimer::new())
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .initial_max_send_streams(limits.streams)
        .max_header_list_size(MAX_HEADER_LIST_BYTES)
        .max_send_buf_size(SEND_BUFFER_BYTES)
        .keep_alive_interval(limits.ping_interval)
        .keep_alive_timeout(limits.ping_timeout)
        .keep_alive_while_idle(true);
    builder.handshake(TokioIo::new(stream)).await
}
