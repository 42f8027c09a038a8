//! The API of accounts (port 6443): an account's Kubernetes API as any client uses it, through an agent.
//!
//! One HTTPS listener has two doors. Behind the API server of the operator's cluster it is an aggregated API: that API
//! server says who calls. Directly, a caller shows a token with the audience `kubesvc`. Either way RBAC on
//! `accounts/proxy` decides, and the request goes to the account through [`AccountRequests`].
//!
//! | module | owns |
//! |---|---|
//! | `listener` | connections: TLS, HTTP/1.1 and 2, bounds |
//! | `tls`, `own_certificate` | the certificate: from files, or made here and shared by the replicas |
//! | `paths` | what a path names; pure |
//! | `discovery` | what the group serves, as API servers and kubectl ask for it; pure |
//! | `checks` | who calls, and what they may |
//! | `proxying` | one request to an account: what is sent, and what the caller gets |
//! | `answers`, `upgrades` | bodies of answers, and upgraded connections, until they end |
//! | `rewriting` | what an account's API server says of its own paths; pure |
//! | `delete_options` | what the body of a delete says, for its record; pure |
//! | `records` | audit lines and history of what was done |
//! | `operation_list` | the operations of an account |
//! | `cached_objects` | what is cached of an account |
//! | `status` | errors as a Status |

mod answers;
mod cached_objects;
mod checks;
mod delete_options;
mod discovery;
mod listener;
mod operation_list;
mod own_certificate;
mod paths;
mod proxying;
mod records;
mod rewriting;
mod status;
#[cfg(test)]
mod tests;
mod tls;
mod upgrades;

use std::sync::Arc;

use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::access::audit::AuditLog;
use crate::access::{Access, CallerCounts, HeldHead, UnknownHeads, compact, head_bytes};
use crate::account_caches::AccountCaches;
use crate::connected_agents::AccountRequests;
use crate::informers::AccountIndex;
use crate::operations::OperationHistory;
use kubesvc_core::ReplicaId;
use kubesvc_runtime::listen::bodies::BodyMemory;
use kubesvc_runtime::listen::connection_limits::ClientAddress;
use kubesvc_runtime::listen::refused_heads::MAX_HEAD_BYTES;
use kubesvc_store::OperationStore;
use listener::ConnectionInfo;
use paths::Route;
use status::Refusal;

pub use listener::GatewayListener;
pub use own_certificate::GatewayCertificate;

/// Group of the API.
const GROUP: &str = "proxy.kubesvc.io";
/// Its version.
const VERSION: &str = "v1alpha1";

/// Memory for bodies of requests, in KiB.
const BODIES_KIB: usize = 256 * 1024;

/// Why a body ends early.
type BodyStreamError = Box<dyn std::error::Error + Send + Sync>;
/// The body of an answer.
type Body = UnsyncBoxBody<Bytes, BodyStreamError>;

/// What the gateway calls.
#[derive(Clone)]
pub struct GatewayPorts {
    /// Who calls, and what they may.
    pub access: Arc<dyn Access>,
    /// Accounts' API servers.
    pub requests: Arc<dyn AccountRequests>,
    /// Index of the accounts as last seen.
    pub accounts: Arc<AccountIndex>,
    /// What is cached of accounts.
    pub caches: Arc<AccountCaches>,
    /// Where writes and upgraded connections are recorded.
    pub history: Arc<dyn OperationHistory>,
    /// The rows of operations.
    pub store: Arc<dyn OperationStore>,
    /// Audit lines.
    pub audit: AuditLog,
    /// How many requests of one caller run at this replica.
    pub callers: Arc<CallerCounts>,
}

/// The API of accounts.
pub struct Gateway {
    replica_id: ReplicaId,
    ports: GatewayPorts,
    /// Bodies that are being read or sent, by the name of their caller.
    bodies: BodyMemory<String>,
    heads: Arc<UnknownHeads>,
    metrics: GatewayMetrics,
    /// Cancelled when the process stops.
    stopping: CancellationToken,
}

impl Gateway {
    /// Creates the gateway of a replica.
    pub fn new(replica_id: ReplicaId, ports: GatewayPorts, stopping: CancellationToken) -> Arc<Self> {
        let (bodies, metrics) = (BodyMemory::new(BODIES_KIB), GatewayMetrics::default());
        Arc::new(Self { replica_id, ports, bodies, heads: Arc::default(), metrics, stopping })
    }

    /// Adds the metrics to a registry.
    pub fn register(&self, registry: &mut Registry) {
        self.metrics.register(registry);
    }

