//! An API server that misbehaves for some objects, and is a real one for all others.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::BoxStream;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, LOCATION};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{Full, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use serde_json::json;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ServerConfig, crypto::ring};

use super::super::place::{Place, path_of};
use super::{Door, Tried};
use crate::world::Call;
use kubesvc_testkit::controlplane::ControlPlane;
use kubesvc_testkit::kubeconfig::{self, Authority, Proof};
use kubesvc_testkit::must;

/// Where it misbehaves: the name of the object says how.
const ODD: &str = "/api/v1/namespaces/odd/configmaps/";
/// Size of a large answer, in bytes.
const LARGE: usize = 100 << 20;
/// Time limit for a reading.
const READING_TIMEOUT: Duration = Duration::from_secs(120);

type AnyBody = UnsyncBoxBody<Bytes, std::io::Error>;

/// What was read of an answer.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) code: u16,
    pub(super) body: Vec<u8>,
    pub(super) end: ReadingEnd,
}

/// How the reading of an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadingEnd {
    /// With the whole answer.
    Whole,
    /// The answer was cut.
    Cut,
    /// Enough was read.
    Enough,
}

/// A server in front of a real one.
pub(crate) struct MisbehavingServer {
    pub(crate) kubeconfig: String,
    /// The paths that it was asked for.
    asked: Arc<Mutex<Vec<String>>>,
}

impl MisbehavingServer {
    /// Starts it.
    pub(crate) async fn start(real: &ControlPlane) -> Self {
        let authority = must(Authority::new("an odd API server"));
        let identity = must(authority.server(&["127.0.0.1", "localhost"]));
        let chain = vec![CertificateDer::from_pem_slice(identity.certificate.as_bytes()).expect("PEM")];
        let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).expect("a key");
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .expect("a certificate");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let server = format!("https://127.0.0.1:{}", listener.local_addr().expect("an address").port());
        let (asked, client) = (Arc::<Mutex<Vec<String>>>::default(), real.client().await);
        let seen = Arc::clone(&asked);
        tokio::spawn(async move {
            let acceptor = TlsAcceptor::from(Arc::new(config));
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, client, seen) = (acceptor.clone(), client.clone(), Arc::clone(&seen));
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let service = service_fn(move |request: Request<Incoming>| {
                        seen.lock().push(request.uri().path().to_owned());
                        answer(client.clone(), request)
                    });
                    let _ = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        });
        Self { kubeconfig: kubeconfig::yaml(&server, &authority.pem(), Proof::Token("of-no-meaning")), asked }
    }

    /// Tries all kinds: read at the direct door, and read and written by operations.
    pub(super) async fn try_all(&self, place: &Place, token: &str, tried: &mut Tried) {
        for (name, code, says) in [
            ("reset", 503, ""),
            ("redirect", 302, ""),
            ("error", 500, "the server is odd"),
            ("html", 200, "<html>"),
        ] {
            let reading = read(place, Door::Direct, token, name, usize::MAX).await;
            let judged = reading.and_then(|Reading { code: got, body, end }| {
                let body = String::from_utf8_lossy(&body).into_owned();
                let is_good = (got, end) == (code, ReadingEnd::Whole) && body.contains(says);
                if is_good { Ok(()) } else { Err(format!("{got} instead of {code}, {end:?}: {body}")) }
            });
            tried.note(&format!("a server: {name}"), judged);
        }
        let large = read(place, Door::Direct, token, "large", usize::MAX).await;
        let judged = large.and_then(|Reading { code, body, end }| {
            let is_good = (code, end) == (200, ReadingEnd::Whole) && body.len() >= LARGE;
            if is_good { Ok(()) } else { Err(format!("{code}, {} bytes, {end:?}", body.len())) }
        });
        tried.note("a server: 100 MB", judged);
        let cut = read(place, Door::Direct, token, "cut", usize::MAX).await;
        let judged = cut.and_then(|Reading { code, end, .. }| {
            // The end may be known before the head is passed on.
            let is_good = matches!((code, end), (200, ReadingEnd::Cut) | (503, ReadingEnd::Whole));
            if is_good { Ok(()) } else { Err(format!("{code}, {end:?}")) }
        });
        tried.note("a server that cuts its answer", judged);
        for (verb, name, codes, says) in [
            ("get", "hang", &[504][..], "in time"),
            // It is asked for again until its deadline.
            ("get", "reset", &[503, 504], ""),
            ("get", "redirect", &[502], "answered 302"),
            ("get", "error", &[500], "the server is odd"),
            ("get", "html", &[502], "not json"),
            ("get", "large", &[413], "bytes"),
            ("get", "slow", &[504], "in time"),
            ("get", "cut", &[503], "cut"),
            ("patch", "hang", &[504], "unknown"),
            ("patch", "reset", &[504], "unknown"),
            ("patch", "error", &[500], "the server is odd"),
            ("patch", "large", &[200], ""),
        ] {
            let judged = operate(place, token, verb, name).await.and_then(|(code, text)| {
                let is_good = codes.contains(&code) && text.to_lowercase().contains(says);
                if is_good { Ok(()) } else { Err(format!("{code} instead of {codes:?}: {text}")) }
            });
            tried.note(&format!("a server: {name}, {verb}"), judged);
        }
        let followed = self.asked.lock().iter().any(|path| path.contains("elsewhere"));
        tried.note("a redirect is not followed", if followed { Err("it was".to_owned()) } else { Ok(()) });
    }
}

