//! The OpenAPI description of the API, generated from the handlers. `docs/openapi.json` is a copy of it.

use std::sync::LazyLock;

use axum::http::header;
use axum::response::IntoResponse;
use utoipa::openapi::path::PathItem;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{ContentBuilder, Ref, RefOr, Required, Response, ResponseBuilder};
use utoipa::{Modify, OpenApi};

use super::{
    account_cache, accounts, agents, clouddrivers, credentials, dynamic_accounts, health, migrations,
    operations, source_accounts,
};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "kubesvc",
        description = "Manages Kubernetes clusters as Spinnaker accounts, with the documented calls of the Armory Scale Agent. Errors have the shape `{timestamp, status, error, message, path}`; no response contains a credential.",
        license(name = "Apache-2.0", identifier = "Apache-2.0"),
        contact(name = "kubesvc")
    ),
    servers((url = "/", description = "The operator, by default on port 7002")),
    tags(
        (name = "accounts", description = "Accounts: each is a Kubernetes cluster, or some namespaces of one"),
        (name = "agents", description = "Connected agents"),
        (name = "operations", description = "Changes of an account's cluster through its agent, and what was done"),
        (name = "clouddriver", description = "Clouddriver's account management, passed on"),
        (name = "replicas", description = "Replicas of the operator"),
        (name = "health", description = "Health, metrics and this document")
    ),
    security((), ("bearer" = [])),
    modifiers(&CommonParts),
    paths(
        migrations::plan, source_accounts::add, accounts::patch, accounts::delete, accounts::list, accounts::get, accounts::delete_one,
        dynamic_accounts::get, dynamic_accounts::post, dynamic_accounts::put, dynamic_accounts::patch, dynamic_accounts::delete,
        accounts::get_or_empty, accounts::namespaces,
        account_cache::get,
        agents::list, agents::get, agents::disconnect, agents::elect,
        operations::run, operations::list, operations::get, operations::look_at_open, operations::settle,
        clouddrivers::list, clouddrivers::get, clouddrivers::pools,
        credentials::list, credentials::add, credentials::put, credentials::delete,
        health::health, health::liveness, health::readiness, health::tasks, health::metrics, description,
    )
)]
struct Description;

/// Responses and request properties that all calls share.
struct CommonParts;

impl Modify for CommonParts {
    fn modify(&self, openapi: &mut utoipa::openapi::OpenApi) {
        let about = "A token for the audience `kubesvc`, such as `kubectl create token` makes. Calls about operations need \
                     one unless `kubesvc.operations.auth` is `none`; others but health need one, or a client certificate, \
                     if `kubesvc.rest.auth.mode` is `enforce`.";
        let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).description(Some(about)).build();
        let components = openapi.components.get_or_insert_default();
        components.add_security_scheme("bearer", SecurityScheme::Http(bearer));
        for (path, item) in &mut openapi.paths.paths {
            let PathItem { get, put, post, delete, patch, .. } = item;
            let reads_only = [&put, &post, &delete, &patch].iter().all(|one| one.is_none());
            let is_of_accounts = path.contains("/accounts") || path.ends_with("/assignments");
            for (is_read, operation) in
                [(true, get), (false, put), (false, post), (false, delete), (false, patch)]
            {
                let Some(operation) = operation else { continue };
                let (id, asks) = (operation.operation_id.clone(), !path.starts_with("/health"));
                let mut add = |condition: bool, code: &str, description: &str| {
                    if condition {
                        let responses = &mut operation.responses.responses;
                        responses.entry(code.to_owned()).or_insert_with(|| error(description).into());
                    }
                };
                let has_body = operation.request_body.is_some();
                let is_dynamic = path.starts_with("/armory/accounts") && !is_read;
                add(asks, "401", "The caller is not known");
                add(
                    asks,
                    "403",
                    "The caller may not do that, or a web page of another site sent the request",
                );
                add(true, "403", "A web page of another site sent the request");
                add(reads_only, "405", "Only GET is allowed");
                add(has_body, "408", "The body arrived too slowly");
                add(has_body, "413", "The body is too large");
                add(has_body, "415", "The body is not JSON in UTF-8");
                add(asks, "429", "The caller, or its address, calls too fast");
                add(true, "421", "The request's host is not one of `server.hosts`");
                add(
                    is_dynamic || id.as_deref() == Some("getAgentAccount"),
                    "501",
                    "Dynamic accounts are disabled",
                );
                add(is_of_accounts, "503", "The Kubernetes API server is unavailable");
                add(
                    has_body,
                    "503",
                    "The limit of concurrent requests, or of the memory for their bodies, is reached",
                );
                add(asks, "503", "It cannot be found out who calls and what the caller may do");
                if let Some(RefOr::T(body)) = &mut operation.request_body {
                    let is_optional = id.as_deref() == Some("disconnectAgent");
                    body.required = Some(if is_optional { Required::False } else { Required::True });
                }
            }
        }
    }
}

