//! The rows that wait to be written: the newest of each operation, in the order in which the operations came. Pure.

use std::collections::HashSet;

use indexmap::IndexMap;

use kubesvc_store::{OpenOperation, OperationChanges, OperationRecord};

/// Maximum number of operations whose rows wait; beyond it the oldest go.
pub(super) const MAX_PENDING: usize = 10_000;

/// A row, and the one who waits for it.
#[derive(Debug)]
pub(super) struct PendingRow<W> {
    pub(super) change: OperationRowChange,
    pub(super) waiters: Vec<W>,
    /// Whether it is the first row of its operation that was taken to be written.
    is_first: bool,
}

/// A row of one of the two tables.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum OperationRowChange {
    Open(Box<OpenOperation>),
    End(Box<OperationRecord>),
}

impl OperationRowChange {
    fn id(&self) -> &str {
        match self {
            Self::Open(open) => &open.record.operation_id,
            Self::End(record) => &record.operation_id,
        }
    }
}

/// The rows that wait; `W` is one who waits for a commit.
#[derive(Debug)]
pub(super) struct PendingRows<W> {
    rows: IndexMap<String, PendingRow<W>>,
    /// Operations with a row among the open ones, or with one on its way there.
    stored: HashSet<String>,
    /// Number of rows that were taken, and are neither written nor put back.
    in_flight: usize,
    /// Number of batches of which all rows were written, or never will be.
    batches: usize,
}

impl<W> Default for PendingRows<W> {
    fn default() -> Self {
        Self { rows: IndexMap::new(), stored: HashSet::new(), in_flight: 0, batches: 0 }
    }
}

impl<W> PendingRows<W> {
    /// Adds a row, which replaces one of the same operation; the first end of an operation stays. Returns the row that
    /// has to go for it.
    pub(super) fn add(&mut self, change: OperationRowChange, waiter: Option<W>) -> Option<PendingRow<W>> {
        let id = change.id().to_owned();
        if let Some(row) = self.rows.get_mut(&id) {
            if matches!(row.change, OperationRowChange::Open(_)) {
                row.change = change;
            }
            row.waiters.extend(waiter);
            return None;
        }
        self.rows.insert(id, PendingRow { change, waiters: waiter.into_iter().collect(), is_first: false });
        let (id, row) =
            if self.rows.len() > MAX_PENDING { self.rows.shift_remove_index(0)? } else { return None };
        if matches!(row.change, OperationRowChange::End(_)) {
            self.stored.remove(&id);
        }
        Some(row)
    }

    /// Whether an operation has a row among the open ones, so that what it does next must be recorded before.
    pub(super) fn is_stored(&self, id: &str) -> bool {
        self.stored.contains(id)
    }

    /// Notes that a row was written among the open ones by other means.
    pub(super) fn note_stored(&mut self, id: &str) {
        self.stored.insert(id.to_owned());
    }

    /// Takes the oldest rows, at most so many of each kind. The next batch is taken once all of this one are written or put
    /// back.
    pub(super) fn take(&mut self, most: usize) -> Vec<PendingRow<W>> {
        let count = self.rows.len().min(most);
        let mut taken: Vec<_> = self.rows.drain(..count).map(|(_, row)| row).collect();
        for row in &mut taken {
            let is_open = matches!(row.change, OperationRowChange::Open(_));
            row.is_first = is_open && self.stored.insert(row.change.id().to_owned());
        }
        self.in_flight += taken.len();
        taken
    }

    /// Notes that rows that were taken are written, or never will be.
    pub(super) fn written(&mut self, changes: &[&OperationRowChange]) {
        for change in changes {
            if matches!(change, OperationRowChange::End(_)) {
                self.stored.remove(change.id());
            }
        }
        self.in_flight -= changes.len();
        if self.in_flight == 0 && !changes.is_empty() {
            self.batches += 1;
        }
    }

