//! Rate limit on the operator's writes to its API server, with priorities.

use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::shutdown::spawn_named;

/// Maximum pause that the API server can request.
const MAX_PAUSE: Duration = Duration::from_secs(60);

/// Priority of a write, the most urgent first. Among waiting writes, the oldest of the most urgent kind goes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    /// An answer that a revoke waits for. Until it is written, no zone holds the account.
    Revoke,
    /// Any other answer of an agent, and what follows from it for an account.
    Answer,
    /// Registration of an agent that has been admitted before.
    Registration,
    /// All other writes.
    Rest,
    /// Registration of an agent that is new, or that was never approved.
    Newcomer,
}

/// Number of [`Urgency`] variants.
const URGENCIES: usize = 5;

/// A token bucket with a priority queue. Clones share it.
#[derive(Clone, Default)]
pub struct RateLimit(Arc<RateLimitInner>);

#[derive(Default)]
struct RateLimitInner {
    /// `None`: no rate limit.
    limiter: Option<DefaultDirectRateLimiter>,
    state: Mutex<RateLimitState>,
}

#[derive(Default)]
struct RateLimitState {
    waiting: [VecDeque<oneshot::Sender<()>>; URGENCIES],
    /// Whether a task is running that wakes the waiting writes.
    is_releasing: bool,
    /// The API server asked for no writes until this instant.
    pause: Option<Instant>,
}

impl RateLimitState {
    fn pauses(&self) -> Option<Instant> {
        self.pause.filter(|until| *until > Instant::now())
    }

    /// Wakes the oldest waiter of the most urgent kind and skips waiters that were cancelled. Returns `false` if no
    /// waiter is left.
    fn release_next(&mut self) -> bool {
        self.waiting.iter_mut().any(|kind| {
            while let Some(next) = kind.pop_front() {
                if next.send(()).is_ok() {
                    return true;
                }
            }
            false
        })
    }
}

impl RateLimitInner {
    fn may_write(&self) -> bool {
        self.limiter.as_ref().is_none_or(|limiter| limiter.check().is_ok())
    }

    /// Wakes waiters at the permitted rate, until none is left.
    async fn release_next(&self) {
        loop {
            let pause = self.state.lock().pauses();
            if let Some(until) = pause {
                tokio::time::sleep_until(until).await;
                continue;
            }
            if let Some(limiter) = &self.limiter {
                limiter.until_ready().await;
            }
            let mut state = self.state.lock();
            if !state.release_next() {
                state.is_releasing = false;
                return;
            }
        }
    }
}

impl RateLimit {
    /// Creates a rate limit of `per_second` writes on average and `burst` at once. A `per_second` of 0 means no limit.
    pub fn new(per_second: u32, burst: u32) -> Self {
        let limiter = NonZeroU32::new(per_second).map(|per_second| {
            let burst = NonZeroU32::new(burst).unwrap_or(per_second);
            RateLimiter::direct(Quota::per_second(per_second).allow_burst(burst))
        });
        Self(Arc::new(RateLimitInner { limiter, state: Mutex::default() }))
    }

    /// Waits until the limit permits one more write and no more urgent write is waiting.
    pub async fn take(&self, urgency: Urgency) {
        let granted = {
            let mut state = self.0.state.lock();
            if !state.is_releasing && state.pauses().is_none() && self.0.may_write() {
                return;
            }
            let (permit, granted) = oneshot::channel();
            state.waiting[urgency as usize].push_back(permit);
            if !std::mem::replace(&mut state.is_releasing, true) {
                let shared = Arc::clone(&self.0);
                drop(spawn_named("rate limit", async move { shared.release_next().await }).detach());
            }
            granted
        };
        // The sender is dropped without a message only when the runtime shuts down.
        let _ = granted.await;
    }

    /// Takes one write if the limit permits it now and no write is waiting. Returns whether it did.
    pub fn try_take(&self) -> bool {
        let state = self.0.state.lock();
        !state.is_releasing && state.pauses().is_none() && self.0.may_write()
    }

    /// Number of writes that wait.
    pub fn waiting(&self) -> usize {
        self.0.state.lock().waiting.iter().map(VecDeque::len).sum()
    }

    /// Stops all writes for `time`, at most a minute, because the API server is overloaded.
    pub fn pause(&self, time: Duration) {
        let until = Instant::now() + time.min(MAX_PAUSE);
        let mut state = self.0.state.lock();
        state.pause = state.pause.max(Some(until));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Queues writes of these kinds, in this order, on an empty bucket. Returns the order in which they were
    /// permitted.
    async fn order_of(kinds: &[Urgency]) -> Vec<Urgency> {
        let rate_limit = RateLimit::new(20, 1);
        rate_limit.take(Urgency::Rest).await;
        let given = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = Vec::new();
        for kind in kinds.iter().copied() {
            let (all, given) = (rate_limit.clone(), Arc::clone(&given));
            tasks.push(tokio::spawn(async move {
                all.take(kind).await;
                given.lock().push(kind);
            }));
            while rate_limit.waiting() < tasks.len() {
                tokio::task::yield_now().await;
            }
        }
        for task in tasks {
            task.await.expect("no panic");
        }
        let given = given.lock();
        given.clone()
    }

    #[tokio::test]
    async fn of_those_that_wait_the_most_urgent_is_next() {
        use Urgency::{Answer, Newcomer, Registration, Rest, Revoke};
        let given = order_of(&[Newcomer, Rest, Registration, Answer, Revoke, Answer]).await;
        assert_eq!(given, [Revoke, Answer, Answer, Registration, Rest, Newcomer]);
    }

    #[tokio::test]
    async fn no_write_waits_without_a_limit() {
        let rate_limit = RateLimit::new(0, 0);
        for _ in 0..10_000 {
            rate_limit.take(Urgency::Rest).await;
        }
        assert!(rate_limit.try_take());
    }

    #[tokio::test]
    async fn an_api_server_that_has_too_much_to_do_is_left_alone_for_as_long_as_it_asks() {
        for rate_limit in [RateLimit::default(), RateLimit::new(1000, 1000)] {
            rate_limit.pause(Duration::from_millis(200));
            rate_limit.pause(Duration::from_millis(1));
            let since = std::time::Instant::now();
            assert!(!rate_limit.try_take());
            rate_limit.take(Urgency::Revoke).await;
            assert!(since.elapsed() >= Duration::from_millis(190), "{:?}", since.elapsed());
            assert!(rate_limit.try_take());
        }
    }

    #[tokio::test]
    async fn a_cancelled_wait_uses_no_budget() {
        let rate_limit = RateLimit::new(5, 1);
        rate_limit.take(Urgency::Rest).await;
        let gave_up = tokio::time::timeout(Duration::from_millis(1), rate_limit.take(Urgency::Revoke)).await;
        assert!(gave_up.is_err());
        let since = std::time::Instant::now();
        rate_limit.take(Urgency::Rest).await;
        assert!(since.elapsed() < Duration::from_millis(390), "one turn and not two: {:?}", since.elapsed());
    }

    #[tokio::test]
    async fn what_may_wait_leaves_the_turn_to_those_who_wait_for_one() {
        let rate_limit = RateLimit::new(20, 1);
        rate_limit.take(Urgency::Rest).await;
        let waiting = tokio::spawn({
            let rate_limit = rate_limit.clone();
            async move { rate_limit.take(Urgency::Registration).await }
        });
        while !rate_limit.0.state.lock().is_releasing {
            tokio::task::yield_now().await;
        }
        assert!(!rate_limit.try_take());
        waiting.await.expect("no panic");
    }
}
