//! From the hub's address to a stream that the hub has accepted: an HTTP/2 connection, then Hello, then Accepted or
//! Refused.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use http::Uri;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use prost::Message;
use rustls::client::danger::ServerCertVerifier;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, ClientTlsConfig, Endpoint};
use tonic::{Code, Status, Streaming};
use tower::{Service, ServiceExt as _};

use crate::caching::{HubConnection, StreamIdentity};
use crate::cluster::{Trust, TrustError, system_verifier};
use crate::link::LinkEnd;
use crate::settings::HubConnectionSettings;
use crate::{AgentError, AgentOptions};
use kubesvc_core::AgentId;
use kubesvc_core::failure::truncate;
use kubesvc_core::requests;
use kubesvc_core::wire::ops::{
    Accepted, AgentFrame, HeldAccount, Hello, HubFrame, KubernetesPlace, agent_frame, hub_frame,
};
use kubesvc_core::wire::{
    MAX_HELD_BYTES, MAX_MESSAGE_BYTES, MESSAGE_HEAD_BYTES, PROTOCOL_VERSION, REFUSALS_CAPABILITY,
};
use kubesvc_runtime::grpc::ops::operations_client::OperationsClient;
use kubesvc_runtime::telemetry::errors::chain;

/// Timeout from name resolution to the end of the handshakes.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout for the hub's answer to the hello.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of frames queued for the network; further ones wait at their source.
const MAX_QUEUED_FRAMES: usize = 16;

/// Configures the connection to the hub, including everything that HTTP/2 leaves open.
pub(super) fn endpoint(options: &AgentOptions) -> Result<Endpoint, AgentError> {
    let HubConnectionSettings { grpc: hub, insecure, ping_every, ping_timeout, .. } = &options.settings.hub;
    let wrong = || AgentError::HubAddress { hub: hub.clone() };
    let scheme = if *insecure { "http" } else { "https" };
    let uri: Uri = format!("{scheme}://{hub}").parse().map_err(|_| wrong())?;
    let plain = uri.authority().is_some_and(|authority| authority.as_str() == hub)
        && uri.host().is_some_and(|host| !host.is_empty())
        && uri.port_u16().is_some_and(|port| port != 0)
        && !hub.contains('@');
    if !plain {
        return Err(wrong());
    }
    let endpoint = Endpoint::from(uri)
        .user_agent(format!("kubesvc-agent/{}", options.version))
        .map_err(|_| AgentError::Option { option: "the version", problem: "cannot be sent in a header" })?;
    let endpoint = if ping_every.is_zero() {
        endpoint
    } else {
        endpoint
            .http2_keep_alive_interval(*ping_every)
            .keep_alive_timeout(*ping_timeout)
            .keep_alive_while_idle(true)
    };
    Ok(endpoint
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_adaptive_window(false)
        .initial_stream_window_size(8 * 1024 * 1024)
        .initial_connection_window_size(16 * 1024 * 1024)
        .max_frame_size(64 * 1024)
        .http2_header_table_size(4 * 1024)
        .http2_max_header_list_size(64 * 1024)
        .buffer_size(64))
}

/// Why there is no connection to the hub.
#[derive(Debug, thiserror::Error)]
pub(super) enum DialError {
    #[error(transparent)]
    Trust(#[from] TrustError),
    #[error("TLS to the hub {hub} cannot be set up")]
    Tls { hub: String, source: tonic::transport::Error },
    #[error("no connection to the hub {hub}")]
    Unreachable { hub: String, source: tonic::transport::Error },
    #[error("no connection to the hub {hub} within {} s", CONNECT_TIMEOUT.as_secs())]
    Silent { hub: String },
}

/// Connects. The error is meant for people.
pub(super) async fn channel(
    endpoint: &Endpoint,
    HubConnectionSettings { grpc: hub, insecure, .. }: &HubConnectionSettings,
) -> Result<Channel, DialError> {
    if *insecure {
        return connect(endpoint, hub).await;
    }
    // Read for each connection, so that an updated set of authorities needs no restart.
    let verifier = system_verifier(Trust::default()).await?;
    connect(&with_tls(endpoint, hub, verifier)?, hub).await
}

fn with_tls(
    endpoint: &Endpoint,
    hub: &str,
    verifier: Arc<dyn ServerCertVerifier>,
) -> Result<Endpoint, DialError> {
    endpoint
        .clone()
        .tls_config_with_verifier(ClientTlsConfig::new(), verifier)
        .map_err(|source| DialError::Tls { hub: hub.to_owned(), source })
}

async fn connect(endpoint: &Endpoint, hub: &str) -> Result<Channel, DialError> {
    match timeout(CONNECT_TIMEOUT, endpoint.connect_with_connector(connector(CONNECT_TIMEOUT))).await {
        Ok(Ok(channel)) => Ok(channel),
        Ok(Err(source)) => Err(DialError::Unreachable { hub: hub.to_owned(), source }),
        Err(_) => Err(DialError::Silent { hub: hub.to_owned() }),
    }
}

/// What is needed to stream objects, with compressed bodies.
pub(super) const CACHING_CAPABILITIES: [&str; 2] = ["caching/1", "zstd/1"];
/// What this agent can do. The hub answers with what of it is used.
const CAPABILITIES: [&str; 4] =
    [CACHING_CAPABILITIES[0], CACHING_CAPABILITIES[1], requests::CAPABILITY, REFUSALS_CAPABILITY];

/// A stream that the hub has accepted.
#[derive(Debug)]
pub(super) struct AcceptedStream {
    pub(super) accepted: Accepted,
    /// The connection, for further streams.
    pub(super) channel: Channel,
    pub(super) outbound: mpsc::Sender<AgentFrame>,
    pub(super) inbound: Streaming<HubFrame>,
}

impl AcceptedStream {
    fn uses(&self, capability: &str) -> bool {
        self.accepted.capabilities.iter().any(|used| used == capability)
    }

