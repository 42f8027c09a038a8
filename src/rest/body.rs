//! The body of a request: media type, then size, then time, then what it holds, then syntax, before anything else is
//! looked at.

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, StatusCode, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde_json::{Map, Value};
use tokio::time::Instant;

use super::error::Problem;
use super::room::Held;
use super::{RestState, json, size};
use crate::account::spinnaker::is_account_name;

/// How long a body may take to arrive, and to be read.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// How many accounts a request may name.
pub(super) const MOST_ACCOUNTS: usize = 1000;
/// The largest body of a call between replicas, in bytes: more than enough for a question of 1,000 uids, whatever callers
/// may send.
const OF_REPLICA: usize = 256 * 1024;

/// Which media types a call takes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Media {
    /// JSON, and it must be said.
    Json,
    /// JSON, said or not, or what `curl -d` says when it is not told.
    Lenient,
}

/// A body that was read, and the room that it takes: to be kept as long as anything of it is.
pub(super) type Read = (Value, Held);

/// Reads a body as JSON.
pub(super) async fn read(
    state: &RestState,
    headers: &HeaderMap,
    body: Body,
    media: Media,
) -> Result<Read, Problem> {
    let (until, (bytes, _held)) = bytes(state, headers, body, media).await?;
    parse(state, &bytes, until).await
}

/// Reads a body as JSON; none is none.
pub(super) async fn read_optional(
    state: &RestState,
    headers: &HeaderMap,
    body: Body,
) -> Result<Option<Read>, Problem> {
    let (until, (bytes, _held)) = bytes(state, headers, body, Media::Lenient).await?;
    if bytes.is_empty() {
        return Ok(None);
    }
    parse(state, &bytes, until).await.map(Some)
}

/// Reads the body of another replica as it is.
pub(super) async fn of_replica(
    state: &RestState,
    headers: &HeaderMap,
    body: Body,
) -> Result<(Bytes, Held), Problem> {
    let until = Instant::now() + BODY_TIMEOUT;
    let length = length(headers, OF_REPLICA)?;
    let held = state.room.of_replica(length, until).await?;
    Ok((collect(body, OF_REPLICA, until).await?, held))
}

/// What was read of a body that [`of_replica`] has read.
pub(super) async fn again(body: Body) -> Result<Bytes, Problem> {
    collect(body, OF_REPLICA, Instant::now() + BODY_TIMEOUT).await
}

async fn parse(state: &RestState, bytes: &[u8], until: Instant) -> Result<Read, Problem> {
    let size = size::measure(bytes).map_err(|unfit| Problem::bad_request(unfit.to_string()))?;
    let held = state.room.values(size.memory(), until).await?;
    Ok((json::parse(bytes).map_err(Problem::bad_request)?, held))
}

async fn bytes(
    state: &RestState,
    headers: &HeaderMap,
    body: Body,
    media: Media,
) -> Result<(Instant, (Bytes, Held)), Problem> {
    check_media(headers, media)?;
    let (until, max_bytes) = (Instant::now() + BODY_TIMEOUT, state.settings.max_body_bytes);
    let held = state.room.body(length(headers, max_bytes)?, until).await?;
    Ok((until, (collect(body, max_bytes, until).await?, held)))
}

/// How long a body is; as long as it may be, if it does not say.
fn length(headers: &HeaderMap, max_bytes: usize) -> Result<usize, Problem> {
    let Some(declared) = declared_length(headers) else { return Ok(max_bytes) };
    usize::try_from(declared).ok().filter(|length| *length <= max_bytes).ok_or_else(|| too_large(max_bytes))
}

async fn collect(body: Body, max_bytes: usize, until: Instant) -> Result<Bytes, Problem> {
    match tokio::time::timeout_at(until, Limited::new(body, max_bytes).collect()).await {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(problem)) if problem.is::<LengthLimitError>() => Err(too_large(max_bytes)),
        Ok(Err(_)) => Err(Problem::bad_request("the body broke off")),
        Err(_) => Err(Problem::new(
            StatusCode::REQUEST_TIMEOUT,
            format!("the body did not arrive within {} s", BODY_TIMEOUT.as_secs()),
        )),
    }
}

fn too_large(max_bytes: usize) -> Problem {
    Problem::new(StatusCode::PAYLOAD_TOO_LARGE, format!("the body may have {max_bytes} bytes at most"))
}

fn declared_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

fn check_media(headers: &HeaderMap, media: Media) -> Result<(), Problem> {
    let unsupported = |message: &str| Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message);
    if headers.get(header::CONTENT_ENCODING).is_some_and(|encoding| encoding != "identity") {
        return Err(unsupported("send the body without a Content-Encoding"));
    }
    let Some(given) = headers.get(header::CONTENT_TYPE) else {
        return match media {
            Media::Lenient => Ok(()),
            Media::Json => Err(unsupported("send the header Content-Type: application/json")),
        };
    };
    let given = given.to_str().unwrap_or_default().to_ascii_lowercase();
    let (essence, parameters) = given.split_once(';').unwrap_or((&given, ""));
    let good = match essence.trim() {
        "application/json" => true,
        "application/x-www-form-urlencoded" => media == Media::Lenient,
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

/// A list that is not empty and not too long.
pub(super) fn list(body: Value) -> Result<Vec<Value>, Problem> {
    match body {
        Value::Array(items) if items.is_empty() => {
            Err(Problem::bad_request("the body is an empty list: name at least one account"))
        }
        Value::Array(items) if items.len() > MOST_ACCOUNTS => Err(Problem::bad_request(format!(
            "the body names {} accounts, and a request may name {MOST_ACCOUNTS} at most; send several requests",
            items.len()
        ))),
        Value::Array(items) => Ok(items),
        Value::Null => Err(Problem::bad_request("the body is null: send a list")),
        _ => Err(Problem::bad_request("the body must be a list")),
    }
}

/// A list of objects that is not empty.
pub(super) fn objects(body: Value) -> Result<Vec<Map<String, Value>>, Problem> {
    let each = list(body)?.into_iter().enumerate().map(|(index, item)| match item {
        Value::Object(fields) => Ok(fields),
        _ => Err(Problem::bad_request(format!("[{index}] must be an object"))),
    });
    each.collect()
}

/// A list of account names that is not empty and names none twice.
pub(super) fn names(body: Value) -> Result<Vec<String>, Problem> {
    let each = list(body)?.into_iter().enumerate().map(|(index, item)| match item {
        Value::String(name) if is_account_name(&name) => Ok(name),
        _ => Err(Problem::bad_request(format!(
            "[{index}] must be an account name: a string of 1 to 255 characters without control characters"
        ))),
    });
    let names: Vec<String> = each.collect::<Result<_, _>>()?;
    no_name_twice(names.iter().map(String::as_str))?;
    Ok(names)
}

/// Refuses a name that comes twice.
pub(super) fn no_name_twice<'a>(names: impl Iterator<Item = &'a str>) -> Result<(), Problem> {
    let mut seen = std::collections::HashSet::new();
    for name in names {
        if !seen.insert(name) {
            return Err(Problem::bad_request(format!("account {name:?} is named twice")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_body_that_does_not_come_is_408() {
        let body = Body::from_stream(futures::stream::pending::<Result<Vec<u8>, std::io::Error>>());
        let problem =
            collect(body, 10, Instant::now() + Duration::from_millis(20)).await.expect_err("it never comes");
        assert_eq!(problem.status, StatusCode::REQUEST_TIMEOUT);
    }
}