fn error(description: &str) -> Response {
    let body = ContentBuilder::new().schema(Some(Ref::from_schema_name("ErrorBody"))).build();
    ResponseBuilder::new().description(description).content("application/json", body).build()
}

static TEXT: LazyLock<String> = LazyLock::new(|| {
    let mut text = Description::openapi().to_pretty_json().expect("a description is JSON");
    text.push('\n');
    text
});

/// Returns the description. It is generated once.
pub(super) fn text() -> &'static str {
    &TEXT
}

/// Get this OpenAPI document.
#[utoipa::path(get, path = "/openapi.json", operation_id = "openapi", tag = "health",
    responses(
        (status = 200, description = "The OpenAPI document", body = std::collections::BTreeMap<String, serde_json::Value>),
    ))]
pub(super) async fn description() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], text())
}

/// Returns the OpenAPI description as pretty-printed JSON; the text is the same each time.
pub fn openapi() -> String {
    text().to_owned()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;

    const COPY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/openapi.json");

    fn parsed() -> Value {
        serde_json::from_str(text()).expect("JSON")
    }

    fn operations(description: &Value) -> Vec<(String, &Value)> {
        let paths = description["paths"].as_object().expect("paths");
        let each = paths.iter().flat_map(|(path, item)| {
            let methods = item.as_object().expect("methods");
            methods.iter().map(move |(method, operation)| (format!("{method} {path}"), operation))
        });
        each.collect()
    }

    #[test]
    fn the_copy_in_docs_is_up_to_date() {
        if std::env::var_os("UPDATE_OPENAPI").is_some() {
            let folder = std::path::Path::new(COPY).parent().expect("docs");
            std::fs::create_dir_all(folder).expect("docs can be made");
            std::fs::write(COPY, text()).expect("docs/openapi.json can be written");
        }
        let copy = std::fs::read_to_string(COPY).unwrap_or_default();
        assert!(
            copy == text(),
            "docs/openapi.json is old; UPDATE_OPENAPI=1 cargo test --lib openapi writes it anew"
        );
    }

    #[test]
    fn every_operation_is_described_whole() {
        let description = parsed();
        let operations = operations(&description);
        let ids: BTreeSet<_> =
            operations.iter().map(|(_, operation)| operation["operationId"].as_str()).collect();
        assert_eq!(ids.len(), operations.len(), "an operationId is given twice");
        for (name, operation) in &operations {
            assert!(operation["operationId"].is_string(), "{name} has no id");
            assert!(operation["summary"].is_string(), "{name} has no summary");
            assert_eq!(operation["tags"].as_array().map(Vec::len), Some(1), "{name} has no tag");
            let responses = operation["responses"].as_object().expect("responses");
            assert!(responses.keys().any(|code| code.starts_with('4')), "{name} has no 4xx");
        }
    }

    #[test]
    fn the_bearer_scheme_is_named_by_calls_that_need_a_token() {
        let description = parsed();
        assert_eq!(description["components"]["securitySchemes"]["bearer"]["scheme"], "bearer");
        for (name, operation) in operations(&description) {
            if name.contains("/armory/agent/operation") {
                assert!(operation["security"][0]["bearer"].is_array(), "{name}: {}", operation["security"]);
            }
        }
    }

    #[test]
    fn no_component_is_unused_or_missing() {
        let components = parsed()["components"]["schemas"].as_object().expect("schemas").clone();
        for name in components.keys() {
            assert!(text().contains(&format!("\"#/components/schemas/{name}\"")), "{name} is unused");
        }
        for reference in text().split("\"#/components/schemas/").skip(1) {
            let name = reference.split('"').next().unwrap_or_default();
            assert!(components.contains_key(name), "{name} is missing");
        }
    }
}
