//! The program of a benchmark: whether it is asked for, its runtime, and how it ends.

use std::process::ExitCode;

/// Whether the benchmarks are to run. `cargo test --benches` also runs this program, and must not run them.
pub(crate) fn is_asked_for() -> bool {
    let is_asked_for = std::env::args().any(|argument| argument == "--bench");
    if !is_asked_for {
        eprintln!("run it with `make bench`");
    }
    is_asked_for
}

/// Runs the benchmarks, which return the targets that were missed. The exit code is 1 if there are any.
pub(crate) fn run(benchmarks: impl Future<Output = Result<Vec<String>, String>>) -> ExitCode {
    // Fails only if a provider is already installed, which is fine.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let ended = tokio::runtime::Runtime::new()
        .map_err(|e| format!("no runtime: {e}"))
        .and_then(|runtime| runtime.block_on(benchmarks));
    match ended {
        Ok(misses) if misses.is_empty() => ExitCode::SUCCESS,
        Ok(misses) => {
            eprintln!("not as wanted:\n  {}", misses.join("\n  "));
            ExitCode::FAILURE
        }
        Err(reason) => {
            eprintln!("bench: {reason}");
            ExitCode::FAILURE
        }
    }
}
