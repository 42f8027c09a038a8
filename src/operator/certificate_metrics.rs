//! When the certificates that the ports show expire, read at each scrape.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

/// One certificate.
pub(super) struct CertificateExpiry {
    /// What it is for.
    usage: &'static str,
    /// Where it is: a path, or the name of a Secret.
    name: String,
    /// In epoch seconds; `None`: there is no certificate yet.
    not_after: Box<dyn Fn() -> Option<i64> + Send + Sync>,
}

impl CertificateExpiry {
    pub(super) fn new(
        usage: &'static str,
        name: &str,
        not_after: impl Fn() -> Option<i64> + Send + Sync + 'static,
    ) -> Self {
        Self { usage, name: name.to_owned(), not_after: Box::new(not_after) }
    }
}

/// The certificates of all ports.
pub(super) struct CertificateMetrics(pub(super) Vec<CertificateExpiry>);

impl fmt::Debug for CertificateMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CertificateMetrics").finish_non_exhaustive()
    }
}

impl Collector for CertificateMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let times = Family::<[(&'static str, String); 2], Gauge>::default();
        for CertificateExpiry { usage, name, not_after } in &self.0 {
            if let Some(seconds) = not_after() {
                times.get_or_create(&[("use", (*usage).to_owned()), ("name", name.clone())]).set(seconds);
            }
        }
        let (name, help) =
            ("kubesvc_certificate_not_after_seconds", "When a certificate expires, in epoch seconds");
        times.encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kubesvc_runtime::telemetry::metrics::Metrics;

    #[test]
    fn a_certificate_has_its_use_and_its_place_and_one_that_is_not_there_is_left_out() {
        let mut metrics = Metrics::new();
        let there = CertificateExpiry::new("hub", "/tls/tls.crt", || Some(1_800_000_000));
        let missing = CertificateExpiry::new("rest", "kubesvc-rest", || None);
        metrics.registry.register_collector(Box::new(CertificateMetrics(vec![there, missing])));
        let text = metrics.encode();
        let line = "kubesvc_certificate_not_after_seconds{use=\"hub\",name=\"/tls/tls.crt\"} 1800000000";
        assert!(text.contains(line) && !text.contains("kubesvc-rest"), "{text}");
    }
}
