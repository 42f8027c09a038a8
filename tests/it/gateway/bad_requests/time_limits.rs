//! What is slow or hangs, until the time that it may take is over. That is a minute each, so all run at once.

use std::time::Duration;

use futures::future::join_all;
use serde_json::{Value, json};

use super::super::place::Place;
use super::bytes::exchange;
use super::servers::{Reading, ReadingEnd, read};
use super::{Door, Tried};

/// Number of bytes that are read of an answer of a byte a second: it goes on for longer than any part of it may take.
const SLOW_BYTES: usize = 62;

/// Time limit for the answer to a body that does not end.
const BODY_TIMEOUT: Duration = Duration::from_secs(120);

/// Tries all kinds.
pub(super) async fn try_all(place: &Place, token: &str, own_token: &str, tried: &mut Tried) {
    let doors = [(Door::Direct, token), (Door::Aggregated, own_token)];
    let hanging = join_all(doors.map(|(door, token)| read(place, door, token, "hang", usize::MAX)));
    let silent = join_all(doors.map(|(door, token)| read(place, door, token, "silent", usize::MAX)));
    let slow = join_all(doors.map(|(door, token)| read(place, door, token, "slow", SLOW_BYTES)));
    let body = body_that_stops(place, token);
    let (hanging, silent, slow, body) = tokio::join!(hanging, silent, slow, body);
    for ((door, _), reading) in doors.into_iter().zip(hanging) {
        let judged = reading.and_then(|reading| timed_out(&reading));
        tried.note(&format!("a server that hangs ({door:?})"), judged);
    }
    for ((door, _), reading) in doors.into_iter().zip(silent) {
        let judged = reading.and_then(|Reading { code, body, end }| {
            let is_good = (code, end) == (200, ReadingEnd::Cut) && body == b" ";
            if is_good { Ok(()) } else { Err(format!("{code}, {} bytes, {end:?}", body.len())) }
        });
        tried.note(&format!("a server that falls silent after a byte ({door:?})"), judged);
    }
    for ((door, _), reading) in doors.into_iter().zip(slow) {
        let judged = reading.and_then(|Reading { code, body, end }| {
            let is_good = (code, end) == (200, ReadingEnd::Enough) && body.iter().all(|byte| *byte == b' ');
            if is_good { Ok(()) } else { Err(format!("{code}, {} bytes, {end:?}", body.len())) }
        });
        tried.note(&format!("a server: a byte a second ({door:?})"), judged);
    }
    tried.note("a body that stops after a byte", body);
}

/// Sends a byte of a body, and nothing more, at the direct door: kube-apiserver reads the rest of a body before it passes
/// an answer on.
async fn body_that_stops(place: &Place, token: &str) -> Result<(), String> {
    let path = format!("{}/api/v1/namespaces/default/configmaps", place.path());
    let begun = format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n\
         Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{{\r\n"
    );
    let (code, text) = exchange(place, Door::Direct, begun.into_bytes(), false, BODY_TIMEOUT).await?;
    let says = ["\"reason\":\"Timeout\"", "the body arrives too slowly"];
    if code == 408 && says.iter().all(|says| text.contains(says)) { Ok(()) } else { Err(text) }
}

/// Checks that a read had no answer in time, and that a Status says so.
fn timed_out(Reading { code, body, end }: &Reading) -> Result<(), String> {
    let status: Value = serde_json::from_slice(body).unwrap_or_default();
    let fields = (&status["kind"], &status["reason"], &status["code"]);
    let is_status = fields == (&json!("Status"), &json!("Timeout"), &json!(504));
    if (*code, *end) == (504, ReadingEnd::Whole) && is_status {
        return Ok(());
    }
    Err(format!("{code}, {end:?}: {}", String::from_utf8_lossy(body)))
}
