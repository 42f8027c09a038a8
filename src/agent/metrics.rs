//! Metrics of the agent, under their documented names where there are any.

use std::sync::Arc;

use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::routing::get;
use parking_lot::Mutex;
use prometheus_client::encoding::{EncodeLabelSet, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::{MetricType, TypedMetric};

use crate::agent::reactions::AccountTable;
use crate::agent::static_accounts::StaticAccountFile;
use crate::background_tasks::TaskRegistry;
use crate::listen::http::HttpMetrics;
use crate::telemetry::metrics::{self, Metrics};
use crate::wire::common::Failure;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct CodeLabel {
    code: i32,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct StateLabel {
    state: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OutcomeLabel {
    outcome: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ClassLabel {
    class: &'static str,
}

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
pub struct Requests(Family<CodeLabel, PlainCounter>);

impl Requests {
    /// Counts one request; status 0 means no response.
    pub fn count(&self, status: i32) {
        self.0.get_or_create(&CodeLabel { code: status }).0.inc();
    }
}

/// The agent's counters. Clones share the counts.
#[derive(Clone, Debug, Default)]
pub struct AgentMetrics {
    /// Streams that the hub accepted. The documented name ends in `_count`, so it cannot be an OpenMetrics
    /// counter.
    pub connections: Gauge,
    /// Accepted streams that ended.
    pub disconnections: Counter,
    /// Requests to API servers.
    pub requests: Requests,
    /// Changed kubeconfigs with which an account could not be restarted.
    pub kept: Counter,
    /// Connections of probes and scrapers that were closed because of a limit.
    pub http: HttpMetrics,
    accounts: Family<StateLabel, Gauge>,
    cached: Gauge,
    failures: Family<ClassLabel, Counter>,
    probes: Family<OutcomeLabel, Counter>,
}

impl AgentMetrics {
    /// Counts an account that could not be started.
    pub fn failed(&self, failure: &Failure) {
        self.failures.get_or_create(&ClassLabel { class: failure.class().as_str_name() }).inc();
    }

    /// Counts an answered probe.
    pub fn probed(&self, result: &Result<(), Failure>) {
        let outcome = if result.is_ok() { "reachable" } else { "failed" };
        self.probes.get_or_create(&OutcomeLabel { outcome }).inc();
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
        self.http.register(registry);
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

    fn take_in(&self, table: &Mutex<AccountTable>) {
        let (counts, cached) = {
            let table = table.lock();
            (table.counts(), table.cached_count())
        };
        self.cached.set(i64::try_from(cached).unwrap_or(i64::MAX));
        for (state, count) in
            [("held", counts.held), ("starting", counts.starting), ("failed", counts.failed)]
        {
            self.accounts.get_or_create(&StateLabel { state }).set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }

    /// The routes `/metrics` and, with the same content, the documented `/prometheus_metrics`.
    pub fn routes(
        &self,
        own: &StaticAccountFile,
        table: Arc<Mutex<AccountTable>>,
        tasks: &TaskRegistry,
    ) -> Router {
        let (counters, registered) = (self.clone(), Arc::new(self.register(own, tasks)));
        let answer = move || {
            counters.take_in(&table);
            let text = registered.encode();
            async move { ([(CONTENT_TYPE, metrics::CONTENT_TYPE)], text) }
        };
        Router::new().route("/metrics", get(answer.clone())).route("/prometheus_metrics", get(answer))
    }
}
