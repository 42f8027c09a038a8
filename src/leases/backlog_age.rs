//! For how long agents have waited to be registered. Pure.

use crate::account::lifecycle::Tick;

/// Time, in ticks, for which a backlog that was seen counts as standing: the agents registered last may not be seen
/// yet.
const MAX_UNSEEN_TICKS: Tick = 3;
/// Minimum gap, in ticks, that ends a backlog; with a shorter one it is the same backlog.
const MIN_GAP_TICKS: Tick = 60;

/// Since when there has been a queue.
#[derive(Debug, Default)]
pub(super) struct BacklogAge {
    since: Option<Tick>,
    last: Tick,
}

impl BacklogAge {
    /// Whether somebody waits now. Answers since when, absent where the queue is over.
    pub(super) fn look(&mut self, waits: bool, now: Tick) -> Option<Tick> {
        let quiet = now.saturating_sub(self.last);
        if waits {
            if self.since.is_none() || quiet > MIN_GAP_TICKS {
                self.since = Some(now);
            }
            self.last = now;
            return self.since;
        }
        self.since.filter(|_| quiet <= MAX_UNSEEN_TICKS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_is_counted_from_its_beginning_and_is_over_some_ticks_after_it_was_seen_last() {
        let mut queue = BacklogAge::default();
        assert_eq!(queue.look(false, 5), None);
        assert_eq!(queue.look(true, 6), Some(6));
        assert_eq!(queue.look(true, 40), Some(6));
        assert_eq!(queue.look(false, 43), Some(6));
        assert_eq!(queue.look(false, 44), None);
    }

    #[test]
    fn one_that_comes_and_goes_is_one_and_after_a_longer_pause_it_is_another() {
        let mut queue = BacklogAge::default();
        queue.look(true, 10);
        assert_eq!(queue.look(true, 70), Some(10));
        assert_eq!(queue.look(true, 131), Some(131));
    }
}
