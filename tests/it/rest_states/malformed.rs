//! Invalid requests: each has a defined response, and none is 500.

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use kubesvc_core::State;

use super::shapes::hold_error;
use crate::world::{Call, World};

const DYNAMIC: &str = "/armory/accounts/dynamic";
const ACCOUNTS: &str = "/armory/accounts";

fn post(path: &str, body: &Value) -> Call {
    Call::new("POST", path).json(body)
}

fn text(method: &str, path: &str, body: &str) -> Call {
    Call::new(method, path).header("content-type", "application/json").bytes(body)
}

fn deep(depth: usize) -> String {
    "[".repeat(depth) + &"]".repeat(depth)
}

/// Requests without a valid body.
fn bodies() -> Vec<(Call, u16)> {
    let mut all = vec![
        (Call::new("POST", DYNAMIC), 415),
        (Call::new("POST", DYNAMIC).header("content-type", "text/plain").bytes("{}"), 415),
        (Call::new("POST", DYNAMIC).header("content-type", "application/xml").bytes("<a/>"), 415),
        (
            Call::new("POST", DYNAMIC).header("content-type", "application/json; charset=utf-16").bytes("{}"),
            415,
        ),
        (
            Call::new("POST", DYNAMIC)
                .header("content-type", "application/json")
                .header("content-encoding", "gzip")
                .bytes("{}"),
            415,
        ),
        (text("POST", DYNAMIC, "{}").header("content-length", "9437184"), 413),
    ];
    for (method, path) in [("POST", DYNAMIC), ("PATCH", ACCOUNTS), ("PUT", DYNAMIC), ("DELETE", ACCOUNTS)] {
        for body in
            ["", "null", "[]", "{", "[1", "\"a\"", "5", "true", "[null]", "[[]]", "{}", "[{}]", "[] []"]
        {
            all.push((text(method, path, body), 400));
        }
        all.push((
            Call::new(method, path).header("content-type", "application/json").bytes(b"[\"\xff\"]".to_vec()),
            400,
        ));
        all.push((text(method, path, &deep(100_000)), 400));
    }
    all
}

/// Requests whose body is JSON but makes no sense.
fn contents() -> Vec<(Call, u16)> {
    let patch = |body: Value| (Call::new("PATCH", ACCOUNTS).json(&body), 400);
    let put = |body: Value, code: u16| (Call::new("PUT", DYNAMIC).json(&body), code);
    let make = |body: Value| (post(DYNAMIC, &body), 400);
    vec![
        make(json!({"name": "x"})),
        make(json!({"name": "", "serviceAccount": true})),
        make(json!({"name": 5, "serviceAccount": true})),
        make(json!({"name": "x".repeat(256), "serviceAccount": true})),
        make(json!({"name": "a\u{0}b", "serviceAccount": true})),
        make(json!({"name": "a\nb", "serviceAccount": true})),
        make(json!({"name": "x", "serviceAccount": false})),
        make(json!({"name": "x", "serviceAccount": "yes please"})),
        make(json!({"name": "x", "serviceAccount": true, "kubeconfigFile": "/opt/armory/x"})),
        make(json!({"name": "x", "kubeconfigFile": "relative/path"})),
        make(json!({"name": "x", "kubeconfigFile": "/opt/armory/../../etc/shadow"})),
        make(json!({"name": "x", "kubeconfigFile": "encryptedFile:"})),
        make(json!({"name": "x", "kubeconfigFile": "encryptedFile:k8s!n:a"})),
        make(json!({"name": "x", "kubeconfigFile": "encrypted:k8s!n:a!k:b!"})),
        make(json!({"name": "x", "kubeconfigFile": "secret://noop?v=%00"})),
        make(json!({"name": "x", "kubeconfigFile": "secretFile://noop?v=a"})),
        make(json!({"name": "x", "kubeconfigFile": format!("encrypted:noop!v:{}", "x".repeat(1 << 20))})),
        make(json!({"name": "x", "kubeconfigFile": "encrypted:noop!v:redacted"})),
        make(json!({"name": "x", "kubeconfigContents": ""})),
        make(json!({"name": "x", "kubeconfigContents": {"kind": "Config"}})),
        make(json!({"name": "x", "serviceAccount": true, "state": "SLEEPING"})),
        make(json!({"name": "x", "serviceAccount": true, "zoneId": "z".repeat(256)})),
        make(json!({"name": "x", "serviceAccount": true, "namespaces": ["a"], "omitNamespaces": ["b"]})),
        make(json!({"name": "x", "serviceAccount": true, "kinds": ["a"], "omitKinds": ["b"]})),
        make(json!({"name": "x", "serviceAccount": true, "namespaces": "default"})),
        make(json!({"name": "x", "serviceAccount": true, "onlyNamespacedResources": true})),
        make(json!({"name": "x", "serviceAccount": true, "permissions": {"EXECUTE": ["a"]}})),
        make(json!({"name": "x", "serviceAccount": true, "permissions": ["a"]})),
        make(json!([{"name": "x", "serviceAccount": true}, {"name": "x", "serviceAccount": true}])),
        patch(json!([{"name": "there"}])),
        patch(json!([{"name": "there", "state": "active"}])),
        patch(json!([{"name": "there", "state": "FAILED"}])),
        patch(json!([{"name": "there", "state": 1}])),
        patch(json!([{"name": "there", "state": "ACTIVE", "zoneId": "z".repeat(256)}])),
        patch(json!([{"name": "there", "state": "ACTIVE"}, {"name": "there", "state": "INACTIVE"}])),
        patch(json!([{"state": "ACTIVE"}])),
        patch(json!({"name": "there", "state": "ACTIVE"})),
        put(json!([{"name": "there"}]), 400),
        put(json!({"name": "nobody", "kinds": ["pod"]}), 404),
        put(json!({"name": "there", "kinds": "pod"}), 400),
        put(json!({"name": "there", "kubeconfigFile": "encrypted:noop!v:a!v:b"}), 400),
        patch(json!([{"name": "there", "state": "ACTIVE", "kubeconfigFile": "secret://?a=b"}])),
        (Call::new("DELETE", ACCOUNTS).json(&json!(["there", "there"])), 400),
        (Call::new("DELETE", ACCOUNTS).json(&json!([{"name": "there"}])), 400),
        (Call::new("DELETE", ACCOUNTS).json(&json!(["there", "nobody"])), 400),
    ]
}

