//! One connection below gRPC: detects its protocol before tonic gets it.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::{CancellationToken, DropGuard, WaitForCancellationFutureOwned};
use tonic::transport::server::Connected;

use crate::hub::admission::streams::Streams;
use crate::listen::addresses::AddressSlot;

/// The HTTP/2 preface.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Maximum size of an HTTP/1 request that is read before the answer, in bytes.
const HTTP1_PEEK_BYTES: usize = 16;
/// Maximum size read and discarded after an answer, in bytes, so that closing the connection does not discard the
/// answer.
const MAX_DISCARDED_BYTES: u64 = 64 * 1024;

/// A byte stream below HTTP/2: TCP, or TLS over it.
pub(in crate::hub) trait Transport: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Transport for T {}

/// Protocol of a connection, by its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::hub) enum DetectedProtocol {
    /// The HTTP/2 preface.
    Http2,
    /// An HTTP/1 request line.
    Http1,
    /// A TLS ClientHello.
    Tls,
    /// Another protocol, or end of stream.
    Other,
}

/// Detects the protocol; `None` if more bytes are needed.
pub(in crate::hub) fn judge(bytes: &[u8]) -> Option<DetectedProtocol> {
    let begins = bytes.len().min(PREFACE.len());
    if bytes[..begins] == PREFACE[..begins] {
        return (begins == PREFACE.len()).then_some(DetectedProtocol::Http2);
    }
    if bytes[0] == 0x16 {
        return match bytes.get(1) {
            None => None,
            Some(0x03) => Some(DetectedProtocol::Tls),
            Some(_) => Some(DetectedProtocol::Other),
        };
    }
    let method = bytes.iter().take_while(|byte| byte.is_ascii_uppercase()).count();
    match bytes.get(method) {
        Some(b' ') if (3..=10).contains(&method) => Some(DetectedProtocol::Http1),
        None if method < HTTP1_PEEK_BYTES => None,
        _ => Some(DetectedProtocol::Other),
    }
}

/// Reads until the protocol is known. The bytes read are kept in `taken`.
pub(in crate::hub) async fn listen(
    stream: &mut (dyn Transport + '_),
    taken: &mut Vec<u8>,
) -> io::Result<DetectedProtocol> {
    let mut buffer = [0; PREFACE.len()];
    loop {
        let room = PREFACE.len() - taken.len();
        let count = stream.read(&mut buffer[..room]).await?;
        taken.extend_from_slice(&buffer[..count]);
        match judge_taken(taken, count) {
            Some(spoken) => return Ok(spoken),
            None if taken.len() == PREFACE.len() => return Ok(DetectedProtocol::Other),
            None => {}
        }
    }
}

fn judge_taken(taken: &[u8], count: usize) -> Option<DetectedProtocol> {
    if count == 0 { Some(DetectedProtocol::Other) } else { judge(taken) }
}

/// Answers an HTTP/1 request with 505 and a message, and gives the client time to read it.
pub(in crate::hub) async fn answer_http1(
    stream: &mut (dyn Transport + '_),
    rest_port: Option<u16>,
) -> io::Result<()> {
    let place = rest_port.map(|port| format!("; REST is on port {port}")).unwrap_or_default();
    let sentence = format!("this port speaks gRPC over HTTP/2{place}\n");
    let answer = format!(
        "HTTP/1.1 505 HTTP Version Not Supported\r\ncontent-type: text/plain; charset=utf-8\r\n\
         content-length: {}\r\nconnection: close\r\n\r\n{sentence}",
        sentence.len()
    );
    stream.write_all(answer.as_bytes()).await?;
    stream.shutdown().await?;
    tokio::io::copy(&mut stream.take(MAX_DISCARDED_BYTES), &mut tokio::io::sink()).await?;
    Ok(())
}

/// An HTTP/2 connection for tonic. Frees its permits when dropped. Once the hub closes, it reads as ended and fails
/// to write.
pub(in crate::hub) struct Connection {
    stream: Box<dyn Transport>,
    /// Bytes read during detection.
    taken: Vec<u8>,
    given: usize,
    peer: SocketAddr,
    closed: Pin<Box<WaitForCancellationFutureOwned>>,
    streams: Streams,
    _places: ConnectionPermits,
    /// Its watcher ends with it.
    _gone: DropGuard,
}

/// Permits of a connection, freed when dropped.
pub(in crate::hub) struct ConnectionPermits {
    pub(in crate::hub) _connection: OwnedSemaphorePermit,
    pub(in crate::hub) _address: AddressSlot,
}

impl Connection {
    pub(in crate::hub) fn new(
        stream: Box<dyn Transport>,
        taken: Vec<u8>,
        peer: SocketAddr,
        streams: Streams,
        close: CancellationToken,
        places: ConnectionPermits,
    ) -> Self {
        Self {
            stream,
            taken,
            given: 0,
            peer,
            closed: Box::pin(close.clone().cancelled_owned()),
            streams,
            _places: places,
            _gone: close.drop_guard(),
        }
    }
}

impl Connection {
    /// A write that the agent does not read must not keep the hub from stopping.
    fn fail_if_closed(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        match self.closed.as_mut().poll(cx) {
            Poll::Ready(()) => Err(io::ErrorKind::ConnectionAborted.into()),
            Poll::Pending => Ok(()),
        }
    }
}

/// The client of a connection, as an extension of its requests.
#[derive(Clone, Debug)]
pub(in crate::hub) struct Peer {
    pub(in crate::hub) address: SocketAddr,
    pub(in crate::hub) streams: Streams,
}

impl Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        Peer { address: self.peer, streams: self.streams.clone() }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.closed.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Ok(()));
        }
        if self.given < self.taken.len() {
            let count = buffer.remaining().min(self.taken.len() - self.given);
            buffer.put_slice(&self.taken[self.given..self.given + count]);
            self.given += count;
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut *self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.fail_if_closed(cx)?;
        Pin::new(&mut *self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.fail_if_closed(cx)?;
        Pin::new(&mut *self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.fail_if_closed(cx)?;
        Pin::new(&mut *self.stream).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_bytes_tell_what_is_spoken() {
        for (bytes, expected) in [
            (PREFACE, Some(DetectedProtocol::Http2)),
            (&PREFACE[..5], None),
            (b"GET / HTTP/1.1\r\n", Some(DetectedProtocol::Http1)),
            (b"P", None),
            (b"POST /", Some(DetectedProtocol::Http1)),
            (b"PRI * HTTP/1.1", Some(DetectedProtocol::Http1)),
            (b"\x16\x03\x01", Some(DetectedProtocol::Tls)),
            (b"\x16", None),
            (b"\x16\x00", Some(DetectedProtocol::Other)),
            (b"\x00", Some(DetectedProtocol::Other)),
            (b"hello", Some(DetectedProtocol::Other)),
            (b"AAAAAAAAAAAAAAAAAAAAAAAA", Some(DetectedProtocol::Other)),
        ] {
            assert_eq!(judge(bytes), expected, "{bytes:?}");
        }
    }
}
