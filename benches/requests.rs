//! `make bench`: the cost of requests to accounts through their agents, as ratios to the same requests made directly.
//! `docs/benchmarks.md` states the targets, `benches/results.md` has the results.
//!
//! | file | contents |
//! |---|---|
//! | `calls.rs`, `deploy.rs`, `distance.rs`, `lists.rs`, `operations.rs`, `neighbours.rs` | one benchmark each |
//! | `latency.rs` | how latencies are measured |
//! | `echo.rs` | bare tonic programs where operator and agent stand: what the hops cost at least |
//! | `commits.rs` | bare commits: what the rows of an operation cost at least |
//! | `callers.rs` | callers, the same for both sides |
//! | `log_reader.rs`, `watchers.rs` | a caller that reads a log; callers that are killed |
//! | `sessions.rs`, `session_recorder.rs` | sessions of the hub; a proxy that records the agent's |
//! | `distant_server.rs`, `scripted_cluster.rs` | a server that is far away; a cluster with a long log and a slow object |
//! | `parts.rs` | what runs in a process of its own |
//! | `world.rs`, `options.rs` | the servers and programs; what to measure, and how much |
//! | `shared` | what other benchmarks use too |
//!
//! `BENCH_CALLS=500`, `BENCH_ROUNDS=3` and `BENCH_ONLY=calls,deploy,distance,lists,operations,neighbours` select the size
//! and the benchmarks.

use std::{process::ExitCode, time::Instant};

use options::{Benchmark, Options};
use report::Report;
use world::{ACCOUNTS, World};

/// The allocator of the programs, so that the bare programs have it too.
#[cfg(target_env = "gnu")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

#[path = "shared/agent.rs"]
mod agent;
#[path = "requests/callers.rs"]
mod callers;
#[path = "requests/calls.rs"]
mod calls;
#[path = "requests/commits.rs"]
mod commits;
#[path = "requests/deploy.rs"]
mod deploy;
#[path = "requests/distance.rs"]
mod distance;
#[path = "requests/distant_server.rs"]
mod distant_server;
#[path = "requests/echo.rs"]
mod echo;
#[path = "shared/environment.rs"]
mod environment;
#[path = "shared/latencies.rs"]
mod latencies;
#[path = "requests/latency.rs"]
mod latency;
#[path = "requests/lists.rs"]
mod lists;
#[path = "requests/log_reader.rs"]
mod log_reader;
#[path = "requests/neighbours.rs"]
mod neighbours;
#[expect(dead_code, reason = "other benchmarks use the rest")]
#[path = "shared/objects.rs"]
mod objects;
#[path = "requests/operations.rs"]
mod operations;
#[expect(dead_code, reason = "other benchmarks use the rest")]
#[path = "shared/operator.rs"]
mod operator;
#[path = "requests/options.rs"]
mod options;
#[path = "requests/parts.rs"]
mod parts;
#[expect(dead_code, reason = "other benchmarks use the rest")]
#[path = "shared/processes.rs"]
mod processes;
#[path = "shared/program.rs"]
mod program;
#[expect(dead_code, reason = "other benchmarks use the rest")]
#[path = "shared/progress.rs"]
mod progress;
#[expect(dead_code, reason = "other benchmarks use the rest")]
#[path = "shared/report.rs"]
mod report;
#[path = "requests/scripted_cluster.rs"]
mod scripted_cluster;
#[path = "shared/session_data.rs"]
mod session_data;
#[path = "requests/session_recorder.rs"]
mod session_recorder;
#[path = "requests/sessions.rs"]
mod sessions;
#[expect(dead_code, reason = "other benchmarks use the rest")]
#[path = "shared/statistics.rs"]
mod statistics;
#[path = "requests/watchers.rs"]
mod watchers;
#[path = "requests/world.rs"]
mod world;

fn main() -> ExitCode {
    if !program::is_asked_for() {
        return ExitCode::SUCCESS;
    }
    parts::run().unwrap_or_else(|| program::run(run()))
}

/// Runs the benchmarks and returns the targets that were missed.
async fn run() -> Result<Vec<String>, String> {
    let options = Options::from_environment()?;
    if options.only.is_empty() {
        // All that is selected is in the other programs.
        return Ok(Vec::new());
    }
    let start = Instant::now();
    let mut report = Report::default();
    let world = World::start().await?;
    let mut broken = Vec::new();
    let mut running = world.run(None).await?;
    world.create_accounts(0..ACCOUNTS, &world.target.admin_kubeconfig()).await?;
    world.active(0..ACCOUNTS).await.map_err(|reason| running.explain(&reason))?;
    for door in [running.gateway(1), running.gateway(0), world.aggregated()?] {
        running.answers(&door, 0).await?;
    }
    let echo = echo::Echo::start().await?;
    for benchmark in &options.only {
        progress::say(&format!("{benchmark}: begun after {} s", start.elapsed().as_secs()));
        let done = match benchmark {
            Benchmark::Calls => calls::run(&options, &running, &echo, &mut report).await,
            Benchmark::Deploy => deploy::run(&options, &running, &echo, &mut report).await,
            Benchmark::Distance => distance::run(&options, &mut running, &mut report).await,
            Benchmark::Lists => lists::run(&options, &mut running, &mut report).await,
            Benchmark::Operations => operations::run(&options, &running, &mut report).await,
            Benchmark::Neighbours => neighbours::run(&options, &mut running, &mut report).await,
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
        eprintln!("written to {}", report::write(report::REQUESTS, &text)?);
    } else {
        eprintln!("not written to benches/results.md: BENCH_ONLY leaves something out");
    }
    Ok(report.misses())
}

fn conditions(options: &Options, start: Instant) -> Result<String, String> {
    let Options { calls, rounds, .. } = options;
    let machine = processes::machine()?;
    let (kubernetes, etcd) = kubesvc_testkit::assets::versions()?;
    let date = jiff::Timestamp::now().strftime("%-d %B %Y");
    let minutes = start.elapsed().as_secs().div_ceil(60);
    Ok(format!(
        "{date}, {machine}; kubesvc {version}, {kubernetes}, {etcd}, PostgreSQL 15, two replicas and an agent, all on this \
         one machine. {calls} calls of each kind in each of {rounds} rounds, interleaved one by one. {minutes} minutes in \
         all.\n\n\
         To repeat: `make bench`. `BENCH_CALLS={calls}`, `BENCH_ROUNDS={rounds}` and \
         `BENCH_ONLY=calls,deploy,distance,lists,operations,neighbours` change how much of what.\n",
        version = env!("CARGO_PKG_VERSION"),
    ))
}