    /// Whether this hub hears that a cluster refuses the credential of a held account.
    pub(super) fn hears_refusals(&self) -> bool {
        self.uses(REFUSALS_CAPABILITY)
    }

    /// The connection for further streams to a hub that takes messages of `max_message_bytes`; `None` if it does not use
    /// all of these capabilities.
    pub(super) fn connection(
        &self,
        capabilities: &[&str],
        (agent_id, boot_id): (&AgentId, &str),
        max_message_bytes: usize,
    ) -> Option<HubConnection> {
        capabilities.iter().all(|one| self.uses(one)).then(|| HubConnection {
            channel: self.channel.clone(),
            identity: StreamIdentity {
                session_id: self.accepted.session_id.clone(),
                agent_id: agent_id.to_string(),
                boot_id: boot_id.to_owned(),
                replica_id: self.accepted.replica_id.clone(),
                max_message_bytes,
            },
        })
    }
}

/// Builds the hello, for a hub that accepts messages of `max_bytes`. Held accounts that do not fit are left
/// out.
pub(super) fn hello(
    options: &AgentOptions,
    boot_id: &str,
    connect_seq: u64,
    max_bytes: usize,
    held: impl Iterator<Item = HeldAccount>,
) -> Hello {
    let mut free_bytes = MAX_HELD_BYTES.min(max_bytes.saturating_sub(MESSAGE_HEAD_BYTES));
    let accounts_held = held
        .take_while(|held| {
            let left = free_bytes.checked_sub(held.encoded_len() + 8);
            free_bytes = left.unwrap_or_default();
            left.is_some()
        })
        .collect();
    let place = options.place.clone();
    Hello {
        agent_id: options.agent_id.to_string(),
        boot_id: boot_id.to_owned(),
        connect_seq,
        zone_id: options.zone_id.clone(),
        version: options.version.clone(),
        protocol_min: PROTOCOL_VERSION,
        protocol_max: PROTOCOL_VERSION,
        capabilities: CAPABILITIES.map(str::to_owned).into(),
        accounts_held,
        kube: place.map(|(namespace, pod)| KubernetesPlace { namespace, pod }),
        max_message_bytes: u32::try_from(MAX_MESSAGE_BYTES).unwrap_or(u32::MAX),
        cluster_uid: String::new(),
    }
}

/// Opens the stream, sends the hello, and waits for the answer.
pub(super) async fn greet(channel: Channel, hello: Hello) -> Result<AcceptedStream, LinkEnd> {
    match timeout(HELLO_TIMEOUT, open(channel, hello)).await {
        Ok(result) => result,
        Err(_) => Err(LinkEnd::Broken(format!(
            "the hub did not answer the hello within {} s",
            HELLO_TIMEOUT.as_secs()
        ))),
    }
}

async fn open(channel: Channel, hello: Hello) -> Result<AcceptedStream, LinkEnd> {
    let mut client = OperationsClient::new(channel.clone())
        .max_decoding_message_size(MAX_MESSAGE_BYTES)
        .max_encoding_message_size(MAX_MESSAGE_BYTES);
    let (outbound, frames) = mpsc::channel(MAX_QUEUED_FRAMES);
    let first = AgentFrame { seq: 1, ack: 0, frame: Some(agent_frame::Frame::Hello(hello)) };
    // The queue is new, so there is room. The hub may wait for the hello before it answers the call at all.
    let _ = outbound.try_send(first);
    let response = client.get_ops(ReceiverStream::new(frames)).await.map_err(|status| broken(&status))?;
    let mut inbound = response.into_inner();
    let first = inbound.message().await.map_err(|status| broken(&status))?;
    match first.and_then(|frame| frame.frame) {
        Some(hub_frame::Frame::Accepted(accepted)) => {
            Ok(AcceptedStream { accepted, channel, outbound, inbound })
        }
        Some(hub_frame::Frame::Refused(refused)) => Err(LinkEnd::Refused(refused)),
        Some(_) => Err(LinkEnd::Broken("the hub's first frame is neither Accepted nor Refused".to_owned())),
        None => Err(LinkEnd::Broken("the hub closed the stream without an answer to the hello".to_owned())),
    }
}

/// The end of a stream with an error.
pub(super) fn broken(status: &Status) -> LinkEnd {
    let remedy = match status.code() {
        Code::Unimplemented => " (is this the address of a kubesvc hub?)",
        Code::Unauthenticated | Code::PermissionDenied => {
            " (does the hub, or a proxy before it, want a certificate?)"
        }
        _ => "",
    };
    let text = if status.message().is_empty() { chain(status) } else { status.message().to_owned() };
    LinkEnd::Broken(format!("the stream to the hub broke: {:?}: {}{remedy}", status.code(), shown(&text)))
}

/// A text from the hub, made safe for a log line.
pub(super) fn shown(text: &str) -> String {
    let mut text: String = text.chars().filter(|letter| !letter.is_control()).collect();
    truncate(&mut text, 512);
    text
}

/// Interval between TCP keep-alives of an idle connection.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(60);
/// Maximum size of what the kernel takes and has not sent, in bytes: the frames of the session wait for no more than
/// that behind cached objects, which share the connection.
const MAX_UNSENT_BYTES: u32 = 128 * 1024;

/// Opens TCP connections to a hub.
fn connector(
    connect_timeout: Duration,
) -> impl Service<Uri, Response = TokioIo<TcpStream>, Error: Error + Send + Sync + 'static, Future: Send>
+ Send
+ 'static {
    let mut connector = HttpConnector::new();
    // The scheme is the session's, plain or TLS.
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector.set_keepalive(Some(KEEP_ALIVE_INTERVAL));
    connector.set_connect_timeout(Some(connect_timeout));
    connector.map_response(|stream: TokioIo<TcpStream>| {
        bound_unsent(stream.inner());
        stream
    })
}

