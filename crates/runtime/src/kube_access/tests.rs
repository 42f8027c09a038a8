use std::convert::Infallible;
use std::error::Error as _;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret};
use kube::core::Status;
use serde_json::json;
use tokio::time::Instant;

use super::*;

fn status(value: Value) -> kube::Error {
    kube::Error::Api(serde_json::from_value::<Status>(value).expect("a status").boxed())
}

fn error_of<K: Resource<DynamicType = ()>>(verb: &'static str, value: Value) -> KubeError {
    KubeError::of(KubeRequest::of::<K>(verb, "ns", "a"), status(value))
}

fn error<K: Resource<DynamicType = ()>>(value: Value) -> KubeError {
    error_of::<K>("create", value)
}

fn map(name: &str) -> ConfigMap {
    let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
    ConfigMap { metadata, ..ConfigMap::default() }
}

/// An access to an API server that gives this answer to everything.
fn answering(code: u16, body: &Value) -> KubeAccess {
    let body = body.to_string();
    let service = tower::service_fn(move |_: http::Request<kube::client::Body>| {
        let body = kube::client::Body::from(body.clone().into_bytes());
        async move { http::Response::builder().status(code).body(body) }
    });
    KubeAccess::new(Client::new(service, "ns"), "test")
}

fn silent() -> KubeAccess {
    let silence = std::future::pending::<Result<http::Response<kube::client::Body>, Infallible>>;
    let service = tower::service_fn(move |_: http::Request<kube::client::Body>| silence());
    KubeAccess::new(Client::new(service, "ns"), "test")
}

#[test]
fn the_class_of_an_answer_says_what_can_be_done() {
    use ErrorClass::{Conflict, Gone, Invalid, Refused, Retry};
    for (code, reason, kind, class) in [
        (409, "AlreadyExists", "configmaps", Conflict),
        (404, "NotFound", "configmaps", Gone),
        (404, "NotFound", "namespaces", Refused),
        (404, "Failed to parse error data", "", Refused),
        (422, "Invalid", "configmaps", Invalid),
        (400, "BadRequest", "", Invalid),
        (413, "RequestEntityTooLarge", "", Invalid),
        (401, "Unauthorized", "", Refused),
        (403, "Forbidden", "", Refused),
        (429, "TooManyRequests", "", Retry),
        (500, "InternalError", "", Retry),
        (503, "ServiceUnavailable", "", Retry),
    ] {
        let answer = json!({"code": code, "reason": reason, "details": {"kind": kind, "name": "a"}});
        let error = error::<ConfigMap>(answer);
        assert_eq!(error.class(), class, "{code} {reason} {kind}");
        assert_eq!(error.had_no_effect(), class != Retry, "{code}");
        assert_eq!(error.is_stale(), matches!(class, Conflict | Gone), "{code}");
    }
}

#[test]
fn of_the_conflicts_of_a_creation_only_already_exists_means_that_the_object_exists() {
    let of_quota =
        json!({"code": 409, "reason": "Conflict", "details": {"kind": "resourcequotas", "name": "q"}});
    let of_webhook = json!({"code": 409, "message": "not now"});
    for answer in [of_quota, of_webhook] {
        let error = error::<ConfigMap>(answer);
        assert_eq!(error.class(), ErrorClass::Retry, "{error}");
        assert!(error.had_no_effect() && !error.is_stale(), "{error}");
    }
    let exists =
        json!({"code": 409, "reason": "AlreadyExists", "details": {"kind": "configmaps", "name": "a"}});
    assert_eq!(error::<ConfigMap>(exists).class(), ErrorClass::Conflict);
    let changed = json!({"code": 409, "reason": "Conflict", "details": {"kind": "configmaps", "name": "a"}});
    for verb in ["update", "patch", "delete"] {
        assert_eq!(error_of::<ConfigMap>(verb, changed.clone()).class(), ErrorClass::Conflict, "{verb}");
    }
}

