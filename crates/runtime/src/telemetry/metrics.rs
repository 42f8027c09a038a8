//! Metrics in the OpenMetrics text format: those of the components, and those of the process.

use std::fs;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
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
    /// `process_memory_limit_bytes` (in a container that has one), `process_cpu_seconds_total`, `process_open_fds` and `process_start_time_seconds`, read from `/proc` at
    /// each scrape. They are missing on systems without `/proc`.
    pub fn new() -> Self {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(ProcessCollector));
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

/// Clock ticks per second in `/proc`: the same on all architectures that Rust supports for Linux.
const CLOCK_TICKS_PER_SECOND: f64 = 100.0;
/// Limits from here on are none: version 1 states the largest multiple of a page below 2^63.
const UNLIMITED_BYTES: u64 = 1 << 62;

/// Metrics of this process, from the operating system. Reads `/proc` at each scrape; values that cannot be read are left out.
#[derive(Debug)]
struct ProcessCollector;

impl Collector for ProcessCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let mut gauge = |name: &str, help: &str, value: Option<f64>| match value {
            None => Ok(()),
            Some(value) => ConstGauge::new(value).encode(encoder.encode_descriptor(
                name,
                help,
                None,
                MetricType::Gauge,
            )?),
        };
        let stat = fs::read_to_string("/proc/self/stat").ok().and_then(|text| stat(&text));
        gauge("process_resident_memory_bytes", "Memory in use", resident())?;
        gauge("process_memory_limit_bytes", "Memory that the container may use", memory_limit())?;
        gauge("process_open_fds", "Open file descriptors", open_fds())?;
        let started = stat.and_then(|s| Some(boot_time()? + s.started));
        gauge("process_start_time_seconds", "Start of the process, in seconds since 1970", started)?;
        if let Some(stat) = stat {
            let help = "Processor time used by all threads";
            let descriptor =
                encoder.encode_descriptor("process_cpu_seconds", help, None, MetricType::Counter)?;
            ConstCounter::new(stat.cpu).encode(descriptor)?;
        }
        Ok(())
    }
}

/// Times from `/proc/self/stat`, in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Stat {
    cpu: f64,
    /// Start of the process, since the machine booted.
    started: f64,
}

fn stat(text: &str) -> Option<Stat> {
    // The second field is the program's name in parentheses, which may itself contain spaces and parentheses.
    let (_, rest) = text.rsplit_once(')')?;
    let field = |number: usize| rest.split_ascii_whitespace().nth(number - 3)?.parse::<f64>().ok();
    Some(Stat {
        cpu: (field(14)? + field(15)?) / CLOCK_TICKS_PER_SECOND,
        started: field(22)? / CLOCK_TICKS_PER_SECOND,
    })
}

fn resident() -> Option<f64> {
    let text = fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix("VmRSS:"))?;
    let kib: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024.0)
}

/// The limit of the container's cgroup, of version 2 or 1; none outside of a container, or if it is unlimited.
fn memory_limit() -> Option<f64> {
    let files = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];
    limit(&files.iter().find_map(|file| fs::read_to_string(file).ok())?)
}

/// A limit as a cgroup states it: a number of bytes, or, for none, `max` or the largest multiple of a page.
fn limit(text: &str) -> Option<f64> {
    let bytes = text.trim().parse::<u64>().ok().filter(|bytes| *bytes < UNLIMITED_BYTES)?;
    Some(bytes as f64)
}

fn open_fds() -> Option<f64> {
    // Listing the folder opens one descriptor more.
    let open = fs::read_dir("/proc/self/fd").ok()?.count().saturating_sub(1);
    u32::try_from(open).ok().map(f64::from)
}

fn boot_time() -> Option<f64> {
    let text = fs::read_to_string("/proc/stat").ok()?;
    text.lines().find_map(|l| l.strip_prefix("btime "))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::counter::Counter;

    use super::{Metrics, Stat, limit, stat};

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

    #[test]
    fn a_limit_of_memory_is_a_number_and_max_is_none() {
        assert_eq!(limit("1073741824\n"), Some(1_073_741_824.0));
        assert_eq!([limit("max\n"), limit(""), limit("9223372036854771712\n")], [None, None, None]);
    }

    #[test]
    fn a_name_with_parentheses_does_not_shift_the_fields() {
        let rest = "S 1 2 3 4 5 6 7 8 9 10 150 50 0 0 20 0 8 0 4200 1 2";
        for name in ["kubesvc", "a b", "a) (b", ""] {
            let text = format!("17 ({name}) {rest}");
            assert_eq!(stat(&text), Some(Stat { cpu: 2.0, started: 42.0 }), "{text}");
        }
        for broken in ["", "17", "17 (a) S 1", "17 (a) S 1 2 3 4 5 6 7 8 9 10 x y 0 0 20 0 8 0 4200"] {
            assert_eq!(stat(broken), None, "{broken}");
        }
    }
}
