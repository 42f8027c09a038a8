//! Metrics of calls between replicas.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

/// Label: why a call was refused.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct RefusalLabel {
    /// One of a fixed set of words.
    pub(super) reason: &'static str,
}

/// Counters of calls between replicas.
#[derive(Clone, Debug, Default)]
pub(super) struct PeerMetrics {
    /// Calls to other replicas.
    pub(super) calls: Counter,
    /// Calls to other replicas that failed.
    pub(super) failed: Counter,
    /// Calls from other replicas that were refused, by reason.
    pub(super) refused: Family<RefusalLabel, Counter>,
}

impl PeerMetrics {
    pub(super) fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("kubesvc_peer");
        registry.register("calls", "Calls to other replicas", self.calls.clone());
        registry.register(
            "calls_failed",
            "Calls to other replicas without a good answer",
            self.failed.clone(),
        );
        registry.register(
            "calls_refused",
            "Calls of others refused for their signature",
            self.refused.clone(),
        );
    }
}
