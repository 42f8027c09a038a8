//! When a task goes on after attempts that failed. Pure but for the jitter.

use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBackoff, ExponentialBuilder};
use tokio::time::Instant;

/// The delays of one task. What failed is tried again after the delay. When as many attempts in a row have failed as may run
/// at once, it is not the keys that are at fault: none begins until the delay is over, and the next one is longer.
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

    /// An attempt has failed. The answer is after which time it may be repeated.
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

    /// An attempt has not failed.
    pub(super) fn succeeded(&mut self) {
        self.growing = growing(self.delays);
        (self.failures, self.paused_until) = (0, None);
        self.grow();
    }

    /// When the next attempt may begin, where that is not now.
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
