//! Small HTTP servers of the agent.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::listen::addresses::AddressLimits;
use crate::listen::http::{HttpLimits, HttpMetrics, HttpServer};
use crate::listen::listen;

/// A bound port that is not served yet.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    router: Router,
    server: HttpServer,
}

impl Server {
    /// Binds a port. An empty host or `*` means all addresses of the machine. `name` identifies the server in
    /// metrics and logs.
    ///
    /// # Errors
    ///
    /// The operating system's error.
    pub async fn bind(
        name: &'static str,
        host: &str,
        port: u16,
        router: Router,
        metrics: HttpMetrics,
    ) -> io::Result<Self> {
        let listener = listen(host, port).await?;
        let address = listener.local_addr()?;
        Ok(Self { listener, address, router, server: HttpServer::new(name, limits(), metrics) })
    }

    /// Address of the server.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `stop` is cancelled.
    pub async fn serve(self, stop: CancellationToken) {
        self.server.serve(self.listener, self.router, stop).await;
    }
}

/// Limits for probes, a scraper and a few people: silent connections make room for them.
fn limits() -> HttpLimits {
    HttpLimits {
        connections: 64,
        addresses: AddressLimits::default(),
        head_timeout: Duration::from_secs(5),
        head_bytes: 8 * 1024,
        idle_timeout: Duration::from_secs(60),
        grace: Duration::from_secs(1),
    }
}

/// An address as shown in messages.
pub(super) fn shown(host: &str, port: u16) -> String {
    let host = if host.is_empty() { "*" } else { host };
    format!("{host}:{port}")
}
