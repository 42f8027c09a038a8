//! How many short requests of one caller run at this replica, whichever way they came: one count for REST and the gateway.

use kubesvc_runtime::limits::KeyedLimit;
use tokio::sync::OwnedSemaphorePermit;

/// Maximum number of short requests of one caller at once.
pub const MAX_SHORT_OF_CALLER: usize = 200;

/// The short requests of each caller that run.
#[derive(Debug)]
pub struct CallerCounts(KeyedLimit<String>);

/// A short request that is counted until this is dropped.
#[derive(Debug)]
pub struct ShortRequest {
    _permit: OwnedSemaphorePermit,
}

/// [`MAX_SHORT_OF_CALLER`] requests of the caller run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{MAX_SHORT_OF_CALLER} requests of user {0:?} are under way; try again")]
pub struct TooManyOfCaller(String);

impl Default for CallerCounts {
    fn default() -> Self {
        Self(KeyedLimit::new(MAX_SHORT_OF_CALLER))
    }
}

impl CallerCounts {
    /// Counts a short request of the caller with this name.
    pub fn short(&self, caller: &str) -> Result<ShortRequest, TooManyOfCaller> {
        let permit = self.0.of(caller.to_owned()).try_acquire_owned();
        let permit = permit.map_err(|_| TooManyOfCaller(caller.to_owned()))?;
        Ok(ShortRequest { _permit: permit })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_caller_does_not_use_up_what_others_may_have() {
        let counts = CallerCounts::default();
        let held: Vec<_> = std::iter::from_fn(|| counts.short("a").ok()).collect();
        assert_eq!(held.len(), MAX_SHORT_OF_CALLER);
        let refused = counts.short("a").expect_err("too many").to_string();
        assert!(refused.contains("200 requests of user \"a\""), "{refused}");
        let other = counts.short("b").expect("room for another one");
        drop((held, other));
        assert!(counts.short("a").is_ok(), "those that ended no longer count");
    }
}
