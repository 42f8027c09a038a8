//! Metrics of operations: `kubesvc_operations_*`.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

/// What an operation was, and how it ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EndLabels {
    verb: &'static str,
    outcome: &'static str,
    /// Class of the failure, or `OK`; at most as long as `ops.processTime.metric.result.maxLength` says.
    result: String,
}

/// A word of a fixed set.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RefusalLabel {
    reason: &'static str,
}

/// What is counted of operations.
#[derive(Debug)]
pub(super) struct OperationMetrics {
    running: Gauge,
    ends: Family<EndLabels, Histogram, fn() -> Histogram>,
    refusals: Family<RefusalLabel, Counter>,
    max_result_chars: usize,
    /// Runs after the first one of an operation.
    pub(super) reruns: Counter,
    /// Rows that wait to be written.
    pub(super) rows_waiting: Gauge,
    /// Rows that were dropped.
    pub(super) rows_dropped: Counter,
    /// Operations that were settled for other replicas.
    pub(super) settled: Counter,
    /// Rows of the history that were purged.
    pub(super) purged: Counter,
}

impl OperationMetrics {
    pub(super) fn new(running: Gauge, max_result_chars: usize) -> Self {
        Self {
            running,
            ends: Family::new_with_constructor(seconds),
            refusals: Family::default(),
            max_result_chars,
            reruns: Counter::default(),
            rows_waiting: Gauge::default(),
            rows_dropped: Counter::default(),
            settled: Counter::default(),
            purged: Counter::default(),
        }
    }

    /// Counts an end.
    pub(super) fn ended(&self, verb: &'static str, outcome: &'static str, result: &str, seconds: f64) {
        let result = result.chars().take(self.max_result_chars).collect();
        self.ends.get_or_create(&EndLabels { verb, outcome, result }).observe(seconds);
    }

    /// Counts a call that was refused.
    pub(super) fn refused(&self, reason: &'static str) {
        self.refusals.get_or_create(&RefusalLabel { reason }).inc();
    }

    /// Adds the metrics to a registry.
    pub(super) fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("kubesvc_operations");
        registry.register("running", "Operations that run", self.running.clone());
        registry.register("seconds", "Time of operations, by verb, outcome and result", self.ends.clone());
        registry.register("refused", "Calls about operations that were refused", self.refusals.clone());
        registry.register("reruns", "Runs of operations after their first one", self.reruns.clone());
        registry.register("rows_waiting", "Rows of operations to be written", self.rows_waiting.clone());
        registry.register(
            "rows_dropped",
            "Rows of operations that were dropped, because too many waited or the database refused them",
            self.rows_dropped.clone(),
        );
        registry.register(
            "settled",
            "Operations that this replica, as leader, settled for others",
            self.settled.clone(),
        );
        registry.register("purged", "Rows purged from the history", self.purged.clone());
    }
}

fn seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.005, 2.0, 18))
}
