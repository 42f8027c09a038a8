//! When requests to the database are repeated: after growing delays, and all at once when one of them finds it back.

use std::time::Duration;

use tokio::sync::Notify;

/// First and maximum delay after a failure of the database, before jitter of up to half as much again.
const RETRY_DELAYS: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(5)];

/// The requests of a replica that failed and wait.
#[derive(Debug, Default)]
pub(super) struct DatabaseRetries {
    /// Notified when a request succeeds after one that failed.
    recovered: Notify,
}

impl DatabaseRetries {
    /// Waits before a request is repeated that has failed so many times in a row.
    pub(super) async fn wait(&self, failures: u32) {
        tokio::select! {
            () = self.recovered.notified() => {}
            () = tokio::time::sleep(delay(failures)) => {}
        }
    }

    /// Records a request that succeeded after so many failures in a row.
    pub(super) fn succeeded_after(&self, failures: u32) {
        if failures > 0 {
            self.recovered.notify_waiters();
        }
    }
}

fn delay(failures: u32) -> Duration {
    let [first, longest] = RETRY_DELAYS;
    let delay = first.saturating_mul(2_u32.saturating_pow(failures.saturating_sub(1).min(10))).min(longest);
    delay.mul_f64(1.0 + fastrand::f64() / 2.0)
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn delays_grow_to_a_few_seconds() {
        let retries = DatabaseRetries::default();
        for (failures, seconds) in [(1, 1), (2, 2), (3, 4), (4, 5), (100, 5)] {
            let begun = Instant::now();
            retries.wait(failures).await;
            let (took, least) = (begun.elapsed(), Duration::from_secs(seconds));
            assert!(took >= least && took <= least.mul_f64(1.51), "{failures}: {took:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn all_go_on_when_one_finds_the_database_back_and_not_when_one_never_lost_it() {
        let retries = DatabaseRetries::default();
        let begun = Instant::now();
        let mut waiting = Box::pin(futures::future::join(retries.wait(100), retries.wait(100)));
        assert!((&mut waiting).now_or_never().is_none());
        retries.succeeded_after(0);
        assert!((&mut waiting).now_or_never().is_none());
        retries.succeeded_after(1);
        waiting.await;
        assert_eq!(begun.elapsed(), Duration::ZERO);
    }
}
