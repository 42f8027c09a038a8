//! Connections to the API of accounts: TLS, HTTP/1.1 and 2, and bounds on all of it.

use std::convert::Infallible;
use std::future::pending;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use http::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use parking_lot::Mutex;
use prometheus_client::metrics::gauge::Gauge;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::Gateway;
use super::status::Refusal;
use super::tls::{ServerCertificate, server_config};
use kubesvc_runtime::listen::connection_limits::{
    AddressLimits, AddressSlot, Addresses, Caller, LogRateLimit,
};
use kubesvc_runtime::listen::refused_heads::{HeadWatch, MAX_HEAD_BYTES, RefusedHeads};
use kubesvc_runtime::shutdown::spawn_named;

/// Time limit for a TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit for the head of a request in HTTP/1.1.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time without a request, after which a connection is closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(180);
/// Size of the headers of a request in HTTP/2 from which on no service sees it, in bytes: a head that is a little too large
/// is answered in words.
const MAX_UNREAD_HEAD_BYTES: u32 = 320 * 1024;
/// Maximum number of requests of one HTTP/2 connection at once.
const MAX_STREAMS: u32 = 100;
/// The same of an API server that passes calls on: it sends all of its callers' over a few connections.
const MAX_STREAMS_OF_FRONT_PROXY: u32 = 1000;
/// HTTP/2 window of a request's body.
const STREAM_WINDOW: u32 = 256 * 1024;
/// HTTP/2 window of a connection.
const CONNECTION_WINDOW: u32 = 4 * 1024 * 1024;
/// Interval between two HTTP/2 pings.
const PING_INTERVAL: Duration = Duration::from_secs(20);
/// Maximum number of requests that a client cancelled and that are not handled yet (rapid reset).
const MAX_PENDING_RESETS: usize = 64;
/// Pause after a failed accept, which is usually caused by a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Maximum time for requests to end when the process stops.
const GRACE: Duration = Duration::from_secs(10);

/// What is known of a connection. Each of its requests has it as an extension; an upgraded one keeps it until it ends.
pub(super) struct ConnectionInfo {
    /// Where it comes from.
    pub(super) address: Caller,
    /// Whether it is of the API server that passes calls on.
    pub(super) is_front_proxy: bool,
    /// The certificates that the caller has shown, its own first; it has the private key of that one.
    pub(super) certificates: Vec<Vec<u8>>,
    activity: Mutex<Activity>,
    _slot: ConnectionSlot,
}

/// One of the connections that may be open at once, until this is dropped.
struct ConnectionSlot {
    open: Gauge,
    _address: AddressSlot,
    _slot: OwnedSemaphorePermit,
}

impl ConnectionSlot {
    fn new(address: AddressSlot, slot: OwnedSemaphorePermit, open: Gauge) -> Self {
        open.inc();
        Self { open, _address: address, _slot: slot }
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.open.dec();
    }
}

struct Activity {
    requests: usize,
    idle_since: Instant,
}

impl ConnectionInfo {
    async fn of(
        stream: &TlsStream<TcpStream>,
        (address, slot): (Caller, ConnectionSlot),
        gateway: &Gateway,
    ) -> Self {
        let shown = stream.get_ref().1.peer_certificates().unwrap_or_default();
        let certificates: Vec<_> = shown.iter().map(|one| one.to_vec()).collect();
        let is_front_proxy = gateway.ports.access.is_front_proxy(&certificates).await;
        let activity = Mutex::new(Activity { requests: 0, idle_since: Instant::now() });
        Self { address, is_front_proxy, certificates, activity, _slot: slot }
    }

    /// Completes when there has been no request for too long.
    async fn idle(&self) {
        loop {
            let deadline = {
                let activity = self.activity.lock();
                let since = if activity.requests == 0 { activity.idle_since } else { Instant::now() };
                since + IDLE_TIMEOUT
            };
            if deadline <= Instant::now() {
                return;
            }
            sleep_until(deadline).await;
        }
    }
}

/// A request of a connection, until its answer is given.
struct Busy(Arc<ConnectionInfo>, Arc<HeadWatch>);

impl Busy {
    fn begin(connection: &Arc<ConnectionInfo>, heads: &Arc<HeadWatch>) -> Self {
        connection.activity.lock().requests += 1;
        heads.began();
        Self(Arc::clone(connection), Arc::clone(heads))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let mut activity = self.0.activity.lock();
        activity.requests -= 1;
        activity.idle_since = Instant::now();
        self.1.answered();
    }
}

/// HTTP/1.1 and 2, for callers and for the API server that passes calls on.
struct Servers {
    of_callers: Builder<TokioExecutor>,
    of_front_proxy: Builder<TokioExecutor>,
}

impl Servers {
    fn new() -> Self {
        Self { of_callers: server(MAX_STREAMS), of_front_proxy: server(MAX_STREAMS_OF_FRONT_PROXY) }
    }
}

