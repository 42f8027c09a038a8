//! The only way to a cluster: raw HTTP/1.1 over TLS, on one connection.
//!
//! Requests use the connection one after another, and it closes with the [`ClusterAccess`]: an account that
//! is merely held costs no socket. Redirects are not followed, requests are not retried, responses are not
//! decompressed, and proxy environment variables are not (yet) used. Errors are [`Failure`]s that name the
//! host and the step, without any credential.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use http::header::{ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CONTENT_TYPE, HOST, USER_AGENT};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty, LengthLimitError, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::task::AbortOnDropHandle;
use url::Url;

use crate::account::kubeconfig::{Authentication, VettedKubeconfig};
use crate::account::policy::AgentPolicy;
use crate::agent::failure::after_send;
use crate::agent::metrics::Requests;
use crate::wire::common::Failure;
use crate::wire::common::failure::Class;

mod authentication;
mod dial;
mod failures;
mod redact;
#[cfg(test)]
pub(super) mod test_server;
#[cfg(test)]
mod tests;
mod tls;

pub(super) use dial::forbidden;
pub(super) use tls::system_verifier;
pub use tls::{Trust, TrustError};

use redact::Redactor;

/// Time and size limits for a cluster.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Timeout from name resolution to the end of the TLS handshake.
    pub connect: Duration,
    /// Timeout from sending a request to the end of its response.
    pub answer: Duration,
    /// Maximum size of a response body, in bytes.
    pub body: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { connect: Duration::from_secs(10), answer: Duration::from_secs(60), body: 16 * 1024 * 1024 }
    }
}

/// Address of a cluster, and the credential for it.
#[derive(Clone)]
pub struct ClusterEndpoint {
    server: Url,
    certificate_authority: Option<Vec<u8>>,
    insecure: bool,
    tls_server_name: Option<String>,
    /// Limits what the agent may dial.
    policy: AgentPolicy,
    /// `None` for anonymous requests.
    authentication: Option<Authentication>,
}

impl ClusterEndpoint {
    /// The cluster of a vetted kubeconfig, subject to the policy.
    pub fn new(kubeconfig: VettedKubeconfig, policy: &AgentPolicy) -> Self {
        Self {
            server: kubeconfig.server,
            certificate_authority: kubeconfig.certificate_authority,
            insecure: kubeconfig.insecure_skip_tls_verify,
            tls_server_name: kubeconfig.tls_server_name,
            policy: policy.clone(),
            authentication: Some(kubeconfig.authentication),
        }
    }

    /// The same cluster, without a credential.
    pub fn anonymous(self) -> Self {
        Self { authentication: None, ..self }
    }

    /// URL of the API server, without a trailing slash.
    pub fn url(&self) -> &str {
        self.server.as_str().trim_end_matches('/')
    }
}

impl fmt::Debug for ClusterEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster")
            .field("server", &self.url())
            .field("authentication", &self.authentication)
            .finish_non_exhaustive()
    }
}

/// One connection to the API server of a cluster.
pub struct ClusterAccess {
    url: String,
    path_prefix: String,
    host: HeaderValue,
    authorization: Option<HeaderValue>,
    redactor: Redactor,
    fingerprint: String,
    authority_key_digest: String,
    limits: Limits,
    requests: Requests,
    sender: SendRequest<Empty<Bytes>>,
    _connection: AbortOnDropHandle<()>,
}

impl fmt::Debug for ClusterAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterAccess").field("url", &self.url).finish_non_exhaustive()
    }
}

/// A response with status 200.
#[derive(Debug)]
pub struct ClusterResponse {
    /// Media type from the `Content-Type` header.
    pub content_type: String,
    /// The body, as received.
    pub body: Bytes,
}

impl ClusterAccess {
    /// Connects: resolves the name, rejects addresses that no API server may have, and completes the TLS
    /// handshake.
    pub async fn connect(cluster: &ClusterEndpoint, trust: &Trust, limits: Limits) -> Result<Self, Failure> {
        let deadline = Instant::now() + limits.connect;
        let stream = dial::tls(cluster, trust, deadline).await?;
        let fingerprint = tls::fingerprint(&stream);
        let authority_key_digest = trust.authority_key_digest(cluster, &stream);
        let io = TokioIo::new(stream);
        let shaken = http1::Builder::new().max_headers(128).max_buf_size(128 * 1024).handshake(io);
        let url = cluster.url().to_owned();
        let (sender, connection) = match timeout_at(deadline, shaken).await {
            Ok(Ok(parts)) => parts,
            Ok(Err(error)) => return Err(failures::broken(&format!("connecting to {url}"), &error)),
            Err(_) => return Err(dial::too_slow(cluster)),
        };
        let connection = AbortOnDropHandle::new(tokio::spawn(async move {
            // The pending request receives the connection's error.
            let _ = connection.await;
        }));
        Ok(Self {
            path_prefix: cluster.server.path().trim_end_matches('/').to_owned(),
            host: authentication::host(&cluster.server)?,
            authorization: match &cluster.authentication {
                Some(authentication) => authentication::header(authentication)?,
                None => None,
            },
            redactor: cluster.authentication.as_ref().map(Redactor::of).unwrap_or_default(),
            requests: Requests::default(),
            url,
            fingerprint,
            authority_key_digest,
            limits,
            sender,
            _connection: connection,
        })
    }

