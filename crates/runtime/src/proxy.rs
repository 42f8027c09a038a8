//! The proxy through which an API server is reached, as Go's `ProxyFromEnvironment` chooses it, and connections through it.
//!
//! kube reads `HTTPS_PROXY` itself, compares `NO_PROXY` with the proxy instead of the server, and prints the URL with its
//! password. So [`client_config`] keeps it from doing so.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::Uri;
use http::uri::Authority;
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use kube::client::{ClientBuilder, ConfigExt as _};
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use percent_encoding::percent_decode_str;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tower::{BoxError, Service, ServiceBuilder};

use crate::listen::connection_limits::Network;

/// Stands in a kubeconfig for "as the environment says", so that kube does not read it.
const PLACEHOLDER: &str = "http://by-environment.invalid/";
/// Maximum size of a proxy's answer to CONNECT, in bytes.
const MAX_ANSWER_BYTES: usize = 16 * 1024;

/// A proxy that accepts CONNECT. Its credential is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct ProxyServer {
    /// Its URL, with the credential.
    url: Uri,
}

impl fmt::Debug for ProxyServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Display for ProxyServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}", self.split().1)
    }
}

/// The proxy cannot be used. Without its URL, which may have a password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProxyError {
    /// The text is no URL.
    #[error("{0} is no URL of a proxy: give http://HOST:PORT")]
    Malformed(&'static str),
    /// Another scheme than http.
    #[error("{0} names a proxy of the scheme {1}: only http is supported")]
    Scheme(&'static str, String),
}

/// The value of an environment variable.
type Environment<'e> = &'e dyn Fn(&str) -> Option<String>;

/// Returns the proxy for a server, if any: `HTTPS_PROXY` or, for plain text, `HTTP_PROXY`, in either case, unless
/// `NO_PROXY` has the server. Never for this machine.
///
/// # Errors
/// The variable has no usable URL.
pub fn from_environment(server: &Uri, env: Environment<'_>) -> Result<Option<ProxyServer>, ProxyError> {
    let any =
        |names: [&str; 2]| names.into_iter().find_map(|name| env(name).filter(|value| !value.is_empty()));
    let is_plain = server.scheme_str() == Some("http");
    let (name, names) = if is_plain {
        ("HTTP_PROXY", ["HTTP_PROXY", "http_proxy"])
    } else {
        ("HTTPS_PROXY", ["HTTPS_PROXY", "https_proxy"])
    };
    let Some(text) = any(names) else { return Ok(None) };
    let host = server.host().unwrap_or_default().trim_matches(['[', ']']).to_ascii_lowercase();
    let port = server.port_u16().unwrap_or(if is_plain { 80 } else { 443 });
    let is_local =
        host == "localhost" || host.parse().is_ok_and(|ip: IpAddr| ip.to_canonical().is_loopback());
    if is_local || excludes(&any(["NO_PROXY", "no_proxy"]).unwrap_or_default(), &host, port) {
        return Ok(None);
    }
    ProxyServer::read(&text, name).map(Some)
}

/// Whether `NO_PROXY` has a host: `*`, a network, an address, or a domain with its subdomains, each with a port or without.
fn excludes(no_proxy: &str, host: &str, port: u16) -> bool {
    let address: Option<IpAddr> = host.parse().ok();
    no_proxy.split(',').map(|entry| entry.trim().to_ascii_lowercase()).filter(|entry| !entry.is_empty()).any(
        |entry| {
            if entry == "*" {
                return true;
            }
            if let Some(address) = address
                && let Ok(network) = entry.parse::<Network>()
            {
                return network.contains(address);
            }
            let (name, of_port) = match entry.rsplit_once(':') {
                Some((name, digits)) if !name.contains(':') || name.ends_with(']') => {
                    let Ok(of_port) = digits.parse::<u16>() else { return false };
                    (name, Some(of_port))
                }
                _ => (entry.as_str(), None),
            };
            let name = name.trim_matches(['[', ']']);
            if of_port.is_some_and(|of_port| of_port != port) {
                return false;
            }
            if let Some(address) = address {
                return name.parse::<IpAddr>() == Ok(address);
            }
            match name.strip_prefix('*').unwrap_or(name) {
                subdomains if subdomains.starts_with('.') => host.ends_with(subdomains),
                domain => host == domain || host.strip_suffix(domain).is_some_and(|rest| rest.ends_with('.')),
            }
        },
    )
}

impl ProxyServer {
    /// The proxy with this URL, of which [`client_config`] has made sure that it can be one.
    pub fn of(url: Uri) -> Self {
        Self { url }
    }

    /// Reads the URL of a proxy; without a scheme it is http. `name` says where it stands.
    fn read(text: &str, name: &'static str) -> Result<Self, ProxyError> {
        let with_scheme = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
        let url: Uri = with_scheme.parse().map_err(|_| ProxyError::Malformed(name))?;
        match url.scheme_str() {
            Some("http") if url.host().is_some_and(|host| !host.is_empty()) => Ok(Self { url }),
            Some("http") | None => Err(ProxyError::Malformed(name)),
            Some(scheme) => Err(ProxyError::Scheme(name, scheme.to_owned())),
        }
    }

    /// The user, if any, and host and port.
    fn split(&self) -> (Option<&str>, &str) {
        let authority = self.url.authority().map_or("", Authority::as_str);
        authority.rsplit_once('@').map_or((None, authority), |(user, host)| (Some(user), host))
    }

    /// Value of the header `Proxy-Authorization`.
    fn authorization(&self) -> Option<String> {
        let (user, password) = self.split().0?.split_once(':').unwrap_or((self.split().0?, ""));
        let decoded = [user, password].map(|part| percent_decode_str(part).collect::<Vec<u8>>()).join(&b':');
        Some(format!("Basic {}", STANDARD.encode(decoded)))
    }
}

/// Reads the configuration of a client. Its `proxy_url` is the proxy that it uses: the kubeconfig's, or else as the
/// environment says. [`ProxyServer::of`] reads it.
///
/// # Errors
/// The kubeconfig cannot be used, or, inside, the proxy.
pub async fn client_config(
    mut kubeconfig: Kubeconfig,
    options: &KubeConfigOptions,
) -> Result<Result<Config, ProxyError>, KubeconfigError> {
    let mut own = Vec::new();
    for cluster in kubeconfig.clusters.iter_mut().filter_map(|named| named.cluster.as_mut()) {
        // Each has a placeholder of its own, because kube would show an invalid URL, with its password.
        let url = cluster.proxy_url.replace(format!("{PLACEHOLDER}{}", own.len()));
        own.push(url.filter(|url| !url.is_empty()));
    }
    let mut config = Config::from_custom_kubeconfig(kubeconfig, options).await?;
    let place = config.proxy_url.take().and_then(|url| url.path().strip_prefix('/')?.parse::<usize>().ok());
    let proxy = match place.and_then(|place| own.get(place)?.as_deref()) {
        Some(url) => ProxyServer::read(url, "the kubeconfig's proxy-url").map(Some),
        None => from_environment(&config.cluster_url, &|name| std::env::var(name).ok()),
    };
    Ok(proxy.map(|proxy| {
        config.proxy_url = proxy.map(|proxy| proxy.url);
        config
    }))
}

/// A client without limits of its own, through the proxy of its configuration if there is one.
///
/// # Errors
/// A part of the configuration cannot be used.
pub fn client(mut config: Config) -> kube::Result<Client> {
    let Some(proxy) = config.proxy_url.take().map(ProxyServer::of) else { return Client::try_from(config) };
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_connect_timeout(config.connect_timeout);
    let connector = config.rustls_https_connector_with_connector(ProxyConnector::new(tcp, Some(proxy)))?;
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(legacy::Client::builder(TokioExecutor::new()).build(connector));
    Ok(ClientBuilder::new(service, config.default_namespace).build())
}

/// Connects to servers, through a proxy if there is one.
#[derive(Clone, Debug)]
pub struct ProxyConnector {
    tcp: HttpConnector,
    proxy: Option<ProxyServer>,
}

impl ProxyConnector {
    /// Connects by `tcp`, through the proxy if there is one.
    pub fn new(tcp: HttpConnector, proxy: Option<ProxyServer>) -> Self {
        Self { tcp, proxy }
    }
}

impl Service<Uri> for ProxyConnector {
    type Response = TokioIo<TcpStream>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<TokioIo<TcpStream>, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.tcp.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, server: Uri) -> Self::Future {
        let Some(proxy) = self.proxy.clone() else {
            let connecting = self.tcp.call(server);
            return Box::pin(async move { Ok(connecting.await?) });
        };
        let connecting = self.tcp.call(proxy.url.clone());
        Box::pin(async move {
            let mut stream = connecting.await?;
            tunnel(stream.inner_mut(), &server, &proxy)
                .await
                .map_err(|error| io::Error::new(error.kind(), format!("the proxy {proxy}: {error}")))?;
            Ok(stream)
        })
    }
}

