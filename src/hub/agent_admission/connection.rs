//! The transport of an agent's HTTP/2 connection, as tonic gets it.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::task::{Context, Poll};

use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;
use tokio_util::sync::{CancellationToken, DropGuard, WaitForCancellationFutureOwned};
use tonic::transport::server::Connected;

use super::live_clients::{CertificateChain, LiveClient};
use kubesvc_runtime::listen::connection_limits::AddressSlot;
use kubesvc_runtime::listen::connection_phase::ConnectionPhase;

/// The bytes of a connection: plain, or within TLS.
pub(crate) type AgentTransport = Either<TcpStream, Box<TlsStream<TcpStream>>>;

/// An HTTP/2 connection for tonic. Frees its permits when dropped. Once the hub closes, it reads as ended and fails
/// to write.
pub(crate) struct AgentConnection {
    stream: AgentTransport,
    /// What its client showed.
    client: LiveClient,
    /// Bytes read during detection.
    peeked: Vec<u8>,
    given: usize,
    peer: SocketAddr,
    closed: Pin<Box<WaitForCancellationFutureOwned>>,
    phase: Arc<ConnectionPhase>,
    _permits: (OwnedSemaphorePermit, AddressSlot),
    /// Its watcher ends with it.
    _gone: DropGuard,
}

impl AgentConnection {
    pub(super) fn new(
        stream: AgentTransport,
        peeked: Vec<u8>,
        client: LiveClient,
        peer: SocketAddr,
        phase: Arc<ConnectionPhase>,
        close: CancellationToken,
        permits: (OwnedSemaphorePermit, AddressSlot),
    ) -> Self {
        Self {
            stream,
            client,
            peeked,
            given: 0,
            peer,
            closed: Box::pin(close.clone().cancelled_owned()),
            phase,
            _permits: permits,
            _gone: close.drop_guard(),
        }
    }

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
pub(crate) struct Peer {
    pub(crate) address: SocketAddr,
    /// Counts its streams.
    pub(crate) phase: Arc<ConnectionPhase>,
    /// The certificate that it showed, verified, and those that lead to its authority.
    pub(crate) certificates: CertificateChain,
    /// Whether its certificate is not accepted any more, which ended the connection.
    pub(crate) revoked: Arc<AtomicBool>,
}

impl Peer {
    /// SHA-256 of its certificate: upper-case pairs joined by colons.
    pub(crate) fn fingerprint(&self) -> Option<String> {
        let digest = Sha256::digest(self.certificates.first()?);
        Some(digest.iter().map(|byte| format!("{byte:02X}")).collect::<Vec<_>>().join(":"))
    }
}

impl Connected for AgentConnection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        Peer {
            address: self.peer,
            phase: Arc::clone(&self.phase),
            certificates: self.client.chain(),
            revoked: self.client.revoked(),
        }
    }
}

impl AsyncRead for AgentConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.closed.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Ok(()));
        }
        if self.given < self.peeked.len() {
            let count = buffer.remaining().min(self.peeked.len() - self.given);
            buffer.put_slice(&self.peeked[self.given..self.given + count]);
            self.given += count;
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for AgentConnection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.fail_if_closed(cx)?;
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.fail_if_closed(cx)?;
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.fail_if_closed(cx)?;
        Pin::new(&mut self.stream).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
