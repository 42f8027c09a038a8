//! The HTTP servers of the agent: health and metrics.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse as _, Response};
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
use kubesvc_runtime::listen::http::{ClientCertificates, HttpLimits, HttpServer, LoopbackCaller};
use kubesvc_runtime::listen::listen;
use kubesvc_runtime::listen::port::{HttpMetrics, PortLimits};
use kubesvc_runtime::tls::server::ServerTls;

/// A bound port that is not served yet.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    tls: Option<Arc<ServerTls>>,
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
        tls: Option<Arc<ServerTls>>,
        router: Router,
        metrics: HttpMetrics,
    ) -> io::Result<Self> {
        let listener = listen(host, port).await?;
        Ok(Self { listener, tls, router, server: HttpServer::new(name, limits(), metrics) })
    }

    #[cfg(test)]
    pub(crate) fn address(&self) -> std::net::SocketAddr {
        self.listener.local_addr().expect("the port is bound")
    }

    /// Serves until `stop` is cancelled.
    pub async fn serve(self, stop: CancellationToken) {
        self.server.serve(self.listener, self.tls, self.router, stop).await;
    }
}

pub(super) async fn bind_health(
    options: &AgentOptions,
    tls: Option<Arc<ServerTls>>,
    metrics: &AgentMetrics,
    status: Arc<AgentStatus>,
    watches: (WatchRegistry, Arc<SharedStream>),
    (requests, tasks): (&Arc<RequestService>, &TaskRegistry),
) -> Result<Server, AgentError> {
    let HealthServerSettings { ref host, port, .. } = options.settings.server;
    let failed = |source| AgentError::HealthPort { address: shown(host, port), source };
    let closed = metrics.http.clone();
    let about_accounts = health::account_routes(Arc::clone(&status), watches).merge(requests.routes());
    let routes = health::routes(status, tasks.clone()).merge(about_accounts.layer(from_fn(known_callers)));
    Server::bind("health", host, port, tls, routes, closed).await.map_err(failed)
}

/// Lets callers pass that are on the same machine, or have shown a certificate that the port accepts.
async fn known_callers(request: Request, next: Next) -> Response {
    let shown = request.extensions();
    if shown.get::<LoopbackCaller>().is_some() || shown.get::<ClientCertificates>().is_some() {
        return next.run(request).await;
    }
    let problem = "what names accounts is shown to callers on the same machine (kubectl port-forward), and to those with a \
                   client certificate (server.ssl.clientAuth)\n";
    (StatusCode::FORBIDDEN, problem).into_response()
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
    Server::bind("metrics", host, port, None, routes, metrics.http.clone()).await.map(Some).map_err(failed)
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

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::routing::get;
    use tower::ServiceExt as _;

    use super::*;

    #[tokio::test]
    async fn what_names_accounts_is_shown_on_the_machine_and_to_clients_with_a_certificate() {
        let router = Router::new().route("/accounts", get(async || "shown")).layer(from_fn(known_callers));
        let status = async |change: &dyn Fn(&mut Request)| {
            let mut request = Request::get("/accounts").body(Body::empty()).expect("a request");
            change(&mut request);
            router.clone().oneshot(request).await.expect("an answer").status()
        };
        assert_eq!(status(&|_| {}).await, StatusCode::FORBIDDEN);
        let local = |request: &mut Request| {
            request.extensions_mut().insert(LoopbackCaller);
        };
        assert_eq!(status(&local).await, StatusCode::OK);
        let certificates = |request: &mut Request| {
            let shown = ClientCertificates(vec![vec![0].into()].into());
            request.extensions_mut().insert(shown);
        };
        assert_eq!(status(&certificates).await, StatusCode::OK);
    }
}
