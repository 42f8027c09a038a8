//! Connections to the API of accounts: TLS, HTTP/1.1 and 2, and bounds on all of it.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use http::{Request, StatusCode};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use prometheus_client::metrics::gauge::Gauge;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::Gateway;
use super::status::Refusal;
use super::tls::{ServingCertificate, server_config};
use kubesvc_runtime::listen::connection_limits::{AddressLimits, Addresses, ClientAddress, LogRateLimit};
use kubesvc_runtime::listen::connection_phase::{ConnectionDeadlines, ConnectionPhase};
use kubesvc_runtime::listen::connection_slots::{ConnectionSlots, SlotRefusal};
use kubesvc_runtime::listen::refused_heads::{MAX_HEAD_BYTES, RefusedHeads};
use kubesvc_runtime::listen::unread_answers::{MonitoredStream, ReadBody, StreamExecutor};
use kubesvc_runtime::shutdown::spawn_named;

/// Time limits of a connection: 10 s from its beginning to the first request, the handshake included, and 180 s without a
/// request.
const DEADLINES: ConnectionDeadlines =
    ConnectionDeadlines { head: Duration::from_secs(10), idle: Duration::from_secs(180) };
/// One of so many connections is reserved for the API server that passes calls on: 64 of 1,024.
const RESERVED_SHARE: usize = 16;
/// Time limit for the head of a further request in HTTP/1.1.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
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
/// Maximum size of what waits to be sent of one answer in HTTP/2, in bytes: a caller that stops reading keeps that much beside
/// the credit of the answer.
const SEND_BUFFER_BYTES: usize = 64 * 1024;
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
    pub(super) address: ClientAddress,
    /// Whether it is of the API server that passes calls on.
    pub(super) is_front_proxy: bool,
    /// The certificates that the caller has shown, its own first; it has the private key of that one.
    pub(super) certificates: Vec<Vec<u8>>,
    _open: OpenConnection,
}

/// An open connection in the metrics, until this is dropped.
struct OpenConnection(Gauge);

impl OpenConnection {
    fn new(open: &Gauge) -> Self {
        open.inc();
        Self(open.clone())
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// HTTP/1.1 and 2, for callers and for the API server that passes calls on.
struct Servers {
    of_callers: Builder<StreamExecutor>,
    of_front_proxy: Builder<StreamExecutor>,
}

impl Servers {
    fn new() -> Self {
        Self { of_callers: server(MAX_STREAMS), of_front_proxy: server(MAX_STREAMS_OF_FRONT_PROXY) }
    }
}

/// A server with at most so many requests of one HTTP/2 connection at once.
fn server(streams: u32) -> Builder<StreamExecutor> {
    let mut http = Builder::new(StreamExecutor);
    http.http1().timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT).max_buf_size(MAX_HEAD_BYTES);
    http.http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(streams)
        .max_header_list_size(MAX_UNREAD_HEAD_BYTES)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(SEND_BUFFER_BYTES)
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
    slots: Arc<ConnectionSlots>,
    log_limit: Arc<LogRateLimit>,
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
        certificate: Arc<ServingCertificate>,
    ) -> Result<Self, rustls::Error> {
        Ok(Self {
            listener,
            tls: TlsAcceptor::from(Arc::new(server_config(certificate)?)),
            servers: Arc::new(Servers::new()),
            slots: Arc::new(ConnectionSlots::new(
                connections,
                connections / RESERVED_SHARE,
                Addresses::new(addresses),
            )),
            log_limit: Arc::default(),
        })
    }