    /// Puts rows back that were not written, before all others. Those that were replaced since are dropped, but for the end
    /// of an operation: the first one stays.
    pub(super) fn put_back(&mut self, rows: Vec<PendingRow<W>>) {
        self.in_flight -= rows.len();
        for row in rows.into_iter().rev() {
            let id = row.change.id().to_owned();
            if row.is_first {
                // Without a database, what needs no row goes on.
                self.stored.remove(&id);
            }
            match self.rows.get_mut(&id) {
                Some(newer) => {
                    if matches!(row.change, OperationRowChange::End(_)) {
                        newer.change = row.change;
                    }
                    newer.waiters.extend(row.waiters);
                }
                None => {
                    self.rows.shift_insert(0, id, row);
                }
            }
        }
    }

    /// Removes the open row of an operation that is not done after all, unless somebody else waits for it. Its end stays: a
    /// person may have given it since, and was told that it is recorded.
    pub(super) fn remove_open(&mut self, id: &str) {
        let is_open = |row: &PendingRow<W>| matches!(row.change, OperationRowChange::Open(_));
        if self.rows.get(id).is_some_and(|row| is_open(row) && row.waiters.is_empty()) {
            self.rows.shift_remove(id);
        }
    }

    /// Removes an operation that somebody else has ended: it has no row among the open ones, and none is to be written.
    pub(super) fn forget(&mut self, id: &str) {
        self.rows.shift_remove(id);
        self.stored.remove(id);
    }

    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    /// Number of rows that wait or are being written.
    pub(super) fn unwritten(&self) -> usize {
        self.rows.len() + self.in_flight
    }

    /// Number of the batch after which all rows are written that wait now or are in flight; `most` is the maximum number of
    /// rows in one. Rows that are put back come before all others, and fill no further batch.
    pub(super) fn last_batch(&self, most: usize) -> usize {
        self.batches + usize::from(self.in_flight > 0) + self.rows.len().div_ceil(most)
    }

    /// Whether this batch is written, or no row is left to be.
    pub(super) fn is_written(&self, batch: usize) -> bool {
        self.batches >= batch || self.unwritten() == 0
    }

    /// Whether somebody waits for a commit.
    pub(super) fn is_awaited(&self) -> bool {
        self.rows.values().any(|row| !row.waiters.is_empty())
    }
}

/// The rows of one transaction.
pub(super) fn changes<W>(rows: &[PendingRow<W>]) -> OperationChanges {
    let mut changes = OperationChanges::default();
    for row in rows {
        match &row.change {
            OperationRowChange::Open(open) => changes.open.push((**open).clone()),
            OperationRowChange::End(record) => changes.ends.push((**record).clone()),
        }
    }
    changes
}

#[cfg(test)]
mod tests {
    use kubesvc_store::OperationOutcome;

    use super::*;
    use crate::operations::records::open;
    use crate::operations::tests::fakes::received;

    fn record(id: &str) -> OperationRecord {
        received(id, "Scale", "a", 0)
    }

    fn begin(id: &str) -> OperationRowChange {
        OperationRowChange::Open(Box::new(open(record(id), 1, true)))
    }

    fn end(id: &str) -> OperationRowChange {
        OperationRowChange::End(Box::new(record(id)))
    }

    fn ids(rows: &[PendingRow<u8>]) -> Vec<&str> {
        rows.iter().map(|row| row.change.id()).collect()
    }

    #[test]
    fn an_operation_that_ends_at_once_is_written_once() {
        let mut pending = PendingRows::<u8>::default();
        pending.add(begin("a"), Some(1));
        pending.add(begin("b"), None);
        pending.add(end("a"), Some(2));
        assert!(pending.is_awaited() && !pending.is_stored("a"));
        let taken = pending.take(10);
        assert_eq!(ids(&taken), ["a", "b"]);
        assert_eq!((taken[0].change.clone(), taken[0].waiters.as_slice()), (end("a"), [1, 2].as_slice()));
        assert!(!pending.is_stored("a") && pending.is_stored("b"));
        let written = changes(&taken);
        assert_eq!((written.open.len(), written.ends.len()), (1, 1));
        pending.add(end("b"), None);
        let ended = pending.take(10);
        assert!(pending.is_stored("b"), "until its end is written");
        pending.written(&[&ended[0].change]);
        assert!(!pending.is_stored("b"));
    }

