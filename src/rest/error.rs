//! Errors in the shape of Spring services: `{timestamp, status, error, message, path}`.
//!
//! A handler returns a [`RestError`]. The middleware [`shape`] adds the body, because only there the path is known.
//!
//! A message of the API server may contain what was sent to it. So a caller is told the verb, the kind, the namespace
//! and the name of the object in kubesvc's own words. For a refused account, each field and the rule that it breaks are
//! added, without the value.

use std::error::Error as _;

use axum::Json;
use axum::extract::Request;
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use serde::Serialize;
use tracing::warn;
use utoipa::ToSchema;

use kubesvc_runtime::account_secret::AccountSecretError;
use kubesvc_runtime::kube_access::{ErrorClass, KubeCause, KubeError};
use kubesvc_runtime::listen::refused_heads::MAX_HEAD_BYTES;
use kubesvc_runtime::telemetry::outages::warn_unless_away;
use kubesvc_store::StoreError;

/// An error response. The message names the field or the account and what to do; it contains no credential.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(super) struct RestError {
    pub(super) status: StatusCode,
    pub(super) message: String,
}

/// An error in the format of Spring services.
#[derive(Serialize, ToSchema)]
pub(super) struct ErrorBody {
    /// Time of the response, in milliseconds since the Unix epoch.
    timestamp: i64,
    /// HTTP status code.
    status: u16,
    /// Name of the status code.
    error: String,
    /// What is wrong, where, and what to do.
    message: String,
    /// Path of the request.
    path: String,
}

impl RestError {
    pub(super) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }

    pub(super) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    pub(super) fn conflict(message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, message)
    }

    pub(super) fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, message)
    }

    pub(super) fn unavailable(message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, message)
    }

    /// 503 for something of an account that cannot be read from the database.
    pub(super) fn database(problem: &StoreError, account: &str, what: &str) -> Self {
        warn!(error = problem.in_full(), account, what, "cannot read from the database");
        Self::unavailable("the database cannot be used now; try again")
    }

    /// 409 for an account that another installation serves.
    pub(super) fn foreign(account: &str, operator: &str) -> Self {
        Self::conflict(format!(
            "account {account:?} is served by the installation in namespace {operator}; ask that one, or have the account taken over first: kubectl kubesvc adopt"
        ))
    }

    /// 404 for an unknown account.
    pub(super) fn no_account(name: &str) -> Self {
        Self::not_found(format!("account {name:?} does not exist"))
    }
}

impl IntoResponse for RestError {
    fn into_response(self) -> Response {
        let mut response = self.status.into_response();
        response.extensions_mut().insert(self);
        response
    }
}

/// The body of the answer to a head that is too large, whose path nobody has read.
pub(super) fn refused_head() -> String {
    let status = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
    let body = ErrorBody {
        timestamp: Timestamp::now().as_millisecond(),
        status: status.as_u16(),
        error: status.canonical_reason().unwrap_or("Error").to_owned(),
        message: format!(
            "the head of the request has more than {MAX_HEAD_BYTES} bytes; send fewer or shorter headers"
        ),
        path: String::new(),
    };
    serde_json::to_string(&body).unwrap_or_default()
}

