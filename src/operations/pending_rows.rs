//! The rows that nobody waits for: the newest of each operation, in the order in which the operations came. A row stays
//! until it is written. Pure.

use std::collections::{HashMap, HashSet};

use indexmap::IndexMap;

use kubesvc_store::OperationChange;

/// Maximum number of operations whose rows wait; beyond it the oldest go.
pub(super) const MAX_PENDING: usize = 10_000;

/// The rows that wait.
#[derive(Debug, Default)]
pub(super) struct PendingRows {
    /// By operation, with the number that each had when it came.
    rows: IndexMap<String, (u64, OperationChange)>,
    /// Number of operations that came.
    came: u64,
    /// Operations that end here: those of which a row came, until their end is written or dropped.
    unended: HashSet<String>,
}

impl PendingRows {
    /// Adds a row, which replaces one of the same operation; the first end of an operation stays. Returns whether the
    /// oldest row had to go for it.
    pub(super) fn add(&mut self, row: OperationChange) -> bool {
        let id = row.id().to_owned();
        if let Some((_, there)) = self.rows.get_mut(&id) {
            if !matches!(there, OperationChange::End(_)) {
                *there = row;
            }
            return false;
        }
        self.came += 1;
        self.unended.insert(id.clone());
        self.rows.insert(id, (self.came, row));
        let is_full = self.rows.len() > MAX_PENDING;
        if is_full && let Some((id, (_, OperationChange::End(_)))) = self.rows.shift_remove_index(0) {
            self.unended.remove(&id);
        }
        is_full
    }

    /// The oldest rows, at most so many.
    pub(super) fn oldest(&self, most: usize) -> Vec<OperationChange> {
        self.rows.values().take(most).map(|(_, row)| row.clone()).collect()
    }

    /// Removes rows that are written, or never will be, unless a newer one of the operation came meanwhile.
    pub(super) fn remove<'r>(&mut self, rows: impl IntoIterator<Item = &'r OperationChange>) {
        let done: HashMap<&str, &OperationChange> = rows.into_iter().map(|row| (row.id(), row)).collect();
        self.rows.retain(|id, (_, row)| done.get(id.as_str()).is_none_or(|done| **done != *row));
        for (id, row) in done {
            if matches!(row, OperationChange::End(_)) {
                self.unended.remove(id);
            }
        }
    }

    /// Whether the end of an operation is to be written here.
    pub(super) fn is_unended(&self, id: &str) -> bool {
        self.unended.contains(id)
    }

    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    /// Number of the last row that came.
    pub(super) fn came(&self) -> u64 {
        self.came
    }

    /// Whether all rows are written that came up to this one.
    pub(super) fn is_written(&self, came: u64) -> bool {
        self.rows.first().is_none_or(|(_, (number, _))| *number > came)
    }
}

#[cfg(test)]
mod tests {
    use kubesvc_store::{OperationOutcome, OperationRecord};

    use super::*;
    use crate::operations::records::open;
    use crate::operations::tests::fakes::received;

    fn record(id: &str) -> OperationRecord {
        received(id, "Scale", "a", 0)
    }

    fn begin(id: &str) -> OperationChange {
        OperationChange::Open(Box::new(open(record(id), 1, true)))
    }

    fn end(id: &str) -> OperationChange {
        OperationChange::End(Box::new(record(id)))
    }

    fn ids(rows: &[OperationChange]) -> Vec<&str> {
        rows.iter().map(OperationChange::id).collect()
    }

    #[test]
    fn an_operation_that_ends_at_once_is_written_once() {
        let mut pending = PendingRows::default();
        for row in [begin("a"), begin("b"), end("a")] {
            assert!(!pending.add(row));
        }
        let oldest = pending.oldest(10);
        assert_eq!(oldest, [end("a"), begin("b")]);
        pending.remove(&oldest);
        assert!(pending.len() == 0 && !pending.is_unended("a") && pending.is_unended("b"));
        pending.add(end("b"));
        assert!(pending.is_unended("b"), "until its end is written");
        pending.remove(&[end("b")]);
        assert!(!pending.is_unended("b"));
    }

    #[test]
    fn the_first_end_of_an_operation_stays() {
        let mut pending = PendingRows::default();
        let OperationChange::End(mut by_hand) = end("a") else { unreachable!("it is an end") };
        by_hand.outcome = OperationOutcome::Failed;
        let by_hand = OperationChange::End(by_hand);
        for row in [begin("a"), by_hand.clone(), begin("a"), end("a")] {
            assert!(!pending.add(row));
        }
        assert_eq!(pending.oldest(10), [by_hand]);
    }

    #[test]
    fn a_row_that_comes_while_an_older_one_of_its_operation_is_written_is_written_too() {
        let mut pending = PendingRows::default();
        for row in [begin("a"), begin("b")] {
            pending.add(row);
        }
        let oldest = pending.oldest(10);
        pending.add(end("b"));
        pending.add(begin("c"));
        pending.remove(&oldest);
        assert_eq!(pending.oldest(10), [end("b"), begin("c")]);
    }

    #[test]
    fn rows_are_written_once_all_that_came_before_are_and_later_ones_are_not_waited_for() {
        let mut pending = PendingRows::default();
        assert!(pending.is_written(pending.came()));
        for id in ["a", "b", "c"] {
            pending.add(end(id));
        }
        let last = pending.came();
        pending.add(end("later"));
        for id in ["a", "b", "c"] {
            let oldest = pending.oldest(1);
            assert_eq!((ids(&oldest), pending.is_written(last)), (vec![id], false));
            pending.remove(&oldest);
        }
        assert!(pending.is_written(last));
        assert_eq!(pending.len(), 1);
    }

    #[test]
    fn without_a_database_the_oldest_rows_go() {
        let mut pending = PendingRows::default();
        let dropped = (0..MAX_PENDING + 2).filter(|number| pending.add(end(&number.to_string()))).count();
        assert_eq!((dropped, pending.len()), (2, MAX_PENDING));
        assert_eq!(ids(&pending.oldest(1)), ["2"]);
        assert!(!pending.is_unended("1") && pending.is_unended("2"), "somebody else may end them");
    }
}
