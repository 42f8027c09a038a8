//! What the group serves, as API servers and kubectl ask for it. Pure.

use http::{HeaderMap, HeaderValue, Response, StatusCode};
use serde_json::{Value, json};

use super::paths::Document;
use super::status::Refusal;
use super::{Body, GROUP, VERSION};

/// Verbs of `accounts/proxy`.
const PROXY_VERBS: [&str; 5] = ["create", "delete", "get", "patch", "update"];
/// Media type of the list of groups and of all other documents.
const JSON: &str = "application/json";
/// Media type of all groups with their resources at once.
const AGGREGATED_V2: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
/// The same, for clients before Kubernetes 1.30.
const AGGREGATED_V2_BETA_1: &str =
    "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList";

/// Answers with a document, or that the groups come in none of the forms that the client accepts (406).
pub(super) fn answer(document: Document, headers: &HeaderMap) -> Result<Response<Body>, Refusal> {
    let (media, text) = match document {
        Document::Groups => groups_form(headers).ok_or_else(not_acceptable)?.document(),
        Document::Group => {
            let mut document = group();
            document["kind"] = "APIGroup".into();
            document["apiVersion"] = "v1".into();
            (JSON, document)
        }
        Document::Resources => (JSON, resources()),
        Document::OpenApiV2 => (JSON, open_api("swagger", "2.0")),
        Document::OpenApiV3Index => (JSON, open_api_index()),
        Document::OpenApiV3 => (JSON, open_api("openapi", "3.0.0")),
    };
    let mut response = super::json_as(StatusCode::OK, media, &text);
    // The documents never change; an API server asks again and again.
    let etag = HeaderValue::from_static(concat!("\"", env!("CARGO_PKG_VERSION"), "\""));
    let vary = HeaderValue::from_static("Accept");
    response.headers_mut().insert(http::header::ETAG, etag);
    response.headers_mut().insert(http::header::VARY, vary);
    Ok(response)
}

/// A form of the answer of `/apis`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GroupsForm {
    /// The groups and their versions.
    Plain,
    /// All groups with their resources, in a version of `apidiscovery.k8s.io`.
    V2,
    V2Beta1,
}

