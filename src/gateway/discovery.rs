//! What the group serves, as API servers and kubectl ask for it. Pure.

use http::{HeaderMap, HeaderValue, Response, StatusCode};
use serde_json::{Value, json};

use super::paths::Document;
use super::{Body, GROUP, VERSION};

/// Verbs of `accounts/proxy`.
const PROXY_VERBS: [&str; 5] = ["create", "delete", "get", "patch", "update"];
/// What a client asks for that wants all groups with their resources at once.
const AGGREGATED: &str = "as=APIGroupDiscoveryList";

/// Answers with a document.
pub(super) fn answer(document: Document, headers: &HeaderMap) -> Response<Body> {
    let (media, text) = match document {
        Document::Groups => match aggregated_version(headers) {
            Some((version, media)) => (media, aggregated(version)),
            None => {
                ("application/json", json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": [group()]}))
            }
        },
        Document::Group => {
            let mut document = group();
            document["kind"] = "APIGroup".into();
            document["apiVersion"] = "v1".into();
            ("application/json", document)
        }
        Document::Resources => ("application/json", resources()),
        Document::OpenApiV2 => ("application/json", open_api("swagger", "2.0")),
        Document::OpenApiV3Index => ("application/json", open_api_index()),
        Document::OpenApiV3 => ("application/json", open_api("openapi", "3.0.0")),
    };
    let mut response = super::json_as(StatusCode::OK, media, &text);
    // The documents never change; an API server asks again and again.
    let etag = HeaderValue::from_static(concat!("\"", env!("CARGO_PKG_VERSION"), "\""));
    let vary = HeaderValue::from_static("Accept");
    response.headers_mut().insert(http::header::ETAG, etag);
    response.headers_mut().insert(http::header::VARY, vary);
    response
}

/// The version of aggregated discovery that a client takes, and its media type; `None`: it takes the plain list.
fn aggregated_version(headers: &HeaderMap) -> Option<(&'static str, &'static str)> {
    let accepted = headers.get_all(http::header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let accepted = accepted.flat_map(|value| value.split(','));
    let mut asked = accepted.map(|one| one.split_whitespace().collect::<String>());
    asked.find_map(|one| {
        let is_json = one.starts_with("application/json;") && one.contains(AGGREGATED);
        let parameters = || one.split(';');
        if !is_json || !parameters().any(|parameter| parameter == "g=apidiscovery.k8s.io") {
            return None;
        }
        parameters().find_map(|parameter| match parameter {
            "v=v2" => Some(("v2", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")),
            "v=v2beta1" => {
                Some(("v2beta1", "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList"))
            }
            _ => None,
        })
    })
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

    async fn groups(accept: &'static str) -> (String, Value) {
        let headers = HeaderMap::from_iter([(http::header::ACCEPT, HeaderValue::from_static(accept))]);
        let response = answer(Document::Groups, &headers);
        let media = response.headers()["content-type"].to_str().expect("text").to_owned();
        let body = response.into_body().collect().await.expect("a body").to_bytes();
        (media, serde_json::from_slice(&body).expect("JSON"))
    }

    #[tokio::test]
    async fn groups_come_in_the_form_that_is_asked_for() {
        const V2: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
        let (media, list) = groups(V2).await;
        assert_eq!((media.as_str(), &list["apiVersion"]), (V2, &json!("apidiscovery.k8s.io/v2")));
        let both =
            "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json";
        assert_eq!(groups(both).await.1["apiVersion"], "apidiscovery.k8s.io/v2beta1");
        for plain in
            ["application/json", "*/*", "application/vnd.kubernetes.protobuf", "application/json;as=Table"]
        {
            let (media, list) = groups(plain).await;
            assert_eq!(
                (media.as_str(), &list["kind"]),
                ("application/json", &json!("APIGroupList")),
                "{plain}"
            );
        }
    }

    #[test]
    fn only_the_two_subresources_are_listed_and_none_can_be_listed() {
        let resources = resources();
        let names: Vec<_> =
            resources["resources"].as_array().expect("a list").iter().map(|one| &one["name"]).collect();
        assert_eq!(names, ["accounts/operations", "accounts/proxy"]);
        assert!(!resources.to_string().contains("list\"]") && !resources.to_string().contains("\"watch\""));
    }
}
