//! Metrics of the hub.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use kubesvc_core::wire::ops::refused::Reason;

/// Label with the reason for a refusal.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ReasonLabel {
    /// One of a fixed set of words.
    pub reason: &'static str,
}

/// The hub's counters; atomic.
#[derive(Clone, Debug, Default)]
pub struct HubMetrics {
    /// Accepted TCP connections.
    pub connections: Counter,
    /// TCP connections closed before they spoke HTTP/2, by reason.
    pub connections_refused: Family<ReasonLabel, Counter>,
    /// Connected sessions.
    pub sessions: Gauge,
    pub sessions_accepted: Counter,
    pub sessions_ended: Counter,
    /// Refused hellos, by reason.
    pub refusals: Family<ReasonLabel, Counter>,
    /// Frames from agents.
    pub frames_in: Counter,
    /// Frames to agents.
    pub frames_out: Counter,
    /// Probes sent to agents.
    pub probes: Counter,
    /// Times that many accounts had vanished at once, and were listed again.
    pub mass_deletes: Counter,
    /// Ignored frames and answers, by reason.
    pub ignored: Family<ReasonLabel, Counter>,
    /// Streams that identities would refuse where they are only logged, by reason.
    pub would_refuse: Family<ReasonLabel, Counter>,
}

impl HubMetrics {
    /// Adds the counters to a registry, with the prefix `hub`.
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("kubesvc_hub");
        registry.register("connections", "TCP connections accepted", self.connections.clone());
        registry.register(
            "connections_refused",
            "TCP connections closed before they spoke HTTP/2",
            self.connections_refused.clone(),
        );
        registry.register("sessions", "Agent sessions that stand", self.sessions.clone());
        registry.register("sessions_accepted", "Agent sessions accepted", self.sessions_accepted.clone());
        registry.register("sessions_ended", "Agent sessions ended", self.sessions_ended.clone());
        // A counter that begins with its first event shows no increase.
        for reason in [Reason::Overloaded, Reason::DuplicateAgentId] {
            drop(self.refusals.get_or_create(&ReasonLabel { reason: reason.as_str_name() }));
        }
        registry.register("refusals", "Hellos refused", self.refusals.clone());
        registry.register("frames_in", "Frames from agents", self.frames_in.clone());
        registry.register("frames_out", "Frames to agents", self.frames_out.clone());
        registry.register("probes", "Probes sent to agents", self.probes.clone());
        registry.register(
            "mass_deletes",
            "Times that many accounts had vanished at once, and were listed again before agents dropped them",
            self.mass_deletes.clone(),
        );
        registry.register(
            "would_refuse",
            "Streams of agents that kubesvc.grpc.auth.mode: bound would refuse",
            self.would_refuse.clone(),
        );
        registry.register("ignored", "Frames and answers of agents that were ignored", self.ignored.clone());
    }

    pub(super) fn ignore(&self, reason: &'static str) {
        self.ignored.get_or_create(&ReasonLabel { reason }).inc();
    }

    pub(super) fn refuse_connection(&self, reason: &'static str) {
        self.connections_refused.get_or_create(&ReasonLabel { reason }).inc();
    }

    pub(super) fn would_refuse(&self, reason: &'static str) {
        self.would_refuse.get_or_create(&ReasonLabel { reason }).inc();
    }

    pub(super) fn refuse(&self, reason: &'static str) {
        self.refusals.get_or_create(&ReasonLabel { reason }).inc();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kubesvc_runtime::telemetry::metrics::Metrics;

    #[test]
    fn refusals_with_an_alert_are_counted_from_zero() {
        let mut metrics = Metrics::new();
        HubMetrics::default().register(&mut metrics.registry);
        let text = metrics.encode();
        for reason in ["OVERLOADED", "DUPLICATE_AGENT_ID"] {
            assert!(
                text.contains(&format!(r#"kubesvc_hub_refusals_total{{reason="{reason}"}} 0"#)),
                "{text}"
            );
        }
    }
}
