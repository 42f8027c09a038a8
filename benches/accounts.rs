//! `make bench`: the cost of kubesvc, as ratios to a minimal client that makes the same requests.
//! `docs/benchmarks.md` states the targets, `benches/results.md` has the results.
//!
//! | file | contents |
//! |---|---|
//! | `p1.rs`, `p2.rs`, `p9.rs`, `start.rs`, `idle.rs`, `crowd.rs`, `migration.rs`, `tls.rs` | one benchmark each |
//! | `replicas.rs`, `failover.rs`, `follower.rs` | several replicas |
//! | `raw.rs`, `bare.rs` | the minimal clients |
//! | `follow.rs`, `requests.rs` | the clock, the API server's request counters |
//! | `options.rs` | what to measure, and how much |
//! | `shared` | what other benchmarks use too: accounts, programs, their resource usage, output |
//!
//! `BENCH_ACCOUNTS=1000`, `BENCH_ROUNDS=3` and `BENCH_ONLY=p1,p2,p9,start,idle,crowd,replicas,migration,tls` select the size
//! and the benchmarks.

use std::{process::ExitCode, time::Instant};

use kubesvc_testkit::{
    controlplane::{ControlPlane, StartOptions},
    kubeconfig::{self, Authority, Proof},
};
use objects::AT_ONCE;
use options::{Benchmark, Options};
use report::Report;

/// The allocator of the programs, so that memory figures are comparable.
#[cfg(target_env = "gnu")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

#[path = "shared/agent.rs"]
mod agent;
#[path = "accounts/bare.rs"]
mod bare;
#[path = "accounts/crowd.rs"]
mod crowd;
#[path = "shared/environment.rs"]
mod environment;
#[path = "accounts/failover.rs"]
mod failover;
#[path = "accounts/follow.rs"]
mod follow;
#[path = "accounts/follower.rs"]
mod follower;
#[path = "accounts/idle.rs"]
mod idle;
#[path = "accounts/migration.rs"]
mod migration;
#[path = "shared/objects.rs"]
mod objects;
#[expect(dead_code, reason = "the benchmarks of the cache use the rest")]
#[path = "shared/operator.rs"]
mod operator;
#[path = "accounts/options.rs"]
mod options;
#[path = "accounts/p1.rs"]
mod p1;
#[path = "accounts/p2.rs"]
mod p2;
#[path = "accounts/p9.rs"]
mod p9;
#[path = "shared/processes.rs"]
mod processes;
#[path = "shared/program.rs"]
mod program;
#[path = "shared/progress.rs"]
mod progress;
#[path = "accounts/raw.rs"]
mod raw;
#[path = "accounts/replicas.rs"]
mod replicas;
#[expect(dead_code, reason = "the benchmarks of the cache use the rest")]
#[path = "shared/report.rs"]
mod report;
#[path = "accounts/requests.rs"]
mod requests;
#[path = "accounts/start.rs"]
mod start;
#[path = "shared/statistics.rs"]
mod statistics;
#[path = "accounts/tls.rs"]
mod tls;

fn main() -> ExitCode {
    if !program::is_asked_for() {
        return ExitCode::SUCCESS;
    }
    // This program is also the bare server that the hub is compared with.
    if idle::is_bare_server() {
        return idle::serve_bare();
    }
    if crowd::is_bare_server() {
        return crowd::serve_bare();
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
    // Nothing connects to it: simulated agents only claim to.
    let authority = Authority::new("kubesvc bench")?;
    let nowhere = kubeconfig::yaml("https://cluster.example:6443", &authority.pem(), Proof::Token("token"));
    let mut broken = Vec::new();
    for benchmark in &options.only {
        progress::say(&format!("{benchmark}: begun after {} s", start.elapsed().as_secs()));
        let done = match benchmark {
            Benchmark::P1 => p1::run(&options, &nowhere, &mut report).await,
            Benchmark::P2 => p2::run(&options, &nowhere, &mut report).await,
            Benchmark::P9 => p9::run(&options, &mut report).await,
            Benchmark::Start => start::run(&options, &mut report).await,
            Benchmark::Idle => idle::run(&options, &mut report).await,
            Benchmark::Crowd => crowd::run(&options, &mut report).await,
            Benchmark::Migration => migration::run(&options, &mut report).await,
            Benchmark::Tls => tls::run(&options, &mut report).await,
            Benchmark::Replicas => replicas::run(&options, &nowhere, &mut report).await,
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
        let text = format!("{}\n{tables}", conditions(&options, start).await?);
        eprintln!("written to {}", report::write(report::ACCOUNTS, &text)?);
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

/// Returns the processes of a control plane.
fn servers(plane: &ControlPlane) -> Result<Vec<(&'static str, u32)>, String> {
    match plane.process_ids() {
        (Some(apiserver), etcd) => Ok(vec![("kube-apiserver", apiserver), ("etcd", etcd)]),
        (None, _) => Err("the API server does not run".into()),
    }
}

async fn conditions(options: &Options, start: Instant) -> Result<String, String> {
    let Options { accounts, rounds, .. } = options;
    let machine = processes::machine()?;
    let (kubernetes, etcd) = kubesvc_testkit::assets::versions()?;
    let date = jiff::Timestamp::now().strftime("%-d %B %Y");
    let minutes = start.elapsed().as_secs().div_ceil(60);
    Ok(format!(
        "{date}, {machine}; kubesvc {version}, {kubernetes}, {etcd}, all on this one machine. {accounts} accounts, \
         each with a Secret of its own; {rounds} rounds, interleaved; {AT_ONCE} requests at once on both sides; the \
         operator without a limit of its own (`qps: 0`); API servers without audit, etcd without fsync. {minutes} \
         minutes in all.\n\n\
         To repeat: `make bench`. `BENCH_ACCOUNTS={accounts}`, `BENCH_ROUNDS={rounds}` and `BENCH_ONLY=p1,p2,p9,start,idle,crowd,replicas,migration,tls` \
         change how much of what.\n",
        version = env!("CARGO_PKG_VERSION"),
    ))
}
