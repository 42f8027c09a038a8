//! Audit lines: who did what to which account, as one JSON object on a line of its own.
//!
//! Lines go to standard output whatever the level and format of the log is, with the log's first fields, so that one
//! parser reads both. They hold no header, query, body or token. A text is cut at 512 characters.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use http::Method;
use parking_lot::Mutex;
use serde::Serialize;

use super::Principal;
use kubesvc_core::requests::target::RequestPath;

/// Maximum length of a text, in characters.
const MAX_TEXT: usize = 512;
/// Maximum number of groups in a line.
const MAX_GROUPS: usize = 16;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum AuditEvent {
    /// A write has ended.
    Write,
    /// A watch, a followed log or an upgraded connection has begun.
    StreamBegin,
    /// It has ended.
    StreamEnd,
    /// A call was refused.
    Refusal,
}

/// One line. What is `None` or empty is left out.
#[derive(Clone, Copy, Debug)]
pub struct AuditLine<'a> {
    /// What happened.
    pub event: AuditEvent,
    /// Id of the request; the account's API server has it as Audit-ID.
    pub request_id: &'a str,
    /// Id of the operation that it belongs to.
    pub operation_id: &'a str,
    /// Who called.
    pub principal: Option<&'a Principal>,
    /// Who the caller says it acts for: `X-SPINNAKER-USER`.
    pub claimed: &'a str,
    /// Name of the account.
    pub account: &'a str,
    /// Uid of the account.
    pub uid: &'a str,
    /// The agent that was asked.
    pub agent: &'a str,
    /// Verb of Kubernetes, or of an operation.
    pub verb: &'a str,
    /// Kind of the object: plural and group, with its subresource.
    pub resource: &'a str,
    /// Namespace of the object.
    pub namespace: &'a str,
    /// Name of the object.
    pub name: &'a str,
    /// Status that the caller got.
    pub code: Option<u16>,
    /// Bytes of the answer.
    pub bytes: Option<u64>,
    /// Time from the call to its end.
    pub duration: Option<Duration>,
    /// Why it was refused, or how it ended.
    pub reason: &'a str,
}

impl<'a> AuditLine<'a> {
    /// A line with nothing but what happened in which request.
    pub fn new(event: AuditEvent, request_id: &'a str) -> Self {
        Self {
            event,
            request_id,
            operation_id: "",
            principal: None,
            claimed: "",
            account: "",
            uid: "",
            agent: "",
            verb: "",
            resource: "",
            namespace: "",
            name: "",
            code: None,
            bytes: None,
            duration: None,
            reason: "",
        }
    }
}

/// The line as it is written.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct WrittenLine {
    timestamp: String,
    level: &'static str,
    target: &'static str,
    message: AuditEvent,
    program: &'static str,
    #[serde(skip_serializing_if = "String::is_empty")]
    request_id: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    operation_id: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    principal: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    groups: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    via: Option<&'static str>,
    #[serde(skip_serializing_if = "String::is_empty")]
    claimed: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    account: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    uid: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    agent: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    verb: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    resource: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    namespace: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ms: Option<u64>,
    #[serde(skip_serializing_if = "String::is_empty")]
    reason: String,
}

impl WrittenLine {
    fn of(line: &AuditLine<'_>, timestamp: String) -> Self {
        let principal = line.principal;
        Self {
            timestamp,
            level: "INFO",
            target: "audit",
            message: line.event,
            program: "kubesvc-operator",
            request_id: cut(line.request_id),
            operation_id: cut(line.operation_id),
            principal: principal.map(|principal| cut(&principal.name)).unwrap_or_default(),
            groups: principal
                .map(|principal| principal.groups.iter().take(MAX_GROUPS).map(|group| cut(group)).collect())
                .unwrap_or_default(),
            via: principal.map(|principal| principal.via.as_str()),
            claimed: cut(line.claimed),
            account: cut(line.account),
            uid: cut(line.uid),
            agent: cut(line.agent),
            verb: cut(line.verb),
            resource: cut(line.resource),
            namespace: cut(line.namespace),
            name: cut(line.name),
            code: line.code,
            bytes: line.bytes,
            ms: line.duration.map(|duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)),
            reason: cut(line.reason),
        }
    }
}

fn cut(text: &str) -> String {
    text.chars().take(MAX_TEXT).collect()
}

/// Writes audit lines. Clones write to the same place.
#[derive(Clone)]
pub struct AuditLog(Arc<Mutex<dyn Write + Send>>);

impl AuditLog {
    /// The log on standard output.
    pub fn to_stdout() -> Self {
        Self::to(std::io::stdout())
    }

    /// A log into this writer.
    pub fn to(writer: impl Write + Send + 'static) -> Self {
        Self(Arc::new(Mutex::new(writer)))
    }

    /// Writes a line. One that cannot be written is lost, as a line of the log would be.
    pub fn write(&self, line: &AuditLine<'_>) {
        let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S%.3fZ").to_string();
        if let Ok(mut text) = serde_json::to_vec(&WrittenLine::of(line, now)) {
            text.push(b'\n');
            let mut writer = self.0.lock();
            let _ = writer.write_all(&text).and_then(|()| writer.flush());
        }
    }
}

/// The verb that RBAC of the account's cluster has for a request.
pub fn verb_of(method: &Method, path: &RequestPath) -> &'static str {
    match *method {
        Method::GET | Method::HEAD if path.watches_objects("GET") => "watch",
        Method::GET | Method::HEAD if path.resource.is_some() && path.name.is_none() => "list",
        Method::GET | Method::HEAD => "get",
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE if path.name.is_none() => "deletecollection",
        Method::DELETE => "delete",
        _ => "",
    }
}

/// What a request is about, as RBAC of the account's cluster has it: `deployments.apps/scale`.
pub fn resource_of(path: &RequestPath) -> String {
    let Some(resource) = &path.resource else { return String::new() };
    let group = if path.group.is_empty() { String::new() } else { format!(".{}", path.group) };
    let subresource = path.subresource.as_ref().map(|name| format!("/{name}")).unwrap_or_default();
    format!("{resource}{group}{subresource}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verbs_and_resources_are_those_of_the_clusters_own_rbac() {
        let of = |method: Method, target: &str| {
            let path = RequestPath::read(target.as_bytes()).expect("a path");
            (verb_of(&method, &path), resource_of(&path))
        };
        assert_eq!(of(Method::GET, "/api/v1/pods?watch=1"), ("watch", "pods".to_owned()));
        assert_eq!(of(Method::GET, "/api/v1/pods"), ("list", "pods".to_owned()));
        let pod = "/api/v1/namespaces/ns/pods/web?watch=1";
        assert_eq!(of(Method::GET, pod), ("get", "pods".to_owned()));
        let scale = "/apis/apps/v1/namespaces/ns/deployments/web/scale";
        assert_eq!(of(Method::PATCH, scale), ("patch", "deployments.apps/scale".to_owned()));
        assert_eq!(of(Method::DELETE, "/api/v1/namespaces/a/pods"), ("deletecollection", "pods".to_owned()));
        assert_eq!(of(Method::GET, "/version"), ("get", String::new()));
    }
}
