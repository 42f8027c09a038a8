//! The accept loop: bounds the connections and detects their protocol before gRPC.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, error, warn};

use crate::hub::admission::streams::{self, StreamDeadlines, Streams};
use crate::hub::admission::transport::{self, Connection, ConnectionPermits, DetectedProtocol, Transport};
use crate::hub::metrics::HubMetrics;
use crate::hub::{HubError, HubSettings};
use crate::listen::addresses::{Addresses, Caller};
use crate::listen::connection_phase::WaitingConnections;
use crate::listen::listen;
use crate::listen::log_rate_limit::LogRateLimit;

/// Time limit for the HTTP/2 preface, and for reading the 505 sent to HTTP/1 clients.
const PREFACE_TIMEOUT: Duration = Duration::from_secs(2);
/// Delay after the system refused to accept, e.g. because of too many open files.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(200);
/// Reason for closing a connection without a stream when there are too many.
pub(in crate::hub) const DISPLACED: &str = "displaced";
/// Maximum number of detected connections that wait for tonic.
const MAX_READY_CONNECTIONS: usize = 64;

/// Binds the hub's port.
pub(in crate::hub) async fn bind(settings: &HubSettings) -> Result<TcpListener, HubError> {
    let (address, port) = (&settings.address, settings.port);
    listen(address, port).await.map_err(|source| HubError::Bind { address: address.clone(), port, source })
}

/// Bounds and deadlines of all connections.
pub(in crate::hub) struct ConnectionPolicy {
    pub(in crate::hub) metrics: HubMetrics,
    pub(in crate::hub) cap: usize,
    /// Connections by address.
    pub(in crate::hub) addresses: Arc<Addresses>,
    /// Connections without a stream, from their start, and their maximum number.
    pub(in crate::hub) without_stream: Arc<WaitingConnections>,
    pub(in crate::hub) without_stream_cap: usize,
    pub(in crate::hub) preface_wait: Duration,
    pub(in crate::hub) bounds: StreamDeadlines,
    pub(in crate::hub) rest_port: Option<u16>,
    /// Closes all connections.
    pub(in crate::hub) close: CancellationToken,
    pub(in crate::hub) tasks: TaskTracker,
    pub(in crate::hub) log_limit: LogRateLimit,
}

/// Accepts from when `ready` completes until stopped, and returns the HTTP/2 connections.
pub(in crate::hub) fn accept(
    listener: TcpListener,
    policy: Arc<ConnectionPolicy>,
    ready: impl Future<Output = ()> + Send + 'static,
    stop: CancellationToken,
) -> mpsc::Receiver<io::Result<Connection>> {
    let (begun, taken) = mpsc::channel(MAX_READY_CONNECTIONS);
    let tasks = policy.tasks.clone();
    tasks.spawn(async move {
        if stop.run_until_cancelled(ready).await.is_none() {
            return;
        }
        let permits = Arc::new(Semaphore::new(policy.cap));
        loop {
            let accepted = tokio::select! {
                () = stop.cancelled() => return,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, peer)) => admit(&policy, &permits, stream, peer, &begun, &stop),
                Err(problem) => {
                    error!(error = %problem, "cannot accept connections of agents; trying on");
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
    ready: &mpsc::Sender<io::Result<Connection>>,
    stop: &CancellationToken,
) {
    policy.metrics.connections.inc();
    let refuse = |reason: &'static str, why: &str| {
        policy.metrics.refuse_connection(reason);
        if policy.log_limit.may_log(reason, Caller::of(peer.ip())) {
            warn!(%peer, reason, "connection closed: {why}");
        }
    };
    let Some(address) = policy.addresses.enter(peer.ip()) else {
        return refuse("address", "its address has as many as one may have (kubesvc.grpc.server.limits)");
    };
    let Ok(connection) = Arc::clone(permits).try_acquire_owned() else {
        return refuse("cap", "the hub has as many as it may have");
    };
    let close = policy.close.child_token();
    let caller = Caller::of(peer.ip());
    let (turn, displaced) = policy.without_stream.enter_among(policy.without_stream_cap, caller, &close);
    if displaced {
        policy.metrics.refuse_connection(DISPLACED);
        if policy.log_limit.may_log(DISPLACED, caller) {
            warn!(%peer, "a connection without a stream gives its place to a newer one: there are as many as may be");
        }
    }
    let permits = ConnectionPermits { _connection: connection, _address: address };
    if let Err(problem) = stream.set_nodelay(true) {
        debug!(%peer, error = %problem, "no TCP_NODELAY");
    }
    let (policy, ready, stop) = (Arc::clone(policy), ready.clone(), stop.clone());
    let tasks = policy.tasks.clone();
    tasks.spawn(async move {
        let mut stream: Box<dyn Transport> = Box::new(stream);
        let mut taken = Vec::new();
        let spoken = tokio::select! {
            () = stop.cancelled() => return,
            () = close.cancelled() => return,
            spoken = tokio::time::timeout(policy.preface_wait, transport::listen(&mut *stream, &mut taken)) => spoken,
        };
        match spoken {
            Ok(Ok(DetectedProtocol::Http2)) => {
                let streams = Streams::default();
                let watched = streams::watch_over(Arc::clone(&policy), streams.clone(), close.clone(), (caller, turn));
                let connection = Connection::new(stream, taken, peer, streams, close, permits);
                // Fails only while the hub stops.
                let _ = ready.send(Ok(connection)).await;
                // Lives as long as the connection, which outlives the hub's sessions while it stops.
                tokio::spawn(watched);
            }
            Ok(Ok(other)) => turn_away(&policy, other, stream, peer).await,
            Ok(Err(problem)) => {
                policy.metrics.refuse_connection("io");
                debug!(%peer, error = %problem, "connection broke before it spoke");
            }
            Err(_) => {
                policy.metrics.refuse_connection("silent");
                debug!(%peer, "connection closed: it did not begin with HTTP/2 in time");
            }
        }
    });
}

async fn turn_away(
    policy: &ConnectionPolicy,
    spoken: DetectedProtocol,
    mut stream: Box<dyn Transport>,
    peer: SocketAddr,
) {
    match spoken {
        DetectedProtocol::Http1 => {
            policy.metrics.refuse_connection("http1");
            let answered = transport::answer_http1(&mut *stream, policy.rest_port);
            // A client that does not read the answer is closed without it.
            let _ = tokio::time::timeout(PREFACE_TIMEOUT, answered).await;
        }
        DetectedProtocol::Tls => {
            policy.metrics.refuse_connection("tls");
            if policy.log_limit.may_log("tls", Caller::of(peer.ip())) {
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
