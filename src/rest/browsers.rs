//! Which web pages may call REST from a browser: none, unless their origin is allowed. REST has no login, so any page
//! could otherwise reach what its reader's browser can reach.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::error::RestError;
use super::unknown_callers::OPERATIONS;

/// Allowed origins and host names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BrowserRules {
    /// Host names under which REST is called, with or without a port. Empty: any.
    pub hosts: Vec<String>,
    /// Origins whose pages may call, such as `https://deck.example.com`.
    pub allowed_origins: Vec<String>,
}

/// Beginning of the paths that probes call by address, so the host name is not checked.
const BY_ADDRESS: &str = "/health";
/// Media types that a form of any web page can send, without being asked first.
const FORM_TYPES: [&str; 3] = ["application/x-www-form-urlencoded", "multipart/form-data", "text/plain"];

/// Refuses requests of foreign pages, and adds CORS headers to the answers for allowed origins.
pub(super) async fn guard(
    State(rules): State<Arc<BrowserRules>>,
    request: Request,
    next: Next,
) -> Result<Response, RestError> {
    let (headers, path) = (request.headers(), request.uri().path());
    let below = path.strip_prefix(BY_ADDRESS);
    if !below.is_some_and(|below| below.is_empty() || below.starts_with('/')) {
        let called =
            request.uri().authority().map(Authority::as_str).or_else(|| only(headers, &header::HOST));
        check_host(&rules.hosts, called)?;
    }
    let allowed = check_origin(&rules.allowed_origins, headers)?;
    // Calls about operations refuse forms themselves, with an audit line.
    if !path.starts_with(OPERATIONS) {
        refuse_forms(request.method(), headers)?;
    }
    let preflight = request.method() == Method::OPTIONS
        && allowed.is_some()
        && headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
    let mut response = if preflight { preflighted() } else { next.run(request).await };
    let answer = response.headers_mut();
    if !rules.allowed_origins.is_empty() {
        answer.append(header::VARY, HeaderValue::from_static("origin"));
    }
    if let Some(origin) = allowed {
        answer.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    }
    Ok(response)
}

fn preflighted() -> Response {
    let allowed = [
        (header::ACCESS_CONTROL_ALLOW_METHODS, "GET, POST, PUT, PATCH, DELETE"),
        (header::ACCESS_CONTROL_ALLOW_HEADERS, "authorization, content-type"),
    ];
    (StatusCode::NO_CONTENT, allowed).into_response()
}

/// Returns the value of a header that occurs exactly once.
fn only<'h>(headers: &'h HeaderMap, name: &header::HeaderName) -> Option<&'h str> {
    let mut values = headers.get_all(name).iter();
    let first = values.next()?.to_str().ok()?;
    values.next().is_none().then_some(first)
}

/// Refuses an unknown host name: a web page may resolve its own name to this address (DNS rebinding).
fn check_host(hosts: &[String], called: Option<&str>) -> Result<(), RestError> {
    let is_good = |called: &Authority| hosts.iter().any(|host| names(host, called));
    if hosts.is_empty() || called.and_then(|host| host.parse().ok()).as_ref().is_some_and(is_good) {
        return Ok(());
    }
    let shown: String = called.unwrap_or_default().chars().take(255).collect();
    Err(RestError::new(
        StatusCode::MISDIRECTED_REQUEST,
        format!("the host {shown:?} is not in server.hosts; use one of those names, or add this one there"),
    ))
}

/// Whether an entry of the settings matches the authority of a request. An entry without a port matches any.
fn names(entry: &str, called: &Authority) -> bool {
    let Ok(entry) = entry.parse::<Authority>() else { return false };
    let same_port = entry.port_u16().is_none_or(|port| called.port_u16() == Some(port));
    same_port && entry.host().eq_ignore_ascii_case(called.host())
}

