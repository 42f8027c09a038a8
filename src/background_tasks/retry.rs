//! Delays after failed attempts. Pure except for jitter.

use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBackoff, ExponentialBuilder};
use tokio::time::Instant;

/// Back-off of one task. A failed key is retried after the current delay. After as many consecutive failures as attempts
/// may run concurrently, a dependency is at fault rather than the keys: no attempt starts until the delay has passed, and
/// the next delay is longer.
pub(super) struct Retry {
    delays: [Duration; 2],
    growing: ExponentialBackoff,
    delay: Duration,
    max_failures: usize,
    failures: usize,
    paused_until: Option<Instant>,
}

impl Retry {
    pub(super) fn new(delays: [Duration; 2], concurrency: usize) -> Self {
        let [delay, _] = delays;
        let growing = growing(delays);
        let mut retry =
            Self { delays, growing, delay, max_failures: concurrency, failures: 0, paused_until: None };
        retry.grow();
        retry
    }

    /// Records a failed attempt, and returns the delay before its retry.
    pub(super) fn failed(&mut self, now: Instant) -> Duration {
        let delay = self.delay;
        self.failures += 1;
        if self.failures >= self.max_failures {
            self.failures = 0;
            self.paused_until = Some(now + delay);
            self.grow();
        }
        delay
    }

    /// Records an attempt that did not fail.
    pub(super) fn succeeded(&mut self) {
        self.growing = growing(self.delays);
        (self.failures, self.paused_until) = (0, None);
        self.grow();
    }

    /// Time until which no attempt starts, if the task pauses.
    pub(super) fn paused_until(&self, now: Instant) -> Option<Instant> {
        self.paused_until.filter(|until| *until > now)
    }

    fn grow(&mut self) {
        self.delay = self.growing.next().unwrap_or(self.delays[1]);
    }
}

fn growing([first, longest]: [Duration; 2]) -> ExponentialBackoff {
    let growing = ExponentialBuilder::default().with_min_delay(first).with_max_delay(longest);
    growing.without_max_times().with_jitter().build()
}
