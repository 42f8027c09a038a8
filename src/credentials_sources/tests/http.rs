//! A scripted server: what a real one cannot be made to do.

use std::path::PathBuf;

use axum::Router;
use axum::extract::{RawQuery, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use super::super::clouddriver_api::ClouddriverApiSource;
use super::super::config_server::ConfigServerSource;
use super::super::http::HttpAccess;
use super::*;

type Script = Arc<dyn Fn(&str, &HeaderMap) -> Response + Send + Sync>;

/// Serves a script, which is given path and query, and headers. Returns the base URL.
async fn serve(script: impl Fn(&str, &HeaderMap) -> Response + Send + Sync + 'static) -> String {
    // As the program does at its start.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let script: Script = Arc::new(script);
    let answer = |State(script): State<Script>, RawQuery(query): RawQuery, request: Request| async move {
        let query = query.map(|query| format!("?{query}")).unwrap_or_default();
        script(&format!("{}{query}", request.uri().path()), request.headers())
    };
    let router = Router::new().fallback(answer).with_state(script);
    tokio::spawn(async move { axum::serve(listener, router).await });
    format!("http://{address}")
}

fn config_server(uri: &str, access: HttpAccess) -> ConfigServerSource {
    let what = (uri, "clouddriver", "prod,eu");
    ConfigServerSource::new(Arc::from("config"), what, Some("release/1"), access, Arc::default())
}

fn password(text: &str) -> (tempfile::NamedTempFile, PathBuf) {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), text).expect("written");
    let path = file.path().to_owned();
    (file, path)
}

#[tokio::test]
async fn config_server_is_asked_with_the_password_of_the_file() {
    let uri = serve(|path, headers| {
        assert_eq!(path, "/base/clouddriver/prod,eu/release(_)1");
        // u:p@ss
        if headers.get(header::AUTHORIZATION).is_none_or(|given| given != "Basic dTpwQHNz") {
            return StatusCode::UNAUTHORIZED.into_response();
        }
        let source = json!({"kubernetes.accounts[0].name": "a", "kubernetes.accounts[1].name": "b"});
        axum::Json(json!({"propertySources": [{"name": "x", "source": source}]})).into_response()
    })
    .await;
    let (_kept, path) = password("p@ss\n");
    let login = Some(("u".to_owned(), Some(path.clone())));
    let source = config_server(&format!("{uri}/base/"), HttpAccess { login, ..HttpAccess::default() });
    let read = source.read().await.expect("read");
    assert_eq!((names(&read), read.gap()), (vec!["a", "b"], None));
    std::fs::write(&path, "hunter2").expect("rotated");
    let error = source.read().await.expect_err("refused");
    let said = kubesvc_runtime::telemetry::errors::chain(&error);
    assert!(said.contains("answered with 401: check username") && !said.contains("hunter2"), "{said}");
    std::fs::write(&path, "\n").expect("emptied");
    assert!(source.read().await.expect_err("empty").to_string().contains("is empty"));
}

#[tokio::test]
async fn answers_are_bounded_and_redirects_are_not_followed() {
    let uri = serve(|path, _| match path {
        path if path.starts_with("/moved") => {
            (StatusCode::FOUND, [(header::LOCATION, "/large/clouddriver/prod,eu/release(_)1")])
                .into_response()
        }
        path if path.starts_with("/large") => vec![b' '; (16 << 20) + 1].into_response(),
        path if path.starts_with("/html") => "<html>hunter2</html>".into_response(),
        _ => StatusCode::NOT_FOUND.into_response(),
    })
    .await;
    for (path, expected) in [
        ("moved", "answered with 302: redirects are not followed"),
        ("large", "is larger than 16 MiB"),
        ("html", "the answer is not JSON"),
        ("gone", "answered with 404: check uri"),
    ] {
        let error = config_server(&format!("{uri}/{path}"), HttpAccess::default()).read().await;
        let said = error.expect_err(path).to_string();
        assert!(said.contains(expected) && !said.contains("hunter2"), "{said}");
    }
    let nowhere = config_server("http://127.0.0.1:1", HttpAccess::default()).read().await;
    assert!(nowhere.expect_err("nobody listens").to_string().contains("check that the server runs there"));
    let (_kept, no_pem) = password("no certificate");
    let access = HttpAccess { authority: Some(no_pem), ..HttpAccess::default() };
    config_server(&uri, access).read().await.expect_err("no certificate in caFile");
}

