//! Writes: recorded when they are opened, and run to their end whatever becomes of the stream.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::wire_failure::{after_send, before_send};
use kubesvc_core::requests::journal::{Journal, RecalledWrite, WriteOutcome, WriteStart};
use kubesvc_core::wire::common::Failure;
use kubesvc_core::wire::common::failure::Class;

/// The outcome of a write that runs, once it is known.
type RunningOutcome = watch::Receiver<Option<Arc<WriteOutcome>>>;

/// The journal, and who waits for it.
#[derive(Debug, Default)]
pub(super) struct Writes(Mutex<Recorded>);

#[derive(Debug, Default)]
struct Recorded {
    journal: Journal,
    /// The writes that run, by request id.
    running: HashMap<String, RunningOutcome>,
}

/// A write that is recorded as running. One that is dropped without an outcome was not sent.
#[derive(Debug)]
pub(super) struct RecordedWrite {
    writes: Arc<Writes>,
    request_id: String,
    /// The outcome, if it is dropped before another is known.
    otherwise: Option<WriteOutcome>,
    outcome: watch::Sender<Option<Arc<WriteOutcome>>>,
}

/// A write whose outcome somebody waits for. One that waits while it runs gets the whole answer, whatever of it the
/// journal has room for.
#[derive(Debug)]
pub(super) enum AwaitedWrite {
    Running(RunningOutcome),
    Ended(Arc<WriteOutcome>),
}

impl Writes {
    /// Records a write, before anything of it is sent.
    pub(super) fn begin(
        self: &Arc<Self>,
        request_id: &str,
        otherwise: WriteOutcome,
    ) -> Result<RecordedWrite, WriteStart> {
        let mut recorded = self.0.lock();
        match recorded.journal.begin(request_id, Instant::now()) {
            WriteStart::New => {
                let (outcome, running) = watch::channel(None);
                recorded.running.insert(request_id.to_owned(), running);
                Ok(RecordedWrite {
                    writes: Arc::clone(self),
                    request_id: request_id.to_owned(),
                    otherwise: Some(otherwise),
                    outcome,
                })
            }
            refused => Err(refused),
        }
    }

    pub(super) fn forget(&self, request_ids: &[String]) {
        self.0.lock().journal.forget(request_ids.iter().map(String::as_str), Instant::now());
    }

    /// A write of this process, to wait for.
    pub(super) fn awaited(&self, request_id: &str) -> AwaitedWrite {
        let recorded = self.0.lock();
        if let Some(running) = recorded.running.get(request_id) {
            return AwaitedWrite::Running(running.clone());
        }
        AwaitedWrite::Ended(match recorded.journal.recall(request_id) {
            RecalledWrite::Done(outcome) => outcome,
            RecalledWrite::Running | RecalledWrite::Forgotten => Arc::new(Err(forgotten())),
            RecalledWrite::Never => Arc::new(Err(never())),
        })
    }
}

fn forgotten() -> Failure {
    after_send(Class::OutcomeUnknown, "the answer was given and is forgotten")
}

fn never() -> Failure {
    before_send(Class::NotFound, "the agent never had the request")
}

impl RecordedWrite {
    /// The same write, to wait for.
    pub(super) fn awaited(&self) -> AwaitedWrite {
        AwaitedWrite::Running(self.outcome.subscribe())
    }

    /// From now on, something may have been executed.
    pub(super) fn sends(&mut self, otherwise: WriteOutcome) {
        self.otherwise = Some(otherwise);
    }

    /// Records how the write ended.
    pub(super) fn done(mut self, outcome: WriteOutcome) {
        self.otherwise = Some(outcome);
    }
}

impl Drop for RecordedWrite {
    fn drop(&mut self) {
        if let Some(outcome) = self.otherwise.take() {
            let mut recorded = self.writes.0.lock();
            recorded.running.remove(&self.request_id);
            let outcome = recorded.journal.done(&self.request_id, outcome, Instant::now());
            drop(recorded);
            self.outcome.send_replace(Some(outcome));
        }
    }
}

impl AwaitedWrite {
    /// Waits for the end.
    pub(super) async fn outcome(self) -> Arc<WriteOutcome> {
        match self {
            Self::Running(mut running) => {
                // A write that is dropped has an outcome too.
                let ended = running.wait_for(Option::is_some).await;
                ended
                    .ok()
                    .and_then(|outcome| Option::clone(&outcome))
                    .unwrap_or_else(|| Arc::new(Err(forgotten())))
            }
            Self::Ended(outcome) => outcome,
        }
    }
}

#[cfg(test)]
mod tests {
    use prost::bytes::Bytes;

    use super::*;
    use kubesvc_core::requests::MAX_WRITE_ANSWER_BYTES;
    use kubesvc_core::requests::journal::WriteAnswer;
    use kubesvc_core::wire::ops::Head;

    fn body_of(outcome: &WriteOutcome) -> Option<usize> {
        match outcome {
            Ok(answer) => answer.body.as_ref().map(Bytes::len),
            Err(failure) => unreachable!("{failure:?}"),
        }
    }

    #[tokio::test]
    async fn one_who_waits_has_the_whole_answer_also_where_the_journal_has_no_room_for_it() {
        let writes = Arc::<Writes>::default();
        let begin = |number: i32| writes.begin(&number.to_string(), Err(Failure::default())).expect("room");
        let running: Vec<_> = (0..20).map(begin).collect();
        let awaited: Vec<_> = running.iter().map(RecordedWrite::awaited).collect();
        let recalled = writes.awaited("19");
        for write in running {
            let head = Head { status: 200, headers: Vec::new() };
            write.done(Ok(WriteAnswer { head, body: Some(vec![0; MAX_WRITE_ANSWER_BYTES].into()) }));
        }
        for awaited in awaited.into_iter().chain([recalled]) {
            assert_eq!(body_of(&*awaited.outcome().await), Some(MAX_WRITE_ANSWER_BYTES));
        }
        assert_eq!(body_of(&*writes.awaited("0").outcome().await), Some(MAX_WRITE_ANSWER_BYTES));
        assert_eq!(body_of(&*writes.awaited("19").outcome().await), None, "its head is left");
    }

    #[tokio::test]
    async fn a_write_that_is_dropped_ends_as_was_said_before() {
        let writes = Arc::<Writes>::default();
        let otherwise = Failure { message: "not sent".to_owned(), ..Failure::default() };
        let recorded = writes.begin("a", Err(otherwise.clone())).expect("room");
        let awaited = writes.awaited("a");
        drop(recorded);
        assert_eq!(*awaited.outcome().await, Err(otherwise));
        writes.forget(&["a".to_owned()]);
        assert_eq!(*writes.awaited("a").outcome().await, Err(forgotten()));
        assert_eq!(*writes.awaited("b").outcome().await, Err(never()));
    }
}
