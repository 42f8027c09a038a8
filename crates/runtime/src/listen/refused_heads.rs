//! Answers to heads that are too large. The HTTP server itself answers 431 with an empty body, before any service sees the
//! request; here this answer gets the body that the port's other errors have.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Maximum size of a request's head on the ports for callers, in bytes: 64 KiB of headers for a cluster, 32 KiB of path, and
/// as much again for what stays here, such as a list of accounts.
pub const MAX_HEAD_BYTES: usize = 160 * 1024;

/// Makes the body of the answer to a head that is too large, in JSON.
pub type RefusedHead = fn() -> String;

/// Tells a connection's stream when a request is served. What is written then, or before so many bytes were read that no
/// head may have, is never the server's own answer.
#[derive(Debug, Default)]
pub struct HeadWatch {
    is_serving: AtomicBool,
    /// Bytes read since a request began or was answered.
    read: AtomicUsize,
}

impl HeadWatch {
    /// A request begins. Its answer is given when the guard is dropped.
    pub fn request(self: &Arc<Self>) -> ServedHead {
        self.is_serving.store(true, Ordering::Relaxed);
        self.read.store(0, Ordering::Relaxed);
        ServedHead(Arc::clone(self))
    }

    fn has_read(&self, bytes: usize) -> bool {
        !self.is_serving.load(Ordering::Relaxed) && self.read.load(Ordering::Relaxed) >= bytes
    }
}

/// A request that is served.
#[derive(Debug)]
pub struct ServedHead(Arc<HeadWatch>);

impl Drop for ServedHead {
    fn drop(&mut self) {
        self.0.read.store(0, Ordering::Relaxed);
        self.0.is_serving.store(false, Ordering::Relaxed);
    }
}

/// A connection of HTTP/1.1 whose answers 431 without a body get one.
pub struct RefusedHeads<S> {
    stream: S,
    watch: Arc<HeadWatch>,
    /// Maximum size of a head, in bytes.
    head_bytes: usize,
    refused: RefusedHead,
    /// What is written in place of the server's own answer, and how much of it has been.
    answer: Option<(Vec<u8>, usize)>,
}

impl<S> RefusedHeads<S> {
    /// Watches the answers on this stream, whose server takes heads of at most so many bytes.
    pub fn new(stream: S, head_bytes: usize, refused: RefusedHead) -> Self {
        Self { stream, watch: Arc::default(), head_bytes, refused, answer: None }
    }

    /// What is to be told of its requests.
    pub fn watch(&self) -> Arc<HeadWatch> {
        Arc::clone(&self.watch)
    }
}

impl<S: AsyncWrite + Unpin> RefusedHeads<S> {
    /// Writes the answer in place of `own`, the server's; `None`: that is another one.
    fn poll_answer(&mut self, context: &mut Context<'_>, own: &[u8]) -> Option<Poll<io::Result<usize>>> {
        if self.answer.is_none() && self.watch.has_read(self.head_bytes) && is_refusal(own) {
            let body = (self.refused)();
            let answer = format!(
                "HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: application/json\r\n\
                 connection: close\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            );
            self.answer = Some((answer.into_bytes(), 0));
        }
        let (answer, written) = self.answer.as_mut()?;
        let stream = &mut self.stream;
        let mut write = || {
            while *written < answer.len() {
                match ready!(Pin::new(&mut *stream).poll_write(context, &answer[*written..]))? {
                    0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                    bytes => *written += bytes,
                }
            }
            Poll::Ready(Ok(own.len()))
        };
        let polled = write();
        if polled.is_ready() {
            self.answer = None;
        }
        Some(polled)
    }
}

/// Whether these bytes are the server's own answer, which has no other headers.
fn is_refusal(bytes: &[u8]) -> bool {
    let Some(rest) = bytes.strip_prefix(b"HTTP/1.1 431 ") else { return false };
    let text = String::from_utf8_lossy(rest);
    let mut lines = text.split("\r\n").skip(1).filter(|line| !line.is_empty());
    lines.all(|line| {
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        match name.to_ascii_lowercase().as_str() {
            "content-length" => value.trim() == "0",
            "connection" | "date" => true,
            _ => false,
        }
    })
}

impl<S: AsyncRead + Unpin> AsyncRead for RefusedHeads<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.watch.read.fetch_add(buffer.filled().len() - before, Ordering::Relaxed);
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for RefusedHeads<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.poll_answer(context, bytes) {
            Some(written) => written,
            None => Pin::new(&mut self.stream).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let first = parts.iter().find(|part| !part.is_empty()).map(|part| &**part).unwrap_or_default();
        match self.poll_answer(context, first) {
            Some(written) => written,
            None => Pin::new(&mut self.stream).poll_write_vectored(context, parts),
        }
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[tokio::test]
    async fn only_the_servers_own_answer_gets_the_body() {
        let own = "HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\
                   date: x\r\n\r\n";
        let other =
            "HTTP/1.1 431 Request Header Fields Too Large\r\naudit-id: x\r\ncontent-length: 0\r\n\r\n";
        let ok = "HTTP/1.1 200 OK\r\n\r\n";
        for (sent, head, is_serving, is_replaced) in [
            (own, 8, false, true),
            (own, 7, false, false),
            (own, 8, true, false),
            (other, 8, false, false),
            (ok, 8, false, false),
        ] {
            // Fewer bytes at once than the answer has.
            let (near, mut far) = tokio::io::duplex(16);
            let mut near = RefusedHeads::new(near, 8, || r#"{"code":431}"#.to_owned());
            far.write_all(&vec![b'x'; head]).await.expect("it is written");
            near.read_exact(&mut vec![0; head]).await.expect("it is read");
            near.watch().is_serving.store(is_serving, Ordering::Relaxed);
            let writing = async {
                near.write_all(sent.as_bytes()).await.expect("it is written");
                drop(near);
            };
            let mut read = String::new();
            let (_, got) = tokio::join!(writing, far.read_to_string(&mut read));
            got.expect("text");
            assert_eq!(read.ends_with("content-length: 12\r\n\r\n{\"code\":431}"), is_replaced, "{read}");
            assert_eq!(read == sent, !is_replaced);
        }
    }
}
