//! Options of the benchmarks, from the environment.

use std::{collections::BTreeSet, fmt};

use crate::environment::{number, selection};

/// A benchmark. The names are those of the targets in `docs/benchmarks.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Benchmark {
    /// Latency of one call.
    Calls,
    /// Latency of a deploy.
    Deploy,
    /// kubectl at a distance.
    Distance,
    /// Rate of large lists.
    Lists,
    /// Many operations at once.
    Operations,
    /// What a caller costs others.
    Neighbours,
}

pub(crate) const ALL: [Benchmark; 6] = [
    Benchmark::Calls,
    Benchmark::Deploy,
    Benchmark::Distance,
    Benchmark::Lists,
    Benchmark::Operations,
    Benchmark::Neighbours,
];

impl fmt::Display for Benchmark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Calls => "calls",
            Self::Deploy => "deploy",
            Self::Distance => "distance",
            Self::Lists => "lists",
            Self::Operations => "operations",
            Self::Neighbours => "neighbours",
        })
    }
}

/// Size and selection of the benchmarks.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    /// Number of calls of each kind in a round.
    pub(crate) calls: usize,
    pub(crate) rounds: usize,
    pub(crate) only: BTreeSet<Benchmark>,
}

impl Options {
    /// Reads `BENCH_CALLS`, `BENCH_ROUNDS` and `BENCH_ONLY`.
    ///
    /// # Errors
    ///
    /// The message names the variable, its value, and the allowed values.
    pub(crate) fn from_environment() -> Result<Self, String> {
        Ok(Self {
            calls: number("BENCH_CALLS", 500, 10..=100_000)?,
            rounds: number("BENCH_ROUNDS", 3, 1..=100)?,
            only: selection("BENCH_ONLY", &ALL)?,
        })
    }

    /// Whether all benchmarks are selected.
    pub(crate) fn is_whole(&self) -> bool {
        self.only.len() == ALL.len()
    }
}
