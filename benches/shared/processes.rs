//! Resource usage of processes, from `/proc`.

use std::{
    fs,
    path::PathBuf,
    time::{Duration, Instant},
};

use kubesvc_testkit::databases::children;

/// Ticks per second in `/proc/PID/stat`: the kernel's USER_HZ, which is 100 on every Linux.
const TICKS: f64 = 100.0;

/// Label for the CPU time of everything else on the machine: the kernel's shared work and unrelated programs.
const REST: &str = "all else";

/// Interval between readings of memory, until it no longer falls.
const SETTLE: Duration = Duration::from_secs(2);
/// Smallest change of memory between two readings that counts as a fall, in MB: a hundredth of the allowance for a
/// thousand agents.
const STEADY: f64 = 0.25;
/// Maximum time for memory to settle. The allocator returns unused memory within ten seconds.
const SETTLED: Duration = Duration::from_secs(20);

/// Processes to measure, each with its label in the table.
#[derive(Debug, Clone)]
pub(crate) struct Programs(Vec<(&'static str, u32)>);

/// CPU seconds of each program, in the same order, and finally those of everything else on the machine.
#[derive(Debug, Clone)]
pub(crate) struct Cpu(pub(crate) Vec<(&'static str, f64)>);

impl Programs {
    /// This process and `others`.
    pub(crate) fn new(others: &[(&'static str, u32)]) -> Self {
        Self(others.iter().copied().chain([("benchmark", std::process::id())]).collect())
    }

    /// Returns the CPU seconds since each program started, including its child processes. This process is counted
    /// without its children.
    pub(crate) fn cpu(&self) -> Result<Cpu, String> {
        let of = |pid: u32| if pid == std::process::id() { cpu_seconds(pid) } else { cpu_of_family(pid) };
        let mut all: Vec<(&'static str, f64)> =
            self.0.iter().map(|&(name, pid)| Ok((name, of(pid)?))).collect::<Result<_, String>>()?;
        let ours: f64 = all.iter().map(|(_, seconds)| seconds).sum();
        all.push((REST, cpu_of_machine()? - ours));
        Ok(Cpu(all))
    }
}

impl Cpu {
    /// Returns the difference from `before`. A program that is missing there has started since.
    pub(crate) fn since(&self, before: &Self) -> Self {
        let then = |name: &str| before.0.iter().find(|(one, _)| *one == name).map_or(0.0, |(_, then)| *then);
        Self(self.0.iter().map(|(name, now)| (*name, now - then(name))).collect())
    }
}

/// Returns the user and system time of a process, all threads included.
fn cpu_seconds(pid: u32) -> Result<f64, String> {
    ticks(pid, &[14, 15])
}

/// Like [`cpu_seconds`], but includes child processes, also those that have ended: PostgreSQL has one per connection.
fn cpu_of_family(pid: u32) -> Result<f64, String> {
    let living: Vec<u32> = children(pid).into_iter().filter_map(|child| child.try_into().ok()).collect();
    // A child that has ended since is counted by its parent.
    let of_living: f64 = living.into_iter().filter_map(|child| cpu_of_family(child).ok()).sum();
    Ok(ticks(pid, &[14, 15, 16, 17])? + of_living)
}

/// Returns the sum of fields of `/proc/PID/stat` that count ticks, in seconds.
fn ticks(pid: u32, fields: &[usize]) -> Result<f64, String> {
    let text = read(pid, "stat")?;
    // The second field is the program's name in parentheses, which may contain anything.
    let all: Vec<&str> =
        text.rsplit_once(')').map(|(_, rest)| rest.split_whitespace().collect()).unwrap_or_default();
    let ticks = fields.iter().map(|field| all.get(field - 3)?.parse::<f64>().ok()).sum::<Option<f64>>();
    ticks.map(|ticks| ticks / TICKS).ok_or_else(|| format!("/proc/{pid}/stat is not as expected: {text}"))
}

/// Returns the CPU seconds that all processors together have been busy since boot.
pub(crate) fn cpu_of_machine() -> Result<f64, String> {
    let text = fs::read_to_string("/proc/stat").map_err(|e| format!("/proc/stat: {e}"))?;
    let first = text.lines().next().and_then(|line| line.strip_prefix("cpu ")).unwrap_or_default();
    let fields: Vec<f64> = first.split_whitespace().filter_map(|field| field.parse().ok()).collect();
    match fields.as_slice() {
        // Excludes idle time, waiting for disks, and time stolen by other virtual machines.
        [user, nice, system, _idle, _waiting, hard, soft, ..] => {
            Ok((user + nice + system + hard + soft) / TICKS)
        }
        _ => Err(format!("/proc/stat is not as expected: {first}")),
    }
}

/// Returns the peak resident memory of a process, in MB.
pub(crate) fn peak_resident(pid: u32) -> Result<f64, String> {
    kilobytes(pid, "status", "VmHWM:")
}

/// Returns the current memory of a process with shared pages counted proportionally (PSS), in MB.
pub(crate) fn proportional(pid: u32) -> Result<f64, String> {
    kilobytes(pid, "smaps_rollup", "Pss:")
}

/// Returns the memory of a process in MB, once it no longer falls.
pub(crate) async fn settled(process: u32) -> Result<f64, String> {
    let end = Instant::now() + SETTLED;
    let mut last = proportional(process)?;
    loop {
        tokio::time::sleep(SETTLE).await;
        let now = proportional(process)?;
        if now > last - STEADY || Instant::now() > end {
            return Ok(now);
        }
        last = now;
    }
}

fn kilobytes(pid: u32, file: &str, key: &str) -> Result<f64, String> {
    let text = read(pid, file)?;
    text.lines()
        .find_map(|line| line.strip_prefix(key)?.split_whitespace().next()?.parse::<f64>().ok())
        .map(|kilobytes| kilobytes / 1024.0)
        .ok_or_else(|| format!("/proc/{pid}/{file} has no {key}"))
}

/// Returns the number of open sockets of a process.
pub(crate) fn sockets(pid: u32) -> Result<usize, String> {
    let folder = path(pid, "fd");
    let files = fs::read_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let targets = files.flatten().filter_map(|file| fs::read_link(file.path()).ok());
    Ok(targets.filter(|target| target.to_string_lossy().starts_with("socket:")).count())
}

/// Describes the machine: processors, and memory in GB.
pub(crate) fn machine() -> Result<String, String> {
    let cores = std::thread::available_parallelism().map_err(|e| format!("number of processors: {e}"))?;
    let text = |file: &str| fs::read_to_string(file).map_err(|e| format!("{file}: {e}"));
    let memory = text("/proc/meminfo")?
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:")?.split_whitespace().next()?.parse::<f64>().ok())
        .ok_or("/proc/meminfo has no MemTotal")?;
    let processor = text("/proc/cpuinfo")?
        .lines()
        .find_map(|line| Some(line.strip_prefix("model name")?.split_once(':')?.1.trim().to_owned()))
        .unwrap_or_else(|| std::env::consts::ARCH.into());
    Ok(format!("{cores} cores ({processor}), {:.0} GB of memory", memory / 1024.0 / 1024.0))
}

fn path(pid: u32, file: &str) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}/{file}"))
}

fn read(pid: u32, file: &str) -> Result<String, String> {
    let path = path(pid, file);
    fs::read_to_string(&path).map_err(|e| format!("{}: {e} (has the program ended?)", path.display()))
}
