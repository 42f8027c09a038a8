//! The REST API (port 7002): the documented calls, on accounts that are stored in Kubernetes.
//!
//! REST holds no state. It validates a whole request, then writes it to the account's object. The leader acts on the
//! object, and any replica answers requests. The modules:
//!
//! | module | owns |
//! |---|---|
//! | `accounts`, `dynamic`, `source_accounts`, `agents`, `migrations`, `clouddrivers`, `health` | the handlers, one module for each resource |
//! | `account_cache` | what is cached of an account |
//! | `body`, `json`, `extract` | parsing a request, or a 4xx |
//! | `browsers` | which web pages may call: by default none |
//! | `access_rules` | what the caller of each route needs |
//! | `call_guard` | each call before and after its handler: rate, login, rights |
//! | `call_lines` | its audit lines, with an answer or without one |
//! | `callers`, `caller_rules`, `visible_accounts` | who makes a call, and what it may |
//! | `memory_limit` | how much memory requests may use at once |
//! | `unknown_callers` | heads of callers of whom it is not known who they are |
//! | `lookup` | the accounts of a request: finding their objects, running their writes |
//! | `decide` | what a request does in each state; pure |
//! | `account_writes` | the writes, and recovery from a crash between two of them |
//! | `view` | accounts as REST shows them |
//! | `credentials` | Clouddriver's account management, passed on, and accounts that follow it |
//! | `dto`, `openapi` | the OpenAPI description |
//! | `operations`, `operation_views` | operations on accounts, and their results |
//! | `error` | errors in the shape of Spring services, and how errors of the API server map to them |

mod access_rules;
mod account_cache;
mod account_writes;
mod accounts;
mod agents;
mod body;
mod browsers;
mod call_guard;
mod call_lines;
mod caller_rules;
mod callers;
mod clouddrivers;
mod credentials;
mod dto;
mod dynamic_accounts;
mod error;
mod extract;
mod health;
mod json;
mod lookup;
mod memory_limit;
mod migrations;
mod openapi;
mod operation_views;
mod operations;
mod request_rules;
mod source_accounts;
mod source_rights;
#[cfg(test)]
pub(crate) mod tests;
mod unknown_callers;
mod view;
mod visible_accounts;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::middleware::{from_fn, from_fn_with_state};

pub use browsers::BrowserRules;
pub use caller_rules::{RestAccessMetrics, RestAuthMode};
pub use credentials::{AccountManagement, AccountManagementPorts, IntentSettlement};
pub use health::{Readiness, StartupState, second_listener, starting};
pub use openapi::openapi;

use crate::access::audit::AuditLog;
use crate::access::{Access, CallerCounts};
use crate::account_caches::AccountCaches;
use crate::connected_agents::ConnectedAgents;
use crate::informers::AccountIndex;
use crate::operations::Operations;
use crate::peers::Peers;
use crate::source_accounts::SourceAccounts;
use access_rules::{AccessRule, GuardedRoutes, any, delete, get, post};
use call_guard::CallRates;
use caller_rules::CallerRules;
use error::RestError;
use kubesvc_core::ReplicaId;
use kubesvc_core::not_watched;
use kubesvc_core::source_rules::SourceRules;
use kubesvc_runtime::background_tasks::TaskRegistry;
use kubesvc_runtime::kube_access::KubeAccess;
use kubesvc_runtime::listen::connection_limits::{AddressLimits, LogRateLimit};
use kubesvc_runtime::listen::connection_phase::ConnectionDeadlines;
use kubesvc_runtime::listen::http::HttpLimits;
use kubesvc_runtime::listen::port::PortLimits;
use kubesvc_runtime::listen::refused_heads::MAX_HEAD_BYTES;
use kubesvc_runtime::shutdown::spawn_named;
use kubesvc_store::Store;
use memory_limit::{MemoryPermit, RestLimits};

/// Time limit for a writing request to wait for its turn.
const WRITE_SLOT_TIMEOUT: Duration = Duration::from_secs(15);

/// Maximum number of concurrent requests of REST to the API server.
const MAX_CONCURRENT_CALLS: usize = 64;

/// Limits of the port that serves REST, with this many connections in total and these limits per address.
pub fn http_limits(connections: usize, addresses: AddressLimits) -> HttpLimits {
    let deadlines = ConnectionDeadlines { head: Duration::from_secs(10), idle: Duration::from_secs(15) };
    let grace = Duration::from_secs(10);
    let port = PortLimits { connections, reserved: 0, addresses, deadlines, grace };
    HttpLimits { port, head_bytes: MAX_HEAD_BYTES, refused_head: error::refused_head }
}

/// Limits of the port that serves only health. It has no limit per address, because probes come from few addresses.
pub fn health_limits() -> HttpLimits {
    HttpLimits { head_bytes: 16 * 1024, ..http_limits(64, AddressLimits::default()) }
}

