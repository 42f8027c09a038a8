//! A client of one cluster. This is the one place that builds and sends requests to clusters.

use std::fmt;
use std::sync::Arc;

use http::header::{
    ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CONNECTION, ETAG, HOST, IF_NONE_MATCH, UPGRADE, USER_AGENT,
};
use http::uri::{Authority, Scheme, Uri};
use http::{HeaderValue, Method, Request, StatusCode};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::Bytes;
use tokio::time::timeout;

use crate::cluster::authentication::Redactor;
use crate::cluster::error::BrokenConnection;
use crate::cluster::exchange::RequestBody;
use crate::cluster::pool::{Lease, Pool, PoolSlot};
use crate::cluster::tls::ServerCertificate;
use crate::cluster::{CheckAnswer, CheckStep, ConnectionCheck};
use crate::cluster::{
    ClusterContext, ClusterEndpoint, ClusterError, ClusterRequest, ClusterResponse, Use, authentication,
    error,
};
use crate::metrics::ClusterRequestCounter;

/// Maximum number of kept connections on which one request is tried that turn out to be closed.
const MAX_CLOSED_CONNECTIONS: usize = 4;
/// Maximum size of the body of a refusal that is read, in bytes.
const MAX_REFUSAL_BYTES: usize = 64 * 1024;

/// Maximum size of the body of an answer to a check, in bytes.
const MAX_CHECK_BYTES: usize = 1024 * 1024;

/// A client of one cluster with one credential. It opens connections when there is something to send, keeps them while
/// they are used, and closes them when they have been idle for a while, or when it is dropped. Responses that are being
/// read then keep their connections. Clones share the connections.
#[derive(Clone)]
pub struct ClusterClient(Arc<ClientParts>);

struct ClientParts {
    endpoint: ClusterEndpoint,
    context: ClusterContext,
    url: String,
    authority: Authority,
    pools: [Arc<Pool>; Use::COUNT],
    check: Option<Arc<dyn ConnectionCheck>>,
}

impl fmt::Debug for ClusterClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterClient").field("url", &self.0.url).finish_non_exhaustive()
    }
}

/// A complete response with status 200.
pub struct ClusterDocument {
    /// The body, as received.
    pub body: Bytes,
    /// The certificate that the server has shown.
    pub server: Arc<ServerCertificate>,
    /// The tag of this version of the document, if the server gave one.
    pub tag: Option<HeaderValue>,
}

impl fmt::Debug for ClusterDocument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterDocument").field("bytes", &self.body.len()).finish_non_exhaustive()
    }
}

impl ClusterClient {
    /// Creates a client, which does not connect yet.
    ///
    /// # Errors
    ///
    /// [`ClusterError::Kubeconfig`] if the server's host cannot be named in a request.
    pub fn new(endpoint: ClusterEndpoint, context: &ClusterContext) -> Result<Self, ClusterError> {
        Self::create(endpoint, context, None)
    }

    /// Creates a client that checks each new connection before it sends anything else on it.
    pub fn checked(
        endpoint: ClusterEndpoint,
        context: &ClusterContext,
        check: Arc<dyn ConnectionCheck>,
    ) -> Result<Self, ClusterError> {
        Self::create(endpoint, context, Some(check))
    }

    fn create(
        endpoint: ClusterEndpoint,
        context: &ClusterContext,
        check: Option<Arc<dyn ConnectionCheck>>,
    ) -> Result<Self, ClusterError> {
        Ok(Self(Arc::new(ClientParts {
            url: endpoint.url().to_owned(),
            authority: authentication::authority(&endpoint.server)?,
            pools: Use::ALL.map(|purpose| Pool::new(purpose, (context.pool_limits)(purpose))),
            endpoint,
            context: context.clone(),
            check,
        })))
    }

    /// URL of the API server, without a trailing slash.
    pub fn url(&self) -> &str {
        &self.0.url
    }

