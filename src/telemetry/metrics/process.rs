//! Metrics of this process, from the operating system.

use std::fs;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

/// Clock ticks per second in `/proc`: the same on all architectures that Rust supports for Linux.
const CLOCK_TICKS_PER_SECOND: f64 = 100.0;

/// Reads `/proc` at each scrape; values that cannot be read are left out.
#[derive(Debug)]
pub(super) struct ProcessCollector;

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
    use super::{Stat, stat};

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
