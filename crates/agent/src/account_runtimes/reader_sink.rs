//! From the reader of a scope to the queue of its account.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

use crate::caching::{AccountSender, QueueMemory, ReaderId, SharedStream};
use crate::metrics::CachedObjectMetrics;
use crate::watch::{ListReason, OmittedItem, ReaderSink, WaitReason, WatchEnd, WatchState};
use crate::watch_registry::RegisteredWatch;
use kubesvc_core::wire::common::Failure;
use kubesvc_core::wire::events::{Event, LeftOutObjects, Synced};
use kubesvc_runtime::telemetry::errors::chain;

/// Where the reader of one scope puts what it reads.
#[derive(Clone, Debug)]
pub(super) struct ScopeSink {
    pub(super) shared: Arc<SharedStream>,
    pub(super) account_uid: Arc<str>,
    pub(super) reader: ReaderId,
    pub(super) scope_id: u32,
    /// Asks the account to look at its credential, or at the kinds of its cluster.
    pub(super) look: Arc<LookRequests>,
    /// What people see of the reader.
    pub(super) watch: Arc<RegisteredWatch>,
    pub(super) metrics: CachedObjectMetrics,
}

/// What readers ask their account to look at.
#[derive(Debug, Default)]
pub(super) struct LookRequests {
    /// Notified when something is to be looked at.
    asked: Notify,
    /// Whether the credential is to be read again, and the identity of the cluster with it.
    must_connect: AtomicBool,
}

impl LookRequests {
    fn ask(&self, must_connect: bool) {
        self.must_connect.fetch_or(must_connect, Ordering::Relaxed);
        self.asked.notify_one();
    }

    /// Waits for a request; returns whether the credential is to be read again.
    pub(super) async fn asked(&self) -> bool {
        self.asked.notified().await;
        self.must_connect.swap(false, Ordering::Relaxed)
    }
}

impl ScopeSink {
    /// Changes the account's delivery, unless that has ended.
    fn deliver<T>(
        &self,
        change: impl FnOnce(&mut AccountSender, std::time::Instant, &mut QueueMemory) -> T,
    ) -> Option<T> {
        self.shared.change(|stream, now| {
            stream.account(&self.account_uid).map(|(account, memory)| change(account, now, memory))
        })
    }
}

impl ReaderSink for ScopeSink {
    fn event(&self, event: Event) -> Result<(), Box<Event>> {
        let queued = self.deliver(|account, now, memory| account.event(self.reader, event, now, memory));
        queued.unwrap_or(Ok(()))
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
        self.watch.problem(problem);
        self.deliver(|account, _, memory| account.problem(self.scope_id, problem.cloned(), memory));
    }

    fn is_read(&self) {
        self.deliver(|account, _, memory| account.is_read(self.reader, memory));
    }

    fn state(&self, state: WatchState) {
        self.watch.state(state);
    }

    fn list_begins(&self, reason: ListReason) {
        self.metrics.list_begins(reason);
    }

    fn watch_ended(&self, why: WatchEnd) {
        self.metrics.watch_ended(why);
    }

    fn waits(&self, reason: WaitReason) {
        match reason {
            WaitReason::Credential | WaitReason::OtherCluster => self.look.ask(true),
            WaitReason::KindMayBeGone => self.look.ask(false),
            WaitReason::Retry | WaitReason::Refused | WaitReason::Spread | WaitReason::Paused => {}
        }
    }

    fn left_out(&self, what: OmittedItem) {
        self.metrics.omitted(&what);
        match what {
            OmittedItem::Body(body) => tracing::debug!("{}", chain(&body)),
            OmittedItem::Object(object) => tracing::warn!("{}", chain(&object)),
        }
    }

    fn left_out_objects(&self, objects: LeftOutObjects) {
        self.deliver(|account, _, memory| account.left_out_objects(self.reader, objects, memory));
    }

    async fn room(&self) {
        self.shared.room(&self.account_uid).await;
    }
}
