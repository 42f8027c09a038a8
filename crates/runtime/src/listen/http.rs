//! An HTTP/1 server with bounds on every wait and size: connections, heads, pauses, unread answers and shutdown.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use super::port::{HttpMetrics, Port, PortConnection, PortLimits};
use super::refused_heads::{RefusedHead, RefusedHeads};
use super::unread_answers::{MonitoredStream, ReadBody, StreamExecutor};

/// Limits of an HTTP server.
#[derive(Clone, Debug)]
pub struct HttpLimits {
    /// Limits of its port; no connection is reserved.
    pub port: PortLimits,
    /// Maximum size of a request's head, in bytes, at least 8 KiB. A larger head is answered with 431.
    pub head_bytes: usize,
    /// Makes the body of that answer.
    pub refused_head: RefusedHead,
}

/// An HTTP server on one port.
#[derive(Debug)]
pub struct HttpServer {
    port: Port,
    head_bytes: usize,
    refused_head: RefusedHead,
}

impl HttpServer {
    /// Creates a server with these limits. `name` identifies it in metrics and logs.
    pub fn new(name: &'static str, limits: HttpLimits, metrics: HttpMetrics) -> Self {
        let HttpLimits { port, head_bytes, refused_head } = limits;
        Self { port: Port::new(name, port, metrics), head_bytes, refused_head }
    }

    /// Serves until `stop` is cancelled, then stops accepting connections and waits up to `grace` for running
    /// requests.
    pub async fn serve(self, listener: TcpListener, router: Router, stop: CancellationToken) {
        let Self { port, head_bytes, refused_head } = self;
        let answer =
            |stream, connection| answer(stream, connection, router.clone(), head_bytes, refused_head);
        port.serve(listener, stop, answer).await;
    }
}

async fn answer(
    stream: TcpStream,
    connection: PortConnection,
    router: Router,
    head_bytes: usize,
    refused_head: RefusedHead,
) {
    let (caller, phase, slot) =
        (connection.caller, Arc::clone(&connection.phase), Arc::clone(&connection.slot));
    let stream = MonitoredStream::plain(stream, Arc::clone(&phase), Some(slot));
    let stream = RefusedHeads::new(stream, head_bytes, refused_head);
    let heads = stream.watch();
    let service = service_fn(move |mut request: Request<Incoming>| {
        let guard = (phase.request(), heads.request());
        request.extensions_mut().insert(caller);
        let router = router.clone();
        async move {
            let response = router.oneshot(request.map(Body::new)).await;
            response.map(|response| response.map(|body| ReadBody::new(body, guard)))
        }
    });
    let mut builder = Builder::new(StreamExecutor).http1_only();
    builder.http1().timer(TokioTimer::new()).header_read_timeout(None).max_buf_size(head_bytes);
    connection.serve(builder.serve_connection_with_upgrades(TokioIo::new(stream), service)).await;
}

#[cfg(test)]
mod tests;
