//! An API server for tests: TLS, and responses by path or by script.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use rcgen::{BasicConstraints, Certificate, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_util::task::AbortOnDropHandle;

/// A request that the server received.
pub(crate) struct RecordedRequest {
    pub(crate) path: String,
    pub(crate) authorization: String,
    pub(crate) encodings: String,
    pub(crate) accept: String,
    pub(crate) audit_ids: Vec<String>,
}

/// A response of the server.
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) body: Vec<u8>,
    pub(crate) location: Option<&'static str>,
    pub(crate) after: Duration,
}

/// A JSON response.
pub(crate) fn json(status: u16, body: impl Into<Vec<u8>>) -> Reply {
    Reply { status, body: body.into(), location: None, after: Duration::ZERO }
}

/// A certificate authority.
pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    /// Whether servers show its own certificate.
    is_served: bool,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        Self { issuer: CertifiedIssuer::self_signed(params, key).expect("a certificate"), is_served: false }
    }

    /// An authority whose own certificate is that of the server at 127.0.0.1, as `openssl req -x509` makes it.
    pub(crate) fn served(change: impl FnOnce(&mut CertificateParams)) -> Self {
        let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("a name");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        change(&mut params);
        let key = KeyPair::generate().expect("a key");
        Self { issuer: CertifiedIssuer::self_signed(params, key).expect("a certificate"), is_served: true }
    }

    pub(crate) fn pem(&self) -> Vec<u8> {
        self.issuer.pem().into_bytes()
    }

    /// Its public key, as SubjectPublicKeyInfo in DER.
    pub(crate) fn public_key(&self) -> Vec<u8> {
        use rcgen::PublicKeyData;
        self.issuer.key().subject_public_key_info()
    }

    /// A certificate for 127.0.0.1, and its key.
    pub(crate) fn server(&self) -> (Certificate, KeyPair) {
        if self.is_served {
            let key = KeyPair::try_from(self.issuer.key().serialize_der()).expect("a key");
            return (AsRef::<Certificate>::as_ref(&self.issuer).clone(), key);
        }
        let key = KeyPair::generate().expect("a key");
        let names = vec!["127.0.0.1".to_owned(), "localhost".to_owned()];
        let params = CertificateParams::new(names).expect("names");
        (params.signed_by(&key, &self.issuer).expect("a certificate"), key)
    }
}

/// The body of a scripted response.
pub(crate) type TestBody = UnsyncBoxBody<Bytes, io::Error>;
/// A scripted response; an error closes the connection without one.
pub(crate) type TestResponse = io::Result<Response<TestBody>>;

/// Properties of a server.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ServerOptions {
    /// Whether it offers HTTP/2, and with how many requests at once on a connection.
    pub(crate) http2_streams: Option<u32>,
}

/// A running server, which stops on drop.
pub(crate) struct TestServer {
    pub(crate) address: SocketAddr,
    pub(crate) leaf: CertificateDer<'static>,
    pub(crate) asked: Arc<Mutex<Vec<RecordedRequest>>>,
    /// Connections accepted so far, and those that are open.
    connections: Arc<(AtomicUsize, AtomicUsize)>,
    _serving: AbortOnDropHandle<()>,
}

impl TestServer {
    /// Serves the response that `reply` returns for a path and query, with a certificate for 127.0.0.1.
    pub(crate) async fn start(
        authority: &Authority,
        reply: impl Fn(&str) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let reply = Arc::new(reply);
        Self::scripted(authority, ServerOptions::default(), move |request| {
            let path = request.uri().path_and_query().map(ToString::to_string).unwrap_or_default();
            let reply = reply.clone();
            async move {
                let reply = reply(&path);
                tokio::time::sleep(reply.after).await;
                let mut response =
                    Response::builder().status(reply.status).header("content-type", "application/json");
                if let Some(location) = reply.location {
                    response = response.header("location", location);
                }
                Ok(response.body(whole(reply.body)).expect("a response"))
            }
        })
        .await
    }

