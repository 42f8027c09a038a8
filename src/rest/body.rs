//! Request bodies, and the accounts in them. Checks, in this order and before anything else: media type, size, time,
//! memory, syntax.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, StatusCode, header};
use serde_json::{Map, Value};
use tokio::time::Instant;
use tracing::debug;

use super::error::RestError;
use super::memory_limit::{MemoryPermit, busy};
use super::{RestState, json};
use kubesvc_core::spinnaker::{AccountInput, is_account_name};
use kubesvc_runtime::listen::bodies::{BodyPermit, UnreadBody, collect};
use kubesvc_runtime::listen::connection_limits::ClientAddress;
use kubesvc_runtime::telemetry::errors::chain;

/// Time limit for a received body to wait for memory.
const PARSE_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum number of accounts in a request.
const MAX_ACCOUNTS: usize = 1000;

/// Media types that a call accepts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum MediaTypes {
    /// JSON; the header is required.
    Json,
    /// JSON; the header is optional. Media types of HTML forms are refused, because any web page can send one.
    Unsaid,
    /// JSON, or the form type that `curl -d` sends by default; the header is optional.
    Lenient,
}

/// A request whose body was not read yet.
pub(super) struct PendingBody {
    headers: HeaderMap,
    body: Body,
    caller: Option<ClientAddress>,
}

impl<S: Send + Sync> FromRequest<S> for PendingBody {
    type Rejection = Infallible;

    async fn from_request(request: Request, _: &S) -> Result<Self, Infallible> {
        let (parts, body) = request.into_parts();
        Ok(Self { headers: parts.headers, body, caller: parts.extensions.get().copied() })
    }
}

/// A parsed body and its memory permit. Keep the permit as long as any part of the body.
pub(super) type ParsedBody = (Value, MemoryPermit);

/// Reads a body and parses it as JSON.
pub(super) async fn read(
    state: &RestState,
    received: PendingBody,
    media: MediaTypes,
) -> Result<ParsedBody, RestError> {
    let caller = received.caller;
    let (bytes, room) = bytes(state, received, media).await?;
    parse(state, caller, &bytes, room).await
}

/// Reads a body and parses it as JSON. An empty body is `None`.
pub(super) async fn read_optional(
    state: &RestState,
    received: PendingBody,
) -> Result<Option<ParsedBody>, RestError> {
    let caller = received.caller;
    let (bytes, room) = bytes(state, received, MediaTypes::Unsaid).await?;
    if bytes.is_empty() {
        return Ok(None);
    }
    parse(state, caller, &bytes, room).await.map(Some)
}

/// Parses a body as JSON, within the memory that there is.
pub(super) async fn parse(
    state: &RestState,
    caller: Option<ClientAddress>,
    bytes: &[u8],
    room: BodyPermit,
) -> Result<ParsedBody, RestError> {
    let held = state.limits.values(caller, json::memory_bound(bytes), Instant::now() + PARSE_TIMEOUT).await?;
    let _parsing = state.limits.parsing(bytes.len()).await;
    let value = json::parse(bytes).map_err(|error| RestError::bad_request(chain(&error)))?;
    Ok((value, held.with(room)))
}

async fn bytes(
    state: &RestState,
    received: PendingBody,
    media: MediaTypes,
) -> Result<(Bytes, BodyPermit), RestError> {
    check_media(&received.headers, media)?;
    unparsed(state, &received.headers, received.body, received.caller).await
}

/// Reads a body whatever it is.
pub(super) async fn unparsed(
    state: &RestState,
    headers: &HeaderMap,
    body: Body,
    caller: Option<ClientAddress>,
) -> Result<(Bytes, BodyPermit), RestError> {
    let max_bytes = state.settings.max_body_bytes;
    let expected = expected(headers, max_bytes)?;
    let mut permit = state.limits.body(caller);
    let bytes = collect(body, max_bytes, expected, &mut permit).await?;
    Ok((bytes, permit))
}

/// Returns the declared length of a body, if there is one. A length above the limit is an error.
fn expected(headers: &HeaderMap, max_bytes: usize) -> Result<Option<usize>, RestError> {
    let Some(declared) = declared_length(headers) else { return Ok(None) };
    let fits = usize::try_from(declared).ok().filter(|length| *length <= max_bytes);
    fits.map(Some).ok_or_else(|| UnreadBody::TooLarge(max_bytes).into())
}

impl From<UnreadBody> for RestError {
    fn from(error: UnreadBody) -> Self {
        match error {
            UnreadBody::NoRoom(_) => busy(),
            error => Self::new(error.status(), error.to_string()),
        }
    }
}

