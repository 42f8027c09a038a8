//! Calls that are refused: each with a Status that says why, and the next good one works.

use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Version};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use std::str::FromStr as _;
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto::ring};

use super::place::{EVERYTHING, Place, READING, path_of};
use kubesvc_testkit::kubeconfig::{Authority, Identity};
use kubesvc_testkit::must;

/// An answer of the gateway.
#[derive(Debug)]
pub(crate) struct Answered {
    pub(crate) code: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Value,
}

/// Connects to the gateway over TLS.
pub(crate) async fn connect(place: &Place, identity: Option<&Identity>) -> TlsStream<TcpStream> {
    connect_to(place.port, &place.authority, identity).await
}

/// Connects to a port of this machine over TLS.
pub(super) async fn connect_to(
    port: u16,
    authority: &str,
    identity: Option<&Identity>,
) -> TlsStream<TcpStream> {
    let stream = TcpStream::connect(("127.0.0.1", port)).await.expect("it listens");
    let name = ServerName::try_from("localhost").expect("a name");
    connector(authority, identity).connect(name, stream).await.expect("a good certificate")
}

/// TLS with a server of this authority.
pub(crate) fn connector(authority: &str, identity: Option<&Identity>) -> TlsConnector {
    TlsConnector::from(Arc::new(client_config(authority, identity)))
}

pub(crate) fn client_config(authority: &str, identity: Option<&Identity>) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(authority.as_bytes()) {
        roots.add(certificate.expect("PEM")).expect("an authority");
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots);
    match identity {
        None => config.with_no_client_auth(),
        Some(identity) => {
            let chain = vec![CertificateDer::from_pem_slice(identity.certificate.as_bytes()).expect("PEM")];
            let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).expect("a key");
            config.with_client_auth_cert(chain, key).expect("a certificate")
        }
    }
}

/// Sends a request with these headers.
pub(crate) async fn send(
    place: &Place,
    method: Method,
    path: &str,
    headers: &[(&str, &str)],
    body: impl Into<Bytes>,
    identity: Option<&Identity>,
) -> Result<Answered, String> {
    let stream = connect(place, identity).await;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|e| e.to_string())?;
    tokio::spawn(connection);
    let mut request = Request::new(Full::new(body.into()));
    *request.method_mut() = method;
    *request.uri_mut() = path.parse().map_err(|e| format!("{path:?}: {e}"))?;
    *request.version_mut() = Version::HTTP_11;
    request.headers_mut().insert("host", HeaderValue::from_static("localhost"));
    for (name, value) in headers {
        let name = HeaderName::from_str(name).map_err(|e| e.to_string())?;
        request.headers_mut().append(name, HeaderValue::from_str(value).map_err(|e| e.to_string())?);
    }
    let response = sender.send_request(request).await.map_err(|e| e.to_string())?;
    let (head, body) = response.into_parts();
    let body = body.collect().await.map_err(|e| e.to_string())?.to_bytes();
    let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
    Ok(Answered { code: head.status.as_u16(), headers: head.headers, body })
}

/// Gets a path with a token.
pub(crate) async fn get(place: &Place, path: &str, token: &str) -> Result<Answered, String> {
    let bearer = format!("Bearer {token}");
    send(place, Method::GET, path, &[("authorization", &bearer)], "", None).await
}

