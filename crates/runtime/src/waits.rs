//! Waits for a time that may not come, and for a state that another task brings about.

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

/// Waits until this time; for ever if there is none.
pub async fn at(time: Option<impl Into<Instant>>) {
    match time {
        Some(time) => sleep_until(time.into()).await,
        None => std::future::pending().await,
    }
}

/// Waits until `look` finds something. It looks at once, and after each notification of all waiters; none is missed.
pub async fn until<T>(changed: &Notify, mut look: impl FnMut() -> Option<T>) -> T {
    loop {
        let notified = changed.notified();
        tokio::pin!(notified);
        // From here on, no change is missed.
        notified.as_mut().enable();
        match look() {
            Some(found) => return found,
            None => notified.await,
        }
    }
}