/// A server with at most so many requests of one HTTP/2 connection at once.
fn server(streams: u32) -> Builder<TokioExecutor> {
    let mut http = Builder::new(TokioExecutor::new());
    http.http1().timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT).max_buf_size(MAX_HEAD_BYTES);
    http.http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(streams)
        .max_header_list_size(MAX_UNREAD_HEAD_BYTES)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_pending_accept_reset_streams(MAX_PENDING_RESETS)
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_INTERVAL);
    http
}

/// The listener of the API of accounts.
pub struct GatewayListener {
    listener: TcpListener,
    tls: TlsAcceptor,
    servers: Arc<Servers>,
    addresses: Arc<Addresses>,
    slots: Arc<Semaphore>,
    log_limit: LogRateLimit,
}

impl GatewayListener {
    /// Serves on a listening socket with at most this many connections, with a certificate that may change.
    ///
    /// # Errors
    /// The provider of cryptography has no usable protocol.
    pub fn new(
        listener: TcpListener,
        connections: usize,
        addresses: AddressLimits,
        certificate: Arc<ServerCertificate>,
    ) -> Result<Self, rustls::Error> {
        Ok(Self {
            listener,
            tls: TlsAcceptor::from(Arc::new(server_config(certificate)?)),
            servers: Arc::new(Servers::new()),
            addresses: Addresses::new(addresses),
            slots: Arc::new(Semaphore::new(connections)),
            log_limit: LogRateLimit::default(),
        })
    }

    /// Serves until stopped, then waits for requests that run.
    pub async fn serve(self, gateway: Arc<Gateway>, stop: CancellationToken) {
        let graceful = GracefulShutdown::new();
        while let Some(accepted) = stop.run_until_cancelled(self.listener.accept()).await {
            match accepted {
                Ok((stream, peer)) => self.admit(stream, peer, &gateway, graceful.watcher()),
                Err(error) => {
                    warn!(%error, "cannot accept a connection to the API of accounts");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
        drop(self.listener);
        if timeout(GRACE, graceful.shutdown()).await.is_err() {
            warn!("aborted requests to accounts that were still running after {} s", GRACE.as_secs());
        }
    }

    fn admit(&self, stream: TcpStream, peer: SocketAddr, gateway: &Arc<Gateway>, watcher: Watcher) {
        let address = self.addresses.enter(peer.ip());
        let slot = Arc::clone(&self.slots).try_acquire_owned().ok();
        let (Some(address), Some(slot)) = (address, slot) else {
            self.refused(peer.ip());
            return;
        };
        let slot = ConnectionSlot::new(address, slot, gateway.metrics.connections.clone());
        let (tls, servers, gateway) = (self.tls.clone(), Arc::clone(&self.servers), Arc::clone(gateway));
        let from = (Caller::of(peer.ip()), slot);
        let serving = spawn_named("connection to the API of accounts", async move {
            let _ = stream.set_nodelay(true);
            match timeout(HANDSHAKE_TIMEOUT, tls.accept(stream)).await {
                Ok(Ok(stream)) => serve_connection(stream, from, &servers, &gateway, watcher).await,
                Ok(Err(error)) => debug!(%error, "a TLS handshake with the API of accounts failed"),
                Err(_) => debug!("a TLS handshake with the API of accounts took too long"),
            }
        });
        drop(serving.detach());
    }

    fn refused(&self, peer: IpAddr) {
        let caller = Caller::of(peer);
        if self.log_limit.may_log("cap", caller) {
            warn!(%caller, "connection to the API of accounts closed: there are too many");
        }
    }
}

async fn serve_connection(
    stream: TlsStream<TcpStream>,
    from: (Caller, ConnectionSlot),
    servers: &Servers,
    gateway: &Arc<Gateway>,
    watcher: Watcher,
) {
    let info = Arc::new(ConnectionInfo::of(&stream, from, gateway).await);
    let http = if info.is_front_proxy { &servers.of_front_proxy } else { &servers.of_callers };
    let stream = RefusedHeads::new(stream, MAX_HEAD_BYTES, Refusal::of_head);
    let heads = stream.watch();
    let service = service_fn(|mut request: Request<Incoming>| {
        request.extensions_mut().insert(Arc::clone(&info));
        let (gateway, info, busy) = (Arc::clone(gateway), Arc::clone(&info), Busy::begin(&info, &heads));
        async move {
            let response = gateway.answer(request, info).await;
            // Until the last byte of the answer is given.
            Ok::<_, Infallible>(response.map(|body| WithConnection { body, _busy: busy }))
        }
    });
    let connection = http.serve_connection_with_upgrades(TokioIo::new(stream), service).into_owned();
    let connection = watcher.watch(connection);
    tokio::select! {
        ended = connection => {
            if let Err(error) = ended {
                debug!(error, "a connection to the API of accounts ended with an error");
            }
        }
        () = info.idle() => {}
        () = pending::<()>() => {}
    }
}

/// A body that keeps its connection busy until it is dropped.
struct WithConnection {
    body: super::Body,
    _busy: Busy,
}

impl hyper::body::Body for WithConnection {
    type Data = hyper::body::Bytes;
    type Error = super::BodyError;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<hyper::body::Frame<Self::Data>, Self::Error>>> {
        std::pin::Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        self.body.size_hint()
    }
}
