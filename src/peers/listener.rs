//! The port for calls of other replicas: TLS with a certificate of the replicas' authority at both ends, HTTP/2 alone, and bounds
//! on all of it. Nobody else gets as far as a request.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http2::Builder;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;
use tracing::warn;

use super::tls::TlsState;
use super::{PeerTransport, Peers, connections};
use crate::certificates::dns_names_in_der;
use kubesvc_core::ReplicaId;
use kubesvc_runtime::listen::connection_limits::{AddressLimits, ClientAddress, LogRateLimit};
use kubesvc_runtime::listen::connection_phase::ConnectionDeadlines;
use kubesvc_runtime::listen::port::{HttpMetrics, Port, PortConnection, PortLimits};
use kubesvc_runtime::listen::unread_answers::MonitoredStream;

/// Maximum number of open connections. A replica opens one.
const MAX_CONNECTIONS: usize = 256;
/// Maximum number of open connections from one address, unless the replica at its other end is known by its certificate.
const MAX_PER_ADDRESS: usize = 16;
/// Connections that are reserved for replicas known by their certificates.
const RESERVED: usize = 64;
/// Time limits of a connection: from its beginning to the end of the TLS handshake. After that, pings show whether it lives.
const DEADLINES: ConnectionDeadlines =
    ConnectionDeadlines { head: Duration::from_secs(10), idle: Duration::from_secs(10) };
/// Maximum time for requests to end when the process stops.
const GRACE: Duration = Duration::from_secs(10);

/// The replica that makes a call, as its certificate says. Each call has it as an extension.
#[derive(Clone, Debug)]
pub struct CallingReplica(pub ReplicaId);

/// What all connections share.
struct Serving {
    link: Arc<PeerTransport>,
    log_limit: LogRateLimit,
    router: Router,
}

impl Peers {
    /// Answers calls of other replicas until stopped, then waits for those that run.
    pub async fn serve(
        &self,
        listener: TcpListener,
        router: Router,
        metrics: HttpMetrics,
        stop: CancellationToken,
    ) {
        let Some(link) = self.transport.clone() else { return };
        let limits = PortLimits {
            connections: MAX_CONNECTIONS,
            reserved: RESERVED,
            addresses: AddressLimits { per_address: MAX_PER_ADDRESS, exempt: Vec::new() },
            deadlines: DEADLINES,
            grace: GRACE,
        };
        let serving = Arc::new(Serving { link, log_limit: LogRateLimit::default(), router });
        let answer = |stream, connection| {
            let serving = Arc::clone(&serving);
            async move { serving.connection(stream, connection).await }
        };
        Port::new("replicas", limits, metrics).serve(listener, stop, answer).await;
    }
}

impl Serving {
    async fn connection(&self, stream: TcpStream, connection: PortConnection) {
        let (phase, slot) = (Arc::clone(&connection.phase), Arc::clone(&connection.slot));
        let stream = MonitoredStream::encrypted(stream, phase, slot);
        let tls = self.link.tls.current();
        let stream = match TlsAcceptor::from(Arc::clone(&tls.server)).accept(stream).await {
            Ok(stream) => stream,
            Err(error) => return self.failed(connection.caller, &error),
        };
        let shown = stream.get_ref().1.peer_certificates().unwrap_or_default();
        let names = shown.first().map(|own| dns_names_in_der(own)).unwrap_or_default();
        let Some(replica) = names.into_iter().next() else { return };
        if !connection.settle(true).await {
            return;
        }
        // It is neither idle nor displaced from here on, and its callers may stop reading.
        connection.phase.identified();
        connection.phase.wait_for_reader();
        let _busy = connection.phase.request();
        self.answer(stream, &tls, CallingReplica(replica.into()), &connection).await;
    }

    async fn answer(
        &self,
        stream: TlsStream<MonitoredStream<TcpStream>>,
        tls: &TlsState,
        replica: CallingReplica,
        connection: &PortConnection,
    ) {
        let service = service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(replica.clone());
            self.router.clone().oneshot(request.map(Body::new))
        });
        let calls = connection.serve(builder().serve_connection(TokioIo::new(stream), service));
        tls.distrusted.run_until_cancelled(calls).await;
    }

    /// Counts a handshake that failed. Anybody on the network could fill the log with it, so it has few lines.
    fn failed(&self, caller: ClientAddress, error: &std::io::Error) {
        self.link.refused.inc();
        if self.log_limit.may_log("handshake", caller) {
            warn!(%caller, %error, "refused a connection to the port for replicas");
        }
    }
}

fn builder() -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(connections::MAX_STREAMS)
        .initial_stream_window_size(connections::STREAM_WINDOW)
        .initial_connection_window_size(connections::CONNECTION_WINDOW)
        .max_frame_size(connections::MAX_FRAME_BYTES)
        .max_header_list_size(connections::MAX_HEAD_BYTES)
        .header_table_size(0)
        .max_send_buf_size(connections::SEND_BUFFER_BYTES)
        .max_pending_accept_reset_streams(connections::MAX_PENDING_RESETS)
        .max_local_error_reset_streams(connections::MAX_PENDING_RESETS)
        .keep_alive_interval(connections::PING_INTERVAL)
        .keep_alive_timeout(connections::PING_TIMEOUT);
    builder
}
