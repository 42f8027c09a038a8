//! The API server of an account's cluster behind a gate, which holds requests and answers and cuts connections.
//!
//! It speaks TLS and HTTP/1.1 like the API server, so that it can tell one request from another. What it holds is about
//! objects of the tests, whose names begin with `cell-`; everything else passes. A connection ends with such a request.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::{StreamExt as _, stream};
use http::header::{CONNECTION, CONTENT_TYPE, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, BodyStream, Collected, Empty, Full, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::client::conn::http1::SendRequest;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex as AsyncMutex, watch};
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig, crypto::ring};
use tokio_rustls::{TlsAcceptor, TlsConnector};
use tokio_util::task::AbortOnDropHandle;

use kubesvc_testkit::controlplane::ControlPlane;
use kubesvc_testkit::kubeconfig::{Authority, Identity};
use kubesvc_testkit::{must, ports};

/// How names of objects begin that are held.
pub(super) const MARK: &str = "cell-";

/// How names of objects end that are read twice before they are written: themselves, and then the list of their revisions.
const READ_TWICE: &str = "-undo";
/// The resource of these revisions.
const REVISIONS: &str = "/replicasets?";

type Body = UnsyncBoxBody<Bytes, hyper::Error>;

/// Interval between two lines of a log.
const LINE_INTERVAL: Duration = Duration::from_millis(50);

/// What is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hold {
    /// Nothing.
    Nothing,
    /// New connections, before their handshake.
    Handshakes,
    /// The answers of reads; of several before a write, of the last one.
    Reads,
    /// Writes, before the API server gets them.
    Writes,
    /// The answers of writes, which are in the audit log by then.
    Answers,
    /// Answers of reads, after their first bytes.
    Bodies,
}

/// The gate. Its connections end on drop.
pub(super) struct Gate {
    port: u16,
    authority: String,
    shared: Arc<Shared>,
    _accepting: AbortOnDropHandle<()>,
}

struct Shared {
    hold: watch::Sender<Hold>,
    cuts: watch::Sender<usize>,
    /// Cuts of connections without a request.
    idle_cuts: watch::Sender<usize>,
    handshakes: AtomicUsize,
    /// Names of the objects of requests that are held.
    held: Mutex<BTreeSet<String>>,
    acceptor: TlsAcceptor,
    connector: TlsConnector,
    target: u16,
}

impl Gate {
    /// Opens a gate to the API server of a control plane.
    pub(super) async fn to(plane: &ControlPlane) -> Self {
        let port = ports::free();
        let listener = TcpListener::bind(("127.0.0.1", port)).await.expect("the port is free");
        let authority = must(Authority::new("gate"));
        let identity = must(authority.server(&["127.0.0.1"]));
        let url = plane.server_url();
        let shared = Arc::new(Shared {
            hold: watch::Sender::new(Hold::Nothing),
            cuts: watch::Sender::new(0),
            idle_cuts: watch::Sender::new(0),
            handshakes: AtomicUsize::new(0),
            held: Mutex::default(),
            acceptor: acceptor(&identity),
            connector: connector(&plane.ca_pem()),
            target: url.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a URL with a port"),
        });
        let serving = Arc::clone(&shared);
        let accepting = tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let shared = Arc::clone(&serving);
                let (cuts, born) = (shared.cuts.subscribe(), *shared.cuts.borrow());
                tokio::spawn(async move {
                    let mut cuts = cuts;
                    tokio::select! {
                        _ = cuts.wait_for(|count| *count > born) => {}
                        () = serve(near, Arc::clone(&shared)) => {}
                    }
                });
            }
        });
        Self { port, authority: authority.pem(), shared, _accepting: AbortOnDropHandle::new(accepting) }
    }

    /// URL of the gate.
    pub(super) fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }

    /// Authority of its certificate, as PEM.
    pub(super) fn authority(&self) -> &str {
        &self.authority
    }

    /// Sets what is held from now on; what was held for another reason goes on.
    pub(super) fn set(&self, hold: Hold) {
        self.shared.hold.send_replace(hold);
    }

    /// Cuts all connections.
    pub(super) fn cut(&self) {
        self.shared.cuts.send_modify(|count| *count += 1);
    }

    /// Cuts the connections that have no request now.
    pub(super) fn cut_idle(&self) {
        self.shared.idle_cuts.send_modify(|count| *count += 1);
    }

    /// Names of the objects of the requests that are held now.
    pub(super) fn held(&self) -> BTreeSet<String> {
        self.shared.held.lock().clone()
    }

    /// Number of connections that are held before their handshake.
    pub(super) fn handshakes(&self) -> usize {
        self.shared.handshakes.load(Ordering::Relaxed)
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.cut();
    }
}

/// Counts down when it is dropped.
struct Counted<'s>(&'s AtomicUsize);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Names an object while its request is held.
struct Held<'s> {
    shared: &'s Shared,
    name: String,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.shared.held.lock().remove(&self.name);
    }
}

impl Shared {
    async fn pause(&self, at: Hold, name: &str) {
        if *self.hold.borrow() != at {
            return;
        }
        self.held.lock().insert(name.to_owned());
        let _held = Held { shared: self, name: name.to_owned() };
        let _ = self.hold.subscribe().wait_for(|hold| *hold != at).await;
    }
}

