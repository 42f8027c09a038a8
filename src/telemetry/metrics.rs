//! Metrics in the OpenMetrics text format.

mod process;

use prometheus_client::encoding::text;
use prometheus_client::registry::Registry;

/// Media type of [`Metrics::encode`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Metrics of one program. There is one instance per process, passed to each component that counts.
#[derive(Debug)]
pub struct Metrics {
    /// Registry for metrics, filled at startup.
    pub registry: Registry,
}

impl Metrics {
    /// Creates a registry with the process metrics `process_resident_memory_bytes`,
    /// `process_cpu_seconds_total`, `process_open_fds` and `process_start_time_seconds`, read from `/proc` at
    /// each scrape. They are missing on systems without `/proc`.
    pub fn new() -> Self {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(process::ProcessCollector));
        Self { registry }
    }

    /// All metrics as OpenMetrics text, to be served as [`CONTENT_TYPE`].
    pub fn encode(&self) -> String {
        let mut out = String::new();
        match text::encode(&mut out, &self.registry) {
            Ok(()) => out,
            // Writing to a string cannot fail, but a collector can.
            Err(fmt_error) => {
                tracing::error!(error = %fmt_error, "cannot encode metrics");
                "# EOF\n".to_owned()
            }
        }
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::counter::Counter;

    use super::Metrics;

    #[test]
    fn the_process_is_described_beside_our_own_metrics() {
        let mut metrics = Metrics::new();
        let counter: Counter = Counter::default();
        metrics.registry.register("kubesvc_tests", "Tests run", counter.clone());
        counter.inc();
        let text = metrics.encode();
        let value = |name: &str| {
            let line = text.lines().find(|l| l.split(' ').next() == Some(name));
            line.and_then(|l| l.split(' ').nth(1)?.parse::<f64>().ok())
        };
        assert_eq!(value("kubesvc_tests_total"), Some(1.0), "{text}");
        assert!(text.ends_with("# EOF\n"), "{text}");
        if cfg!(target_os = "linux") {
            assert!(value("process_resident_memory_bytes") > Some(1e5), "{text}");
            assert!(value("process_cpu_seconds_total") >= Some(0.0), "{text}");
            assert!(value("process_open_fds") >= Some(3.0), "{text}");
            let now = jiff::Timestamp::now().as_second() as f64;
            let age = now - value("process_start_time_seconds").unwrap_or_default();
            assert!((-5.0..3600.0).contains(&age), "{age}\n{text}");
        }
    }
}
