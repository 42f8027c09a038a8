//! The limits on real sockets. Timeouts are short, and tests wait for connections to end.

use std::sync::atomic::{AtomicUsize, Ordering};

use axum::extract::Extension;
use axum::routing::get;
use rcgen::ExtendedKeyUsagePurpose::ClientAuth as ForClients;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use std::net::SocketAddr;
use std::time::Duration;

use super::*;
use crate::listen::connection_limits::AddressLimits;
use crate::listen::connection_phase::ConnectionDeadlines;
use crate::tls::clients::ClientAuth;
use crate::tls::server::tests::{Authority, Place};

const ASK: &[u8] = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
/// Longer than any test.
const NEVER: Duration = Duration::from_secs(3600);

fn limits() -> HttpLimits {
    HttpLimits {
        port: PortLimits {
            connections: 8,
            reserved: 0,
            addresses: AddressLimits::default(),
            deadlines: ConnectionDeadlines { head: NEVER, idle: NEVER },
            grace: Duration::from_secs(5),
        },
        head_bytes: 8 * 1024,
        refused_head: || r#"{"status":431}"#.to_owned(),
    }
}

/// Those limits with a change of the port's.
fn but(change: impl FnOnce(&mut PortLimits)) -> HttpLimits {
    let mut limits = limits();
    change(&mut limits.port);
    limits
}

struct Serving {
    address: SocketAddr,
    stop: CancellationToken,
    task: tokio::task::JoinHandle<()>,
    metrics: HttpMetrics,
}

impl Serving {
    async fn start(limits: HttpLimits) -> Self {
        Self::with(limits, Router::new().route("/", get(async || "well\n"))).await
    }

    async fn with(limits: HttpLimits, router: Router) -> Self {
        Self::over(None, limits, router).await
    }

    async fn over(tls: Option<Arc<ServerTls>>, limits: HttpLimits, router: Router) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let (stop, metrics) = (CancellationToken::new(), HttpMetrics::default());
        let server = HttpServer::new("test", limits, metrics.clone());
        let task = tokio::spawn(server.serve(listener, tls, router, stop.clone()));
        Self { address, stop, task, metrics }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.expect("a connection")
    }

    fn closed(&self, reason: &'static str) -> u64 {
        self.metrics.closed("test", reason)
    }
}

/// Sends one request and keeps the connection open.
async fn ask(stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) {
    stream.write_all(ASK).await.expect("sent");
    let mut answer = Vec::new();
    while !answer.ends_with(b"well\n") {
        assert_ne!(stream.read_buf(&mut answer).await.expect("an answer"), 0, "it was cut off");
    }
    assert!(answer.starts_with(b"HTTP/1.1 200 OK"), "{}", String::from_utf8_lossy(&answer));
    assert!(String::from_utf8_lossy(&answer).contains("content-length: 5"));
}

/// Reads until the peer closes the connection.
async fn ends(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let mut rest = Vec::new();
    // A connection closed with unread bytes may end in a reset.
    let _ = stream.read_to_end(&mut rest).await;
    String::from_utf8_lossy(&rest).into_owned()
}

#[tokio::test]
async fn probe_is_answered_while_silent_connections_fill_the_port() {
    let serving = Serving::start(limits()).await;
    let mut busy = serving.connect().await;
    ask(&mut busy).await;
    let mut silent = Vec::new();
    for _ in 0..40 {
        silent.push(serving.connect().await);
    }
    for _ in 0..3 {
        ask(&mut serving.connect().await).await;
    }
    ends(&mut silent[0]).await;
    assert!(serving.closed("displaced") >= 33, "{}", serving.closed("displaced"));
    assert_eq!(serving.closed("cap"), 0);
}

#[tokio::test]
async fn connection_beyond_the_limit_is_closed() {
    let (began, go) = (Arc::new(AtomicUsize::new(0)), CancellationToken::new());
    let (counted, wait) = (Arc::clone(&began), go.clone());
    let slow = get(move || {
        let (began, go) = (Arc::clone(&counted), wait.clone());
        async move {
            began.fetch_add(1, Ordering::SeqCst);
            go.cancelled().await;
            "well\n"
        }
    });
    let serving = Serving::with(but(|port| port.connections = 2), Router::new().route("/", slow)).await;
    let mut running = Vec::new();
    for _ in 0..2 {
        let mut stream = serving.connect().await;
        stream.write_all(ASK).await.expect("sent");
        running.push(stream);
    }
    while began.load(Ordering::SeqCst) < 2 {
        tokio::task::yield_now().await;
    }
    assert_eq!(ends(&mut serving.connect().await).await, "");
    assert_eq!(serving.closed("cap"), 1);
    go.cancel();
    for stream in &mut running {
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).await.expect("a request that runs is not cut off");
    }
}

