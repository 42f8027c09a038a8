//! One exchange with a cluster: a request before the client adds what it alone decides, and a response whose body is
//! read as it arrives, or whose connection is upgraded.

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use futures::task::AtomicWaker;
use futures::{Stream, StreamExt as _};
use http::header::{self, HeaderName, HeaderValue};
use http::{HeaderMap, Method, Response, StatusCode, Version};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Empty, Full, StreamBody};
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::cluster::ClusterError;
use crate::cluster::pool::Lease;
use crate::cluster::tls::ServerCertificate;

/// Headers that only the client sets: they name the recipient or the credential, belong to one connection, or frame the
/// body.
static CLIENT_HEADERS: [HeaderName; 13] = [
    header::HOST,
    header::AUTHORIZATION,
    header::COOKIE,
    header::PROXY_AUTHORIZATION,
    header::ACCEPT_ENCODING,
    header::CONNECTION,
    header::UPGRADE,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::CONTENT_LENGTH,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

/// A request to a cluster. The client adds recipient, credential and encoding, and removes such headers from it.
pub struct ClusterRequest {
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) headers: HeaderMap,
    pub(super) upgrade: Option<HeaderValue>,
    pub(super) encoding: Option<HeaderValue>,
    pub(super) body: RequestBody,
}

impl fmt::Debug for ClusterRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (method, path) = (&self.method, self.path_without_query());
        f.debug_struct("ClusterRequest").field("method", method).field("path", &path).finish_non_exhaustive()
    }
}

impl ClusterRequest {
    /// Creates a request without a body. `path` begins with a slash and may have a query; it is appended to the path
    /// of the server's URL.
    pub fn new(method: Method, path: impl Into<String>) -> Self {
        let (path, headers, body) = (path.into(), HeaderMap::new(), RequestBody::empty());
        Self { method, path, headers, upgrade: None, encoding: None, body }
    }

    /// Adds a header. Those that only the client sets are ignored.
    #[must_use]
    pub fn header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        if !CLIENT_HEADERS.contains(&name) {
            self.headers.append(name, value);
        }
        self
    }

    /// Asks for an upgrade of the connection to this protocol, which only HTTP/1.1 connections allow.
    #[must_use]
    pub fn upgrade(self, protocol: HeaderValue) -> Self {
        Self { upgrade: Some(protocol), ..self }
    }

    /// Asks for a body in one of these encodings, which is not decoded. Otherwise the body is as it is.
    #[must_use]
    pub fn encoding(self, encodings: HeaderValue) -> Self {
        Self { encoding: Some(encodings), ..self }
    }

    /// Sets the body.
    #[must_use]
    pub fn body(self, body: RequestBody) -> Self {
        Self { body, ..self }
    }

    /// The path, as errors and logs name it. The query may hold secrets: the command line of an exec is in it.
    pub(super) fn path_without_query(&self) -> &str {
        self.path.split_once('?').map_or(&*self.path, |(path, _)| path)
    }
}

/// The body of a request: empty, whole, or a stream of chunks.
#[derive(Debug)]
pub struct RequestBody {
    inner: UnsyncBoxBody<Bytes, io::Error>,
    sending: Arc<BodySending>,
}

/// What the body of a request shares with the lease of its connection.
#[derive(Debug, Default)]
pub(super) struct BodySending {
    /// Whether all of the body was handed to the connection.
    is_sent: AtomicBool,
    is_cancelled: AtomicBool,
    waker: AtomicWaker,
}

impl BodySending {
    pub(super) fn is_sent(&self) -> bool {
        self.is_sent.load(Ordering::Acquire)
    }

    /// Aborts the body where it is. Over HTTP/2, dropping the response does not.
    pub(super) fn cancel(&self) {
        self.is_cancelled.store(true, Ordering::Release);
        self.waker.wake();
    }
}

impl RequestBody {
    /// No body.
    pub fn empty() -> Self {
        Self::new(Empty::new().map_err(|error: Infallible| match error {}))
    }

    /// A body of known length.
    pub fn whole(bytes: impl Into<Bytes>) -> Self {
        Self::new(Full::new(bytes.into()).map_err(|error: Infallible| match error {}))
    }

    /// A body that is sent chunk by chunk. An error in the stream aborts the request.
    pub fn stream(chunks: impl Stream<Item = io::Result<Bytes>> + Send + 'static) -> Self {
        Self::new(StreamBody::new(chunks.map(|chunk| chunk.map(Frame::data))))
    }

