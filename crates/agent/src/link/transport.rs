//! The connection to the hub: TCP, TLS if it is set, HTTP/2. A failed one says which setting helps.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::Uri;
use http::uri::Authority;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustls::pki_types::{InvalidDnsNameError, ServerName};
use rustls::{AlertDescription, CertificateError, ClientConfig, Error as TlsError, InvalidMessage};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::transport::{Channel, Endpoint};
use tower::{BoxError, ServiceExt as _, service_fn};

use crate::cluster::TrustError;
use crate::hub_token::{HubService, HubToken, NoTokenError};
use crate::settings::HubConnectionSettings;
use crate::tls::DialTls;
use crate::{AgentError, AgentOptions};

/// Timeout from name resolution to the end of the handshakes.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval between TCP keep-alives of an idle connection.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(60);
/// Maximum size of what the kernel takes and has not sent, in bytes: the frames of the session wait for no more than
/// that behind cached objects, which share the connection.
const MAX_UNSENT_BYTES: u32 = 128 * 1024;
/// The protocol that is offered in the TLS handshake.
const HTTP2: &[u8] = b"h2";
/// First byte of a TLS record with an alert.
const TLS_ALERT: u8 = 0x15;

/// Connects to the hub of the settings.
#[derive(Debug)]
pub(super) struct HubDialer {
    endpoint: Endpoint,
    hub: String,
    /// `None`: the hub is dialled without TLS.
    tls: Option<Arc<DialTls>>,
    /// `None`: no token is sent.
    token: Option<Arc<HubToken>>,
}

/// What the agent shows the hub.
#[derive(Clone, Debug, Default)]
pub struct HubCredentials {
    /// TLS to the hub, with the client certificate if there is one; `None`: the hub is dialled without.
    pub tls: Option<Arc<DialTls>>,
    /// The token of each stream; `None`: there is none.
    pub token: Option<Arc<HubToken>>,
}

/// A connection to the hub.
#[derive(Clone, Debug)]
pub(super) struct HubChannel {
    pub(super) service: HubService,
    /// Number of the client certificate that it shows.
    pub(super) certificate: u64,
    seen: ConnectionLog,
    tls: Option<Arc<DialTls>>,
}