    /// Sends a request and waits for the head of its response, whatever its status. Nothing bounds the time that takes:
    /// dropping the future, or the response, cancels the request.
    ///
    /// A request is sent at most once. If a kept connection turns out to be closed before a byte of the request was
    /// sent, the request goes over another connection.
    pub async fn send(&self, purpose: Use, request: ClusterRequest) -> Result<ClusterResponse, ClusterError> {
        let step = self.step(&request);
        if !request.path.starts_with('/') {
            return Err(ClusterError::Path(step));
        }
        if request.upgrade.is_some() && !self.pool(purpose).is_http1_only() {
            return Err(ClusterError::UpgradeOverHttp2(step));
        }
        // A caller's request says of itself what it says, and nothing where it says nothing.
        let names_agent = purpose != Use::Requests;
        let mut request = self.build(&step, request, names_agent)?;
        let mut closed_connections = 0;
        loop {
            let mut lease = self.lease(purpose, &step).await?;
            if lease.is_new() {
                self.check(&mut lease).await.map_err(|error| ClusterError::Check(Box::new(error)))?;
                lease.publish();
            }
            let mut counted = CountOnDrop { requests: &self.0.context.requests, status: Some(0) };
            match lease.exchange(self.addressed(request, lease.is_http2())).await {
                Ok(response) => {
                    counted.status = Some(response.status().as_u16().into());
                    return Ok(ClusterResponse::new(step, response, lease));
                }
                Err(error) => {
                    let may_go_elsewhere = !lease.is_new() && closed_connections < MAX_CLOSED_CONNECTIONS;
                    let before_send = error.unsent.is_some();
                    match error.unsent.filter(|_| may_go_elsewhere) {
                        Some(unsent) => {
                            counted.status = None;
                            closed_connections += 1;
                            request = *unsent;
                        }
                        None => {
                            return Err(ClusterError::Broken {
                                step,
                                source: error.source.into(),
                                before_send,
                            });
                        }
                    }
                }
            }
        }
    }

    /// Asks on a new connection what the check of the client wants to know.
    async fn check(&self, lease: &mut Lease) -> Result<(), ClusterError> {
        let Some(check) = &self.0.check else { return Ok(()) };
        let limit = self.0.context.limits.connect;
        let mut answers = Vec::new();
        loop {
            match check.step(&answers, lease.server()) {
                CheckStep::Passed => return Ok(()),
                CheckStep::Failed(why) => {
                    return Err(ClusterError::AnotherCluster { url: self.0.url.clone(), why });
                }
                CheckStep::Ask { path, accept } => {
                    let request = ClusterRequest::new(Method::GET, path);
                    let request = request.header(ACCEPT, HeaderValue::from_static(accept));
                    let step = self.step(&request);
                    let answer = timeout(limit, self.ask(lease, request, &step)).await;
                    answers.push(answer.unwrap_or_else(|_| Err(ClusterError::Timeout { step, limit }))?);
                }
            }
        }
    }

    /// The answer to a request of a check. A server that refuses the credential, has a fault, or asks to be left alone, has
    /// not answered.
    async fn ask(
        &self,
        lease: &mut Lease,
        request: ClusterRequest,
        step: &Arc<str>,
    ) -> Result<CheckAnswer, ClusterError> {
        let broken = |source: BrokenConnection, before_send| ClusterError::Broken {
            step: step.clone(),
            source,
            before_send,
        };
        let request = self.build(step, request, true)?;
        let mut counted = CountOnDrop { requests: &self.0.context.requests, status: Some(0) };
        let response = lease.exchange(self.addressed(request, lease.is_http2())).await;
        let response = response.map_err(|error| broken(error.source.into(), error.unsent.is_some()))?;
        let status = response.status();
        counted.status = Some(status.as_u16().into());
        // A server ends an HTTP/2 connection after a 401: what is asked next would only hear of that.
        let is_refused = status == StatusCode::UNAUTHORIZED;
        if is_refused || status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS {
            return Err(ClusterError::Refused { step: step.clone(), status, said: String::new() });
        }
        let body = Limited::new(response.into_body(), MAX_CHECK_BYTES).collect().await;
        let body = body.map_err(|error| match error.downcast::<hyper::Error>() {
            Ok(error) => broken((*error).into(), false),
            // The only other error of a limited body.
            Err(_) => ClusterError::TooLarge { step: step.clone(), limit: MAX_CHECK_BYTES },
        })?;
        if !lease.is_ready_again().await {
            return Err(ClusterError::Closed(step.clone()));
        }
        Ok(CheckAnswer { status, body: body.to_bytes() })
    }

