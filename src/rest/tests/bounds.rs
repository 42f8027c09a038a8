//! Bounds on a request's memory, time, and calls to the API server.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::*;
use kubesvc_runtime::listen::connection_limits::ClientAddress;

const DYNAMIC: &str = "/armory/accounts/dynamic";
const RUN: &str = "/armory/agent/operations";

/// Counts the requests to an API server, and how many ran at once.
#[derive(Default)]
struct RequestCounter {
    times: AtomicUsize,
    now: AtomicUsize,
    most: AtomicUsize,
}

impl RequestCounter {
    /// Counts one request until it ends or is cancelled.
    fn begin(asked: &Arc<Self>) -> CountedRequest {
        let now = asked.now.fetch_add(1, Ordering::SeqCst) + 1;
        asked.most.fetch_max(now, Ordering::SeqCst);
        CountedRequest(Arc::clone(asked))
    }
}

struct CountedRequest(Arc<RequestCounter>);

impl Drop for CountedRequest {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, Ordering::SeqCst);
    }
}

/// An API server that answers with this code after a delay.
fn answering(code: u16, asked: &Arc<RequestCounter>) -> kube::Client {
    let asked = Arc::clone(asked);
    let service = tower::service_fn(move |_: Request<kube::client::Body>| {
        let asked = Arc::clone(&asked);
        async move {
            asked.times.fetch_add(1, Ordering::SeqCst);
            let _counted = RequestCounter::begin(&asked);
            tokio::time::sleep(Duration::from_millis(100)).await;
            let status = json!({"kind": "Status", "code": code, "message": "no", "reason": "No"});
            let response = Response::builder().status(code);
            Ok::<_, io::Error>(response.body(Body::from(status.to_string())).expect("a response"))
        }
    });
    kube::Client::new(service, "ns")
}

fn large() -> RestSettings {
    RestSettings { max_body_bytes: 8 * 1024 * 1024, ..settings() }
}

fn request(method: &str, path: &str, body: impl Into<Body>) -> Request<Body> {
    let request = Request::builder().method(method).uri(path);
    request.header(header::CONTENT_TYPE, "application/json").body(body.into()).expect("a request")
}

fn names(count: usize) -> String {
    json!((0..count).map(|number| format!("a{number}")).collect::<Vec<_>>()).to_string()
}

