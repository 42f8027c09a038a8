//! The agent's own small HTTP servers.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::listen::listen;

/// A port that is taken and not served yet.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    router: Router,
}

impl Server {
    /// Takes a port. An empty host, or `*`, is every address of the machine.
    ///
    /// # Errors
    ///
    /// What the system says.
    pub async fn bind(host: &str, port: u16, router: Router) -> io::Result<Self> {
        let listener = listen(host, port).await?;
        let address = listener.local_addr()?;
        Ok(Self { listener, address, router })
    }

    /// Where it serves.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `stop`. `what` is the name that the log gives it.
    pub async fn serve(self, what: &'static str, stop: CancellationToken) {
        let stopped = stop.clone();
        let serving = axum::serve(self.listener, self.router).with_graceful_shutdown(stop.cancelled_owned());
        let grace = async {
            stopped.cancelled().await;
            // A probe that keeps its connection must not keep the agent.
            tokio::time::sleep(Duration::from_secs(1)).await;
        };
        tokio::select! {
            result = serving => if let Err(error) = result {
                tracing::error!(%error, "{what} are not served any longer");
            },
            () = grace => {}
        }
    }
}

/// An address as messages show it.
pub(super) fn shown(host: &str, port: u16) -> String {
    let host = if host.is_empty() { "*" } else { host };
    format!("{host}:{port}")
}
