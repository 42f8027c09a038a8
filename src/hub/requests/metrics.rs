//! Metrics of requests to accounts.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

use crate::connected_agents::RequestClass;

/// How requests end.
const OUTCOMES: [&str; 10] = [
    "answered",
    "recalled",
    "unusable",
    "no_agent",
    "too_many",
    "invalid",
    "forbidden",
    "not_sent",
    "unknown",
    "no_answer",
];

/// Labels with the class of requests and how they ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct OutcomeLabels {
    class: &'static str,
    outcome: &'static str,
}

/// Metrics of this replica; atomic.
#[derive(Clone, Debug)]
pub(crate) struct RequestMetrics {
    outcomes: Family<OutcomeLabels, Counter>,
    /// Time until the head of an answer.
    pub(crate) head_seconds: Histogram,
    pub(crate) running: Gauge,
    /// Open streams.
    pub(crate) streams: Gauge,
    pub(crate) recalls: Counter,
    /// Frames of requests that are not known.
    pub(crate) dropped_frames: Counter,
}

impl RequestMetrics {
    /// Metrics with this count of requests that run.
    pub(crate) fn new(running: Gauge) -> Self {
        let outcomes = Family::<OutcomeLabels, Counter>::default();
        // From the start, so that the first event is an increase.
        for class in [RequestClass::Read, RequestClass::Write, RequestClass::Connect] {
            for outcome in OUTCOMES {
                drop(outcomes.get_or_create(&OutcomeLabels { class: class.as_str(), outcome }));
            }
        }
        Self {
            outcomes,
            // From 1 ms to about 65 s.
            head_seconds: Histogram::new(exponential_buckets(0.001, 2.0, 17)),
            running,
            streams: Gauge::default(),
            recalls: Counter::default(),
            dropped_frames: Counter::default(),
        }
    }
}

impl RequestMetrics {
    /// Adds the metrics to a registry, with the prefix `kubesvc_account_requests`.
    pub(crate) fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("kubesvc_account_requests");
        registry.register("outcomes", "Requests to accounts, by class and end", self.outcomes.clone());
        let help = "Time until an account's API server answered";
        registry.register_with_unit("head", help, Unit::Seconds, self.head_seconds.clone());
        registry.register("running", "Requests to accounts that run", self.running.clone());
        registry.register("streams", "Agents that take requests", self.streams.clone());
        registry.register("recalls", "Answers of writes asked for after a lost stream", self.recalls.clone());
        registry.register(
            "dropped_frames",
            "Frames of requests that are not known",
            self.dropped_frames.clone(),
        );
    }

    pub(crate) fn count(&self, class: RequestClass, outcome: &'static str) {
        self.outcomes.get_or_create(&OutcomeLabels { class: class.as_str(), outcome }).inc();
    }
}
