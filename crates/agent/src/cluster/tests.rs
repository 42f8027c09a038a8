//! Requests against a real TLS server in the process.

use std::fmt::Write;

use sha2::{Digest, Sha256};
use tokio::net::TcpListener;

use super::*;
use kubesvc_core::kubeconfig::vet;
use kubesvc_core::wire::common::Failure;
use kubesvc_core::wire::common::failure::Class;

mod checks;
mod exchanges;
mod pools;
pub(crate) mod test_server;

use test_server::{Authority, Reply, TestServer, json, kubeconfig};

const TOKEN: &str = "eyJhbGciOiJSUzI1NiIsImtpZCI6IlNlY3JldFRva2VuIn0.c2VjcmV0LXRva2VuLWJvZHk.c2lnbmF0dXJl";
const QUICK: Limits = Limits {
    wait: Duration::from_secs(30),
    connect: Duration::from_secs(5),
    answer: Duration::from_secs(5),
    body: 64 * 1024,
};

fn cluster(server: &str, authority: Option<&Authority>) -> ClusterEndpoint {
    let pem = authority.map(Authority::pem);
    let vetted = vet(&kubeconfig(server, pem.as_deref(), TOKEN), None).expect("a good kubeconfig");
    ClusterEndpoint::new(vetted, &AgentPolicy::default())
}

async fn get_in(context: &ClusterContext, cluster: &ClusterEndpoint) -> Result<ClusterDocument, Failure> {
    let client = ClusterClient::new(cluster.clone(), context)?;
    Ok(client.get(Use::Activation, "/version", "application/json").await?)
}

async fn get(cluster: &ClusterEndpoint, limits: Limits) -> Result<ClusterDocument, Failure> {
    get_in(&ClusterContext { limits, ..ClusterContext::default() }, cluster).await
}

async fn failure_of(reply: impl Fn(&str) -> Reply + Send + Sync + 'static) -> Failure {
    let authority = Authority::new();
    let server = TestServer::start(&authority, reply).await;
    let failure = get(&cluster(&server.url(), Some(&authority)), QUICK).await.expect_err("a failure");
    assert!(failure.message.contains(&server.url()), "{}", failure.message);
    assert!(failure.message.len() <= 1024);
    failure
}

#[tokio::test]
async fn requests_share_a_connection_and_carry_the_token() {
    let authority = Authority::new();
    let server = TestServer::start(&authority, |_| json(200, "{}")).await;
    let with_path = format!("{}/k8s/clusters/c-1/", server.url());
    let cluster = cluster(&with_path, Some(&authority));
    let client = ClusterClient::new(cluster, &ClusterContext::default()).expect("a client");
    for path in ["/version", "/api?x=1"] {
        client.get(Use::Activation, path, "application/json").await.expect("an answer");
    }
    assert_eq!(server.accepted(), 1);
    assert_eq!(server.paths(), ["/k8s/clusters/c-1/version", "/k8s/clusters/c-1/api?x=1"]);
    for asked in server.asked.lock().iter() {
        assert_eq!(asked.authorization, format!("Bearer {TOKEN}"));
        assert_eq!(asked.encodings, "identity");
    }
}

#[tokio::test]
async fn the_fingerprint_is_that_of_the_served_certificate() {
    let authority = Authority::new();
    let server = TestServer::start(&authority, |_| json(200, "{}")).await;
    let mut expected = String::new();
    for (at, byte) in Sha256::digest(&server.leaf).iter().enumerate() {
        let colon = if at == 0 { "" } else { ":" };
        write!(expected, "{colon}{byte:02X}").expect("a string");
    }
    for (authority, insecure) in [(Some(&authority), false), (None, true)] {
        let pem = authority.map(Authority::pem);
        let vetted = vet(&kubeconfig(&server.url(), pem.as_deref(), TOKEN), None).expect("good");
        let vetted = vetted.with_insecure(insecure).expect("no authority beside it");
        let read = get(&ClusterEndpoint::new(vetted, &AgentPolicy::default()), QUICK).await;
        assert_eq!(read.expect("an answer").server.fingerprint, expected);
    }
}