    /// Serves until stopped, then waits for requests that run.
    pub async fn serve(self, gateway: Arc<Gateway>, stop: CancellationToken) {
        let graceful = GracefulShutdown::new();
        while let Some(accepted) = stop.run_until_cancelled(self.listener.accept()).await {
            match accepted {
                Ok((stream, peer)) => {
                    let admitting = self.admit(stream, peer, &gateway, &graceful);
                    if stop.run_until_cancelled(admitting).await.is_none() {
                        break;
                    }
                }
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

    async fn admit(
        &self,
        stream: TcpStream,
        peer: SocketAddr,
        gateway: &Arc<Gateway>,
        graceful: &GracefulShutdown,
    ) {
        let slot = match self.slots.admit(peer.ip()).await {
            Ok(slot) => Arc::new(slot),
            Err(refusal) => return refused(&self.log_limit, peer.ip(), refusal),
        };
        let caller = ClientAddress::of(peer.ip());
        let phase = Arc::new(ConnectionPhase::new(Arc::clone(self.slots.waiting()), caller, DEADLINES));
        let _ = stream.set_nodelay(true);
        let stream = MonitoredStream::encrypted(stream, Arc::clone(&phase), Arc::clone(&slot));
        let (tls, servers, gateway) = (self.tls.clone(), Arc::clone(&self.servers), Arc::clone(gateway));
        let (slots, log_limit, watcher) =
            (Arc::clone(&self.slots), Arc::clone(&self.log_limit), graceful.watcher());
        let serving = spawn_named("connection to the API of accounts", async move {
            let serving = async {
                let stream = match tls.accept(stream).await {
                    Ok(stream) => stream,
                    Err(error) => {
                        debug!(%error, "a TLS handshake with the API of accounts failed");
                        return;
                    }
                };
                let shown = stream.get_ref().1.peer_certificates().unwrap_or_default();
                let certificates: Vec<_> = shown.iter().map(|one| one.to_vec()).collect();
                let is_front_proxy = gateway.ports.access.is_front_proxy(&certificates).await;
                if let Err(refusal) = slots.settle(&slot, is_front_proxy).await {
                    return refused(&log_limit, peer.ip(), refusal);
                }
                if is_front_proxy {
                    phase.identified();
                }
                let open = OpenConnection::new(&gateway.metrics.connections);
                let info = ConnectionInfo { address: caller, is_front_proxy, certificates, _open: open };
                serve_connection((stream, Arc::new(info), Arc::clone(&phase)), &servers, &gateway, watcher)
                    .await;
            };
            tokio::select! {
                () = serving => {}
                overdue = phase.overdue() => debug!(?overdue, %caller, "closed a connection to the API of accounts"),
            }
            phase.end();
        });
        drop(serving.detach());
    }
}

fn refused(log_limit: &LogRateLimit, peer: IpAddr, refusal: SlotRefusal) {
    let (caller, (reason, why)) = (ClientAddress::of(peer), refusal.reason());
    if log_limit.may_log(reason, caller) {
        warn!(%caller, "connection to the API of accounts closed: {why}");
    }
}

/// Whether an answer is given to callers who are not known: by status, since no other answer of these has a long body.
fn is_of_stranger(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::UNAUTHORIZED
            | StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE
            | StatusCode::SERVICE_UNAVAILABLE
    )
}

async fn serve_connection(
    (stream, info, phase): (TlsStream<MonitoredStream<TcpStream>>, Arc<ConnectionInfo>, Arc<ConnectionPhase>),
    servers: &Servers,
    gateway: &Arc<Gateway>,
    watcher: Watcher,
) {
    let http = if info.is_front_proxy { &servers.of_front_proxy } else { &servers.of_callers };
    let stream = RefusedHeads::new(stream, MAX_HEAD_BYTES, Refusal::of_head);
    let heads = stream.watch();
    let service = service_fn(|mut request: Request<Incoming>| {
        request.extensions_mut().insert(Arc::clone(&info));
        let (gateway, info, phase) = (Arc::clone(gateway), Arc::clone(&info), Arc::clone(&phase));
        let guard = (phase.request(), heads.request());
        async move {
            let is_front_proxy = info.is_front_proxy;
            let response = gateway.answer(request, info).await;
            let status = response.status();
            if status == StatusCode::SWITCHING_PROTOCOLS {
                phase.wait_for_reader();
                // Before its slot could be asked for: it outlives this connection's task.
                phase.end();
            }
            // The request lasts until the last byte of its answer is given. That of a caller who is not known holds no place:
            // it may be one that is never read.
            let guard = (!is_of_stranger(status)).then_some(guard);
            Ok::<_, Infallible>(response.map(|body| {
                let body = ReadBody::new(body, guard);
                if is_front_proxy { body.waiting_for_reader() } else { body }
            }))
        }
    });
    let connection = http.serve_connection_with_upgrades(TokioIo::new(stream), service).into_owned();
    if let Err(error) = watcher.watch(connection).await {
        debug!(error, "a connection to the API of accounts ended with an error");
    }
}
