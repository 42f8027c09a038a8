//! Metrics of the agent, under their documented names where there are any.

use std::sync::Arc;

use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::routing::get;
use prometheus_client::encoding::{EncodeMetric, MetricEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::{MetricType, TypedMetric};

use crate::requests::RequestServiceMetrics;
use crate::static_accounts::StaticAccountFile;
use kubesvc_core::wire::common::Failure;
use kubesvc_runtime::background_tasks::TaskRegistry;
use kubesvc_runtime::listen::port::HttpMetrics;
use kubesvc_runtime::telemetry::metrics::{self, Metrics};

mod cached_objects;

pub use cached_objects::{CachedObjectCounts, CachedObjectMetrics};

/// One label with its name.
type Label<V> = [(&'static str, V); 1];

/// A counter with exactly the name under which it is registered. OpenMetrics counters always end in `_total`,
/// but the documented name of this one does not.
#[derive(Clone, Debug, Default)]
struct PlainCounter(Gauge);

impl TypedMetric for PlainCounter {
    const TYPE: MetricType = MetricType::Unknown;
}

impl EncodeMetric for PlainCounter {
    fn encode(&self, encoder: MetricEncoder<'_>) -> Result<(), std::fmt::Error> {
        self.0.encode(encoder)
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
}

/// Requests to API servers, by response status. Clones share the counts.
#[derive(Clone, Debug, Default)]
pub struct ClusterRequestCounter(Family<Label<i32>, PlainCounter>);

impl ClusterRequestCounter {
    /// Counts one request; status 0 means no response.
    pub fn count(&self, status: i32) {
        self.0.get_or_create(&[("code", status)]).0.inc();
    }
}

/// Number of accounts in each state, at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AccountCounts {
    /// Held, including those that are being restarted.
    pub held: usize,
    /// Being started for the first time.
    pub starting: usize,
    pub failed: usize,
    /// Those whose objects this agent was told to stream.
    pub cached: usize,
}

/// The agent's counters. Clones share the counts.
#[derive(Clone, Debug, Default)]
pub struct AgentMetrics {
    /// Streams that the hub accepted. The documented name ends in `_count`, so it cannot be an OpenMetrics
    /// counter.
    pub connections: Gauge,
    /// Accepted streams that ended.
    pub disconnections: Counter,
    pub requests: ClusterRequestCounter,
    /// Changed kubeconfigs with which an account could not be restarted.
    pub kept: Counter,
    /// Requests of the hub to clusters.
    pub account_requests: RequestServiceMetrics,
    /// Connections of probes and scrapers that were closed because of a limit.
    pub http: HttpMetrics,
    /// What is read of clusters and sent to the hub.
    pub cached_objects: CachedObjectMetrics,
    accounts: Family<Label<&'static str>, Gauge>,
    cached: Gauge,
    failures: Family<Label<&'static str>, Counter>,
    probes: Family<Label<&'static str>, Counter>,
}

impl AgentMetrics {
    /// Counts an account that could not be started.
    pub fn failed(&self, failure: &Failure) {
        self.failures.get_or_create(&[("class", failure.class().as_str_name())]).inc();
    }

    pub fn probed(&self, result: &Result<(), Failure>) {
        let outcome = if result.is_ok() { "reachable" } else { "failed" };
        self.probes.get_or_create(&[("outcome", outcome)]).inc();
    }

    fn register(&self, own: &StaticAccountFile, tasks: &TaskRegistry) -> Metrics {
        let mut metrics = Metrics::new();
        tasks.register(&mut metrics.registry);
        let registry = metrics.registry.sub_registry_with_prefix("kubesvc");
        registry.register("connection_count", "Streams that the hub accepted", self.connections.clone());
        registry.register("disconnection", "Accepted streams that ended", self.disconnections.clone());
        // The documented name, and the name that Prometheus conventions require.
        for name in ["kubernetes_requests", "kubernetes_requests_total"] {
            let help = "Requests to API servers, by status; 0: no answer";
            registry.register(name, help, self.requests.0.clone());
        }
        registry.register("accounts", "Accounts, by state", self.accounts.clone());
        registry.register(
            "accounts_cached",
            "Accounts whose objects this agent was told to stream",
            self.cached.clone(),
        );
        registry.register("account_failures", "Accounts that could not be started", self.failures.clone());
        registry.register(
            "account_reload_failures",
            "Changed kubeconfigs with which an account could not be started anew",
            self.kept.clone(),
        );
        registry.register("probes", "Probes answered", self.probes.clone());
        self.cached_objects.register(registry);
        self.http.register(registry);
        self.account_requests.register(registry);
        registry.register(
            "config_reload_failures",
            "Changed settings files that were refused",
            own.reload_failures.clone(),
        );
        registry.register(
            "config_valid",
            "Whether the settings files are good as they are",
            own.valid.clone(),
        );
        registry.register("static_accounts", "Accounts of the agent's own file", own.count.clone());
        registry.register(
            "static_accounts_refused",
            "Accounts of the agent's own file that the hub did not take",
            own.refusals.clone(),
        );
        metrics
    }

    fn take_in(&self, (counts, objects): &(AccountCounts, CachedObjectCounts)) {
        self.cached_objects.take_in(objects);
        self.cached.set(i64::try_from(counts.cached).unwrap_or(i64::MAX));
        for (state, count) in
            [("held", counts.held), ("starting", counts.starting), ("failed", counts.failed)]
        {
            self.accounts.get_or_create(&[("state", state)]).set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }

    /// The routes `/metrics` and, with the same content, the documented `/prometheus_metrics`. `counts` counts accounts
    /// and cached objects for each response.
    pub fn routes(
        &self,
        own: &StaticAccountFile,
        counts: impl Fn() -> (AccountCounts, CachedObjectCounts) + Clone + Send + Sync + 'static,
        tasks: &TaskRegistry,
    ) -> Router {
        let (counters, registered) = (self.clone(), Arc::new(self.register(own, tasks)));
        let answer = move || {
            counters.take_in(&counts());
            let text = registered.encode();
            async move { ([(CONTENT_TYPE, metrics::CONTENT_TYPE)], text) }
        };
        Router::new().route("/metrics", get(answer.clone())).route("/prometheus_metrics", get(answer))
    }
}
