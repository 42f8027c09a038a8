use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use kubesvc_clouddriver::registration::{AccountCall, FailureKind};
use parking_lot::Mutex;
use serde_json::{Map, json};
use tokio_util::task::AbortOnDropHandle;

use super::{ClouddriverAccounts as _, ClouddriverClient, ClouddriverTlsFiles, RenewedTls, StoredAccount};

async fn client(base: &str) -> ClouddriverClient {
    let tls = RenewedTls::read(ClouddriverTlsFiles::default()).await.expect("no files");
    ClouddriverClient::new(base.parse().expect("a URL"), "kubesvc", Arc::new(tls)).expect("a client")
}

/// A server with this answer to everything, and what it was asked.
struct Scripted {
    client: ClouddriverClient,
    asked: Arc<Mutex<Vec<String>>>,
    _serving: AbortOnDropHandle<()>,
}

impl Scripted {
    async fn answering(status: u16, media_type: &'static str, body: impl Into<String>) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let base = format!("http://{}/clouddriver/", listener.local_addr().expect("bound"));
        let (asked, body) = (Arc::<Mutex<Vec<String>>>::default(), body.into());
        let seen = Arc::clone(&asked);
        let answer = move |request: Request| {
            let (seen, body) = (Arc::clone(&seen), body.clone());
            async move {
                let user = request.headers().get("X-SPINNAKER-USER").and_then(|user| user.to_str().ok());
                let asked = format!("{} {} {}", request.method(), request.uri(), user.unwrap_or_default());
                seen.lock().push(asked);
                let status = StatusCode::from_u16(status).expect("a status");
                let mut answer: Response = (status, body).into_response();
                answer.headers_mut().insert("content-type", media_type.parse().expect("a media type"));
                answer
                    .headers_mut()
                    .insert("location", "http://127.0.0.1:1/elsewhere".parse().expect("a URL"));
                answer
            }
        };
        let router = Router::new().fallback(answer);
        let serving = tokio::spawn(async move { drop(axum::serve(listener, router).await) });
        Self { client: client(&base).await, asked, _serving: AbortOnDropHandle::new(serving) }
    }
}

#[tokio::test]
async fn calls_name_the_account_in_one_segment_and_the_user() {
    let server = Scripted::answering(200, "application/json", "[]").await;
    assert_eq!(server.client.stored("größe 1&2").await, Ok(None));
    for (call, name) in
        [(AccountCall::Create, "a"), (AccountCall::Replace, "a"), (AccountCall::Delete, "größe 1?#&+")]
    {
        server.client.change(call, name, &Map::new()).await.expect("it answers");
    }
    assert_eq!(
        *server.asked.lock(),
        [
            "GET /clouddriver/credentials/type/kubernetes?limit=1&startingAccountName=gr%C3%B6%C3%9Fe+1%262 kubesvc",
            "POST /clouddriver/credentials kubesvc",
            "PUT /clouddriver/credentials kubesvc",
            "DELETE /clouddriver/credentials/gr%C3%B6%C3%9Fe%201%3F%23&+ kubesvc",
        ]
    );
}

#[tokio::test]
async fn another_ones_definition_is_no_row_of_this_name() {
    let rows = json!([{"type": "kubernetes", "name": "b", "kubeconfigContents": "secret"}]).to_string();
    let server = Scripted::answering(200, "application/json", rows).await;
    assert_eq!(server.client.stored("a").await, Ok(None));
    let row = server.client.stored("b").await.expect("it answers").expect("a row");
    assert!(matches!(row, StoredAccount::Definition(row) if row["name"] == json!("b")));
    assert_eq!(server.client.stored("B").await, Ok(Some(StoredAccount::Namesake)), "one row on MySQL");
}

#[tokio::test]
async fn an_answer_that_is_not_clouddrivers_is_a_failure_without_its_text() {
    let html = "<html>token=hunter2</html>";
    for (status, kind) in [
        (200, FailureKind::Unreachable),
        (302, FailureKind::Unreachable),
        (400, FailureKind::Rejected),
        (403, FailureKind::Forbidden),
        (404, FailureKind::Unreachable),
        (500, FailureKind::Unreachable),
    ] {
        let server = Scripted::answering(status, "text/html", html).await;
        let failure = server.client.loaded().await.expect_err("no list");
        assert_eq!(failure.kind, kind, "{status}: {failure:?}");
        assert!(!failure.message.contains("hunter2"), "{failure:?}");
        if status != 200 {
            let failure =
                server.client.change(AccountCall::Create, "a", &Map::new()).await.expect_err("refused");
            assert_eq!(failure.kind, kind, "{status}: {failure:?}");
        }
        assert!(server.asked.lock().len() <= 2, "no redirect is followed and nothing is repeated");
    }
}

#[tokio::test]
async fn clouddrivers_words_are_passed_on_and_storage_that_is_off_is_recognised() {
    let error = |exception: &str| {
        json!({"status": 400, "error": "Bad Request", "exception": exception, "message": "no\u{7}good"})
            .to_string()
    };
    let server =
        Scripted::answering(400, "application/json", error("com.netflix.X.InvalidRequestException")).await;
    let failure = server.client.change(AccountCall::Create, "a", &Map::new()).await.expect_err("refused");
    assert_eq!(failure.message, "Clouddriver rejects the account: nogood");
    let server =
        Scripted::answering(400, "application/json", error("com.netflix.X.ConfigurationException")).await;
    let failure = server.client.change(AccountCall::Create, "a", &Map::new()).await.expect_err("refused");
    assert_eq!(failure.kind, FailureKind::StorageOff);
}

#[tokio::test]
async fn nobody_there_is_said_without_the_name_of_an_account() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let base = format!("http://{}", listener.local_addr().expect("bound"));
    drop(listener);
    let client = client(&base).await;
    let none = Map::new();
    let call = client.change(AccountCall::Delete, "my-account", &none);
    let failure =
        tokio::time::timeout(Duration::from_secs(30), call).await.expect("at once").expect_err("nobody");
    assert!(failure.message.starts_with("Clouddriver at 127.0.0.1 does not answer"), "{failure:?}");
    assert!(!failure.message.contains("my-account"), "{failure:?}");
}
