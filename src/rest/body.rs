//! The body of a request: media type, then size, then time, then syntax, before anything else is looked at.

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, StatusCode, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde_json::{Map, Value};

use super::error::Problem;
use super::json;
use crate::account::spinnaker::is_account_name;

/// How long a body may take to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// Which media types a call takes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Media {
    /// JSON, and it must be said.
    Json,
    /// JSON, said or not, or what `curl -d` says when it is not told.
    Lenient,
}

/// Reads a body as JSON.
pub(super) async fn read(
    headers: &HeaderMap,
    body: Body,
    media: Media,
    max_bytes: usize,
) -> Result<Value, Problem> {
    let bytes = bytes(headers, body, media, max_bytes).await?;
    json::parse(&bytes).map_err(Problem::bad_request)
}

/// Reads a body as JSON; none is none.
pub(super) async fn read_optional(
    headers: &HeaderMap,
    body: Body,
    max_bytes: usize,
) -> Result<Option<Value>, Problem> {
    let bytes = bytes(headers, body, Media::Lenient, max_bytes).await?;
    if bytes.is_empty() {
        return Ok(None);
    }
    json::parse(&bytes).map(Some).map_err(Problem::bad_request)
}

/// Reads a body as it is.
pub(super) async fn raw(headers: &HeaderMap, body: Body, max_bytes: usize) -> Result<Bytes, Problem> {
    if declared_length(headers).is_some_and(|length| length > max_bytes as u64) {
        return Err(too_large(max_bytes));
    }
    collect(body, max_bytes, BODY_TIMEOUT).await
}

async fn bytes(headers: &HeaderMap, body: Body, media: Media, max_bytes: usize) -> Result<Bytes, Problem> {
    check_media(headers, media)?;
    raw(headers, body, max_bytes).await
}

async fn collect(body: Body, max_bytes: usize, within: Duration) -> Result<Bytes, Problem> {
    match tokio::time::timeout(within, Limited::new(body, max_bytes).collect()).await {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(problem)) if problem.is::<LengthLimitError>() => Err(too_large(max_bytes)),
        Ok(Err(_)) => Err(Problem::bad_request("the body broke off")),
        Err(_) => Err(Problem::new(
            StatusCode::REQUEST_TIMEOUT,
            format!("the body did not arrive within {} s", within.as_secs()),
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

/// A list that is not empty.
pub(super) fn list(body: Value) -> Result<Vec<Value>, Problem> {
    match body {
        Value::Array(items) if items.is_empty() => {
            Err(Problem::bad_request("the body is an empty list: name at least one account"))
        }
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
        let problem = collect(body, 10, Duration::from_millis(20)).await.expect_err("it never comes");
        assert_eq!(problem.status, StatusCode::REQUEST_TIMEOUT);
    }
}