    /// Sends a GET request and reads the whole response, within the limits of the context. Any status other than 200 is
    /// an error, whose [`http_status`](ClusterError::http_status) holds it.
    pub async fn get(
        &self,
        purpose: Use,
        path: &str,
        accept: &'static str,
    ) -> Result<ClusterDocument, ClusterError> {
        match self.get_changed(purpose, path, accept, None).await? {
            Some(document) => Ok(document),
            // Nothing was asked that has this answer.
            None => {
                let step = self.step(&ClusterRequest::new(Method::GET, path));
                Err(ClusterError::Refused { step, status: StatusCode::NOT_MODIFIED, said: String::new() })
            }
        }
    }

    /// Like [`get`](Self::get); `None` if the document has still this tag.
    pub async fn get_changed(
        &self,
        purpose: Use,
        path: &str,
        accept: &'static str,
        tag: Option<&HeaderValue>,
    ) -> Result<Option<ClusterDocument>, ClusterError> {
        let mut request = ClusterRequest::new(Method::GET, path);
        request = request.header(ACCEPT, HeaderValue::from_static(accept));
        if let Some(tag) = tag {
            request = request.header(IF_NONE_MATCH, tag.clone());
        }
        let step = self.step(&request);
        let limit = self.0.context.limits.answer;
        match timeout(limit, self.read(purpose, request, &step)).await {
            Ok(result) => result,
            Err(_) => Err(ClusterError::Timeout { step, limit }),
        }
    }

    /// Whether a connection for this use is open that takes several requests at once.
    pub fn has_shared_connection(&self, purpose: Use) -> bool {
        self.pool(purpose).has_http2()
    }

    /// Whether connections for this use are open, and each of them carries one request at a time.
    pub fn speaks_http1(&self, purpose: Use) -> bool {
        self.pool(purpose).speaks_http1()
    }

    /// Takes a slot for this use: there are as many as there may be connections.
    ///
    /// # Errors
    ///
    /// [`ClusterError::TooManyWatches`] if all are taken.
    pub fn slot(&self, purpose: Use) -> Result<PoolSlot, ClusterError> {
        self.pool(purpose).slot()
    }

    async fn read(
        &self,
        purpose: Use,
        request: ClusterRequest,
        step: &Arc<str>,
    ) -> Result<Option<ClusterDocument>, ClusterError> {
        let is_conditional = request.headers.contains_key(IF_NONE_MATCH);
        let response = self.send(purpose, request).await?;
        if is_conditional && response.status() == StatusCode::NOT_MODIFIED {
            // To its end, so that the connection is kept.
            let _ = Limited::new(response.into_body(), MAX_REFUSAL_BYTES).collect().await;
            return Ok(None);
        }
        if response.status() != StatusCode::OK {
            return Err(self.refused(step.clone(), response).await);
        }
        let (limit, server) = (self.0.context.limits.body, response.server().clone());
        let tag = response.headers().get(ETAG).cloned();
        match Limited::new(response.into_body(), limit).collect().await {
            Ok(body) => Ok(Some(ClusterDocument { body: body.to_bytes(), server, tag })),
            Err(error) => Err(match error.downcast::<ClusterError>() {
                Ok(error) => *error,
                // The only other error of a limited body.
                Err(_) => ClusterError::TooLarge { step: step.clone(), limit },
            }),
        }
    }

    /// Converts a response other than 200 into an error. It includes the message of a Kubernetes Status; of any other
    /// body only the length is revealed, because a user who can name an address must not be able to read what is there.
    async fn refused(&self, step: Arc<str>, response: ClusterResponse) -> ClusterError {
        let status = response.status();
        if status.is_redirection() {
            return ClusterError::Redirected { step, status };
        }
        let said = match Limited::new(response.into_body(), MAX_REFUSAL_BYTES).collect().await {
            Ok(body) => {
                let body = body.to_bytes();
                match error::message_in(&body) {
                    Some(message) => self.redactor().clean(&message),
                    None => format!("{} bytes that are no Kubernetes Status", body.len()),
                }
            }
            Err(error) if error.is::<LengthLimitError>() => format!("more than {MAX_REFUSAL_BYTES} bytes"),
            Err(_) => String::new(),
        };
        let said = if said.is_empty() { said } else { format!(" ({said})") };
        ClusterError::Refused { step, status, said }
    }

