//! An API server that answers by a script, and keeps what it was asked.

use std::convert::Infallible;
use std::sync::Arc;

use http::{Request, Response};
use http_body_util::BodyExt as _;
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::Value;

use kubesvc_runtime::kube_access::KubeAccess;

type Script = dyn Fn(&str, &Value) -> (u16, Value) + Send + Sync;

#[derive(Clone)]
pub(super) struct ScriptedApi {
    asked: Arc<Mutex<Vec<(String, Value)>>>,
    script: Arc<Script>,
}

impl ScriptedApi {
    pub(super) fn new(script: impl Fn(&str, &Value) -> (u16, Value) + Send + Sync + 'static) -> Self {
        Self { asked: Arc::default(), script: Arc::new(script) }
    }

    pub(super) fn kube(&self) -> KubeAccess {
        let this = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let this = this.clone();
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect().await.expect("a body").to_bytes();
                let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
                let (code, answer) = (this.script)(head.uri.path(), &body);
                this.asked.lock().push((head.uri.path().to_owned(), body));
                let answer = Body::from(answer.to_string().into_bytes());
                Ok::<_, Infallible>(Response::builder().status(code).body(answer).expect("an answer"))
            }
        });
        KubeAccess::new(kube::Client::new(service, "ns"), "test")
    }

    /// What was asked of a path that ends so.
    pub(super) fn asked(&self, end: &str) -> Vec<Value> {
        let asked = self.asked.lock();
        asked.iter().filter(|(path, _)| path.ends_with(end)).map(|(_, body)| body.clone()).collect()
    }
}
