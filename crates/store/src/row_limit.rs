//! How many rows a transaction over cached objects has, by the time that earlier ones took. Pure.
//!
//! Such a transaction holds the fence of an account, for which an election waits, and on SQLite the only connection for
//! writes, for which the rows of accounts wait.

use std::time::Duration;

/// Number of rows below which the limit is not lowered.
const MIN_ROWS: usize = 32;
/// Duration of a transaction above which the next one has half as many rows.
const MAX_DURATION: Duration = Duration::from_millis(250);
/// Duration of a full transaction below which the next one has twice as many rows.
const SHORT_DURATION: Duration = Duration::from_millis(100);

/// Maximum number of rows in the next transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowLimit {
    rows: usize,
    most: usize,
}

impl RowLimit {
    /// A limit that begins at `most` and never exceeds it.
    pub fn at_most(most: usize) -> Self {
        Self { rows: most, most }
    }

    /// The limit.
    pub fn rows(self) -> usize {
        self.rows
    }

    /// Records a transaction with this number of rows.
    pub fn record(&mut self, took: Duration, rows: usize) {
        if took > MAX_DURATION {
            self.halve();
        } else if took < SHORT_DURATION && rows * 2 > self.rows {
            self.rows = (self.rows * 2).min(self.most);
        }
    }

    /// Halves the limit, as after a transaction that did not end in time.
    pub fn halve(&mut self) {
        self.rows = (self.rows / 2).max(MIN_ROWS.min(self.most));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_halves_after_slow_transactions_and_doubles_after_short_full_ones() {
        let mut limit = RowLimit::at_most(500);
        limit.record(MAX_DURATION, 500);
        assert_eq!(limit.rows(), 500, "that is its aim");
        for expected in [250, 125, 62, 32, 32] {
            limit.record(MAX_DURATION + Duration::from_millis(1), 1);
            assert_eq!(limit.rows(), expected);
        }
        limit.record(Duration::from_millis(1), 5);
        assert_eq!(limit.rows(), 32, "it was not full");
        for expected in [64, 128, 256, 500, 500] {
            limit.record(Duration::from_millis(1), limit.rows());
            assert_eq!(limit.rows(), expected);
        }
        limit.halve();
        assert_eq!(limit.rows(), 250);
    }
}
