//! An HTTP/1 server with bounds on every wait and size: connections, heads, pauses, unread answers and shutdown.

use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;
use tracing::{debug, warn};

use super::connection_limits::{AddressLimits, Addresses, ClientAddress, LogRateLimit};
use super::connection_phase::{CloseReason, ConnectionDeadlines, ConnectionPhase};
use super::connection_slots::{ConnectionSlot, ConnectionSlots, SlotRefusal};
use super::refused_heads::{RefusedHead, RefusedHeads};
use super::unread_answers::{MonitoredStream, ReadBody};
use crate::shutdown::spawn_named;

/// Pause after a failed accept, which is usually caused by a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Limits of one port.
#[derive(Clone, Debug)]
pub struct HttpLimits {
    /// Maximum number of open connections. A further one displaces a connection that waits for a request head: the
    /// one that has waited longest, of the caller that has the most. If none waits, the new one is closed.
    pub connections: usize,
    /// Limits on the connections of one caller.
    pub addresses: AddressLimits,
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
    slots: ConnectionSlots,
    log_limit: LogRateLimit,
}

/// Connections that end once their request is answered, when the server stops. Upgraded ones are not waited for.
#[derive(Default)]
struct Graceful {
    stop: CancellationToken,
    connections: TaskTracker,
}

impl HttpServer {
    /// Creates a server with these limits. `name` identifies it in metrics and logs.
    pub fn new(name: &'static str, limits: HttpLimits, metrics: HttpMetrics) -> Self {
        let addresses = Addresses::new(limits.addresses.clone());
        let slots = ConnectionSlots::new(limits.connections, 0, addresses);
        Self { name, limits, metrics, slots, log_limit: LogRateLimit::default() }
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
    async fn slot(&self, peer: IpAddr) -> Option<Arc<ConnectionSlot>> {
        let admitted = self.slots.admit(peer).await;
        let refused = |refusal: SlotRefusal| {
            let (reason, why) = refusal.reason();
            self.close(reason, peer, why);
        };
        admitted.map(Arc::new).map_err(refused).ok()
    }

    fn close(&self, reason: &'static str, peer: IpAddr, why: &'static str) {
        self.metrics.count(self.name, reason);
        let caller = ClientAddress::of(peer);
        if self.log_limit.may_log(reason, caller) {
            warn!(listener = self.name, %caller, "connection closed: {why}");
        }
    }

    fn connection(
        &self,
        stream: TcpStream,
        peer: SocketAddr,
        router: Router,
        slot: Arc<ConnectionSlot>,
        graceful: &Graceful,
    ) {
        let deadlines =
            ConnectionDeadlines { head: self.limits.head_timeout, idle: self.limits.idle_timeout };
        // An answer in parts would wait for the acknowledgement of the part before.
        let _ = stream.set_nodelay(true);
        let caller = ClientAddress::of(peer.ip());
        let phase = Arc::new(ConnectionPhase::new(Arc::clone(self.slots.waiting()), caller, deadlines));
        let requests = Arc::clone(&phase);
        let stream = MonitoredStream::plain(stream, Arc::clone(&phase), Some(slot));
        let stream = RefusedHeads::new(stream, self.limits.head_bytes, self.limits.refused_head);
        let heads = stream.watch();
        let service = service_fn(move |mut request: Request<Incoming>| {
            let guard = (requests.request(), heads.request());
            request.extensions_mut().insert(caller);
            let router = router.clone();
            async move {
                let response = router.oneshot(request.map(Body::new)).await;
                response.map(|response| response.map(|body| ReadBody::new(body, guard)))
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
                    CloseReason::Head => "head",
                    CloseReason::Idle => "idle",
                    CloseReason::Displaced => "displaced",
                }),
            }
            phase.end();
        });
        drop(serving.detach());
    }
}

#[cfg(test)]
mod tests;
