//! The first steps of a connection: the TLS handshake, if the port has TLS, and the protocol. Then tonic gets it. Each step has
//! a time limit, and ends when too many others wait.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio_util::either::Either;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::connection::{AgentConnection, AgentTransport};
use super::listener::ConnectionPolicy;
use super::live_clients::LiveClient;
use super::protocol::{DetectedProtocol, TLS_RECORD, answer_http1, detect_protocol, read_out};
use kubesvc_runtime::listen::connection_limits::{AddressSlot, ClientAddress};
use kubesvc_runtime::listen::connection_phase::ConnectionPhase;
use kubesvc_runtime::shutdown::spawn_named;
use kubesvc_runtime::tls::handshake_errors::problem_of_handshake;

/// Time limit for a client to read the last bytes that it gets.
const READ_OUT_TIMEOUT: Duration = Duration::from_secs(2);
/// Reason for which a connection is closed whose TLS handshake fails, or does not end.
pub(super) const HANDSHAKE: &str = "handshake";

/// A connection that was accepted, within the bounds.
pub(super) struct NewConnection {
    pub(super) policy: Arc<ConnectionPolicy>,
    pub(super) peer: SocketAddr,
    pub(super) phase: ConnectionPhase,
    /// Closes this connection.
    pub(super) close: CancellationToken,
    /// Ends the steps when the port closes.
    pub(super) stop: CancellationToken,
    pub(super) permits: (OwnedSemaphorePermit, AddressSlot),
}

impl NewConnection {
    /// Takes all steps, and hands the connection on if it speaks HTTP/2.
    pub(super) async fn open(self, stream: TcpStream, ready: mpsc::Sender<io::Result<AgentConnection>>) {
        let Some((mut stream, client)) = self.transport(stream).await else { return };
        let mut peeked = Vec::new();
        let spoken = self.step("silent", detect_protocol(&mut stream, &mut peeked)).await;
        match spoken {
            None => {}
            Some(Ok(DetectedProtocol::Http2)) => {
                let caller = self.caller();
                let Self { policy, peer, phase, close, permits, .. } = self;
                phase.expect_head(policy.settings.request_wait);
                let phase = Arc::new(phase);
                let watched = Arc::clone(&policy).watch_over(Arc::clone(&phase), close.clone(), caller);
                let connection = AgentConnection::new(stream, peeked, client, peer, phase, close, permits);
                // Fails only while the hub stops.
                let _ = ready.send(Ok(connection)).await;
                // Lives as long as the connection, which outlives the hub's sessions while it stops.
                drop(spawn_named("streams of a connection", watched).detach());
            }
            Some(Ok(other)) => self.reject(other, stream).await,
            Some(Err(problem)) => self.broke(&problem),
        }
    }

    fn caller(&self) -> ClientAddress {
        ClientAddress::of(self.peer.ip())
    }

