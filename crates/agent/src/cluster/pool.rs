//! The connections of one client for one [`Use`]: kept while they are used, bounded in number, shared by requests where
//! HTTP/2 allows it, and closed when they are idle. The connections of the whole process are bounded too.
//!
//! The pools of hyper-util neither bound connections nor count streams, so this one stands directly on hyper's
//! connections.

use std::sync::{Arc, Weak};
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use crate::cluster::connection::{Connection, StreamSender};
use crate::cluster::exchange::{BodySending, RequestBody};
use crate::cluster::tls::ServerCertificate;
use crate::cluster::{ClusterContext, ClusterEndpoint, ClusterError, Use};
use kubesvc_runtime::waits::until;

/// Protocols offered to the server, in the order of preference.
const HTTP1_ONLY: &[&[u8]] = &[b"http/1.1"];
const HTTP2_OR_HTTP1: &[&[u8]] = &[b"h2", b"http/1.1"];

/// Bounds of one pool.
#[derive(Clone, Copy, Debug)]
pub struct PoolLimits {
    /// Whether HTTP/2 is used where the server offers it.
    pub http2: bool,
    /// Maximum number of connections.
    pub connections: usize,
    /// Maximum number of requests at once on an HTTP/2 connection; the server's own limit may be lower.
    pub streams: usize,
    /// Maximum number of connections that are being established at once.
    pub dials: usize,
    /// Maximum number of idle connections that are kept.
    pub idle_connections: usize,
    /// Time after its last request at which a connection closes.
    pub idle_timeout: Duration,
    pub ping_interval: Duration,
    /// Timeout for the answer to an HTTP/2 ping, after which the connection is closed.
    pub ping_timeout: Duration,
}

impl PoolLimits {
    /// The bounds for a use.
    pub fn of(purpose: Use) -> Self {
        let shared = Self {
            http2: false,
            connections: 1,
            streams: 1,
            dials: 1,
            idle_connections: 1,
            idle_timeout: Duration::from_secs(30),
            ping_interval: Duration::from_secs(30),
            ping_timeout: Duration::from_secs(15),
        };
        match purpose {
            Use::Activation => shared,
            // Below the 100 streams that kube-apiserver allows.
            Use::Watches => Self {
                http2: true,
                connections: 64,
                streams: 80,
                idle_connections: 64,
                idle_timeout: Duration::from_secs(60),
                ..shared
            },
            // HTTP/1.1, so that the reader of a slow response delays no other request.
            Use::Requests => Self { connections: 768, dials: 16, idle_connections: 4, ..shared },
        }
    }

    /// The protocols to offer to the server.
    pub(super) fn protocols(&self) -> &'static [&'static [u8]] {
        if self.http2 { HTTP2_OR_HTTP1 } else { HTTP1_ONLY }
    }
}

/// Maximum number of connections, and of handshakes in progress, of one use in the process.
#[derive(Clone, Copy, Debug)]
pub struct UseBudget {
    /// Open connections, those that are being established included.
    pub connections: usize,
    /// Connections that are being established, from name resolution to the end of the TLS handshake.
    pub handshakes: usize,
}

/// Counts the connections of all clients in the process, separately for each [`Use`], so that watches cannot use up
/// what activation needs. Clones share the counts.
#[derive(Clone, Debug)]
pub struct ConnectionBudget {
    uses: [UseSemaphores; Use::COUNT],
}

#[derive(Clone, Debug)]
struct UseSemaphores {
    max_connections: usize,
    connections: Arc<Semaphore>,
    handshakes: Arc<Semaphore>,
}

impl Default for ConnectionBudget {
    fn default() -> Self {
        Self::new(|purpose| match purpose {
            // The activator bounds how many accounts start at once, and the link how many probes run.
            Use::Activation => UseBudget { connections: 256, handshakes: 256 },
            Use::Watches => UseBudget { connections: 8192, handshakes: 64 },
            Use::Requests => UseBudget { connections: 4096, handshakes: 256 },
        })
    }
}

impl ConnectionBudget {
    pub fn new(limits: impl Fn(Use) -> UseBudget) -> Self {
        let semaphores = |purpose| {
            let limits = limits(purpose);
            let permits = |count: usize| Arc::new(Semaphore::new(count.clamp(1, Semaphore::MAX_PERMITS)));
            let (connections, handshakes) = (permits(limits.connections), permits(limits.handshakes));
            let max_connections = connections.available_permits();
            UseSemaphores { max_connections, connections, handshakes }
        };
        Self { uses: Use::ALL.map(semaphores) }
    }

