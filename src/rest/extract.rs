//! Path names and query parameters. The order of a handler's arguments decides which error comes first.

use std::convert::Infallible;

use axum::extract::{FromRequestParts, RawPathParams};
use axum::http::StatusCode;
use axum::http::request::Parts;
use utoipa::IntoParams;

use super::RestState;
use super::error::RestError;
use super::view::{AccountItem, AccountPage};
use kubesvc_core::ZoneId;
use kubesvc_core::spinnaker::is_account_name;

/// Default number of items per page.
const DEFAULT_LIMIT: u64 = 100;
/// Maximum number of items per page.
const MAX_LIMIT: u64 = 1000;
/// Largest page number: clients can read it back as a signed 64-bit integer.
const MAX_PAGE: u64 = i64::MAX as u64;

/// That dynamic accounts are enabled. First among the arguments of a handler: otherwise the answer is 501, whatever else is
/// wrong.
pub(super) struct DynamicAccounts;

impl FromRequestParts<RestState> for DynamicAccounts {
    type Rejection = RestError;

    async fn from_request_parts(_: &mut Parts, state: &RestState) -> Result<Self, RestError> {
        if state.settings.dynamic_accounts_enabled {
            return Ok(Self);
        }
        let message = "dynamic accounts are disabled; set kubesvc.dynamicAccounts.enabled: true";
        Err(RestError::new(StatusCode::NOT_IMPLEMENTED, message))
    }
}

/// The id of an agent, a replica or an operation in the path, percent-decoded.
pub(super) struct PathId(pub(super) String);

impl<S: Send + Sync> FromRequestParts<S> for PathId {
    type Rejection = RestError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, RestError> {
        let params = RawPathParams::from_request_parts(parts, state)
            .await
            .map_err(|_| RestError::bad_request("the name in the path must be UTF-8, percent-encoded"))?;
        // An account may have the name of a literal segment of a route: its name is then the last segment.
        let name = params.iter().next().map(|(_, value)| value);
        Ok(Self(name.unwrap_or_else(|| last_segment(parts.uri.path())).to_owned()))
    }
}

/// The name of an account in the path, percent-decoded.
pub(super) struct PathAccount(pub(super) String);

impl<S: Send + Sync> FromRequestParts<S> for PathAccount {
    type Rejection = RestError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, RestError> {
        let PathId(name) = PathId::from_request_parts(parts, state).await?;
        if is_account_name(&name) {
            return Ok(Self(name));
        }
        Err(RestError::bad_request(
            "the name in the path must have 1 to 255 characters, none of them a control character",
        ))
    }
}

/// The last segment of a path, which may end with a slash.
fn last_segment(path: &str) -> &str {
    path.strip_suffix('/').unwrap_or(path).rsplit('/').next().unwrap_or_default()
}

/// Whether to change an object even if a GitOps tool manages it.
#[derive(IntoParams)]
#[into_params(names("force"), parameter_in = Query)]
pub(super) struct Force(
    /// `true` also changes an account that a GitOps tool manages; the tool may revert the change.
    #[param(required = false)]
    pub(super) bool,
);

impl<S: Send + Sync> FromRequestParts<S> for Force {
    type Rejection = RestError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, RestError> {
        match single_value(parts.uri.query(), "force")?.as_deref() {
            None | Some("false") => Ok(Self(false)),
            Some("true") => Ok(Self(true)),
            Some(_) => Err(RestError::bad_request("force must be true or false")),
        }
    }
}

/// Zone of the agents that a call is about.
#[derive(IntoParams)]
#[into_params(names("zoneId"), parameter_in = Query)]
pub(super) struct InZone(
    /// Zone of the agent. Without it, the call is about the agents of that id in each zone.
    #[param(required = false, value_type = String)]
    pub(super) Option<ZoneId>,
);

impl<S: Send + Sync> FromRequestParts<S> for InZone {
    type Rejection = RestError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, RestError> {
        // An empty text counts as absent, as in bodies.
        let zone = single_value(parts.uri.query(), "zoneId")?.filter(|zone| !zone.is_empty());
        Ok(Self(zone.map(ZoneId::from)))
    }
}

/// Page of a list that the client requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct Paging {
    /// Page number, from 1.
    #[param(required = false, minimum = 1, maximum = 9223372036854775807i64, default = 1)]
    page: u64,
    /// Maximum number of items per page.
    #[param(required = false, minimum = 1, maximum = 1000, default = 100)]
    limit: u64,
}

impl Paging {
    /// Parses `page` and `limit` of a query.
    pub(super) fn read(query: Option<&str>) -> Result<Self, RestError> {
        let page = number(query, "page", 1, 1..=MAX_PAGE)?;
        let limit = number(query, "limit", DEFAULT_LIMIT, 1..=MAX_LIMIT)?;
        Ok(Self { page, limit })
    }

