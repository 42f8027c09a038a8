//! Calls to the API server, and how its errors map to those of REST.
//!
//! A message of the API server may contain what was sent to it. So a caller is told the verb, the kind, the namespace
//! and the name of the object in kubesvc's own words. For a refused account, each field and the rule that it breaks are
//! added, without the value.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use axum::http::StatusCode;
use kube::core::Status;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tracing::warn;

use super::error::RestError;
use crate::telemetry::outages::warn_unless_away;

/// Time limit for one request to the API server.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);
/// Maximum number of requests to the API server at once.
const MAX_CONCURRENT_CALLS: usize = 64;

/// A request to the API server.
#[derive(Clone, Copy)]
pub(super) struct ApiCall<'a> {
    /// RBAC verb: `get`, `create`, `patch`, `update` or `delete`.
    pub(super) verb: &'static str,
    pub(super) resource: Resource,
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
}

/// Kind of the object.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Resource {
    Account,
    Secret,
}

impl fmt::Display for ApiCall<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let resource = match self.resource {
            Resource::Account => "KubesvcAccount",
            Resource::Secret => "Secret",
        };
        write!(f, "{} {resource} {}/{}", self.verb, self.namespace, self.name)
    }
}

/// Why a request to the API server failed.
#[derive(Debug)]
pub(super) enum ApiError {
    /// The object does not exist.
    NotFound,
    /// The object already exists.
    Exists,
    /// The object has another version or uid than expected.
    Changed,
    /// The request was refused and had no effect.
    Refused(RestError),
    /// There was no usable answer. Whether the request took effect is unknown.
    Unknown(RestError),
}

impl From<ApiError> for RestError {
    fn from(trouble: ApiError) -> Self {
        match trouble {
            ApiError::Refused(problem) | ApiError::Unknown(problem) => problem,
            ApiError::NotFound => {
                Self::conflict("the object was deleted during the request; read it and try again")
            }
            ApiError::Exists | ApiError::Changed => Self::conflict(
                "the object was changed by another client during the request; read it and try again",
            ),
        }
    }
}

/// Limit on the concurrent requests of REST to the API server, across all callers.
pub(super) struct Calls(Semaphore);

impl Default for Calls {
    fn default() -> Self {
        Self(Semaphore::new(MAX_CONCURRENT_CALLS))
    }
}

impl Calls {
    /// Sends a request, within [`REQUEST_TIMEOUT`] including the wait for other requests.
    pub(super) async fn ask<T>(
        &self,
        call: ApiCall<'_>,
        answer: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, ApiError> {
        let until = Instant::now() + REQUEST_TIMEOUT;
        let Ok(Ok(_place)) = tokio::time::timeout_at(until, self.0.acquire()).await else {
            warn!(%call, "too many concurrent requests to the API server");
            return Err(ApiError::Refused(RestError::unavailable(format!(
                "{MAX_CONCURRENT_CALLS} requests to the Kubernetes API server are under way, and none ended within {} s ({call}); try again",
                REQUEST_TIMEOUT.as_secs()
            ))));
        };
        match tokio::time::timeout_at(until, answer).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(kube::Error::Api(status))) => Err(refusal(call, &status)),
            Ok(Err(problem)) => {
                // An account's error may be logged. A Secret's could contain what was sent.
                let error = (call.resource == Resource::Account).then(|| problem.to_string());
                warn_unless_away!(%call, error, "cannot reach the API server");
                Err(ApiError::Unknown(RestError::unavailable(format!(
                    "the Kubernetes API server cannot be reached ({call}); try again"
                ))))
            }
            Err(_) => {
                warn_unless_away!(%call, "the API server did not answer in time");
                Err(ApiError::Unknown(RestError::unavailable(format!(
                    "the Kubernetes API server did not answer within {} s ({call}); try again",
                    REQUEST_TIMEOUT.as_secs()
                ))))
            }
        }
    }

    /// Like [`Self::ask`], but an absent object is `None`.
    pub(super) async fn ask_for<T>(
        &self,
        call: ApiCall<'_>,
        answer: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<Option<T>, ApiError> {
        match self.ask(call, answer).await {
            Ok(value) => Ok(Some(value)),
            Err(ApiError::NotFound) => Ok(None),
            Err(trouble) => Err(trouble),
        }
    }
}

fn refusal(call: ApiCall<'_>, status: &Status) -> ApiError {
    match status.code {
        404 if names_the_object(call, status) => return ApiError::NotFound,
        409 if status.reason == "AlreadyExists" => return ApiError::Exists,
        409 => return ApiError::Changed,
        _ => {}
    }
    warn!(%call, code = status.code, reason = %status.reason, "the API server rejected a request");
    let namespace = call.namespace;
    match status.code {
        400 | 422 => ApiError::Refused(RestError::bad_request(invalid(call, status))),
        401 => ApiError::Refused(RestError::unavailable(
            "the Kubernetes API server does not accept the operator's identity; look at its service account",
        )),
        403 => ApiError::Refused(RestError::unavailable(forbidden(call, status))),
        404 if call.resource == Resource::Secret || names_the_namespace(status) => {
            ApiError::Refused(RestError::unavailable(format!(
                "cannot {call}: the namespace {namespace} is not there; create it"
            )))
        }
        404 => ApiError::Refused(RestError::unavailable(format!(
            "cannot {call}: the definition of KubesvcAccount is not there; apply the output of kubesvc-operator crds"
        ))),
        413 => ApiError::Refused(RestError::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("cannot {call}: it is too large for the Kubernetes API server"),
        )),
        code => ApiError::Unknown(RestError::unavailable(format!(
            "the Kubernetes API server answered {code} ({call}); try again"
        ))),
    }
}

