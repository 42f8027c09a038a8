//! The connections to an API server. One whose other end is gone without a word, such as a node that lost its power, must
//! be found out: neither requests nor watches may wait on it for as long as the system would, a quarter of an hour.

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

/// How long a connection may take, TLS included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// After so long without a byte the other end is asked whether it is there,
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
/// so often,
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// and so many times.
const MAX_KEEPALIVE_PROBES: u32 = 3;
/// How long what was sent may stay unacknowledged: as long as an idle connection may be dead.
const UNACKNOWLEDGED_TIMEOUT: Duration = Duration::from_secs(
    KEEPALIVE_IDLE.as_secs() + KEEPALIVE_INTERVAL.as_secs() * MAX_KEEPALIVE_PROBES as u64,
);
/// How long an answer may be silent, where the other end is there and says nothing. A watch is longest so.
const READ_TIMEOUT: Duration = Duration::from_secs(WATCH_SECONDS as u64 + 10);
/// A connection that was not used for so long is not used again: the fewer are kept, the fewer may be dead.
const IDLE_TIMEOUT: Duration = Duration::from_secs(15);

/// A client for an API server.
///
/// # Errors
/// One line that says what of the configuration cannot be used.
pub(super) fn client(config: Config) -> Result<Client, String> {
    let server = config.cluster_url.to_string();
    connect(config).map_err(|error| format!("no client for {server}: {}", chain(&error)))
}

/// As kube's own client does it, over connections that find out when they are dead.
fn connect(config: Config) -> kube::Result<Client> {
    if config.proxy_url.is_some() {
        // Ways through a proxy are kube's matter, or it says that there is none.
        return Ok(ClientBuilder::try_from(config)?.with_layer(&Noticing).build());
    }
    let mut connector = TimeoutConnector::new(config.rustls_https_connector_with_connector(tcp())?);
    connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
    connector.set_read_timeout(Some(READ_TIMEOUT));
    // The silence counts from the request, not from the answer to the one before.
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
    // The scheme is looked at by the layer above, which speaks TLS.
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector.set_keepalive(Some(KEEPALIVE_IDLE));
    connector.set_keepalive_interval(Some(KEEPALIVE_INTERVAL));
    connector.set_keepalive_retries(Some(MAX_KEEPALIVE_PROBES));
    #[cfg(target_os = "linux")]
    connector.set_tcp_user_timeout(Some(UNACKNOWLEDGED_TIMEOUT));
    connector
}
