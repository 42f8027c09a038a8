//! Back-off before the agent dials again.

use std::time::Duration;

use crate::agent::Backoff;

/// Increasing delays between dials.
#[derive(Debug)]
pub(super) struct DialBackoff {
    backoff: Backoff,
    next: Duration,
    /// Whether the last stream was accepted, so that the next dial is a reconnection.
    reconnects: bool,
}

impl DialBackoff {
    pub(super) fn new(backoff: Backoff) -> Self {
        let jitter = if backoff.jitter.is_finite() { backoff.jitter.clamp(0.0, 1.0) } else { 0.0 };
        let multiplier = if backoff.multiplier.is_finite() { backoff.multiplier.max(1.0) } else { 1.0 };
        let backoff = Backoff { jitter, multiplier, ..backoff };
        Self { next: backoff.base.min(backoff.max), backoff, reconnects: false }
    }

    /// Returns the delay after one more failure.
    pub(super) fn next(&mut self) -> Duration {
        let wait = self.next;
        let least =
            if std::mem::take(&mut self.reconnects) { self.backoff.reconnect } else { Duration::ZERO };
        let longer = Duration::try_from_secs_f64(wait.as_secs_f64() * self.backoff.multiplier);
        self.next = longer.unwrap_or(self.backoff.max).min(self.backoff.max);
        self.varied(wait.max(least))
    }

    /// Records that the hub accepted the stream: the next delay is one before a reconnection.
    pub(super) fn was_accepted(&mut self) {
        self.reconnects = true;
    }

    /// The maximum delay, for a problem that only a person can fix.
    fn longest(&self) -> Duration {
        self.varied(self.backoff.max)
    }

    /// Returns the delay after a refusal; `asked` is zero if the hub named no time. A hub that names a time
    /// is reachable, so that is no failure that should increase the back-off.
    pub(super) fn after_refusal(&mut self, asked: Duration, permanent: bool) -> Duration {
        match (asked.is_zero(), permanent) {
            (false, _) => asked + a_little_of(asked),
            (true, true) => self.longest(),
            (true, false) => self.next(),
        }
    }

    /// Makes the next failure count as the first one.
    pub(super) fn reset(&mut self) {
        self.next = self.backoff.base.min(self.backoff.max);
    }

    fn varied(&self, wait: Duration) -> Duration {
        wait.mul_f64(1.0 + self.backoff.jitter * (2.0 * fastrand::f64() - 1.0))
    }
}

/// Random addition to a delay that the hub requested: at most a twentieth of it, and at most one second,
/// because the hub chose that time for this agent alone.
fn a_little_of(asked: Duration) -> Duration {
    up_to((asked / 20).min(Duration::from_secs(1)))
}

/// A random delay up to `most`.
pub(super) fn up_to(most: Duration) -> Duration {
    most.mul_f64(fastrand::f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_the_longest_and_start_over() {
        let mut pace =
            DialBackoff::new(Backoff { jitter: 0.0, max: Duration::from_secs(3), ..Backoff::default() });
        let waits: Vec<_> = (0..5).map(|_| pace.next().as_millis()).collect();
        assert_eq!(waits, [1000, 1600, 2560, 3000, 3000]);
        pace.reset();
        assert_eq!(pace.next(), Duration::from_secs(1));
    }

    #[test]
    fn only_the_first_wait_after_an_accepted_stream_is_that_of_reconnecting() {
        let mut pace = DialBackoff::new(Backoff { jitter: 0.0, ..Backoff::default() });
        pace.was_accepted();
        assert_eq!(pace.next(), Duration::from_secs(5));
        assert_eq!(pace.next(), Duration::from_millis(1600));
    }

    #[test]
    fn waits_vary_by_the_share() {
        for _ in 0..1000 {
            let wait = DialBackoff::new(Backoff::default()).next().as_secs_f64();
            assert!((0.8..=1.2).contains(&wait), "{wait}");
        }
    }

    #[test]
    fn a_refusal_with_a_time_makes_nobody_slower_and_one_without_does() {
        let mut pace = DialBackoff::new(Backoff { jitter: 0.0, ..Backoff::default() });
        for _ in 0..9 {
            assert!(pace.after_refusal(Duration::from_secs(40), false) >= Duration::from_secs(40));
        }
        assert_eq!(pace.next(), Duration::from_secs(1));
        assert_eq!(pace.after_refusal(Duration::ZERO, false), Duration::from_millis(1600));
        assert_eq!(pace.after_refusal(Duration::ZERO, true), Backoff::default().max);
    }

    #[test]
    fn a_time_that_the_hub_names_is_kept_almost_as_it_is() {
        for _ in 0..1000 {
            assert!(a_little_of(Duration::from_secs(10)) <= Duration::from_millis(500));
            assert!(a_little_of(Duration::from_secs(300)) <= Duration::from_secs(1));
        }
    }

    #[test]
    fn odd_settings_still_wait() {
        let odd = Backoff {
            base: Duration::from_secs(9),
            multiplier: f64::NAN,
            jitter: 7.0,
            max: Duration::from_secs(2),
            reconnect: Duration::ZERO,
        };
        let mut pace = DialBackoff::new(odd);
        assert!((0..100).all(|_| pace.next() <= Duration::from_secs(4)));
    }
}
