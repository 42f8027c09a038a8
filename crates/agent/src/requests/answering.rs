//! Answers on their way to the hub: streamed as they arrive, whole from the journal, or both ways after an upgrade.

use std::time::Duration;

use futures::StreamExt as _;
use http::StatusCode;
use http_body_util::BodyExt as _;
use tokio::io::AsyncWriteExt as _;
use tokio::time::timeout;
use tokio_util::io::ReaderStream;

use super::AccountRequests;
use super::serving::{CheckedRequest, not_sent};
use crate::cluster::ClusterResponse;
use crate::wire_failure::after_send;
use kubesvc_core::requests::MAX_WRITE_ANSWER_BYTES;
use kubesvc_core::requests::headers::passed_on;
use kubesvc_core::requests::journal::WriteAnswer;
use kubesvc_core::requests::streams::{Event, MAX_DATA_BYTES};
use kubesvc_core::requests::wire::AgentEnd;
use kubesvc_core::wire::common::Failure;
use kubesvc_core::wire::common::failure::Class;
use kubesvc_core::wire::ops::Head;
use kubesvc_runtime::request_channel::{Exchange, wire_headers};

/// Maximum time between two parts of an answer, unless it is a watch.
const MAX_SILENCE: Duration = Duration::from_secs(60);
/// Maximum time in which neither side of an upgraded connection sends anything.
const MAX_UPGRADE_TIME: Duration = Duration::from_secs(4 * 3600);

impl AccountRequests {
    /// Sends the answer of a write once it is known.
    pub(super) async fn answer_write(&self, exchange: &Exchange<AgentEnd>, request_id: &str) {
        let outcome = tokio::select! {
            outcome = self.writes.outcome(request_id) => outcome,
            () = exchange.ended_early() => return,
        };
        match outcome.as_ref().map(|outcome| outcome.as_deref()) {
            Some(Some(Ok(WriteAnswer { head, body }))) => {
                exchange.send_head(head.clone());
                let Some(body) = body else {
                    let why = format!("the answer has more than {MAX_WRITE_ANSWER_BYTES} bytes, or was cut");
                    return exchange.stop(after_send(Class::TooLarge, why));
                };
                if exchange.send(body.clone()).await {
                    exchange.end();
                    exchange.flushed().await;
                }
            }
            Some(Some(Err(failure))) => exchange.stop(failure.clone()),
            Some(None) => {
                exchange.stop(after_send(Class::OutcomeUnknown, "the answer was given and is forgotten"));
            }
            None => exchange.stop(not_sent("the agent never had the request")),
        }
    }

    /// Sends the answer on as it arrives.
    pub(super) async fn stream_answer(
        &self,
        exchange: &Exchange<AgentEnd>,
        request: &CheckedRequest,
        response: ClusterResponse,
    ) -> Result<(), Failure> {
        exchange.send_head(head_of(&response));
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            return pass_on_upgraded(exchange, response).await;
        }
        let mut body = response.into_body();
        loop {
            let frame = if request.path.is_watch {
                body.frame().await
            } else {
                let silent =
                    |_| after_send(Class::Timeout, "the cluster sent nothing of its answer for 60 s");
                timeout(MAX_SILENCE, body.frame()).await.map_err(silent)?
            };
            match frame {
                Some(Ok(frame)) => {
                    let Ok(mut bytes) = frame.into_data() else { continue };
                    while !bytes.is_empty() {
                        let part = bytes.split_to(bytes.len().min(MAX_DATA_BYTES));
                        if !exchange.send(part).await {
                            return Ok(());
                        }
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

/// Passes on what both sides of an upgraded connection send, until both have ended.
async fn pass_on_upgraded(exchange: &Exchange<AgentEnd>, response: ClusterResponse) -> Result<(), Failure> {
    let (reader, mut writer) = tokio::io::split(response.upgrade().await?);
    let to_cluster = async {
        loop {
            match exchange.event().await {
                Event::Data(bytes) => writer.write_all(&bytes).await?,
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
            if !exchange.send(part?).await {
                return Err(std::io::Error::other("the request was ended"));
            }
        }
        exchange.end();
        exchange.flushed().await;
        Ok(())
    };
    match timeout(MAX_UPGRADE_TIME, async { tokio::try_join!(to_cluster, from_cluster) }).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => {
            let why = format!("the upgraded connection broke: {error}");
            Err(after_send(Class::Unreachable, why))
        }
        Err(_) => Err(after_send(Class::Timeout, "the upgraded connection was open for 4 h")),
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
    let headers = passed_on(wire_headers(response.headers())).unwrap_or_default();
    Head { status: response.status().as_u16().into(), headers }
}
