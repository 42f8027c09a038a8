//! An API server by script, for what the plugin prints: it has the accounts it is given, no agents and no Events, and
//! answers everything else as it is told. It speaks HTTP without TLS.

use std::path::PathBuf;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Json, Response};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::AbortHandle;

use kubesvc_testkit::folder::Folder;
use kubesvc_testkit::kubeconfig::{Authority, Proof, yaml};
use kubesvc_testkit::kubectl::Output;
use kubesvc_testkit::must;

const KUBESVC: &str = "/apis/kubesvc.io/v1alpha1";

#[derive(Default)]
struct Script {
    /// Accounts of the namespace `default`; `None` if their kind is not known.
    accounts: Option<Vec<Value>>,
    /// Answers to paths that begin so, the last one first.
    answers: Vec<(&'static str, StatusCode, Value)>,
    /// Paths and queries of all requests.
    asked: Vec<String>,
}

/// See the module. It ends with this value.
pub(super) struct ScriptedApi {
    script: Arc<Mutex<Script>>,
    pub(super) server: String,
    pub(super) folder: Folder,
    serving: AbortHandle,
}

impl Drop for ScriptedApi {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl ScriptedApi {
    /// A server with the kinds of kubesvc, and these accounts.
    pub(super) async fn with_accounts(accounts: impl IntoIterator<Item = Value>) -> Self {
        let api = Self::without_kinds().await;
        api.script.lock().accounts = Some(accounts.into_iter().collect());
        api
    }

    /// A server that knows no kinds.
    pub(super) async fn without_kinds() -> Self {
        let listener = must(TcpListener::bind("127.0.0.1:0").await.map_err(|error| error.to_string()));
        let address = listener.local_addr().expect("it is bound");
        let script = Arc::<Mutex<Script>>::default();
        let router = Router::new().fallback(answer).with_state(Arc::clone(&script));
        let serving = tokio::spawn(async move { axum::serve(listener, router).await }).abort_handle();
        let folder = must(Folder::new("scripted-api"));
        let api = Self { script, server: format!("http://{address}"), folder, serving };
        let authority = must(Authority::new("scripted-api")).pem();
        must(api.folder.write("kubeconfig", &yaml(&api.server, &authority, Proof::Token("mine"))));
        api
    }

    /// Answers requests whose path begins so.
    pub(super) fn answer(&self, path: &'static str, code: u16, body: Value) {
        let code = StatusCode::from_u16(code).expect("a status code");
        self.script.lock().answers.push((path, code, body));
    }

    /// Refuses requests whose path begins so, as about the object that it ends with.
    pub(super) fn refuse(&self, path: &'static str, code: u16, message: &str) {
        let name = path.rsplit('/').next().unwrap_or_default();
        self.answer(path, code, status(code, message, name));
    }

    pub(super) fn add(&self, account: Value) {
        self.script.lock().accounts.get_or_insert_default().push(account);
    }

    pub(super) fn asked(&self) -> Vec<String> {
        self.script.lock().asked.clone()
    }

    /// Kubeconfig of a user with a token, in the namespace `default`.
    pub(super) fn kubeconfig(&self) -> PathBuf {
        self.folder.file("kubeconfig")
    }

    /// Runs the plugin.
    pub(super) async fn plugin(&self, arguments: &[&str]) -> Output {
        super::run(&self.kubeconfig(), arguments.iter().copied()).await
    }

    /// Standard output of a run that must succeed.
    pub(super) async fn shown(&self, arguments: &[&str]) -> String {
        must(self.plugin(arguments).await.ok())
    }
}

/// An account of the namespace `default` that an operator has not seen yet.
pub(super) fn account(name: &str) -> Value {
    json!({
        "apiVersion": "kubesvc.io/v1alpha1", "kind": "KubesvcAccount",
        "metadata": {"name": name, "namespace": "default", "uid": format!("uid-{name}"), "generation": 1,
            "resourceVersion": "1", "creationTimestamp": "2026-01-01T00:00:00Z", "labels": {"team": "a"}},
        "spec": {"zoneId": "east", "kubeconfig": {"serviceAccount": true}},
    })
}

fn status(code: u16, message: &str, name: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": "Scripted",
        "message": message, "code": code, "details": {"name": name}})
}

async fn answer(State(script): State<Arc<Mutex<Script>>>, uri: Uri) -> Response {
    let (path, query) = (uri.path(), uri.query().unwrap_or_default());
    if query.contains("watch=true") {
        // Nothing happens.
        return std::future::pending().await;
    }
    let mut script = script.lock();
    script.asked.push(uri.to_string());
    if let Some((_, code, body)) = script.answers.iter().rev().find(|(begin, ..)| path.starts_with(begin)) {
        return (*code, Json(body)).into_response();
    }
    let Some(accounts) = &script.accounts else {
        return (StatusCode::NOT_FOUND, "404 page not found\n").into_response();
    };
    let resource = path.strip_prefix(KUBESVC).unwrap_or(path);
    match resource.strip_prefix("/namespaces/default").unwrap_or(resource) {
        "/kubesvcaccounts" => Json(page(accounts, query)).into_response(),
        "/kubesvcagents" | "/api/v1/namespaces/default/events" => Json(list(&[], "")).into_response(),
        one => match one.strip_prefix("/kubesvcaccounts/") {
            Some(name) => match accounts.iter().find(|account| account["metadata"]["name"] == *name) {
                Some(account) => Json(account).into_response(),
                None => {
                    let message = format!("kubesvcaccounts.kubesvc.io {name:?} not found");
                    let missing = status(404, &message, name);
                    (StatusCode::NOT_FOUND, Json(missing)).into_response()
                }
            },
            None => (StatusCode::NOT_FOUND, "404 page not found\n").into_response(),
        },
    }
}

fn list(items: &[Value], next: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": "1", "continue": next}, "items": items})
}

/// Accounts with the label that is asked for, from where the token says; tokens are numbers.
fn page(accounts: &[Value], query: &str) -> Value {
    let asked = |key: &str| query.split('&').find_map(|pair| pair.strip_prefix(key)?.strip_prefix('='));
    let number = |key: &str| asked(key).and_then(|value| value.parse().ok()).unwrap_or(0);
    let label = asked("labelSelector").and_then(|selector| selector.split_once("%3D"));
    let has_label = |account: &&Value| {
        label.is_none_or(|(name, value)| account["metadata"]["labels"][name].as_str() == Some(value))
    };
    let found: Vec<_> = accounts.iter().filter(has_label).cloned().collect();
    let (first, limit): (usize, usize) = (number("continue"), number("limit"));
    let end = if limit == 0 { found.len() } else { found.len().min(first + limit) };
    let next = if end < found.len() { end.to_string() } else { String::new() };
    list(&found[first..end], &next)
}
