//! The port below gRPC: accepts connections within their bounds, and detects their protocol before tonic gets them.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, error, warn};

use crate::hub::agent_admission::connection::AgentConnection;
use crate::hub::context::HubContext;
use crate::hub::metrics::HubMetrics;
use crate::hub::{HubError, ListenerSettings};
use kubesvc_runtime::listen::connection_limits::{Addresses, ClientAddress, LogRateLimit};
use kubesvc_runtime::listen::connection_phase::{
    CloseReason, ConnectionDeadlines, ConnectionPhase, WaitingConnections,
};
use kubesvc_runtime::listen::listen;
use kubesvc_runtime::shutdown::spawn_named;

/// Time limit for the HTTP/2 preface, and for reading the 505 sent to HTTP/1 clients.
const PREFACE_TIMEOUT: Duration = Duration::from_secs(2);
/// Delay after the system refused to accept, e.g. because of too many open files.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(200);
/// Maximum number of detected connections that wait for tonic.
const MAX_READY_CONNECTIONS: usize = 64;
/// The HTTP/2 preface.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Maximum size of an HTTP/1 request that is read before the answer, in bytes.
const HTTP1_PEEK_BYTES: usize = 16;
/// Maximum size read and discarded after an answer, in bytes, so that closing the connection does not discard the
/// answer.
const MAX_DISCARDED_BYTES: u64 = 64 * 1024;

pub(crate) async fn bind(settings: &ListenerSettings) -> Result<TcpListener, HubError> {
    let (address, port) = (&settings.address, settings.port);
    listen(address, port).await.map_err(|source| HubError::Bind { address: address.clone(), port, source })
}

/// Bounds and deadlines of all connections.
pub(crate) struct ConnectionPolicy {
    pub(crate) settings: ListenerSettings,
    pub(crate) metrics: HubMetrics,
    /// Connections by address.
    pub(crate) addresses: Arc<Addresses>,
    /// Connections without a stream, from their start.
    pub(crate) without_stream: Arc<WaitingConnections>,
    /// Closes all connections.
    pub(crate) close: CancellationToken,
    pub(crate) tasks: TaskTracker,
    pub(crate) log_limit: LogRateLimit,
}

impl ConnectionPolicy {
    /// `close` closes all connections.
    pub(crate) fn new(context: &HubContext, close: CancellationToken) -> Self {
        let settings = context.settings.listener.clone();
        Self {
            addresses: Addresses::new(settings.limits.clone()),
            metrics: context.metrics.clone(),
            without_stream: Arc::new(WaitingConnections::at_most(settings.without_stream_cap)),
            close,
            tasks: context.tasks.clone(),
            log_limit: LogRateLimit::default(),
            settings,
        }
    }

    /// The phase of a new connection.
    fn phase(&self, caller: ClientAddress) -> ConnectionPhase {
        let ListenerSettings { preface_wait: head, idle_wait: idle, .. } = self.settings;
        ConnectionPhase::new(Arc::clone(&self.without_stream), caller, ConnectionDeadlines { head, idle })
    }

    /// Counts a connection that is closed because it waited for too long, or for a newer one. `head` is the reason where
    /// its first request did not come in time.
    fn closed(&self, why: CloseReason, head: &'static str, caller: ClientAddress) {
        let reason = match why {
            CloseReason::Head => head,
            CloseReason::Idle => "idle",
            CloseReason::Displaced => "displaced",
        };
        self.metrics.refuse_connection(reason);
        if why == CloseReason::Displaced && self.log_limit.may_log(reason, caller) {
            warn!(peer = %caller, "closing a connection without a stream to make room for a newer one");
        }
    }

    /// Closes a connection that has no stream for too long, or that is displaced because there are too many. Ends with
    /// the connection.
    pub(super) async fn watch_over(
        self: Arc<Self>,
        phase: Arc<ConnectionPhase>,
        close: CancellationToken,
        caller: ClientAddress,
    ) {
        if let Some(why) = close.run_until_cancelled(phase.overdue()).await {
            self.closed(why, "no_request", caller);
            close.cancel();
        }
    }
}

