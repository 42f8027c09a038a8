//! Tests of operations, by part, and the harness that runs a program against invented answers.

use std::time::Duration;

use serde_json::{Value, json};

use super::{
    ApiAnswer, ApiRequest, ApplySettings, Kinds, NotStarted, Operation, Outcome, OutcomeBody, ParseError,
    Program, ProgramContext, Step, UnreadOperation, operation_from_text, program_for,
};

mod deploys;
mod merges;
mod mutations;
mod patches;
mod texts;
mod verbs;

fn operation_from_json(json: &Value) -> Result<Operation, ParseError> {
    Ok(UnreadOperation::from_json(json.clone())?.read()?)
}

/// The kinds that tests use.
fn kinds() -> Kinds {
    let mut kinds = Kinds::default();
    let mut learn = |path: &str, list: Value| {
        kinds.learn(path, &answer(200, &list), Duration::from_secs(1)).expect("a list");
    };
    let entry = |name: &str, kind: &str, namespaced: bool| json!({"name": name, "kind": kind, "namespaced": namespaced});
    learn(
        "/api/v1",
        json!({"groupVersion": "v1", "resources": [
            entry("pods", "Pod", true), entry("pods/log", "Pod", true), entry("secrets", "Secret", true),
            entry("configmaps", "ConfigMap", true), entry("services", "Service", true),
            entry("namespaces", "Namespace", false),
        ]}),
    );
    learn(
        "/apis/apps/v1",
        json!({"groupVersion": "apps/v1", "resources": [
            entry("deployments", "Deployment", true), entry("deployments/scale", "Scale", true),
            entry("statefulsets", "StatefulSet", true), entry("daemonsets", "DaemonSet", true),
        ]}),
    );
    kinds
}

fn answer(status: u16, body: &Value) -> ApiAnswer {
    ApiAnswer { status, body: body.to_string().into_bytes(), ..ApiAnswer::default() }
}

/// A `Status` of the API server.
fn refusal(status: u16, message: &str) -> ApiAnswer {
    answer(status, &json!({"kind": "Status", "message": message}))
}

fn operation(text: &str) -> Operation {
    operation_from_text(text).unwrap_or_else(|error| unreachable!("{text}: {error}"))
}

fn start(text: &str, dry_run: bool, apply: &ApplySettings) -> Result<Box<dyn Program>, NotStarted> {
    let context = ProgramContext {
        kinds: &kinds(),
        now: Duration::from_secs(2),
        began: Duration::from_secs(1),
        time_of_day: "2026-01-01T00:00:00Z",
        operation_id: "01J00000000000000000000000",
        dry_run,
        apply,
    };
    program_for(&operation(text), &context)
}

/// A program that a test answers.
struct Run {
    program: Box<dyn Program>,
    elapsed: Duration,
    step: Step,
}

impl Run {
    fn new(text: &str) -> Self {
        Self::with(text, false, &ApplySettings::default())
    }

    fn dry(text: &str) -> Self {
        Self::with(text, true, &ApplySettings::default())
    }

    fn with(text: &str, dry_run: bool, apply: &ApplySettings) -> Self {
        let mut program =
            start(text, dry_run, apply).unwrap_or_else(|error| unreachable!("{text}: {error:?}"));
        let step = program.next(Duration::ZERO, None);
        Self { program, elapsed: Duration::ZERO, step }
    }

    /// The request that is waited for.
    fn request(&self) -> &ApiRequest {
        match &self.step {
            Step::Request(request) => request,
            step => unreachable!("{step:?}"),
        }
    }

    /// The request that is waited for, as a line.
    fn line(&self) -> String {
        let request = self.request();
        format!("{} {}", request.method.as_str(), request.target)
    }

    /// The body of the request that is waited for.
    fn body(&self) -> Value {
        serde_json::from_slice(&self.request().body).expect("JSON")
    }

    fn answer(&mut self, status: u16, body: &Value) -> &mut Self {
        self.reply(&answer(status, body))
    }

    fn reply(&mut self, answer: &ApiAnswer) -> &mut Self {
        self.request();
        self.step = self.program.next(self.elapsed, Some(answer));
        self
    }

    /// Waits as long as the program wants, and returns how long that was.
    fn wait(&mut self) -> Duration {
        let Step::Wait(time) = self.step else { unreachable!("{:?}", self.step) };
        self.elapsed += time;
        self.step = self.program.next(self.elapsed, None);
        time
    }

    /// Goes on in a new run, after the request that is waited for had no answer.
    fn run_again(&mut self) -> &mut Self {
        self.request();
        assert!(self.program.goes_on(), "{}", self.line());
        self.step = self.program.next(self.elapsed, None);
        self
    }

    fn outcome(&self) -> &Outcome {
        match &self.step {
            Step::Done(outcome) => outcome,
            step => unreachable!("{step:?}"),
        }
    }

    /// The end: status, and the text of a failure.
    fn end(&self) -> (u16, Option<&str>) {
        let outcome = self.outcome();
        (outcome.status, outcome.failure.as_ref().map(|failure| failure.message.as_str()))
    }

    fn result(&self) -> &Value {
        match &self.outcome().body {
            OutcomeBody::Json(body) => body,
            body => unreachable!("{body:?}"),
        }
    }
}

/// A deploy of this object, in protobuf's text format.
fn deploy(object: &Value, more: &str) -> String {
    // JSON's escapes are those of the text format, but for characters that need none.
    let data = Value::String(object.to_string());
    format!("account {{ name: \"a\" }} deploy {{ manifest {{ data: {data} }} {more} }}")
}