async fn answer(
    client: kube::Client,
    request: Request<Incoming>,
) -> Result<Response<AnyBody>, std::io::Error> {
    let path = request.uri().path().to_owned();
    let Some(how) = path.strip_prefix(ODD) else { return forward(client, request).await };
    let is_read = *request.method() == Method::GET;
    let full = |status: StatusCode, media: &'static str, body: String| {
        let body = Full::new(Bytes::from(body)).map_err(|never: Infallible| match never {}).boxed_unsync();
        let mut response = Response::new(body);
        *response.status_mut() = status;
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media));
        response
    };
    let streamed = |parts: BoxStream<'static, Result<Bytes, std::io::Error>>| {
        let frames = parts.map(|part| part.map(Frame::data));
        Response::new(StreamBody::new(frames).boxed_unsync())
    };
    Ok(match how {
        "hang" => std::future::pending().await,
        "reset" | "reset/exec" => return Err(std::io::Error::other("reset")),
        "redirect" => {
            let mut response = full(StatusCode::FOUND, "text/plain", String::new());
            response.headers_mut().insert(LOCATION, HeaderValue::from_static("/api/v1/elsewhere"));
            response
        }
        "error" => full(
            StatusCode::INTERNAL_SERVER_ERROR,
            "application/json",
            json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 500, "reason": "InternalError",
                "message": "the server is odd"})
            .to_string(),
        ),
        "html" => full(StatusCode::OK, "text/html", "<html><body>log in</body></html>".to_owned()),
        "large" => {
            let size = if is_read { LARGE } else { 3 << 20 };
            full(StatusCode::OK, "application/json", format!("{{\"data\": \"{}\"}}", "x".repeat(size)))
        }
        "slow" => {
            let bytes = futures::stream::repeat(()).then(|()| async {
                tokio::time::sleep(Duration::from_secs(1)).await;
                Ok(Bytes::from_static(b" "))
            });
            streamed(bytes.boxed())
        }
        "silent" => {
            let first = futures::stream::once(std::future::ready(Ok(Bytes::from_static(b" "))));
            streamed(first.chain(futures::stream::pending()).boxed())
        }
        "cut" => {
            let parts = [Ok(Bytes::from_static(b"{\"kind\": \"ConfigMap\"")), Err(std::io::Error::other("cut"))];
            let mut response = streamed(futures::stream::iter(parts).boxed());
            response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from_static("1000"));
            response
        }
        _ => full(StatusCode::NOT_FOUND, "text/plain", String::new()),
    })
}

async fn forward(
    client: kube::Client,
    request: Request<Incoming>,
) -> Result<Response<AnyBody>, std::io::Error> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await.map_err(std::io::Error::other)?.to_bytes();
    let target = parts.uri.path_and_query().map_or("/", |target| target.as_str()).to_owned();
    let mut passed = Request::builder().method(parts.method).uri(target);
    for (name, value) in &parts.headers {
        if matches!(name.as_str(), "accept" | "content-type") {
            passed = passed.header(name, value);
        }
    }
    let passed = passed.body(kube::client::Body::from(body.to_vec())).map_err(std::io::Error::other)?;
    let answered = client.send(passed).await.map_err(std::io::Error::other)?;
    let (mut parts, body) = answered.into_parts();
    let body = body.collect().await.map_err(std::io::Error::other)?.to_bytes();
    parts.headers.remove(CONTENT_LENGTH);
    parts.headers.remove("transfer-encoding");
    Ok(Response::from_parts(parts, Full::new(body).map_err(|never| match never {}).boxed_unsync()))
}

/// Reads an object of the odd server, until this many bytes are enough.
pub(super) async fn read(
    place: &Place,
    door: Door,
    token: &str,
    name: &str,
    enough: usize,
) -> Result<Reading, String> {
    let reading = async {
        let path = format!("{}{ODD}{name}", path_of(place.world.namespace(), "odd"));
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake::<_, Full<Bytes>>(TokioIo::new(door.connect(place).await))
                .await
                .map_err(|e| e.to_string())?;
        let connection = tokio::spawn(connection);
        let request = Request::get(path)
            .header("host", "localhost")
            .header("authorization", format!("Bearer {token}"))
            .body(Full::default())
            .expect("a request");
        let mut answer = sender.send_request(request).await.map_err(|e| e.to_string())?;
        let mut body = Vec::new();
        let end = loop {
            if body.len() >= enough {
                break ReadingEnd::Enough;
            }
            match answer.frame().await {
                Some(Ok(frame)) => body.extend_from_slice(&frame.into_data().unwrap_or_default()),
                Some(Err(_)) => break ReadingEnd::Cut,
                None => break ReadingEnd::Whole,
            }
        };
        connection.abort();
        Ok(Reading { code: answer.status().as_u16(), body, end })
    };
    tokio::time::timeout(READING_TIMEOUT, reading).await.map_err(|_| "no answer in time".to_owned())?
}

/// Reads or patches an object of the odd server by an operation: its status, and the whole answer.
async fn operate(place: &Place, token: &str, verb: &str, name: &str) -> Result<(u16, String), String> {
    let target =
        format!("target {{ version: \"v1\" kind: \"ConfigMap\" namespace: \"odd\" name: \"{name}\" }}");
    let verb = match verb {
        "get" => format!("get {{ {target} }}"),
        _ => format!("patch {{ {target} type: MERGE body {{ data: \"{{}}\" }} }}"),
    };
    let deadline = if name == "large" { 60_000 } else { 3_000 };
    let text = format!("account {{ name: \"odd\" }} deadline_ms: {deadline} {verb}");
    let call = Call::new("POST", "/armory/agent/operations?wait=100s")
        .header("authorization", &format!("Bearer {token}"))
        .json(&json!({ "operation": text }));
    let answer = place.world.operator().call(call).await?;
    let status = answer.json["status"].as_u64().and_then(|status| u16::try_from(status).ok());
    let shown = answer.text.chars().take(800).collect();
    status.filter(|_| answer.status == 200).map(|status| (status, shown)).ok_or_else(|| answer.to_string())
}
