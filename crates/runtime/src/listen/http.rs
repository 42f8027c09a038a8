//! An HTTP/1 server with bounds on every wait and size: connections, handshakes, heads, pauses, unread answers and
//! shutdown. Its port may have TLS.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use rustls::pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use super::port::{HttpMetrics, Port, PortConnection, PortLimits};
use super::refused_heads::{RefusedHead, RefusedHeads};
use super::unread_answers::{MonitoredStream, ReadBody, StreamExecutor};
use crate::tls::server::ServerTls;

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

/// The certificates that a client has shown, its own first. The port accepted them, and the client has the key of the first.
/// An extension of each request of such a connection.
#[derive(Clone, Debug)]
pub struct ClientCertificates(pub Arc<[CertificateDer<'static>]>);

/// An extension of requests that come from the same machine.
#[derive(Clone, Copy, Debug)]
pub struct LoopbackCaller;

/// An extension of requests from addresses that are exempt from limits.
#[derive(Clone, Copy, Debug)]
pub struct ExemptCaller;

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
    /// requests. With `tls`, a connection that begins otherwise is closed, and one whose client's certificate is no longer
    /// accepted once other files took effect ends at once.
    pub async fn serve(
        self,
        listener: TcpListener,
        tls: Option<Arc<ServerTls>>,
        router: Router,
        stop: CancellationToken,
    ) {
        let Self { port, head_bytes, refused_head } = self;
        let answer = |stream, connection| {
            let http = HttpConnection { connection, router: router.clone(), head_bytes, refused_head };
            accept(stream, tls.clone(), http)
        };
        port.serve(listener, stop, answer).await;
    }
}

/// A connection of the server, and what answers it.
struct HttpConnection {
    connection: PortConnection,
    router: Router,
    head_bytes: usize,
    refused_head: RefusedHead,
}

async fn accept(stream: TcpStream, tls: Option<Arc<ServerTls>>, http: HttpConnection) {
    let Some(tls) = tls else { return http.serve(stream, None).await };
    let mut trust = tls.trust_changes();
    let Some(stream) = http.connection.handshake(&tls, stream).await else { return };
    let shown = stream.get_ref().1.peer_certificates().unwrap_or_default();
    let shown: Arc<[_]> = shown.iter().map(|one| one.clone().into_owned()).collect();
    let certificates = (!shown.is_empty()).then(|| ClientCertificates(Arc::clone(&shown)));
    tokio::select! {
        () = http.serve(stream, certificates) => {}
        () = no_longer_accepted(&tls, &mut trust, &shown) => http.connection.count("untrusted"),
    }
}

/// Completes when the port accepts these certificates no more.
async fn no_longer_accepted(tls: &ServerTls, trust: &mut watch::Receiver<u64>, shown: &[CertificateDer<'_>]) {
    while trust.changed().await.is_ok() {
        if tls.verify(shown).is_err() {
            return;
        }
    }
    std::future::pending::<()>().await;
}

impl HttpConnection {
    /// Answers the requests of a stream. Above TLS it has bytes of requests and answers only, as without.
    async fn serve<S>(&self, stream: S, certificates: Option<ClientCertificates>)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let PortConnection { caller, phase, slot, .. } = &self.connection;
        let (is_local, is_exempt) = (self.connection.is_local(), self.connection.is_exempt());
        let stream = MonitoredStream::plain(stream, Arc::clone(phase), Some(Arc::clone(slot)));
        let stream = RefusedHeads::new(stream, self.head_bytes, self.refused_head);
        let heads = stream.watch();
        let service = service_fn(move |mut request: Request<Incoming>| {
            let guard = (phase.request(), heads.request());
            request.extensions_mut().insert(*caller);
            if is_local {
                request.extensions_mut().insert(LoopbackCaller);
            }
            if is_exempt {
                request.extensions_mut().insert(ExemptCaller);
            }
            if let Some(certificates) = &certificates {
                request.extensions_mut().insert(certificates.clone());
            }
            let router = self.router.clone();
            async move {
                let response = router.oneshot(request.map(Body::new)).await;
                response.map(|response| response.map(|body| ReadBody::new(body, guard)))
            }
        });
        let mut builder = Builder::new(StreamExecutor).http1_only();
        builder.http1().timer(TokioTimer::new()).header_read_timeout(None).max_buf_size(self.head_bytes);
        let serving = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
        self.connection.serve(serving).await;
    }
}

#[cfg(test)]
mod tests;