fn assert_refused(answered: &Answered, code: u16, what: &str) {
    assert_eq!(answered.code, code, "{what}: {answered:?}");
    assert_eq!(answered.body["kind"], "Status", "{what}: {answered:?}");
    assert_eq!(answered.body["code"], code, "{what}");
    let message = answered.body["message"].as_str().unwrap_or_default();
    assert!(!message.contains("forbidden") && !message.contains("NotFound"), "{what}: {message}");
    assert!(answered.headers.contains_key("audit-id"), "{what}");
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_calls_say_why_and_the_next_good_one_works() {
    let place = Place::start(false).await;
    let token = place.person("ann", EVERYTHING, Some("kubesvc")).await;
    let reader = place.person("bob", READING, Some("kubesvc")).await;
    let stranger = place.person("eve", "[]", Some("kubesvc")).await;
    let other_audience = place.token("ann", None).await;
    let (ann, proxy) = (format!("Bearer {token}"), place.path());
    let pods = format!("{proxy}/api/v1/namespaces/default/pods");
    let good = async || {
        let answered = get(&place, &pods, &token).await.expect("an answer");
        assert_eq!((answered.code, &answered.body["kind"]), (200, &"PodList".into()));
    };
    good().await;

    // Who calls.
    for (what, headers) in [
        ("no token", vec![]),
        ("another audience", vec![("authorization", format!("Bearer {other_audience}"))]),
        ("no token at all", vec![("authorization", "Bearer nonsense".to_owned())]),
        ("a password", vec![("authorization", "Basic YTpi".to_owned())]),
        (
            "headers of the front proxy without its certificate",
            vec![("x-remote-user", "root".to_owned()), ("x-remote-group", "system:masters".to_owned())],
        ),
    ] {
        let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let answered = must(send(&place, Method::GET, &pods, &headers, "", None).await);
        assert_refused(&answered, 401, what);
    }
    let forged = must(must(Authority::new("front proxy")).client("front-proxy-client", None));
    let headers = [("x-remote-user", "root"), ("x-remote-group", "system:masters")];
    let answered = must(send(&place, Method::GET, &pods, &headers, "", Some(&forged)).await);
    assert_refused(&answered, 401, "a certificate of another authority");
    good().await;

    // What they may.
    assert_refused(&must(get(&place, &pods, &stranger).await), 403, "no rights");
    let bob = format!("Bearer {reader}");
    let written =
        send(&place, Method::DELETE, &format!("{pods}/x"), &[("authorization", &bob)], "", None).await;
    assert_refused(&must(written), 403, "only reading");
    let exec = format!("{pods}/x/exec?command=sh");
    assert_refused(&must(get(&place, &exec, &reader).await), 403, "no right to connect");
    for (name, value) in [
        ("impersonate-user", "root"),
        ("Impersonate-Extra-x", "y"),
        ("x-spinnaker-accounts", "other,another"),
    ] {
        let headers = [("authorization", ann.as_str()), (name, value)];
        assert_refused(&must(send(&place, Method::GET, &pods, &headers, "", None).await), 403, name);
    }
    let named = [("authorization", ann.as_str()), ("x-spinnaker-accounts", "other, prod")];
    assert_eq!(must(send(&place, Method::GET, &pods, &named, "", None).await).code, 200);

    // Which path.
    for (rest, code) in [
        ("/api/v1/../v1/pods", 400),
        ("/api/v1/%2e%2e/pods", 400),
        ("/api/v1/%252e%252e/pods", 400),
        ("//api", 400),
        ("/api//v1", 400),
        ("/api/v1/pods%00", 400),
        ("/api/v1/pods%0a", 400),
        ("/api/v1/pods%zz", 400),
        ("/api/v1/pods%", 400),
        ("/api/v1/p%5cods", 400),
    ] {
        let answered = must(get(&place, &format!("{proxy}{rest}"), &token).await);
        if rest == "/api/v1/p%5cods" {
            assert!(answered.code >= 400, "{rest}");
            continue;
        }
        assert_refused(&answered, code, rest);
    }
    let long = format!("{proxy}/api/v1/pods?labelSelector={}", "a".repeat(33 * 1024));
    assert_refused(&must(get(&place, &long, &token).await), 400, "a long path");
    for path in ["/", "/apis/apps/v1/deployments", "/api/v1/pods", "/metrics"] {
        assert_refused(&must(get(&place, path, &token).await), 404, path);
    }
    let absolute = format!("https://localhost{pods}");
    let headers = [("authorization", ann.as_str())];
    assert_refused(
        &must(send(&place, Method::GET, &absolute, &headers, "", None).await),
        400,
        "absolute form",
    );
    let options = send(&place, Method::OPTIONS, &pods, &headers, "", None).await;
    assert_refused(&must(options), 405, "OPTIONS");
    let lines = super::doors::audit_lines(&place.world.operator().log_text());
    let has_line = |code: u16| lines.iter().any(|line| line["message"] == "refusal" && line["code"] == code);
    for code in [400, 401, 403, 404, 405] {
        assert!(has_line(code), "an audit line for a refusal with {code}");
    }

    // How much.
    let large = vec![b'x'; 9 * 1024 * 1024];
    if let Ok(answered) = send(&place, Method::POST, &pods, &headers, large, None).await {
        assert_refused(&answered, 413, "9 MiB");
    }
    let header = "x".repeat(65 * 1024);
    let headers = [("authorization", ann.as_str()), ("x-long", header.as_str())];
    let answered = must(send(&place, Method::GET, &pods, &headers, "", None).await);
    assert!((400..500).contains(&answered.code), "65 KiB of headers: {answered:?}");
    good().await;

    // Which account.
    let namespace = place.world.namespace();
    let unknown = format!("{}/version", path_of(namespace, "unknown"));
    let answered = must(get(&place, &unknown, &token).await);
    assert_refused(&answered, 503, "an account that does not exist");
    assert!(!answered.headers.contains_key("retry-after"));
    place.world.account("other").zone("north").kubeconfig(&place.target.admin_kubeconfig()).create().await;
    let inactive = format!("{}/version", path_of(namespace, "other"));
    kubesvc_testkit::wait::eventually(
        "an account that the gateway knows",
        crate::world::MAX_WAIT,
        async || {
            let answered = get(&place, &inactive, &token).await?;
            let message = answered.body["message"].as_str().unwrap_or_default().to_owned();
            if answered.code == 503 && message.contains("other") { Ok(()) } else { Err(message) }
        },
    )
    .await;
    good().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_is_away_makes_callers_wait_and_its_return_ends_that() {
    let place = Place::start(false).await;
    let token = place.person("ann", EVERYTHING, Some("kubesvc")).await;
    let version = format!("{}/version", place.path());
    assert_eq!(must(get(&place, &version, &token).await).code, 200);
    place.agent.kill();
    let answered =
        kubesvc_testkit::wait::eventually("an agent that is away", crate::world::MAX_WAIT, async || {
            let answered = get(&place, &version, &token).await?;
            if answered.code == 503 { Ok(answered) } else { Err(format!("{answered:?}")) }
        })
        .await;
    assert_refused(&answered, 503, "no agent");
    place.agent.launch();
    kubesvc_testkit::wait::eventually("an agent that is back", crate::world::MAX_WAIT, async || {
        let answered = get(&place, &version, &token).await?;
        if answered.code == 200 { Ok(()) } else { Err(format!("{answered:?}")) }
    })
    .await;
}
