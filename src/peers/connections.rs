//! Connections to other replicas: HTTP/2 over TLS, one for each replica, opened when it is needed. The server's certificate must
//! have the id of the replica, or of any replica where no object names its pod.

use std::collections::HashMap;
use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use parking_lot::Mutex;
use rustls::pki_types::{DnsName, ServerName};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;
use tracing::debug;

use super::client::MAX_CONCURRENT_CALLS;
use super::membership::Replica;
use super::relays::MAX_RELAYED;
use super::tls::PeerTls;
use kubesvc_core::ReplicaId;
use kubesvc_runtime::shutdown::spawn_named;
use kubesvc_runtime::telemetry::errors::chain;

/// Time limit for a connection to open, with its handshakes: less than a question takes, so that it learns why there is none.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(1500);
/// Number of connections over which a call is tried: one that was open may turn out to be closed.
const MAX_ATTEMPTS: usize = 2;

/// Maximum number of calls on one connection at once: all that a replica makes.
pub(super) const MAX_STREAMS: u32 = (MAX_RELAYED + MAX_CONCURRENT_CALLS) as u32;
/// Window of one body, in bytes: what its reader may leave unread.
pub(super) const STREAM_WINDOW: u32 = 64 * 1024;
/// Window of a connection, in bytes. It has room for the windows of all of its bodies, so that one that is not read holds up no
/// other.
pub(super) const CONNECTION_WINDOW: u32 = MAX_STREAMS * STREAM_WINDOW;
/// Maximum size of a frame, in bytes, so that a long body does not keep a short call waiting.
pub(super) const MAX_FRAME_BYTES: u32 = 16 * 1024;
/// Maximum size of the head of a call as HTTP/2 counts it, with 32 bytes for each header: what a caller may send to an account,
/// and who that caller is.
pub(super) const MAX_HEAD_BYTES: u32 = 512 * 1024;
/// Maximum size of what waits to be sent of one body, in bytes.
pub(super) const SEND_BUFFER_BYTES: usize = 64 * 1024;
/// Maximum number of calls that were cancelled and are not forgotten yet.
pub(super) const MAX_PENDING_RESETS: usize = MAX_STREAMS as usize;
/// Interval between two pings.
pub(super) const PING_INTERVAL: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 10 });
/// Time without an answer to a ping after which the other side counts as gone: a machine that lost power closes no connection.
pub(super) const PING_TIMEOUT: Duration = Duration::from_secs(if cfg!(test) { 5 } else { 20 });

/// Path of the first call on a connection.
const FIRST_CALL: &str = "/internal/v1/reach";
/// Stands for the name of a replica of which only the address is known, for the verifier of certificates. Ids of replicas
/// are names of hosts, and never addresses.
const UNNAMED: Ipv4Addr = Ipv4Addr::UNSPECIFIED;

/// The body of a call.
pub type CallBody = UnsyncBoxBody<Bytes, io::Error>;

/// Reason why a call to a replica failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The replica did not answer in time, or did not prove that it is this replica.
    #[error("replica {replica} cannot be reached at {address}: {why}")]
    Unreachable {
        /// Id of the replica.
        replica: ReplicaId,
        /// Host and port that were called.
        address: String,
        /// What went wrong.
        why: String,
        /// Whether the replica may have executed the call. Otherwise it certainly has not.
        may_be_executed: bool,
    },
    /// The replica refused the call.
    #[error("replica {replica} answered {status}: {message}")]
    Refused { replica: ReplicaId, status: u16, message: String },
    #[error("the answer of replica {replica} cannot be read: {why}")]
    Malformed { replica: ReplicaId, why: String },
    /// [`MAX_RELAYED`] requests are relayed.
    #[error("{MAX_RELAYED} requests to other replicas' agents run at this replica; try again")]
    TooMany,
}

/// The failure of a call that was certainly not executed.
pub(super) fn unreachable(to: &Replica, why: String) -> CallError {
    let (replica, address) = (to.id.clone(), to.calls_at.clone());
    CallError::Unreachable { replica, address, why, may_be_executed: false }
}

/// The failure of a call that the other replica may have executed.
pub(super) fn lost(to: &Replica, why: String) -> CallError {
    let (replica, address) = (to.id.clone(), to.calls_at.clone());
    CallError::Unreachable { replica, address, why, may_be_executed: true }
}

/// The id that is verified, if an object names it, and host and port.
type ConnectionKey = (Option<String>, String);

#[derive(Default)]
struct PeerConnection {
    open: Option<SendRequest<CallBody>>,
    /// When it could not be opened last, and why.
    failed: Option<(Instant, String)>,
}

