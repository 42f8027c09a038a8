//! An API server for tests: TLS, and responses by path.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rcgen::{BasicConstraints, Certificate, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_util::task::AbortOnDropHandle;

/// A request that the server received.
pub(in crate::agent) struct RecordedRequest {
    pub(in crate::agent) path: String,
    pub(in crate::agent) authorization: String,
    pub(in crate::agent) encodings: String,
    pub(in crate::agent) accept: String,
}

/// A response of the server.
pub(in crate::agent) struct Reply {
    pub(in crate::agent) status: u16,
    pub(in crate::agent) body: Vec<u8>,
    pub(in crate::agent) location: Option<&'static str>,
    pub(in crate::agent) after: Duration,
}

/// A JSON response.
pub(in crate::agent) fn json(status: u16, body: impl Into<Vec<u8>>) -> Reply {
    Reply { status, body: body.into(), location: None, after: Duration::ZERO }
}

/// A certificate authority.
pub(in crate::agent) struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub(in crate::agent) fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        Self(CertifiedIssuer::self_signed(params, key).expect("a certificate"))
    }

    pub(in crate::agent) fn pem(&self) -> Vec<u8> {
        self.0.pem().into_bytes()
    }

    /// Its public key, as SubjectPublicKeyInfo in DER.
    pub(in crate::agent) fn public_key(&self) -> Vec<u8> {
        use rcgen::PublicKeyData;
        self.0.key().subject_public_key_info()
    }

    /// A certificate for 127.0.0.1, and its key.
    pub(in crate::agent) fn server(&self) -> (Certificate, KeyPair) {
        let key = KeyPair::generate().expect("a key");
        let names = vec!["127.0.0.1".to_owned(), "localhost".to_owned()];
        let params = CertificateParams::new(names).expect("names");
        (params.signed_by(&key, &self.0).expect("a certificate"), key)
    }
}

/// A running server, which stops on drop.
pub(in crate::agent) struct TestServer {
    pub(in crate::agent) address: SocketAddr,
    pub(in crate::agent) leaf: CertificateDer<'static>,
    pub(in crate::agent) asked: Arc<Mutex<Vec<RecordedRequest>>>,
    _serving: AbortOnDropHandle<()>,
}

impl TestServer {
    /// Serves the response that `reply` returns for a path and query, with a certificate for 127.0.0.1.
    pub(in crate::agent) async fn start(
        authority: &Authority,
        reply: impl Fn(&str) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let (certificate, key) = authority.server();
        let leaf = certificate.der().clone();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(vec![leaf.clone()], PrivatePkcs8KeyDer::from(key.serialize_der()).into())
            .expect("certificate and key");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let asked = Arc::new(Mutex::new(Vec::new()));
        let serving = serve(listener, TlsAcceptor::from(Arc::new(config)), Arc::new(reply), asked.clone());
        Self { address, leaf, asked, _serving: AbortOnDropHandle::new(tokio::spawn(serving)) }
    }

    pub(in crate::agent) fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    pub(in crate::agent) fn paths(&self) -> Vec<String> {
        self.asked.lock().iter().map(|asked| asked.path.clone()).collect()
    }
}

async fn serve<R: Fn(&str) -> Reply + Send + Sync + 'static>(
    listener: TcpListener,
    acceptor: TlsAcceptor,
    reply: Arc<R>,
    asked: Arc<Mutex<Vec<RecordedRequest>>>,
) {
    loop {
        let Ok((stream, _)) = listener.accept().await else { return };
        let (acceptor, reply, asked) = (acceptor.clone(), reply.clone(), asked.clone());
        tokio::spawn(async move {
            let Ok(stream) = acceptor.accept(stream).await else { return };
            let service = service_fn(move |request| answer(request, reply.clone(), asked.clone()));
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

async fn answer<R: Fn(&str) -> Reply>(
    request: Request<Incoming>,
    reply: Arc<R>,
    asked: Arc<Mutex<Vec<RecordedRequest>>>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let header = |name: &str| {
        let value = request.headers().get(name).and_then(|value| value.to_str().ok());
        value.unwrap_or_default().to_owned()
    };
    let path = request.uri().path_and_query().map(ToString::to_string).unwrap_or_default();
    asked.lock().push(RecordedRequest {
        path: path.clone(),
        authorization: header("authorization"),
        encodings: header("accept-encoding"),
        accept: header("accept"),
    });
    let reply = reply(&path);
    tokio::time::sleep(reply.after).await;
    let mut response = Response::builder().status(reply.status).header("content-type", "application/json");
    if let Some(location) = reply.location {
        response = response.header("location", location);
    }
    Ok(response.body(Full::new(reply.body.into())).expect("a response"))
}

/// A kubeconfig for a server, with a token.
pub(in crate::agent) fn kubeconfig(server: &str, authority: Option<&[u8]>, token: &str) -> Vec<u8> {
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
