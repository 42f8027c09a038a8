//! Delays after consecutive failures of one scope: 1 s, twice as long each time, up to 30 s, with jitter.

use std::time::Duration;

use fastrand::Rng;

const FIRST_DELAY: Duration = Duration::from_secs(1);
const MAX_DELAY: Duration = Duration::from_secs(30);
/// Fraction by which a delay is shortened at most, so that scopes that failed at once do not try again at once.
const JITTER: f64 = 0.5;

/// Delays between attempts.
#[derive(Clone, Debug)]
pub(super) struct RetryDelay {
    next: Duration,
}

impl Default for RetryDelay {
    fn default() -> Self {
        Self { next: FIRST_DELAY }
    }
}

impl RetryDelay {
    /// The delay after one more failure.
    pub(super) fn after_failure(&mut self, random: &mut Rng) -> Duration {
        let delay = self.next;
        self.next = (delay * 2).min(MAX_DELAY);
        delay.mul_f64(1.0 - JITTER * random.f64())
    }

    /// Whether nothing has failed since the last success.
    pub(super) fn is_first(&self) -> bool {
        self.next == FIRST_DELAY
    }

    /// Makes the next failure count as the first one.
    pub(super) fn reset(&mut self) {
        *self = Self::default();
    }
}