/// Why there is no connection to the hub.
#[derive(Debug, thiserror::Error)]
pub(super) enum DialError {
    #[error("the hub is not dialled without a token")]
    Token(#[from] NoTokenError),
    #[error("clouddriver.tls.cacertFile is not set")]
    Trust(#[source] TrustError),
    #[error("{host:?} of clouddriver.grpc is no name of a certificate; set clouddriver.tls.serverName")]
    Name { host: String, source: InvalidDnsNameError },
    #[error("no connection to the hub {hub}{remedy}")]
    Unreachable {
        hub: String,
        /// What to do, in brackets; empty: nothing is known.
        remedy: String,
        source: tonic::transport::Error,
    },
    #[error("no connection to the hub {hub} within {} s", CONNECT_TIMEOUT.as_secs())]
    Silent { hub: String },
}

impl HubDialer {
    /// Checks the hub's address, and configures everything that HTTP/2 leaves open.
    pub(super) fn new(options: &AgentOptions, credentials: HubCredentials) -> Result<Self, AgentError> {
        let HubCredentials { tls, token } = credentials;
        let HubConnectionSettings { grpc: hub, ping_every, ping_timeout, .. } = &options.settings.hub;
        let wrong = || AgentError::HubAddress { hub: hub.clone() };
        // TLS is the connector's.
        let uri: Uri = format!("http://{hub}").parse().map_err(|_| wrong())?;
        let plain = uri.authority().is_some_and(|authority| authority.as_str() == hub)
            && uri.host().is_some_and(|host| !host.is_empty())
            && uri.port_u16().is_some_and(|port| port != 0)
            && !hub.contains('@');
        if !plain {
            return Err(wrong());
        }
        let endpoint = match tls.as_deref() {
            Some(tls) => Endpoint::from(uri).origin(origin(hub, tls.other_name()).map_err(|_| wrong())?),
            None => Endpoint::from(uri),
        };
        let endpoint = endpoint.user_agent(format!("kubesvc-agent/{}", options.version)).map_err(|_| {
            AgentError::Option { option: "the version", problem: "cannot be sent in a header" }
        })?;
        let endpoint = if ping_every.is_zero() {
            endpoint
        } else {
            endpoint
                .http2_keep_alive_interval(*ping_every)
                .keep_alive_timeout(*ping_timeout)
                .keep_alive_while_idle(true)
        };
        let endpoint = endpoint
            .connect_timeout(CONNECT_TIMEOUT)
            .http2_adaptive_window(false)
            .initial_stream_window_size(8 * 1024 * 1024)
            .initial_connection_window_size(16 * 1024 * 1024)
            .max_frame_size(64 * 1024)
            .http2_header_table_size(4 * 1024)
            .http2_max_header_list_size(64 * 1024)
            .buffer_size(64);
        Ok(Self { endpoint, hub: hub.clone(), tls, token })
    }

    /// Number of the client certificate that a connection shows now; `None` without TLS.
    pub(super) fn certificate(&self) -> Option<watch::Receiver<u64>> {
        self.tls.as_ref().map(|tls| tls.identity())
    }

    /// The token that streams are opened with; `None`: there is none.
    pub(super) fn token(&self) -> Option<&Arc<HubToken>> {
        self.token.as_ref()
    }

    /// Connects. The error is meant for people.
    pub(super) async fn channel(&self) -> Result<HubChannel, DialError> {
        if let Some(token) = &self.token {
            token.prepare().await?;
        }
        let (seen, tls) = (ConnectionLog::default(), self.tls.clone());
        let dialled = timeout(CONNECT_TIMEOUT, self.dial(&seen)).await;
        let (channel, certificate) =
            dialled.unwrap_or_else(|_| Err(DialError::Silent { hub: self.hub.clone() }))?;
        Ok(HubChannel { service: HubService::new(channel, self.token.clone()), certificate, seen, tls })
    }

    async fn dial(&self, seen: &ConnectionLog) -> Result<(Channel, u64), DialError> {
        let (tls, identity) = match &self.tls {
            None => (None, 0),
            Some(tls) => {
                // Before the configuration, so that a change in between is noticed.
                let identity = *tls.identity().borrow();
                let host = self.endpoint.uri().host().unwrap_or_default();
                let name = tls
                    .server_name(host)
                    .map_err(|source| DialError::Name { host: host.to_owned(), source })?;
                let config = tls.config(HTTP2).await.map_err(DialError::Trust)?;
                (Some((Arc::new(config), name)), identity)
            }
        };
        let (tcp, log) = (tcp_connector(), seen.clone());
        let connector = service_fn(move |uri: Uri| {
            let (tcp, tls, log) = (tcp.clone(), tls.clone(), log.clone());
            async move {
                let stream: TokioIo<TcpStream> = tcp.oneshot(uri).await?;
                let stream = stream.into_inner();
                bound_unsent(&stream);
                let stream = HubStream::open(stream, tls, log).await?;
                Ok::<_, BoxError>(TokioIo::new(stream))
            }
        });
        let connected = self.endpoint.connect_with_connector(connector).await;
        let channel = connected.map_err(|source| {
            let remedy = seen.remedy(self.tls.as_deref());
            let remedy = remedy.map(|remedy| format!(" ({remedy})")).unwrap_or_default();
            DialError::Unreachable { hub: self.hub.clone(), remedy, source }
        })?;
        Ok((channel, identity))
    }
}

impl HubChannel {
    /// Number of the token that a stream is opened with now; 0: none.
    pub(super) fn token_number(&self) -> u64 {
        self.service.token().map_or(0, |token| *token.number().borrow())
    }

    /// Whether the connection shows a client certificate.
    pub(super) fn shows_certificate(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.shows_certificate())
    }

    /// A problem of the connection, with the setting that helps, if one does.
    pub(super) fn explained(&self, problem: String) -> String {
        match self.seen.remedy(self.tls.as_deref()) {
            Some(remedy) => format!("{problem} ({remedy})"),
            None => problem,
        }
    }
}

/// What requests name as their server. As in gRPC elsewhere, the other name replaces host and port.
fn origin(hub: &str, other_name: Option<&str>) -> Result<Uri, http::Error> {
    let authority = match other_name {
        Some(name) if name.contains(':') => format!("[{name}]"),
        Some(name) => name.to_owned(),
        None => hub.to_owned(),
    };
    let authority: Authority = authority.parse()?;
    Uri::builder().scheme("https").authority(authority).path_and_query("/").build()
}

/// Opens TCP connections.
fn tcp_connector() -> HttpConnector {
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    connector.set_keepalive(Some(KEEP_ALIVE_INTERVAL));
    connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
    connector
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

/// The first thing that a connection showed about why it cannot be used.
#[derive(Clone, Debug, Default)]
struct ConnectionLog(Arc<Mutex<Option<DialFinding>>>);

#[derive(Clone, Debug)]
enum DialFinding {
    /// The hub has sent bytes of HTTP/2.
    Answered,
    /// TLS failed.
    Tls(TlsError),
    /// A hub that is dialled without TLS answers with a record of TLS.
    WantsTls,
    /// The hub answers in HTTP/1.1.
    Http1,
    /// The connection ended before the hub had said anything.
    Closed,
}

impl ConnectionLog {
    /// Records what was found, unless more is known already.
    fn note(&self, finding: DialFinding) {
        let mut found = self.0.lock();
        let counts = match (&*found, &finding) {
            (None, _) => true,
            (Some(DialFinding::Closed), _) | (Some(DialFinding::Answered), DialFinding::Tls(_)) => true,
            (Some(_), _) => false,
        };
        if counts {
            *found = Some(finding);
        }
    }

    fn note_error(&self, error: &io::Error) {
        match error.get_ref().and_then(|inner| inner.downcast_ref::<TlsError>()) {
            Some(error) => self.note(DialFinding::Tls(error.clone())),
            None => self.note(DialFinding::Closed),
        }
    }

    /// What to do about the connection, if that is known.
    fn remedy(&self, tls: Option<&DialTls>) -> Option<String> {
        let found = self.0.lock().clone();
        found.and_then(|found| remedy(&found, tls))
    }
}

/// What to do about a connection on which this was found.
fn remedy(found: &DialFinding, tls: Option<&DialTls>) -> Option<String> {
    let error = match (found, tls) {
        (DialFinding::WantsTls, _) => {
            return Some("the hub wants TLS: set clouddriver.insecure: false".to_owned());
        }
        (DialFinding::Http1, None) => {
            let text = "it answers in HTTP/1.1: is this the address of a hub, and if it wants TLS, is \
                        clouddriver.insecure false?";
            return Some(text.to_owned());
        }
        (DialFinding::Closed, None) => {
            return Some("if the hub wants TLS, set clouddriver.insecure: false".to_owned());
        }
        (DialFinding::Closed, Some(_)) => {
            return Some("if the hub speaks no TLS, set clouddriver.insecure: true".to_owned());
        }
        (DialFinding::Tls(error), Some(tls)) => (error, tls),
        (DialFinding::Answered | DialFinding::Http1 | DialFinding::Tls(_), _) => return None,
    };
    match error {
        (TlsError::InvalidMessage(InvalidMessage::InvalidContentType), _) => {
            Some("the hub speaks no TLS: set clouddriver.insecure: true, or have it speak TLS".to_owned())
        }
        (TlsError::InvalidCertificate(problem), tls) => remedy_of_certificate(problem, tls),
        (TlsError::AlertReceived(alert), tls) => remedy_of_alert(*alert, tls),
        _ => None,
    }
}

/// What to do about the hub's certificate.
fn remedy_of_certificate(problem: &CertificateError, tls: &DialTls) -> Option<String> {
    match problem {
        // The second one: another authority of the same name has signed it.
        CertificateError::UnknownIssuer | CertificateError::BadSignature if tls.has_authorities() => Some(
            "no authority in clouddriver.tls.cacertFile has signed the hub's certificate: add the one that has"
                .to_owned(),
        ),
        CertificateError::UnknownIssuer | CertificateError::BadSignature => Some(
            "no authority that the machine trusts has signed the hub's certificate: set clouddriver.tls.cacertFile to \
             the one that has"
                .to_owned(),
        ),
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => Some(
            "the hub's certificate has other names: set clouddriver.tls.serverName to one of them".to_owned(),
        ),
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            Some("the hub's certificate has expired: have it renewed".to_owned())
        }
        _ => None,
    }
}

/// What to do about an alert of the hub.
pub(super) fn remedy_of_alert(alert: AlertDescription, tls: &DialTls) -> Option<String> {
    use AlertDescription as Alert;
    const CERTIFICATE: &str = "clouddriver.tls.clientCertFile";
    Some(match alert {
        Alert::CertificateRequired | Alert::NoCertificate => {
            format!("the hub wants a certificate of the agent: set {CERTIFICATE}")
        }
        Alert::HandshakeFailure if !tls.shows_certificate() => {
            format!("if the hub wants a certificate of the agent, set {CERTIFICATE}")
        }
        Alert::UnknownCA => {
            format!(
                "the hub does not trust the authority of the agent's certificate ({CERTIFICATE}): have one issued by \
                     an authority that it trusts"
            )
        }
        Alert::CertificateExpired => {
            format!("the hub refuses the agent's certificate ({CERTIFICATE}) as expired: have it renewed")
        }
        Alert::CertificateRevoked => {
            format!(
                "the hub refuses the agent's certificate ({CERTIFICATE}) as revoked: have another one issued"
            )
        }
        Alert::BadCertificate
        | Alert::UnsupportedCertificate
        | Alert::CertificateUnknown
        | Alert::AccessDenied
        | Alert::DecryptError => {
            format!("the hub refuses the agent's certificate ({CERTIFICATE}); its log says why")
        }
        Alert::UnrecognisedName => {
            "the hub does not know the name that it is called by: set clouddriver.tls.serverName".to_owned()
        }
        _ => return None,
    })
}

/// The bytes of a connection to the hub.
#[derive(Debug)]
struct HubStream {
    transport: Transport,
    seen: ConnectionLog,
    has_read: bool,
}

#[derive(Debug)]
enum Transport {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl HubStream {
    /// Shakes hands, if there is TLS.
    async fn open(
        stream: TcpStream,
        tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
        seen: ConnectionLog,
    ) -> io::Result<Self> {
        let transport = match tls {
            None => Transport::Plain(stream),
            Some((config, name)) => {
                let connected = TlsConnector::from(config).connect(name, stream).await;
                Transport::Tls(Box::new(connected.inspect_err(|error| seen.note_error(error))?))
            }
        };
        Ok(Self { transport, seen, has_read: false })
    }

