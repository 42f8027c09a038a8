//! From a server's name to a TLS connection.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use url::Host;

use crate::cluster::error::find;
use crate::cluster::{ClusterEndpoint, ClusterError, Trust};

/// Maximum number of addresses tried for one name.
const MAX_ADDRESSES_TRIED: usize = 8;

/// Connects to the API server and completes the TLS handshake, which offers these protocols.
pub(super) async fn tls(
    cluster: &ClusterEndpoint,
    trust: &Trust,
    protocols: &[&[u8]],
    deadline: Instant,
) -> Result<TlsStream<TcpStream>, ClusterError> {
    permitted(cluster)?;
    let config = trust.client_config(cluster, protocols).await?;
    let name = server_name(cluster)?;
    let addresses = match timeout_at(deadline, resolve(cluster)).await {
        Ok(addresses) => addresses?,
        Err(_) => return Err(too_slow(cluster)),
    };
    let stream = tcp(cluster, &addresses, deadline).await?;
    let connector = TlsConnector::from(Arc::new(config));
    match timeout_at(deadline, connector.connect(name, stream)).await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(error)) => Err(handshake_failed(cluster, error)),
        Err(_) => Err(too_slow(cluster)),
    }
}

/// The error of a connection that was not established in time.
pub(super) fn too_slow(cluster: &ClusterEndpoint) -> ClusterError {
    ClusterError::ConnectTimeout(cluster.url().to_owned())
}

fn server_name(cluster: &ClusterEndpoint) -> Result<ServerName<'static>, ClusterError> {
    let name = match &cluster.tls_server_name {
        Some(name) => name.clone(),
        None => host(cluster),
    };
    ServerName::try_from(name.trim_end_matches('.').to_owned())
        .map_err(|_| ClusterError::Kubeconfig("the server's host is no name that TLS knows".to_owned()))
}

/// The host, without the brackets around IPv6 addresses in URLs.
fn host(cluster: &ClusterEndpoint) -> String {
    match cluster.server.host() {
        Some(Host::Domain(name)) => name.to_owned(),
        Some(Host::Ipv4(address)) => address.to_string(),
        Some(Host::Ipv6(address)) => address.to_string(),
        None => String::new(),
    }
}

/// Applies the agent's policy, as far as possible before name resolution.
fn permitted(cluster: &ClusterEndpoint) -> Result<(), ClusterError> {
    if cluster.insecure && !cluster.policy.insecure {
        return Err(ClusterError::Policy(format!(
            "the certificate of {} would not be verified, and kubernetes.policy.insecure is false",
            cluster.url()
        )));
    }
    let refused = cluster.policy.refuses_host(&host(cluster), port(cluster));
    refused.map_or(Ok(()), |why| Err(ClusterError::Policy(why)))
}

fn port(cluster: &ClusterEndpoint) -> u16 {
    cluster.server.port_or_known_default().unwrap_or(443)
}

/// Resolves the name, and applies the policy to its addresses. A single address that no API server may have
/// rejects all of them: whoever controls the name chooses which address is tried.
async fn resolve(cluster: &ClusterEndpoint) -> Result<Vec<SocketAddr>, ClusterError> {
    let host = host(cluster);
    let found = tokio::net::lookup_host((host.as_str(), port(cluster))).await;
    let found = found.map_err(|source| {
        let (host, url) = (host.clone(), cluster.url().to_owned());
        ClusterError::Lookup { host, url, source }
    })?;
    let (mut addresses, mut refusal) = (Vec::new(), None);
    for address in found {
        match cluster.policy.refuses(&host, address) {
            None => addresses.push(address),
            Some(why) if cluster.policy.condemns(address.ip()) => return Err(ClusterError::Policy(why)),
            Some(why) => refusal = refusal.or(Some(why)),
        }
    }
    if let Some(why) = refusal.filter(|_| addresses.is_empty()) {
        return Err(ClusterError::Policy(why));
    }
    addresses.truncate(MAX_ADDRESSES_TRIED);
    Ok(addresses)
}

/// Connects to the first address that answers; each gets an equal share of the remaining time.
async fn tcp(
    cluster: &ClusterEndpoint,
    addresses: &[SocketAddr],
    deadline: Instant,
) -> Result<TcpStream, ClusterError> {
    let mut last: Option<io::Error> = None;
    for (tried, address) in addresses.iter().enumerate() {
        let left = u32::try_from(addresses.len() - tried).unwrap_or(1);
        let until = Instant::now() + deadline.saturating_duration_since(Instant::now()) / left;
        match timeout_at(until, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => {
                // Requests are small, and each waits for its response.
                let _ = stream.set_nodelay(true);
                return Ok(stream);
            }
            Ok(Err(error)) => last = Some(error),
            Err(_) => {}
        }
    }
    let url = cluster.url().to_owned();
    match last {
        Some(source) => {
            let addresses = addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            Err(ClusterError::Unreachable { url, addresses, source })
        }
        None if addresses.is_empty() => Err(ClusterError::NoAddress(url)),
        None => Err(too_slow(cluster)),
    }
}

fn handshake_failed(cluster: &ClusterEndpoint, error: io::Error) -> ClusterError {
    let url = cluster.url().to_owned();
    match find::<rustls::Error>(&error) {
        Some(source) => ClusterError::Tls { url, source: source.clone() },
        None => ClusterError::HandshakeClosed { url, source: error },
    }
}
