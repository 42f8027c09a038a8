//! The HTTP servers of the agent: health and metrics.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::account_table::{AccountTable, StateCounts};
use crate::caching::SharedStream;
use crate::health::{self, AgentStatus};
use crate::metrics::{AccountCounts, AgentMetrics, CachedObjectCounts};
use crate::requests::RequestService;
use crate::settings::HealthServerSettings;
use crate::watch_registry::WatchRegistry;
use crate::{AgentError, AgentOptions};
use kubesvc_runtime::background_tasks::TaskRegistry;
use kubesvc_runtime::listen::connection_limits::AddressLimits;
use kubesvc_runtime::listen::connection_phase::ConnectionDeadlines;
use kubesvc_runtime::listen::http::{HttpLimits, HttpServer};
use kubesvc_runtime::listen::listen;
use kubesvc_runtime::listen::port::{HttpMetrics, PortLimits};

/// A bound port that is not served yet.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    router: Router,
    server: HttpServer,
}

impl Server {
    /// Binds a port. An empty host or `*` means all addresses of the machine. `name` identifies the server in
    /// metrics and logs.
    async fn bind(
        name: &'static str,
        host: &str,
        port: u16,
        router: Router,
        metrics: HttpMetrics,
    ) -> io::Result<Self> {
        let listener = listen(host, port).await?;
        Ok(Self { listener, router, server: HttpServer::new(name, limits(), metrics) })
    }

    #[cfg(test)]
    pub(crate) fn address(&self) -> std::net::SocketAddr {
        self.listener.local_addr().expect("the port is bound")
    }

    /// Serves until `stop` is cancelled.
    pub async fn serve(self, stop: CancellationToken) {
        self.server.serve(self.listener, None, self.router, stop).await;
    }
}

pub(super) async fn bind_health(
    options: &AgentOptions,
    metrics: &AgentMetrics,
    status: Arc<AgentStatus>,
    watches: (WatchRegistry, Arc<SharedStream>),
    (requests, tasks): (&Arc<RequestService>, &TaskRegistry),
) -> Result<Server, AgentError> {
    let HealthServerSettings { ref host, port } = options.settings.server;
    let failed = |source| AgentError::HealthPort { address: shown(host, port), source };
    let closed = metrics.http.clone();
    let routes = health::routes(status, watches, tasks.clone()).merge(requests.routes());
    Server::bind("health", host, port, routes, closed).await.map_err(failed)
}

/// Binds the port of the metrics, if they are served.
pub(super) async fn bind_metrics(
    options: &AgentOptions,
    metrics: &AgentMetrics,
    table: Arc<Mutex<AccountTable>>,
    cached_objects: impl Fn() -> CachedObjectCounts + Clone + Send + Sync + 'static,
    tasks: &TaskRegistry,
) -> Result<Option<Server>, AgentError> {
    let Some(port) = options.settings.metrics_port else { return Ok(None) };
    let host = &options.metrics_address;
    let failed = |source| AgentError::MetricsPort { address: shown(host, port), source };
    let counts = move || {
        let table = table.lock();
        let StateCounts { held, starting, failed } = table.counts();
        let accounts = AccountCounts { held, starting, failed, cached: table.cached_count() };
        drop(table);
        (accounts, cached_objects())
    };
    let routes = metrics.routes(&options.own, counts, tasks);
    Server::bind("metrics", host, port, routes, metrics.http.clone()).await.map(Some).map_err(failed)
}

/// Limits for probes, a scraper and a few people: silent connections make room for them.
fn limits() -> HttpLimits {
    let deadlines = ConnectionDeadlines { head: Duration::from_secs(5), idle: Duration::from_secs(60) };
    let (addresses, grace) = (AddressLimits::default(), Duration::from_secs(1));
    HttpLimits {
        port: PortLimits { connections: 64, reserved: 0, addresses, deadlines, grace },
        head_bytes: 8 * 1024,
        refused_head: || r#"{"status":431,"error":"Request Header Fields Too Large"}"#.to_owned(),
    }
}

/// An address as shown in messages.
fn shown(host: &str, port: u16) -> String {
    let host = if host.is_empty() { "*" } else { host };
    format!("{host}:{port}")
}
