//! What processes use, from `/proc`.

use std::{fs, path::PathBuf};

/// Ticks a second in `/proc/PID/stat`: the kernel's USER_HZ, which is 100 on every Linux.
const TICKS: f64 = 100.0;

/// Processes to be watched, each with what it is called in the table.
#[derive(Debug, Clone)]
pub(crate) struct Programs(Vec<(&'static str, u32)>);

/// CPU seconds of each, in the same order.
#[derive(Debug, Clone)]
pub(crate) struct Cpu(pub(crate) Vec<(&'static str, f64)>);

impl Programs {
    /// This process, and the others.
    pub(crate) fn new(others: &[(&'static str, u32)]) -> Self {
        Self(others.iter().copied().chain([("benchmark", std::process::id())]).collect())
    }

    /// CPU seconds since each was started.
    pub(crate) fn cpu(&self) -> Result<Cpu, String> {
        self.0
            .iter()
            .map(|&(name, pid)| Ok((name, cpu_seconds(pid)?)))
            .collect::<Result<_, String>>()
            .map(Cpu)
    }
}

impl Cpu {
    /// What was used between `before` and this.
    pub(crate) fn since(&self, before: &Self) -> Self {
        Self(self.0.iter().zip(&before.0).map(|((name, now), (_, then))| (*name, now - then)).collect())
    }
}

/// User and system time of a process with all its threads.
fn cpu_seconds(pid: u32) -> Result<f64, String> {
    let text = read(pid, "stat")?;
    // The second field is the program's name in parentheses, and may hold anything.
    let fields: Vec<&str> =
        text.rsplit_once(')').map(|(_, rest)| rest.split_whitespace().collect()).unwrap_or_default();
    let ticks = |field: usize| fields.get(field - 3).and_then(|value| value.parse::<f64>().ok());
    match (ticks(14), ticks(15)) {
        (Some(user), Some(system)) => Ok((user + system) / TICKS),
        _ => Err(format!("/proc/{pid}/stat is not as expected: {text}")),
    }
}

/// The greatest resident memory that a process has had so far, in MB.
pub(crate) fn peak_resident(pid: u32) -> Result<f64, String> {
    kilobytes(pid, "status", "VmHWM:")
}

/// Its memory now, with shared pages counted in part, in MB.
pub(crate) fn proportional(pid: u32) -> Result<f64, String> {
    kilobytes(pid, "smaps_rollup", "Pss:")
}

fn kilobytes(pid: u32, file: &str, key: &str) -> Result<f64, String> {
    let text = read(pid, file)?;
    text.lines()
        .find_map(|line| line.strip_prefix(key)?.split_whitespace().next()?.parse::<f64>().ok())
        .map(|kilobytes| kilobytes / 1024.0)
        .ok_or_else(|| format!("/proc/{pid}/{file} has no {key}"))
}

/// How many sockets it has open.
pub(crate) fn sockets(pid: u32) -> Result<usize, String> {
    let folder = path(pid, "fd");
    let files = fs::read_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let targets = files.flatten().filter_map(|file| fs::read_link(file.path()).ok());
    Ok(targets.filter(|target| target.to_string_lossy().starts_with("socket:")).count())
}

/// What the machine is: processors, and memory in GB.
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