    fn new(body: impl Body<Data = Bytes, Error = io::Error> + Send + 'static) -> Self {
        let sending = BodySending { is_sent: body.is_end_stream().into(), ..BodySending::default() };
        Self { inner: body.boxed_unsync(), sending: Arc::new(sending) }
    }

    pub(super) fn sending(&self) -> Arc<BodySending> {
        self.sending.clone()
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        self.sending.waker.register(cx.waker());
        if self.sending.is_cancelled.load(Ordering::Acquire) {
            return Poll::Ready(Some(Err(io::Error::other("the request was cancelled"))));
        }
        let frame = ready!(Pin::new(&mut self.inner).poll_frame(cx));
        if frame.is_none() || self.inner.is_end_stream() {
            self.sending.is_sent.store(true, Ordering::Release);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// The head of a response, with a body that is read as it arrives. Dropping it cancels the request.
pub struct ClusterResponse {
    head: http::response::Parts,
    body: ResponseBody,
    upgrade: Option<(OnUpgrade, Lease)>,
    server: Arc<ServerCertificate>,
}

impl fmt::Debug for ClusterResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the headers: the server may echo the credential in them.
        f.debug_struct("ClusterResponse").field("status", &self.head.status).finish_non_exhaustive()
    }
}

impl ClusterResponse {
    pub(super) fn new(step: Arc<str>, mut response: Response<Incoming>, lease: Lease) -> Self {
        let server = lease.server().clone();
        let (lease, upgrade) = if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            (None, Some((hyper::upgrade::on(&mut response), lease)))
        } else {
            (Some(lease), None)
        };
        let (head, incoming) = response.into_parts();
        let mut body = ResponseBody { step, incoming, lease };
        if body.incoming.is_end_stream() {
            body.complete();
        }
        Self { head, body, upgrade, server }
    }

    /// Status of the response.
    pub fn status(&self) -> StatusCode {
        self.head.status
    }

    /// Headers of the response.
    pub fn headers(&self) -> &HeaderMap {
        &self.head.headers
    }

    /// Version of HTTP that the connection uses.
    pub fn version(&self) -> Version {
        self.head.version
    }

    /// The certificate that the server has shown.
    pub fn server(&self) -> &Arc<ServerCertificate> {
        &self.server
    }

    /// The body. Its size and the time it takes are for the caller to bound.
    pub fn into_body(self) -> ResponseBody {
        self.body
    }

    /// The upgraded connection, after a response with status 101.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Broken`] if the connection ended first, or if the status is another one.
    pub async fn upgrade(self) -> Result<UpgradedConnection, ClusterError> {
        let step = self.body.step.clone();
        let Some((upgrade, lease)) = self.upgrade else { return Err(ClusterError::NotUpgraded(step)) };
        match upgrade.await {
            Ok(upgraded) => Ok(UpgradedConnection { io: TokioIo::new(upgraded), _lease: lease }),
            Err(error) => Err(ClusterError::Broken { step, source: error.into(), before_send: false }),
        }
    }
}

/// The body of a response. Dropping it before its end cancels the request.
#[derive(Debug)]
pub struct ResponseBody {
    step: Arc<str>,
    incoming: Incoming,
    /// The use of the connection, until the end of the body.
    lease: Option<Lease>,
}

impl ResponseBody {
    fn complete(&mut self) {
        if let Some(lease) = self.lease.take() {
            lease.complete();
        }
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = ClusterError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ClusterError>>> {
        Poll::Ready(match ready!(Pin::new(&mut self.incoming).poll_frame(cx)) {
            Some(Ok(frame)) => {
                if self.incoming.is_end_stream() {
                    self.complete();
                }
                Some(Ok(frame))
            }
            Some(Err(error)) => {
                self.lease = None;
                let (step, source) = (self.step.clone(), error.into());
                Some(Err(ClusterError::Broken { step, source, before_send: false }))
            }
            None => {
                self.complete();
                None
            }
        })
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

/// A connection that speaks another protocol after an upgrade. It counts as a connection until it is dropped.
#[derive(Debug)]
pub struct UpgradedConnection {
    io: TokioIo<Upgraded>,
    _lease: Lease,
}

impl AsyncRead for UpgradedConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buffer)
    }
}

impl AsyncWrite for UpgradedConnection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