#[tokio::test]
async fn one_address_gets_no_more_connections_than_it_may() {
    let addresses = AddressLimits { per_address: 2, exempt: Vec::new() };
    let serving = Serving::start(but(|port| port.addresses = addresses)).await;
    let (mut first, mut second) = (serving.connect().await, serving.connect().await);
    ask(&mut first).await;
    ask(&mut second).await;
    assert_eq!(ends(&mut serving.connect().await).await, "");
    assert_eq!(serving.closed("address"), 1);
    ask(&mut first).await;
    let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
    socket.bind("127.0.0.2:0".parse().expect("an address")).expect("another address");
    ask(&mut socket.connect(serving.address).await.expect("a connection")).await;
}

#[tokio::test]
async fn heads_and_pauses_have_an_end() {
    let brief = Duration::from_millis(100);
    let serving = Serving::start(but(|port| port.deadlines.head = brief)).await;
    let mut slow = serving.connect().await;
    slow.write_all(b"GET / HT").await.expect("sent");
    assert_eq!(ends(&mut slow).await, "");
    assert_eq!(serving.closed("head"), 1);

    let serving = Serving::start(but(|port| port.deadlines.idle = brief)).await;
    let mut idle = serving.connect().await;
    ask(&mut idle).await;
    assert_eq!(ends(&mut idle).await, "");
    assert_eq!(serving.closed("idle"), 1);
}

#[tokio::test]
async fn a_head_that_is_too_large_is_431() {
    let serving = Serving::start(limits()).await;
    let mut stream = serving.connect().await;
    let head = format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "x".repeat(16 * 1024));
    stream.write_all(head.as_bytes()).await.expect("sent");
    let answer = ends(&mut stream).await;
    assert!(answer.starts_with("HTTP/1.1 431") && answer.ends_with("{\"status\":431}"), "{answer}");
}

#[tokio::test]
async fn server_stops_while_all_connections_are_in_use() {
    let serving = Serving::start(but(|port| port.connections = 1)).await;
    let mut only = serving.connect().await;
    ask(&mut only).await;
    serving.stop.cancel();
    tokio::time::timeout(NEVER, serving.task).await.expect("in time").expect("no panic");
    assert_eq!(ends(&mut only).await, "");
}

/// A port with TLS that answers how many certificates its caller has shown.
struct Secure {
    place: Place,
    tls: Arc<ServerTls>,
    serving: Serving,
}

impl Secure {
    async fn start(client_auth: ClientAuth, limits: HttpLimits) -> Self {
        let place = Place::new();
        let tls = Arc::new(ServerTls::read(place.settings(client_auth)).await.expect("they can be used"));
        let shown = get(async |certificates: Option<Extension<ClientCertificates>>| {
            format!("{} shown, well\n", certificates.map_or(0, |Extension(shown)| shown.0.len()))
        });
        let router = Router::new().route("/", get(async || "well\n")).route("/shown", shown);
        let serving = Serving::over(Some(Arc::clone(&tls)), limits, router).await;
        Self { place, tls, serving }
    }

    async fn connect(
        &self,
        identity: Option<&(String, String)>,
    ) -> std::io::Result<tokio_rustls::client::TlsStream<TcpStream>> {
        let name = ServerName::try_from("localhost").expect("a name");
        self.place.connector(identity).connect(name, self.serving.connect().await).await
    }

    /// What the port answers about the certificates of a caller. Empty: it closed the connection.
    async fn shown(&self, identity: Option<&(String, String)>) -> String {
        let Ok(mut stream) = self.connect(identity).await else { return String::new() };
        let request = b"GET /shown HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
        if stream.write_all(request).await.is_err() {
            return String::new();
        }
        ends(&mut stream).await.rsplit("\r\n").next().unwrap_or_default().to_owned()
    }
}

#[tokio::test]
async fn tls_requests_are_answered_on_one_connection_after_another() {
    let secure = Secure::start(ClientAuth::None, limits()).await;
    let mut stream = secure.connect(None).await.expect("a connection");
    ask(&mut stream).await;
    ask(&mut stream).await;
    secure.serving.stop.cancel();
    tokio::time::timeout(NEVER, secure.serving.task).await.expect("in time").expect("no panic");
    assert_eq!(ends(&mut stream).await, "");
}

