//! What a path names. Pure.

use super::status::Refusal;
use super::{GROUP, VERSION};

/// The object of an account, as a path names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AccountPath {
    pub(super) namespace: String,
    pub(super) object: String,
}

impl AccountPath {
    /// The path of its API, without a slash at the end.
    pub(super) fn prefix(&self) -> String {
        let Self { namespace, object } = self;
        format!("/apis/{GROUP}/{VERSION}/namespaces/{namespace}/accounts/{object}/proxy")
    }
}

/// A document that says what is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Document {
    /// `/apis`
    Groups,
    /// `/apis/GROUP`
    Group,
    /// `/apis/GROUP/VERSION`
    Resources,
    /// `/openapi/v2`
    OpenApiV2,
    /// `/openapi/v3`
    OpenApiV3Index,
    /// `/openapi/v3/apis/GROUP/VERSION`
    OpenApiV3,
}

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Route {
    /// Whether the process serves.
    Health,
    /// What is served.
    Discovery(Document),
    /// The operations of an account.
    Operations(AccountPath),
    /// One operation of an account.
    Operation(AccountPath, String),
    /// What is cached of an account.
    Cache(AccountPath),
    /// A path of an account's API, as written.
    Proxy(AccountPath, String),
}

/// Finds out what a path names.
pub(super) fn route(path: &str) -> Result<Route, Refusal> {
    let document = match path.strip_suffix('/').unwrap_or(path) {
        "/healthz" | "/livez" | "/readyz" => return Ok(Route::Health),
        "/apis" => Some(Document::Groups),
        "/openapi/v2" => Some(Document::OpenApiV2),
        "/openapi/v3" => Some(Document::OpenApiV3Index),
        "/apis/proxy.kubesvc.io" => Some(Document::Group),
        "/apis/proxy.kubesvc.io/v1alpha1" => Some(Document::Resources),
        "/openapi/v3/apis/proxy.kubesvc.io/v1alpha1" => Some(Document::OpenApiV3),
        _ => None,
    };
    if let Some(document) = document {
        return Ok(Route::Discovery(document));
    }
    let unknown = || {
        Refusal::not_found(format!(
            "there is nothing at this path; an account's API is at \
             /apis/{GROUP}/{VERSION}/namespaces/NAMESPACE/accounts/OBJECT/proxy/"
        ))
    };
    let rest = path.strip_prefix("/apis/proxy.kubesvc.io/v1alpha1/namespaces/").ok_or_else(unknown)?;
    let (namespace, rest) = rest.split_once("/accounts/").ok_or_else(unknown)?;
    let (object, rest) = rest.split_once('/').ok_or_else(unknown)?;
    if ![namespace, object].into_iter().all(is_name) {
        return Err(unknown());
    }
    let account = AccountPath { namespace: namespace.to_owned(), object: object.to_owned() };
    match rest.strip_suffix('/').unwrap_or(rest) {
        "operations" => return Ok(Route::Operations(account)),
        "cache" => return Ok(Route::Cache(account)),
        "proxy" => return Ok(Route::Proxy(account, "/".to_owned())),
        _ => {}
    }
    if let Some(id) = rest.strip_prefix("operations/").filter(|id| is_operation_id(id)) {
        return Ok(Route::Operation(account, id.to_owned()));
    }
    let target = rest.strip_prefix("proxy").filter(|target| target.starts_with('/')).ok_or_else(unknown)?;
    Ok(Route::Proxy(account, target.to_owned()))
}

/// Whether an operation can have this id: a ULID is never percent-encoded.
fn is_operation_id(id: &str) -> bool {
    (1..=64).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

/// Whether this is the name of an object or a namespace. Such a name is never percent-encoded.
fn is_name(name: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    let ends_well = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
    name.len() <= 253
        && name.bytes().all(is_allowed)
        && ends_well(name.bytes().next())
        && ends_well(name.bytes().next_back())
}

#[cfg(test)]
mod tests {
    use http::StatusCode;
    use proptest::prelude::*;

    use super::*;

    const PREFIX: &str = "/apis/proxy.kubesvc.io/v1alpha1/namespaces/ns/accounts/prod";

    fn target(rest: &str) -> Option<String> {
        match route(&format!("{PREFIX}{rest}")) {
            Ok(Route::Proxy(account, target)) => {
                assert_eq!(format!("{PREFIX}/proxy"), account.prefix());
                Some(target)
            }
            _ => None,
        }
    }

    #[test]
    fn what_follows_proxy_is_the_path_of_the_account_as_it_was_written() {
        assert_eq!(target("/proxy").as_deref(), Some("/"));
        assert_eq!(target("/proxy/").as_deref(), Some("/"));
        assert_eq!(target("/proxy/api/v1/pods").as_deref(), Some("/api/v1/pods"));
        assert_eq!(target("/proxy/api/v1/").as_deref(), Some("/api/v1/"));
        assert_eq!(target("/proxy/a%2Fb/../c").as_deref(), Some("/a%2Fb/../c"), "judged as the target");
        assert_eq!(target("/proxy//api").as_deref(), Some("//api"), "judged as the target");
        for other in ["", "/", "/proxyapi", "/Proxy/api", "/connect/api", "/status"] {
            assert_eq!(target(other), None, "{other}");
        }
        let operations = route(&format!("{PREFIX}/operations"));
        assert!(matches!(operations, Ok(Route::Operations(account)) if account.object == "prod"));
        let cache = route(&format!("{PREFIX}/cache"));
        assert!(matches!(cache, Ok(Route::Cache(account)) if account.object == "prod"));
        let operation = route(&format!("{PREFIX}/operations/01M85"));
        assert!(matches!(operation, Ok(Route::Operation(_, id)) if id == "01M85"));
        assert!(route(&format!("{PREFIX}/operations/a%2Fb")).is_err());
    }

    #[test]
    fn names_that_no_object_has_are_not_found() {
        let at = |namespace: &str, object: &str| {
            route(&format!(
                "/apis/proxy.kubesvc.io/v1alpha1/namespaces/{namespace}/accounts/{object}/proxy/api"
            ))
        };
        assert!(at("ns", "prod.eu-1").is_ok());
        let long = "a".repeat(254);
        for name in ["", ".", "..", "a/b", "A", "a%2fb", "a b", "-a", "a-", &long, "a%00"] {
            assert!(at(name, "prod").is_err() && at("ns", name).is_err(), "{name:?}");
        }
    }

    #[test]
    fn documents_are_found_with_and_without_a_slash() {
        for (path, document) in [
            ("/apis", Document::Groups),
            ("/apis/", Document::Groups),
            ("/apis/proxy.kubesvc.io", Document::Group),
            ("/apis/proxy.kubesvc.io/v1alpha1", Document::Resources),
            ("/openapi/v2", Document::OpenApiV2),
            ("/openapi/v3", Document::OpenApiV3Index),
            ("/openapi/v3/apis/proxy.kubesvc.io/v1alpha1", Document::OpenApiV3),
        ] {
            assert_eq!(route(path).expect(path), Route::Discovery(document));
        }
        for path in ["", "/", "/api", "/apis/apps", "/apis/proxy.kubesvc.io/v1", "/version", "/metrics"] {
            assert_eq!(route(path).expect_err(path).code, StatusCode::NOT_FOUND);
        }
    }

    proptest! {
        #[test]
        fn a_target_always_begins_with_a_slash(path in "\\PC{0,80}") {
            if let Ok(Route::Proxy(_, target)) = route(&format!("{PREFIX}{path}")) {
                prop_assert!(target.starts_with('/'));
            }
        }
    }
}
