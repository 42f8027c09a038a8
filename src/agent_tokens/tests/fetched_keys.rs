//! Keys at real https servers, and in files.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::{Request, Response, StatusCode, header};
use hyper::body::Incoming;
use hyper::service::service_fn;
use jsonwebtoken::Algorithm;
use parking_lot::Mutex;
use serde_json::json;

use super::issuer::{ISSUER, SigningKey, jwks};
use crate::agent_tokens::kept_keys::KeptKeys;
use crate::agent_tokens::key_sources::{FetchedKeys, FileKeys, KeySource as _};
use kubesvc_runtime::telemetry::errors::chain;
use kubesvc_testkit::kubeconfig::Authority;

/// What a path is answered with.
#[derive(Clone)]
pub(super) enum Reply {
    Json(String),
    Redirect(&'static str),
    Bytes(usize),
    Hang,
}

/// An https server of an issuer.
pub(super) struct IssuerServer {
    pub(super) port: u16,
    pub(super) authority: tempfile::NamedTempFile,
    replies: Arc<Mutex<Vec<(&'static str, Reply)>>>,
    fetches: Arc<AtomicUsize>,
}

impl IssuerServer {
    pub(super) async fn start() -> Self {
        // As the program does at its start.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let authority = Authority::new("issuer").expect("made");
        let identity = authority.server(&["localhost"]).expect("a certificate");
        let key = kubesvc_runtime::tls::identity::certified_key(
            identity.certificate.as_bytes(),
            identity.key.as_bytes(),
            None,
        );
        let resolver = rustls::sign::SingleCertAndKey::from(key.expect("they fit"));
        let tls =
            rustls::ServerConfig::builder().with_no_client_auth().with_cert_resolver(Arc::new(resolver));
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(tls));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), authority.pem()).expect("written");
        let server = Self {
            port: listener.local_addr().expect("an address").port(),
            authority: file,
            replies: Arc::default(),
            fetches: Arc::default(),
        };
        let (replies, fetches) = (Arc::clone(&server.replies), Arc::clone(&server.fetches));
        tokio::spawn(async move {
            loop {
                let Ok((stream, _)) = listener.accept().await else { return };
                let (acceptor, replies, fetches) =
                    (acceptor.clone(), Arc::clone(&replies), Arc::clone(&fetches));
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let answer = service_fn(|request: Request<Incoming>| {
                        fetches.fetch_add(1, Ordering::Relaxed);
                        let path = request.uri().path();
                        let reply =
                            replies.lock().iter().find(|(of, _)| *of == path).map(|(_, reply)| reply.clone());
                        async move { Ok::<_, Infallible>(response(reply).await) }
                    });
                    let stream = hyper_util::rt::TokioIo::new(stream);
                    let _ = hyper::server::conn::http1::Builder::new().serve_connection(stream, answer).await;
                });
            }
        });
        server
    }

    pub(super) fn url(&self) -> String {
        format!("https://localhost:{}", self.port)
    }

    pub(super) fn reply(&self, path: &'static str, reply: Reply) {
        let mut replies = self.replies.lock();
        replies.retain(|(of, _)| *of != path);
        replies.push((path, reply));
    }

    pub(super) fn fetches(&self) -> usize {
        self.fetches.load(Ordering::Relaxed)
    }

    fn keys(&self, path: &str) -> FetchedKeys {
        FetchedKeys {
            issuer: ISSUER.to_owned(),
            url: Some(format!("{}{path}", self.url())),
            authorities: Some(self.authority.path().to_owned()),
        }
    }

    fn discovered(&self, issuer: String) -> FetchedKeys {
        FetchedKeys { issuer, url: None, ..self.keys("") }
    }
}

async fn response(reply: Option<Reply>) -> Response<Body> {
    let mut response = Response::builder();
    let body = match reply {
        Some(Reply::Json(text)) => Body::from(text),
        Some(Reply::Bytes(length)) => Body::from(vec![b' '; length]),
        Some(Reply::Hang) => std::future::pending().await,
        Some(Reply::Redirect(to)) => {
            response = response.status(StatusCode::FOUND).header(header::LOCATION, to);
            Body::empty()
        }
        None => {
            response = response.status(StatusCode::NOT_FOUND);
            Body::empty()
        }
    };
    response.body(body).expect("an answer")
}

async fn failure(keys: FetchedKeys) -> String {
    chain(&keys.read().await.expect_err("no keys"))
}

#[tokio::test]
async fn keys_are_fetched_over_https_within_bounds_and_without_redirects() {
    let server = IssuerServer::start().await;
    let key = SigningKey::new("k1", Algorithm::ES256);
    server.reply("/keys", Reply::Json(jwks([&key])));
    server.reply("/moved", Reply::Redirect("/keys"));
    server.reply("/large", Reply::Bytes(2 << 20));
    server.reply("/html", Reply::Json("<html>hunter2</html>".to_owned()));
    let read = server.keys("/keys").read().await.expect("keys");
    assert_eq!((read.issuer.as_str(), read.keys.with_id("k1").count()), (ISSUER, 1));
    for (path, expected) in [
        ("/moved", "answered with 302: redirects are not followed"),
        ("/large", "is larger than 1 MiB"),
        ("/html", "it is no JWKS"),
        ("/gone", "was answered with 404"),
    ] {
        let said = failure(server.keys(path)).await;
        assert!(said.contains(expected) && !said.contains("hunter2"), "{said}");
    }
    let plain =
        FetchedKeys { url: Some(format!("http://localhost:{}/keys", server.port)), ..server.keys("") };
    failure(plain).await;
    let other_name =
        FetchedKeys { url: Some(format!("https://127.0.0.1:{}/keys", server.port)), ..server.keys("") };
    failure(other_name).await;
    failure(FetchedKeys { authorities: None, ..server.keys("/keys") }).await;
    let no_pem = tempfile::NamedTempFile::new().expect("a file");
    let said =
        failure(FetchedKeys { authorities: Some(no_pem.path().to_owned()), ..server.keys("/keys") }).await;
    assert!(said.contains("has no certificate in PEM"), "{said}");
    let said =
        failure(FetchedKeys { authorities: Some("/nowhere/ca.pem".into()), ..server.keys("/keys") }).await;
    assert!(said.contains("/nowhere/ca.pem"), "{said}");
}