    /// Sets where requests are counted.
    #[must_use]
    pub fn counted_in(self, requests: &Requests) -> Self {
        Self { requests: requests.clone(), ..self }
    }

    /// SHA-256 of the server certificate in DER: upper-case hexadecimal pairs, joined by colons.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// SHA-256 of the public key of the cluster's own authority that verified the server, in hexadecimal.
    /// Empty if the system's authorities verified it, or nothing did.
    pub fn authority_key_digest(&self) -> &str {
        &self.authority_key_digest
    }

    /// URL of the API server, without a trailing slash.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Sends a GET request. Any status other than 200 is a failure, whose `http_status` holds it.
    ///
    /// `path` begins with a slash and may have a query; it is appended to the path of the server's URL.
    pub async fn get(&mut self, path: &str, accept: &'static str) -> Result<ClusterResponse, Failure> {
        let step = format!("GET {path} of {}", self.url);
        let request = self
            .request(path, accept)
            .map_err(|error| after_send(Class::Internal, format!("{step} could not be built: {error}")))?;
        let result = match timeout(self.limits.answer, self.exchange(&step, request)).await {
            Ok(result) => result,
            Err(_) => Err(after_send(
                Class::Timeout,
                format!("{step} was not answered within {}", failures::shown(self.limits.answer)),
            )),
        };
        self.requests.count(result.as_ref().map_or_else(|failure| failure.http_status, |_| 200));
        result
    }

    fn request(&self, path: &str, accept: &'static str) -> http::Result<Request<Empty<Bytes>>> {
        let mut request = Request::builder()
            .method(Method::GET)
            .uri(format!("{}{path}", self.path_prefix))
            .header(HOST, self.host.clone())
            .header(USER_AGENT, concat!("kubesvc-agent/", env!("CARGO_PKG_VERSION")))
            .header(ACCEPT, accept)
            .header(ACCEPT_ENCODING, "identity");
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization.clone());
        }
        request.body(Empty::new())
    }

    async fn exchange(
        &mut self,
        step: &str,
        request: Request<Empty<Bytes>>,
    ) -> Result<ClusterResponse, Failure> {
        self.sender.ready().await.map_err(|error| failures::broken(step, &error))?;
        let response =
            self.sender.send_request(request).await.map_err(|error| failures::broken(step, &error))?;
        let status = response.status();
        if status != StatusCode::OK {
            return Err(self.refused(step, response).await);
        }
        let content_type = header_text(&response, &CONTENT_TYPE);
        let body = match Limited::new(response.into_body(), self.limits.body).collect().await {
            Ok(body) => body.to_bytes(),
            Err(error) if error.is::<LengthLimitError>() => {
                return Err(after_send(
                    Class::TooLarge,
                    format!("{step} answered with more than {} bytes", self.limits.body),
                ));
            }
            Err(error) => return Err(failures::broken(step, error.as_ref())),
        };
        Ok(ClusterResponse { content_type, body })
    }

    /// Converts a response other than 200 into a failure. It includes the message of a Kubernetes Status; of
    /// any other body only the length is revealed, because a user who can name an address must not be able to
    /// read what is there.
    async fn refused(&self, step: &str, response: Response<Incoming>) -> Failure {
        const READ_BUFFER_BYTES: usize = 64 * 1024;
        let status = response.status();
        if status.is_redirection() {
            return failures::redirected(step, status);
        }
        let said = match Limited::new(response.into_body(), READ_BUFFER_BYTES).collect().await {
            Ok(body) => {
                let body = body.to_bytes();
                match failures::message_in(&body) {
                    Some(message) => self.redactor.clean(&message),
                    None => format!("{} bytes that are no Kubernetes Status", body.len()),
                }
            }
            Err(error) if error.is::<LengthLimitError>() => format!("more than {READ_BUFFER_BYTES} bytes"),
            Err(_) => String::new(),
        };
        failures::refused(step, status, &said)
    }
}

fn header_text<B>(response: &Response<B>, name: &http::HeaderName) -> String {
    let value =
        response.headers().get(name).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
    value.unwrap_or_default()
}

/// Formats addresses for a failure message.
fn addresses_shown(addresses: &[SocketAddr]) -> String {
    addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
