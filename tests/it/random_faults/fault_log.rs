//! Which faults happened to what, and when. The watcher uses this to judge what may follow.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::plan::FaultMode;

/// One process, or one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Replica(usize),
    Agent(usize),
    Database,
    ApiServer,
}

/// A fault that was executed.
#[derive(Clone, Copy, Debug)]
struct RecordedFault {
    target: Target,
    mode: FaultMode,
    from: Instant,
    until: Option<Instant>,
}

/// All faults so far.
#[derive(Debug, Default)]
pub(super) struct FaultLog(Mutex<Vec<RecordedFault>>);

impl FaultLog {
    /// Records the start of a fault, and returns its index for [`FaultLog::end`].
    pub(super) fn begin(&self, target: Target, mode: FaultMode) -> usize {
        let mut entries = self.0.lock();
        entries.push(RecordedFault { target, mode, from: Instant::now(), until: None });
        entries.len() - 1
    }

    /// Records the end of a fault.
    pub(super) fn end(&self, place: usize) {
        self.0.lock()[place].until = Some(Instant::now());
    }

    /// Whether the target has a fault now.
    pub(super) fn is_hit(&self, target: Target) -> bool {
        self.was_hit(target, Duration::ZERO)
    }

    /// Whether the target had a fault within this time.
    pub(super) fn was_hit(&self, target: Target, within: Duration) -> bool {
        let now = Instant::now();
        self.0.lock().iter().rev().any(|entry| {
            entry.target == target && entry.until.is_none_or(|until| now.duration_since(until) < within)
        })
    }

    /// Whether the target is paused, and has been for at least this time.
    pub(super) fn is_halted(&self, target: Target, since: Duration) -> bool {
        let halted = |entry: &RecordedFault| {
            entry.target == target && entry.mode == FaultMode::Halt && entry.until.is_none()
        };
        self.0.lock().iter().any(|entry| halted(entry) && entry.from.elapsed() >= since)
    }
}
