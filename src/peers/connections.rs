//! PeerConnections to other replicas: HTTP/2 over TLS, one for each replica, opened when it is needed. The server's certificate must
//! have the id of the replica, or of any replica where no object names its pod.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use parking_lot::Mutex;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;
use tracing::debug;

use super::http2;
use super::membership::Replica;
use super::tls::PeerTls;
use kubesvc_runtime::shutdown::spawn_named;
use kubesvc_runtime::telemetry::errors::chain;

/// Time limit for a connection to open, with its handshakes: less than a question takes, so that it learns why there is none.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(1500);
/// Number of connections over which a call is tried: one that was open may turn out to be closed.
const MAX_ATTEMPTS: usize = 2;

/// Path of the first call on a connection.
const FIRST_CALL: &str = "/internal/v1/reach";
/// What a replica is called of whom only the address is known.
const UNNAMED: &str = "replica.invalid";

/// The body of a call.
pub type CallBody = UnsyncBoxBody<Bytes, io::Error>;

/// Why there is no answer to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NoAnswer {
    /// The call never left this process.
    NotSent(String),
    /// The other replica may have it.
    Unsure(String),
}

/// The id that is verified, if an object names it, and host and port.
type ConnectionKey = (Option<String>, String);

/// The connection to one replica.
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
    ) -> Result<Response<Incoming>, NoAnswer> {
        let mut why = String::new();
        for _ in 0..MAX_ATTEMPTS {
            let mut connection = self.connection(to).await.map_err(NoAnswer::NotSent)?;
            let mut error = match connection.try_send_request(request).await {
                Ok(response) => return Ok(response),
                Err(error) => error,
            };
            // Who has the request still has it whole.
            let unsent = error.take_message();
            why = chain(error.error());
            request = unsent.ok_or_else(|| NoAnswer::Unsure(why.clone()))?;
        }
        Err(NoAnswer::NotSent(why))
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
        let config = if name.is_some() { &tls.client } else { &tls.client_of_unnamed };
        let name = ServerName::try_from(name.unwrap_or_else(|| UNNAMED.to_owned()));
        let name = name.map_err(|error| chain(&error))?;
        let stream = TcpStream::connect(address).await.map_err(|error| chain(&error))?;
        let _ = stream.set_nodelay(true);
        let connecting = TlsConnector::from(Arc::clone(config)).connect(name, stream);
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
        .initial_stream_window_size(http2::STREAM_WINDOW)
        .initial_connection_window_size(http2::CONNECTION_WINDOW)
        .max_frame_size(http2::MAX_FRAME_BYTES)
        .max_header_list_size(http2::MAX_HEAD_BYTES)
        .max_send_buf_size(http2::SEND_BUFFER_BYTES)
        .max_concurrent_streams(0)
        .max_concurrent_reset_streams(http2::MAX_PENDING_RESETS)
        .max_local_error_reset_streams(http2::MAX_PENDING_RESETS)
        .keep_alive_interval(http2::PING_INTERVAL)
        .keep_alive_timeout(http2::PING_TIMEOUT)
        .keep_alive_while_idle(true);
    builder
}