    /// Serves what `answer` makes of each request.
    pub(crate) async fn scripted<F: Future<Output = TestResponse> + Send + 'static>(
        authority: &Authority,
        options: ServerOptions,
        answer: impl Fn(Request<Incoming>) -> F + Send + Sync + 'static,
    ) -> Self {
        let (acceptor, leaf) = acceptor(authority, options);
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let (asked, connections) = (Arc::new(Mutex::new(Vec::new())), Arc::default());
        let recorded = asked.clone();
        let answer = Arc::new(move |request: Request<Incoming>| {
            recorded.lock().push(RecordedRequest::of(&request));
            answer(request)
        });
        let serving = serve(listener, acceptor, options, answer, Arc::clone(&connections));
        Self { address, leaf, asked, connections, _serving: AbortOnDropHandle::new(tokio::spawn(serving)) }
    }

    pub(crate) fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    pub(crate) fn paths(&self) -> Vec<String> {
        self.asked.lock().iter().map(|asked| asked.path.clone()).collect()
    }

    /// Number of connections accepted so far.
    pub(crate) fn accepted(&self) -> usize {
        self.connections.0.load(Ordering::SeqCst)
    }

    /// Number of connections that are open.
    pub(crate) fn open(&self) -> usize {
        self.connections.1.load(Ordering::SeqCst)
    }
}

/// A body that is known from the start.
pub(crate) fn whole(bytes: impl Into<Bytes>) -> TestBody {
    Full::new(bytes.into()).map_err(|error: Infallible| match error {}).boxed_unsync()
}

impl RecordedRequest {
    fn of(request: &Request<Incoming>) -> Self {
        let header = |name: &str| {
            let value = request.headers().get(name).and_then(|value| value.to_str().ok());
            value.unwrap_or_default().to_owned()
        };
        let audit_ids = request.headers().get_all("audit-id").iter();
        Self {
            path: request.uri().path_and_query().map(ToString::to_string).unwrap_or_default(),
            authorization: header("authorization"),
            encodings: header("accept-encoding"),
            accept: header("accept"),
            audit_ids: audit_ids.filter_map(|id| id.to_str().ok()).map(ToOwned::to_owned).collect(),
        }
    }
}

/// Accepts TLS connections with a certificate for 127.0.0.1, which is returned too.
pub(crate) fn acceptor(
    authority: &Authority,
    options: ServerOptions,
) -> (TlsAcceptor, CertificateDer<'static>) {
    let (certificate, key) = authority.server();
    let leaf = certificate.der().clone();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![leaf.clone()], PrivatePkcs8KeyDer::from(key.serialize_der()).into())
        .expect("certificate and key");
    config.alpn_protocols = match options.http2_streams {
        Some(_) => vec![b"h2".to_vec(), b"http/1.1".to_vec()],
        None => Vec::new(),
    };
    (TlsAcceptor::from(Arc::new(config)), leaf)
}

struct OpenConnection(Arc<(AtomicUsize, AtomicUsize)>);

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.1.fetch_sub(1, Ordering::SeqCst);
    }
}

async fn serve<F: Future<Output = TestResponse> + Send + 'static>(
    listener: TcpListener,
    acceptor: TlsAcceptor,
    options: ServerOptions,
    answer: Arc<impl Fn(Request<Incoming>) -> F + Send + Sync + 'static>,
    connections: Arc<(AtomicUsize, AtomicUsize)>,
) {
    // Connections end with the server.
    let mut serving = JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else { return };
        connections.0.fetch_add(1, Ordering::SeqCst);
        connections.1.fetch_add(1, Ordering::SeqCst);
        let open = OpenConnection(connections.clone());
        let (acceptor, answer) = (acceptor.clone(), answer.clone());
        serving.spawn(async move {
            let Ok(stream) = acceptor.accept(stream).await else { return };
            let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
            let service = service_fn(move |request| answer(request));
            let io = TokioIo::new(stream);
            if is_http2 {
                let mut builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                builder.max_concurrent_streams(options.http2_streams);
                let _ = builder.serve_connection(io, service).await;
            } else {
                let builder = hyper::server::conn::http1::Builder::new();
                let _ = builder.serve_connection(io, service).with_upgrades().await;
            }
            drop(open);
        });
    }
}

/// A kubeconfig for a server, with a token.
pub(crate) fn kubeconfig(server: &str, authority: Option<&[u8]>, token: &str) -> Vec<u8> {
    use base64::Engine;
    let authority = authority
        .map(|pem| {
            let data = base64::engine::general_purpose::STANDARD.encode(pem);
            format!(r#","certificate-authority-data":"{data}""#)
        })
        .unwrap_or_default();
    format!(
        r#"{{"apiVersion":"v1","kind":"Config","current-context":"c",
            "clusters":[{{"name":"k","cluster":{{"server":"{server}"{authority}}}}}],
            "users":[{{"name":"u","user":{{"token":"{token}"}}}}],
            "contexts":[{{"name":"c","context":{{"cluster":"k","user":"u"}}}}]}}"#
    )
    .into_bytes()
}