    /// A page with these items, out of `total`.
    pub(super) fn page(self, items: Vec<AccountItem>, total: usize) -> AccountPage {
        AccountPage { items, page: self.page, limit: self.limit, total }
    }

    /// Returns the items of this page out of the whole list.
    pub(super) fn cut<T>(self, all: &[T]) -> &[T] {
        let start = (self.page - 1).saturating_mul(self.limit);
        let start = usize::try_from(start).unwrap_or(usize::MAX).min(all.len());
        let limit = usize::try_from(self.limit).unwrap_or(usize::MAX);
        &all[start..start.saturating_add(limit).min(all.len())]
    }
}

/// Page of records that the client requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct RecordPaging {
    /// Page number, from 1.
    #[param(required = false, minimum = 1, maximum = 9223372036854775807i64, default = 1)]
    page: u64,
    /// Maximum number of records per page.
    #[param(required = false, minimum = 1, maximum = 1000, default = 100)]
    items: u64,
}

impl RecordPaging {
    /// Parses `page` and `items` of a query.
    pub(super) fn read(query: Option<&str>) -> Result<Self, RestError> {
        let page = number(query, "page", 1, 1..=MAX_PAGE)?;
        let items = number(query, "items", DEFAULT_LIMIT, 1..=MAX_LIMIT)?;
        Ok(Self { page, items })
    }

    /// Number of records before the page, and in it.
    pub(super) fn range(self) -> (u64, u32) {
        let items = u32::try_from(self.items).unwrap_or(u32::MAX);
        ((self.page - 1).saturating_mul(self.items), items)
    }
}

fn number(
    query: Option<&str>,
    key: &str,
    default: u64,
    allowed: std::ops::RangeInclusive<u64>,
) -> Result<u64, RestError> {
    let Some(text) = single_value(query, key)? else { return Ok(default) };
    text.parse().ok().filter(|number| allowed.contains(number)).ok_or_else(|| {
        let most = if *allowed.end() == MAX_PAGE { String::new() } else { format!(" to {}", allowed.end()) };
        RestError::bad_request(format!("{key} must be a number from {}{most}", allowed.start()))
    })
}

/// Readiness check that does not affect the status, like `/readyz?exclude=` of the Kubernetes API server. A database that
/// fails is missing to all replicas at the same time: if that removed them from their Service, no agent could connect
/// until it is back, although replicas do most of their work without it.
#[derive(Default, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct ExcludedChecks {
    /// Check that does not affect the status code, such as `database`; `missing` lists it nevertheless.
    #[param(required = false)]
    exclude: Option<String>,
}

impl ExcludedChecks {
    /// Whether `what` is excluded from the check.
    pub(super) fn has(&self, what: &str) -> bool {
        self.exclude.as_deref() == Some(what)
    }
}

impl<S: Send + Sync> FromRequestParts<S> for ExcludedChecks {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self { exclude: query_value(parts.uri.query(), "exclude") })
    }
}

/// Returns a decoded query parameter. An error if it occurs twice.
pub(super) fn single_value(query: Option<&str>, key: &str) -> Result<Option<String>, RestError> {
    let mut pairs = url::form_urlencoded::parse(query.unwrap_or_default().as_bytes());
    let first = pairs.find(|(name, _)| name == key);
    if pairs.any(|(name, _)| name == key) {
        return Err(RestError::bad_request(format!("{key} is given twice")));
    }
    Ok(first.map(|(_, value)| value.into_owned()))
}

/// Returns a decoded query parameter; the first, if it occurs twice.
fn query_value(query: Option<&str>, key: &str) -> Option<String> {
    let mut pairs = url::form_urlencoded::parse(query.unwrap_or_default().as_bytes());
    pairs.find(|(name, _)| name == key).map(|(_, value)| value.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_cut_from_1_and_end_empty() {
        let all: Vec<u32> = (0..5).collect();
        let cut = |query| Paging::read(Some(query)).expect("good").cut(&all);
        assert_eq!(cut("page=1&limit=2"), [0, 1]);
        assert_eq!(cut("page=3&limit=2"), [4]);
        assert_eq!(cut("page=4&limit=2"), [0; 0]);
        assert_eq!(cut("page=9223372036854775807&limit=1000"), [0; 0]);
        assert_eq!(cut(""), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn invalid_page_is_refused() {
        for query in [
            "page=0",
            "page=-1",
            "page=x",
            "page=",
            "limit=0",
            "limit=1001",
            "limit=1.5",
            "page=99999999999999999999",
            "page=9223372036854775808",
            "page=1&page=1",
        ] {
            let problem = Paging::read(Some(query)).expect_err(query);
            assert_eq!(problem.status.as_u16(), 400);
        }
    }
}