fn declared_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// Refuses a body of another media type, or in another encoding than UTF-8.
pub(super) fn check_media(headers: &HeaderMap, media: MediaTypes) -> Result<(), RestError> {
    let unsupported = |message: &str| RestError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message);
    if headers.get(header::CONTENT_ENCODING).is_some_and(|encoding| encoding != "identity") {
        return Err(unsupported("send the body without a Content-Encoding"));
    }
    let Some(given) = headers.get(header::CONTENT_TYPE) else {
        return match media {
            MediaTypes::Lenient | MediaTypes::Unsaid => Ok(()),
            MediaTypes::Json => Err(unsupported("send the header Content-Type: application/json")),
        };
    };
    let given = given.to_str().unwrap_or_default().to_ascii_lowercase();
    let (essence, parameters) = given.split_once(';').unwrap_or((&given, ""));
    let good = match essence.trim() {
        "application/json" => true,
        "application/x-www-form-urlencoded" => media == MediaTypes::Lenient,
        other => other.starts_with("application/") && other.ends_with("+json"),
    };
    if !good {
        return Err(unsupported("send JSON, with the header Content-Type: application/json"));
    }
    let charset = parameters.split(';').find_map(|one| one.trim().strip_prefix("charset="));
    match charset.map(|charset| charset.trim_matches('"')) {
        None | Some("utf-8" | "utf8" | "us-ascii") => Ok(()),
        Some(_) => Err(unsupported("send the body in UTF-8")),
    }
}

/// Returns a list that is not empty and has at most [`MAX_ACCOUNTS`] items.
fn list(body: Value) -> Result<Vec<Value>, RestError> {
    match body {
        Value::Array(items) if items.is_empty() => {
            Err(RestError::bad_request("the body is an empty list: name at least one account"))
        }
        Value::Array(items) if items.len() > MAX_ACCOUNTS => Err(RestError::bad_request(format!(
            "the body names {} accounts, and a request may name {MAX_ACCOUNTS} at most; send several requests",
            items.len()
        ))),
        Value::Array(items) => Ok(items),
        Value::Null => Err(RestError::bad_request("the body is null: send a list")),
        _ => Err(RestError::bad_request("the body must be a list")),
    }
}

/// Returns a list of objects that is not empty.
pub(super) fn objects(body: Value) -> Result<Vec<Map<String, Value>>, RestError> {
    let each = list(body)?.into_iter().enumerate().map(|(index, item)| match item {
        Value::Object(fields) => Ok(fields),
        _ => Err(RestError::bad_request(format!("[{index}] must be an object"))),
    });
    each.collect()
}

/// Returns a list of account names that is not empty and has no duplicates.
pub(super) fn names(body: Value) -> Result<Vec<String>, RestError> {
    let each = list(body)?.into_iter().enumerate().map(|(index, item)| match item {
        Value::String(name) if is_account_name(&name) => Ok(name),
        _ => Err(RestError::bad_request(format!(
            "[{index}] must be an account name: a string of 1 to 255 characters without control characters"
        ))),
    });
    let names: Vec<String> = each.collect::<Result<_, _>>()?;
    no_name_twice(names.iter().map(String::as_str))?;
    Ok(names)
}

/// Parses one account of a body.
pub(super) fn account(fields: Map<String, Value>) -> Result<AccountInput, RestError> {
    let named =
        fields.get("name").and_then(Value::as_str).map(|name| name.chars().take(255).collect::<String>());
    let given = AccountInput::read(fields).map_err(|problem| {
        RestError::bad_request(match named {
            Some(name) => format!("account {name:?}: {problem}"),
            None => problem.to_string(),
        })
    })?;
    if given.ignored.count > 0 {
        let ignored = &given.ignored;
        debug!(account = given.name, count = ignored.count, first = ?ignored.named, "ignored fields that have no effect");
    }
    Ok(given)
}

/// Parses all accounts of a body. A name that occurs twice is an error.
pub(super) fn accounts(objects: Vec<Map<String, Value>>) -> Result<Vec<AccountInput>, RestError> {
    let all: Vec<AccountInput> = objects.into_iter().map(account).collect::<Result<_, _>>()?;
    no_name_twice(all.iter().map(|given| given.name.as_str()))?;
    Ok(all)
}

/// Refuses duplicate names.
fn no_name_twice<'a>(names: impl Iterator<Item = &'a str>) -> Result<(), RestError> {
    let mut seen = std::collections::HashSet::new();
    for name in names {
        if !seen.insert(name) {
            return Err(RestError::bad_request(format!("account {name:?} is named twice")));
        }
    }
    Ok(())
}
