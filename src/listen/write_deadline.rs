//! A stream that fails if the peer accepts no data for a while. Otherwise, a caller that sends requests and never
//! reads would hold its connection slot forever.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

/// A stream whose writes fail once the peer has accepted nothing for `timeout`.
pub(super) struct WriteDeadline<S> {
    stream: S,
    timeout: Duration,
    /// The deadline, while a write is pending.
    waiting: Option<Pin<Box<Sleep>>>,
}

impl<S> WriteDeadline<S> {
    pub(super) fn new(stream: S, patience: Duration) -> Self {
        Self { stream, timeout: patience, waiting: None }
    }

    /// Passes the result of a write on, or fails it if it has been pending for too long.
    fn bounded<T>(&mut self, written: Poll<io::Result<T>>, context: &mut Context<'_>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.waiting = None;
            return written;
        }
        let until = Instant::now() + self.timeout;
        let waiting = self.waiting.get_or_insert_with(|| {
            let mut waiting = Box::pin(sleep(Duration::ZERO));
            waiting.as_mut().reset(until);
            waiting
        });
        match waiting.as_mut().poll(context) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(()) => {
                Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the caller reads nothing")))
            }
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteDeadline<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteDeadline<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.bounded(written, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.bounded(written, context)
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
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_slow_reader_is_served_and_one_that_stops_is_cut_off() {
        let patience = Duration::from_secs(30);
        let (near, mut far) = duplex(16);
        let mut near = WriteDeadline::new(near, patience);
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
        assert!(began.elapsed() >= patience && began.elapsed() < patience * 2, "{:?}", began.elapsed());
    }
}