/// Settings of REST.
#[derive(Clone, Debug)]
pub struct RestSettings {
    /// Maximum size of a request body, in bytes.
    pub max_body_bytes: usize,
    /// Whether accounts may be added and changed here. If not, these calls answer 501.
    pub dynamic_accounts_enabled: bool,
    /// Namespace in which REST creates objects.
    pub accounts_namespace: String,
    /// Whether the operator watches that namespace. If not, REST refuses to create objects that nothing would
    /// reconcile.
    pub accounts_watched: bool,
    /// Id of this replica.
    pub replica_id: ReplicaId,
    /// Which accounts may use credentials from outside their own namespace.
    pub source_rules: SourceRules,
    /// Which web pages may call, and the host names that callers may use.
    pub browsers: BrowserRules,
    /// Whether callers must be known and have rights.
    pub auth_mode: RestAuthMode,
    /// Namespace of the operator, in which rights on agents are given.
    pub operator_namespace: String,
}

/// The components that REST calls.
#[derive(Clone)]
pub struct RestPorts {
    /// Access to the operator's own API server.
    pub kube: KubeAccess,
    /// Index of the accounts as last seen.
    pub accounts: Arc<AccountIndex>,
    /// Agents connected to this replica.
    pub connected_agents: Arc<dyn ConnectedAgents>,
    /// The other replicas.
    pub peers: Arc<Peers>,
    /// The database.
    pub store: Arc<dyn Store>,
    /// What is cached of accounts.
    pub caches: Arc<AccountCaches>,
    /// Operations on accounts.
    pub operations: Arc<Operations>,
    /// Accounts that Clouddriver's credentials sources describe.
    pub source_accounts: Arc<SourceAccounts>,
    /// Clouddriver's account management; `None`: it is not known where Clouddriver is.
    pub credentials: Option<Arc<AccountManagement>>,
    /// Makes the leader, if this replica leads, look at all accounts again.
    pub look_at_accounts: Arc<dyn Fn() + Send + Sync>,
    /// Whether this process is ready to serve.
    pub readiness: Arc<dyn Readiness>,
    /// The tasks that run in the background.
    pub tasks: TaskRegistry,
    /// Returns the metrics as text.
    pub metrics: Arc<dyn Fn() -> String + Send + Sync>,
    /// Who calls, and what they may.
    pub access: Arc<dyn Access>,
    /// Audit lines.
    pub audit: AuditLog,
    /// Refused calls.
    pub access_metrics: RestAccessMetrics,
    /// The calls of each caller that run, with those of the gateway.
    pub caller_counts: Arc<CallerCounts>,
}

/// State shared by all handlers.
#[derive(Clone)]
pub struct RestState {
    settings: Arc<RestSettings>,
    ports: RestPorts,
    limits: Arc<RestLimits>,
    callers: Arc<CallerRules>,
    rates: Arc<CallRates>,
}

impl std::ops::Deref for RestState {
    type Target = RestPorts;

    fn deref(&self) -> &RestPorts {
        &self.ports
    }
}

impl RestState {
    /// Creates the state, with request limits sized for the configured body limit.
    pub fn new(settings: RestSettings, ports: RestPorts) -> Self {
        let limits = Arc::new(RestLimits::new(settings.max_body_bytes));
        let kube = ports.kube.clone().at_most(MAX_CONCURRENT_CALLS);
        let callers = CallerRules {
            mode: settings.auth_mode,
            access: Arc::clone(&ports.access),
            audit: ports.audit.clone(),
            metrics: ports.access_metrics.clone(),
            accounts_namespace: settings.accounts_namespace.clone(),
            log_limit: LogRateLimit::default(),
        };
        let (callers, rates) = (Arc::new(callers), Arc::default());
        Self { settings: Arc::new(settings), ports: RestPorts { kube, ..ports }, limits, callers, rates }
    }

    /// Returns 503 if the operator does not watch the namespace that accounts are created in.
    fn watches_accounts(&self) -> Result<(), RestError> {
        if self.settings.accounts_watched {
            return Ok(());
        }
        Err(RestError::unavailable(not_watched(&self.settings.accounts_namespace)))
    }

    /// Runs a write to completion even if the caller disconnects. The memory of its body is held as long.
    async fn to_the_end<T, F>(
        &self,
        held: MemoryPermit,
        write: impl FnOnce(Self) -> F,
    ) -> Result<T, RestError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, RestError>> + Send + 'static,
    {
        let place = self.limits.write(WRITE_SLOT_TIMEOUT).await?;
        let writing = write(self.clone());
        let kept = async move {
            let written = writing.await;
            drop((held, place));
            written
        };
        // Runs on if the caller hangs up. A panic is logged with the name of the task.
        spawn_named("REST write", kept).detach().await.unwrap_or_else(|_| {
            Err(RestError::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                "the operator failed to finish the request; see its log",
            ))
        })
    }
}