    /// Answers a request.
    async fn answer(
        self: Arc<Self>,
        mut request: Request<Incoming>,
        from: Arc<ConnectionInfo>,
    ) -> Response<Body> {
        let bytes = head_bytes(request.uri(), request.headers());
        let held = self.hold_head(bytes, &from);
        if held.is_ok() && request.version() == Version::HTTP_2 {
            compact(&mut request);
        }
        let request_id = ulid::Ulid::generate().to_string();
        let (headers, method) = (request.headers().clone(), request.method().clone());
        let call = Call { request_id, headers, method, address: Some(from.address) };
        let answered = match held {
            Ok(head) => self.route(request, &call, &from, head).await,
            Err(refusal) => {
                self.refused_stranger(&call, &refusal);
                Err(refusal)
            }
        };
        let mut response = answered.unwrap_or_else(Refusal::response);
        if let Ok(id) = HeaderValue::from_str(&call.request_id) {
            response.headers_mut().insert("audit-id", id);
        }
        self.metrics.answered(response.status());
        response
    }

    /// Takes the memory of a head until it is known who calls; `None`: the API server says who, and has a bound of its own.
    fn hold_head(&self, bytes: usize, from: &ConnectionInfo) -> Result<Option<HeldHead>, Refusal> {
        if bytes > MAX_HEAD_BYTES {
            return Err(Refusal::too_large_head());
        }
        let held = (!from.is_front_proxy).then(|| self.heads.hold(from.address, bytes));
        held.transpose().map_err(Refusal::from)
    }

    async fn route(
        self: &Arc<Self>,
        request: Request<Incoming>,
        call: &Call,
        from: &ConnectionInfo,
        head: Option<HeldHead>,
    ) -> Result<Response<Body>, Refusal> {
        let route = self.route_of(&request, call)?;
        if let Route::Health = route {
            return Ok(text(StatusCode::OK, "ok"));
        }
        let principal = self.authenticate(call, from).await?;
        drop(head);
        match route {
            Route::Health => Ok(text(StatusCode::OK, "ok")),
            Route::Discovery(document) => {
                if !matches!(call.method, Method::GET | Method::HEAD) {
                    let refusal = Refusal::method_not_allowed();
                    self.refused(&call.refusal_by(&principal), &refusal);
                    return Err(refusal);
                }
                discovery::answer(document, &call.headers)
            }
            Route::Operations(account) => {
                self.list_operations(call, &principal, &account, request.uri().query()).await
            }
            Route::Cache(account) => {
                self.show_cache(call, &principal, &account, request.uri().query()).await
            }
            Route::Operation(account, id) => self.get_operation(call, &principal, &account, &id).await,
            // Boxed, so that a request is small until it is known who calls.
            Route::Proxy(account, path) => Box::pin(self.proxy(request, call, principal, &account, path)).await,
        }
        .inspect_err(|refusal| debug!(code = %refusal.code, why = refusal.message, "a call to the gateway was refused"))
    }

    /// What a request asks for, by its head.
    fn route_of<B>(&self, request: &Request<B>, call: &Call) -> Result<Route, Refusal> {
        let is_absolute = request.uri().scheme().is_some() && request.version() < Version::HTTP_2;
        let route = if is_absolute || request.method() == Method::CONNECT {
            Err(Refusal::bad_request("the request is for a proxy; send the path alone"))
        } else {
            paths::route(request.uri().path())
        };
        route.inspect_err(|refusal| self.refused_stranger(call, refusal))
    }
}

/// What is known of a call from its head.
struct Call {
    request_id: String,
    headers: HeaderMap,
    method: Method,
    /// Where the connection comes from; `None`: that is not known.
    address: Option<ClientAddress>,
}

impl Call {
    /// The value of a header as text; empty if there is none.
    fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }
}

fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

fn text(code: StatusCode, text: &'static str) -> Response<Body> {
    let mut response = Response::new(full(text));
    *response.status_mut() = code;
    response.headers_mut().insert(http::header::CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    response
}

fn json(code: StatusCode, document: &impl serde::Serialize) -> Response<Body> {
    json_as(code, "application/json", document)
}

fn json_as(code: StatusCode, media: &'static str, document: &impl serde::Serialize) -> Response<Body> {
    let mut response = Response::new(full(serde_json::to_vec(document).unwrap_or_default()));
    *response.status_mut() = code;
    response.headers_mut().insert(http::header::CONTENT_TYPE, HeaderValue::from_static(media));
    response
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CodeLabel {
    code: u16,
}

/// `kubesvc_gateway_*`.
#[derive(Clone, Default)]
struct GatewayMetrics {
    answered: Family<CodeLabel, Counter>,
    /// Connections.
    connections: Gauge,
    /// Watches, followed logs and upgraded connections.
    streams: Gauge,
}

impl GatewayMetrics {
    fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("kubesvc_gateway");
        registry.register("requests", "Answers of the API of accounts, by status", self.answered.clone());
        registry.register("connections", "Connections to the API of accounts", self.connections.clone());
        let help = "Watches, followed logs and upgraded connections through the API of accounts";
        registry.register("streams", help, self.streams.clone());
    }

    fn answered(&self, code: StatusCode) {
        self.answered.get_or_create(&CodeLabel { code: code.as_u16() }).inc();
    }
}