/// Requests with an invalid path.
fn addresses() -> Vec<(Call, &'static [u16])> {
    vec![
        (Call::get("/"), &[404]),
        (Call::get("/armory"), &[404]),
        (Call::get("/armory/accounts/a/b"), &[404]),
        (Call::get("/armory/accounts/a%2Fb"), &[404]),
        (Call::get("/armory/accounts/%00"), &[400, 404]),
        (Call::get("/armory/accounts/%FF%FE"), &[400, 404]),
        (Call::get("/armory/accounts/%zz"), &[400, 404]),
        (Call::get("/armory/accounts/..%2f..%2fetc%2fpasswd"), &[404]),
        (Call::get("/agents/kubernetes/accounts/nobody/namespaces"), &[404]),
        (Call::get("/armory/accounts?page=0"), &[400]),
        (Call::get("/armory/accounts?page=-1"), &[400]),
        (Call::get("/armory/accounts?page=one"), &[400]),
        (Call::get("/armory/accounts?limit=0"), &[400]),
        (Call::get("/armory/accounts?limit=1001"), &[400]),
        (Call::get("/armory/accounts?limit=99999999999999999999"), &[400]),
        (Call::new("PUT", ACCOUNTS), &[405]),
        (Call::new("POST", "/armory/agents"), &[405]),
        (Call::new("DELETE", "/health"), &[405]),
        (Call::new("BREW", ACCOUNTS), &[405]),
        (Call::new("DELETE", "/armory/accounts/nobody"), &[400]),
    ]
}

pub(super) async fn malformed_requests_are_refused_and_change_nothing(world: &World) {
    world.account("there").inactive().spec("kubeconfig", json!({"serviceAccount": true})).create().await;
    let before = world.until("there", State::Inactive).await;

    for (call, code) in bodies().into_iter().chain(contents()) {
        let told = told(&call);
        let answer = world.call(call).await;
        assert_eq!(answer.status, code, "{told}: {answer}");
        hold_error(&answer, code);
    }
    for (call, codes) in addresses() {
        let told = told(&call);
        let answer = world.call(call).await;
        assert!(codes.contains(&answer.status), "{told}: {answer}");
        hold_error(&answer, answer.status);
    }
    let nobody = world.get("/agents/kubernetes/accounts/nobody").await;
    assert_eq!((nobody.status, &nobody.json), (200, &json!({})), "{nobody}");
    raw_requests(world).await;

    assert_eq!(
        world.object("there").await.map(|after| (after.metadata.resource_version, after.spec)),
        Some((before.metadata.resource_version, before.spec))
    );
    let names: Vec<_> = world.rows().await.into_iter().map(|row| row.name).collect();
    assert_eq!(names, ["there"], "nothing was made");
    assert_eq!(world.get("/health/readiness").await.status, 200);
    assert!(!world.operator().log_text().contains("panicked"));
}

fn told(call: &Call) -> String {
    let mut text = format!("{call:?}");
    if text.len() > 300 {
        let end = (0..=300).rev().find(|at| text.is_char_boundary(*at)).unwrap_or_default();
        text.truncate(end);
    }
    text
}

/// Requests that no client library sends. The response is 4xx or 505, or there is none.
async fn raw_requests(world: &World) {
    let long = format!("GET /{} HTTP/1.1\r\nhost: x\r\n\r\n", "a".repeat(1 << 20));
    let many = format!("GET / HTTP/1.1\r\nhost: x\r\n{}\r\n", "x-h: y\r\n".repeat(5000));
    for request in [
        "nonsense\r\n\r\n",
        "GET / HTTP/9.9\r\n\r\n",
        "\0\0\0\0\0\0\r\n\r\n",
        "PATCH /armory/accounts HTTP/1.1\r\nhost: x\r\ncontent-length: -5\r\n\r\n",
        "PATCH /armory/accounts HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        "PATCH /armory/accounts HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        "GET /armory/accounts/\u{fc} HTTP/1.1\r\nhost: x\r\n\r\n",
        long.as_str(),
        many.as_str(),
    ] {
        let mut stream =
            TcpStream::connect(("127.0.0.1", world.operator().rest_port())).await.expect("it listens");
        // A server may close before it has read everything.
        let _ = stream.write_all(request.as_bytes()).await;
        let _ = stream.shutdown().await;
        let mut answer = Vec::new();
        let read =
            tokio::time::timeout(std::time::Duration::from_secs(20), stream.read_to_end(&mut answer)).await;
        assert!(read.is_ok(), "neither answer nor end: {}", &request[..request.len().min(100)]);
        let answer = String::from_utf8_lossy(&answer);
        let status = answer.split(' ').nth(1).unwrap_or_default();
        assert!(status.is_empty() || status.starts_with('4') || status == "505", "{answer}");
    }
}