/// Middleware that adds the body to each [`RestError`].
pub(super) async fn shape(request: Request, next: Next) -> Response {
    let path = request.uri().path().to_owned();
    let mut response = next.run(request).await;
    let Some(RestError { status, message }) = response.extensions_mut().remove::<RestError>() else {
        return response;
    };
    let body = ErrorBody {
        timestamp: Timestamp::now().as_millisecond(),
        status: status.as_u16(),
        error: status.canonical_reason().unwrap_or("Error").to_owned(),
        message,
        path,
    };
    let allow = response.headers().get(header::ALLOW).cloned();
    let mut shaped = (status, Json(body)).into_response();
    match status {
        StatusCode::UNAUTHORIZED => {
            shaped.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        StatusCode::TOO_MANY_REQUESTS => {
            shaped.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        _ => {}
    }
    if let Some(allow) = allow {
        shaped.headers_mut().insert(header::ALLOW, allow);
    }
    if matches!(status, StatusCode::PAYLOAD_TOO_LARGE | StatusCode::REQUEST_TIMEOUT) {
        // The rest of the body is not read, so the connection cannot be reused.
        shaped.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    shaped
}

/// Fallback for unknown routes.
pub(super) async fn no_route() -> RestError {
    RestError::not_found("no call has this path; GET /openapi.json lists all calls")
}

/// Fallback for a known route with another method.
pub(super) async fn wrong_method(request: Request) -> RestError {
    let message = format!("method {} is not allowed for this path; see the header Allow", request.method());
    RestError::new(StatusCode::METHOD_NOT_ALLOWED, message)
}

impl From<AccountSecretError> for RestError {
    fn from(error: AccountSecretError) -> Self {
        match error {
            AccountSecretError::Api(error) => error.into(),
            AccountSecretError::NotOurs(_) => Self::conflict(error.to_string()),
            AccountSecretError::Taken | AccountSecretError::Contended(_) => changed_meanwhile(),
        }
    }
}

/// The error is logged here, because callers are told less.
impl From<KubeError> for RestError {
    fn from(error: KubeError) -> Self {
        let call = error.request();
        match error.cause() {
            KubeCause::Status(_) => answered(&error),
            KubeCause::Unreachable(_) => {
                // A Secret's error has no source.
                let source = error.source().map(ToString::to_string);
                warn_unless_away!(%call, error = source, "cannot reach the API server");
                Self::unavailable(format!("the Kubernetes API server cannot be reached ({call}); try again"))
            }
            KubeCause::NoAnswer(timeout) => {
                warn_unless_away!(%call, "the API server did not answer in time");
                Self::unavailable(format!(
                    "the Kubernetes API server did not answer within {} s ({call}); try again",
                    timeout.as_secs()
                ))
            }
            KubeCause::Busy { limit, waited } => {
                warn!(%call, "too many concurrent requests to the API server");
                Self::unavailable(format!(
                    "{limit} requests to the Kubernetes API server are under way, and none ended within {} s ({call}); try again",
                    waited.as_secs()
                ))
            }
        }
    }
}

fn changed_meanwhile() -> RestError {
    RestError::conflict("the object was changed by another client during the request; read it and try again")
}

fn answered(error: &KubeError) -> RestError {
    let call = error.request();
    match error.class() {
        ErrorClass::Gone => {
            return RestError::conflict("the object was deleted during the request; read it and try again");
        }
        ErrorClass::Conflict => return changed_meanwhile(),
        ErrorClass::Retry | ErrorClass::Invalid | ErrorClass::Refused => {}
    }
    let code = error.code().unwrap_or_default();
    if code == 409 {
        return changed_meanwhile();
    }
    warn!(%call, code, reason = error.reason(), "the API server rejected a request");
    let namespace = &call.namespace;
    match code {
        400 | 422 => RestError::bad_request(invalid(error)),
        401 => RestError::unavailable(
            "the Kubernetes API server does not accept the operator's identity; look at its service account",
        ),
        403 => RestError::unavailable(forbidden(error)),
        404 if call.kind == "Secret" || error.is_about_namespace() => RestError::unavailable(format!(
            "cannot {call}: the namespace {namespace} is not there; create it"
        )),
        404 => RestError::unavailable(format!(
            "cannot {call}: the definition of {} is not there; apply the output of kubesvc-operator crds",
            call.kind
        )),
        413 => RestError::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("cannot {call}: it is too large for the Kubernetes API server"),
        ),
        code => {
            RestError::unavailable(format!("the Kubernetes API server answered {code} ({call}); try again"))
        }
    }
}

fn forbidden(error: &KubeError) -> String {
    let call = error.request();
    let (namespace, group) = (&call.namespace, &*call.group);
    if error.mentions("exceeded quota") {
        return format!("cannot {call}: the quota of namespace {namespace} is used up");
    }
    if error.mentions("being terminated") {
        return format!("cannot {call}: the namespace {namespace} is being deleted");
    }
    format!(
        "the operator may not {} {} (API group {group:?}) in namespace {namespace}: grant its service account that right",
        call.verb, call.plural
    )
}

fn invalid(error: &KubeError) -> String {
    let call = error.request();
    // A Secret's error has no status.
    let details = error.status().and_then(|status| status.details.as_ref());
    let causes = details.into_iter().flat_map(|details| &details.causes);
    let mut causes: Vec<String> =
        causes.map(|cause| clean(&cause.field, &cause.message)).filter(|cause| !cause.is_empty()).collect();
    causes.dedup();
    if causes.is_empty() {
        return format!("cannot {call}: the Kubernetes API server rejected it ({})", error.reason());
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
    use kube::core::Status;
    use serde_json::json;

    use super::*;
    use kubesvc_core::KubesvcAccount;
    use kubesvc_runtime::kube_access::KubeRequest;

    fn problem(status: serde_json::Value) -> RestError {
        let status: Status = serde_json::from_value(status).expect("a Status");
        let call = KubeRequest::of::<KubesvcAccount>("create", "ns", "a");
        KubeError::of(call, kube::Error::Api(status.boxed())).into()
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
        let answer =
            |code: u16, message: &str| problem(json!({"code": code, "message": message, "reason": "R"}));
        assert_eq!(answer(422, "").status.as_u16(), 400);
        assert_eq!(answer(500, "").status.as_u16(), 503);
        assert_eq!(answer(404, "").status.as_u16(), 503);
        let forbidden = answer(403, "User x cannot …");
        assert_eq!(forbidden.status.as_u16(), 503);
        assert!(forbidden.message.contains("may not create kubesvcaccounts"), "{}", forbidden.message);
    }

    #[test]
    fn missing_object_is_distinguished_from_a_missing_crd() {
        let details = json!({"name": "a", "kind": "kubesvcaccounts"});
        let absent = problem(json!({"code": 404, "reason": "NotFound", "details": details}));
        assert!(absent.message.contains("was deleted during the request"), "{}", absent.message);
        let unknown = problem(json!({"code": 404}));
        assert!(
            unknown.message.contains("the definition of KubesvcAccount is not there"),
            "{}",
            unknown.message
        );
    }
}