    /// Number of open connections, those that are being established included.
    pub fn open_connections(&self) -> usize {
        let open = |one: &UseSemaphores| one.max_connections - one.connections.available_permits();
        self.uses.iter().map(open).sum()
    }

    /// Waits for the right to have one more connection.
    pub(super) async fn connection(&self, purpose: Use) -> OwnedSemaphorePermit {
        acquire(&self.uses[purpose.index()].connections).await
    }

    /// Waits for the right to establish a connection.
    pub(super) async fn handshake(&self, purpose: Use) -> OwnedSemaphorePermit {
        acquire(&self.uses[purpose.index()].handshakes).await
    }
}

async fn acquire(semaphore: &Arc<Semaphore>) -> OwnedSemaphorePermit {
    semaphore.clone().acquire_owned().await.expect("the semaphores of the budget are never closed")
}

/// The right to keep one connection of a pool busy, until it is dropped. It is for callers whose requests follow one
/// another without end, such as watches: where each request takes a connection, those that have a slot do not displace one
/// another.
#[derive(Debug)]
pub struct PoolSlot {
    _permit: OwnedSemaphorePermit,
}

/// The connections of one use.
#[derive(Debug)]
pub(super) struct Pool {
    purpose: Use,
    limits: PoolLimits,
    /// One permit for each connection that may be open.
    slots: Arc<Semaphore>,
    state: Mutex<PoolState>,
    /// Notified when a stream, a connection or a dial ends, or a connection is added.
    changed: Notify,
}

#[derive(Debug, Default)]
struct PoolState {
    connections: Vec<Arc<Connection>>,
    dials: usize,
}

enum ConnectionChoice {
    Use(Arc<Connection>),
    Dial,
}

impl Pool {
    pub(super) fn new(purpose: Use, limits: PoolLimits) -> Arc<Self> {
        let slots = Arc::new(Semaphore::new(limits.connections.min(Semaphore::MAX_PERMITS)));
        Arc::new(Self { purpose, limits, slots, state: Mutex::default(), changed: Notify::new() })
    }

    /// Whether all connections of this pool use HTTP/1.1.
    pub(super) fn is_http1_only(&self) -> bool {
        !self.limits.http2
    }

    /// Whether a connection is open that takes several requests at once.
    pub(super) fn has_http2(&self) -> bool {
        self.state.lock().connections.iter().any(|connection| connection.is_http2())
    }

    /// Whether connections are open, and none of them takes several requests at once, although HTTP/2 may be offered.
    pub(super) fn speaks_http1(&self) -> bool {
        let state = self.state.lock();
        !state.connections.is_empty() && !state.connections.iter().any(|connection| connection.is_http2())
    }

    /// Takes a slot.
    pub(super) fn slot(&self) -> Result<PoolSlot, ClusterError> {
        match Arc::clone(&self.slots).try_acquire_owned() {
            Ok(permit) => Ok(PoolSlot { _permit: permit }),
            Err(_) => Err(ClusterError::TooManyWatches(self.limits.connections)),
        }
    }

    /// Waits for the use of a connection: an open one with room, or a new one. No other request uses a new connection
    /// before [`Lease::publish`].
    pub(super) async fn lease(
        self: &Arc<Self>,
        endpoint: &ClusterEndpoint,
        context: &ClusterContext,
    ) -> Result<Lease, ClusterError> {
        loop {
            let (connection, dial) = match until(&self.changed, || self.next_step()).await {
                ConnectionChoice::Use(connection) => (connection, None),
                ConnectionChoice::Dial => {
                    let (connection, dial) = self.dial(endpoint, context).await?;
                    (connection, Some(dial))
                }
            };
            let (pool, sender, is_new) = (Arc::downgrade(self), None, dial.is_some());
            let mut lease = Lease { pool, connection, sender, is_new, dial, body: None, is_complete: false };
            lease.sender =
                if is_new { lease.connection.first_sender() } else { lease.connection.next_sender().await };
            if lease.sender.is_some() {
                return Ok(lease);
            }
            lease.connection.retire();
        }
    }

    /// `None` while there is neither room for a request nor for another connection.
    fn next_step(&self) -> Option<ConnectionChoice> {
        let mut state = self.state.lock();
        match state.connections.iter().find(|connection| connection.reserve()) {
            Some(connection) => Some(ConnectionChoice::Use(connection.clone())),
            None if state.connections.len() + state.dials < self.limits.connections
                && state.dials < self.limits.dials =>
            {
                state.dials += 1;
                Some(ConnectionChoice::Dial)
            }
            None => None,
        }
    }

