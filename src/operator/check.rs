//! `kubesvc-operator check`: asks an address for its health, for `helm test`. The image has no other program that could.

use std::time::Duration;

use http::Uri;
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tokio::time::Instant;

use kubesvc_runtime::telemetry::errors::chain;

/// Delay between two requests.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Time limit for one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum size of an answer.
const MAX_ANSWER_BYTES: usize = 64 * 1024;

/// Asks until the answer is 200, and returns its body.
///
/// # Errors
/// The last answer, or why there was none, once `within` has passed.
pub(super) async fn healthy(url: &Uri, within: Duration) -> Result<String, String> {
    let end = Instant::now() + within;
    loop {
        let answer = tokio::time::timeout(REQUEST_TIMEOUT, ask(url)).await;
        let why = match answer.unwrap_or_else(|_| Err("no answer in time".to_owned())) {
            Ok((200, body)) => return Ok(body),
            Ok((status, body)) => format!("{status} {body}"),
            Err(why) => why,
        };
        if Instant::now() + RETRY_DELAY > end {
            return Err(format!("{url} is not healthy after {} s: {why}", within.as_secs()));
        }
        tokio::time::sleep(RETRY_DELAY).await;
    }
}

async fn ask(url: &Uri) -> Result<(u16, String), String> {
    let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
    let answer = client.get(url.clone()).await.map_err(|error| chain(&error))?;
    let status = answer.status().as_u16();
    let body = Limited::new(answer.into_body(), MAX_ANSWER_BYTES).collect().await;
    let body = body.map_err(|error| error.to_string())?.to_bytes();
    Ok((status, String::from_utf8_lossy(&body).trim().to_owned()))
}
