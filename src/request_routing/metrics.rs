//! Metrics of requests that are made by another replica's agents.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;

/// Metrics of this replica; atomic.
#[derive(Clone, Debug, Default)]
pub(super) struct RelayMetrics {
    /// Requests that another replica's agents answered.
    pub(super) answered: Counter,
    /// Requests that another replica had no answer to.
    pub(super) failed: Counter,
    /// Writes whose connection was lost, and whose answer was asked for again.
    pub(super) recalls: Counter,
}

impl RelayMetrics {
    pub(super) fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("kubesvc_relayed_requests");
        registry.register("answered", "Requests answered by other replicas' agents", self.answered.clone());
        registry.register("failed", "Requests that another replica had no answer to", self.failed.clone());
        registry.register(
            "recalls",
            "Writes whose connection was lost, and whose answer was asked for again",
            self.recalls.clone(),
        );
    }
}
