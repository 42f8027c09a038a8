//! Errors in the shape of Spring services: `{timestamp, status, error, message, path}`.
//!
//! A handler returns a [`RestError`]. The middleware [`shape`] adds the body, because only there the path is known.

use axum::Json;
use axum::extract::Request;
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

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

    pub(super) fn unauthorized(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, message)
    }

    pub(super) fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, message)
    }

    pub(super) fn unavailable(message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, message)
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