/// Asks the proxy for a connection to the server.
async fn tunnel(stream: &mut TcpStream, server: &Uri, proxy: &ProxyServer) -> io::Result<()> {
    let port = server.port_u16().unwrap_or(if server.scheme_str() == Some("http") { 80 } else { 443 });
    let target = format!("{}:{port}", server.host().unwrap_or_default());
    let authorization = proxy.authorization().map(|value| format!("Proxy-Authorization: {value}\r\n"));
    let authorization = authorization.unwrap_or_default();
    let request = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{authorization}\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    // Byte by byte: what follows the head is the server's.
    while !answer.ends_with(b"\r\n\r\n") {
        if answer.len() == MAX_ANSWER_BYTES {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "its answer to CONNECT is too large"));
        }
        answer.push(stream.read_u8().await?);
    }
    let head = String::from_utf8_lossy(&answer);
    let code = head.strip_prefix("HTTP/1.").and_then(|rest| rest.split(' ').nth(1)).unwrap_or_default();
    if code.len() == 3 && code.starts_with('2') {
        return Ok(());
    }
    let code: String = code.chars().filter(char::is_ascii_digit).take(3).collect();
    Err(io::Error::other(format!("it answers {code} to CONNECT {target}")))
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    fn proxy(server: &str, no_proxy: &str) -> bool {
        let server: Uri = server.parse().expect("a URL");
        let env = |name: &str| match name {
            "https_proxy" => Some("u:CANARY@proxy:3128".to_owned()),
            "NO_PROXY" => Some(no_proxy.to_owned()),
            _ => None,
        };
        from_environment(&server, &env).expect("a proxy").is_some()
    }

    #[test]
    fn the_environment_chooses_the_proxy_as_in_go() {
        for local in
            ["https://127.0.0.1:6443", "https://localhost", "https://[::1]:6443", "https://127.9.9.9"]
        {
            assert!(!proxy(local, ""), "{local}");
        }
        for (no_proxy, server, uses) in [
            ("", "https://api.example.com:6443", true),
            ("", "http://api.example.com", false),
            ("*", "https://api.example.com", false),
            ("example.com", "https://api.example.com", false),
            ("example.com", "https://example.com", false),
            ("example.com", "https://badexample.com", true),
            (".example.com", "https://example.com", true),
            (".example.com", "https://api.example.com", false),
            ("*.example.com", "https://api.example.com", false),
            (" other , API.example.com ", "https://api.example.com", false),
            ("api.example.com:6443", "https://api.example.com:6443", false),
            ("api.example.com:6443", "https://api.example.com", true),
            ("10.0.0.0/8", "https://10.1.2.3:6443", false),
            ("10.0.0.0/8", "https://11.1.2.3", true),
            ("10.1.2.3", "https://10.1.2.3", false),
            ("10.1.2.3:443", "https://10.1.2.3", false),
            ("fd00::/8", "https://[fd00::1]:6443", false),
            ("[fd00::1]:6443", "https://[fd00::1]:6443", false),
            ("proxy", "https://api.example.com", true),
        ] {
            assert_eq!(proxy(server, no_proxy), uses, "NO_PROXY={no_proxy} {server}");
        }
    }

    #[test]
    fn a_proxy_is_http_and_its_credential_is_not_shown() {
        let read = |text| ProxyServer::read(text, "HTTPS_PROXY");
        let proxy = read("u:p%40CANARY@proxy:3128").expect("without a scheme it is http");
        assert_eq!(
            (proxy.to_string().as_str(), format!("{proxy:?}").as_str()),
            ("http://proxy:3128", "http://proxy:3128")
        );
        assert_eq!(proxy.authorization(), Some(format!("Basic {}", STANDARD.encode("u:p@CANARY"))));
        for wrong in
            ["https://u:CANARY@proxy", "socks5://u:CANARY@proxy", "http://u:CANARY @proxy", "http://"]
        {
            let error = read(wrong).expect_err(wrong).to_string();
            assert!(error.contains("HTTPS_PROXY") && !error.contains("CANARY"), "{error}");
        }
    }

    #[tokio::test]
    async fn a_connection_goes_through_the_proxy() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let at = listener.local_addr().expect("an address");
        let serving = tokio::spawn(async move {
            let mut asked = Vec::new();
            for answer in ["HTTP/1.1 200 OK\r\nA: b\r\n\r\nserver", "HTTP/1.1 407 Who\r\n\r\n"] {
                let (mut stream, _) = listener.accept().await.expect("a connection");
                let mut head = vec![0; 4096];
                let count = stream.read(&mut head).await.expect("a head");
                asked.push(String::from_utf8_lossy(&head[..count]).into_owned());
                stream.write_all(answer.as_bytes()).await.expect("sent");
            }
            asked
        });
        let proxy = ProxyServer::read(&format!("u:p@{at}"), "HTTPS_PROXY").expect("a proxy");
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        let mut connector = ProxyConnector::new(tcp, Some(proxy));
        let server = Uri::from_static("https://api.example.com:6443");
        let mut stream = connector.call(server.clone()).await.expect("a tunnel").into_inner();
        let mut rest = String::new();
        stream.read_to_string(&mut rest).await.expect("all");
        assert_eq!(rest, "server", "what follows the head is the server's");
        let refused = connector.call(server).await.expect_err("407").to_string();
        assert_eq!(refused, format!("the proxy http://{at}: it answers 407 to CONNECT api.example.com:6443"));
        let asked = serving.await.expect("no panic");
        let expected = "CONNECT api.example.com:6443 HTTP/1.1\r\nHost: api.example.com:6443\r\nProxy-Authorization: Basic dTpw\r\n\r\n";
        assert_eq!(asked[0], expected);
    }
}