    /// Opens a connection, in the dial that [`Pool::next_step`] has counted.
    async fn dial(
        self: &Arc<Self>,
        endpoint: &ClusterEndpoint,
        context: &ClusterContext,
    ) -> Result<(Arc<Connection>, EndOfDial), ClusterError> {
        let dial = EndOfDial(Arc::clone(self));
        let (of, pool) = ((self.purpose, &self.limits), Arc::downgrade(self));
        let connection = Arc::new(Connection::open((endpoint, context), of, pool).await?);
        Ok((connection, dial))
    }

    /// Lets other requests use a connection too.
    fn add(&self, connection: &Arc<Connection>) {
        let mut state = self.state.lock();
        // It may have ended already; it is only removed when it ends.
        if !connection.has_ended() {
            state.connections.push(connection.clone());
        }
    }

    /// Removes connections that have ended.
    pub(super) fn remove_ended(&self) {
        let ended: Vec<_> = {
            let mut state = self.state.lock();
            state.connections.extract_if(.., |connection| connection.has_ended()).collect()
        };
        // Outside the lock, because it may end other things.
        drop(ended);
        self.changed.notify_waiters();
    }

    /// Closes a connection that has become idle, if enough others are.
    fn released(&self, connection: &Arc<Connection>) {
        let idle = self.state.lock().connections.iter().filter(|connection| connection.is_idle()).count();
        if idle > self.limits.idle_connections && connection.is_idle() {
            connection.retire();
        }
        self.changed.notify_waiters();
    }
}

/// Ends a dial, successful or not.
#[derive(Debug)]
struct EndOfDial(Arc<Pool>);

impl Drop for EndOfDial {
    fn drop(&mut self) {
        self.0.state.lock().dials -= 1;
        self.0.changed.notify_waiters();
    }
}

/// The use of a connection by one request. Dropping it before [`Lease::complete`] cancels the request: an HTTP/2
/// stream is reset, an HTTP/1.1 connection is closed.
#[derive(Debug)]
pub(super) struct Lease {
    pool: Weak<Pool>,
    connection: Arc<Connection>,
    sender: Option<StreamSender>,
    /// Whether the connection was opened for this request.
    is_new: bool,
    /// The dial of a new connection that no other request may use yet.
    dial: Option<EndOfDial>,
    /// The body of the request, once it is handed to the connection.
    body: Option<Arc<BodySending>>,
    is_complete: bool,
}

/// A request that got no response.
pub(super) struct ExchangeError {
    pub(super) source: hyper::Error,
    /// The request, if not a byte of it was sent.
    pub(super) unsent: Option<Box<Request<RequestBody>>>,
}

impl Lease {
    pub(super) fn server(&self) -> &Arc<ServerCertificate> {
        self.connection.server()
    }

    pub(super) fn is_new(&self) -> bool {
        self.is_new
    }

    /// Lets other requests use a new connection too.
    pub(super) fn publish(&mut self) {
        if let Some(dial) = self.dial.take() {
            dial.0.add(&self.connection);
        }
    }

    /// Waits until another request can be sent after a response that was read to its end. Returns whether it can.
    pub(super) async fn is_ready_again(&mut self) -> bool {
        match &mut self.sender {
            Some(StreamSender::Http1(sender)) => sender.ready().await.is_ok(),
            Some(StreamSender::Http2(sender)) => sender.ready().await.is_ok(),
            None => false,
        }
    }

    /// Whether the connection speaks HTTP/2.
    pub(super) fn is_http2(&self) -> bool {
        matches!(self.sender, Some(StreamSender::Http2(_)))
    }

    /// Sends the request and waits for the head of its response.
    pub(super) async fn exchange(
        &mut self,
        request: Request<RequestBody>,
    ) -> Result<Response<Incoming>, ExchangeError> {
        self.body = Some(request.body().sending());
        let sender = self.sender.as_mut().expect("a lease has its sender until it is dropped");
        sender.send(request).await.map_err(|mut error| {
            let unsent = error.take_message().map(Box::new);
            if unsent.is_some() {
                self.connection.retire();
                // It may be sent over another connection.
                self.body = None;
            }
            ExchangeError { source: error.into_error(), unsent }
        })
    }

    /// Ends the use after a complete response. The connection is kept for the next request.
    pub(super) fn complete(mut self) {
        self.is_complete = true;
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let unsent = self.body.take_if(|body| !body.is_sent());
        let reusable = self.sender.take().filter(|_| self.is_complete && self.body.is_some());
        if let Some(unsent) = unsent {
            // If the server takes no more of it, it ends with the connection.
            self.connection.retire();
            unsent.cancel();
        }
        self.connection.release(reusable);
        if let Some(pool) = self.pool.upgrade() {
            pool.released(&self.connection);
        }
    }
}
