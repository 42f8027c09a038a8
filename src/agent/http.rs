//! The agent's own small HTTP servers.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::listen::addresses::AddressLimits;
use crate::listen::http::{HttpLimits, HttpMetrics, HttpServer};
use crate::listen::listen;

/// A port that is taken and not served yet.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    router: Router,
    server: HttpServer,
}

impl Server {
    /// Takes a port. An empty host, or `*`, is every address of the machine. `name` is what metrics and log call it.
    ///
    /// # Errors
    ///
    /// What the system says.
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

    /// Where it serves.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `stop`.
    pub async fn serve(self, stop: CancellationToken) {
        self.server.serve(self.listener, self.router, stop).await;
    }
}

/// Probes, a scraper and a few people: whoever is silent makes room for them.
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

/// An address as messages show it.
pub(super) fn shown(host: &str, port: u16) -> String {
    let host = if host.is_empty() { "*" } else { host };
    format!("{host}:{port}")
}
