//! The nonces of calls seen while their signatures are valid. Bounded: at the limit, further calls are
//! refused, and nothing is forgotten early.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use super::signature::{MAX_CLOCK_SKEW, SignatureError};

/// Maximum number of calls remembered; further calls within a minute are refused.
const MAX_CALLS: usize = 100_000;

/// Nonces of admitted calls. Pure: time is passed in as the time since the start.
#[derive(Debug)]
pub(super) struct Replays {
    seen: HashSet<String>,
    order: VecDeque<(Duration, String)>,
    most: usize,
}

impl Default for Replays {
    fn default() -> Self {
        Self { seen: HashSet::new(), order: VecDeque::new(), most: MAX_CALLS }
    }
}

impl Replays {
    /// Records the nonce of a correctly signed call.
    ///
    /// # Errors
    /// The nonce was seen before, or too many are remembered.
    pub(super) fn take(&mut self, nonce: String, now: Duration) -> Result<(), SignatureError> {
        // A call from a clock that is ahead remains valid for twice the window.
        let forgettable = |at: &Duration| now.saturating_sub(*at) > MAX_CLOCK_SKEW * 2;
        while self.order.front().is_some_and(|(at, _)| forgettable(at)) {
            if let Some((_, nonce)) = self.order.pop_front() {
                self.seen.remove(&nonce);
            }
        }
        if self.seen.contains(&nonce) {
            return Err(SignatureError::Replayed);
        }
        if self.order.len() >= self.most {
            return Err(SignatureError::TooMany);
        }
        self.seen.insert(nonce.clone());
        self.order.push_back((now, nonce));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_call_is_taken_once_for_as_long_as_its_signature_is_good() {
        let mut replays = Replays::default();
        assert_eq!(replays.take("a".into(), at(0)), Ok(()));
        assert_eq!(replays.take("a".into(), at(0)), Err(SignatureError::Replayed));
        assert_eq!(replays.take("b".into(), at(30)), Ok(()));
        assert_eq!(replays.take("a".into(), at(60)), Err(SignatureError::Replayed));
        assert_eq!(replays.take("a".into(), at(61)), Ok(()), "by then its time is refused");
        assert_eq!(replays.take("b".into(), at(61)), Err(SignatureError::Replayed));
    }

    #[test]
    fn a_full_memory_takes_nothing_rather_than_forget() {
        let mut replays = Replays { most: 2, ..Replays::default() };
        assert_eq!(replays.take("a".into(), at(0)), Ok(()));
        assert_eq!(replays.take("b".into(), at(10)), Ok(()));
        assert_eq!(replays.take("c".into(), at(20)), Err(SignatureError::TooMany));
        assert_eq!(replays.take("a".into(), at(20)), Err(SignatureError::Replayed));
        assert_eq!(replays.take("c".into(), at(61)), Ok(()), "a is forgotten");
        assert_eq!(replays.seen.len(), replays.order.len());
    }
}