impl GroupsForm {
    /// Its media type, and the document.
    fn document(self) -> (&'static str, Value) {
        match self {
            Self::Plain => (JSON, json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": [group()]})),
            Self::V2 => (AGGREGATED_V2, aggregated("v2")),
            Self::V2Beta1 => (AGGREGATED_V2_BETA_1, aggregated("v2beta1")),
        }
    }

    /// The form that a media range of `Accept` asks for; `None`: another one than there are.
    fn of(range: &str) -> Option<Self> {
        let (media, parameters) = range.split_once(';').unwrap_or((range, ""));
        let is_json =
            [JSON, "application/*", "*/*"].iter().any(|known| media.trim().eq_ignore_ascii_case(known));
        let value = |name: &str| {
            let mut pairs = parameters.split(';').filter_map(|pair| pair.split_once('='));
            pairs.find_map(|(key, value)| (key.trim() == name).then(|| value.trim()))
        };
        let is_wanted = value("q").and_then(|q| q.parse::<f32>().ok()).is_none_or(|q| q > 0.0);
        if !is_json || !is_wanted {
            return None;
        }
        match (value("as"), value("g"), value("v")) {
            (None, None, None) => Some(Self::Plain),
            (Some("APIGroupDiscoveryList"), Some("apidiscovery.k8s.io"), Some("v2")) => Some(Self::V2),
            (Some("APIGroupDiscoveryList"), Some("apidiscovery.k8s.io"), Some("v2beta1")) => {
                Some(Self::V2Beta1)
            }
            _ => None,
        }
    }
}

/// The first form that a client accepts, in the order in which it names them; `None`: it accepts none of them.
fn groups_form(headers: &HeaderMap) -> Option<GroupsForm> {
    let accepted = headers.get_all(http::header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let ranges = accepted.flat_map(|value| value.split(',')).map(str::trim).filter(|range| !range.is_empty());
    let mut ranges = ranges.peekable();
    if ranges.peek().is_none() {
        return Some(GroupsForm::Plain);
    }
    ranges.find_map(GroupsForm::of)
}

fn not_acceptable() -> Refusal {
    let forms = format!("{JSON}, {AGGREGATED_V2}, {AGGREGATED_V2_BETA_1}");
    Refusal::new(StatusCode::NOT_ACCEPTABLE, format!("only these media types are served: {forms}"))
}

fn group() -> Value {
    let version = json!({"groupVersion": format!("{GROUP}/{VERSION}"), "version": VERSION});
    json!({"name": GROUP, "versions": [version], "preferredVersion": version})
}

/// The resources: nothing that can be listed, so that nobody asks each account for all that it has.
fn resources() -> Value {
    json!({
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": format!("{GROUP}/{VERSION}"),
        "resources": [
            {
                "name": "accounts/cache", "singularName": "", "namespaced": true,
                "kind": "AccountCache", "verbs": ["get"],
            },
            {
                "name": "accounts/operations", "singularName": "", "namespaced": true,
                "kind": "AccountOperations", "verbs": ["get"],
            },
            {
                "name": "accounts/proxy", "singularName": "", "namespaced": true,
                "kind": "AccountProxyOptions", "verbs": PROXY_VERBS,
            },
        ],
    })
}

fn aggregated(version: &str) -> Value {
    let kind = |kind: &str| json!({"group": GROUP, "version": VERSION, "kind": kind});
    json!({
        "kind": "APIGroupDiscoveryList",
        "apiVersion": format!("apidiscovery.k8s.io/{version}"),
        "metadata": {},
        "items": [{
            "metadata": {"name": GROUP},
            "versions": [{
                "version": VERSION,
                "freshness": "Current",
                "resources": [{
                    "resource": "accounts",
                    // As API servers describe a resource that has only subresources.
                    "responseKind": {"group": "", "version": "", "kind": ""},
                    "scope": "Namespaced",
                    "singularResource": "",
                    "verbs": [],
                    "subresources": [
                        {"subresource": "cache", "responseKind": kind("AccountCache"), "verbs": ["get"]},
                        {
                            "subresource": "operations", "responseKind": kind("AccountOperations"),
                            "verbs": ["get"],
                        },
                        {
                            "subresource": "proxy", "responseKind": kind("AccountProxyOptions"),
                            "verbs": PROXY_VERBS,
                        },
                    ],
                }],
            }],
        }],
    })
}

fn open_api_index() -> Value {
    let hash = env!("CARGO_PKG_VERSION");
    let path = format!("apis/{GROUP}/{VERSION}");
    let url = format!("/openapi/v3/{path}?hash={hash}");
    json!({"paths": {path: {"serverRelativeURL": url}}})
}

/// A description of no object: what is behind `proxy` describes itself.
fn open_api(key: &str, version: &str) -> Value {
    json!({key: version, "info": {"title": "kubesvc", "version": VERSION}, "paths": {}})
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;

    /// The media type and the document that a client is answered with; `None`: 406.
    async fn groups(accept: &'static str) -> Option<(String, Value)> {
        let headers = HeaderMap::from_iter([(http::header::ACCEPT, HeaderValue::from_static(accept))]);
        let response = match answer(Document::Groups, &headers) {
            Ok(response) => response,
            Err(refusal) => {
                assert_eq!(refusal.code, StatusCode::NOT_ACCEPTABLE, "{accept}");
                return None;
            }
        };
        let media = response.headers()["content-type"].to_str().expect("text").to_owned();
        let body = response.into_body().collect().await.expect("a body").to_bytes();
        Some((media, serde_json::from_slice(&body).expect("JSON")))
    }

    #[tokio::test]
    async fn groups_come_in_the_first_form_that_is_accepted() {
        for (accept, media, version) in [
            (AGGREGATED_V2, AGGREGATED_V2, "apidiscovery.k8s.io/v2"),
            // As client-go asks.
            (
                "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json",
                AGGREGATED_V2,
                "apidiscovery.k8s.io/v2",
            ),
            (
                "application/json; g=apidiscovery.k8s.io; v=v2beta1; as=APIGroupDiscoveryList, application/json",
                AGGREGATED_V2_BETA_1,
                "apidiscovery.k8s.io/v2beta1",
            ),
            (
                "application/json;g=apidiscovery.k8s.io;v=v3;as=APIGroupDiscoveryList,application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
                AGGREGATED_V2,
                "apidiscovery.k8s.io/v2",
            ),
            ("application/json", JSON, "v1"),
            ("application/json;charset=utf-8", JSON, "v1"),
            ("application/json, */*", JSON, "v1"),
            ("application/json;as=Table;v=v1;g=meta.k8s.io,application/json", JSON, "v1"),
            ("application/vnd.kubernetes.protobuf,application/json", JSON, "v1"),
            ("text/html,application/xhtml+xml,*/*;q=0.8", JSON, "v1"),
            ("application/*", JSON, "v1"),
            ("*/*", JSON, "v1"),
            ("", JSON, "v1"),
        ] {
            let (answered, list) = groups(accept).await.expect(accept);
            assert_eq!((answered.as_str(), &list["apiVersion"]), (media, &json!(version)), "{accept}");
            let kind = if media == JSON { "APIGroupList" } else { "APIGroupDiscoveryList" };
            assert_eq!(list["kind"], kind, "{accept}");
        }
        let unnamed = answer(Document::Groups, &HeaderMap::new());
        assert!(unnamed.is_ok(), "a client that names no form takes any");
    }

    #[tokio::test]
    async fn a_client_that_accepts_no_form_of_the_groups_is_told_so() {
        for accept in [
            "application/vnd.kubernetes.protobuf",
            "text/html",
            "application/json;g=apidiscovery.k8s.io;v=v3;as=APIGroupDiscoveryList",
            "application/json;as=Table",
            "application/json;q=0, text/html",
        ] {
            assert_eq!(groups(accept).await, None, "{accept}");
        }
        let protobuf = HeaderValue::from_static("application/vnd.kubernetes.protobuf");
        let headers = HeaderMap::from_iter([(http::header::ACCEPT, protobuf)]);
        let refused = answer(Document::Groups, &headers).expect_err("none of them").response();
        let status = refused.into_body().collect().await.expect("a body").to_bytes();
        let status: Value = serde_json::from_slice(&status).expect("JSON");
        assert_eq!((&status["reason"], &status["code"]), (&json!("NotAcceptable"), &json!(406)));
        assert!(answer(Document::Group, &headers).is_ok(), "the other documents come in one form");
    }

    #[test]
    fn only_the_three_subresources_are_listed_and_none_can_be_listed() {
        let resources = resources();
        let names: Vec<_> =
            resources["resources"].as_array().expect("a list").iter().map(|one| &one["name"]).collect();
        assert_eq!(names, ["accounts/cache", "accounts/operations", "accounts/proxy"]);
        assert!(!resources.to_string().contains("list\"]") && !resources.to_string().contains("\"watch\""));
    }
}
