//! The operations that this replica runs, and those that it ran a moment ago with their answers, for calls that come
//! again with the same id.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;

use super::checks::OperationIdentity;
use super::job::Job;
use kubesvc_core::operations::{OutcomeBody, OutcomeFailure};
use kubesvc_store::{OperationOutcome, OperationRecord};

/// Time for which the answer of an operation is kept.
const KEPT_FOR: Duration = Duration::from_secs(600);
/// Maximum number of operations that ended and are kept.
const MAX_ENDED: usize = 4096;
/// Maximum size of the answers that are kept, in bytes.
const MAX_ENDED_BYTES: usize = 64 << 20;

/// How an operation ended, as its callers get it.
#[derive(Clone, Debug, PartialEq)]
pub struct EndedOperation {
    /// HTTP status: the API server's, where there is one.
    pub status: u16,
    /// Time from its arrival to its end, in milliseconds.
    pub duration_ms: i64,
    /// What it returns; empty if it is not kept any more.
    pub body: OutcomeBody,
    /// Why it failed.
    pub failure: Option<OutcomeFailure>,
    /// Whether certainly nothing was executed.
    pub before_send: bool,
    /// What the API server warns of; empty if it is not kept any more.
    pub warnings: Vec<String>,
}

/// The end of an operation, once there is one.
pub(super) type EndReceiver = watch::Receiver<Option<Arc<EndedOperation>>>;

/// Whether a row of an operation is committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FirstRow {
    /// None is, and the operation commits the first one itself: its id may turn out to be that of another one.
    Due,
    /// None has to be yet. Whoever promises one commits it.
    NotDue,
    /// One is, here or at another replica.
    Committed,
}

/// An operation that is known.
#[derive(Clone, Debug)]
pub(super) struct KnownOperation {
    pub(super) identity: OperationIdentity,
    pub(super) record: OperationRecord,
    /// Gone once its task has ended.
    pub(super) job: Weak<Job>,
    first_row: watch::Sender<FirstRow>,
    end: watch::Sender<Option<Arc<EndedOperation>>>,
}

/// What is told of an operation for as long as it is known. Has no part in keeping it known.
#[derive(Debug)]
pub(super) struct OperationSubscription {
    first_row: watch::Receiver<FirstRow>,
    pub(super) end: EndReceiver,
}

impl OperationSubscription {
    /// Waits until the operation has a row, or need not be waited for to have one. `None`: it is not known any more.
    pub(super) async fn first_row(&mut self) -> Option<FirstRow> {
        let decided = self.first_row.wait_for(|row| *row != FirstRow::Due).await;
        decided.ok().map(|row| *row)
    }
}

#[derive(Debug, Default)]
pub(super) struct KnownOperations {
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    operations: HashMap<String, KnownOperation>,
    /// When each ended, its id and the size of its answer; the oldest first.
    ended: VecDeque<(Duration, String, usize)>,
    ended_bytes: usize,
}

impl KnownOperation {
    /// Subscribes to what is told of it.
    pub(super) fn subscribe(&self) -> OperationSubscription {
        OperationSubscription { first_row: self.first_row.subscribe(), end: self.end.subscribe() }
    }

    /// Its record, if it has ended.
    pub(super) fn ended_record(&self) -> Option<OperationRecord> {
        (!self.is_running()).then(|| self.record.clone())
    }

    pub(super) fn is_running(&self) -> bool {
        self.end.borrow().is_none()
    }

    /// Whether it has ended, and how is not known here: a person may say it, at any replica. What another replica ran is
    /// pending if its end did not come in time.
    pub(super) fn has_unknown_end(&self) -> bool {
        let is_unknown = matches!(self.record.outcome, OperationOutcome::Unknown | OperationOutcome::Pending);
        is_unknown && !self.is_running()
    }
}