#[test]
fn an_object_is_gone_only_if_the_answer_names_it() {
    for (details, class) in [
        (json!({"kind": "configmaps", "name": "a"}), ErrorClass::Gone),
        (json!({"kind": "configmaps", "name": "b"}), ErrorClass::Refused),
        // A namespace with the object's name.
        (json!({"kind": "namespaces", "name": "a"}), ErrorClass::Refused),
        (json!({"kind": "configmaps"}), ErrorClass::Refused),
        (json!(null), ErrorClass::Refused),
    ] {
        let answer = json!({"code": 404, "reason": "NotFound", "details": details});
        for verb in ["get", "update", "patch", "delete"] {
            assert_eq!(error_of::<ConfigMap>(verb, answer.clone()).class(), class, "{verb} {details}");
        }
    }
    let list = KubeRequest::of::<ConfigMap>("list", "ns", "");
    let answer = json!({"code": 404, "reason": "NotFound", "details": {"kind": "configmaps", "name": ""}});
    assert_eq!(KubeError::of(list, status(answer)).class(), ErrorClass::Refused);
}

#[test]
fn an_error_about_a_secret_contains_nothing_that_the_api_server_said() {
    let answer = json!({
        "code": 422, "reason": "Invalid", "message": "s3cret", "details": {
            "causes": [{"reason": "r", "field": "data.k", "message": "Invalid value: \"s3cret\""}]
        }
    });
    let refused = error::<Secret>(answer.clone());
    assert_eq!(refused.to_string(), "cannot create Secret ns/a: the API server answered 422 Invalid");
    assert_eq!(refused.refusal(), "422 Invalid (data.k)");
    assert!(refused.status().is_none() && !format!("{refused:?}").contains("s3cret"));
    assert!(refused.mentions("s3cret"));
    let unread = kube::Error::Service("s3cret".into());
    let unread = KubeError::of(KubeRequest::of::<Secret>("get", "ns", "a"), unread);
    assert!(unread.source().is_none() && !format!("{unread} {unread:?}").contains("s3cret"));
    let of_a_map = error::<ConfigMap>(answer);
    assert!(of_a_map.to_string().ends_with("answered 422 Invalid: s3cret"), "{of_a_map}");
}

#[tokio::test]
async fn an_absent_object_is_none_and_an_absent_kind_is_an_error() {
    let absent = json!({"code": 404, "reason": "NotFound", "details": {"name": "a", "kind": "configmaps"}});
    let maps = answering(404, &absent).namespaced::<ConfigMap>("ns");
    assert!(maps.get("a").await.expect("an answer").is_none());
    assert!(maps.get_metadata("a").await.expect("an answer").is_none());
    let absent = json!({"code": 404, "reason": "NotFound", "details": {"name": "a", "kind": "namespaces"}});
    let namespaces = answering(404, &absent).all::<Namespace>();
    assert!(namespaces.get("a").await.expect("an answer").is_none(), "here the Namespace is the object");
    let unknown = answering(404, &json!("404 page not found")).namespaced::<ConfigMap>("ns");
    let error = unknown.get("a").await.expect_err("the kind is unknown");
    assert_eq!((error.code(), error.class()), (Some(404), ErrorClass::Refused));
}

#[tokio::test(start_paused = true)]
async fn the_time_limit_does_not_count_the_wait_for_the_budget() {
    let rate_limit = RateLimit::default();
    rate_limit.pause(ANSWER_TIMEOUT * 3);
    let access = answering(201, &serde_json::to_value(map("a")).expect("JSON")).limited_by(rate_limit, []);
    let began = Instant::now();
    let options = WriteOptions::with(Urgency::Rest);
    access.namespaced("ns").create(&map("a"), options).await.expect("it is only late");
    assert!(began.elapsed() >= ANSWER_TIMEOUT * 3);
}