async fn serve(near: TcpStream, shared: Arc<Shared>) {
    if *shared.hold.borrow() == Hold::Handshakes {
        shared.handshakes.fetch_add(1, Ordering::Relaxed);
        let _counted = Counted(&shared.handshakes);
        let _ = shared.hold.subscribe().wait_for(|hold| *hold != Hold::Handshakes).await;
    }
    let _ = near.set_nodelay(true);
    let Ok(near) = shared.acceptor.accept(near).await else { return };
    let Ok(far) = TcpStream::connect(("127.0.0.1", shared.target)).await else { return };
    let name = ServerName::try_from("localhost").expect("a name");
    let Ok(far) = shared.connector.connect(name, far).await else { return };
    let Ok((sender, connection)) = hyper::client::conn::http1::handshake(TokioIo::new(far)).await else {
        return;
    };
    let sender = Arc::new(AsyncMutex::new(sender));
    let (busy, mut cuts) = (Arc::new(AtomicUsize::new(0)), shared.idle_cuts.subscribe());
    let of_requests = Arc::clone(&busy);
    let service = service_fn(move |request| {
        let (shared, sender, busy) = (Arc::clone(&shared), Arc::clone(&sender), Arc::clone(&of_requests));
        async move {
            busy.fetch_add(1, Ordering::Relaxed);
            let _busy = Counted(&busy);
            forward(shared, sender, request).await
        }
    });
    let serving = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(near), service);
    let connection = AbortOnDropHandle::new(tokio::spawn(connection));
    let idle = async { while cuts.changed().await.is_ok() && busy.load(Ordering::Relaxed) > 0 {} };
    tokio::select! {
        _ = serving => {}
        () = idle => {}
    }
    drop(connection);
}

async fn forward(
    shared: Arc<Shared>,
    sender: Arc<AsyncMutex<SendRequest<Full<Bytes>>>>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let (head, body) = request.into_parts();
    let is_write = !matches!(head.method, Method::GET | Method::HEAD);
    let body = body.collect().await.map(Collected::to_bytes).unwrap_or_default();
    let target = head.uri.path_and_query().map(|target| target.as_str().to_owned()).unwrap_or_default();
    let object = marked(&target).or_else(|| marked(&String::from_utf8_lossy(&body)));
    if object.is_some() && head.uri.path().ends_with("/log") {
        return Ok(log());
    }
    if let Some(name) = object.as_deref().filter(|_| is_write) {
        shared.pause(Hold::Writes, name).await;
    }
    let answer = sender.lock().await.send_request(Request::from_parts(head, Full::new(body))).await;
    let Ok(mut answer) = answer else {
        let mut none = Response::new(Empty::new().map_err(|never| match never {}).boxed_unsync());
        *none.status_mut() = StatusCode::BAD_GATEWAY;
        return Ok(none);
    };
    let is_read_again = |name: &str| !is_write && name.ends_with(READ_TWICE) && !target.contains(REVISIONS);
    if let Some(name) = object.as_deref().filter(|name| !is_read_again(name)) {
        shared.pause(if is_write { Hold::Answers } else { Hold::Reads }, name).await;
    }
    if object.is_some() {
        answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    let is_held = object.is_some() && !is_write && *shared.hold.borrow() == Hold::Bodies;
    Ok(answer.map(|body| if is_held { begun(body, shared.hold.subscribe()) } else { body.boxed_unsync() }))
}

/// A body of which only the first bytes pass while bodies are held.
fn begun(body: Incoming, hold: watch::Receiver<Hold>) -> Body {
    let parts = BodyStream::new(body).enumerate().then(move |(number, frame)| {
        let mut hold = hold.clone();
        async move {
            if number > 0 {
                let _ = hold.wait_for(|hold| *hold != Hold::Bodies).await;
            }
            frame
        }
    });
    UnsyncBoxBody::new(StreamBody::new(parts))
}

/// A log that has no end.
fn log() -> Response<Body> {
    let lines = stream::unfold(0, |number| async move {
        tokio::time::sleep(LINE_INTERVAL).await;
        Some((Ok(Frame::data(Bytes::from(format!("line {number}\n")))), number + 1))
    });
    let mut answer = Response::new(UnsyncBoxBody::new(StreamBody::new(lines)));
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    answer
}

/// The name of a test's object in a text.
fn marked(text: &str) -> Option<String> {
    let from = &text[text.find(MARK)?..];
    let end = from.find(|c: char| !(c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'));
    Some(from[..end.unwrap_or(from.len())].to_owned())
}

/// TLS of a server with this certificate.
pub(super) fn acceptor(identity: &Identity) -> TlsAcceptor {
    let chain = vec![CertificateDer::from_pem_slice(identity.certificate.as_bytes()).expect("PEM")];
    let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).expect("a key");
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .expect("a certificate");
    TlsAcceptor::from(Arc::new(config))
}

/// TLS of a client that trusts this authority.
pub(super) fn connector(authority: &str) -> TlsConnector {
    TlsConnector::from(Arc::new(client_config(authority)))
}

/// Settings of a client that trusts these authorities.
pub(super) fn client_config(authority: &str) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(authority.as_bytes()) {
        roots.add(certificate.expect("PEM")).expect("an authority");
    }
    ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth()
}
