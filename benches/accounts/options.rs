//! Options of the benchmarks, from the environment.

use std::{collections::BTreeSet, fmt};

use crate::environment::{number, selection};

/// A benchmark. The names are those of the targets in `docs/benchmarks.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Benchmark {
    /// Rate at which accounts become ACTIVE.
    P1,
    /// Writes after a restart of the operator.
    P2,
    /// Cost of a real agent and a real target cluster.
    P9,
    /// Duration of a start with many accounts.
    Start,
    /// Memory of an idle agent.
    Idle,
    /// Time until many agents that connect at once are registered.
    Crowd,
    /// Time until another replica leads, and the cost of an agent at a follower.
    Replicas,
    /// Duration of a migration.
    Migration,
    /// Agents over TLS with certificates of their own.
    Tls,
}

const ALL: [Benchmark; 9] = [
    Benchmark::P1,
    Benchmark::P2,
    Benchmark::P9,
    Benchmark::Start,
    Benchmark::Idle,
    Benchmark::Crowd,
    Benchmark::Replicas,
    Benchmark::Migration,
    Benchmark::Tls,
];

impl fmt::Display for Benchmark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::P1 => "p1",
            Self::P2 => "p2",
            Self::P9 => "p9",
            Self::Start => "start",
            Self::Idle => "idle",
            Self::Crowd => "crowd",
            Self::Replicas => "replicas",
            Self::Migration => "migration",
            Self::Tls => "tls",
        })
    }
}

/// Size and selection of the benchmarks.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) accounts: usize,
    pub(crate) rounds: usize,
    pub(crate) only: BTreeSet<Benchmark>,
}

impl Options {
    /// Reads `BENCH_ACCOUNTS`, `BENCH_ROUNDS` and `BENCH_ONLY`.
    ///
    /// # Errors
    ///
    /// The message names the variable, its value, and the allowed values.
    pub(crate) fn from_environment() -> Result<Self, String> {
        Ok(Self {
            accounts: number("BENCH_ACCOUNTS", 1000, 1..=100_000)?,
            rounds: number("BENCH_ROUNDS", 3, 1..=100)?,
            only: selection("BENCH_ONLY", &ALL)?,
        })
    }

    /// Whether all benchmarks are selected.
    pub(crate) fn is_whole(&self) -> bool {
        self.only.len() == ALL.len()
    }
}
