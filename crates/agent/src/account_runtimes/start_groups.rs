//! When accounts begin to be read: after those that are being activated, and in groups with a delay between two of them.

use std::time::{Duration, Instant};

/// Maximum time for which accounts wait for the activation of others. A list of each kind of each account costs far more
/// than an activation, so that without the wait an agent that was restarted would hold its last accounts late.
const MAX_ACTIVATION_WAIT: Duration = Duration::from_secs(10);

/// Lets accounts start in groups.
#[derive(Clone, Debug, Default)]
pub struct StartGroups {
    /// Accounts of a group; 0: there are no groups.
    size: usize,
    /// Delay between two groups.
    delay: Duration,
    /// When the present group began, and how many accounts it has.
    group: Option<(Instant, usize)>,
    /// Since when accounts are being activated.
    activating_since: Option<Instant>,
}

impl StartGroups {
    /// Groups of `size` accounts with a delay between them. Without either, all accounts start at once.
    pub fn new(size: usize, delay: Duration) -> Self {
        Self { size: if delay.is_zero() { 0 } else { size }, delay, group: None, activating_since: None }
    }

    /// Records whether accounts are being activated.
    pub(super) fn activating(&mut self, now: Instant, is_activating: bool) {
        self.activating_since = is_activating.then(|| self.activating_since.unwrap_or(now));
    }

    /// Lets an account start, which then counts.
    ///
    /// # Errors
    ///
    /// When it may at the latest, or when the next group begins, before which it may not.
    pub(super) fn start(&mut self, now: Instant) -> Result<(), Instant> {
        let latest = self.activating_since.map(|since| since + MAX_ACTIVATION_WAIT);
        if let Some(latest) = latest.filter(|latest| now < *latest) {
            return Err(latest);
        }
        if self.size == 0 {
            return Ok(());
        }
        let current = self.group.filter(|(began, _)| now < *began + self.delay);
        match current {
            Some((began, count)) if count >= self.size => Err(began + self.delay),
            Some((began, count)) => {
                self.group = Some((began, count + 1));
                Ok(())
            }
            None => {
                self.group = Some((now, 1));
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DELAY: Duration = Duration::from_secs(10);

    #[test]
    fn accounts_beyond_a_group_wait_for_the_next_one() {
        let (mut groups, begin) = (StartGroups::new(2, DELAY), Instant::now());
        assert_eq!(groups.start(begin), Ok(()));
        assert_eq!(groups.start(begin + DELAY / 2), Ok(()));
        assert_eq!(groups.start(begin + DELAY / 2), Err(begin + DELAY));
        assert_eq!(groups.start(begin + DELAY), Ok(()));
        assert_eq!(groups.start(begin + DELAY), Ok(()));
        assert_eq!(groups.start(begin + DELAY), Err(begin + 2 * DELAY));
        assert_eq!(groups.start(begin + 5 * DELAY), Ok(()), "an account that comes later need not wait");
    }

    #[test]
    fn accounts_wait_for_the_activation_of_others_for_a_limited_time() {
        let (mut groups, begin) = (StartGroups::new(0, DELAY), Instant::now());
        let second = |number: u64| begin + Duration::from_secs(number);
        groups.activating(begin, true);
        groups.activating(second(3), true);
        assert_eq!(groups.start(second(3)), Err(begin + MAX_ACTIVATION_WAIT));
        groups.activating(second(4), false);
        assert_eq!(groups.start(second(4)), Ok(()));
        groups.activating(second(5), true);
        assert_eq!(groups.start(second(5)), Err(second(5) + MAX_ACTIVATION_WAIT));
        assert_eq!(groups.start(second(15)), Ok(()), "one activation may hang");
    }

    #[test]
    fn without_size_or_delay_all_start_at_once() {
        for mut groups in [StartGroups::new(0, DELAY), StartGroups::new(1, Duration::ZERO)] {
            let begin = Instant::now();
            assert!((0..100).all(|_| groups.start(begin).is_ok()));
        }
    }
}
