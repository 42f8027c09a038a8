//! The REST API (7002): the documented calls, on accounts that Kubernetes keeps.
//!
//! REST holds no state. A request is checked whole, then written to the account's object; the leader acts on it, and
//! any replica answers. The layers of a write:
//!
//! | module | owns |
//! |---|---|
//! | `body`, `json_size`, `json`, `extract`, `input` | from bytes to what is asked, or 4xx |
//! | `browsers` | what a web page may have a browser send: nothing |
//! | `limits` | how much of the memory requests may take at once |
//! | `lookup` | from a name to the object, as the API server has it now |
//! | `decide` | what a request does in each state: pure |
//! | `create`, `change`, `credential` | the writes, and what a crash between two of them leaves |
//! | `api` | asking the API server, and what its refusals mean to a caller |
//! | `view`, `page` | accounts as they are shown |
//! | `holders` | which agents hold an account, on all replicas |
//! | `internal` | what other replicas ask, signed |
//! | `startup` | what is answered until the process has all that it needs |
//! | `unimplemented_routes` | documented calls that answer 501 |
//! | `health` | whether this process turns, and can serve |
//! | `error` | errors as Spring services tell them |

mod accounts;
mod agents;
mod api;
mod assignments;
mod body;
mod browsers;
mod change;
mod clouddrivers;
mod create;
mod credential;
mod decide;
mod dto;
mod dynamic;
mod error;
mod extract;
mod gitops;
mod health;
mod holders;
mod input;
mod internal;
mod json;
mod json_size;
mod kubernetes;
mod lookup;
mod memory_limit;
mod openapi;
mod page;
mod startup;
#[cfg(test)]
mod tests;
mod unimplemented_routes;
mod view;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::routing::{get, post};

pub use browsers::BrowserRules;
pub use health::Readiness;
pub use openapi::openapi;
pub use startup::{StartupState, second_listener, starting};

use crate::account::not_watched;
use crate::account::source_rules::SourceRules;
use crate::fleet::Fleet;
use crate::listen::addresses::AddressLimits;
use crate::listen::http::HttpLimits;
use crate::objects::AccountIndex;
use crate::peers::Peers;
use crate::store::Store;
use api::Calls;
use error::RestError;
use memory_limit::{MemoryPermit, RequestLimits};

/// Time limit for a writing request to wait for its turn.
const WRITE_SLOT_TIMEOUT: Duration = Duration::from_secs(15);

/// The largest body that is taken unless the settings say otherwise.
pub const DEFAULT_MAX_BODY_BYTES: usize = 8 * 1024 * 1024;

/// Bounds of the port that REST is served on, with so many connections in all and of one caller.
pub fn http_limits(connections: usize, addresses: AddressLimits) -> HttpLimits {
    HttpLimits {
        connections,
        addresses,
        head_timeout: Duration::from_secs(10),
        head_bytes: 16 * 1024,
        idle_timeout: Duration::from_secs(15),
        grace: Duration::from_secs(10),
    }
}

/// Bounds of the port that health alone is served on. Probes come from few addresses, and are never turned away.
pub fn health_limits() -> HttpLimits {
    http_limits(64, AddressLimits::default())
}

/// What REST is set to.
#[derive(Clone, Debug)]
pub struct RestSettings {
    /// The largest body that is taken, in bytes.
    pub max_body_bytes: usize,
    /// Whether accounts may be added and changed here; if not, these calls are 501.
    pub dynamic_accounts_enabled: bool,
    /// Where objects are created.
    pub accounts_namespace: String,
    /// Whether the operator watches that namespace; if not, nobody would handle what is created there.
    pub accounts_watched: bool,
    /// This replica.
    pub replica_id: String,
    /// Which accounts may use credentials that are not in their own namespace.
    pub source_rules: SourceRules,
    /// Which web pages may call, and by which names.
    pub browsers: BrowserRules,
}

/// What REST reaches the rest through.
#[derive(Clone)]
pub struct RestPorts {
    /// The operator's own API server.
    pub client: kube::Client,
    /// The accounts as last seen.
    pub accounts: Arc<AccountIndex>,
    /// The agents of this replica.
    pub fleet: Arc<dyn Fleet>,
    /// The replicas.
    pub peers: Arc<Peers>,
    /// The database.
    pub store: Arc<dyn Store>,
    /// Whether this process can serve.
    pub readiness: Arc<dyn Readiness>,
    /// Metrics as text.
    pub metrics: Arc<dyn Fn() -> String + Send + Sync>,
}