#[tokio::test]
async fn a_body_that_would_take_much_memory_is_400_and_says_what_is_allowed() {
    // 7 bytes each, and several hundred in memory.
    let objects = format!("[{}]", vec![r#"{"":0}"#; 150_000].join(","));
    let answer = send(router_with(large(), &[]), request("POST", DYNAMIC, objects)).await;
    assert_eq!(answer.status, 400);
    assert!(answer.message(DYNAMIC).contains("200000 values"), "{}", answer.text);
    let deep = format!(r#"{{"name":"a","future":{}0{}}}"#, "[".repeat(40), "]".repeat(40));
    let answer = send(router_with(large(), &[]), request("POST", DYNAMIC, deep)).await;
    assert_eq!(answer.status, 400);
    assert!(answer.message(DYNAMIC).contains("32 deep"), "{}", answer.text);
}

#[tokio::test]
async fn an_answer_is_no_multiple_of_its_request() {
    let resources = vec![json!({"kubernetesKind": "", "deployPriority": ""}); 50_000];
    let body = json!({"name": "a", "serviceAccount": true, "customResources": resources}).to_string();
    let answer = send(router_with(large(), &[]), request("POST", DYNAMIC, body)).await;
    assert_eq!(answer.status, 400);
    assert!(answer.text.len() < 4096, "{} bytes", answer.text.len());
}

#[tokio::test]
async fn a_request_names_a_thousand_accounts_at_most() {
    let asked = Arc::default();
    let router = router(state_of(large(), &[], answering(500, &asked)));
    for (method, path) in
        [("DELETE", "/armory/accounts"), ("POST", "/armory/agent/assignments"), ("PATCH", "/armory/accounts")]
    {
        let answer = send(router.clone(), request(method, path, names(1001))).await;
        assert_eq!(answer.status, 400, "{method} {path}");
        let message = answer.message(path);
        assert!(message.contains("1001 accounts") && message.contains("1000 at most"), "{message}");
    }
    let accounts: Vec<_> =
        (0..1001).map(|number| json!({"name": format!("a{number}"), "serviceAccount": true})).collect();
    let answer = send(router, request("POST", DYNAMIC, json!(accounts).to_string())).await;
    assert!(answer.message(DYNAMIC).contains("1000 at most"), "{}", answer.text);
    assert_eq!(asked.times.load(Ordering::SeqCst), 0);
}

#[tokio::test(start_paused = true)]
async fn accounts_are_looked_up_until_the_first_that_cannot_be() {
    let asked = Arc::default();
    let router = router(state_of(large(), &[], answering(500, &asked)));
    let answer = send(router, request("DELETE", "/armory/accounts", names(1000))).await;
    assert_eq!(answer.status, 503, "{}", answer.text);
    let times = asked.times.load(Ordering::SeqCst);
    assert!(times <= 32, "asked {times} times");
}

#[tokio::test(start_paused = true)]
async fn looking_up_has_an_end_for_the_request_as_a_whole() {
    let asked = Arc::default();
    // 404 for the object: it does not exist, so all names are looked up.
    let missing = tower::service_fn({
        let asked: Arc<RequestCounter> = Arc::clone(&asked);
        move |request: Request<kube::client::Body>| {
            asked.times.fetch_add(1, Ordering::SeqCst);
            let name = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
            async move {
                tokio::time::sleep(Duration::from_secs(10)).await;
                let status =
                    json!({"kind": "Status", "code": 404, "reason": "NotFound", "details": {"name": name}});
                let response = Response::builder().status(404);
                Ok::<_, io::Error>(response.body(Body::from(status.to_string())).expect("a response"))
            }
        }
    });
    let state = state_of(large(), &[], kube::Client::new(missing, "ns"));
    state.accounts.sync();
    let router = router(state);
    let began = tokio::time::Instant::now();
    let answer = send(router, request("DELETE", "/armory/accounts", names(1000))).await;
    assert_eq!(answer.status, 503);
    assert!(answer.message("/armory/accounts").contains("nothing was done"), "{}", answer.text);
    assert!(began.elapsed() <= Duration::from_secs(30), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn all_callers_share_the_requests_to_the_api_server() {
    let asked = Arc::default();
    let router = router(state_of(large(), &[], answering(500, &asked)));
    let each = (0..30).map(|_| send(router.clone(), request("DELETE", "/armory/accounts", names(100))));
    futures::future::join_all(each).await;
    let most = asked.most.load(Ordering::SeqCst);
    assert!(most > 16 && most <= 64, "{most} at once");
}

/// A call from an address whose head has some 130,000 bytes, and whose body does not arrive.
fn large_head(method: &str, path: &str, address: u8) -> Request<Body> {
    let silent = futures::stream::pending::<Result<Vec<u8>, io::Error>>();
    let mut request = request(method, path, Body::from_stream(silent));
    let headers = request.headers_mut();
    headers.insert("x-spinnaker-accounts", "a,".repeat(65_000).parse().expect("a value"));
    headers.insert(header::AUTHORIZATION, "Bearer alice".parse().expect("a value"));
    request.extensions_mut().insert(ClientAddress::of([192, 0, 2, address].into()));
    request
}

#[tokio::test]
async fn heads_of_unknown_callers_have_a_bound_and_one_address_fills_it_for_no_other() {
    let (router, audit) = audited_router();
    let call = |method: &str, path: &str, address| {
        Box::pin(router.clone().oneshot(large_head(method, path, address)))
    };
    let mut held: Vec<_> = (0..32).map(|_| call("DELETE", "/armory/accounts", 1)).collect();
    for one in &mut held {
        assert!(futures::poll!(one).is_pending(), "its body is waited for");
    }
    for (method, path) in [("GET", "/armory/agents"), ("GET", RUN)] {
        let refused = send(router.clone(), large_head(method, path, 1)).await;
        assert_eq!(refused.status, 503, "{}", refused.text);
        assert!(refused.message(path).contains("until it is known who calls"), "{}", refused.text);
    }
    assert_eq!(audit.refusals().len(), 1, "of the operation");
    for path in ["/health/liveness", "/openapi.json", "/metrics"] {
        assert_eq!(send(router.clone(), large_head("GET", path, 1)).await.status, 200, "{path}");
    }
    assert_eq!(send(router.clone(), large_head("GET", "/armory/agents", 2)).await.status, 200);
    held.pop();
    assert_eq!(
        send(router.clone(), large_head("GET", "/armory/agents", 1)).await.status,
        200,
        "one has gone"
    );
    // Of a caller that is known nothing is held, though its body is waited for.
    let mut known: Vec<_> = (0..40).map(|_| call("POST", RUN, 1)).collect();
    for one in &mut known {
        assert!(futures::poll!(one).is_pending());
    }
}
