//! Options of the benchmarks, from the environment.

use std::{collections::BTreeSet, fmt};

use crate::environment::{number, selection};

/// A benchmark. The names are those of the targets in `docs/benchmarks.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Benchmark {
    /// Rows committed a second, and bursts.
    P3,
    /// Time until a change is a row. Before the next one, which makes the cluster large.
    P8,
    /// Memory of the agent.
    P4,
    /// Bytes of a resumed stream.
    Resume,
    /// Rows of accounts during a first list.
    Beside,
    /// A database that is away.
    Outage,
}

pub(crate) const ALL: [Benchmark; 6] =
    [Benchmark::P3, Benchmark::P8, Benchmark::P4, Benchmark::Resume, Benchmark::Beside, Benchmark::Outage];

impl fmt::Display for Benchmark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::P3 => "p3",
            Self::P4 => "p4",
            Self::P8 => "p8",
            Self::Resume => "resume",
            Self::Beside => "beside",
            Self::Outage => "outage",
        })
    }
}

/// Size and selection of the benchmarks.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    /// Number of objects of a cluster, or of a round.
    pub(crate) objects: usize,
    pub(crate) rounds: usize,
    pub(crate) only: BTreeSet<Benchmark>,
}

impl Options {
    /// Reads `BENCH_OBJECTS`, `BENCH_ROUNDS` and `BENCH_ONLY`.
    ///
    /// # Errors
    ///
    /// The message names the variable, its value, and the allowed values.
    pub(crate) fn from_environment() -> Result<Self, String> {
        Ok(Self {
            objects: number("BENCH_OBJECTS", 10_000, 100..=1_000_000)?,
            rounds: number("BENCH_ROUNDS", 5, 1..=100)?,
            only: selection("BENCH_ONLY", &ALL)?,
        })
    }

    /// Whether all benchmarks are selected.
    pub(crate) fn is_whole(&self) -> bool {
        self.only.len() == ALL.len()
    }
}
