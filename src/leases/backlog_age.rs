//! How long agents have been waiting for registration. Pure.

use crate::account::lifecycle::Tick;

/// Time, in ticks, for which a backlog still counts after it was last seen. The last registrations may not be
/// visible yet.
const MAX_UNSEEN_TICKS: Tick = 3;
/// Minimum gap, in ticks, that ends a backlog. After a shorter gap the same backlog continues.
const MIN_GAP_TICKS: Tick = 60;

/// Start of the current registration backlog.
#[derive(Debug, Default)]
pub(super) struct BacklogAge {
    since: Option<Tick>,
    last: Tick,
}

impl BacklogAge {
    /// Records whether registrations are waiting now. Returns the tick at which the backlog began, or `None`
    /// if there is no backlog.
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
