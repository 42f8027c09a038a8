//! Runs programs against an API server over plain HTTP, without an agent and without the operator.

use std::time::{Duration, Instant};

use http_body_util::BodyExt as _;
use kube::Client;
use kube::client::Body;
use kubesvc_core::operations::{
    ApiAnswer, ApiRequest, ApplySettings, Kinds, NotStarted, Outcome, OutcomeBody, OutcomeClass, Program,
    ProgramContext, Step, operation_from_text, program_for,
};
use parking_lot::Mutex;
use serde_json::Value;

/// An API server, what is known of its kinds, and what was sent to it.
pub(super) struct ApiServer {
    client: Client,
    kinds: Mutex<Kinds>,
    apply: ApplySettings,
    begun: Instant,
    sent: Mutex<Vec<String>>,
}

/// A program between two requests.
pub(super) struct Run<'s> {
    server: &'s ApiServer,
    program: Box<dyn Program>,
    begun: Instant,
    step: Step,
}

impl ApiServer {
    pub(super) fn new(client: Client) -> Self {
        Self::with(client, ApplySettings::default())
    }

    /// With settings of the agent's owner.
    pub(super) fn with(client: Client, apply: ApplySettings) -> Self {
        let (kinds, sent) = (Mutex::default(), Mutex::default());
        Self { client, kinds, apply, begun: Instant::now(), sent }
    }

    pub(super) async fn send(&self, request: &ApiRequest) -> ApiAnswer {
        self.sent.lock().push(format!("{} {}", request.method.as_str(), request.target));
        let mut http = http::Request::builder().method(request.method.as_str()).uri(&request.target);
        http = http.header("accept", request.accept);
        if let Some(content_type) = request.content_type {
            http = http.header("content-type", content_type);
        }
        let http = http.body(Body::from(request.body.clone())).expect("a request");
        let response = self.client.send(http).await.expect("the API server answers");
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.expect("a body").to_bytes().to_vec();
        ApiAnswer { status, body, ..ApiAnswer::default() }
    }

    /// Sends a request of a test's own: what other people do. Returns the status and the body.
    pub(super) async fn call(
        &self,
        method: kubesvc_core::operations::Method,
        target: &str,
        content_type: &'static str,
        body: &Value,
    ) -> (u16, Value) {
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        let mut request = ApiRequest::get(target.to_owned());
        request.method = method;
        request.body = body;
        request.content_type = Some(content_type);
        let answer = self.send(&request).await;
        self.sent.lock().pop();
        (answer.status, serde_json::from_slice(&answer.body).unwrap_or_default())
    }

    /// The object at a path, or null.
    pub(super) async fn get(&self, path: &str) -> Value {
        let (status, body) =
            self.call(kubesvc_core::operations::Method::Get, path, "application/json", &Value::Null).await;
        if status == 200 { body } else { Value::Null }
    }

    /// The requests since the last call.
    pub(super) fn take_sent(&self) -> Vec<String> {
        std::mem::take(&mut self.sent.lock())
    }

    /// Begins an operation in protobuf's text format.
    pub(super) async fn begin(&self, text: &str, dry_run: bool) -> Result<Run<'_>, Outcome> {
        let operation = operation_from_text(text)
            .map_err(|error| Outcome::failed(400, OutcomeClass::Invalid, error.to_string()))?;
        let began = self.begun.elapsed();
        loop {
            let kinds = self.kinds.lock().clone();
            let context = ProgramContext {
                kinds: &kinds,
                now: self.begun.elapsed(),
                began,
                time_of_day: "2026-01-01T00:00:00Z",
                operation_id: "01J00000000000000000000000",
                dry_run,
                apply: &self.apply,
            };
            match program_for(&operation, &context) {
                Ok(mut program) => {
                    let step = program.next(Duration::ZERO, None);
                    return Ok(Run { server: self, program, begun: Instant::now(), step });
                }
                Err(NotStarted::Read(request)) => {
                    let answer = self.send(&request).await;
                    self.kinds.lock().learn(&request.target, &answer, self.begun.elapsed())?;
                }
                Err(NotStarted::Invalid(error)) => {
                    return Err(Outcome::failed(400, OutcomeClass::Invalid, error.to_string()));
                }
                Err(NotStarted::Failed(outcome)) => return Err(outcome),
            }
        }
    }

    /// Runs an operation.
    pub(super) async fn run(&self, text: &str) -> Outcome {
        match self.begin(text, false).await {
            Ok(run) => run.end().await,
            Err(outcome) => outcome,
        }
    }

    /// Runs an operation that changes nothing.
    pub(super) async fn dry_run(&self, text: &str) -> Outcome {
        match self.begin(text, true).await {
            Ok(run) => run.end().await,
            Err(outcome) => outcome,
        }
    }
}

impl Run<'_> {
    /// The request that comes next, as a line; empty if none does.
    pub(super) fn line(&self) -> String {
        match &self.step {
            Step::Request(request) => format!("{} {}", request.method.as_str(), request.target),
            Step::Wait(_) | Step::Done(_) => String::new(),
        }
    }

    /// Does the next step.
    pub(super) async fn go_on(&mut self) {
        let answer = match &self.step {
            Step::Request(request) => Some(self.server.send(request).await),
            Step::Wait(time) => {
                tokio::time::sleep(*time).await;
                None
            }
            Step::Done(_) => return,
        };
        self.step = self.program.next(self.begun.elapsed(), answer.as_ref());
    }

    /// Runs to the end.
    pub(super) async fn end(mut self) -> Outcome {
        loop {
            if let Step::Done(outcome) = self.step {
                return outcome;
            }
            self.go_on().await;
        }
    }
}

/// A deploy of an object, in protobuf's text format.
pub(super) fn deploy(object: &Value, more: &str) -> String {
    // JSON's escapes are those of the text format, but for characters that need none.
    let data = Value::String(object.to_string());
    format!("account {{ name: \"a\" }} deploy {{ manifest {{ data: {data} }} {more} }}")
}

/// An operation with a target: `verb { TARGET more }`.
pub(super) fn on(verb: &str, group: &str, kind: &str, namespace: &str, name: &str, more: &str) -> String {
    format!(
        "account {{ name: \"a\" }} {verb} {{ target {{ group: {group:?} kind: {kind:?} namespace: {namespace:?} \
         name: {name:?} }} {more} }}"
    )
}

/// The body of a success.
#[track_caller]
pub(super) fn body(outcome: &Outcome) -> &Value {
    assert!(outcome.failure.is_none(), "{outcome:?}");
    match &outcome.body {
        OutcomeBody::Json(body) => body,
        body => unreachable!("{body:?}"),
    }
}

/// Status and text of a failure.
#[track_caller]
pub(super) fn failure(outcome: &Outcome) -> (u16, &str) {
    let failure = outcome.failure.as_ref();
    assert!(failure.is_some(), "{outcome:?}");
    (outcome.status, failure.map_or("", |failure| failure.message.as_str()))
}
