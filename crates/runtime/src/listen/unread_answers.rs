//! Answers that their callers do not read: a connection whose peer takes no bytes, and an HTTP/2 stream without a window.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Body, Frame, SizeHint};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio::time::{Instant, Sleep, sleep, sleep_until};

use super::connection_phase::ConnectionPhase;
use super::connection_slots::ConnectionSlot;
use crate::shutdown::spawn_named;

/// Bytes after which the task of an encrypted connection lets others run, above all those of its own requests. Without this,
/// one turn of a connection decodes dozens of heads before the first of them is counted.
const MAX_TURN_BYTES: usize = 128 * 1024;
/// Maximum time for which a caller may read nothing of its answer.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

tokio::task_local! {
    /// The answer of the HTTP/2 stream whose task runs.
    static STREAM: Arc<AnswerProgress>;
}

/// Since when a caller has read nothing of an answer.
#[derive(Debug, Default)]
struct AnswerProgress {
    /// When the last frame was given, until the next one is asked for.
    unread_since: Mutex<Option<Instant>>,
    changed: Notify,
}

impl AnswerProgress {
    fn set(&self, unread_since: Option<Instant>) {
        *self.unread_since.lock() = unread_since;
        if unread_since.is_some() {
            self.changed.notify_one();
        }
    }

    /// Completes once the caller has read nothing for [`WRITE_TIMEOUT`].
    async fn unread(&self) {
        loop {
            let since = *self.unread_since.lock();
            match since {
                Some(at) if at.elapsed() >= WRITE_TIMEOUT => return,
                Some(at) => sleep_until(at + WRITE_TIMEOUT).await,
                None => self.changed.notified().await,
            }
        }
    }
}

/// Runs the streams of HTTP/2 connections, and resets one whose answer, a [`ReadBody`], is not read for 30 s. The other
/// streams of its connection stay.
#[derive(Clone, Copy, Debug)]
pub struct StreamExecutor;

impl<F> hyper::rt::Executor<F> for StreamExecutor
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, stream: F) {
        let progress = Arc::<AnswerProgress>::default();
        let running = spawn_named("HTTP/2 stream", async move {
            tokio::select! {
                _ = STREAM.scope(Arc::clone(&progress), stream) => {}
                () = progress.unread() => {}
            }
        });
        drop(running.detach());
    }
}

/// The body of an answer, whose stream ends if it is not read. `K` is kept until it is dropped.
pub struct ReadBody<B, K> {
    body: B,
    /// `None`: the caller does not use HTTP/2.
    progress: Option<Arc<AnswerProgress>>,
    _kept: K,
}

impl<B, K> ReadBody<B, K> {
    /// Creates the body in the task of the stream that it answers.
    pub fn new(body: B, kept: K) -> Self {
        let progress = STREAM.try_with(Arc::clone).ok();
        if let Some(progress) = &progress {
            progress.set(Some(Instant::now()));
        }
        Self { body, progress, _kept: kept }
    }
}

impl<B, K> ReadBody<B, K> {
    /// Lifts the limit on the time for which the caller may read nothing. For callers that are known, and whose own callers
    /// may stop reading.
    #[must_use]
    pub fn waiting_for_reader(self) -> Self {
        if let Some(progress) = &self.progress {
            progress.set(None);
        }
        Self { progress: None, ..self }
    }
}

impl<B: Body + Unpin, K: Unpin> Body for ReadBody<B, K> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        if let Some(progress) = &self.progress {
            // While the source of the answer has nothing, its caller has nothing to read.
            progress.set(matches!(frame, Poll::Ready(Some(_))).then(Instant::now));
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A stream whose writes fail once the peer has accepted nothing for [`WRITE_TIMEOUT`], unless
/// [`ConnectionPhase::wait_for_reader`] lifted the limit. Otherwise, a caller that sends requests and never reads would hold
/// its connection slot forever.
#[derive(Debug)]
pub struct MonitoredStream<S> {
    stream: S,
    phase: Arc<ConnectionPhase>,
    /// Whether reads and writes are reported to the phase: in HTTP/1, where each byte is of a request or an answer.
    reports: bool,
    /// Bytes read since other tasks ran; counted of encrypted streams.
    turn_bytes: usize,
    /// The deadline, while a write is pending.
    write_deadline: Option<Pin<Box<Sleep>>>,
    /// Held as long as the connection is open, also after an upgrade.
    _slot: Option<Arc<ConnectionSlot>>,
}

impl<S> MonitoredStream<S> {
    /// A stream of encrypted bytes. The slot is held as long as the stream, also after an upgrade.
    pub fn encrypted(stream: S, phase: Arc<ConnectionPhase>, slot: Arc<ConnectionSlot>) -> Self {
        Self { stream, phase, reports: false, turn_bytes: 0, write_deadline: None, _slot: Some(slot) }
    }

    /// A stream of HTTP/1 above TLS, if there is TLS. Its bytes are reported to the phase.
    pub(super) fn plain(stream: S, phase: Arc<ConnectionPhase>, slot: Option<Arc<ConnectionSlot>>) -> Self {
        Self { stream, phase, reports: true, turn_bytes: 0, write_deadline: None, _slot: slot }
    }

    /// Passes the result of a write on, or fails it if it has been pending for too long.
    fn bounded<T>(&mut self, written: Poll<io::Result<T>>, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        if written.is_ready() || self.phase.waits_for_reader() {
            self.write_deadline = None;
            return written;
        }
        let until = Instant::now() + WRITE_TIMEOUT;
        let deadline = self.write_deadline.get_or_insert_with(|| {
            let mut deadline = Box::pin(sleep(Duration::ZERO));
            deadline.as_mut().reset(until);
            deadline
        });
        match deadline.as_mut().poll(context) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(()) => {
                Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the caller reads nothing")))
            }
        }
    }

