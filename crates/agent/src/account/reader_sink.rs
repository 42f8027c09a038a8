//! From the reader of a scope to the queue of its account.

use std::sync::Arc;

use tokio::sync::Notify;

use crate::caching::{AccountDelivery, QueueMemory, ReaderId, SharedStream};
use crate::watch::{LeftOut, ReaderSink, WaitReason};
use kubesvc_core::wire::common::Failure;
use kubesvc_core::wire::events::{Event, Synced};
use kubesvc_runtime::telemetry::errors::chain;

/// Where the reader of one scope puts what it reads.
#[derive(Clone, Debug)]
pub(super) struct ScopeSink {
    pub(super) shared: Arc<SharedStream>,
    pub(super) account_uid: Arc<str>,
    pub(super) reader: ReaderId,
    pub(super) scope_id: u32,
    /// Wakes the account: its credential, or the kinds of its cluster, should be looked at.
    pub(super) look: Arc<Notify>,
}

impl ScopeSink {
    /// Changes the account's delivery, unless that has ended.
    fn deliver<T>(
        &self,
        change: impl FnOnce(&mut AccountDelivery, std::time::Instant, &mut QueueMemory) -> T,
    ) -> Option<T> {
        self.shared.change(|stream, now| {
            stream.account(&self.account_uid).map(|(account, memory)| change(account, now, memory))
        })
    }
}

impl ReaderSink for ScopeSink {
    fn event(&self, event: Event) -> Result<(), Box<Event>> {
        let queued = self.deliver(|account, now, memory| account.event(self.reader, event, now, memory));
        queued.unwrap_or(Ok(())).map_err(|full| full.event)
    }

    fn checkpoint(&self, resource_version: String) {
        self.deliver(|account, _, _| account.bookmark(self.reader, resource_version));
    }

    fn sync_start(&self, sync_key: String) {
        self.deliver(|account, _, memory| account.sync_start(self.reader, sync_key, memory));
    }

    fn synced(&self, synced: Synced) {
        self.deliver(|account, _, memory| account.synced(self.reader, synced, memory));
    }

    fn problem(&self, problem: Option<&Failure>) {
        if let Some(problem) = problem {
            tracing::warn!(class = %problem.class().as_str_name(), "objects of a kind cannot be read: {}", problem.message);
        }
        self.deliver(|account, _, memory| account.problem(self.scope_id, problem.cloned(), memory));
    }

    fn waits(&self, reason: WaitReason) {
        if matches!(reason, WaitReason::Credential | WaitReason::KindMayBeGone) {
            self.look.notify_one();
        }
    }

    fn left_out(&self, what: LeftOut) {
        match what {
            LeftOut::Body(body) => tracing::debug!("{}", chain(&body)),
            LeftOut::Object(object) => tracing::warn!("{}", chain(&object)),
        }
    }

    async fn room(&self) {
        self.shared.room(&self.account_uid).await;
    }
}
