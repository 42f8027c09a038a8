//! A port: accepts connections within its limits, closes those that wait for too long, and ends all of them when it stops.

use std::fmt::Display;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use hyper_util::server::graceful::GracefulConnection;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use rustls::InvalidMessage;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;
use tracing::{debug, warn};

use super::connection_limits::{AddressLimits, Addresses, ClientAddress, LogRateLimit};
use super::connection_phase::{CloseReason, ConnectionDeadlines, ConnectionPhase};
use super::connection_slots::{ConnectionSlot, ConnectionSlots, SlotRefusal};
use crate::shutdown::spawn_named;
use crate::tls::server::ServerTls;

/// Pause after a failed accept, which is usually caused by a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Maximum time for the running requests of a connection that is ended for its caller's sake.
const ENDING_TIMEOUT: Duration = Duration::from_secs(10);

/// Limits of one port.
#[derive(Clone, Debug)]
pub struct PortLimits {
    /// Maximum number of open connections. A further one displaces a connection that waits for a request head: the
    /// one that has waited longest, of the caller that has the most. If none waits, the new one is closed.
    pub connections: usize,
    /// How many of them are reserved for callers that their certificates identify.
    pub reserved: usize,
    /// Limits on the connections of one caller.
    pub addresses: AddressLimits,
    /// Deadlines of a connection that waits for its caller.
    pub deadlines: ConnectionDeadlines,
    /// Maximum time for running requests to complete at shutdown.
    pub grace: Duration,
}

/// Labels of a closed connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Closed {
    listener: &'static str,
    reason: &'static str,
}

/// Counter of connections that the port closed. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct HttpMetrics(Family<Closed, Counter>);

impl HttpMetrics {
    /// Registers the counter.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "http_connections_closed",
            "HTTP connections closed, by listener and reason: address, cap, displaced, handshake, head, idle, untrusted",
            self.0.clone(),
        );
    }

    /// Number of connections of a listener that were closed for a reason.
    #[cfg(test)]
    pub(super) fn closed(&self, listener: &'static str, reason: &'static str) -> u64 {
        self.0.get_or_create(&Closed { listener, reason }).get()
    }
}

/// The limits of one port, and what uses them up.
#[derive(Debug)]
pub struct Port {
    name: &'static str,
    metrics: HttpMetrics,
    slots: ConnectionSlots,
    log_limit: LogRateLimit,
    deadlines: ConnectionDeadlines,
    grace: Duration,
}

/// An accepted connection, while it is open.
#[derive(Debug)]
pub struct PortConnection {
    /// Where it comes from.
    pub caller: ClientAddress,
    /// What it is doing.
    pub phase: Arc<ConnectionPhase>,
    /// Its slot; an upgraded connection keeps it.
    pub slot: Arc<ConnectionSlot>,
    peer: IpAddr,
    port: Arc<Port>,
    ending: CancellationToken,
    _open: TaskTrackerToken,
}

impl Port {
    /// Creates a port with these limits. `name` identifies it in metrics and logs.
    pub fn new(name: &'static str, limits: PortLimits, metrics: HttpMetrics) -> Self {
        let PortLimits { connections, reserved, addresses, deadlines, grace } = limits;
        let slots = ConnectionSlots::new(connections, reserved, Addresses::new(addresses));
        Self { name, metrics, slots, log_limit: LogRateLimit::default(), deadlines, grace }
    }

