//! Schedule of the checks that compare all rows. Pure.

use std::time::Duration;

use crate::hub::sessions::ledger::Moment;

/// Delay of the first check after a start or a change.
const FIRST_CHECK_DELAY: Duration = Duration::from_secs(5);

/// Periods of the regular checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AssignmentChecks {
    /// Delay of the first check.
    pub initial_delay: Duration,
    /// Maximum interval between two checks.
    pub period: Duration,
}

impl Default for AssignmentChecks {
    fn default() -> Self {
        Self { initial_delay: Duration::ZERO, period: Duration::from_secs(60) }
    }
}

/// The next checks: five seconds after a start or a change, then ten, and so on up to the period. The leader may have
/// considered this replica, or the process that had its id before, dead; it then removes the rows within some
/// seconds.
#[derive(Debug)]
pub(super) struct CheckSchedule {
    period: Duration,
    pace: Duration,
    next: Moment,
}

impl CheckSchedule {
    pub(super) fn new(checks: AssignmentChecks, now: Moment) -> Self {
        let period = checks.period.max(Duration::from_secs(1));
        Self { period, pace: FIRST_CHECK_DELAY, next: now + checks.initial_delay }
    }

    /// Restarts the schedule: rows may have been lost.
    pub(super) fn hasten(&mut self, now: Moment) {
        self.pace = FIRST_CHECK_DELAY;
        self.next = self.next.min(now + self.pace.min(self.period));
    }

    /// Whether a check is due.
    pub(super) fn is_due(&mut self, now: Moment) -> bool {
        let is_due = now >= self.next;
        if is_due {
            self.next = now + self.pace.min(self.period);
            self.pace = (self.pace * 2).min(self.period.max(FIRST_CHECK_DELAY));
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The seconds in which rows are compared.
    fn seconds(schedule: &mut CheckSchedule, seconds: std::ops::Range<u64>) -> Vec<u64> {
        seconds.filter(|second| schedule.is_due(Duration::from_secs(*second))).collect()
    }

    #[test]
    fn after_the_start_rows_are_compared_soon_and_then_with_the_period() {
        let mut schedule = CheckSchedule::new(AssignmentChecks::default(), Duration::ZERO);
        assert_eq!(seconds(&mut schedule, 0..200), [0, 5, 15, 35, 75, 135, 195]);
    }

    #[test]
    fn after_a_change_they_are_compared_soon_again() {
        let mut schedule = CheckSchedule::new(AssignmentChecks::default(), Duration::ZERO);
        seconds(&mut schedule, 0..140);
        schedule.hasten(Duration::from_secs(140));
        assert_eq!(seconds(&mut schedule, 140..300), [145, 150, 160, 180, 220, 280]);
    }

    #[test]
    fn changes_in_a_row_put_nothing_off() {
        let mut schedule = CheckSchedule::new(AssignmentChecks::default(), Duration::ZERO);
        seconds(&mut schedule, 0..100);
        let compared: Vec<_> = (100..120)
            .filter(|second| {
                schedule.hasten(Duration::from_secs(*second));
                schedule.is_due(Duration::from_secs(*second))
            })
            .collect();
        assert_eq!(compared, [105, 110, 115]);
    }

    #[test]
    fn a_period_and_a_delay_that_are_set_hold() {
        let checks =
            AssignmentChecks { initial_delay: Duration::from_secs(3), period: Duration::from_secs(2) };
        let mut schedule = CheckSchedule::new(checks, Duration::ZERO);
        assert_eq!(seconds(&mut schedule, 0..9), [3, 5, 7]);
    }
}