    fn written(
        &mut self,
        written: Poll<io::Result<usize>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        let written = self.bounded(written, context);
        if self.reports && matches!(written, Poll::Ready(Ok(1..))) {
            self.phase.written();
        }
        written
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for MonitoredStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.turn_bytes >= MAX_TURN_BYTES {
            self.turn_bytes = 0;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        let bytes = buffer.filled().len() - before;
        match self.reports {
            true if bytes > 0 => self.phase.read(),
            true => {}
            false if read.is_pending() => self.turn_bytes = 0,
            false => self.turn_bytes += bytes,
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for MonitoredStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.written(written, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.written(written, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.bounded(flushed, context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.stream).poll_shutdown(context);
        self.bounded(shut, context)
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use axum::body::Body as AnyBody;
    use futures::stream;
    use hyper::body::Bytes;
    use hyper::rt::Executor as _;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};
    use tokio::sync::oneshot;

    use super::*;
    use crate::listen::connection_limits::ClientAddress;
    use crate::listen::connection_phase::ConnectionDeadlines;

    /// Longer than any test.
    const NEVER: Duration = Duration::from_secs(3600);

    /// Runs a stream, and returns after how many seconds it ended.
    async fn ended_after(running: impl Future<Output = ()> + Send + 'static) -> u64 {
        let (held, ended) = oneshot::channel::<()>();
        let began = Instant::now();
        StreamExecutor.execute(async move {
            let _held = held;
            running.await;
        });
        assert!(ended.await.is_err());
        began.elapsed().as_secs()
    }

    fn frames() -> AnyBody {
        AnyBody::from_stream(stream::iter([Ok::<_, io::Error>(Bytes::from_static(b"x"))]))
    }

    async fn next<B: Body + Unpin>(body: &mut B) -> bool {
        std::future::poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await.is_some()
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_whose_answer_is_not_read_ends() {
        let no_window = async {
            let _answer = ReadBody::new(frames(), ());
            pending::<()>().await;
        };
        assert_eq!(ended_after(no_window).await, 30, "nothing of the answer was asked for");
        let stalled = async {
            let mut answer = ReadBody::new(frames(), ());
            sleep(Duration::from_secs(20)).await;
            assert!(next(&mut answer).await);
            pending::<()>().await;
        };
        assert_eq!(ended_after(stalled).await, 50, "its first frame was not read");
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_whose_answer_has_nothing_to_read_stays() {
        let hour = Duration::from_secs(3600);
        let silent_watch = async move {
            let waiting = stream::pending::<Result<Bytes, io::Error>>();
            let mut answer = ReadBody::new(AnyBody::from_stream(waiting), ());
            let _ = tokio::time::timeout(hour, next(&mut answer)).await;
        };
        assert_eq!(ended_after(silent_watch).await, 3600);
        assert_eq!(ended_after(sleep(hour)).await, 3600, "it has no answer yet");
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_reader_is_served_and_one_that_stops_is_cut_off() {
        let deadlines = ConnectionDeadlines { head: NEVER, idle: NEVER };
        let caller = ClientAddress::of([192, 0, 2, 1].into());
        let phase = Arc::new(ConnectionPhase::new(Arc::default(), caller, deadlines));
        let (near, mut far) = duplex(16);
        let mut near = MonitoredStream::plain(near, phase, None);
        let reading = tokio::spawn(async move {
            let mut one = [0; 1];
            for _ in 0..8 {
                sleep(Duration::from_secs(20)).await;
                far.read_exact(&mut one).await.expect("something was written");
            }
            far
        });
        near.write_all(&[0; 24]).await.expect("it is slow, and takes all");
        let _far = reading.await.expect("no panic");
        let began = Instant::now();
        let problem = near.write_all(&[0; 16]).await.expect_err("nobody reads");
        assert_eq!(problem.kind(), io::ErrorKind::TimedOut);
        let took = began.elapsed();
        assert!(took >= WRITE_TIMEOUT && took < WRITE_TIMEOUT * 2, "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_may_wait_for_a_caller_that_is_known_and_reads_later() {
        let deadlines = ConnectionDeadlines { head: NEVER, idle: NEVER };
        let phase = Arc::new(ConnectionPhase::new(
            Arc::default(),
            ClientAddress::of([192, 0, 2, 1].into()),
            deadlines,
        ));
        phase.wait_for_reader();
        let (near, mut far) = duplex(16);
        let mut near = MonitoredStream::plain(near, phase, None);
        let reading = tokio::spawn(async move {
            sleep(NEVER).await;
            far.read_exact(&mut [0; 24]).await.map(|_| far)
        });
        near.write_all(&[0; 24]).await.expect("it is waited for");
        reading.await.expect("no panic").expect("all of it");
    }

    #[tokio::test]
    async fn a_connection_that_never_stops_sending_lets_other_tasks_run() {
        let deadlines = ConnectionDeadlines { head: NEVER, idle: NEVER };
        let caller = ClientAddress::of([127, 0, 0, 1].into());
        let phase = Arc::new(ConnectionPhase::new(Arc::default(), caller, deadlines));
        let mut stream =
            MonitoredStream { reports: false, ..MonitoredStream::plain(tokio::io::repeat(0), phase, None) };
        let others = tokio::spawn(async {});
        let mut buffer = vec![0; MAX_TURN_BYTES];
        stream.read_exact(&mut buffer).await.expect("it has bytes");
        assert!(!others.is_finished(), "a turn is not over");
        stream.read_exact(&mut buffer[..1]).await.expect("it has bytes");
        assert!(others.is_finished());
    }
}