    #[test]
    fn the_first_end_of_an_operation_stays() {
        let mut rows = PendingRows::<u8>::default();
        let OperationRowChange::End(mut by_hand) = end("a") else { unreachable!("it is an end") };
        by_hand.outcome = OperationOutcome::Failed;
        let by_hand = OperationRowChange::End(by_hand);
        for change in [begin("a"), by_hand.clone(), begin("a"), end("a")] {
            assert!(rows.add(change, None).is_none());
        }
        assert_eq!(rows.take(10).remove(0).change, by_hand);
    }

    #[test]
    fn the_first_end_of_an_operation_stays_also_if_it_is_put_back() {
        let mut rows = PendingRows::<u8>::default();
        rows.add(end("a"), Some(1));
        let taken = rows.take(10);
        rows.add(begin("a"), Some(2));
        rows.put_back(taken);
        let again = rows.take(10);
        assert_eq!((again[0].change.clone(), again[0].waiters.as_slice()), (end("a"), [2, 1].as_slice()));
    }

    #[test]
    fn rows_that_were_not_written_come_first_unless_there_are_newer_ones() {
        let mut pending = PendingRows::<u8>::default();
        for id in ["a", "b"] {
            pending.add(begin(id), Some(7));
        }
        let taken = pending.take(10);
        pending.add(begin("c"), None);
        pending.add(end("b"), None);
        assert!(pending.is_stored("a"), "it may be");
        pending.put_back(taken);
        assert!(!pending.is_stored("a"), "what it does next needs no row");
        let again = pending.take(10);
        assert_eq!(ids(&again), ["a", "c", "b"]);
        assert_eq!((again[2].change.clone(), again[2].waiters.as_slice()), (end("b"), [7].as_slice()));
    }

    #[test]
    fn an_end_that_a_person_gives_while_the_open_row_is_refused_is_written() {
        let mut pending = PendingRows::<u8>::default();
        for id in ["a", "b"] {
            pending.add(begin(id), None);
        }
        let taken = pending.take(10);
        pending.add(end("b"), None);
        pending.put_back(taken);
        for id in ["a", "b"] {
            pending.remove_open(id);
        }
        let left = pending.take(10);
        assert_eq!((ids(&left), &left[0].change), (vec!["b"], &end("b")));
    }

    #[test]
    fn rows_in_flight_are_not_written_before_the_last_of_them_is_settled() {
        let mut pending = PendingRows::<u8>::default();
        assert!(pending.is_written(pending.last_batch(10)));
        for id in ["a", "b"] {
            pending.add(end(id), None);
        }
        let taken = pending.take(10);
        let last = pending.last_batch(10);
        assert_eq!((pending.len(), pending.unwritten(), pending.is_written(last)), (0, 2, false));
        pending.written(&[&taken[0].change]);
        assert_eq!((pending.unwritten(), pending.is_written(last)), (1, false));
        pending.written(&[&taken[1].change]);
        assert_eq!((pending.unwritten(), pending.is_written(last)), (0, true));
    }

    #[test]
    fn a_batch_that_fails_is_waited_for_and_rows_that_come_later_are_not() {
        let mut pending = PendingRows::<u8>::default();
        for id in ["a", "b", "c"] {
            pending.add(end(id), None);
        }
        let failed = pending.take(1);
        let last = pending.last_batch(1);
        pending.add(end("later"), None);
        pending.put_back(failed);
        assert!(!pending.is_written(last));
        for id in ["a", "b", "c"] {
            let taken = pending.take(1);
            assert_eq!((ids(&taken), pending.is_written(last)), (vec![id], false));
            pending.written(&[&taken[0].change]);
        }
        assert!(pending.is_written(last));
        assert_eq!(pending.unwritten(), 1);
    }

    #[test]
    fn without_a_database_the_oldest_rows_go() {
        let mut pending = PendingRows::<u8>::default();
        let dropped: Vec<_> =
            (0..MAX_PENDING + 2).filter_map(|number| pending.add(end(&number.to_string()), None)).collect();
        assert_eq!(ids(&dropped), ["0", "1"]);
        assert_eq!(pending.len(), MAX_PENDING);
    }
}