impl KnownOperations {
    /// Enters an operation, unless one with its id is known: then returns that one.
    pub(super) fn begin(
        &self,
        identity: OperationIdentity,
        record: OperationRecord,
        first_row: FirstRow,
        job: Weak<Job>,
    ) -> Result<OperationSubscription, Box<KnownOperation>> {
        let mut known = self.known.lock();
        if let Some(one) = known.operations.get(&record.operation_id) {
            return Err(Box::new(one.clone()));
        }
        let id = record.operation_id.clone();
        let (first_row, end) = (watch::Sender::new(first_row), watch::Sender::new(None));
        let begun = KnownOperation { identity, record, job, first_row, end };
        let subscription = begun.subscribe();
        known.operations.insert(id, begun);
        Ok(subscription)
    }

    /// An operation with this id.
    pub(super) fn get(&self, id: &str) -> Option<KnownOperation> {
        self.known.lock().operations.get(id).cloned()
    }

    /// Removes an operation that was not begun after all. Those who wait for its end are told that there is none.
    pub(super) fn forget(&self, id: &str) {
        let mut known = self.known.lock();
        if known.operations.get(id).is_some_and(KnownOperation::is_running) {
            known.operations.remove(id);
        }
    }

    /// Notes that a row of an operation is committed.
    pub(super) fn recorded(&self, id: &str) {
        if let Some(known) = self.known.lock().operations.get(id) {
            known.first_row.send_replace(FirstRow::Committed);
        }
    }

    /// Replaces what is recorded of an operation that runs.
    pub(super) fn update(&self, record: &OperationRecord) {
        if let Some(known) = self.known.lock().operations.get_mut(&record.operation_id)
            && known.is_running()
        {
            known.record = record.clone();
        }
    }

    /// Ends an operation at this time. What has ended stays as it is, but of an unknown outcome a person may know more.
    /// Returns whether this is its first end.
    pub(super) fn end(&self, record: &OperationRecord, ended: EndedOperation, now: Duration) -> bool {
        let mut known = self.known.lock();
        let Some(one) = known.operations.get_mut(&record.operation_id) else { return false };
        let is_first = one.is_running();
        if !is_first && !one.has_unknown_end() {
            return false;
        }
        let size = body_size(&ended.body);
        one.record = record.clone();
        one.end.send_replace(Some(Arc::new(ended)));
        one.first_row.send_if_modified(|row| {
            let was_due = *row == FirstRow::Due;
            if was_due {
                // Its end is the only row that it will have.
                *row = FirstRow::NotDue;
            }
            was_due
        });
        if is_first {
            known.ended.push_back((now, record.operation_id.clone(), size));
            known.ended_bytes += size;
        }
        known.forget_old(now);
        is_first
    }

    /// Number of operations that run.
    pub(super) fn running(&self) -> usize {
        let known = self.known.lock();
        known.operations.len() - known.ended.len()
    }
}

impl Known {
    fn forget_old(&mut self, now: Duration) {
        while let Some((ended, ..)) = self.ended.front() {
            let is_old = now.saturating_sub(*ended) >= KEPT_FOR;
            if !is_old && self.ended.len() <= MAX_ENDED && self.ended_bytes <= MAX_ENDED_BYTES {
                return;
            }
            let Some((_, id, size)) = self.ended.pop_front() else { return };
            self.ended_bytes -= size;
            self.operations.remove(&id);
        }
    }
}

