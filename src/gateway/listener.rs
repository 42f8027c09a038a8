//! Connections to the API of accounts: TLS, HTTP/1.1 and 2, and bounds on all of it.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::{Request, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use prometheus_client::metrics::gauge::Gauge;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::Gateway;
use super::status::Refusal;
use super::tls::{HTTP2, server_config};
use crate::access::head_bytes;
use kubesvc_runtime::listen::connection_limits::{AddressLimits, ClientAddress};
use kubesvc_runtime::listen::connection_phase::ConnectionDeadlines;
use kubesvc_runtime::listen::port::{HttpMetrics, Port, PortConnection, PortLimits};
use kubesvc_runtime::listen::refused_heads::{MAX_HEAD_BYTES, RefusedHeads};
use kubesvc_runtime::listen::unread_answers::{MonitoredStream, ReadBody, StreamExecutor};
use kubesvc_runtime::tls::identity::ServingCertificate;

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
/// Size up to which the head of a caller who is not known is not counted, in bytes.
const LARGE_HEAD_BYTES: usize = 8 * 1024;
/// Maximum size of the larger ones of one connection together, in bytes. Then the connection ends.
const MAX_STRANGERS_HEADS_BYTES: usize = 512 * 1024;
/// Interval between two HTTP/2 pings.
const PING_INTERVAL: Duration = Duration::from_secs(20);
/// Maximum number of requests that a client cancelled and that are not handled yet (rapid reset).
const MAX_PENDING_RESETS: usize = 64;
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

/// A server of HTTP/1.1.
fn http1() -> auto::Builder<StreamExecutor> {
    let mut http = auto::Builder::new(StreamExecutor).http1_only();
    http.http1().timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT).max_buf_size(MAX_HEAD_BYTES);
    http
}

/// A server of HTTP/2 with at most so many requests of one connection at once.
fn http2(streams: u32) -> http2::Builder<StreamExecutor> {
    let mut http = http2::Builder::new(StreamExecutor);
    http.timer(TokioTimer::new())
        .max_concurrent_streams(streams)
        .max_header_list_size(MAX_UNREAD_HEAD_BYTES)
        // No header of a head is kept for the next one: it would keep that head's memory, and it may be a token.
        .header_table_size(0)
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
    port: Port,
    tls: TlsAcceptor,
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
        metrics: HttpMetrics,
    ) -> Result<Self, rustls::Error> {
        let reserved = connections / RESERVED_SHARE;
        let limits = PortLimits { connections, reserved, addresses, deadlines: DEADLINES, grace: GRACE };
        let tls = TlsAcceptor::from(Arc::new(server_config(certificate)?));
        Ok(Self { listener, port: Port::new("accounts", limits, metrics), tls })
    }

    /// Serves until stopped, then waits for requests that run.
    pub async fn serve(self, gateway: Arc<Gateway>, stop: CancellationToken) {
        let answer =
            |stream, connection| answer(self.tls.clone(), stream, Arc::new(connection), Arc::clone(&gateway));
        self.port.serve(self.listener, stop, answer).await;
    }
}

async fn answer(tls: TlsAcceptor, stream: TcpStream, connection: Arc<PortConnection>, gateway: Arc<Gateway>) {
    let (phase, slot) = (Arc::clone(&connection.phase), Arc::clone(&connection.slot));
    let stream = match tls.accept(MonitoredStream::encrypted(stream, phase, slot)).await {
        Ok(stream) => stream,
        Err(error) => return debug!(%error, "a TLS handshake with the API of accounts failed"),
    };
    let shown = stream.get_ref().1.peer_certificates().unwrap_or_default();
    let certificates: Vec<_> = shown.iter().map(|one| one.to_vec()).collect();
    let is_front_proxy = gateway.ports.access.is_front_proxy(&certificates).await;
    if !connection.settle(is_front_proxy).await {
        return;
    }
    if is_front_proxy {
        connection.phase.identified();
    }
    let open = OpenConnection::new(&gateway.metrics.connections);
    let address = connection.caller;
    let info = Arc::new(ConnectionInfo { address, is_front_proxy, certificates, _open: open });
    let streams = if is_front_proxy { MAX_STREAMS_OF_FRONT_PROXY } else { MAX_STREAMS };
    let is_http2 = stream.get_ref().1.alpn_protocol() == Some(HTTP2);
    let stream = RefusedHeads::new(stream, MAX_HEAD_BYTES, Refusal::of_head);
    let heads = stream.watch();
    let strangers = StrangersHeads::default();
    let service = service_fn(|mut request: Request<Incoming>| {
        request.extensions_mut().insert(Arc::clone(&info));
        let (gateway, info, connection) = (Arc::clone(&gateway), Arc::clone(&info), Arc::clone(&connection));
        let (guard, strangers) = ((connection.phase.request(), heads.request()), strangers.clone());
        async move {
            let bytes = head_bytes(request.uri(), request.headers());
            let response = gateway.answer(request, info).await;
            let status = response.status();
            if status == StatusCode::SWITCHING_PROTOCOLS {
                connection.phase.wait_for_reader();
                // Before its slot could be asked for: it outlives this connection's task.
                connection.phase.end();
            }
            let is_of_stranger = is_of_stranger(status) && !is_front_proxy;
            if is_of_stranger && strangers.are_too_many(bytes) {
                connection.end_gracefully();
            }
            // The request lasts until the last byte of its answer is given. That of a caller who is not known holds no
            // place: it may be one that is never read.
            let guard = (!is_of_stranger).then_some(guard);
            Ok::<_, Infallible>(response.map(|body| {
                let body = ReadBody::new(body, guard);
                if is_front_proxy { body.waiting_for_reader() } else { body }
            }))
        }
    });
    let stream = TokioIo::new(stream);
    if is_http2 {
        connection.serve(http2(streams).serve_connection(stream, service)).await;
    } else {
        connection.serve(http1().serve_connection_with_upgrades(stream, service)).await;
    }
}

/// Large heads of callers who are not known, on one connection, but for those that HTTP/2 itself refuses. The decoder of HTTP/2 keeps up to 124 short headers for later
/// heads, each in the memory of the head that it came with, unless the caller obeys a table of size 0.
#[derive(Clone, Debug, Default)]
struct StrangersHeads(Arc<AtomicUsize>);

impl StrangersHeads {
    /// Counts a head. Returns whether the connection must end.
    fn are_too_many(&self, bytes: usize) -> bool {
        let large = if bytes > LARGE_HEAD_BYTES { bytes } else { 0 };
        self.0.fetch_add(large, Ordering::Relaxed) + large > MAX_STRANGERS_HEADS_BYTES
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
