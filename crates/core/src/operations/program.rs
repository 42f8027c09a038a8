//! What a program is: what it is made with, its requests and its steps.

use std::fmt;
use std::time::Duration;

use serde_json::Value;

use super::kinds::{KindLookup, Kinds, Resource};
use super::outcome::{ApiAnswer, Outcome, OutcomeClass};
use super::{ApplySettings, InvalidOperation};
use crate::wire::operations::Target;

/// A program of requests to one cluster.
pub trait Program: Send {
    /// The next step. `elapsed` is the time since the first one; `answer` is that to the last request, and `None` at the
    /// beginning, after a wait, and where a new run goes on.
    fn next(&mut self, elapsed: Duration, answer: Option<&ApiAnswer>) -> Step;

    /// The outcome if the operation's time is over while the program waits. `None`: it is not done.
    fn out_of_time(&self) -> Option<Outcome> {
        None
    }

    /// Whether a new run of the operation, after a write that may have been executed, goes on with this program instead
    /// of one that reads anew what it is to change.
    fn goes_on(&self) -> bool {
        false
    }
}

/// What a program is made with.
#[derive(Clone, Debug)]
pub struct ProgramContext<'c> {
    /// The kinds of the cluster, as far as they are known.
    pub kinds: &'c Kinds,
    /// The time on the clock by which `kinds` are read.
    pub now: Duration,
    /// When the operation began, on the same clock: a list of kinds that was read later is not read again.
    pub began: Duration,
    /// The time of day, in RFC 3339, for annotations.
    pub time_of_day: &'c str,
    /// Id of the operation.
    pub operation_id: &'c str,
    /// Whether nothing is to be changed: every write carries `dryRun=All`.
    pub dry_run: bool,
    /// How the agent's owner wants objects to be applied.
    pub apply: &'c ApplySettings,
}

impl ProgramContext<'_> {
    /// The resource of a kind.
    pub(super) fn resource(&self, group: &str, version: &str, kind: &str) -> Result<Resource, NotStarted> {
        match self.kinds.find(group, version, kind, self.now, self.began) {
            KindLookup::Found(resource) => Ok(resource),
            KindLookup::Read(path) => Err(NotStarted::Read(ApiRequest::get(path))),
            KindLookup::Unknown(message) => {
                Err(NotStarted::Failed(Outcome::failed(404, OutcomeClass::NotFound, message)))
            }
        }
    }

    /// The resource of a target.
    pub(super) fn resource_of(&self, target: &Target) -> Result<Resource, NotStarted> {
        self.resource(&target.group, &target.version, &target.kind)
    }

    /// The resource of a target that is one object, and the path of the object.
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

/// Why a program does not begin.
#[derive(Clone, Debug, PartialEq)]
pub enum NotStarted {
    /// This must be read first, and be learned by [`Kinds::learn`].
    Read(ApiRequest),
    /// The operation is refused.
    Invalid(InvalidOperation),
    /// The outcome is known without a program.
    Failed(Outcome),
}

impl From<InvalidOperation> for NotStarted {
    fn from(error: InvalidOperation) -> Self {
        Self::Invalid(error)
    }
}

/// What a program wants next.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Send this request, and go on with its answer.
    Request(ApiRequest),
    /// Wait this long, and go on without an answer.
    Wait(Duration),
    /// The end.
    Done(Outcome),
}

/// A method of HTTP.
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
    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Patch => "PATCH",
            Self::Delete => "DELETE",
        }
    }

    /// Whether it changes nothing.
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
    /// Media type of the body, if there is one.
    pub content_type: Option<&'static str>,
    /// Media types of the answer.
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
    /// A read.
    pub fn get(target: String) -> Self {
        Self { method: Method::Get, target, content_type: None, accept: JSON, body: Vec::new() }
    }

    /// A delete with these options. The API server reads `dryRun` from them alone: the parameter of a delete that has a
    /// body says nothing.
    pub(super) fn delete(path: &str, mut options: Value, dry_run: bool) -> Self {
        options["apiVersion"] = "v1".into();
        options["kind"] = "DeleteOptions".into();
        if dry_run {
            options["dryRun"] = vec!["All"].into();
        }
        Self::write(Method::Delete, path, &[], dry_run, JSON, &options)
    }

    /// A write of an object. The parameters follow the path, and `dryRun` if nothing is to be changed.
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

/// Appends parameters with a value to a path, and `dryRun` if nothing is to be changed.
pub(super) fn with_query(path: &str, parameters: &[(&str, &str)], dry_run: bool) -> String {
    let mut query = url::form_urlencoded::Serializer::new(String::new());
    query.extend_pairs(parameters.iter().filter(|(_, value)| !value.is_empty()));
    if dry_run {
        query.append_pair("dryRun", "All");
    }
    let query = query.finish();
    if query.is_empty() { path.to_owned() } else { format!("{path}?{query}") }
}

/// Ends a program with the failure, or goes on with the value.
macro_rules! go_on {
    ($value:expr) => {
        match $value {
            Ok(value) => value,
            Err(outcome) => return $crate::operations::program::Step::Done(outcome),
        }
    };
}
pub(super) use go_on;
