//! Answers on their way to the hub: streamed as they arrive, whole from the journal, or both ways after an upgrade.

use std::time::Duration;

use futures::{FutureExt as _, StreamExt as _};
use http::StatusCode;
use http_body_util::BodyExt as _;
use hyper::body::Body as _;
use parking_lot::Mutex;
use prost::bytes::{Bytes, BytesMut};
use tokio::io::AsyncWriteExt as _;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::io::ReaderStream;

use super::RequestService;
use super::checked_request::CheckedRequest;
use super::running_requests::Running;
use super::writes::AwaitedWrite;
use crate::cluster::{ClusterResponse, ResponseBody};
use crate::wire_failure::after_send;
use kubesvc_core::requests::MAX_WRITE_ANSWER_BYTES;
use kubesvc_core::requests::headers::{is_about_host, passed_on};
use kubesvc_core::requests::journal::WriteAnswer;
use kubesvc_core::requests::streams::{Event, MAX_DATA_BYTES};
use kubesvc_core::requests::watch_lines::{WatchLines, has_event_lines};
use kubesvc_core::requests::wire::AgentEnd;
use kubesvc_core::wire::common::Failure;
use kubesvc_core::wire::common::failure::Class;
use kubesvc_core::wire::ops::Head;
use kubesvc_runtime::request_channel::{Exchange, wire_headers};

/// Maximum time between two parts of an answer, unless it is a watch.
const MAX_SILENCE: Duration = Duration::from_secs(60);
/// Maximum time in which neither side of an upgraded connection sends anything.
const MAX_UPGRADE_SILENCE: Duration = Duration::from_secs(4 * 3600);

/// Sends the answer of a write once it is known.
pub(super) async fn answer_write(exchange: &Exchange<AgentEnd>, awaited: AwaitedWrite) {
    let outcome = tokio::select! {
        outcome = awaited.outcome() => outcome,
        () = exchange.ended_early() => return,
    };
    match &*outcome {
        Ok(WriteAnswer { head, body: Some(body) }) => {
            if exchange.send_start(head.clone(), body.clone(), true) {
                exchange.flushed().await;
            }
        }
        Ok(WriteAnswer { head, body: None }) => {
            exchange.send_head(head.clone());
            let why = format!(
                "the answer has more than {MAX_WRITE_ANSWER_BYTES} bytes, was cut, or had no room in the agent's journal"
            );
            exchange.stop(after_send(Class::TooLarge, why));
        }
        Err(failure) => exchange.stop(failure.clone()),
    }
}

impl RequestService {
    /// Sends the answer on as it arrives. When the agent drains, a watch whose events are lines ends at the end of one;
    /// what else still runs is cut with the stream, so that it never looks whole.
    pub(super) async fn stream_answer(
        &self,
        exchange: &Exchange<AgentEnd>,
        request: &CheckedRequest,
        running: &Running,
        response: ClusterResponse,
    ) -> Result<(), Failure> {
        let head = head_of(&response);
        let ends_in_line = {
            let headers = head.headers.iter().map(|one| (one.name.as_str(), one.value.as_slice()));
            request.path.watches_objects(request.method.as_str()) && has_event_lines(head.status, headers)
        };
        if !ends_in_line {
            running.is_not_awaited();
        }
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            exchange.send_head(head);
            return pass_on_upgraded(exchange, response).await;
        }
        let is_long = request.path.is_long(request.method.as_str());
        let mut body = response.into_body();
        let mut lines = WatchLines::default();
        let (start, is_all) = arrived(&mut body)?;
        let start = lines.pass_on(start, false);
        exchange.send_start(head, start, is_all);
        if is_all {
            exchange.flushed().await;
            return Ok(());
        }
        loop {
            let frame = if is_long {
                tokio::select! {
                    biased;
                    () = self.draining.cancelled(), if ends_in_line && lines.is_at_line_end() => None,
                    frame = body.frame() => frame,
                }
            } else {
                let silent =
                    |_| after_send(Class::Timeout, "the cluster sent nothing of its answer for 60 s");
                timeout(MAX_SILENCE, body.frame()).await.map_err(silent)?
            };
            match frame {
                Some(Ok(frame)) => {
                    let Ok(bytes) = frame.into_data() else { continue };
                    let is_ending = ends_in_line && self.draining.is_cancelled();
                    if !exchange.send(lines.pass_on(bytes, is_ending)).await {
                        return Ok(());
                    }
                }
                Some(Err(error)) => return Err(error.into()),
                None => {
                    exchange.end();
                    exchange.flushed().await;
                    return Ok(());
                }
            }
        }
    }
}