/// Accepts from when `ready` completes until stopped, and returns the HTTP/2 connections.
pub(crate) fn accept(
    listener: TcpListener,
    policy: Arc<ConnectionPolicy>,
    ready: impl Future<Output = ()> + Send + 'static,
    stop: CancellationToken,
) -> mpsc::Receiver<io::Result<AgentConnection>> {
    let (begun, taken) = mpsc::channel(MAX_READY_CONNECTIONS);
    let tasks = policy.tasks.clone();
    tasks.spawn(async move {
        if stop.run_until_cancelled(ready).await.is_none() {
            return;
        }
        let permits = Arc::new(Semaphore::new(policy.settings.connection_cap));
        loop {
            let accepted = tokio::select! {
                () = stop.cancelled() => return,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, peer)) => admit(&policy, &permits, stream, peer, &begun, &stop),
                Err(problem) => {
                    error!(error = %problem, "cannot accept connections from agents; retrying");
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
    mut stream: TcpStream,
    peer: SocketAddr,
    ready: &mpsc::Sender<io::Result<AgentConnection>>,
    stop: &CancellationToken,
) {
    policy.metrics.connections.inc();
    let refuse = |reason: &'static str, why: &str| {
        policy.metrics.refuse_connection(reason);
        if policy.log_limit.may_log(reason, ClientAddress::of(peer.ip())) {
            warn!(%peer, reason, "connection closed: {why}");
        }
    };
    let Some(address) = policy.addresses.enter(peer.ip()) else {
        return refuse(
            "address",
            "its address has reached its limit of connections (kubesvc.grpc.server.limits)",
        );
    };
    let Ok(connection) = Arc::clone(permits).try_acquire_owned() else {
        return refuse("cap", "the hub has reached its limit of connections");
    };
    let close = policy.close.child_token();
    let caller = ClientAddress::of(peer.ip());
    let phase = policy.phase(caller);
    let permits = (connection, address);
    if let Err(problem) = stream.set_nodelay(true) {
        debug!(%peer, error = %problem, "cannot set TCP_NODELAY");
    }
    let (policy, ready, stop) = (Arc::clone(policy), ready.clone(), stop.clone());
    let tasks = policy.tasks.clone();
    tasks.spawn(async move {
        let mut taken = Vec::new();
        let spoken = tokio::select! {
            () = stop.cancelled() => return,
            () = close.cancelled() => return,
            why = phase.overdue() => return policy.closed(why, "silent", caller),
            spoken = detect_protocol(&mut stream, &mut taken) => spoken,
        };
        match spoken {
            Ok(DetectedProtocol::Http2) => {
                phase.expect_head(policy.settings.request_wait);
                let phase = Arc::new(phase);
                let watched = Arc::clone(&policy).watch_over(Arc::clone(&phase), close.clone(), caller);
                let connection = AgentConnection::new(stream, taken, peer, phase, close, permits);
                // Fails only while the hub stops.
                let _ = ready.send(Ok(connection)).await;
                // Lives as long as the connection, which outlives the hub's sessions while it stops.
                drop(spawn_named("streams of a connection", watched).detach());
            }
            Ok(other) => reject_connection(&policy, other, stream, peer).await,
            Err(problem) => {
                policy.metrics.refuse_connection("io");
                debug!(%peer, error = %problem, "connection broke before its first byte");
            }
        }
    });
}

async fn reject_connection(
    policy: &ConnectionPolicy,
    spoken: DetectedProtocol,
    mut stream: TcpStream,
    peer: SocketAddr,
) {
    match spoken {
        DetectedProtocol::Http1 => {
            policy.metrics.refuse_connection("http1");
            let answered = answer_http1(&mut stream, policy.settings.rest_port);
            // A client that does not read the answer is closed without it.
            let _ = tokio::time::timeout(PREFACE_TIMEOUT, answered).await;
        }
        DetectedProtocol::Tls => {
            policy.metrics.refuse_connection("tls");
            if policy.log_limit.may_log("tls", ClientAddress::of(peer.ip())) {
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

/// Protocol of a connection, by its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DetectedProtocol {
    /// The HTTP/2 preface.
    Http2,
    /// An HTTP/1 request line.
    Http1,
    /// A TLS ClientHello.
    Tls,
    /// Another protocol, or end of stream.
    Other,
}

/// Detects the protocol; `None` if more bytes are needed.
fn protocol_of(bytes: &[u8]) -> Option<DetectedProtocol> {
    let begins = bytes.len().min(PREFACE.len());
    if bytes[..begins] == PREFACE[..begins] {
        return (begins == PREFACE.len()).then_some(DetectedProtocol::Http2);
    }
    if bytes[0] == 0x16 {
        return match bytes.get(1) {
            None => None,
            Some(0x03) => Some(DetectedProtocol::Tls),
            Some(_) => Some(DetectedProtocol::Other),
        };
    }
    let method = bytes.iter().take_while(|byte| byte.is_ascii_uppercase()).count();
    match bytes.get(method) {
        Some(b' ') if (3..=10).contains(&method) => Some(DetectedProtocol::Http1),
        None if method < HTTP1_PEEK_BYTES => None,
        _ => Some(DetectedProtocol::Other),
    }
}

/// Reads until the protocol is known. The bytes read are kept in `peeked`.
async fn detect_protocol(stream: &mut TcpStream, peeked: &mut Vec<u8>) -> io::Result<DetectedProtocol> {
    let mut buffer = [0; PREFACE.len()];
    loop {
        let missing = PREFACE.len() - peeked.len();
        let count = stream.read(&mut buffer[..missing]).await?;
        peeked.extend_from_slice(&buffer[..count]);
        match protocol_of_peeked(peeked, count) {
            Some(spoken) => return Ok(spoken),
            None if peeked.len() == PREFACE.len() => return Ok(DetectedProtocol::Other),
            None => {}
        }
    }
}

fn protocol_of_peeked(peeked: &[u8], count: usize) -> Option<DetectedProtocol> {
    if count == 0 { Some(DetectedProtocol::Other) } else { protocol_of(peeked) }
}

/// Answers an HTTP/1 request with 505 and a message, and gives the client time to read it.
async fn answer_http1(stream: &mut TcpStream, rest_port: Option<u16>) -> io::Result<()> {
    let place = rest_port.map(|port| format!("; REST is on port {port}")).unwrap_or_default();
    let sentence = format!("this port speaks gRPC over HTTP/2{place}\n");
    let answer = format!(
        "HTTP/1.1 505 HTTP Version Not Supported\r\ncontent-type: text/plain; charset=utf-8\r\n\
         content-length: {}\r\nconnection: close\r\n\r\n{sentence}",
        sentence.len()
    );
    stream.write_all(answer.as_bytes()).await?;
    stream.shutdown().await?;
    tokio::io::copy(&mut stream.take(MAX_DISCARDED_BYTES), &mut tokio::io::sink()).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use kubesvc_runtime::listen::connection_limits::AddressLimits;

    const REQUEST_WAIT: Duration = Duration::from_secs(10);
    const IDLE_WAIT: Duration = Duration::from_secs(30);

    /// A port at which so many connections may be without a stream.
    fn policy(without_stream_cap: usize) -> Arc<ConnectionPolicy> {
        Arc::new(ConnectionPolicy {
            metrics: HubMetrics::default(),
            settings: ListenerSettings {
                connection_cap: 10,
                without_stream_cap,
                request_wait: REQUEST_WAIT,
                idle_wait: IDLE_WAIT,
                ..ListenerSettings::default()
            },
            addresses: Addresses::new(AddressLimits::default()),
            without_stream: Arc::new(WaitingConnections::at_most(without_stream_cap)),
            close: CancellationToken::new(),
            tasks: TaskTracker::new(),
            log_limit: LogRateLimit::default(),
        })
    }

    /// A connection that has just begun; it is watched until the token is cancelled.
    fn watched(
        policy: &Arc<ConnectionPolicy>,
    ) -> (Arc<ConnectionPhase>, CancellationToken, tokio::task::JoinHandle<()>) {
        let (close, caller) = (CancellationToken::new(), ClientAddress::of([192, 0, 2, 1].into()));
        let phase = Arc::new(policy.phase(caller));
        phase.expect_head(REQUEST_WAIT);
        let watched = tokio::spawn(Arc::clone(policy).watch_over(Arc::clone(&phase), close.clone(), caller));
        (phase, close, watched)
    }

    fn closed_for(policy: &ConnectionPolicy, reason: &'static str) -> u64 {
        policy.metrics.connections_refused.get_or_create(&crate::hub::metrics::ReasonLabel { reason }).get()
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_without_a_request_is_closed_in_ten_seconds() {
        let policy = policy(9);
        let (_phase, close, watched) = watched(&policy);
        let since = tokio::time::Instant::now();
        watched.await.expect("no panic");
        assert_eq!((since.elapsed(), close.is_cancelled()), (REQUEST_WAIT, true));
        assert_eq!(closed_for(&policy, "no_request"), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_closed_thirty_seconds_after_its_last_stream() {
        let policy = policy(9);
        let (phase, close, watched) = watched(&policy);
        let (first, second) = (phase.request(), phase.request());
        tokio::time::sleep(Duration::from_secs(3600)).await;
        drop(first);
        tokio::time::sleep(Duration::from_secs(3600)).await;
        assert!(!close.is_cancelled(), "one is open");
        let since = tokio::time::Instant::now();
        drop(second);
        watched.await.expect("no panic");
        assert_eq!((since.elapsed(), closed_for(&policy, "idle")), (IDLE_WAIT, 1));
        assert!(close.is_cancelled());
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_that_ends_at_once_restarts_the_limit() {
        let policy = policy(9);
        let (phase, close, watched) = watched(&policy);
        for limit in [REQUEST_WAIT, IDLE_WAIT, IDLE_WAIT] {
            tokio::time::sleep(limit - Duration::from_secs(1)).await;
            drop(phase.request());
        }
        assert!(!close.is_cancelled());
        let since = tokio::time::Instant::now();
        watched.await.expect("no panic");
        assert_eq!((since.elapsed(), close.is_cancelled()), (IDLE_WAIT, true));
        assert_eq!((closed_for(&policy, "idle"), closed_for(&policy, "no_request")), (1, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn the_watch_ends_with_its_connection() {
        let policy = policy(9);
        let (phase, close, watched) = watched(&policy);
        let _open = phase.request();
        tokio::task::yield_now().await;
        close.cancel();
        watched.await.expect("no panic");
        assert_eq!(closed_for(&policy, "idle") + closed_for(&policy, "no_request"), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn among_too_many_connections_without_a_stream_the_longest_idle_is_closed_and_none_with_an_agent() {
        let policy = policy(2);
        let (agent, with_agent, _agent) = watched(&policy);
        let open = agent.request();
        tokio::task::yield_now().await;
        let (_idle, first, _first) = watched(&policy);
        let (_idle_too, second, _second) = watched(&policy);
        assert!(!first.is_cancelled() && !second.is_cancelled());
        // Its last stream ends: it is the third without one, and has been for the shortest time.
        drop(open);
        tokio::task::yield_now().await;
        assert!(first.is_cancelled() && !second.is_cancelled() && !with_agent.is_cancelled());
        assert_eq!(closed_for(&policy, "displaced"), 1);
    }

    #[test]
    fn protocol_is_detected_from_the_first_bytes() {
        for (bytes, expected) in [
            (PREFACE, Some(DetectedProtocol::Http2)),
            (&PREFACE[..5], None),
            (b"GET / HTTP/1.1\r\n", Some(DetectedProtocol::Http1)),
            (b"P", None),
            (b"POST /", Some(DetectedProtocol::Http1)),
            (b"PRI * HTTP/1.1", Some(DetectedProtocol::Http1)),
            (b"\x16\x03\x01", Some(DetectedProtocol::Tls)),
            (b"\x16", None),
            (b"\x16\x00", Some(DetectedProtocol::Other)),
            (b"\x00", Some(DetectedProtocol::Other)),
            (b"hello", Some(DetectedProtocol::Other)),
            (b"AAAAAAAAAAAAAAAAAAAAAAAA", Some(DetectedProtocol::Other)),
        ] {
            assert_eq!(protocol_of(bytes), expected, "{bytes:?}");
        }
    }
}
