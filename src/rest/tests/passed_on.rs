//! Calls that are passed on to a scripted Clouddriver: what it is sent, what the caller gets, and what becomes of the
//! account here.

use std::collections::BTreeSet;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

use super::fake_api::FakeApi;
use super::*;
use crate::clouddriver::{ClouddriverClient, ClouddriverProxy, ClouddriverTlsFiles, RenewedTls};
use crate::credentials_sources::{CredentialsSource, SourceReadError};
use kubesvc_clouddriver::sources::{Completeness, SourceSnapshot, read_row};
use kubesvc_store::{IntentRow, PushedRow};

mod rights;
mod settled;

/// A Clouddriver that answers each call that is passed on with these bytes, and closes its connection. What kubesvc itself
/// asks, it answers with a list of accounts.
struct Clouddriver {
    url: String,
    /// Names of its accounts; `None`: it does not answer.
    has: Arc<Mutex<Option<Vec<&'static str>>>>,
    asked: Arc<Mutex<Vec<String>>>,
    _serving: AbortOnDropHandle<()>,
}

const STORED: &str =
    "HTTP/1.1 200 OK\r\nContent-Type: application/json;charset=UTF-8\r\nContent-Length: 2\r\n\r\n{}";
const REMOVED: &str = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";

impl Clouddriver {
    async fn answering(answer: impl Into<Vec<u8>>) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}/cd/", listener.local_addr().expect("bound"));
        let (asked, answer) = (Arc::<Mutex<Vec<String>>>::default(), answer.into());
        let seen = Arc::clone(&asked);
        let has = Arc::new(Mutex::new(Some(Vec::new())));
        let listed = Arc::clone(&has);
        let serving = tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut request = Vec::new();
                while !is_whole(&request) {
                    if stream.read_buf(&mut request).await.unwrap_or_default() == 0 {
                        break;
                    }
                }
                let request = String::from_utf8_lossy(&request).into_owned();
                let answer = if request.contains("kubesvc-operator/") {
                    let names: Option<Vec<&str>> = listed.lock().clone();
                    names.map_or_else(Vec::new, |names| own_answer(&request, &names))
                } else {
                    seen.lock().push(request);
                    answer.clone()
                };
                let _ = stream.write_all(&answer).await;
            }
        });
        Self { url, has, asked, _serving: AbortOnDropHandle::new(serving) }
    }
}

/// The answer to a call of kubesvc's own: the list of the accounts, or no stored definition.
fn own_answer(request: &str, names: &[&str]) -> Vec<u8> {
    let listed: Vec<Value> = names.iter().map(|name| json!({"name": name})).collect();
    let body = if request.contains("/credentials/type/") { json!([]) } else { json!(listed) }.to_string();
    let length = body.len();
    format!("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}")
        .into()
}

/// A credentials source with accounts of these names.
struct Listed {
    name: Arc<str>,
    names: Vec<&'static str>,
    is_table: bool,
}

#[async_trait]
impl CredentialsSource for Listed {
    fn interval(&self) -> Duration {
        Duration::from_secs(60)
    }

    fn is_table(&self) -> bool {
        self.is_table
    }

    async fn read(&self) -> Result<Arc<SourceSnapshot>, SourceReadError> {
        let row = |name: &&str| read_row(&self.name, name, "{}", "1".to_owned());
        let items: Vec<_> = self.names.iter().map(row).collect();
        Ok(Arc::new(SourceSnapshot::of(&self.name, items, Completeness::Complete)))
    }
}

/// Whether all of a request has arrived.
fn is_whole(request: &[u8]) -> bool {
    let text = String::from_utf8_lossy(request).into_owned();
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let length = head
        .lines()
        .find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
    body.len() >= length.unwrap_or(0)
}

struct Rest {
    api: Arc<FakeApi>,
    store: Arc<NoStore>,
    clouddriver: Clouddriver,
    state: RestState,
    router: Router,
}