#[tokio::test]
async fn verifying_authority_is_identified_by_its_public_key_if_the_cluster_has_its_own() {
    let (authority, other) = (Authority::new(), Authority::new());
    let server = TestServer::start(&authority, |_| json(200, "{}")).await;
    let expected = hex::encode(Sha256::digest(authority.public_key()));
    let both = [other.pem(), authority.pem()].concat();
    for (pem, insecure, expected) in [
        (Some(authority.pem()), false, expected.as_str()),
        (Some(both), false, expected.as_str()),
        (None, true, ""),
    ] {
        let vetted = vet(&kubeconfig(&server.url(), pem.as_deref(), TOKEN), None).expect("good");
        let vetted = vetted.with_insecure(insecure).expect("no authority beside it");
        let cluster = ClusterEndpoint::new(vetted, &AgentPolicy::default());
        let read = get(&cluster, QUICK).await.expect("an answer");
        assert_eq!(read.server.authority_key_digest, expected);
    }
}

#[tokio::test]
async fn a_certificate_of_another_authority_is_a_tls_failure_with_a_remedy() {
    let server = TestServer::start(&Authority::new(), |_| json(200, "{}")).await;
    let failure = get(&cluster(&server.url(), Some(&Authority::new())), QUICK).await.expect_err("a failure");
    assert_eq!(failure.class(), Class::Tls);
    assert!(failure.retryable && failure.before_send);
    assert!(failure.message.contains("certificate-authority-data"), "{}", failure.message);
    assert!(server.asked.lock().is_empty());
}

#[tokio::test]
async fn a_certificate_for_another_name_is_a_tls_failure() {
    let authority = Authority::new();
    let server = TestServer::start(&authority, |_| json(200, "{}")).await;
    let mut cluster = cluster(&server.url(), Some(&authority));
    cluster.tls_server_name = Some("kubernetes.example".to_owned());
    let failure = get(&cluster, QUICK).await.expect_err("a failure");
    assert_eq!(failure.class(), Class::Tls);
    assert!(failure.message.contains("tls-server-name"), "{}", failure.message);
}

#[tokio::test]
async fn a_served_certificate_that_is_an_authority_itself_needs_no_path() {
    let itself = Authority::served(|_| {});
    let issued = Authority::new();
    for authority in [&itself, &issued] {
        let server = TestServer::start(authority, |_| json(200, "{}")).await;
        let pem = format!(
            "-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n",
            base64::Engine::encode(&base64::engine::general_purpose::STANDARD, &server.leaf)
        );
        let vetted = vet(&kubeconfig(&server.url(), Some(pem.as_bytes()), TOKEN), None).expect("good");
        let mut cluster = ClusterEndpoint::new(vetted, &AgentPolicy::default());
        let read = get(&cluster, QUICK).await.expect("an answer");
        assert_ne!(read.server.authority_key_digest, "", "it identifies the cluster");
        cluster.tls_server_name = Some("kubernetes.example".to_owned());
        let failure = get(&cluster, QUICK).await.expect_err("another name");
        assert!(failure.message.contains("tls-server-name"), "{}", failure.message);
    }
    let expired = Authority::served(|params| params.not_after = rcgen::date_time_ymd(2001, 1, 1));
    let server = TestServer::start(&expired, |_| json(200, "{}")).await;
    let failure = get(&cluster(&server.url(), Some(&expired)), QUICK).await.expect_err("it has expired");
    assert!(failure.message.contains("has expired"), "{}", failure.message);
}

#[tokio::test]
async fn a_certificate_of_an_authority_that_is_not_trusted_itself_is_explained_without_debug_text() {
    let server = TestServer::start(&Authority::served(|_| {}), |_| json(200, "{}")).await;
    let failure = get(&cluster(&server.url(), Some(&Authority::new())), QUICK).await.expect_err("a failure");
    assert!(failure.message.contains("CA:TRUE"), "{}", failure.message);
    assert!(!failure.message.contains("CaUsedAsEndEntity"), "{}", failure.message);
}

