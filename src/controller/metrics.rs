//! Metrics of the controller.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// A transition between two states.
#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(super) struct Transition {
    pub(super) from: &'static str,
    pub(super) to: &'static str,
}

/// Metrics of the controller. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct ControllerMetrics {
    pub(super) transitions: Family<Transition, Counter>,
    pub(super) looks: Counter,
    pub(super) writes: Counter,
    pub(super) conflicts: Counter,
    pub(super) failed_requests: Counter,
    pub(super) dropped_events: Counter,
    pub(super) foreign_rows: Gauge,
    pub(super) adopted_rows: Counter,
    pub(super) unreadable_rows: Gauge,
    pub(super) adoption_looks: Counter,
}

impl ControllerMetrics {
    /// Registers the metrics under `kubesvc_controller_…`.
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("kubesvc_controller");
        registry.register("transitions", "State changes written", self.transitions.clone());
        registry.register("looks", "Times an account was looked at", self.looks.clone());
        registry.register("writes", "Writes of account objects", self.writes.clone());
        registry.register(
            "conflicts",
            "Writes refused because the object had changed",
            self.conflicts.clone(),
        );
        registry.register("failed_requests", "Requests that failed otherwise", self.failed_requests.clone());
        registry.register(
            "dropped_events",
            "Kubernetes Events that were not written",
            self.dropped_events.clone(),
        );
        registry.register(
            "foreign_rows",
            "Rows of kubesvc_accounts that kubesvc did not write",
            self.foreign_rows.clone(),
        );
        registry.register(
            "adoption_looks",
            "Times the rows that are to become accounts were looked at",
            self.adoption_looks.clone(),
        );
        registry.register("adopted_rows", "Rows that became accounts", self.adopted_rows.clone());
        registry.register(
            "unreadable_rows",
            "Rows that are to become accounts and cannot",
            self.unreadable_rows.clone(),
        );
    }
}
