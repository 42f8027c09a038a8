//! `make bench`: the cost of the cached objects, as ratios to the least that the same work could cost.
//! `docs/benchmarks.md` states the targets, `benches/results.md` has the results.
//!
//! | file | contents |
//! |---|---|
//! | `throughput.rs`, `freshness.rs`, `memory.rs`, `resume.rs`, `beside.rs`, `outage.rs` | one benchmark each |
//! | `feeder.rs`, `recorded.rs` | an agent without clusters that sends recorded batches |
//! | `tables.rs`, `rows.rs` | what a reader sees, and the bare loop |
//! | `cluster.rs`, `proxy.rs`, `slow_link.rs` | objects of the cluster; a counting proxy, and a slow link, between agent and hub |
//! | `world.rs`, `options.rs` | the servers; what to measure, and how much |
//! | `shared` | what other benchmarks use too |
//!
//! `BENCH_OBJECTS=10000`, `BENCH_ROUNDS=5` and `BENCH_ONLY=p3,p8,p4,resume,beside,outage` select the size and the
//! benchmarks.

use std::{process::ExitCode, time::Instant};

use kubesvc_testkit::controlplane::{ControlPlane, StartOptions};
use options::{Benchmark, Options};
use report::Report;
use world::World;

/// The allocator of the programs, so that the bare loops have it too.
#[cfg(target_env = "gnu")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

#[path = "shared/agent.rs"]
mod agent;
#[path = "cache/beside.rs"]
mod beside;
#[path = "cache/cluster.rs"]
mod cluster;
#[path = "shared/environment.rs"]
mod environment;
#[path = "cache/feeder.rs"]
mod feeder;
#[path = "cache/freshness.rs"]
mod freshness;
#[path = "shared/latencies.rs"]
mod latencies;
#[path = "cache/memory.rs"]
mod memory;
#[expect(dead_code, reason = "the benchmarks of accounts use the rest")]
#[path = "shared/objects.rs"]
mod objects;
#[expect(dead_code, reason = "the benchmarks of accounts use the rest")]
#[path = "shared/operator.rs"]
mod operator;
#[path = "cache/options.rs"]
mod options;
#[path = "cache/outage.rs"]
mod outage;
#[path = "shared/processes.rs"]
mod processes;
#[path = "shared/program.rs"]
mod program;
#[path = "shared/progress.rs"]
#[expect(dead_code, reason = "the benchmarks of accounts use the rest")]
mod progress;
#[path = "cache/proxy.rs"]
mod proxy;
#[path = "cache/recorded.rs"]
mod recorded;
#[expect(dead_code, reason = "the benchmarks of accounts use the rest")]
#[path = "shared/report.rs"]
mod report;
#[path = "cache/resume.rs"]
mod resume;
#[path = "cache/rows.rs"]
mod rows;
#[path = "shared/session_data.rs"]
mod session_data;
#[path = "cache/slow_link.rs"]
mod slow_link;
#[expect(dead_code, reason = "the benchmarks of accounts use the rest")]
#[path = "shared/statistics.rs"]
mod statistics;
#[path = "cache/tables.rs"]
mod tables;
#[path = "cache/throughput.rs"]
mod throughput;
#[path = "cache/world.rs"]
mod world;

fn main() -> ExitCode {
    if !program::is_asked_for() {
        return ExitCode::SUCCESS;
    }
    program::run(run())
}

/// Runs the benchmarks and returns the targets that were missed.
async fn run() -> Result<Vec<String>, String> {
    let options = Options::from_environment()?;
    if options.only.is_empty() {
        // All that is selected is in the other program.
        return Ok(Vec::new());
    }
    let start = Instant::now();
    let mut report = Report::default();
    let world = World::start().await?;
    let mut broken = Vec::new();
    for benchmark in &options.only {
        progress::say(&format!("{benchmark}: begun after {} s", start.elapsed().as_secs()));
        let done = match benchmark {
            Benchmark::P3 => throughput::run(&options, &world, &mut report).await,
            Benchmark::P8 => freshness::run(&options, &world, &mut report).await,
            Benchmark::P4 => memory::run(&options, &world, &mut report).await,
            Benchmark::Resume => resume::run(&options, &world, &mut report).await,
            Benchmark::Beside => beside::run(&options, &world, &mut report).await,
            Benchmark::Outage => outage::run(&options, &world, &mut report).await,
        };
        // Continue: the results of the other benchmarks are still useful.
        if let Err(reason) = done {
            progress::say(&format!("{benchmark} did not work: {reason}"));
            broken.push(format!("{benchmark} did not work: {reason}"));
        }
    }
    let tables = report.tables();
    println!("{tables}");
    if !broken.is_empty() {
        eprintln!("not written to benches/results.md: something did not work");
        return Ok(broken.into_iter().chain(report.misses()).collect());
    }
    if options.is_whole() {
        let text = format!("{}\n{tables}", conditions(&options, start)?);
        eprintln!("written to {}", report::write(report::CACHE, &text)?);
    } else {
        eprintln!("not written to benches/results.md: BENCH_ONLY leaves something out");
    }
    Ok(report.misses())
}

/// Starts a control plane with kubesvc's CRDs, and without the audit log, which would slow it down.
async fn control_plane() -> Result<ControlPlane, String> {
    let plane = ControlPlane::start_with(StartOptions::without_audit()).await?;
    objects::install(&plane).await?;
    Ok(plane)
}

fn conditions(options: &Options, start: Instant) -> Result<String, String> {
    let Options { objects, rounds, .. } = options;
    let machine = processes::machine()?;
    let (kubernetes, etcd) = kubesvc_testkit::assets::versions()?;
    let date = jiff::Timestamp::now().strftime("%-d %B %Y");
    let minutes = start.elapsed().as_secs().div_ceil(60);
    Ok(format!(
        "{date}, {machine}; kubesvc {version}, {kubernetes}, {etcd}, MariaDB 10.11 and PostgreSQL 15 with commits on disk, \
         all on this one machine. {objects} objects, {rounds} rounds, interleaved. {minutes} minutes in all.\n\n\
         To repeat: `make bench`. `BENCH_OBJECTS={objects}`, `BENCH_ROUNDS={rounds}` and \
         `BENCH_ONLY=p3,p8,p4,resume,beside,outage` change how much of what.\n",
        version = env!("CARGO_PKG_VERSION"),
    ))
}