    /// Takes a step; `None` if the connection must be closed before its end. `late` is the reason where it takes too long.
    async fn step<T>(&self, late: &'static str, step: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            () = self.stop.cancelled() => None,
            () = self.close.cancelled() => None,
            why = self.phase.overdue() => {
                self.policy.closed(why, late, self.caller());
                None
            }
            done = step => Some(done),
        }
    }

    /// The stream that carries HTTP/2: after the handshake, if the port has TLS.
    async fn transport(&self, stream: TcpStream) -> Option<(AgentTransport, LiveClient)> {
        let Some(clients) = &self.policy.clients else {
            return Some((Either::Left(stream), LiveClient::default()));
        };
        let mut first = [0];
        let peeked = self.step("silent", stream.peek(&mut first)).await?;
        match peeked {
            Ok(1..) if first[0] == TLS_RECORD => {}
            Ok(_) => {
                self.turn_away(stream).await;
                return None;
            }
            Err(problem) => {
                self.broke(&problem);
                return None;
            }
        }
        let trust = clients.trust();
        let accepted = self.step(HANDSHAKE, clients.tls().accept_or_return(stream)).await?;
        match accepted {
            Ok(stream) => {
                self.phase.expect_head(self.policy.settings.preface_wait);
                let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
                let client = clients.enter(chain, self.peer, &self.close, &trust);
                Some((Either::Right(Box::new(stream)), client))
            }
            Err((problem, stream)) => {
                self.handshake_failed(&problem, stream).await;
                None
            }
        }
    }

    async fn handshake_failed(&self, problem: &io::Error, mut stream: TcpStream) {
        if self.refused(HANDSHAKE) {
            let why = problem_of_handshake(problem);
            warn!(peer = %self.peer, "connection closed: the TLS handshake failed: {why}");
        }
        // The client reads the alert.
        let reads = tokio::time::timeout(READ_OUT_TIMEOUT, read_out(&mut stream));
        let _ = self.step(HANDSHAKE, reads).await;
    }

    /// Closes a connection to a port with TLS that does not begin with a handshake.
    async fn turn_away(&self, mut stream: TcpStream) {
        let mut peeked = Vec::new();
        match self.step("silent", detect_protocol(&mut stream, &mut peeked)).await {
            None => {}
            Some(Ok(spoken @ (DetectedProtocol::Http1 | DetectedProtocol::Http2))) => {
                if self.refused("plaintext") {
                    warn!(
                        peer = %self.peer,
                        "connection closed: it speaks plain text, and this port has TLS alone \
                         (kubesvc.grpc.server.security); set clouddriver.tls in the agent's settings"
                    );
                }
                if spoken == DetectedProtocol::Http1 {
                    let sentence = self.sentence("gRPC over HTTP/2 with TLS");
                    let answered =
                        tokio::time::timeout(READ_OUT_TIMEOUT, answer_http1(&mut stream, &sentence));
                    let _ = self.step("plaintext", answered).await;
                }
            }
            Some(Ok(_)) => self.not_http2(),
            Some(Err(problem)) => self.broke(&problem),
        }
    }

    /// Closes a connection that does not speak HTTP/2.
    async fn reject(&self, spoken: DetectedProtocol, mut stream: AgentTransport) {
        match spoken {
            DetectedProtocol::Http1 => {
                self.policy.metrics.refuse_connection("http1");
                let sentence = self.sentence("gRPC over HTTP/2");
                // A client that does not read the answer is closed without it.
                let answered = tokio::time::timeout(READ_OUT_TIMEOUT, answer_http1(&mut stream, &sentence));
                let _ = self.step("http1", answered).await;
            }
            DetectedProtocol::Tls if self.policy.clients.is_none() => {
                if self.refused("tls") {
                    warn!(
                        peer = %self.peer,
                        "connection closed: it speaks TLS, and TLS is not configured here; \
                         set clouddriver.insecure: true in the agent's settings, or \
                         kubesvc.grpc.server.security for the hub"
                    );
                }
            }
            _ => self.not_http2(),
        }
    }

    fn sentence(&self, spoken: &str) -> String {
        let place = self.policy.settings.rest_port.map(|port| format!("; REST is on port {port}"));
        format!("this port speaks {spoken}{}\n", place.unwrap_or_default())
    }

    /// Counts a connection that is closed for this reason. Returns whether a line may be logged.
    fn refused(&self, reason: &'static str) -> bool {
        self.policy.metrics.refuse_connection(reason);
        self.policy.log_limit.may_log(reason, self.caller())
    }

    fn not_http2(&self) {
        self.policy.metrics.refuse_connection("other");
        debug!(peer = %self.peer, "connection closed: it does not speak HTTP/2");
    }

    fn broke(&self, problem: &io::Error) {
        self.policy.metrics.refuse_connection("io");
        debug!(peer = %self.peer, error = %problem, "connection broke before it spoke");
    }
}
