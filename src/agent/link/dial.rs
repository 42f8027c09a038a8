//! From the hub's address to an HTTP/2 connection.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use rustls::client::danger::ServerCertVerifier;
use tokio::time::timeout;
use tonic::transport::{Channel, ClientTlsConfig, Endpoint};

use crate::agent::cluster::{Trust, TrustError, system_verifier};
use crate::agent::{AgentError, AgentOptions, KeepAlive};

/// Timeout from name resolution to the end of the handshakes.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Configures the connection to the hub, including everything that HTTP/2 leaves open.
pub(super) fn endpoint(options: &AgentOptions) -> Result<Endpoint, AgentError> {
    let wrong = || AgentError::HubAddress { hub: options.hub.clone() };
    let scheme = if options.insecure { "http" } else { "https" };
    let uri: http::Uri = format!("{scheme}://{}", options.hub).parse().map_err(|_| wrong())?;
    let plain = uri.authority().is_some_and(|authority| authority.as_str() == options.hub)
        && uri.host().is_some_and(|host| !host.is_empty())
        && uri.port_u16().is_some_and(|port| port != 0)
        && !options.hub.contains('@');
    if !plain {
        return Err(wrong());
    }
    let endpoint = Endpoint::from(uri)
        .user_agent(format!("kubesvc-agent/{}", options.version))
        .map_err(|_| AgentError::Option { option: "the version", problem: "cannot be sent in a header" })?;
    let KeepAlive { ping_every, ping_timeout, .. } = options.keep_alive;
    let endpoint = if ping_every.is_zero() {
        endpoint
    } else {
        endpoint
            .http2_keep_alive_interval(ping_every)
            .keep_alive_timeout(ping_timeout)
            .keep_alive_while_idle(true)
    };
    Ok(endpoint
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_nodelay(true)
        .tcp_keepalive(Some(Duration::from_secs(60)))
        .http2_adaptive_window(false)
        .initial_stream_window_size(8 * 1024 * 1024)
        .initial_connection_window_size(16 * 1024 * 1024)
        .max_frame_size(64 * 1024)
        .http2_header_table_size(4 * 1024)
        .http2_max_header_list_size(64 * 1024)
        .buffer_size(64))
}

/// Why there is no connection to the hub.
#[derive(Debug, thiserror::Error)]
pub(super) enum DialError {
    /// The hub's certificate cannot be verified.
    #[error(transparent)]
    Trust(#[from] TrustError),
    /// TLS cannot be set up.
    #[error("TLS to the hub {hub} cannot be set up")]
    Tls { hub: String, source: tonic::transport::Error },
    /// The hub cannot be reached.
    #[error("no connection to the hub {hub}")]
    Unreachable { hub: String, source: tonic::transport::Error },
    /// The hub does not answer.
    #[error("no connection to the hub {hub} within {} s", CONNECT_TIMEOUT.as_secs())]
    Silent { hub: String },
}

/// Connects. The error is meant for people.
pub(super) async fn channel(endpoint: &Endpoint, options: &AgentOptions) -> Result<Channel, DialError> {
    if options.insecure {
        return connect(endpoint, &options.hub).await;
    }
    // Read for each connection, so that an updated set of authorities needs no restart.
    let verifier = system_verifier(Trust::default()).await?;
    connect(&with_tls(endpoint, &options.hub, verifier)?, &options.hub).await
}

fn with_tls(
    endpoint: &Endpoint,
    hub: &str,
    verifier: Arc<dyn ServerCertVerifier>,
) -> Result<Endpoint, DialError> {
    endpoint
        .clone()
        .tls_config_with_verifier(ClientTlsConfig::new(), verifier)
        .map_err(|source| DialError::Tls { hub: hub.to_owned(), source })
}

async fn connect(endpoint: &Endpoint, hub: &str) -> Result<Channel, DialError> {
    match timeout(CONNECT_TIMEOUT, endpoint.connect()).await {
        Ok(Ok(channel)) => Ok(channel),
        Ok(Err(source)) => Err(DialError::Unreachable { hub: hub.to_owned(), source }),
        Err(_) => Err(DialError::Silent { hub: hub.to_owned() }),
    }
}

/// Formats an error and its sources. Sources whose text is already contained are left out.
pub(super) fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let next = error.to_string();
        if !text.contains(&next) {
            text.push_str(": ");
            text.push_str(&next);
        }
        source = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;
    use tokio_stream::wrappers::TcpListenerStream;
    use tonic::transport::{Identity, Server, ServerTlsConfig};

    use super::*;
    use crate::agent::cluster::test_server::Authority;

    #[tokio::test]
    async fn tls_to_the_hub_verifies_its_certificate() {
        let authority = Authority::new();
        let (certificate, key) = authority.server();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let hub = listener.local_addr().expect("an address").to_string();
        let (_health, service) = tonic_health::server::health_reporter();
        tokio::spawn(async move {
            let identity = Identity::from_pem(certificate.pem(), key.serialize_pem());
            Server::builder()
                .tls_config(ServerTlsConfig::new().identity(identity))
                .expect("TLS")
                .add_service(service)
                .serve_with_incoming(TcpListenerStream::new(listener))
                .await
        });
        let endpoint = endpoint(&AgentOptions { insecure: false, ..AgentOptions::of_test(hub.clone()) })
            .expect("an endpoint");
        let dial = async |authority: &Authority| {
            let verifier = Trust::default().authority(&authority.pem()).expect("a verifier");
            connect(&with_tls(&endpoint, &hub, verifier).expect("TLS"), &hub).await
        };
        dial(&authority).await.expect("a connection");
        let error = chain(&dial(&Authority::new()).await.expect_err("a certificate that is not trusted"));
        assert!(error.contains(&hub) && error.contains("invalid peer certificate"), "{error}");
    }
}
