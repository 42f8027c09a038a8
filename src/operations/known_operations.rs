//! The operations that this replica runs, and those that it ran a moment ago with their answers, for calls that come
//! again with the same id.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;

use super::checks::OperationIdentity;
use kubesvc_core::operations::{OutcomeBody, OutcomeClass, OutcomeFailure};
use kubesvc_store::{OperationRecord, StoreError};

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

/// How far an operation is, for those who wait for it.
#[derive(Clone, Debug)]
pub(super) enum Phase {
    /// Its row is being inserted.
    Recording,
    /// It has its row, and runs.
    Running,
    /// It has ended.
    Ended(Arc<EndedOperation>),
    /// It was not begun: its id is that of the operation with this record.
    Taken(Box<OperationRecord>),
    /// It was not begun: its row cannot be inserted.
    Refused(StoreError),
}

/// The phases of an operation. Has no part in keeping it known.
#[derive(Debug)]
pub(super) struct Phases(watch::Receiver<Phase>);

impl Phases {
    /// Waits until it is decided whether the operation is begun. `None`: its replica stops.
    pub(super) async fn decided(&mut self) -> Option<Phase> {
        let decided = self.0.wait_for(|phase| !matches!(phase, Phase::Recording)).await;
        decided.ok().map(|phase| phase.clone())
    }

    /// Waits for the end of the operation. `None`: its replica stops.
    pub(super) async fn ended(&mut self) -> Option<Arc<EndedOperation>> {
        match &*self.0.wait_for(|phase| matches!(phase, Phase::Ended(_))).await.ok()? {
            Phase::Ended(ended) => Some(Arc::clone(ended)),
            _ => None,
        }
    }
}

/// An operation that is known.
#[derive(Clone, Debug)]
pub(super) struct KnownOperation {
    pub(super) identity: OperationIdentity,
    phase: watch::Sender<Phase>,
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
    /// Subscribes to its phases.
    pub(super) fn subscribe(&self) -> Phases {
        Phases(self.phase.subscribe())
    }

    pub(super) fn is_running(&self) -> bool {
        !matches!(&*self.phase.borrow(), Phase::Ended(_))
    }

    /// Whether it has ended, and how is not known here: a person may say it, at any replica.
    pub(super) fn has_unknown_end(&self) -> bool {
        let is_unknown = |failure: &OutcomeFailure| failure.class == OutcomeClass::OutcomeUnknown;
        matches!(&*self.phase.borrow(), Phase::Ended(end) if end.failure.as_ref().is_some_and(is_unknown))
    }
}

impl KnownOperations {
    /// Enters an operation, unless one with its id is known: then returns that one.
    pub(super) fn begin(&self, id: &str, identity: OperationIdentity) -> Result<Phases, Box<KnownOperation>> {
        let mut known = self.known.lock();
        if let Some(one) = known.operations.get(id) {
            return Err(Box::new(one.clone()));
        }
        let begun = KnownOperation { identity, phase: watch::Sender::new(Phase::Recording) };
        let phases = begun.subscribe();
        known.operations.insert(id.to_owned(), begun);
        Ok(phases)
    }

    /// An operation with this id.
    pub(super) fn get(&self, id: &str) -> Option<KnownOperation> {
        self.known.lock().operations.get(id).cloned()
    }

    /// Notes that an operation has its row.
    pub(super) fn recorded(&self, id: &str) {
        if let Some(known) = self.get(id).filter(KnownOperation::is_running) {
            known.phase.send_replace(Phase::Running);
        }
    }

    /// Removes an operation that was not begun.
    pub(super) fn not_begun(&self, id: &str, why: Phase) {
        if let Some(known) = self.known.lock().operations.remove(id) {
            known.phase.send_replace(why);
        }
    }

    /// Ends an operation at this time. What has ended stays as it is, but of an unknown outcome a person may know more.
    /// Returns whether this is its first end.
    pub(super) fn end(&self, id: &str, ended: EndedOperation, now: Duration) -> bool {
        let mut known = self.known.lock();
        let Some(one) = known.operations.get(id) else { return false };
        let is_first = one.is_running();
        if !is_first && !one.has_unknown_end() {
            return false;
        }
        let size = body_size(&ended.body);
        one.phase.send_replace(Phase::Ended(Arc::new(ended)));
        if is_first {
            known.ended.push_back((now, id.to_owned(), size));
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

    fn begin(known: &KnownOperations, id: &str) -> Result<Phases, Box<KnownOperation>> {
        let operation = operation_from_text("account { name: \"a\" } discovery {}").expect("an operation");
        known.begin(id, OperationIdentity::of(&operation, "u", false))
    }

    fn ended(status: u16, bytes: usize) -> EndedOperation {
        let failure = (status == 504)
            .then(|| OutcomeFailure { class: OutcomeClass::OutcomeUnknown, message: String::new() });
        EndedOperation {
            status,
            duration_ms: 1,
            body: OutcomeBody::Text { text: "x".repeat(bytes), cut: false },
            failure,
            before_send: false,
            warnings: Vec::new(),
        }
    }

    fn end(known: &KnownOperations, id: &str, bytes: usize, now: u64) -> bool {
        known.end(id, ended(200, bytes), Duration::from_secs(now))
    }

    fn told(phases: &mut Phases) -> Option<u16> {
        phases.ended().now_or_never().flatten().map(|ended| ended.status)
    }

    #[test]
    fn an_answer_is_kept_for_ten_minutes_and_its_id_is_known_as_long() {
        let known = KnownOperations::default();
        let mut phases = begin(&known, "a").expect("it is new");
        assert!(begin(&known, "a").is_err() && told(&mut phases).is_none());
        assert_eq!(known.running(), 1);
        assert!(end(&known, "a", 1, 0));
        assert!(told(&mut phases).is_some() && known.running() == 0);
        assert!(told(&mut begin(&known, "a").expect_err("it is known").subscribe()).is_some());
        begin(&known, "b").expect("it is new");
        end(&known, "b", 1, 600);
        assert!(known.get("a").is_none() && known.get("b").is_some());
    }

    #[tokio::test]
    async fn those_who_wait_are_told_whether_an_operation_is_begun_or_why_not() {
        let known = KnownOperations::default();
        let new = |id: &str| begin(&known, id).expect("it is new");
        let [mut begun, mut taken, mut refused] = ["begun", "taken", "refused"].map(new);
        assert!(begun.decided().now_or_never().is_none(), "its row is being inserted");
        known.recorded("begun");
        known.not_begun("taken", Phase::Taken(Box::new(received("taken", "Scale", "a", 7))));
        known.not_begun("refused", Phase::Refused(StoreError::unavailable("it is away")));
        assert!(matches!(begun.decided().await, Some(Phase::Running)));
        assert!(matches!(taken.decided().await, Some(Phase::Taken(record)) if record.start_time_ms == 7));
        assert!(matches!(refused.decided().await, Some(Phase::Refused(_))));
        assert_eq!(known.running(), 1, "what was not begun is not known");
        assert!(end(&known, "begun", 1, 0));
        known.recorded("begun");
        assert_eq!(told(&mut begun), Some(200), "an end stays one");
    }

    #[test]
    fn a_later_end_counts_only_after_an_unknown_one() {
        let known = KnownOperations::default();
        let mut phases = begin(&known, "a").expect("it is new");
        let mut end = |status| {
            known.end("a", ended(status, 0), Duration::ZERO);
            told(&mut phases)
        };
        assert_eq!(end(504), Some(504));
        assert_eq!(end(200), Some(200), "a person knows more");
        assert_eq!(end(409), Some(200), "a later word is ignored");
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
