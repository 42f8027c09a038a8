//! What requests and operations carry stays between caller and cluster: Secrets, tokens, headers and queries are in no
//! log, audit line, row, metric, status or list, even at the most verbose log level.

use http::Method;
use kubesvc_core::State;
use serde_json::json;

use super::bad_requests::servers::MisbehavingServer;
use super::place::{EVERYTHING, Place, path_of};
use super::refusals::send;
use crate::secrets_canary::needles::Needles;
use crate::secrets_canary::{CANARY, files_are_clean};
use crate::world::{Answer, Call};
use kubesvc_testkit::must;

/// A Secret with the canary as text and in base64.
fn secret(name: &str) -> serde_json::Value {
    json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": "default"},
        "stringData": {"password": CANARY},
    })
}

/// Runs an operation on the account, good or bad.
async fn run(place: &Place, token: &str, text: &str, query: &str) -> Answer {
    let call = Call::new("POST", &format!("/armory/agent/operations?wait=20s{query}"))
        .header("authorization", &format!("Bearer {token}"))
        .header("cookie", &format!("session={CANARY}"))
        .header("x-canary", CANARY)
        .json(&json!({ "operation": text }));
    must(place.world.operator().call(call).await)
}

async fn operations(place: &Place, token: &str) {
    let deploy = |object: &serde_json::Value, mode: &str| {
        let data = json!(object.to_string());
        format!("account {{ name: \"prod\" }} deploy {{ manifest {{ data: {data} }} {mode} }}")
    };
    let target = "target { version: \"v1\" kind: \"Secret\" namespace: \"default\" name: \"applied\" }";
    let body = json!(json!({"stringData": {"other": CANARY}}).to_string());
    let patch =
        format!("account {{ name: \"prod\" }} patch {{ {target} type: MERGE body {{ data: {body} }} }}");
    let mut bad = secret("bad");
    bad["type"] = json!("kubernetes.io/tls");
    for (text, query, status) in [
        (deploy(&secret("applied"), ""), "", 200..=201),
        (deploy(&secret("applied"), "mode: REPLACE"), "", 200..=200),
        (deploy(&secret("created"), "mode: CREATE"), "&clientRequestId=once", 201..=201),
        (deploy(&secret("created"), "mode: CREATE"), "", 409..=409),
        (deploy(&secret("dry"), ""), "&dryRun=All", 200..=201),
        (patch, "", 200..=200),
        (format!("account {{ name: \"prod\" }} get {{ {target} }}"), "", 200..=200),
        (deploy(&bad, ""), "", 400..=422),
    ] {
        let answer = run(place, token, &text, query).await;
        let got = answer.json["status"].as_u64().unwrap_or_default();
        assert!(status.contains(&got), "{status:?}: {answer}");
    }
    for text in [
        format!("account {{ name: \"prod\" }} deploy {{ manifest {{ data: \"{CANARY}"),
        deploy(&json!([CANARY]), ""),
    ] {
        let answer = run(place, token, &text, "").await;
        assert_eq!(answer.status, 400, "{answer}");
        assert!(!answer.text.contains(CANARY), "{answer}");
    }
    let held = must(
        place.target.kubectl(["get", "secret", "applied", "-o", "jsonpath={.data}{.metadata}"]).await.ok(),
    );
    let mut needles = Needles::default();
    needles.add("the Secret", CANARY);
    assert!(!needles.in_text(&held).is_empty(), "it is what the search looks for: {held}");
    assert!(!held.contains("last-applied"), "{held}");
}

async fn requests(place: &Place, token: &str) {
    let bearer = format!("Bearer {token}");
    let base = format!("{}/api/v1/namespaces/default/secrets", place.path());
    let headers = [
        ("authorization", bearer.as_str()),
        ("content-type", "application/json"),
        ("cookie", CANARY),
        ("x-canary", CANARY),
    ];
    let wrong = [("authorization", "Bearer CANARY-8c1fe0b7a2"), ("x-remote-user", CANARY)];
    let made = secret("made").to_string();
    for (method, path, headers, body, code) in [
        (Method::POST, base.clone(), &headers[..], made.as_str(), 201),
        (Method::POST, base.clone(), &headers[..], made.as_str(), 409),
        (Method::GET, format!("{base}/made"), &headers[..], "", 200),
        (Method::POST, base.clone(), &headers[..], CANARY, 400),
        (Method::POST, base.clone(), &wrong[..], made.as_str(), 401),
        (Method::DELETE, format!("{base}/made"), &headers[..], "", 200),
    ] {
        let answered = must(send(place, method.clone(), &path, headers, body.to_owned(), None).await);
        assert_eq!(answered.code, code, "{method} {path}: {answered:?}");
    }
}

/// Requests with the canary in their query, whose answers an odd API server breaks. Why is logged, audited and told.
async fn broken_requests(place: &Place, token: &str) {
    let (world, server) = (&place.world, MisbehavingServer::start(&place.target).await);
    world.account("odd").zone("east").kubeconfig(&server.kubeconfig).create().await;
    world.until("odd", State::Active).await;
    let bearer = format!("Bearer {token}");
    let base = format!("{}/api/v1/namespaces/odd/configmaps/reset", path_of(world.namespace(), "odd"));
    let headers = [("authorization", bearer.as_str()), ("connection", "Upgrade"), ("upgrade", "SPDY/3.1")];
    for (method, subresource, headers, code) in [
        (Method::GET, "", &headers[..1], 503),
        (Method::DELETE, "", &headers[..1], 504),
        (Method::POST, "/exec", &headers[..], 504),
    ] {
        let path = format!("{base}{subresource}?command=login&command={CANARY}");
        let answered = must(send(place, method.clone(), &path, headers, "", None).await);
        assert_eq!(answered.code, code, "{method} {path}: {answered:?}");
        assert!(!answered.body.to_string().contains(CANARY), "{method} {path}: {answered:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_requests_and_operations_carry_is_written_nowhere() {
    let place = Place::logging(false, "trace").await;
    let token = place.person("ann", EVERYTHING, Some("kubesvc")).await;
    let mut needles = Needles::default();
    needles.add("what the test made up", CANARY);
    needles.add_token("the caller's token", &token);
    operations(&place, &token).await;
    requests(&place, &token).await;
    broken_requests(&place, &token).await;

    let world = &place.world;
    let own = |path: &str| Call::get(path).header("authorization", &format!("Bearer {token}"));
    let mut all = Vec::new();
    for path in
        ["/armory/agent/operations", "/armory/agents", "/armory/accounts/prod", "/metrics", "/health/tasks"]
    {
        let answer = must(world.operator().call(own(path)).await);
        assert_eq!(answer.status, 200, "{path}: {answer}");
        all.push((path.to_owned(), answer.text));
    }
    for path in ["/operations", "/health/tasks"] {
        all.push((format!("agent {path}"), place.agent.get(path).await.text));
    }
    for kinds in ["ksa", "ksg", "events"] {
        let listed = world.kubectl(&["get", kinds, "-o", "yaml", "--show-managed-fields"]).await;
        all.push((kinds.to_owned(), must(listed.ok())));
    }
    all.extend(world.all_logs());
    for (what, text) in all {
        let found = needles.in_text(&text);
        assert!(found.is_empty(), "{what} holds {found:?}");
    }
    files_are_clean(world, &needles);
}
