//! Writes: recorded when they are opened, and run to their end whatever becomes of the stream.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use tokio::sync::Notify;

use kubesvc_core::requests::journal::{Journal, RecalledWrite, WriteOutcome, WriteStart};

/// Number of groups of writes that are waited for separately: the end of one wakes few that wait for others.
const WAIT_GROUPS: usize = 64;

/// The journal, and who waits for it.
#[derive(Debug)]
pub(super) struct Writes {
    journal: Mutex<Journal>,
    ended: [Notify; WAIT_GROUPS],
}

impl Default for Writes {
    fn default() -> Self {
        Self { journal: Mutex::default(), ended: std::array::from_fn(|_| Notify::new()) }
    }
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

    /// Notified when a write of this id's group has ended.
    fn ended(&self, request_id: &str) -> &Notify {
        let sum =
            request_id.bytes().fold(0_usize, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
        &self.ended[sum % WAIT_GROUPS]
    }

    pub(super) fn forget(&self, request_ids: &[String]) {
        self.journal.lock().forget(request_ids.iter().map(String::as_str), Instant::now());
    }

    /// Waits for the end of a write. `None`: it is not known; `Some(None)`: its answer was forgotten.
    pub(super) async fn outcome(&self, request_id: &str) -> Option<Option<Arc<WriteOutcome>>> {
        loop {
            let ended = self.ended(request_id).notified();
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
            self.writes.ended(&self.request_id).notify_waiters();
        }
    }
}