#[tokio::test]
async fn authorities_are_parsed_once() {
    let (authority, context) = (Authority::new(), ClusterContext::default());
    let server = TestServer::start(&authority, |_| json(200, "{}")).await;
    let cluster = cluster(&server.url(), Some(&authority));
    for _ in 0..3 {
        get_in(&context, &cluster).await.expect("an answer");
    }
    assert_eq!(context.trust.authorities_kept(), 1);
}

#[tokio::test]
async fn answers_are_classified() {
    for (status, class, retryable) in [
        (401, Class::Auth, false),
        (403, Class::Forbidden, false),
        (404, Class::NotFound, false),
        (429, Class::Unreachable, true),
        (503, Class::Unreachable, true),
        (418, Class::Discovery, true),
    ] {
        let failure =
            failure_of(move |_| json(status, r#"{"kind":"Status","apiVersion":"v1","message":"so it is"}"#))
                .await;
        assert_eq!((failure.class(), failure.retryable), (class, retryable), "{status}");
        assert_eq!(failure.http_status, i32::from(status));
        assert!(
            failure.message.contains("so it is") && failure.message.contains("GET /version"),
            "{failure:?}"
        );
    }
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let failure =
        failure_of(|_| Reply { location: Some("https://elsewhere.example/"), ..json(302, "") }).await;
    assert!(failure.message.contains("a redirect, and"), "{}", failure.message);
    assert!(!failure.message.contains("elsewhere.example"), "where to is not told: {}", failure.message);
}

#[tokio::test]
async fn an_answer_that_takes_too_long_is_given_up() {
    let authority = Authority::new();
    let server =
        TestServer::start(&authority, |_| Reply { after: Duration::from_secs(60), ..json(200, "{}") }).await;
    let limits = Limits { answer: Duration::from_millis(100), ..QUICK };
    let failure = get(&cluster(&server.url(), Some(&authority)), limits).await.expect_err("a failure");
    assert_eq!(failure.class(), Class::Timeout);
    assert!(failure.retryable && failure.message.contains("within 100 ms"), "{}", failure.message);
}

#[tokio::test]
async fn an_answer_that_is_too_large_is_given_up() {
    let failure = failure_of(|_| json(200, vec![b' '; 100_000])).await;
    assert_eq!(failure.class(), Class::TooLarge);
}

#[tokio::test]
async fn an_echoed_token_is_not_shown() {
    let woven: String = TOKEN.chars().flat_map(|letter| [letter, '\u{200b}']).collect();
    let part = &TOKEN[10..40];
    for said in [TOKEN.to_owned(), format!("no: Bearer {TOKEN}!"), woven, format!("<{part}>")] {
        let failure = failure_of(move |_| json(403, status(&said))).await;
        for stretch in TOKEN.as_bytes().windows(8) {
            let stretch = std::str::from_utf8(stretch).expect("ASCII");
            assert!(!failure.message.contains(stretch), "{}", failure.message);
        }
        assert!(failure.message.contains("[redacted]"), "{}", failure.message);
    }
}

#[tokio::test]
async fn text_from_a_server_is_truncated_and_cleaned() {
    let failure = failure_of(|_| json(403, status(&format!("a\u{1b}[31m\r\nb{}", "x".repeat(900))))).await;
    assert!(!failure.message.contains(char::is_control));
    assert!(failure.message.contains("a[31mbxx") && failure.message.len() < 700, "{}", failure.message);
}

/// A Kubernetes Status as an API server sends it.
fn status(message: &str) -> String {
    serde_json::json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message})
        .to_string()
}

/// A user who can write a kubeconfig can name any server that the agent reaches, and read the status.
#[tokio::test]
async fn answer_without_a_status_is_reported_by_code_and_length_only() {
    for body in [
        "the inner page".to_owned(),
        r#"{"message":"the inner page"}"#.to_owned(),
        r#"{"kind":"Status","message":"the inner page"}"#.to_owned(),
        r#"{"kind":"Page","apiVersion":"v1","message":"the inner page"}"#.to_owned(),
        format!("the inner page{}", "x".repeat(100_000)),
    ] {
        let length = body.len();
        let failure = failure_of(move |_| json(404, body.clone())).await;
        let told =
            if length > 65_536 { "more than 65536 bytes".to_owned() } else { format!("{length} bytes") };
        assert!(failure.message.contains(&told) && failure.message.contains("404"), "{}", failure.message);
        assert!(!failure.message.contains("inner"), "{}", failure.message);
    }
}

