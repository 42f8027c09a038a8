//! A log line that anyone on the network can provoke is written at most once in ten seconds.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

const PAUSE: Duration = Duration::from_secs(10);

/// Says when the next line may be written.
#[derive(Debug, Default)]
pub(super) struct Seldom(Mutex<Option<Instant>>);

impl Seldom {
    /// Whether it is time again; true takes the turn.
    pub(super) fn may_speak(&self) -> bool {
        let mut last = self.0.lock();
        let due = last.is_none_or(|last| last.elapsed() >= PAUSE);
        if due {
            *last = Some(Instant::now());
        }
        due
    }
}
