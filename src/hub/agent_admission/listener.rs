//! The port below gRPC: accepts connections within their bounds. What they speak is found out before tonic gets them
//! (`new_connection`).

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, error, warn};

use crate::hub::agent_admission::connection::AgentConnection;
use crate::hub::agent_admission::live_clients::LiveClients;
use crate::hub::agent_admission::new_connection::{HANDSHAKE, NewConnection};
use crate::hub::context::HubContext;
use crate::hub::metrics::HubMetrics;
use crate::hub::{HubError, ListenerSettings};
use kubesvc_runtime::listen::connection_limits::{Addresses, ClientAddress, LogRateLimit};
use kubesvc_runtime::listen::connection_phase::{
    CloseReason, ConnectionDeadlines, ConnectionPhase, WaitingConnections,
};
use kubesvc_runtime::listen::listen;

/// Delay after the system refused to accept, e.g. because of too many open files.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(200);
/// Maximum number of detected connections that wait for tonic.
const MAX_READY_CONNECTIONS: usize = 64;

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
    /// TLS, and the certificates that clients showed; `None`: the port speaks plain text.
    pub(crate) clients: Option<Arc<LiveClients>>,
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
            clients: settings.tls.clone().map(|tls| LiveClients::new(tls, context.metrics.clone())),
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
    pub(super) fn closed(&self, why: CloseReason, head: &'static str, caller: ClientAddress) {
        let (reason, line) = match why {
            CloseReason::Head if head == HANDSHAKE => {
                (head, Some("closing a connection whose TLS handshake takes too long"))
            }
            CloseReason::Head => (head, None),
            CloseReason::Idle => ("idle", None),
            CloseReason::Displaced => {
                ("displaced", Some("closing a connection without a stream to make room for a newer one"))
            }
        };
        self.metrics.refuse_connection(reason);
        if let Some(line) = line.filter(|_| self.log_limit.may_log(reason, caller)) {
            warn!(peer = %caller, "{line}");
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
    if let Some(clients) = policy.clients.clone() {
        let trust = clients.trust();
        tasks.spawn(clients.follow(trust, stop.clone()));
    }
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
    stream: TcpStream,
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
    if let Err(problem) = stream.set_nodelay(true) {
        debug!(%peer, error = %problem, "cannot set TCP_NODELAY");
    }
    let connection = NewConnection {
        phase: policy.phase(ClientAddress::of(peer.ip())),
        policy: Arc::clone(policy),
        peer,
        close: policy.close.child_token(),
        stop: stop.clone(),
        permits: (connection, address),
    };
    policy.tasks.spawn(connection.open(stream, ready.clone()));
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
            clients: None,
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
}
