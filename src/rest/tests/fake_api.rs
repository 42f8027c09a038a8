//! An in-memory API server that keeps objects, versions and uids, and can hold a request.

use std::collections::BTreeMap;
use std::time::Duration;

use http_body_util::BodyExt;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::*;

/// Objects by path, and the requests to hold.
#[derive(Default)]
pub(super) struct FakeApi {
    objects: Mutex<BTreeMap<String, Value>>,
    written: Mutex<u64>,
    gates: Mutex<Vec<RequestGate>>,
    refusals: Mutex<Vec<(&'static str, String, Value)>>,
    deletions: Mutex<Vec<Value>>,
}

struct RequestGate {
    method: &'static str,
    path: String,
    reached: oneshot::Sender<()>,
    go: oneshot::Receiver<()>,
}

/// A request that is held before it has any effect.
pub(super) struct HeldRequest {
    reached: oneshot::Receiver<()>,
    go: oneshot::Sender<()>,
}

impl HeldRequest {
    /// Waits until a request has arrived.
    pub(super) async fn reached(&mut self) {
        let reached = tokio::time::timeout(Duration::from_secs(10), &mut self.reached).await;
        reached.expect("the request comes").expect("the server stands");
    }

    /// Lets the request continue.
    pub(super) fn go(self) {
        self.go.send(()).expect("somebody waits");
    }
}

impl FakeApi {
    pub(super) fn client(self: &Arc<Self>) -> kube::Client {
        let api = Arc::clone(self);
        let service = tower::service_fn(move |request: Request<kube::client::Body>| {
            let api = Arc::clone(&api);
            async move { Ok::<_, io::Error>(api.answer(request).await) }
        });
        kube::Client::new(service, "ns")
    }

    /// Holds the next request of this method whose path has this suffix.
    pub(super) fn hold(&self, method: &'static str, path: &str) -> HeldRequest {
        let ((reached, was_reached), (go, may_go)) = (oneshot::channel(), oneshot::channel());
        self.gates.lock().push(RequestGate { method, path: path.to_owned(), reached, go: may_go });
        HeldRequest { reached: was_reached, go }
    }

    /// Answers the next request of this method whose path has this suffix with this Status.
    pub(super) fn refuse(&self, method: &'static str, path: &str, status: Value) {
        self.refusals.lock().push((method, path.to_owned(), status));
    }

    /// The options of all deletions.
    pub(super) fn deletions(&self) -> Vec<Value> {
        self.deletions.lock().clone()
    }

    /// Stores an object at a path, as it is.
    pub(super) fn put(&self, path: &str, object: Value) {
        self.objects.lock().insert(path.to_owned(), object);
    }

    /// Returns the object whose path has this suffix.
    pub(super) fn get(&self, path: &str) -> Option<Value> {
        let objects = self.objects.lock();
        objects.iter().find(|(at, _)| at.ends_with(path)).map(|(_, object)| object.clone())
    }

    async fn answer(&self, request: Request<kube::client::Body>) -> Response<Body> {
        let (parts, body) = request.into_parts();
        let (method, path) = (parts.method.as_str().to_owned(), parts.uri.path().to_owned());
        let body = body.collect().await.expect("a body").to_bytes();
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let gate = {
            let mut gates = self.gates.lock();
            let at = gates.iter().position(|gate| gate.method == method && path.ends_with(&gate.path));
            at.map(|at| gates.remove(at))
        };
        if let Some(gate) = gate {
            let _ = gate.reached.send(());
            let _ = gate.go.await;
        }
        let refusal = {
            let mut refusals = self.refusals.lock();
            let at = refusals.iter().position(|(refused, end, _)| *refused == method && path.ends_with(end));
            at.map(|at| refusals.remove(at).2)
        };
        if method == "DELETE" {
            self.deletions.lock().push(body.clone());
        }
        match refusal {
            Some(status) => refused(&status),
            None => self.act(&method, &path, body),
        }
    }

    fn act(&self, method: &str, path: &str, body: Value) -> Response<Body> {
        let mut objects = self.objects.lock();
        let name = body["metadata"]["name"].as_str().unwrap_or_default();
        let path = if method == "POST" { format!("{path}/{name}") } else { path.to_owned() };
        let present = objects.get(&path).cloned();
        let wanted = if method == "DELETE" { &body["preconditions"] } else { &body["metadata"] };
        let differs = |key: &str, present: &Value| {
            wanted.get(key).is_some_and(|value| !value.is_null() && *value != present["metadata"][key])
        };
        let new = match (method, present) {
            ("POST", Some(_)) => return failure(409, "AlreadyExists", &path),
            ("POST", None) => body,
            (_, None) => return failure(404, "NotFound", &path),
            (_, Some(present)) if differs("uid", &present) || differs("resourceVersion", &present) => {
                return failure(409, "Conflict", &path);
            }
            ("DELETE", Some(present)) => {
                objects.remove(&path);
                return ok(&present);
            }
            ("PUT", Some(_)) => body,
            ("PATCH", Some(mut present)) => {
                merge(&mut present, &body);
                present
            }
            (_, Some(present)) => return ok(&present),
        };
        let mut written = self.written.lock();
        *written += 1;
        let mut new = new;
        if method == "POST" {
            new["metadata"]["uid"] = json!(format!("uid-{written}"));
            new["metadata"]["namespace"] = json!("ns");
        }
        new["metadata"]["resourceVersion"] = json!(written.to_string());
        objects.insert(path, new.clone());
        ok(&new)
    }
}

fn merge(into: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else { return into.clone_from(patch) };
    if !into.is_object() {
        *into = json!({});
    }
    for (key, value) in patch {
        match value {
            Value::Null => drop(into.as_object_mut().and_then(|into| into.remove(key))),
            value => merge(&mut into[key], value),
        }
    }
}

fn ok(object: &Value) -> Response<Body> {
    Response::new(Body::from(object.to_string()))
}

fn failure(code: u16, reason: &str, path: &str) -> Response<Body> {
    let name = path.rsplit('/').next().unwrap_or_default();
    refused(
        &json!({"kind": "Status", "code": code, "reason": reason, "message": reason, "details": {"name": name}}),
    )
}

fn refused(status: &Value) -> Response<Body> {
    let code = status["code"].as_u64().and_then(|code| u16::try_from(code).ok()).expect("a code");
    Response::builder().status(code).body(Body::from(status.to_string())).expect("a response")
}
