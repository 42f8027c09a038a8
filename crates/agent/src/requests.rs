//! HTTP requests that the hub makes to the API servers of the agent's accounts, over a stream of their own.
//!
//! | module | owns |
//! |---|---|
//! | [`driver`] | the stream: when it is opened, its frames, pings, what both sides have |
//! | `checked_request` | one request: checks, body, and what becomes of a read and of a write |
//! | `cluster_exchange`, `answers` | the exchange with the cluster; the answer on its way to the hub |
//! | `writes` | writes, which go on without the stream: the journal, and who waits for their answers |
//! | `clients` | a client of each account's cluster, while it is used |
//! | `running_requests` | the requests that run: to be listed, stopped and waited for |
//!
//! The agent knows no verb. A write is recorded in the journal when it is opened, before anything of a later stream is
//! read, so a [`Recall`](kubesvc_core::wire::ops::Recall) never finds a write missing that is still going to be sent.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use axum::routing::get;
use axum::{Json, Router};
use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use serde::Serialize;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::account_table::AccountTable;
use crate::command_executor::Activators;
use crate::settings::RequestSettings;

mod answers;
mod checked_request;
mod clients;
mod cluster_exchange;
pub mod driver;
mod running_requests;
mod writes;

#[cfg(test)]
mod tests;

use clients::ClusterClients;
pub use running_requests::RunningRequest;
use running_requests::RunningRequests;
use writes::Writes;

/// Maximum size of the bodies of requests that are held at once, in bytes.
const MAX_BODIES_BYTES: usize = 64 * 1024 * 1024;
/// Time for which an agent that stops waits for its writes and watches.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// Metrics of requests.
#[derive(Clone, Debug, Default)]
pub struct RequestServiceMetrics {
    outcomes: Family<[(&'static str, &'static str); 2], Counter>,
    running: Gauge,
    /// Frames of requests that are not known.
    dropped_frames: Counter,
}

impl RequestServiceMetrics {
    /// Adds the metrics to a registry.
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("account_requests");
        registry.register(
            "outcomes",
            "Requests of the hub to clusters, by class and end",
            self.outcomes.clone(),
        );
        registry.register("running", "Requests of the hub that run", self.running.clone());
        registry.register(
            "dropped_frames",
            "Frames of requests that are not known",
            self.dropped_frames.clone(),
        );
    }

    fn count(&self, class: &'static str, outcome: &'static str) {
        self.outcomes.get_or_create(&[("class", class), ("outcome", outcome)]).inc();
    }
}

/// The answer of `/operations`.
#[derive(Serialize)]
struct RunningList {
    total: usize,
    operations: Vec<RunningRequest>,
}

/// State that all requests share.
#[derive(Debug)]
pub struct RequestService {
    table: Arc<Mutex<AccountTable>>,
    settings: RequestSettings,
    clients: ClusterClients,
    writes: Arc<Writes>,
    running: Arc<RunningRequests>,
    metrics: RequestServiceMetrics,
    /// Bytes of bodies that are held.
    bodies: AtomicUsize,
    /// Cancelled when the agent stops.
    draining: CancellationToken,
}

impl RequestService {
    /// Creates the requests of an agent, none of which runs.
    pub fn new(
        table: Arc<Mutex<AccountTable>>,
        activators: Activators,
        settings: RequestSettings,
        metrics: RequestServiceMetrics,
    ) -> Arc<Self> {
        let draining = CancellationToken::new();
        Arc::new(Self {
            clients: ClusterClients::new(Arc::clone(&table), activators),
            table,
            settings,
            writes: Arc::default(),
            running: Arc::new(RunningRequests::new(metrics.running.clone(), draining.clone())),
            metrics,
            bodies: AtomicUsize::new(0),
            draining,
        })
    }

    /// Ends what runs for an account: reads and streams at once, writes that were sent when they are answered. Dropping
    /// the future cuts those. `None` if nothing runs.
    pub fn stop(&self, uid: &str) -> Option<impl Future<Output = ()> + Send + use<>> {
        self.clients.forget(uid);
        self.running.stop(uid)
    }

    /// Takes no further requests, and waits until the answers of the writes were sent and the watches have ended at the
    /// end of a line, or 10 s.
    pub async fn drain(&self) {
        self.running.drain();
        let _ = timeout(DRAIN_TIMEOUT, self.running.drained()).await;
    }

    /// The route `/operations`: the requests that run.
    pub fn routes(self: &Arc<Self>) -> Router {
        let service = Arc::clone(self);
        let listed = move || {
            let operations = service.list();
            let total = operations.len();
            async move { Json(RunningList { total, operations }) }
        };
        Router::new().route("/operations", get(listed))
    }

    /// The requests that run, oldest first.
    pub fn list(&self) -> Vec<RunningRequest> {
        self.running.list()
    }
}