#[tokio::test(start_paused = true)]
async fn a_request_without_an_answer_ends_at_the_time_limit() {
    let maps = silent().within(Duration::from_secs(7)).namespaced::<ConfigMap>("ns");
    let error = maps.get("a").await.expect_err("there is no answer");
    assert_eq!(error.to_string(), "cannot get ConfigMap ns/a: the API server does not answer within 7s");
    assert!(!error.had_no_effect());
}

#[tokio::test(start_paused = true)]
async fn a_write_to_an_overloaded_api_server_pauses_all_budgets_for_as_long_as_it_asks() {
    for (answer, seconds) in [
        (json!({"code": 429, "details": {"retryAfterSeconds": 7}}), 7),
        (json!({"code": 429}), 1),
        (json!({"code": 503}), 0),
    ] {
        let (rate_limit, other) = (RateLimit::default(), RateLimit::default());
        let code = answer["code"].as_u64().and_then(|code| u16::try_from(code).ok()).expect("a code");
        let access = answering(code, &answer).limited_by(rate_limit.clone(), [other.clone()]);
        let written = access.namespaced("ns").replace(&map("a"), WriteOptions::default()).await;
        assert_eq!(written.expect_err("it is refused").class(), ErrorClass::Retry);
        let is_paused = [&rate_limit, &other].map(|rate_limit| !rate_limit.try_take());
        assert_eq!(is_paused, [seconds > 0; 2], "{answer}");
        let began = Instant::now();
        rate_limit.take(Urgency::Rest).await;
        assert_eq!(began.elapsed().as_secs(), seconds, "{answer}");
    }
}

#[tokio::test]
async fn requests_are_timed_by_result() {
    let mut registry = Registry::default();
    register(&mut registry);
    // No other test asks for this kind.
    let leases = answering(409, &json!({"code": 409})).namespaced::<Lease>("ns");
    leases.get("a").await.expect_err("it is refused");
    let mut shown = String::new();
    prometheus_client::encoding::text::encode(&mut shown, &registry).expect("text");
    let line =
        r#"kubesvc_api_request_duration_seconds_count{verb="get",resource="leases",result="conflict"} 1"#;
    assert!(shown.contains(line), "{shown}");
}

#[tokio::test(start_paused = true)]
async fn a_request_beyond_the_concurrent_ones_is_not_sent_and_says_so() {
    let access = silent().at_most(1);
    let maps = access.within(ANSWER_TIMEOUT * 2).namespaced::<ConfigMap>("ns");
    let (first, second) = (maps.clone(), maps.with(|access| access.within(ANSWER_TIMEOUT)));
    let (first, second) = tokio::join!(first.get("a"), second.get("b"));
    assert!(!first.expect_err("there is no answer").had_no_effect());
    let busy = second.expect_err("there was no turn");
    assert!(busy.had_no_effect() && busy.class() == ErrorClass::Retry);
    assert!(busy.to_string().contains("1 requests to the API server are under way"), "{busy}");
}

#[tokio::test(start_paused = true)]
async fn the_wait_for_a_turn_and_the_answer_share_the_time_limit() {
    // A request whose turn comes late has five seconds for its answer.
    for (turn_after, ends_after) in [(4, 15), (10, 15), (14, 19)] {
        let access = silent().at_most(1);
        let maps = access.within(Duration::from_secs(15)).namespaced::<ConfigMap>("ns");
        let first = maps.with(|access| access.within(Duration::from_secs(turn_after)));
        let began = Instant::now();
        let (_, second) = tokio::join!(first.get("a"), maps.get("b"));
        let error = second.expect_err("there is no answer");
        assert_eq!(began.elapsed().as_secs(), ends_after, "{error}");
        let timeout = Duration::from_secs(ends_after - turn_after);
        assert!(error.to_string().ends_with(&format!("does not answer within {timeout:?}")), "{error}");
        assert!(!error.had_no_effect());
    }
}
