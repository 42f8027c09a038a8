//! Serving HTTP with every wait bounded: headers, bodies, connections and the end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::patient::Patient;

/// How long a request's headers may take; also how long a connection may be idle.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a caller may take nothing of what it is answered.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// About how large a request's head may be, in bytes; more is 431.
const MAX_HEAD: usize = 64 * 1024;
/// How many connections are open at once; more wait in the listener's queue.
const MAX_CONNECTIONS: usize = 4096;
/// How long running requests may take once stopping has begun.
const GRACE: Duration = Duration::from_secs(10);
/// The pause after a failed accept, which is most often a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The address of this process that a request has come to.
#[derive(Clone, Copy, Debug)]
pub(super) struct CalledAt(pub(super) SocketAddr);

/// Serves until told to stop; then takes no further connection and gives the running requests 10 s.
pub async fn serve(listener: TcpListener, router: Router, stop: CancellationToken) {
    serve_up_to(MAX_CONNECTIONS, listener, router, stop).await;
}

/// The same, with so many connections at once.
pub(super) async fn serve_up_to(
    connections: usize,
    listener: TcpListener,
    router: Router,
    stop: CancellationToken,
) {
    let slots = Arc::new(Semaphore::new(connections));
    let graceful = GracefulShutdown::new();
    loop {
        let next = async {
            let slot = Arc::clone(&slots).acquire_owned().await;
            (slot, listener.accept().await)
        };
        let Some((Ok(slot), accepted)) = stop.run_until_cancelled(next).await else { break };
        match accepted {
            Ok((stream, _)) => connection(stream, router.clone(), slot, &graceful),
            Err(problem) => {
                warn!(error = %problem, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    if tokio::time::timeout(GRACE, graceful.shutdown()).await.is_err() {
        warn!("requests were still running after {} s and are cut off", GRACE.as_secs());
    }
}

fn connection(stream: TcpStream, router: Router, slot: OwnedSemaphorePermit, graceful: &GracefulShutdown) {
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT).max_buf_size(MAX_HEAD);
    let router = match stream.local_addr() {
        Ok(address) => router.layer(Extension(CalledAt(address))),
        Err(_) => router,
    };
    let service = TowerToHyperService::new(router);
    let connection =
        graceful.watch(builder.serve_connection(TokioIo::new(Patient::new(stream, WRITE_TIMEOUT)), service));
    tokio::spawn(async move {
        if let Err(problem) = connection.await {
            debug!(error = %problem, "a connection ended");
        }
        drop(slot);
    });
}
