//! Interface of programs: their context, requests and steps.

use std::fmt;
use std::time::Duration;

use serde_json::Value;

use super::kinds::{KindLookup, Kinds, Resource};
use super::outcome::{ApiAnswer, Outcome, OutcomeClass};
use super::{ApplySettings, InvalidOperation};
use crate::wire::operations::Target;

/// A program of requests to one cluster.
pub trait Program: Send {
    /// Next step. `elapsed` is the time since the first one; `answer` is the answer to the last request, `None` at the
    /// start, after a wait, and when a new run continues.
    fn next(&mut self, elapsed: Duration, answer: Option<&ApiAnswer>) -> Step;

    /// Outcome if the operation's time expires while the program waits. `None`: not done.
    fn out_of_time(&self) -> Option<Outcome> {
        None
    }

    /// Whether a new run of the operation, after a write that may have been executed, continues with this program
    /// instead of a new one that reads the current state.
    fn goes_on(&self) -> bool {
        false
    }
}

/// Inputs of a program.
#[derive(Clone, Debug)]
pub struct ProgramContext<'c> {
    /// Known kinds of the cluster.
    pub kinds: &'c Kinds,
    /// Current time on the clock of `kinds`.
    pub now: Duration,
    /// Start of the operation on the same clock: a list of kinds that was read later is not read again.
    pub began: Duration,
    /// Wall-clock time in RFC 3339, for annotations.
    pub time_of_day: &'c str,
    /// Id of the operation.
    pub operation_id: &'c str,
    /// Whether nothing is to be changed: every write carries `dryRun=All`.
    pub dry_run: bool,
    /// The agent's settings for applies.
    pub apply: &'c ApplySettings,
}

impl ProgramContext<'_> {
    pub(super) fn resource(&self, group: &str, version: &str, kind: &str) -> Result<Resource, NotStarted> {
        match self.kinds.find(group, version, kind, self.now, self.began) {
            KindLookup::Found(resource) => Ok(resource),
            KindLookup::Read(path) => Err(NotStarted::Read(ApiRequest::get(path))),
            KindLookup::Unknown(message) => {
                Err(NotStarted::Failed(Outcome::failed(404, OutcomeClass::NotFound, message)))
            }
        }
    }

    pub(super) fn resource_of(&self, target: &Target) -> Result<Resource, NotStarted> {
        self.resource(&target.group, &target.version, &target.kind)
    }

    /// Resource and path of a target that must be one object.
    pub(super) fn object(&self, target: Option<&Target>) -> Result<(Resource, String), NotStarted> {
        let target = target.ok_or(InvalidOperation::Missing("target"))?;
        let resource = self.resource_of(target)?;
        if resource.namespaced && target.namespace.is_empty() {
            return Err(InvalidOperation::Missing("target.namespace").into());
        }
        let path = resource.path(&target.namespace, &target.name);
        Ok((resource, path))
    }
}

/// Reason for which a program does not start.
#[derive(Clone, Debug, PartialEq)]
pub enum NotStarted {
    /// A read to send first, whose answer goes to [`Kinds::learn`].
    Read(ApiRequest),
    /// The operation is invalid.
    Invalid(InvalidOperation),
    /// Outcome that is known without a program.
    Failed(Outcome),
}

impl From<InvalidOperation> for NotStarted {
    fn from(error: InvalidOperation) -> Self {
        Self::Invalid(error)
    }
}

/// Next step of a program.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Send this request, and continue with its answer.
    Request(ApiRequest),
    /// Wait this long, and continue without an answer.
    Wait(Duration),
    /// Stop with this outcome.
    Done(Outcome),
}

/// HTTP method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// `GET`.
    Get,
    /// `POST`.
    Post,
    /// `PUT`.
    Put,
    /// `PATCH`.
    Patch,
    /// `DELETE`.
    Delete,
}

impl Method {
    /// Name of the method.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Patch => "PATCH",
            Self::Delete => "DELETE",
        }
    }

    /// Whether the method changes nothing.
    pub fn reads(self) -> bool {
        self == Self::Get
    }
}

/// A request to the API server.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiRequest {
    /// Method.
    pub method: Method,
    /// Path and query.
    pub target: String,
    /// Media type of the body, if any.
    pub content_type: Option<&'static str>,
    /// Accepted media types.
    pub accept: &'static str,
    /// Body. It may hold a Secret.
    pub body: Vec<u8>,
}

impl fmt::Debug for ApiRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} ({} bytes)", self.method.as_str(), self.target, self.body.len())
    }
}

/// Media type of JSON.
pub(super) const JSON: &str = "application/json";

impl ApiRequest {
    /// A GET of `target`.
    pub fn get(target: String) -> Self {
        Self { method: Method::Get, target, content_type: None, accept: JSON, body: Vec::new() }
    }

    /// A DELETE with these options. The API server reads `dryRun` from them alone, and ignores the query parameter of a
    /// delete with a body.
    pub(super) fn delete(path: &str, mut options: Value, dry_run: bool) -> Self {
        options["apiVersion"] = "v1".into();
        options["kind"] = "DeleteOptions".into();
        if dry_run {
            options["dryRun"] = vec!["All"].into();
        }
        Self::write(Method::Delete, path, &[], dry_run, JSON, &options)
    }

    /// A write of an object, with the parameters in its query, and `dryRun` if nothing is to be changed.
    pub(super) fn write(
        method: Method,
        path: &str,
        parameters: &[(&str, &str)],
        dry_run: bool,
        content_type: &'static str,
        body: &Value,
    ) -> Self {
        let target = with_query(path, parameters, dry_run);
        let body = body.to_string().into_bytes();
        Self { method, target, content_type: Some(content_type), accept: JSON, body }
    }
}

/// Appends non-empty parameters to a path, and `dryRun` if nothing is to be changed.
pub(super) fn with_query(path: &str, parameters: &[(&str, &str)], dry_run: bool) -> String {
    let mut query = url::form_urlencoded::Serializer::new(String::new());
    query.extend_pairs(parameters.iter().filter(|(_, value)| !value.is_empty()));
    if dry_run {
        query.append_pair("dryRun", "All");
    }
    let query = query.finish();
    if query.is_empty() { path.to_owned() } else { format!("{path}?{query}") }
}

/// Returns a failure as the end of a program, or evaluates to the value.
macro_rules! go_on {
    ($value:expr) => {
        match $value {
            Ok(value) => value,
            Err(outcome) => return $crate::operations::program::Step::Done(outcome),
        }
    };
}
pub(super) use go_on;