    /// Records what the first bytes are.
    fn note_first(&mut self, bytes: &[u8]) {
        self.has_read = true;
        let is_plain = matches!(self.transport, Transport::Plain(_));
        self.seen.note(match bytes {
            [] => DialFinding::Closed,
            [TLS_ALERT, ..] if is_plain => DialFinding::WantsTls,
            bytes if bytes.starts_with(b"HTTP/1") => DialFinding::Http1,
            _ => DialFinding::Answered,
        });
    }

    /// Records why a write failed. The hub may have said why it closed the connection.
    fn note_failed_write<T>(&mut self, written: &io::Result<T>, context: &mut Context<'_>) {
        let Err(error) = written else { return };
        if let Transport::Tls(stream) = &mut self.transport {
            let mut bytes = [0; 1];
            if let Poll::Ready(Err(said)) = Pin::new(stream).poll_read(context, &mut ReadBuf::new(&mut bytes))
            {
                self.seen.note_error(&said);
            }
        }
        self.seen.note_error(error);
    }
}

impl AsyncRead for HubStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = ready!(match &mut self.transport {
            Transport::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Transport::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
        });
        match &read {
            Ok(()) if !self.has_read => self.note_first(&buffer.filled()[before..]),
            Ok(()) => {}
            Err(error) => self.seen.note_error(error),
        }
        Poll::Ready(read)
    }
}