/// What of a body has arrived with its head, and whether it is all: a short answer leaves at once.
fn arrived(body: &mut ResponseBody) -> Result<(Bytes, bool), Failure> {
    let mut start = BytesMut::new();
    while start.len() < MAX_DATA_BYTES {
        match body.frame().now_or_never() {
            None => break,
            Some(None) => return Ok((start.freeze(), true)),
            Some(Some(frame)) => {
                if let Ok(bytes) = frame?.into_data() {
                    start.extend_from_slice(&bytes);
                }
            }
        }
    }
    Ok((start.freeze(), body.is_end_stream()))
}

/// Passes on what both sides of an upgraded connection send, until both have ended.
async fn pass_on_upgraded(exchange: &Exchange<AgentEnd>, response: ClusterResponse) -> Result<(), Failure> {
    let (reader, mut writer) = tokio::io::split(response.upgrade().await?);
    let last_part = LastPart::now();
    let to_cluster = async {
        loop {
            match exchange.event().await {
                Event::Data(bytes) => {
                    last_part.happened();
                    writer.write_all(&bytes).await?;
                }
                Event::End => {
                    writer.shutdown().await?;
                    return Ok(());
                }
                Event::Head(_) | Event::Stopped(()) | Event::Broken(_) => {
                    return Err(std::io::Error::other("the request was ended"));
                }
            }
        }
    };
    let from_cluster = async {
        let mut parts = ReaderStream::with_capacity(reader, MAX_DATA_BYTES);
        while let Some(part) = parts.next().await {
            last_part.happened();
            if !exchange.send(part?).await {
                return Err(std::io::Error::other("the request was ended"));
            }
        }
        exchange.end();
        exchange.flushed().await;
        Ok(())
    };
    let both = async { tokio::try_join!(to_cluster, from_cluster) };
    let passed_on = tokio::select! {
        passed_on = both => passed_on,
        () = last_part.is_older_than(MAX_UPGRADE_SILENCE) => {
            let why = "neither side of the upgraded connection sent anything for 4 h";
            return Err(after_send(Class::Timeout, why));
        }
    };
    passed_on
        .map(|_| ())
        .map_err(|error| after_send(Class::Unreachable, format!("the upgraded connection broke: {error}")))
}

/// The time at which either side of a connection sent something last.
pub(super) struct LastPart(Mutex<Instant>);

impl LastPart {
    pub(super) fn now() -> Self {
        Self(Mutex::new(Instant::now()))
    }

    pub(super) fn happened(&self) {
        *self.0.lock() = Instant::now();
    }

    /// Waits until nothing has happened for this long.
    pub(super) async fn is_older_than(&self, silence: Duration) {
        loop {
            let until = *self.0.lock() + silence;
            if until <= Instant::now() {
                return;
            }
            sleep_until(until).await;
        }
    }
}

/// The answer of a write as the journal keeps it. Its status counts even if its body breaks.
pub(super) async fn whole_answer(response: ClusterResponse) -> WriteAnswer {
    let head = head_of(&response);
    let limited = http_body_util::Limited::new(response.into_body(), MAX_WRITE_ANSWER_BYTES);
    let body = match timeout(MAX_SILENCE, limited.collect()).await {
        Ok(Ok(body)) => Some(body.to_bytes()),
        Ok(Err(_)) | Err(_) => None,
    };
    WriteAnswer { head, body }
}

fn head_of(response: &ClusterResponse) -> Head {
    let mut headers = passed_on(wire_headers(response.headers())).unwrap_or_default();
    headers.retain(|header| !is_about_host(&header.name));
    Head { status: response.status().as_u16().into(), headers }
}