/// The lock is held while the connection is opened.
type KeptConnection = Arc<tokio::sync::Mutex<PeerConnection>>;

/// The connections to all replicas.
pub(super) struct PeerConnections {
    tls: Arc<PeerTls>,
    slots: Mutex<HashMap<ConnectionKey, KeptConnection>>,
}

impl PeerConnections {
    pub(super) fn new(tls: Arc<PeerTls>) -> Self {
        Self { tls, slots: Mutex::default() }
    }

    /// Sends a call to a replica, and waits for the head of its answer. Dropping the future cancels the call.
    pub(super) async fn send(
        &self,
        to: &Replica,
        mut request: Request<CallBody>,
    ) -> Result<Response<Incoming>, CallError> {
        let mut why = String::new();
        for _ in 0..MAX_ATTEMPTS {
            let mut connection = self.connection(to).await.map_err(|why| unreachable(to, why))?;
            let mut error = match connection.try_send_request(request).await {
                Ok(response) => return Ok(response),
                Err(error) => error,
            };
            // Who has the request still has it whole.
            let unsent = error.take_message();
            why = chain(error.error());
            request = unsent.ok_or_else(|| lost(to, why.clone()))?;
        }
        Err(unreachable(to, why))
    }

    async fn connection(&self, to: &Replica) -> Result<SendRequest<CallBody>, String> {
        let name = to.named.then(|| to.id.to_string());
        let slot = self.slot((name.clone(), to.calls_at.clone()));
        let asked_at = Instant::now();
        let mut slot = slot.lock().await;
        if let Some(open) = slot.open.as_ref().filter(|open| !open.is_closed()) {
            return Ok(open.clone());
        }
        // Those that waited meanwhile do not try one after the other.
        if let Some((_, why)) = slot.failed.as_ref().filter(|(at, _)| *at >= asked_at) {
            return Err(why.clone());
        }
        let opening = timeout(CONNECT_TIMEOUT, self.open(name, &to.calls_at)).await;
        let opened = opening.unwrap_or_else(|_| Err(format!("no connection within {CONNECT_TIMEOUT:?}")));
        slot.open = opened.as_ref().ok().cloned();
        slot.failed = opened.as_ref().err().map(|why| (Instant::now(), why.clone()));
        opened
    }

    fn slot(&self, key: ConnectionKey) -> KeptConnection {
        let mut slots = self.slots.lock();
        if !slots.contains_key(&key) {
            // Those of replicas that are gone.
            slots.retain(|_, slot| match slot.try_lock() {
                Ok(slot) => slot.open.as_ref().is_some_and(|open| !open.is_closed()),
                Err(_) => true,
            });
        }
        Arc::clone(slots.entry(key).or_default())
    }

    async fn open(&self, name: Option<String>, address: &str) -> Result<SendRequest<CallBody>, String> {
        let tls = self.tls.current();
        let name = match name {
            Some(name) => ServerName::DnsName(DnsName::try_from(name).map_err(|error| chain(&error))?),
            None => UNNAMED.into(),
        };
        let stream = TcpStream::connect(address).await.map_err(|error| chain(&error))?;
        let _ = stream.set_nodelay(true);
        let connecting = TlsConnector::from(Arc::clone(&tls.client)).connect(name, stream);
        let stream = connecting.await.map_err(|error| chain(&error))?;
        let handshake = builder().handshake(TokioIo::new(stream));
        let (mut sender, connection) = handshake.await.map_err(|error| chain(&error))?;
        let distrusted = tls.distrusted.clone();
        let running = spawn_named("connection to another replica", async move {
            if let Some(Err(error)) = distrusted.run_until_cancelled(connection).await {
                debug!(error = chain(&error), "a connection to another replica ended with an error");
            }
        });
        drop(running.detach());
        // A server judges the client's certificate when the client takes the connection for open already. Once it has answered,
        // it has taken it, and a call that is lost after that may have been executed.
        let first = Request::get(format!("https://{address}{FIRST_CALL}")).body(CallBody::default());
        let first = sender.send_request(first.map_err(|error| chain(&error))?).await;
        first.map_err(|error| chain(&error))?;
        Ok(sender)
    }
}

fn builder() -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(MAX_FRAME_BYTES)
        .max_header_list_size(MAX_HEAD_BYTES)
        .max_send_buf_size(SEND_BUFFER_BYTES)
        .max_concurrent_streams(0)
        .max_concurrent_reset_streams(MAX_PENDING_RESETS)
        .max_local_error_reset_streams(MAX_PENDING_RESETS)
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT)
        .keep_alive_while_idle(true);
    builder
}
