//! The connections to an API server. A connection whose peer disappeared silently, such as a node that lost power,
//! must be detected: neither requests nor watches may wait on it for as long as the kernel would, a quarter of an
//! hour.

use std::time::Duration;

use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::client::{ClientBuilder, ConfigExt as _};
use kube::{Client, Config};
use tower::{BoxError, ServiceBuilder};

use crate::telemetry::errors::chain;
use crate::telemetry::outages::Noticing;
use crate::watch_backoff::WATCH_SECONDS;

/// Time limit for connecting, TLS included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Time without traffic after which TCP keepalive probes are sent.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
/// Interval between keepalive probes.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// Number of unanswered keepalive probes after which the connection is closed.
const MAX_KEEPALIVE_PROBES: u32 = 3;
/// Time limit for the acknowledgement of sent data, equal to the time until a dead idle connection is detected.
const UNACKNOWLEDGED_TIMEOUT: Duration = Duration::from_secs(
    KEEPALIVE_IDLE.as_secs() + KEEPALIVE_INTERVAL.as_secs() * MAX_KEEPALIVE_PROBES as u64,
);
/// Time limit for silence while a response is awaited from a live peer. Watches have the longest silence.
const READ_TIMEOUT: Duration = Duration::from_secs(WATCH_SECONDS as u64 + 10);
/// Time after which an idle connection is closed: the fewer are kept, the fewer may be dead.
const IDLE_TIMEOUT: Duration = Duration::from_secs(15);

/// A client for an API server.
///
/// # Errors
/// One line that says which part of the configuration cannot be used.
pub(super) fn client(config: Config) -> Result<Client, String> {
    let server = config.cluster_url.to_string();
    connect(config).map_err(|error| format!("no client for {server}: {}", chain(&error)))
}

/// Builds the same client as kube does, over connections that detect a dead peer.
fn connect(config: Config) -> kube::Result<Client> {
    if config.proxy_url.is_some() {
        // kube handles proxies itself, or reports that it was built without support for them.
        return Ok(ClientBuilder::try_from(config)?.with_layer(&Noticing).build());
    }
    let mut connector = TimeoutConnector::new(config.rustls_https_connector_with_connector(tcp())?);
    connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
    connector.set_read_timeout(Some(READ_TIMEOUT));
    // The limit starts at the request, not at the end of the previous response.
    connector.set_reset_reader_on_write(true);
    let http = legacy::Builder::new(TokioExecutor::new())
        .pool_idle_timeout(IDLE_TIMEOUT)
        .pool_timer(TokioTimer::new())
        .build(connector);
    let service = ServiceBuilder::new()
        .layer(Noticing)
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(http);
    Ok(ClientBuilder::new(service, config.default_namespace).build())
}

fn tcp() -> HttpConnector {
    let mut connector = HttpConnector::new();
    // The TLS layer above checks the scheme.
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector.set_keepalive(Some(KEEPALIVE_IDLE));
    connector.set_keepalive_interval(Some(KEEPALIVE_INTERVAL));
    connector.set_keepalive_retries(Some(MAX_KEEPALIVE_PROBES));
    #[cfg(target_os = "linux")]
    connector.set_tcp_user_timeout(Some(UNACKNOWLEDGED_TIMEOUT));
    connector
}