    /// Answers connections, each in a task of its own, until `stop` is cancelled. Then stops accepting connections and waits
    /// for the open ones, but not for upgraded ones.
    pub async fn serve<A>(
        self,
        listener: TcpListener,
        stop: CancellationToken,
        answer: impl Fn(TcpStream, PortConnection) -> A,
    ) where
        A: Future<Output = ()> + Send + 'static,
    {
        let (port, open) = (Arc::new(self), TaskTracker::new());
        while let Some(accepted) = stop.run_until_cancelled(listener.accept()).await {
            let (stream, peer) = match accepted {
                Ok((stream, peer)) => (stream, peer.ip()),
                Err(error) => {
                    warn!(%error, listener = port.name, "cannot accept a connection");
                    sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            match stop.run_until_cancelled(port.slots.admit(peer)).await {
                None => break,
                Some(Err(refusal)) => port.refused(peer, refusal),
                Some(Ok(slot)) => {
                    // An answer in parts would wait for the acknowledgement of the part before.
                    let _ = stream.set_nodelay(true);
                    let connection = port.connection(peer, slot, stop.child_token(), open.token());
                    let phase = Arc::clone(&connection.phase);
                    port.spawn(phase, answer(stream, connection));
                }
            }
        }
        drop(listener);
        open.close();
        if timeout(port.grace, open.wait()).await.is_err() {
            let seconds = port.grace.as_secs();
            warn!(listener = port.name, "aborted requests that were still running after {seconds} s");
        }
    }

    fn connection(
        self: &Arc<Self>,
        peer: IpAddr,
        slot: ConnectionSlot,
        ending: CancellationToken,
        open: TaskTrackerToken,
    ) -> PortConnection {
        let (caller, waiting) = (ClientAddress::of(peer), Arc::clone(self.slots.waiting()));
        let phase = Arc::new(ConnectionPhase::new(waiting, caller, self.deadlines));
        let (slot, port) = (Arc::new(slot), Arc::clone(self));
        PortConnection { caller, phase, slot, peer, port, ending, _open: open }
    }

    fn spawn(
        self: &Arc<Self>,
        phase: Arc<ConnectionPhase>,
        answering: impl Future<Output = ()> + Send + 'static,
    ) {
        let port = Arc::clone(self);
        let task = spawn_named("HTTP connection", async move {
            tokio::select! {
                () = answering => {}
                overdue = phase.overdue() => port.count(match overdue {
                    CloseReason::Head => "head",
                    CloseReason::Idle => "idle",
                    CloseReason::Displaced => "displaced",
                }),
            }
            phase.end();
        });
        drop(task.detach());
    }

    fn count(&self, reason: &'static str) {
        self.metrics.0.get_or_create(&Closed { listener: self.name, reason }).inc();
    }

    fn refused(&self, peer: IpAddr, refusal: SlotRefusal) {
        let (reason, why) = refusal.reason();
        self.closed(ClientAddress::of(peer), reason, why);
    }

    /// Counts a connection that is closed, and logs why, once a minute for a caller.
    fn closed(&self, caller: ClientAddress, reason: &'static str, why: impl Display) {
        self.count(reason);
        if self.log_limit.may_log(reason, caller) {
            warn!(listener = self.name, %caller, "connection closed: {why}");
        }
    }
}

impl PortConnection {
    /// Settles the slot once it is known whether the caller's certificate identifies it. Returns whether the connection may
    /// stay.
    pub async fn settle(&self, is_identified: bool) -> bool {
        let settled = self.port.slots.settle(&self.slot, is_identified).await;
        settled.map_err(|refusal| self.port.refused(self.peer, refusal)).is_ok()
    }

    /// Shakes hands, within the deadline for the first head. `None`: the client broke off, speaks no TLS, or shows no certificate
    /// that is accepted.
    pub async fn handshake(&self, tls: &ServerTls, stream: TcpStream) -> Option<TlsStream<TcpStream>> {
        match self.ending.run_until_cancelled(tls.accept(stream)).await? {
            Ok(stream) => Some(stream),
            // The client's doing is no problem: probes of load balancers connect and leave.
            Err(error) if error.kind() != io::ErrorKind::InvalidData => {
                debug!(%error, listener = self.port.name, caller = %self.caller, "a client left in its handshake");
                None
            }
            Err(error) => {
                self.port.closed(self.caller, "handshake", handshake_problem(&error));
                None
            }
        }
    }

    /// Whether it comes from the same machine.
    pub(super) fn is_local(&self) -> bool {
        let peer = self.peer.to_canonical();
        // Other addresses of the loopback network are those of proxies before the pod, such as 127.0.0.6 of Istio.
        peer == IpAddr::from(Ipv4Addr::LOCALHOST) || peer == IpAddr::from(Ipv6Addr::LOCALHOST)
    }

    /// Whether the limits of addresses do not hold for it.
    pub(super) fn is_exempt(&self) -> bool {
        self.port.slots.exempts(self.peer)
    }

    /// Counts the connection as closed for a reason.
    pub(super) fn count(&self, reason: &'static str) {
        self.port.count(reason);
    }

    /// Lets the connection end once its running requests are answered, within 10 s.
    pub fn end_gracefully(&self) {
        self.ending.cancel();
    }

    /// Serves requests until the connection ends. When the port stops, it ends once its running requests are answered, for which
    /// the port has a limit.
    pub fn serve<'c, C>(&'c self, connection: C) -> BoxFuture<'c, ()>
    where
        C: GracefulConnection<Error: Display + Send> + Send + 'c,
    {
        let serving = async move {
            let mut connection = pin!(connection);
            let ended = tokio::select! {
                ended = connection.as_mut() => ended,
                () = self.ending.cancelled() => {
                    connection.as_mut().graceful_shutdown();
                    // A caller that does not acknowledge the end could go on with further requests.
                    match timeout(ENDING_TIMEOUT, connection).await {
                        Ok(ended) => ended,
                        Err(_) => return,
                    }
                }
            };
            if let Err(error) = ended {
                debug!(%error, listener = self.port.name, caller = %self.caller, "a connection ended with an error");
            }
        };
        serving.boxed()
    }
}

/// Why a handshake failed.
fn handshake_problem(error: &io::Error) -> String {
    let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match tls {
        Some(rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType)) => {
            "the port has TLS, and its caller speaks none (https:// for a browser, scheme: HTTPS for a probe)"
                .to_owned()
        }
        Some(rustls::Error::NoCertificatesPresented) => {
            "the port wants a certificate, and its caller shows none".to_owned()
        }
        _ => format!("the TLS handshake failed: {error}"),
    }
}