#[tokio::test]
async fn silent_handshakes_make_room() {
    let secure = Secure::start(ClientAuth::None, limits()).await;
    let mut silent = Vec::new();
    for _ in 0..40 {
        silent.push(secure.serving.connect().await);
    }
    for _ in 0..3 {
        ask(&mut secure.connect(None).await.expect("a connection")).await;
    }
    ends(&mut silent[0]).await;
    assert!(secure.serving.closed("displaced") >= 32, "{}", secure.serving.closed("displaced"));
    assert_eq!(secure.serving.closed("cap"), 0);
}

#[tokio::test]
async fn handshake_heads_and_pauses_over_tls_have_an_end() {
    let brief = Duration::from_millis(500);
    let secure = Secure::start(ClientAuth::None, but(|port| port.deadlines.head = brief)).await;
    let mut silent = secure.serving.connect().await;
    assert_eq!(ends(&mut silent).await, "");
    assert_eq!(secure.serving.closed("head"), 1);
    let mut slow = secure.connect(None).await.expect("a connection");
    slow.write_all(b"GET / HT").await.expect("sent");
    assert_eq!(ends(&mut slow).await, "");
    assert_eq!(secure.serving.closed("head"), 2);

    let secure = Secure::start(ClientAuth::None, but(|port| port.deadlines.idle = brief)).await;
    let mut idle = secure.connect(None).await.expect("a connection");
    ask(&mut idle).await;
    assert_eq!(ends(&mut idle).await, "");
    assert_eq!(secure.serving.closed("idle"), 1);
}

#[tokio::test]
async fn a_further_head_over_tls_has_its_time_from_its_first_byte() {
    let brief = Duration::from_millis(500);
    let secure = Secure::start(ClientAuth::None, but(|port| port.deadlines.head = brief)).await;
    let mut stream = secure.connect(None).await.expect("a connection");
    ask(&mut stream).await;
    stream.write_all(b"GET / HT").await.expect("sent");
    assert_eq!(ends(&mut stream).await, "");
    assert_eq!(secure.serving.closed("head"), 1);
}

#[tokio::test]
async fn plain_http_to_a_port_with_tls_is_closed_and_counted() {
    let secure = Secure::start(ClientAuth::None, limits()).await;
    let mut plain = secure.serving.connect().await;
    plain.write_all(ASK).await.expect("sent");
    assert!(!ends(&mut plain).await.contains("HTTP"));
    assert_eq!(secure.serving.closed("handshake"), 1);
    drop(secure.serving.connect().await);
    ask(&mut secure.connect(None).await.expect("a connection")).await;
    assert_eq!(secure.serving.closed("handshake"), 1, "one that left is not counted");
}

#[tokio::test]
async fn clients_show_a_certificate_that_the_routes_see() {
    for (auth, without, with) in [
        (ClientAuth::None, "0 shown, well\n", "0 shown, well\n"),
        (ClientAuth::Optional, "0 shown, well\n", "1 shown, well\n"),
        (ClientAuth::Required, "", "1 shown, well\n"),
    ] {
        let secure = Secure::start(auth, limits()).await;
        let good = secure.place.authority.leaf(ForClients, 7);
        assert_eq!(secure.shown(None).await, without, "{auth:?}");
        assert_eq!(secure.shown(Some(&good)).await, with, "{auth:?}");
        let foreign = Authority::new().leaf(ForClients, 8);
        if auth != ClientAuth::None {
            assert_eq!(secure.shown(Some(&foreign)).await, "", "{auth:?}");
            assert!(secure.serving.closed("handshake") >= 1);
        }
    }
}

#[tokio::test]
async fn a_client_that_other_authorities_do_not_accept_is_cut_and_others_stay() {
    let secure = Secure::start(ClientAuth::Optional, limits()).await;
    let good = secure.place.authority.leaf(ForClients, 7);
    let mut with = secure.connect(Some(&good)).await.expect("a connection");
    let mut without = secure.connect(None).await.expect("a connection");
    ask(&mut with).await;
    ask(&mut without).await;
    let other = Authority::new();
    secure.place.write("ca.pem", &other.2);
    assert!(secure.tls.refresh().await.expect("they can be used"));
    assert_eq!(ends(&mut with).await, "");
    assert_eq!(secure.serving.closed("untrusted"), 1);
    ask(&mut without).await;
    let new = other.leaf(ForClients, 9);
    assert_eq!(secure.shown(Some(&new)).await, "1 shown, well\n");
}