#[cfg(target_os = "linux")]
fn bound_unsent(stream: &TcpStream) {
    if let Err(error) = socket2::SockRef::from(stream).set_tcp_notsent_lowat(MAX_UNSENT_BYTES) {
        tracing::debug!(%error, "cannot bound what the kernel takes of the connection to the hub");
    }
}

/// Elsewhere, the kernel decides.
#[cfg(not(target_os = "linux"))]
fn bound_unsent(_: &TcpStream) {}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;
    use tokio_stream::wrappers::TcpListenerStream;
    use tonic::transport::{Identity, Server, ServerTlsConfig};

    use super::*;
    use crate::cluster::tests::test_server::Authority;

    #[tokio::test]
    async fn tls_to_the_hub_verifies_its_certificate() {
        let authority = Authority::new();
        let (certificate, key) = authority.server();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let hub = listener.local_addr().expect("an address").to_string();
        let (_health, service) = tonic_health::server::health_reporter();
        tokio::spawn(async move {
            let identity = Identity::from_pem(certificate.pem(), key.serialize_pem());
            Server::builder()
                .tls_config(ServerTlsConfig::new().identity(identity))
                .expect("TLS")
                .add_service(service)
                .serve_with_incoming(TcpListenerStream::new(listener))
                .await
        });
        let mut options = AgentOptions::of_test(hub.clone());
        options.settings.hub.insecure = false;
        let endpoint = endpoint(&options).expect("an endpoint");
        let dial = async |authority: &Authority| {
            let verifier = Trust::default().authority(&authority.pem()).expect("a verifier");
            connect(&with_tls(&endpoint, &hub, verifier).expect("TLS"), &hub).await
        };
        dial(&authority).await.expect("a connection");
        let error = chain(&dial(&Authority::new()).await.expect_err("a certificate that is not trusted"));
        assert!(error.contains(&hub) && error.contains("invalid peer certificate"), "{error}");
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn socket_takes_little_that_is_not_sent() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let uri: Uri = format!("http://{address}").parse().expect("a URI");
        let connecting = connector(Duration::from_secs(5)).oneshot(uri);
        let stream = connecting.await.expect("a connection");
        let socket = socket2::SockRef::from(stream.inner());
        assert_eq!(socket.tcp_notsent_lowat().expect("the option"), MAX_UNSENT_BYTES);
        assert!(socket.tcp_nodelay().expect("the option"));
    }
}