/// Whether a 404 is about the object, not about its namespace or a missing definition.
fn names_the_object(call: ApiCall<'_>, status: &Status) -> bool {
    !names_the_namespace(status) && status.details.as_ref().is_some_and(|details| details.name == call.name)
}

fn names_the_namespace(status: &Status) -> bool {
    status.details.as_ref().is_some_and(|details| details.kind == "namespaces")
}

fn forbidden(call: ApiCall<'_>, status: &Status) -> String {
    let (resource, group) = match call.resource {
        Resource::Account => ("kubesvcaccounts", "kubesvc.io"),
        Resource::Secret => ("secrets", ""),
    };
    let ApiCall { verb, namespace, .. } = call;
    if status.message.contains("exceeded quota") {
        return format!("cannot {call}: the quota of namespace {namespace} is used up");
    }
    if status.message.contains("being terminated") {
        return format!("cannot {call}: the namespace {namespace} is being deleted");
    }
    format!(
        "the operator may not {verb} {resource} (API group {group:?}) in namespace {namespace}: grant its service account that right"
    )
}

fn invalid(call: ApiCall<'_>, status: &Status) -> String {
    if call.resource == Resource::Secret {
        return format!("cannot {call}: the Kubernetes API server rejected it ({})", status.reason);
    }
    let causes = status.details.iter().flat_map(|details| &details.causes);
    let mut causes: Vec<String> =
        causes.map(|cause| clean(&cause.field, &cause.message)).filter(|cause| !cause.is_empty()).collect();
    causes.dedup();
    if causes.is_empty() {
        return format!("cannot {call}: the Kubernetes API server rejected it ({})", status.reason);
    }
    format!("account object {}: {}", call.name, causes.join("; "))
}

/// A cause without its value: `Invalid value: "…": the rule` becomes `field: the rule`.
fn clean(field: &str, message: &str) -> String {
    let rule = match message.find("nvalid value: ").or_else(|| message.find("nsupported value: ")) {
        Some(start) => after_value(&message[start..]).unwrap_or("is not valid"),
        None if message.contains('"') => "is not valid",
        None => message,
    };
    let about_itself = rule.starts_with("spec.") || field.is_empty();
    if about_itself { rule.to_owned() } else { format!("{field}: {rule}") }
}

/// Returns the text after a Go-quoted or bare value and its colon.
fn after_value(text: &str) -> Option<&str> {
    let (_, value) = text.split_once(": ")?;
    let Some(quoted) = value.strip_prefix('"') else { return value.split_once(": ").map(|(_, rule)| rule) };
    let mut escaped = false;
    let end = quoted.char_indices().find_map(|(at, character)| {
        let ends = character == '"' && !escaped;
        escaped = character == '\\' && !escaped;
        ends.then_some(at)
    })?;
    quoted[end + 1..].strip_prefix(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALL: ApiCall<'_> =
        ApiCall { verb: "create", resource: Resource::Account, namespace: "ns", name: "a" };

    fn status(value: serde_json::Value) -> Status {
        serde_json::from_value(value).expect("a Status")
    }

    #[test]
    fn a_refused_field_is_reported_without_its_value() {
        let cases = [
            (
                r#"Invalid value: "object": spec.kinds and spec.omitKinds exclude each other"#,
                "spec.kinds and spec.omitKinds exclude each other",
            ),
            (
                r#"Invalid value: "s3\"cret: x": spec.x in body should match '^a$'"#,
                "spec.x in body should match '^a$'",
            ),
            (r#"Invalid value: 5: must be of type string"#, "spec.f: must be of type string"),
            (r#"Unsupported value: "s3cret": supported values: "a""#, r#"spec.f: supported values: "a""#),
            (r#"s3cret is "odd""#, "spec.f: is not valid"),
            (r#"Invalid value: "s3cret"#, "spec.f: is not valid"),
            ("Too long: may not be more than 255 bytes", "spec.f: Too long: may not be more than 255 bytes"),
        ];
        for (message, told) in cases {
            assert_eq!(clean("spec.f", message), told);
        }
    }

    #[test]
    fn each_refusal_has_its_answer() {
        let problem = |code: u16, message: &str| {
            let status = status(serde_json::json!({"code": code, "message": message, "reason": "R"}));
            RestError::from(refusal(CALL, &status))
        };
        assert_eq!(problem(422, "").status.as_u16(), 400);
        assert_eq!(problem(500, "").status.as_u16(), 503);
        assert_eq!(problem(404, "").status.as_u16(), 503);
        let forbidden = problem(403, "User x cannot …");
        assert_eq!(forbidden.status.as_u16(), 503);
        assert!(forbidden.message.contains("may not create kubesvcaccounts"), "{}", forbidden.message);
    }

    #[test]
    fn an_absent_object_is_told_from_an_absent_definition() {
        let details = serde_json::json!({"code": 404, "details": {"name": "a", "kind": "kubesvcaccounts"}});
        assert!(matches!(refusal(CALL, &status(details)), ApiError::NotFound));
        assert!(matches!(refusal(CALL, &status(serde_json::json!({"code": 404}))), ApiError::Refused(_)));
    }
}