impl AsyncWrite for HubStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(match &mut self.transport {
            Transport::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Transport::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        });
        self.note_failed_write(&written, context);
        Poll::Ready(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(match &mut self.transport {
            Transport::Plain(stream) => Pin::new(stream).poll_write_vectored(context, slices),
            Transport::Tls(stream) => Pin::new(stream).poll_write_vectored(context, slices),
        });
        self.note_failed_write(&written, context);
        Poll::Ready(written)
    }

    fn is_write_vectored(&self) -> bool {
        match &self.transport {
            Transport::Plain(stream) => stream.is_write_vectored(),
            Transport::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = ready!(match &mut self.transport {
            Transport::Plain(stream) => Pin::new(stream).poll_flush(context),
            Transport::Tls(stream) => Pin::new(stream).poll_flush(context),
        });
        self.note_failed_write(&flushed, context);
        Poll::Ready(flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.transport {
            Transport::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Transport::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn socket_takes_little_that_is_not_sent() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let uri: Uri = format!("http://{address}").parse().expect("a URI");
        let stream = tcp_connector().oneshot(uri).await.expect("a connection");
        bound_unsent(stream.inner());
        let socket = socket2::SockRef::from(stream.inner());
        assert_eq!(socket.tcp_notsent_lowat().expect("the option"), MAX_UNSENT_BYTES);
        assert!(socket.tcp_nodelay().expect("the option"));
    }
}
