//! The body of an answer on its way to the caller, until either side ends it.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::FutureExt as _;
use futures::Stream;
use futures::future::BoxFuture;
use http::StatusCode;
use hyper::body::{Bytes, Frame};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::BodyStreamError;
use super::GatewayMetrics;
use super::checks::Recheck;
use super::records::{Ending, SharedRecorder};
use crate::access::ShortRequest;
use crate::access::audit::AuditEvent;
use crate::connected_agents::{AskedAgent, ByteStream, RequestError};
use kubesvc_core::requests::watch_lines::WatchLines;
use kubesvc_runtime::shutdown::spawn_named;
use kubesvc_store::OperationOutcome;

/// A watch, a followed log or an upgraded connection, until it is dropped: its checks, its count and its audit lines.
pub(super) struct AuditedStream {
    recorder: SharedRecorder,
    metrics: GatewayMetrics,
    code: StatusCode,
    agent: AskedAgent,
    pub(super) bytes: u64,
    /// Why it ended, if it did not by itself.
    pub(super) reason: Arc<Mutex<String>>,
    /// Cancelled when the caller may go on no longer.
    pub(super) refused: CancellationToken,
    _recheck: AbortOnDropHandle<()>,
}

impl AuditedStream {
    pub(super) fn begin(
        recorder: SharedRecorder,
        metrics: GatewayMetrics,
        recheck: Recheck,
        code: StatusCode,
        agent: AskedAgent,
    ) -> Self {
        recorder.stream_began(code, &agent);
        metrics.streams.inc();
        let (reason, refused) = (Arc::<Mutex<String>>::default(), CancellationToken::new());
        let (said, cancelled) = (Arc::clone(&reason), refused.clone());
        let rechecking = spawn_named("check of a stream", async move {
            let why = recheck.until_refused().await;
            *said.lock() = why;
            cancelled.cancel();
        });
        Self { recorder, metrics, code, agent, bytes: 0, reason, refused, _recheck: rechecking }
    }
}

impl Drop for AuditedStream {
    fn drop(&mut self) {
        self.metrics.streams.dec();
        let (reason, agent) = (self.reason.lock().clone(), Some(&self.agent));
        let (code, outcome) = (self.code, OperationOutcome::Completed);
        let ending = Ending { code, agent, outcome, bytes: self.bytes, reason: &reason };
        self.recorder.ended(AuditEvent::StreamEnd, &ending);
    }
}

/// The body of an answer. An answer that is cut ends with an error, never as if it were whole.
pub(super) struct AnswerBody {
    from_cluster: ByteStream<RequestError>,
    /// Of a stream, what ends with it, and when it must end.
    stream: Option<(AuditedStream, BoxFuture<'static, ()>)>,
    /// Of a watch in JSON: it ends at the end of a line once the operator stops.
    stopping: Option<(CancellationToken, BoxFuture<'static, ()>)>,
    lines: WatchLines,
    has_ended: bool,
    _short: Option<ShortRequest>,
}

impl AnswerBody {
    pub(super) fn short(from_cluster: ByteStream<RequestError>, short: Option<ShortRequest>) -> Self {
        Self {
            from_cluster,
            stream: None,
            stopping: None,
            lines: WatchLines::default(),
            has_ended: false,
            _short: short,
        }
    }

    /// The body of a stream. `stopping` is given for a watch whose objects are lines.
    pub(super) fn stream(
        from_cluster: ByteStream<RequestError>,
        stream: AuditedStream,
        stopping: Option<CancellationToken>,
    ) -> Self {
        let refused = stream.refused.clone().cancelled_owned().boxed();
        let stopping = stopping.map(|token| (token.clone(), token.cancelled_owned().boxed()));
        Self { stream: Some((stream, refused)), stopping, ..Self::short(from_cluster, None) }
    }

    fn cut(&mut self, why: &str) -> Poll<Option<Result<Frame<Bytes>, BodyStreamError>>> {
        self.has_ended = true;
        if let Some((stream, _)) = &self.stream {
            let mut reason = stream.reason.lock();
            if reason.is_empty() {
                why.clone_into(&mut reason);
            }
        }
        Poll::Ready(Some(Err(why.to_owned().into())))
    }

    /// Passes bytes on; of a watch that is to end, up to the end of the last line.
    fn passed_on(&mut self, bytes: Bytes) -> Bytes {
        let is_ending = self.stopping.as_ref().is_some_and(|(token, _)| token.is_cancelled());
        let bytes = self.lines.pass_on(bytes, is_ending);
        if let Some((stream, _)) = &mut self.stream {
            stream.bytes += bytes.len() as u64;
        }
        bytes
    }
}

impl hyper::body::Body for AnswerBody {
    type Data = Bytes;
    type Error = BodyStreamError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyStreamError>>> {
        let this = self.get_mut();
        if this.has_ended {
            return Poll::Ready(None);
        }
        if let Some((_, refused)) = &mut this.stream
            && refused.poll_unpin(context).is_ready()
        {
            return this.cut("the caller may go on no longer");
        }
        if let Some((_, stopping)) = &mut this.stopping
            && this.lines.is_at_line_end()
            && stopping.poll_unpin(context).is_ready()
        {
            this.has_ended = true;
            return Poll::Ready(None);
        }
        match Pin::new(&mut this.from_cluster).poll_next(context) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(None) => {
                this.has_ended = true;
                Poll::Ready(None)
            }
            Poll::Ready(Some(Ok(bytes))) => Poll::Ready(Some(Ok(Frame::data(this.passed_on(bytes))))),
            Poll::Ready(Some(Err(error))) => this.cut(&error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::StreamExt as _;
    use futures::stream;
    use http_body_util::BodyExt as _;

    use super::*;

    fn watch(parts: Vec<Result<&'static str, RequestError>>, stopping: &CancellationToken) -> AnswerBody {
        let parts = stream::iter(parts).map(|part| part.map(Bytes::from)).chain(stream::pending()).boxed();
        let token = stopping.clone();
        let stopping = Some((token.clone(), token.cancelled_owned().boxed()));
        AnswerBody { stopping, ..AnswerBody::short(parts, None) }
    }

    #[tokio::test]
    async fn a_watch_ends_at_the_end_of_a_line_when_the_operator_stops() {
        let stopping = CancellationToken::new();
        let mut body = watch(vec![Ok("{1}\n{2"), Ok("}\n{3")], &stopping);
        let frame = body.frame().await.expect("a frame").expect("data").into_data().expect("data");
        assert_eq!(frame, "{1}\n{2");
        stopping.cancel();
        let rest = body.collect().await.expect("it ends well").to_bytes();
        assert_eq!(rest, "}\n");
    }

    #[tokio::test]
    async fn an_answer_that_is_cut_ends_with_an_error() {
        let body = watch(vec![Ok("{1}\n"), Err(RequestError::cut("lost"))], &CancellationToken::new());
        let error = body.collect().await.expect_err("it is not whole").to_string();
        assert!(error.contains("lost"), "{error}");
    }
}
