//! Answers as they come from an agent, and as callers get them.

use std::sync::Arc;

use futures::{StreamExt as _, stream};
use http::StatusCode;
use prost::bytes::{Bytes, BytesMut};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::counts::CountedRequest;
use super::{AgentStream, outcome};
use crate::connected_agents::{
    AccountResponse, ByteStream, Repetition, RequestError, RequestErrorKind, UpgradedBytes,
};
use kubesvc_core::requests::MAX_WRITE_ANSWER_BYTES;
use kubesvc_core::requests::headers::is_status;
use kubesvc_core::requests::streams::Event;
use kubesvc_core::requests::watch_lines::{WatchLines, has_event_lines};
use kubesvc_core::requests::wire::HubEnd;
use kubesvc_core::wire::common::failure::Class;
use kubesvc_core::wire::ops::Head;
use kubesvc_runtime::request_channel::{Exchange, header_map};
use kubesvc_runtime::shutdown::spawn_named;

/// An answer as it comes from an agent.
pub(super) enum Answer {
    /// Its body follows.
    Streamed(Head, Exchange<HubEnd>),
    /// Of a write. Its status is the cluster's, whatever became of its body.
    Whole(Head, Result<Bytes, RequestError>),
}

/// What the reading of a body has to do with.
#[derive(Default)]
pub(super) struct BodyReading {
    /// What the caller of an upgraded request sends.
    pub(super) upgraded: Option<UpgradedBytes>,
    /// Counted as long as the body is read.
    pub(super) counted: Option<CountedRequest>,
    /// Of a watch of objects: when this is cancelled, it ends at the end of a line, if its events are lines.
    pub(super) ends_with: Option<CancellationToken>,
}

/// The answer as the caller gets it.
pub(super) fn response(
    stream: &AgentStream,
    answer: Answer,
    repetition: Repetition,
    BodyReading { upgraded, counted, ends_with }: BodyReading,
) -> Result<AccountResponse, RequestError> {
    let agent = stream.asked_agent();
    let is_for_upgrade = upgraded.is_some();
    let (head, body): (_, ByteStream<RequestError>) = match answer {
        Answer::Whole(head, body) => (head, stream::once(std::future::ready(body)).boxed()),
        Answer::Streamed(head, exchange) => {
            let exchange = Arc::new(exchange);
            let is_upgraded =
                is_for_upgrade && head.status == u32::from(StatusCode::SWITCHING_PROTOCOLS.as_u16());
            let pump = upgraded.filter(|_| is_upgraded).map(|sent| {
                let exchange = Arc::clone(&exchange);
                spawn_named("upgraded request", pass_on(sent, exchange))
            });
            if pump.is_none() {
                exchange.end();
            }
            let headers = head.headers.iter().map(|one| (one.name.as_str(), one.value.as_slice()));
            let ends_with = ends_with.filter(|_| has_event_lines(head.status, headers));
            let taken = counted.as_ref().map(|counted| counted.taken.clone()).unwrap_or_default();
            let answer = StreamedAnswer {
                exchange,
                taken,
                ends_with,
                lines: WatchLines::default(),
                _pump: pump,
                _counted: counted,
            };
            (head, stream::unfold(Some(answer), next_part).boxed())
        }
    };
    let status = Some(head.status).filter(|status| is_status(*status, is_for_upgrade));
    let status = status
        .and_then(|status| u16::try_from(status).ok())
        .and_then(|status| StatusCode::from_u16(status).ok());
    let (Some(status), Some(headers)) = (status, header_map(head.headers)) else {
        let why = "the agent's answer has a head that no answer has";
        return Err(outcome::given_up(RequestErrorKind::NoAnswer, why, repetition));
    };
    Ok(AccountResponse { status, headers, body, agent })
}

