//! The port for calls of other replicas: TLS with a certificate of the replicas' authority at both ends, HTTP/2 alone, and bounds
//! on all of it. Nobody else gets as far as a request.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http2::Builder;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;
use tracing::{debug, warn};

use super::tls::TlsState;
use super::{PeerTransport, Peers, http2};
use crate::certificates::dns_names_in_der;
use kubesvc_core::ReplicaId;
use kubesvc_runtime::listen::connection_limits::{AddressLimits, Addresses, ClientAddress, LogRateLimit};
use kubesvc_runtime::listen::connection_phase::{ConnectionDeadlines, ConnectionPhase};
use kubesvc_runtime::listen::connection_slots::{ConnectionSlots, SlotRefusal};
use kubesvc_runtime::listen::unread_answers::MonitoredStream;
use kubesvc_runtime::shutdown::spawn_named;

/// Maximum number of open connections. A replica opens one.
const MAX_CONNECTIONS: usize = 256;
/// Maximum number of open connections from one address, unless the replica at its other end is known by its certificate.
const MAX_PER_ADDRESS: usize = 16;
/// Connections that are reserved for replicas known by their certificates.
const RESERVED: usize = 64;
/// Time limits of a connection: from its beginning to the end of the TLS handshake. After that, pings show whether it lives.
const DEADLINES: ConnectionDeadlines =
    ConnectionDeadlines { head: Duration::from_secs(10), idle: Duration::from_secs(10) };
/// Pause after a failed accept, which is usually caused by a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Maximum time for requests to end when the process stops.
const GRACE: Duration = Duration::from_secs(10);

/// The replica that makes a call, as its certificate says. Each call has it as an extension.
#[derive(Clone, Debug)]
pub struct CallingReplica(pub ReplicaId);

/// What all connections share.
struct Serving {
    link: Arc<PeerTransport>,
    slots: ConnectionSlots,
    log_limit: LogRateLimit,
    router: Router,
}

impl Peers {
    /// Answers calls of other replicas until stopped, then waits for those that run.
    pub async fn serve(&self, listener: TcpListener, router: Router, stop: CancellationToken) {
        let Some(link) = self.transport.clone() else { return };
        let limits = AddressLimits { per_address: MAX_PER_ADDRESS, exempt: Vec::new() };
        let serving = Arc::new(Serving {
            link,
            slots: ConnectionSlots::new(MAX_CONNECTIONS, RESERVED, Addresses::new(limits)),
            log_limit: LogRateLimit::default(),
            router,
        });
        let graceful = GracefulShutdown::new();
        while let Some(accepted) = stop.run_until_cancelled(listener.accept()).await {
            match accepted {
                Ok((stream, peer)) => {
                    if stop
                        .run_until_cancelled(serving.admit(stream, peer, graceful.watcher()))
                        .await
                        .is_none()
                    {
                        break;
                    }
                }
                Err(error) => {
                    warn!(%error, "cannot accept a connection of another replica");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
        drop(listener);
        if timeout(GRACE, graceful.shutdown()).await.is_err() {
            warn!("aborted calls of other replicas that were still running after {} s", GRACE.as_secs());
        }
    }
}

impl Serving {
    async fn admit(self: &Arc<Self>, stream: TcpStream, peer: SocketAddr, watcher: Watcher) {
        let slot = match self.slots.admit(peer.ip()).await {
            Ok(slot) => Arc::new(slot),
            Err(refusal) => return self.refused(peer.ip(), refusal),
        };
        let caller = ClientAddress::of(peer.ip());
        let phase = Arc::new(ConnectionPhase::new(Arc::clone(self.slots.waiting()), caller, DEADLINES));
        let _ = stream.set_nodelay(true);
        let stream = MonitoredStream::encrypted(stream, Arc::clone(&phase), Arc::clone(&slot));
        let serving = Arc::clone(self);
        let task = spawn_named("connection of another replica", async move {
            let answering = async {
                let tls = serving.link.tls.current();
                let stream = match TlsAcceptor::from(Arc::clone(&tls.server)).accept(stream).await {
                    Ok(stream) => stream,
                    Err(error) => return serving.failed(caller, &error),
                };
                let shown = stream.get_ref().1.peer_certificates().unwrap_or_default();
                let names = shown.first().map(|own| dns_names_in_der(own)).unwrap_or_default();
                let Some(replica) = names.into_iter().next() else { return };
                if let Err(refusal) = serving.slots.settle(&slot, true).await {
                    return serving.refused(peer.ip(), refusal);
                }
                // It is neither idle nor displaced from here on, and its callers may stop reading.
                phase.identified();
                phase.wait_for_reader();
                let _busy = phase.request();
                serving.answer(stream, &tls, CallingReplica(replica.into()), watcher).await;
            };
            tokio::select! {
                () = answering => {}
                overdue = phase.overdue() => debug!(?overdue, %caller, "closed a connection to the port for replicas"),
            }
            phase.end();
        });
        drop(task.detach());
    }

    async fn answer(
        &self,
        stream: TlsStream<MonitoredStream<TcpStream>>,
        tls: &TlsState,
        replica: CallingReplica,
        watcher: Watcher,
    ) {
        let id = replica.0.clone();
        let service = service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(replica.clone());
            self.router.clone().oneshot(request.map(Body::new))
        });
        let connection = watcher.watch(builder().serve_connection(TokioIo::new(stream), service));
        if let Some(Err(error)) = tls.distrusted.run_until_cancelled(connection).await {
            debug!(replica = id.as_str(), %error, "a connection of another replica ended with an error");
        }
    }

    /// Counts a handshake that failed. Anybody on the network could fill the log with it, so it has few lines.
    fn failed(&self, caller: ClientAddress, error: &std::io::Error) {
        self.link.refused.inc();
        if self.log_limit.may_log("handshake", caller) {
            warn!(%caller, %error, "refused a connection to the port for replicas");
        }
    }

    fn refused(&self, peer: IpAddr, refusal: SlotRefusal) {
        let (caller, (reason, why)) = (ClientAddress::of(peer), refusal.reason());
        if self.log_limit.may_log(reason, caller) {
            warn!(%caller, "connection to the port for replicas closed: {why}");
        }
    }
}

fn builder() -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(http2::MAX_STREAMS)
        .initial_stream_window_size(http2::STREAM_WINDOW)
        .initial_connection_window_size(http2::CONNECTION_WINDOW)
        .max_frame_size(http2::MAX_FRAME_BYTES)
        .max_header_list_size(http2::MAX_HEAD_BYTES)
        .max_send_buf_size(http2::SEND_BUFFER_BYTES)
        .max_pending_accept_reset_streams(http2::MAX_PENDING_RESETS)
        .max_local_error_reset_streams(http2::MAX_PENDING_RESETS)
        .keep_alive_interval(http2::PING_INTERVAL)
        .keep_alive_timeout(http2::PING_TIMEOUT);
    builder
}