impl Rest {
    async fn beside(answer: impl Into<Vec<u8>>) -> Self {
        Self::with(Clouddriver::answering(answer).await, |_| ()).await
    }

    async fn with(clouddriver: Clouddriver, change: impl FnOnce(&mut AccountManagementPorts)) -> Self {
        Self::reading(&[], clouddriver, change).await
    }

    /// With these sources: a name, its accounts, and whether it reads Clouddriver's table.
    async fn reading(
        sources: &[(&str, &[&'static str], bool)],
        clouddriver: Clouddriver,
        change: impl FnOnce(&mut AccountManagementPorts),
    ) -> Self {
        let (api, store) = (Arc::<FakeApi>::default(), Arc::<NoStore>::default());
        let tls = Arc::new(RenewedTls::read(ClouddriverTlsFiles::default()).await.expect("no files"));
        let client =
            ClouddriverClient::new(clouddriver.url.parse().expect("a URL"), "kubesvc", Arc::clone(&tls));
        let mut ports = AccountManagementPorts {
            proxy: ClouddriverProxy::new(&clouddriver.url, tls, "uid-1").expect("a proxy"),
            accounts: Arc::new(client.expect("a client")),
            passes_all: false,
            passes_secrets: false,
            follows: true,
            poll: Duration::from_secs(30),
        };
        change(&mut ports);
        let mut state = state_of(settings(), &[], api.client());
        state.ports.store = Arc::<NoStore>::clone(&store);
        state.ports.credentials = Some(Arc::new(AccountManagement::new(ports)));
        let readers = sources.iter().map(|&(name, names, is_table)| {
            let name: Arc<str> = Arc::from(name);
            let names = names.to_vec();
            let reader: Box<dyn CredentialsSource> =
                Box::new(Listed { name: Arc::clone(&name), names, is_table });
            (name, reader)
        });
        let sources = Arc::new(CredentialsSources::of(readers.collect()));
        state.ports.source_accounts =
            Arc::new(SourceAccounts { sources, ..(*state.source_accounts).clone() });
        state.accounts.sync();
        Self { api, store, clouddriver, state: state.clone(), router: router(state) }
    }

    async fn send(&self, request: Request<Body>) -> TestResponse {
        send(self.router.clone(), request).await
    }

    async fn call(&self, method: &str, path: &str, body: Value) -> TestResponse {
        let request = Request::builder().method(method).uri(path);
        let request = request.header(header::CONTENT_TYPE, "application/json");
        self.send(request.body(Body::from(body.to_string())).expect("a request")).await
    }

    fn account(&self, name: &str) -> Option<Value> {
        self.api.get(&format!("/kubesvcaccounts/{name}"))
    }

    fn put_account(&self, name: &str, metadata: &Value) {
        let mut account = json!({
            "apiVersion": "kubesvc.io/v1alpha1", "kind": "KubesvcAccount", "metadata": metadata,
            "spec": {"kubeconfig": {"reference": "encryptedFile:k8s!n:a!k:b"}, "environment": "old", "zoneId": "east"},
        });
        account["metadata"]["name"] = json!(name);
        account["metadata"]["namespace"] = json!("ns");
        account["metadata"]["uid"] = json!("uid-of-it");
        account["metadata"]["resourceVersion"] = json!("7");
        self.api.put(&format!("/apis/kubesvc.io/v1alpha1/namespaces/ns/kubesvcaccounts/{name}"), account);
    }

    /// Makes a name one that kubesvc registered in Clouddriver.
    fn register(&self, name: &str) {
        self.store.pushed.lock().push(PushedRow {
            name: name.to_owned(),
            account_uid: "uid-1".to_owned(),
            state: "ADDED".to_owned(),
            body_version: 1,
            body_hash: None,
            pushed_at: None,
        });
    }

    fn tries(&self) -> Vec<i32> {
        self.store.intents.lock().iter().map(|row| row.tries).collect()
    }
}

fn definition(name: &str) -> Value {
    json!({"type": "kubernetes", "name": name, "kubeconfigContents": kubeconfig("s3cret"), "environment": "new"})
}

fn result(answer: &TestResponse) -> String {
    let result =
        answer.headers.get("x-kubesvc-result").map(|value| value.to_str().expect("ASCII").to_owned());
    result.unwrap_or_default()
}

#[tokio::test]
async fn path_query_headers_and_bodies_are_passed_on_as_they_are() {
    let body: Vec<u8> = (0..=255).collect();
    let mut answer =
        b"HTTP/1.1 418 Odd\r\nContent-Type: x/y\r\nX-A: 1\r\nX-A: 2\r\nConnection: x-hop\r\nX-Hop: 1\r\n\
        Transfer-Encoding: chunked\r\n\r\n100\r\n"
            .to_vec();
    answer.extend_from_slice(&body);
    answer.extend_from_slice(b"\r\n0\r\n\r\n");
    let rest = Rest::beside(answer).await;
    let path = "/credentials/a%2Fb/x;y=1?q=%zz&a=../..&b=%C3%A4";
    let large = "x".repeat(64 * 1024);
    let request = Request::builder()
        .method("PATCH")
        .uri(path)
        .header("host", "kubesvc.example")
        .header("authorization", "Basic abc")
        .header("x-spinnaker-user", "ann")
        .header("x-spinnaker-accounts", "a,b")
        .header("x-large", &large)
        .header("x-bytes", header::HeaderValue::from_bytes(b"\xff\t").expect("allowed"))
        .header("connection", "close, X-Named")
        .header("x-named", "1")
        .header("keep-alive", "1")
        .header("te", "trailers")
        .header("upgrade", "h2c")
        .header("proxy-authorization", "x")
        .header("via", "1.1 another");
    let response = rest.router.clone().oneshot(request.body(Body::from("body")).expect("a request")).await;
    let response = response.expect("the router never fails");
    assert_eq!(response.status().as_u16(), 418);
    let values = |name: &str| response.headers().get_all(name).iter().count();
    assert_eq!((values("x-a"), values("x-hop"), values("connection")), (2, 0, 0));
    assert_eq!(response.into_body().collect().await.expect("a body").to_bytes(), body);

    let asked = rest.clouddriver.asked.lock().join("").to_lowercase();
    assert!(asked.starts_with(&format!("patch /cd{path} http/1.1\r\n").to_lowercase()), "{asked:.200}");
    let host = rest.clouddriver.url.trim_start_matches("http://").trim_end_matches("/cd/").to_owned();
    let expected = [
        format!("host: {host}"),
        "authorization: basic abc".to_owned(),
        "x-spinnaker-user: ann".to_owned(),
        "x-spinnaker-accounts: a,b".to_owned(),
        format!("x-large: {large}"),
        "via: 1.1 another".to_owned(),
        "via: 1.1 kubesvc-uid-1".to_owned(),
        "content-length: 4".to_owned(),
    ];
    for line in expected {
        assert!(asked.contains(&format!("\r\n{line}\r\n")), "{line:.60}");
    }
    let names: BTreeSet<&str> = asked.lines().filter_map(|line| Some(line.split_once(": ")?.0)).collect();
    for name in
        ["connection", "x-named", "keep-alive", "te", "upgrade", "proxy-authorization", "transfer-encoding"]
    {
        assert!(!names.contains(name), "{name}");
    }
    assert!(asked.ends_with("\r\n\r\nbody"));
}

#[tokio::test]
async fn what_is_refused_here_is_not_sent() {
    let rest = Rest::beside(STORED).await;
    let json = |method: &str, path: &str| Request::builder().method(method).uri(path);
    let large = || Body::from("x".repeat(64 * 1024 + 1));
    let loops = json("GET", "/credentials").header("via", "1.0 a, 1.1 kubesvc-uid-1");
    let form = json("POST", "/credentials").header("content-type", "text/plain;charset=UTF-8");
    let page = json("GET", "/credentials").header("sec-fetch-site", "cross-site");
    for (request, body, status) in [
        (loops, Body::empty(), 508),
        (form, Body::from("{}"), 415),
        (page, Body::empty(), 403),
        (json("PUT", "/credentials"), large(), 413),
        (json("GET", "/credentials/type/kubernetes"), Body::empty(), 403),
        (json("GET", "/credentials/%74ype/kubernetes?limit=1"), Body::empty(), 403),
        (json("GET", "/credentials/a/history"), Body::empty(), 403),
        (json("GET", "/credentials/%2e%2e/env"), Body::empty(), 404),
        (json("GET", "/applications"), Body::empty(), 404),
    ] {
        let request = request.body(body).expect("a request");
        let (path, method) = (request.uri().path().to_owned(), request.method().clone());
        let answer = rest.send(request).await;
        assert_eq!(answer.status, status, "{method} {path} {}", answer.text);
        assert!(!answer.message(&path).is_empty());
    }
    assert_eq!(rest.clouddriver.asked.lock().len(), 0);
    assert_eq!(rest.tries(), [0; 0]);
}

#[tokio::test]
async fn with_pass_through_all_only_own_paths_stay() {
    let clouddriver = Clouddriver::answering(STORED).await;
    let rest = Rest::with(clouddriver, |ports| ports.passes_all = true).await;
    for (method, path) in
        [("GET", "/applications/x?expand=true"), ("POST", "/kubernetes/ops"), ("GET", "/armory/unknown")]
    {
        assert_eq!(rest.call(method, path, json!({})).await.status, 200, "{path}");
    }
    assert_eq!(rest.clouddriver.asked.lock().len(), 3);
    assert_eq!(rest.call("GET", "/credentials;a/type/kubernetes", json!({})).await.status, 403);
    assert_eq!(rest.call("GET", "/armory/clouddrivers", json!({})).await.status, 200);
    assert_eq!(rest.call("GET", "/health/liveness", json!({})).await.status, 200);
    assert_eq!(rest.clouddriver.asked.lock().len(), 3);
}

#[tokio::test]
async fn secrets_are_passed_on_only_where_the_setting_says_so() {
    let clouddriver = Clouddriver::answering(STORED).await;
    let rest = Rest::with(clouddriver, |ports| ports.passes_secrets = true).await;
    assert_eq!(rest.call("GET", "/credentials/type/kubernetes", json!({})).await.status, 200);
}

#[tokio::test]
async fn a_clouddriver_that_is_not_there_is_502_and_leaves_nothing_behind() {
    let rest = Rest::beside(STORED).await;
    let url = format!("http://127.0.0.1:{}", kubesvc_testkit::ports::free());
    let gone = Clouddriver {
        url,
        has: Arc::default(),
        asked: Arc::default(),
        _serving: AbortOnDropHandle::new(tokio::spawn(async {})),
    };
    let rest = Rest { router: Rest::with(gone, |_| ()).await.router, ..rest };
    let answer = rest.call("POST", "/credentials", definition("prod")).await;
    assert_eq!(answer.status, 502);
    assert!(answer.message("/credentials").contains("kubesvc.clouddriver.baseUrl"), "{}", answer.text);
    assert_eq!(rest.tries(), [0; 0]);
}

/// What Clouddriver answers to a POST: the status for the caller, the result, whether the account is made here, and the
/// tries of the intent that is left.
#[tokio::test]
async fn only_an_answer_of_clouddriver_that_says_so_makes_an_account() {
    let html = "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 2\r\n\r\nhi";
    let cut = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{}";
    let moved = "HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n";
    let refused = "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n";
    let failed = "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n";
    for (answer, status, result_starts, is_made, tries) in [
        (STORED, 200, "created", true, &[][..]),
        (cut, 200, "created", true, &[]),
        (refused, 400, "", false, &[]),
        (moved, 302, "", false, &[]),
        (html, 200, "pending; reason=outcome unknown", false, &[1]),
        (failed, 500, "pending; reason=outcome unknown", false, &[1]),
        ("", 504, "", false, &[1]),
        ("HTTP/1.1 200 OK\r\nContent-", 504, "", false, &[1]),
        ("HTTP/1.1 101 Switching Protocols\r\n\r\n", 504, "", false, &[1]),
    ] {
        let rest = Rest::beside(answer).await;
        let request = Request::post("/credentials").header(header::CONTENT_TYPE, "application/json");
        let request = request.body(Body::from(definition("prod").to_string())).expect("a request");
        let response = rest.router.clone().oneshot(request).await.expect("the router never fails");
        assert_eq!(response.status().as_u16(), status, "{answer}");
        let said = response.headers().get("x-kubesvc-result").map(|value| value.to_str().expect("ASCII"));
        let said = said.unwrap_or_default().to_owned();
        assert!(
            said.starts_with(result_starts) && said.is_empty() == result_starts.is_empty(),
            "{answer}: {said}"
        );
        assert_eq!(response.into_body().collect().await.is_err(), answer == cut, "{answer}");
        assert_eq!((rest.account("prod").is_some(), rest.tries().as_slice()), (is_made, tries), "{answer}");
        assert_eq!(rest.clouddriver.asked.lock().len(), 1, "it is sent once: {answer}");
    }
}

#[tokio::test]
async fn an_account_that_is_added_there_is_active_here() {
    let rest = Rest::beside(STORED).await;
    let answer = rest.call("POST", "/credentials", definition("prod")).await;
    assert_eq!((answer.status, result(&answer).as_str(), answer.text.as_str()), (200, "created", "{}"));
    let account = rest.account("prod").expect("it is made");
    assert_eq!(account["spec"]["state"], "ACTIVE");
    assert_eq!(account["metadata"]["annotations"]["kubesvc.io/source"], "/credentials");
    assert!(rest.api.get("/secrets/prod-kubeconfig").is_some());
    assert!(!account.to_string().contains("s3cret"), "{account}");
    let answer = rest.call("POST", "/credentials", definition("prod")).await;
    assert_eq!(result(&answer), "left; reason=kubesvc has an account of that name");
    // Of another type, and one that no agent could use.
    assert_eq!(result(&rest.call("POST", "/credentials", json!({"type": "aws", "name": "a"})).await), "");
    let own = json!({"type": "kubernetes", "name": "own", "serviceAccount": true});
    let answer = rest.call("POST", "/credentials", own).await;
    assert!(result(&answer).starts_with("left; reason=account \"own\": its entry"), "{}", result(&answer));
    assert!(rest.account("own").is_none() && rest.tries().is_empty());
}

#[tokio::test]
async fn an_account_here_follows_what_is_written_there() {
    let rest = Rest::beside(STORED).await;
    rest.put_account("prod", &json!({}));
    for (path, namespace) in [("/credentials", "one"), ("/credentials/prod", "two")] {
        let mut changed = definition("prod");
        changed["namespaces"] = json!([namespace]);
        let answer = rest.call("PUT", path, changed).await;
        assert_eq!((answer.status, result(&answer).as_str()), (200, "updated"));
        let spec = rest.account("prod").expect("it is there")["spec"].clone();
        assert_eq!((&spec["environment"], &spec["namespaces"]), (&json!("new"), &json!([namespace])));
        assert_eq!(spec["zoneId"], "east", "what Clouddriver does not know stays");
    }
    // What the definition no longer has is reset, as in Clouddriver; without a credential, the old one stays.
    let answer = rest.call("PUT", "/credentials", json!({"type": "kubernetes", "name": "prod"})).await;
    assert_eq!(result(&answer), "updated");
    let spec = rest.account("prod").expect("it is there")["spec"].clone();
    assert!(
        spec["environment"].is_null() && spec["namespaces"].as_array().is_none_or(Vec::is_empty),
        "{spec}"
    );
    assert_eq!(spec["kubeconfig"]["secretRef"]["name"], "prod-kubeconfig");
    let answer = rest.call("PUT", "/credentials", definition("unknown")).await;
    assert_eq!(result(&answer), "left; reason=kubesvc has no account of that name");
    assert!(rest.account("unknown").is_none());
}

#[tokio::test]
async fn a_deletion_there_deletes_what_is_rests_to_delete() {
    let rest = Rest::beside(REMOVED).await;
    let argo = json!({"annotations": {"argocd.argoproj.io/tracking-id": "apps:x"}});
    let cases = [
        ("prod", json!({}), "deleted"),
        ("kept", argo, "left; reason=it is managed by Argo CD application apps"),
        (
            "static",
            json!({"labels": {"kubesvc.io/origin": "agent"}}),
            "left; reason=it comes from an agent's own configuration",
        ),
        ("none", Value::Null, "left; reason=kubesvc has no account of that name"),
    ];
    for (name, metadata, expected) in cases {
        if !metadata.is_null() {
            rest.put_account(name, &metadata);
        }
        let request = Request::delete(format!("/credentials/{name}")).body(Body::empty()).expect("a request");
        let answer = rest.send(request).await;
        assert_eq!((answer.status, result(&answer).as_str()), (200, expected));
        assert_eq!(rest.account(name).is_some(), expected.starts_with("left") && name != "none");
    }
    assert_eq!(rest.tries(), [0; 0]);
}

#[tokio::test]
async fn an_account_that_cannot_follow_now_is_left_to_the_leader() {
    let rest = Rest::beside(STORED).await;
    rest.api.refuse(
        "POST",
        "/kubesvcaccounts",
        json!({"kind": "Status", "code": 500, "reason": "InternalError"}),
    );
    let answer = rest.call("POST", "/credentials", definition("prod")).await;
    assert_eq!(answer.status, 200);
    assert!(
        result(&answer).starts_with("pending; reason=the Kubernetes API server answered 500"),
        "{}",
        result(&answer)
    );
    assert_eq!(rest.tries(), [1]);
    // The account is being deleted, and then to be made again.
    let rest = Rest::beside(STORED).await;
    rest.put_account("prod", &json!({"deletionTimestamp": "2026-01-01T00:00:00Z"}));
    let answer = rest.call("POST", "/credentials", definition("prod")).await;
    assert_eq!(result(&answer), "pending; reason=an account of that name is still being deleted");
    assert_eq!(rest.tries(), [1]);
}

#[tokio::test]
async fn names_that_kubesvc_registered_are_not_written() {
    let rest = Rest::beside(STORED).await;
    rest.register("Prod");
    for (method, path) in
        [("POST", "/credentials"), ("PUT", "/credentials/prod"), ("DELETE", "/credentials/PROD")]
    {
        let answer = rest.call(method, path, definition("prod")).await;
        assert_eq!(answer.status, 409, "{method}");
        assert!(answer.message(path).contains("managed by kubesvc"), "{}", answer.text);
    }
    assert_eq!(rest.clouddriver.asked.lock().len(), 0);
}

#[tokio::test]
async fn a_body_that_clouddriver_may_read_in_another_way_is_not_sent() {
    let rest = Rest::beside(STORED).await;
    for name in ["123", "prod"] {
        rest.register(name);
    }
    let nested = format!(r#"{{"type":"kubernetes","a":{}{}}}"#, "[".repeat(40), "]".repeat(40));
    let many = json!(vec![json!({"type": "kubernetes", "name": "a"}); 1001]).to_string();
    let utf_16: Vec<u8> =
        r#"{"type":"kubernetes","name":"prod"}"#.encode_utf16().flat_map(u16::to_be_bytes).collect();
    for (body, status) in [
        (r#"{"type":"kubernetes","name":"prod","type":"x"}"#.into(), 400),
        (r#"{"type":"kubernetes","name":"prod","name":"a"}"#.into(), 400),
        (r#"{"type":"kubernetes","name":"a"} {"type":"kubernetes","name":"prod"}"#.into(), 400),
        (r#"{"type":"kubernetes","name":1.50}"#.into(), 400),
        (r#"{"type":"kubernetes","name":123}"#.into(), 409),
        ("\u{feff}{\"type\":\"kubernetes\",\"name\":\"prod\"}".into(), 409),
        (utf_16, 400),
        (nested.into(), 400),
        (many.into(), 413),
        (b"{".to_vec(), 400),
        (Vec::new(), 400),
    ] {
        for method in ["POST", "PUT"] {
            let request = Request::builder().method(method).uri("/credentials");
            let request = request.header(header::CONTENT_TYPE, "application/json");
            let answer = rest.send(request.body(Body::from(body.clone())).expect("a request")).await;
            assert_eq!(answer.status, status, "{method} {:.60}", String::from_utf8_lossy(&body));
            assert!(!answer.message("/credentials").is_empty());
        }
    }
    let encoded =
        Request::put("/credentials").header(header::CONTENT_TYPE, "application/json;charset=utf-16");
    let answer = rest.send(encoded.body(Body::from("{}")).expect("a request")).await;
    assert_eq!(answer.status, 415);
    assert_eq!(rest.clouddriver.asked.lock().len(), 0);
}

#[tokio::test]
async fn a_second_write_of_a_name_waits_for_the_first_one() {
    let rest = Rest::beside(STORED).await;
    let other = IntentRow {
        name: "prod".to_owned(),
        verb: "PUT".to_owned(),
        body_hash: None,
        replica_id: "other".to_owned(),
        started_at: 1,
        tries: 0,
    };
    rest.store.intents.lock().push(other);
    let began = std::time::Instant::now();
    let answer = rest.call("POST", "/credentials", definition("prod")).await;
    assert_eq!(answer.status, 409);
    assert!(began.elapsed().as_secs() >= 5 && rest.clouddriver.asked.lock().is_empty());
    let waiting = rest.call("POST", "/credentials", definition("prod"));
    let ending = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        rest.store.intents.lock().clear();
    };
    assert_eq!(futures::future::join(waiting, ending).await.0.status, 200);
}

#[tokio::test]
async fn with_the_interceptor_off_nothing_follows() {
    let clouddriver = Clouddriver::answering(STORED).await;
    let rest = Rest::with(clouddriver, |ports| ports.follows = false).await;
    let answer = rest.call("POST", "/credentials", definition("prod")).await;
    assert_eq!((answer.status, result(&answer).as_str()), (200, ""));
    assert!(rest.account("prod").is_none());
}

#[tokio::test]
async fn what_callers_show_to_kubesvc_stays_here_and_users_are_passed_on_for_those_who_may_name_them() {
    for (mode, denied, authorization, user) in [
        (RestAuthMode::Off, Some("assert"), true, true),
        (RestAuthMode::Log, Some("assert"), false, true),
        (RestAuthMode::Enforce, Some("assert"), false, false),
        (RestAuthMode::Enforce, None, false, true),
    ] {
        let mut rest = Rest::beside(STORED).await;
        let access = Arc::<ScriptedAccess>::default();
        access.denied.lock().extend(denied);
        let rules = CallerRules {
            mode,
            access,
            audit: AuditLog::to(io::sink()),
            metrics: RestAccessMetrics::default(),
            accounts_namespace: "ns".to_owned(),
            log_limit: LogRateLimit::default(),
        };
        rest.state.callers = Arc::new(rules);
        let request = Request::get("/credentials")
            .header("authorization", "Bearer ann")
            .header("x-spinnaker-user", "bob")
            .header("x-spinnaker-accounts", "a");
        let answer = send(router(rest.state.clone()), request.body(Body::empty()).expect("a request")).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        let asked = rest.clouddriver.asked.lock().join("").to_lowercase();
        for (header, is_sent) in [
            ("authorization: bearer ann", authorization),
            ("x-spinnaker-user: bob", user),
            ("x-spinnaker-accounts: a", user),
        ] {
            assert_eq!(asked.contains(header), is_sent, "{mode:?} {denied:?} {header}: {asked}");
        }
    }
}
