//! `kubesvc_gateway_*`.

use http::StatusCode;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CodeLabel {
    code: u16,
}

#[derive(Clone, Default)]
pub(super) struct GatewayMetrics {
    answered: Family<CodeLabel, Counter>,
    /// Connections.
    pub(super) connections: Gauge,
    /// Watches, followed logs and upgraded connections.
    pub(super) streams: Gauge,
}

impl GatewayMetrics {
    pub(super) fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("kubesvc_gateway");
        registry.register("requests", "Answers of the API of accounts, by status", self.answered.clone());
        registry.register("connections", "Connections to the API of accounts", self.connections.clone());
        let help = "Watches, followed logs and upgraded connections through the API of accounts";
        registry.register("streams", help, self.streams.clone());
    }

    pub(super) fn answered(&self, code: StatusCode) {
        self.answered.get_or_create(&CodeLabel { code: code.as_u16() }).inc();
    }
}