    /// Text of the server without control characters and without the credential of this client, truncated.
    pub fn without_credential(&self, text: &str) -> String {
        self.redactor().clean(text)
    }

    fn redactor(&self) -> Redactor {
        self.0.endpoint.authentication.as_ref().map(Redactor::of).unwrap_or_default()
    }

    /// The request, as errors name it.
    fn step(&self, request: &ClusterRequest) -> Arc<str> {
        format!("{} {} of {}", request.method, request.path_without_query(), self.0.url).into()
    }

    fn pool(&self, purpose: Use) -> &Arc<Pool> {
        &self.0.pools[purpose.index()]
    }

    async fn lease(&self, purpose: Use, step: &Arc<str>) -> Result<Lease, ClusterError> {
        let waited = self.0.context.limits.wait;
        let leased = self.pool(purpose).lease(&self.0.endpoint, &self.0.context);
        timeout(waited, leased)
            .await
            .unwrap_or_else(|_| Err(ClusterError::Busy { step: step.clone(), waited }))
    }

    /// Builds a request with the recipient, the credential and what else only the client decides.
    fn build(
        &self,
        step: &Arc<str>,
        request: ClusterRequest,
        names_agent: bool,
    ) -> Result<Request<RequestBody>, ClusterError> {
        let ClientParts { endpoint, authority, .. } = &*self.0;
        let invalid = |source: http::Error| ClusterError::Request { step: step.clone(), source };
        let prefix = endpoint.server.path().trim_end_matches('/');
        let uri = Uri::builder()
            .scheme(Scheme::HTTPS)
            .authority(authority.clone())
            .path_and_query(format!("{prefix}{}", request.path))
            .build()
            .map_err(invalid)?;
        let mut built = Request::new(request.body);
        *built.method_mut() = request.method;
        *built.uri_mut() = uri;
        *built.headers_mut() = request.headers;
        let headers = built.headers_mut();
        if names_agent {
            let agent = HeaderValue::from_static(concat!("kubesvc-agent/", env!("CARGO_PKG_VERSION")));
            headers.entry(USER_AGENT).or_insert(agent);
        }
        headers.insert(ACCEPT_ENCODING, request.encoding.unwrap_or(HeaderValue::from_static("identity")));
        if let Some(upgrade) = request.upgrade {
            headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
            headers.insert(UPGRADE, upgrade);
        }
        if let Some(authentication) = &endpoint.authentication
            && let Some(authorization) = authentication::header(authentication)?
        {
            headers.insert(AUTHORIZATION, authorization);
        }
        Ok(built)
    }

    /// Names the recipient in the way of the protocol: in the request's target, or in a `Host` header.
    fn addressed(&self, mut request: Request<RequestBody>, is_http2: bool) -> Request<RequestBody> {
        let mut parts = std::mem::take(request.uri_mut()).into_parts();
        if is_http2 {
            (parts.scheme, parts.authority) = (Some(Scheme::HTTPS), Some(self.0.authority.clone()));
            request.headers_mut().remove(HOST);
        } else {
            (parts.scheme, parts.authority) = (None, None);
            let host = HeaderValue::from_str(self.0.authority.as_str());
            request.headers_mut().insert(HOST, host.expect("an authority is visible ASCII"));
        }
        *request.uri_mut() = Uri::from_parts(parts).expect("a request's target has a path");
        request
    }
}

/// Counts a request when it is dropped: by the status of its response, or 0 if there is none. `None` if it was not sent.
struct CountOnDrop<'r> {
    requests: &'r ClusterRequestCounter,
    status: Option<i32>,
}

impl Drop for CountOnDrop<'_> {
    fn drop(&mut self) {
        if let Some(status) = self.status {
            self.requests.count(status);
        }
    }
}