/// Routes of the REST API.
pub fn router(state: RestState) -> Router {
    use AccessRule::Path;
    let browsers = Arc::new(state.settings.browsers.clone());
    let begun = state.clone();
    let documents = GuardedRoutes::default()
        .slashed("/metrics", get(Path("/metrics"), health::metrics))
        .slashed("/openapi.json", get(Path("/openapi.json"), openapi::description));
    // While nobody needs to be known for them, they are answered at once whatever heads are held.
    let are_open = state.callers.mode == RestAuthMode::Off;
    let (held, open) = if are_open {
        (routes(), documents.merge(health_routes()))
    } else {
        (routes().merge(documents), health_routes())
    };
    held.into_router()
        .layer(from_fn_with_state(state.clone(), unknown_callers::hold_head))
        .merge(open.into_router())
        .method_not_allowed_fallback(error::wrong_method)
        .with_state(state)
        .layer(from_fn_with_state(browsers, browsers::guard))
        .layer(from_fn(error::shape))
        .layer(from_fn_with_state(begun, call_guard::begin))
}

/// The documented calls, each with what its caller needs.
fn routes() -> GuardedRoutes {
    use AccessRule::{Accounts, Agents, Cache, Clouddriver, Nothing, Operations, UnknownPath};
    GuardedRoutes::default()
        // Accounts. `dynamic` is a valid account name, so this path also serves GET and DELETE of the account of that
        // name.
        .route(
            "/armory/accounts",
            get(Accounts("list"), accounts::list)
                .post(Accounts("create"), source_accounts::add)
                .patch(Accounts("update"), accounts::patch)
                .delete(Accounts("delete"), accounts::delete),
        )
        .route(
            "/armory/accounts/",
            get(Nothing, error::no_route)
                .post(Accounts("create"), source_accounts::add)
                .patch(Accounts("update"), accounts::patch)
                .delete(Nothing, error::no_route),
        )
        .slashed(
            "/armory/accounts/dynamic",
            post(Accounts("create"), dynamic_accounts::post)
                .put(Accounts("update"), dynamic_accounts::put)
                .patch(Accounts("update"), dynamic_accounts::patch)
                .get(Accounts("get"), dynamic_accounts::get)
                .delete(Accounts("delete"), dynamic_accounts::delete),
        )
        .slashed(
            "/armory/accounts/{name}",
            get(Accounts("get"), accounts::get).delete(Accounts("delete"), accounts::delete_one),
        )
        // Spinnaker's queries about one account.
        .slashed("/agents/kubernetes/accounts/{name}", get(Accounts("get"), accounts::get_or_empty))
        .slashed("/agents/kubernetes/accounts/{name}/namespaces", get(Accounts("get"), accounts::namespaces))
        .slashed("/agents/kubernetes/accounts/{name}/cache", get(Cache, account_cache::get))
        // Agents.
        .route("/armory/agents", get(Agents("list"), agents::list))
        .slashed("/armory/agents/{id}", get(Agents("get"), agents::get))
        .slashed("/armory/agent/assignments", post(Accounts("update"), agents::elect))
        .slashed("/armory/agent/{id}/disconnect", post(Agents("update"), agents::disconnect))
        // What Clouddriver's accounts would become.
        .slashed("/armory/migrations/plan", get(Clouddriver, migrations::plan))
        // Replicas.
        .route("/armory/clouddrivers", get(Agents("list"), clouddrivers::list))
        .slashed("/armory/clouddrivers/sql/pool/settings", get(Agents("list"), clouddrivers::pools))
        .slashed("/armory/clouddrivers/{id}", get(Agents("list"), clouddrivers::get))
        // Operations.
        .route(
            "/armory/agent/operations",
            get(Operations, operations::list).post(Operations, operations::run),
        )
        .route("/armory/agent/operations/", get(Nothing, error::no_route).post(Operations, operations::run))
        .slashed("/armory/agent/operations/{operationId}", get(Operations, operations::get))
        // An agent may have the id `operations`.
        .slashed(
            "/armory/agent/operations/disconnect",
            get(Operations, operations::get).post(Agents("update"), agents::disconnect_operations),
        )
        .slashed("/armory/agent/operationresults", post(Operations, operations::settle))
        .slashed(
            "/armory/agent/operations/database",
            get(Operations, operations::get).post(Operations, operations::look_at_open),
        )
        // Clouddriver's account management.
        .route(
            "/credentials",
            get(Clouddriver, credentials::list)
                .post(Clouddriver, credentials::add)
                .put(Clouddriver, credentials::put)
                .others(Clouddriver, credentials::pass_on),
        )
        .route("/credentials/", any(Clouddriver, credentials::pass_on))
        .route(
            "/credentials/{*rest}",
            delete(Clouddriver, credentials::delete).others(Clouddriver, credentials::pass_on),
        )
        .fallback(UnknownPath, credentials::unknown_route)
}

/// Routes of health alone, for a separate port where probes are answered whatever the load of the REST port.
pub fn health_router(state: RestState) -> Router {
    health_routes()
        .into_router()
        .fallback(error::no_route)
        .method_not_allowed_fallback(error::wrong_method)
        .with_state(state)
        .layer(from_fn(error::shape))
}

fn health_routes() -> GuardedRoutes {
    GuardedRoutes::default()
        .slashed("/health", get(AccessRule::Open, health::health))
        .slashed("/health/liveness", get(AccessRule::Open, health::liveness))
        .slashed("/health/readiness", get(AccessRule::Open, health::readiness))
        .slashed("/health/tasks", get(AccessRule::Open, health::tasks))
}