#[tokio::test]
async fn the_document_of_an_issuer_must_be_its_own_and_name_https() {
    const DOCUMENT: &str = "/.well-known/openid-configuration";
    let server = IssuerServer::start().await;
    let (url, key) = (server.url(), SigningKey::new("k1", Algorithm::ES256));
    server.reply("/keys", Reply::Json(jwks([&key])));
    let document = |issuer: &str, keys: &str| {
        server.reply(DOCUMENT, Reply::Json(json!({"issuer": issuer, "jwks_uri": keys}).to_string()));
    };
    let keys = format!("{url}/keys");
    document(&url, &keys);
    assert_eq!(server.discovered(url.clone()).read().await.expect("keys").issuer, url);
    let with_slash = format!("{url}/");
    document(&with_slash, &keys);
    server.discovered(with_slash.clone()).read().await.expect("the slash is the issuer's own");
    for (issuer, keys, expected) in [
        (with_slash.as_str(), keys.as_str(), "write it exactly so"),
        ("https://evil.example", &keys, "\"https://evil.example\""),
        (&url, &keys.replace("https:", "http:"), "not at an https URL"),
        (&url, "keys", "not at an https URL"),
        (&url, "file:///etc/passwd", "not at an https URL"),
        (&url, &keys.replace("//", "//user:hunter2@"), "without a login"),
        (&url, &format!("{keys}?{}", "x".repeat(2048)), "not at an https URL"),
    ] {
        document(issuer, keys);
        let said = failure(server.discovered(url.clone())).await;
        assert!(said.contains(expected) && !said.contains("hunter2"), "{issuer} {keys}: {said}");
    }
    server.reply(DOCUMENT, Reply::Json("{}".to_owned()));
    assert!(failure(server.discovered(url)).await.contains("no document of an issuer"));
}

#[tokio::test]
async fn a_file_is_read_again_and_one_that_does_not_parse_changes_nothing() {
    let (one, other) = (SigningKey::new("one", Algorithm::ES256), SigningKey::new("other", Algorithm::EdDSA));
    let file = tempfile::NamedTempFile::new().expect("a file");
    let write = |text: &str| std::fs::write(file.path(), text).expect("written");
    let has =
        |keys: &KeptKeys, id: &str| keys.current().is_some_and(|kept| kept.keys.with_id(id).count() == 1);
    write(&jwks([&one]));
    let keys = KeptKeys::new(FileKeys { issuer: ISSUER.to_owned(), path: file.path().to_owned() });
    assert!(keys.current().is_none());
    assert!(keys.read().await.expect("keys") && has(&keys, "one"));
    assert!(!keys.read().await.expect("the same"));
    assert!(!keys.read_if_due().await.expect("not due"));
    for bad in ["{", "", r#"{"keys": 5}"#] {
        write(bad);
        keys.read().await.expect_err(bad);
        assert!(has(&keys, "one"), "{bad}: the former keys stay");
    }
    write(&jwks([&other]));
    assert!(keys.read().await.expect("keys") && has(&keys, "other") && !has(&keys, "one"));
    write(r#"{"keys": []}"#);
    assert!(keys.read().await.expect("a set") && !has(&keys, "other"), "withdrawn");
    write(&" ".repeat((1 << 20) + 1));
    assert!(keys.read().await.expect_err("too large").to_string().contains("1 MiB"));
}

#[tokio::test]
async fn a_hanging_server_holds_up_no_known_key_and_ends_in_time() {
    let server = IssuerServer::start().await;
    let key = SigningKey::new("k1", Algorithm::ES256);
    server.reply("/keys", Reply::Json(jwks([&key])));
    let keys = Arc::new(KeptKeys::new(server.keys("/keys")));
    keys.read().await.expect("keys");
    server.reply("/keys", Reply::Hang);
    let known = keys.current();
    let began = Instant::now();
    let waiting: Vec<_> = (0..100)
        .map(|_| {
            let (keys, known) = (Arc::clone(&keys), known.clone());
            tokio::spawn(async move { keys.newer_than(known.as_ref()).await.map(drop) })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(keys.current().is_some(), "the known ones are in use meanwhile");
    assert!(began.elapsed() < Duration::from_secs(5));
    let mut too_many = 0;
    for answer in waiting {
        let said = answer.await.expect("no panic").expect_err("nothing is known").to_string();
        too_many += usize::from(said.contains("too many"));
    }
    assert_eq!(too_many, 36, "64 wait");
    assert!((9..15).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
    assert_eq!(server.fetches(), 2, "all waited for one fetch");
    keys.newer_than(known.as_ref()).await.map(drop).expect_err("not known either, and no other fetch");
    assert_eq!(server.fetches(), 2);
    server.reply("/keys", Reply::Json(jwks([&key])));
    keys.read().await.expect("it answers again");
    assert!(keys.newer_than(keys.current().as_ref()).await.expect("known").is_none());
}