#[tokio::test]
async fn address_forbidden_by_the_policy_is_not_dialled() {
    let authority = Authority::new();
    let server = TestServer::start(&authority, |_| json(200, "{}")).await;
    let localhost = format!("https://localhost:{}", server.address.port());
    let elsewhere =
        |entry: &str| AgentPolicy { servers: [entry.parse().expect(entry)].into(), ..AgentPolicy::default() };
    for (url, policy, said) in [
        ("https://169.254.169.254", AgentPolicy::default(), "link-local"),
        ("https://100.100.100.200", AgentPolicy::default(), "metadata"),
        ("https://[::ffff:168.63.129.16]", AgentPolicy::default(), "metadata"),
        (
            &server.url(),
            AgentPolicy { loopback: false, ..AgentPolicy::default() },
            "kubernetes.policy.loopback",
        ),
        (&localhost, AgentPolicy { loopback: false, ..AgentPolicy::default() }, "kubernetes.policy.loopback"),
        (&localhost, elsewhere("10.0.0.0/8"), "kubernetes.policy.servers"),
        (&localhost, elsewhere("api.example"), "kubernetes.policy.servers"),
        (&localhost, elsewhere("localhost:1"), "kubernetes.policy.servers"),
    ] {
        let mut cluster = cluster("https://api.example", Some(&authority));
        cluster.server = Url::parse(url).expect("a URL");
        cluster.policy = policy;
        let failure = get(&cluster, QUICK).await.expect_err("a failure");
        assert_eq!(failure.class(), Class::Forbidden, "{url}: {failure:?}");
        assert!(failure.message.starts_with("policy: ") && failure.message.contains(said), "{failure:?}");
        assert!(failure.before_send && !failure.retryable);
    }
    let mut open = cluster(&server.url(), None);
    (open.insecure, open.policy.insecure) = (true, false);
    let failure = get(&open, QUICK).await.expect_err("a failure");
    assert!(failure.message.starts_with("policy: ") && failure.message.contains("insecure"), "{failure:?}");
    assert!(server.asked.lock().is_empty());
    for entry in ["localhost", "127.0.0.0/8", "[::1]"] {
        let mut cluster = cluster(&localhost, Some(&authority));
        cluster.policy = AgentPolicy {
            servers: [entry.parse().expect(entry), "127.0.0.1".parse().expect("an entry")].into(),
            ..AgentPolicy::default()
        };
        get(&cluster, QUICK).await.expect(entry);
    }
}

#[tokio::test]
async fn a_closed_port_is_unreachable() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("https://{}", listener.local_addr().expect("an address"));
    drop(listener);
    let failure = get(&cluster(&url, Some(&Authority::new())), QUICK).await.expect_err("a failure");
    assert_eq!(failure.class(), Class::Unreachable);
    assert!(failure.retryable && failure.before_send);
}

#[tokio::test]
async fn a_server_that_does_not_shake_hands_times_out() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("https://{}", listener.local_addr().expect("an address"));
    let limits = Limits { connect: Duration::from_millis(200), ..QUICK };
    let failure = get(&cluster(&url, Some(&Authority::new())), limits).await.expect_err("a failure");
    assert_eq!(failure.class(), Class::Timeout);
}

#[tokio::test]
async fn a_server_without_tls_is_named_as_such() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("https://{}", listener.local_addr().expect("an address"));
    tokio::spawn(async move {
        use tokio::io::AsyncWriteExt;
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
        }
    });
    let failure = get(&cluster(&url, Some(&Authority::new())), QUICK).await.expect_err("a failure");
    assert_eq!(failure.class(), Class::Tls);
    assert!(failure.message.contains("does not speak TLS"), "{}", failure.message);
}