/// What the handlers work with.
#[derive(Clone)]
pub struct RestState {
    settings: Arc<RestSettings>,
    ports: RestPorts,
    limits: Arc<RequestLimits>,
    calls: Arc<Calls>,
}

impl std::ops::Deref for RestState {
    type Target = RestPorts;

    fn deref(&self) -> &RestPorts {
        &self.ports
    }
}

impl RestState {
    /// Puts the parts together.
    pub fn new(settings: RestSettings, ports: RestPorts) -> Self {
        let room = Arc::new(RequestLimits::new(settings.max_body_bytes));
        Self { settings: Arc::new(settings), ports, limits: room, calls: Arc::default() }
    }

    /// Refuses where dynamic accounts are off.
    fn dynamic_accounts(&self) -> Result<(), RestError> {
        if self.settings.dynamic_accounts_enabled {
            return Ok(());
        }
        Err(RestError::new(
            StatusCode::NOT_IMPLEMENTED,
            "dynamic accounts are off; set kubesvc.dynamicAccounts.enabled: true",
        ))
    }

    /// Refuses to make what nobody would handle.
    fn watches_accounts(&self) -> Result<(), RestError> {
        if self.settings.accounts_watched {
            return Ok(());
        }
        Err(RestError::unavailable(not_watched(&self.settings.accounts_namespace)))
    }

    /// Runs a write to its end even if the caller goes away in the middle. What its body takes is held as long.
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
        tokio::spawn(kept).await.unwrap_or_else(|problem| {
            tracing::error!(error = %problem, "a request broke off");
            Err(RestError::new(StatusCode::INTERNAL_SERVER_ERROR, "the request broke off; look at the log"))
        })
    }
}

/// All calls.
pub fn router(state: RestState) -> Router {
    let browsers = Arc::new(state.settings.browsers.clone());
    internal::routes(&state)
        // Accounts. An account may be called `dynamic`, so that its GET and DELETE stand beside the calls of that name.
        .route(
            "/armory/accounts",
            get(accounts::list).post(accounts::add).patch(accounts::patch).delete(accounts::delete),
        )
        .route(
            "/armory/accounts/dynamic",
            post(dynamic::post)
                .put(dynamic::put)
                .patch(dynamic::patch)
                .get(dynamic::get)
                .delete(dynamic::delete),
        )
        .route("/armory/accounts/{name}", get(accounts::get).delete(accounts::delete_one))
        // What Spinnaker asks of one account.
        .route("/agents/kubernetes/accounts/{name}", get(kubernetes::account))
        .route("/agents/kubernetes/accounts/{name}/namespaces", get(kubernetes::namespaces))
        // Agents.
        .route("/armory/agents", get(agents::list))
        .route("/armory/agents/{id}", get(agents::get))
        .route("/armory/agent/assignments", post(assignments::elect))
        .route("/armory/agent/{id}/disconnect", post(agents::disconnect))
        // Replicas.
        .route("/armory/clouddrivers", get(clouddrivers::list))
        .route("/armory/clouddrivers/sql/pool/settings", get(clouddrivers::pools))
        .route("/armory/clouddrivers/{id}", get(clouddrivers::get))
        .merge(unimplemented_routes::routes())
        // Health, metrics and the description of all this.
        .merge(health_routes())
        .route("/metrics", get(health::metrics))
        .route("/openapi.json", get(health::description))
        .fallback(error::no_route)
        .method_not_allowed_fallback(error::wrong_method)
        .with_state(state)
        .layer(from_fn_with_state(browsers, browsers::guard))
        .layer(from_fn(error::shape))
}

/// Health alone, for a port of its own: probes are answered there whatever goes on at the other one.
pub fn health_router(state: RestState) -> Router {
    health_routes()
        .fallback(error::no_route)
        .method_not_allowed_fallback(error::wrong_method)
        .with_state(state)
        .layer(from_fn(error::shape))
}

fn health_routes() -> Router<RestState> {
    Router::new()
        .route("/health", get(health::health))
        .route("/health/liveness", get(health::liveness))
        .route("/health/readiness", get(health::readiness))
}