/// Accounts as Clouddriver shows them: of a page of `limit`, those whose secret fails are left out.
fn page(path: &str, all: &[String], hidden: &[&str]) -> Response {
    let query = path.split_once('?').expect("a query").1;
    let parameter = |name: &str| {
        let pair = query.split('&').find_map(|pair| pair.strip_prefix(&format!("{name}=")))?;
        percent_encoding::percent_decode_str(pair).decode_utf8().ok().map(std::borrow::Cow::into_owned)
    };
    let limit: usize = parameter("limit").and_then(|limit| limit.parse().ok()).expect("a limit");
    let start = parameter("startingAccountName").unwrap_or_default();
    let shown =
        all.iter().filter(|name| **name >= start).take(limit).filter(|name| !hidden.contains(&name.as_str()));
    let accounts: Vec<_> = shown.map(|name| json!({"type": "kubernetes", "name": name})).collect();
    axum::Json(accounts).into_response()
}

#[tokio::test]
async fn all_pages_of_clouddriver_are_read_and_are_never_complete() {
    let all: Vec<String> = (0..901).map(|n| format!("a/{n:04}")).collect();
    let served = all.clone();
    let uri = serve(move |path, headers| {
        assert!(path.starts_with("/credentials/type/kubernetes?"), "{path}");
        assert_eq!(
            headers.get("X-SPINNAKER-USER").map(header::HeaderValue::as_bytes),
            Some(&b"migrator"[..])
        );
        page(path, &served, &["a/0199", "a/0900"])
    })
    .await;
    let access = HttpAccess { spinnaker_user: Some("migrator".to_owned()), ..HttpAccess::default() };
    let source = ClouddriverApiSource::new(Arc::from("api"), &uri, access);
    let read = source.read().await.expect("read");
    let expected: Vec<&str> =
        all.iter().map(String::as_str).filter(|name| !["a/0199", "a/0900"].contains(name)).collect();
    assert_eq!(names(&read), expected);
    assert!(read.gap().is_some_and(|why| why.contains("leaves out accounts")), "{:?}", read.gap());
}

#[tokio::test]
async fn server_is_verified_by_the_authorities_of_the_file() {
    use hyper::body::Incoming;
    use hyper::service::service_fn;
    use kubesvc_testkit::kubeconfig::Authority;

    let _ = rustls::crypto::ring::default_provider().install_default();
    let (authority, other) =
        (Authority::new("config").expect("made"), Authority::new("other").expect("made"));
    let identity = authority.server(&["localhost"]).expect("a certificate");
    let key = kubesvc_runtime::tls::identity::certified_key(
        identity.certificate.as_bytes(),
        identity.key.as_bytes(),
        None,
    );
    let resolver = rustls::sign::SingleCertAndKey::from(key.expect("they fit"));
    let tls = rustls::ServerConfig::builder().with_no_client_auth().with_cert_resolver(Arc::new(resolver));
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(tls));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    tokio::spawn(async move {
        loop {
            let Ok((stream, _)) = listener.accept().await else { return };
            let Ok(stream) = acceptor.accept(stream).await else { continue };
            let answer = service_fn(async |_: axum::http::Request<Incoming>| {
                let body = axum::body::Body::from(r#"{"propertySources": []}"#);
                Ok::<_, std::convert::Infallible>(Response::new(body))
            });
            let stream = hyper_util::rt::TokioIo::new(stream);
            let _ = hyper::server::conn::http1::Builder::new().serve_connection(stream, answer).await;
        }
    });
    let read = async |host: &str, pem: Option<String>| {
        let file = pem.map(|pem| password(&pem));
        let access =
            HttpAccess { authority: file.as_ref().map(|(_, path)| path.clone()), ..HttpAccess::default() };
        config_server(&format!("https://{host}:{port}"), access).read().await.map(drop)
    };
    read("localhost", Some(authority.pem())).await.expect("the right authority");
    read("localhost", Some(other.pem())).await.expect_err("another authority");
    read("127.0.0.1", Some(authority.pem())).await.expect_err("another name");
    read("localhost", None).await.expect_err("not an authority of the system");
}
