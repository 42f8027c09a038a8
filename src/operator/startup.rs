//! The first steps of the operator: its ports, which answer from then on, and the database, which may be unreachable
//! for a while.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use backon::{BackoffBuilder as _, ExponentialBuilder};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::{info, warn};

use super::OperatorError;
use super::settings::ServerSettings;
use crate::rest::{self, RestState, StartupState};
use kubesvc_runtime::background_tasks::BackgroundTasks;
use kubesvc_runtime::listen::http::HttpServer;
use kubesvc_runtime::listen::port::HttpMetrics;
use kubesvc_runtime::tls::server::ServerTls;
use kubesvc_store::account_projection::Projection;
use kubesvc_store::{CacheStore, OpenOptions, Store, StoreError};

/// Maximum delay between two attempts to open the database, before jitter, which at most doubles it.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(5);

/// The ports of REST and of the probes while the operator starts. They answer: alive, but not ready.
pub(super) struct StartupPorts {
    pub(super) rest_address: SocketAddr,
    rest: oneshot::Sender<Router>,
    /// `None` if REST answers the probes.
    health: Option<oneshot::Sender<Router>>,
    /// Ends the answers of the start. Dropped also if startup fails, so that probes do not hear that it continues.
    started: DropGuard,
    /// Cancelled once the last of `serving` is dropped: no caller is served any more.
    served: CancellationToken,
    /// Held by each server until its last request has ended.
    serving: Arc<DropGuard>,
}

impl StartupPorts {
    /// Listens on the ports, and answers from then on. Those of REST have a maximum
    /// number of connections, and TLS if it is given.
    pub(super) async fn open(
        settings: &ServerSettings,
        (rest_connections, tls): (usize, Option<Arc<ServerTls>>),
        starting: &StartupState,
        http: &HttpMetrics,
        background: &BackgroundTasks,
        stop: &CancellationToken,
    ) -> Result<Self, OperatorError> {
        let address = &settings.address;
        let rest = listen(address, settings.port, "server.address, server.port").await?;
        let rest_address = rest.local_addr().map_err(OperatorError::Listener)?;
        let health = match settings.health_port {
            Some(port) => Some(listen(address, port, "server.address, server.health.port").await?),
            None => None,
        };
        let started = stop.child_token();
        let served = CancellationToken::new();
        let serving = Arc::new(served.clone().drop_guard());
        let serve = |task,
                     description,
                     listener,
                     tls: Option<Arc<ServerTls>>,
                     [at_start, server]: [HttpServer; 2]| {
            let (listener, first) = rest::second_listener(listener).map_err(OperatorError::Listener)?;
            let at_start =
                at_start.serve(first, tls.clone(), rest::starting(starting.clone()), started.clone());
            let (sender, routes) = oneshot::channel();
            let server = serve_with(routes, (server, tls), listener, stop.clone());
            let serving = Arc::clone(&serving);
            background.spawn(task, description, async move {
                tokio::join!(at_start, server);
                drop(serving);
            });
            Ok::<_, OperatorError>(sender)
        };
        let rest_server = || {
            let limits = rest::http_limits(rest_connections, settings.limits.clone());
            HttpServer::new("rest", limits, http.clone())
        };
        let health_server = || HttpServer::new("health", rest::health_limits(), http.clone());
        let rest =
            serve("REST", "Serves the API, health and metrics", rest, tls, [rest_server(), rest_server()])?;
        let health = health.map(|listener| {
            let servers = [health_server(), health_server()];
            serve("health", "Answers probes on a port of their own", listener, None, servers)
        });
        let (health, started) = (health.transpose()?, started.drop_guard());
        Ok(Self { rest_address, rest, health, started, served, serving })
    }

    /// Is cancelled once neither these ports nor the other servers that hold [`StartupPorts::serving`] serve anybody.
    pub(super) fn served(&self) -> CancellationToken {
        self.served.clone()
    }

    /// What a further server holds until its last request has ended.
    pub(super) fn serving(&self) -> Arc<DropGuard> {
        Arc::clone(&self.serving)
    }

    /// Answers with the routes of `state` from now on.
    pub(super) fn serve(self, state: RestState) {
        // A server that is gone is an essential task that ended, which stops the operator.
        if let Some(health) = self.health {
            let _ = health.send(rest::health_router(state.clone()));
        }
        let _ = self.rest.send(rest::router(state));
        drop(self.started);
    }
}

/// Serves until `stop`, as soon as there are routes.
async fn serve_with(
    routes: oneshot::Receiver<Router>,
    (server, tls): (HttpServer, Option<Arc<ServerTls>>),
    listener: TcpListener,
    stop: CancellationToken,
) {
    match routes.await {
        Ok(routes) => server.serve(listener, tls, routes, stop).await,
        // Startup has failed, which ends the process.
        Err(_) => stop.cancelled().await,
    }
}

/// `settings` are the settings that determine address and port.
pub(super) async fn listen(
    address: &str,
    port: u16,
    settings: &'static str,
) -> Result<TcpListener, OperatorError> {
    let listening = kubesvc_runtime::listen::listen(address, port).await;
    listening.map_err(|cause| OperatorError::Listen { address: address.to_owned(), port, settings, cause })
}

/// Opens the database of this URL, with up to `cache_writers` connections for cached objects, and waits while it is
/// unreachable or belongs to another installation. Returns `None` if stopped before.
///
/// # Errors
/// URL, login or schema are wrong; waiting does not help there.
pub(super) async fn open_database(
    url: &str,
    opening: &OpenOptions,
    cache_writers: u32,
    starting: &StartupState,
    stop: &CancellationToken,
) -> Result<Option<(Arc<dyn Store>, Arc<dyn CacheStore>)>, StoreError> {
    let mut waits = ExponentialBuilder::default()
        .with_min_delay(Duration::from_millis(100))
        .with_max_delay(MAX_RETRY_DELAY)
        .without_max_times()
        .with_jitter()
        .build();
    let mut waited = false;
    loop {
        let opened = kubesvc_store::open_with_cache(url, opening.clone(), cache_writers);
        match stop.run_until_cancelled(opened).await {
            None => return Ok(None),
            Some(Ok(stores)) => {
                if waited {
                    info!("the database is available");
                }
                return Ok(Some(stores));
            }
            Some(Err(error @ (StoreError::Unavailable(_) | StoreError::Claimed { .. }))) => {
                waited = true;
                let why = error.in_full();
                if starting.waits_for("database", &why) {
                    warn!(error = why, "cannot open the database; waiting for it");
                }
            }
            Some(Err(error)) => return Err(error),
        }
        let wait = tokio::time::sleep(waits.next().unwrap_or(MAX_RETRY_DELAY));
        if stop.run_until_cancelled(wait).await.is_none() {
            return Ok(None);
        }
    }
}

/// Reads the rows. If the database has become unavailable since it was opened, [`Projection::run`] reads them later.
///
/// # Errors
/// The tables are wrong.
pub(super) async fn load_rows(projection: &Projection) -> Result<(), StoreError> {
    match projection.load().await {
        Ok(()) | Err(StoreError::Unavailable(_)) => Ok(()),
        Err(error) => Err(error),
    }
}