/// Refuses a page of another site. Returns the origin of an allowed one.
fn check_origin(allowed: &[String], headers: &HeaderMap) -> Result<Option<HeaderValue>, RestError> {
    let refused = |what: &str| {
        Err(RestError::new(
            StatusCode::FORBIDDEN,
            format!("{what} may not call REST; add its origin to server.cors.allowedOrigins if it should"),
        ))
    };
    if headers.contains_key(header::ORIGIN) {
        let origin = only(headers, &header::ORIGIN);
        let good = origin.filter(|origin| allowed.iter().any(|one| one.eq_ignore_ascii_case(origin)));
        return match good.and_then(|origin| HeaderValue::from_str(origin).ok()) {
            Some(origin) => Ok(Some(origin)),
            None => refused("this web page"),
        };
    }
    let sites = headers.get_all("sec-fetch-site");
    if sites.iter().any(|site| !matches!(site.as_bytes(), b"same-origin" | b"none")) {
        return refused("a page of another site");
    }
    Ok(None)
}

/// Refuses what a form could send, with fields or without: an old browser names no origin with it.
fn refuse_forms(method: &Method, headers: &HeaderMap) -> Result<(), RestError> {
    let is_form = |value: &HeaderValue| {
        let essence = value.as_bytes().split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
        FORM_TYPES.iter().any(|form| form.as_bytes().eq_ignore_ascii_case(essence))
    };
    if *method == Method::POST && headers.get_all(header::CONTENT_TYPE).iter().any(is_form) {
        return Err(RestError::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "send JSON, with the header Content-Type: application/json",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_form_can_send_is_refused_on_post_with_fields_or_without() {
        for (method, kind, refused) in [
            (Method::POST, "application/x-www-form-urlencoded", true),
            (Method::POST, "Multipart/Form-Data; boundary=x", true),
            (Method::POST, "text/plain;charset=UTF-8", true),
            (Method::POST, "application/json", false),
            (Method::DELETE, "application/x-www-form-urlencoded", false),
            (Method::GET, "text/plain", false),
        ] {
            let given = headers(&[("content-type", kind)]);
            let judged = refuse_forms(&method, &given).err().map(|error| error.status.as_u16());
            assert_eq!(judged, refused.then_some(415), "{method} {kind}");
        }
        assert!(refuse_forms(&Method::POST, &HeaderMap::new()).is_ok());
    }

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let pairs = pairs
            .iter()
            .map(|(name, value)| (header::HeaderName::from_static(name), HeaderValue::from_static(value)));
        pairs.collect()
    }

    #[test]
    fn pages_of_other_sites_are_refused_and_programs_are_not() {
        let allowed = ["https://deck.example.com".to_owned()];
        type Case = (&'static [(&'static str, &'static str)], Option<u16>);
        const CASES: &[Case] = &[
            (&[], None),
            (&[("sec-fetch-site", "none")], None),
            (&[("sec-fetch-site", "same-origin")], None),
            (&[("sec-fetch-site", "same-site")], Some(403)),
            (&[("sec-fetch-site", "cross-site")], Some(403)),
            (&[("sec-fetch-site", "odd")], Some(403)),
            (&[("origin", "https://deck.example.com"), ("sec-fetch-site", "cross-site")], None),
            (&[("origin", "HTTPS://Deck.example.com")], None),
            (&[("origin", "https://deck.example.com:8443")], Some(403)),
            (&[("origin", "http://deck.example.com")], Some(403)),
            (&[("origin", "null")], Some(403)),
            (&[("origin", "https://evil.example"), ("sec-fetch-site", "same-origin")], Some(403)),
        ];
        for (pairs, code) in CASES {
            let judged = check_origin(&allowed, &headers(pairs));
            assert_eq!(judged.err().map(|problem| problem.status.as_u16()), *code, "{pairs:?}");
        }
    }

    #[test]
    fn only_the_names_that_are_set_are_good_hosts_and_any_if_none_is() {
        let hosts = ["hub.example.com".to_owned(), "localhost:7002".to_owned(), "[::1]".to_owned()];
        for (called, good) in [
            ("hub.example.com", true),
            ("HUB.example.com:80", true),
            ("localhost:7002", true),
            ("localhost:7003", false),
            ("localhost", false),
            ("[::1]:9", true),
            ("10.0.0.1:7002", false),
            ("evil.example", false),
            ("", false),
        ] {
            assert_eq!(check_host(&hosts, Some(called)).is_ok(), good, "{called}");
        }
        assert!(check_host(&hosts, None).is_err());
        assert!(check_host(&[], Some("evil.example")).is_ok() && check_host(&[], None).is_ok());
    }
}