/// A body that is being read. Dropping it cancels the request.
struct StreamedAnswer {
    exchange: Arc<Exchange<HubEnd>>,
    /// Cancelled when the account is taken from its zone.
    taken: CancellationToken,
    /// What ends it at the end of a line; an answer without this is cut with its stream.
    ends_with: Option<CancellationToken>,
    lines: WatchLines,
    _pump: Option<AbortOnDropHandle<()>>,
    _counted: Option<CountedRequest>,
}

impl StreamedAnswer {
    /// Waits until a watch is to end; never, if it is none.
    async fn ending(&self) {
        match &self.ends_with {
            Some(ending) => ending.cancelled().await,
            None => std::future::pending().await,
        }
    }

    fn pass_on(&mut self, bytes: Bytes) -> Bytes {
        let is_ending = self.ends_with.as_ref().is_some_and(CancellationToken::is_cancelled);
        self.lines.pass_on(bytes, is_ending)
    }
}

/// The next part of a body. An answer that ends early ends with an error.
async fn next_part(
    answer: Option<StreamedAnswer>,
) -> Option<(Result<Bytes, RequestError>, Option<StreamedAnswer>)> {
    let mut answer = answer?;
    let event = tokio::select! {
        biased;
        () = answer.taken.cancelled() => {
            return Some((Err(RequestError::cut("the account was taken from the agent")), None));
        }
        () = answer.ending(), if answer.lines.is_at_line_end() => return None,
        event = answer.exchange.event() => event,
    };
    match event {
        Event::Data(bytes) => {
            let bytes = answer.pass_on(bytes);
            Some((Ok(bytes), Some(answer)))
        }
        Event::End => None,
        Event::Stopped(failure) => Some((Err(RequestError::cut(&failure.message)), None)),
        Event::Broken(why) => Some((Err(RequestError::cut(why)), None)),
        Event::Head(_) => Some((Err(RequestError::cut("it has two heads")), None)),
    }
}

/// Sends what the caller of an upgraded request sends.
async fn pass_on(mut sent: ByteStream<std::io::Error>, exchange: Arc<Exchange<HubEnd>>) {
    while let Some(part) = sent.next().await {
        match part {
            Ok(part) => {
                if !exchange.send(part).await {
                    return;
                }
            }
            Err(_) => return exchange.stop(()),
        }
    }
    exchange.end();
}

/// Waits for the head of an answer; `broken` is the error for a stream that is lost.
pub(super) async fn head(
    exchange: &Exchange<HubEnd>,
    repetition: Repetition,
    broken: impl Fn(&'static str) -> RequestError,
) -> Result<Head, RequestError> {
    match exchange.event().await {
        Event::Head(head) => Ok(head),
        Event::Stopped(failure) => Err(outcome::stopped(failure, repetition)),
        Event::Broken(why) => Err(broken(why)),
        Event::Data(_) | Event::End => Err(broken("its head did not come first")),
    }
}

/// Reads the answer of a write to its end.
pub(super) async fn whole(
    exchange: &Exchange<HubEnd>,
    head: Head,
    broken: impl Fn(&'static str) -> RequestError,
) -> Result<Answer, RequestError> {
    let mut body = BytesMut::new();
    let missing = |why: &str| Err(RequestError::cut(why));
    let body = loop {
        match exchange.event().await {
            Event::Data(bytes) if body.len() + bytes.len() <= MAX_WRITE_ANSWER_BYTES => {
                body.extend_from_slice(&bytes);
            }
            Event::Data(_) => break missing(&format!("it has more than {MAX_WRITE_ANSWER_BYTES} bytes")),
            Event::End => break Ok(body.freeze()),
            // The agent has not kept it.
            Event::Stopped(failure) if failure.class() == Class::TooLarge => break missing(&failure.message),
            Event::Stopped(failure) => return Err(outcome::stopped(failure, Repetition::Recalled)),
            Event::Broken(why) => return Err(broken(why)),
            Event::Head(_) => return Err(broken("it has two heads")),
        }
    };
    Ok(Answer::Whole(head, body))
}
