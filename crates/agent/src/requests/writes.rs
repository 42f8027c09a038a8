//! Writes: recorded when they are opened, and run to their end whatever becomes of the stream.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use tokio::sync::Notify;

use kubesvc_core::requests::journal::{Journal, RecalledWrite, WriteOutcome, WriteStart};

/// The journal, and who waits for it.
#[derive(Debug, Default)]
pub(super) struct Writes {
    journal: Mutex<Journal>,
    ended: Notify,
}

/// A write that is recorded as running. One that is dropped without an outcome was not sent.
#[derive(Debug)]
pub(super) struct RecordedWrite {
    writes: Arc<Writes>,
    request_id: String,
    /// The outcome, if it is dropped before another is known.
    otherwise: Option<WriteOutcome>,
}

impl Writes {
    /// Records a write, before anything of it is sent.
    pub(super) fn begin(
        self: &Arc<Self>,
        request_id: &str,
        otherwise: WriteOutcome,
    ) -> Result<RecordedWrite, WriteStart> {
        match self.journal.lock().begin(request_id, Instant::now()) {
            WriteStart::New => Ok(RecordedWrite {
                writes: Arc::clone(self),
                request_id: request_id.to_owned(),
                otherwise: Some(otherwise),
            }),
            refused => Err(refused),
        }
    }

    pub(super) fn forget(&self, request_ids: &[String]) {
        self.journal.lock().forget(request_ids.iter().map(String::as_str), Instant::now());
    }

    /// Waits for the end of a write. `None`: it is not known; `Some(None)`: its answer was forgotten.
    pub(super) async fn outcome(&self, request_id: &str) -> Option<Option<Arc<WriteOutcome>>> {
        loop {
            let ended = self.ended.notified();
            tokio::pin!(ended);
            // From here on, no end is missed.
            ended.as_mut().enable();
            match self.journal.lock().recall(request_id) {
                RecalledWrite::Running => {}
                RecalledWrite::Done(outcome) => return Some(Some(outcome)),
                RecalledWrite::Forgotten => return Some(None),
                RecalledWrite::Never => return None,
            }
            ended.await;
        }
    }
}

impl RecordedWrite {
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
            self.writes.journal.lock().done(&self.request_id, outcome, Instant::now());
            self.writes.ended.notify_waiters();
        }
    }
}
