//! How many short requests of one caller run at this replica, whichever way they came: one count for REST and the gateway.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

/// Maximum number of short requests of one caller at once.
pub const MAX_SHORT_OF_CALLER: usize = 200;

/// The short requests of each caller that run. Callers without any are not in it.
#[derive(Debug, Default)]
pub struct CallerCounts(Mutex<HashMap<String, usize>>);

/// A short request that is counted until this is dropped.
#[derive(Debug)]
pub struct ShortRequest {
    counts: Arc<CallerCounts>,
    caller: String,
}

/// [`MAX_SHORT_OF_CALLER`] requests of the caller run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{MAX_SHORT_OF_CALLER} requests of user {0:?} are under way; try again")]
pub struct TooManyOfCaller(String);

impl CallerCounts {
    /// Counts a short request of the caller with this name.
    ///
    /// # Errors
    /// The caller has too many.
    pub fn short(self: &Arc<Self>, caller: &str) -> Result<ShortRequest, TooManyOfCaller> {
        let mut counts = self.0.lock();
        let count = counts.entry(caller.to_owned()).or_default();
        if *count >= MAX_SHORT_OF_CALLER {
            return Err(TooManyOfCaller(caller.to_owned()));
        }
        *count += 1;
        Ok(ShortRequest { counts: Arc::clone(self), caller: caller.to_owned() })
    }
}

impl Drop for ShortRequest {
    fn drop(&mut self) {
        let mut counts = self.counts.0.lock();
        if let Some(count) = counts.get_mut(&self.caller) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.caller);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_caller_does_not_use_up_what_others_may_have() {
        let counts = Arc::<CallerCounts>::default();
        let held: Vec<_> = std::iter::from_fn(|| counts.short("a").ok()).collect();
        assert_eq!(held.len(), MAX_SHORT_OF_CALLER);
        let refused = counts.short("a").expect_err("too many").to_string();
        assert!(refused.contains("200 requests of user \"a\""), "{refused}");
        let other = counts.short("b").expect("room for another one");
        drop((held, other));
        assert!(counts.0.lock().is_empty());
    }
}
