//! When accounts begin to be read: in groups, with a delay between two of them.

use std::time::{Duration, Instant};

/// Lets accounts start in groups.
#[derive(Clone, Debug, Default)]
pub struct StartGroups {
    /// Accounts of a group; 0: there are no groups.
    size: usize,
    /// Delay between two groups.
    delay: Duration,
    /// When the present group began, and how many accounts it has.
    group: Option<(Instant, usize)>,
}

impl StartGroups {
    /// Groups of `size` accounts with a delay between them. Without either, all accounts start at once.
    pub fn new(size: usize, delay: Duration) -> Self {
        Self { size: if delay.is_zero() { 0 } else { size }, delay, group: None }
    }

    /// Lets an account start, which then counts.
    ///
    /// # Errors
    ///
    /// When the next group begins, before which it may not.
    pub(super) fn start(&mut self, now: Instant) -> Result<(), Instant> {
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
    fn without_size_or_delay_all_start_at_once() {
        for mut groups in [StartGroups::new(0, DELAY), StartGroups::new(1, Duration::ZERO)] {
            let begin = Instant::now();
            assert!((0..100).all(|_| groups.start(begin).is_ok()));
        }
    }
}
