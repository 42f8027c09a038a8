//! How watches are kept: when one that is silent is given up, and how soon one that was lost is tried again.

use std::time::Duration;

use backon::ExponentialBuilder;
use kube::runtime::utils::{Backoff, ResetTimerBackoff};
use kube::runtime::watcher::{Config, ExponentialBackoff};

/// After so many seconds the API server ends a watch, and it is taken up where it ended. One that is silent for five
/// seconds longer has lost its other end, and is given up.
///
/// A choice: whoever decides by what a watch shows may be blind for so long where nothing says that a connection is dead,
/// such as behind a load balancer that stays up. In return each watch costs a request in half a minute: with six of them
/// a replica asks once in five seconds, about as often as it renews its Lease.
pub const WATCH_SECONDS: u32 = 30;

/// The first pause, and the longest. Chance adds as much again at most.
const PAUSES: [Duration; 2] = [Duration::from_millis(500), Duration::from_millis(2500)];
/// After so long without a failure, the next pause is the first again.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(30);

/// What all watches have in common.
pub fn config() -> Config {
    Config::default().timeout(WATCH_SECONDS)
}

/// The pauses between tries: from half a second, doubling, to five seconds at most. Whoever decides by what a watch shows
/// is blind meanwhile, so they stay short, however long the API server was away; there are few watches, so it bears that.
pub fn pauses() -> impl Backoff {
    let [first, longest] = PAUSES;
    let growing = ExponentialBuilder::default().with_min_delay(first).with_max_delay(longest);
    let growing = growing.with_factor(2.0).without_max_times().with_jitter();
    ResetTimerBackoff::new(ExponentialBackoff::from(growing), FORGOTTEN_AFTER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn however_often_a_watch_fails_it_is_tried_again_within_five_seconds() {
        let pauses: Vec<_> = pauses().take(1000).collect();
        assert_eq!(pauses.len(), 1000, "it is never given up");
        let longest = pauses.iter().max().expect("there are some");
        assert!(*longest <= Duration::from_secs(5), "{longest:?}");
        assert!(
            pauses[0] < Duration::from_secs(1) && pauses[999] >= Duration::from_millis(2500),
            "{pauses:?}"
        );
    }
}
