//! Path names and query parameters. Extraction itself never fails, so that a handler decides which error comes first.

use std::convert::Infallible;

use axum::extract::{FromRequestParts, RawPathParams};
use axum::http::request::Parts;
use utoipa::IntoParams;

use super::error::RestError;
use crate::account::spinnaker::is_account_name;

/// The name in the path, percent-decoded.
pub(super) struct PathName(Result<String, RestError>);

impl PathName {
    /// A name that the route itself contains.
    pub(super) fn of(name: &str) -> Self {
        Self(Ok(name.to_owned()))
    }

    /// The name as an account name.
    pub(super) fn account(self) -> Result<String, RestError> {
        let name = self.0?;
        if is_account_name(&name) {
            Ok(name)
        } else {
            Err(RestError::bad_request(
                "the name in the path must have 1 to 255 characters, none of them a control character",
            ))
        }
    }

    /// The name as a replica id.
    pub(super) fn replica(self) -> Result<String, RestError> {
        self.0
    }

    /// The name as an agent id.
    pub(super) fn agent(self) -> Result<String, RestError> {
        self.0
    }
}

impl<S: Send + Sync> FromRequestParts<S> for PathName {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Infallible> {
        let name = match RawPathParams::from_request_parts(parts, state).await {
            // An account may have the name of a literal segment of a route: its name is then the last segment.
            Ok(params) => Ok(params.iter().next().map_or_else(
                || parts.uri.path().rsplit('/').next().unwrap_or_default().to_owned(),
                |(_, value)| value.to_owned(),
            )),
            Err(_) => Err(RestError::bad_request("the name in the path must be UTF-8, percent-encoded")),
        };
        Ok(Self(name))
    }
}

/// Whether to change an object even if a GitOps tool manages it.
#[derive(IntoParams)]
#[into_params(names("force"), parameter_in = Query)]
pub(super) struct Force(
    /// `true` also changes an account that a GitOps tool manages; the tool may revert the change.
    #[param(required = false, value_type = bool)]
    Result<bool, RestError>,
);

impl Force {
    /// Returns the flag, or an error if its value is neither `true` nor `false`.
    pub(super) fn read(self) -> Result<bool, RestError> {
        self.0
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Force {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        let force = single_value(parts.uri.query(), "force").and_then(|word| match word.as_deref() {
            None | Some("false") => Ok(false),
            Some("true") => Ok(true),
            Some(_) => Err(RestError::bad_request("force must be true or false")),
        });
        Ok(Self(force))
    }
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
