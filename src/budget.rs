//! How fast the operator may write to its API server.

use std::num::NonZeroU32;
use std::sync::Arc;

use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};

/// A token bucket; clones share it.
#[derive(Clone, Default)]
pub struct Budget(Option<Arc<DefaultDirectRateLimiter>>);

impl Budget {
    /// `per_second` writes on average, `burst` at once. 0 a second: no limit.
    pub fn new(per_second: u32, burst: u32) -> Self {
        let Some(per_second) = NonZeroU32::new(per_second) else { return Self(None) };
        let burst = NonZeroU32::new(burst).unwrap_or(per_second);
        Self(Some(Arc::new(RateLimiter::direct(Quota::per_second(per_second).allow_burst(burst)))))
    }

    /// Waits until one more write is allowed.
    pub async fn take(&self) {
        if let Some(limiter) = &self.0 {
            limiter.until_ready().await;
        }
    }

    /// Whether one more write is allowed now; takes it if so.
    pub fn try_take(&self) -> bool {
        self.0.as_ref().is_none_or(|limiter| limiter.check().is_ok())
    }
}