/// Approximate size of an answer in memory, in bytes.
fn body_size(body: &OutcomeBody) -> usize {
    match body {
        OutcomeBody::Empty => 0,
        OutcomeBody::Text { text, .. } => text.len(),
        // A tree takes some times what its text takes.
        OutcomeBody::Json(body) => 4 * body.to_string().len(),
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use kubesvc_core::operations::operation_from_text;

    use super::*;
    use crate::operations::tests::fakes::received;

    fn begin_with(
        known: &KnownOperations,
        id: &str,
        first_row: FirstRow,
    ) -> Result<OperationSubscription, Box<KnownOperation>> {
        let operation = operation_from_text("account { name: \"a\" } discovery {}").expect("an operation");
        let record = received(id, "Discovery", "a", 0);
        known.begin(OperationIdentity::of(&operation, "u", false), record, first_row, Weak::new())
    }

    fn begin(known: &KnownOperations, id: &str) -> Result<EndReceiver, Box<KnownOperation>> {
        begin_with(known, id, FirstRow::NotDue).map(|subscription| subscription.end)
    }

    fn end(known: &KnownOperations, id: &str, bytes: usize, now: u64) -> bool {
        let record = known.get(id).expect("it is known").record;
        let body = OutcomeBody::Text { text: "x".repeat(bytes), cut: false };
        let ended = EndedOperation {
            status: 200,
            duration_ms: 1,
            body,
            failure: None,
            before_send: false,
            warnings: Vec::new(),
        };
        known.end(&record, ended, Duration::from_secs(now))
    }

    #[test]
    fn an_answer_is_kept_for_ten_minutes_and_its_id_is_known_as_long() {
        let known = KnownOperations::default();
        let ends = begin(&known, "a").expect("it is new");
        assert!(begin(&known, "a").is_err() && ends.borrow().is_none());
        assert_eq!(known.running(), 1);
        assert!(end(&known, "a", 1, 0));
        assert!(ends.borrow().is_some() && known.running() == 0);
        assert!(begin(&known, "a").expect_err("it is known").subscribe().end.borrow().is_some());
        begin(&known, "b").expect("it is new");
        end(&known, "b", 1, 600);
        assert!(known.get("a").is_none() && known.get("b").is_some());
    }

    #[tokio::test]
    async fn a_first_row_that_is_due_is_waited_for_until_it_is_committed_or_will_not_come() {
        let known = KnownOperations::default();
        let due = |id: &str| begin_with(&known, id, FirstRow::Due).expect("it is new");
        let [mut committed, mut ended, mut forgotten] = ["committed", "ended", "forgotten"].map(due);
        assert_eq!(ended.first_row().now_or_never(), None, "it is being committed");
        known.recorded("committed");
        end(&known, "committed", 1, 0);
        end(&known, "ended", 1, 0);
        known.forget("forgotten");
        assert_eq!(committed.first_row().await, Some(FirstRow::Committed));
        assert_eq!(ended.first_row().await, Some(FirstRow::NotDue));
        assert_eq!(forgotten.first_row().await, None);
    }

    #[test]
    fn a_later_end_counts_only_after_an_unknown_one() {
        let known = KnownOperations::default();
        let ends = begin(&known, "a").expect("it is new");
        let end = |outcome, status| {
            let record = OperationRecord { outcome, ..known.get("a").expect("it is known").record };
            let body = OutcomeBody::Empty;
            let ended = EndedOperation {
                status,
                duration_ms: 1,
                body,
                failure: None,
                before_send: false,
                warnings: Vec::new(),
            };
            known.end(&record, ended, Duration::ZERO);
            ends.borrow().as_ref().map(|ended| ended.status)
        };
        assert_eq!(end(OperationOutcome::Pending, 504), Some(504), "another replica runs it");
        assert_eq!(end(OperationOutcome::Unknown, 504), Some(504));
        assert_eq!(end(OperationOutcome::Completed, 200), Some(200), "a person knows more");
        assert_eq!(end(OperationOutcome::Failed, 409), Some(200), "a later word is ignored");
        assert_eq!(known.get("a").map(|one| one.record.outcome), Some(OperationOutcome::Completed));
    }

    #[test]
    fn answers_have_bounds_and_what_runs_is_never_forgotten() {
        let known = KnownOperations::default();
        begin(&known, "running").expect("it is new");
        for number in 0..(MAX_ENDED + 10) {
            let id = number.to_string();
            begin(&known, &id).expect("it is new");
            end(&known, &id, 1, 1);
        }
        assert_eq!(known.known.lock().ended.len(), MAX_ENDED);
        begin(&known, "large").expect("it is new");
        end(&known, "large", MAX_ENDED_BYTES + 1, 2);
        let left = known.known.lock();
        assert_eq!((left.ended.len(), left.ended_bytes), (0, 0));
        assert!(left.operations.contains_key("running"));
    }
}
