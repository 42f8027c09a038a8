//! The requests that run: to be listed, stopped and waited for.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use jiff::Timestamp;
use parking_lot::Mutex;
use prometheus_client::metrics::gauge::Gauge;
use serde::Serialize;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::wire_failure::before_send;
use kubesvc_core::requests::MAX_REQUESTS_OF_AGENT;
use kubesvc_core::wire::common::Failure;
use kubesvc_core::wire::common::failure::Class;
use kubesvc_runtime::waits::until;

/// A request, as shown to people.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RunningRequest {
    /// Name of the account.
    pub account: String,
    /// Id of the request.
    pub request_id: String,
    /// Method.
    pub method: String,
    /// Path without its query.
    pub path: String,
    /// Class.
    pub class: &'static str,
    /// Whether it was sent to the cluster.
    pub state: RequestState,
    /// Its beginning.
    pub since: Timestamp,
}

/// Whether a request was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum RequestState {
    /// Nothing of it was sent to the cluster.
    Waiting,
    /// It may have been executed.
    Sent,
}

/// What becomes of a request when it is stopped, or the agent drains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestKind {
    /// It ends at once, and is not waited for: also a log that is followed, which has no good end.
    Read,
    /// A watch of objects. It ends at once; an agent that drains waits for the end of a line.
    Watch,
    /// What was sent is waited for.
    Write,
}

#[derive(Debug)]
struct RunningEntry {
    uid: String,
    shown: RunningRequest,
    kind: RequestKind,
    end: CancellationToken,
}

/// The failure of a request that comes when the agent drains.
pub(super) fn stopping() -> Failure {
    before_send(Class::Overloaded, "the agent is stopping")
}

/// All requests that run.
#[derive(Debug)]
pub(super) struct RunningRequests {
    entries: Mutex<BTreeMap<u64, RunningEntry>>,
    next: AtomicU64,
    /// Number of answers of writes that are on their way to the hub.
    answering: AtomicUsize,
    changed: Notify,
    count: Gauge,
    /// Cancelled under the lock of the entries, so that none is added after [`RunningRequests::drained`] has looked at them.
    draining: CancellationToken,
}

/// A request that runs, until this is dropped.
#[derive(Debug)]
pub(super) struct Running {
    all: Arc<RunningRequests>,
    serial: u64,
    /// Cancelled when the request is to end at once.
    pub(super) end: CancellationToken,
}

/// The answer of a write on its way to the hub, until this is dropped.
#[derive(Debug)]
pub(super) struct Answering(Arc<RunningRequests>);

impl RunningRequests {
    /// `draining` is cancelled by [`RunningRequests::drain`] alone.
    pub(super) fn new(count: Gauge, draining: CancellationToken) -> Self {
        Self {
            entries: Mutex::default(),
            next: AtomicU64::new(0),
            answering: AtomicUsize::new(0),
            changed: Notify::new(),
            count,
            draining,
        }
    }

    /// Adds a request.
    pub(super) fn add(
        self: &Arc<Self>,
        uid: &str,
        kind: RequestKind,
        shown: RunningRequest,
    ) -> Result<Running, Failure> {
        let mut entries = self.entries.lock();
        if self.draining.is_cancelled() {
            return Err(stopping());
        }
        if entries.len() >= MAX_REQUESTS_OF_AGENT {
            return Err(before_send(Class::Overloaded, "too many requests run at the agent"));
        }
        let (serial, end) = (self.next.fetch_add(1, Ordering::Relaxed), CancellationToken::new());
        let entry = RunningEntry { uid: uid.to_owned(), shown, kind, end: end.clone() };
        entries.insert(serial, entry);
        self.count.set(i64::try_from(entries.len()).unwrap_or(i64::MAX));
        Ok(Running { all: Arc::clone(self), serial, end })
    }

    /// Counts an answer of a write that is to be given to the hub. It begins before the write ends, so that one of both is
    /// always seen.
    pub(super) fn answering(self: &Arc<Self>) -> Answering {
        self.answering.fetch_add(1, Ordering::Relaxed);
        Answering(Arc::clone(self))
    }

    pub(super) fn list(&self) -> Vec<RunningRequest> {
        self.entries.lock().values().map(|entry| entry.shown.clone()).collect()
    }

    /// Ends the requests of an account; see [`RequestService::stop`](super::RequestService::stop).
    pub(super) fn stop(self: &Arc<Self>, uid: &str) -> Option<impl Future<Output = ()> + Send + use<>> {
        let awaited: Vec<u64> = {
            let entries = self.entries.lock();
            let of_account = entries.iter().filter(|(_, entry)| entry.uid == uid);
            let of_account = of_account.inspect(|(_, entry)| {
                if !(entry.kind == RequestKind::Write && entry.shown.state == RequestState::Sent) {
                    entry.end.cancel();
                }
            });
            of_account.map(|(serial, _)| *serial).collect()
        };
        let cut = CutOnDrop { all: Arc::clone(self), serials: awaited };
        let has_awaited = !cut.serials.is_empty();
        has_awaited.then_some(async move {
            let is_over = |entries: &BTreeMap<u64, RunningEntry>| {
                !cut.serials.iter().any(|one| entries.contains_key(one))
            };
            cut.all.until(is_over).await;
        })
    }

    /// Refuses further requests.
    pub(super) fn drain(&self) {
        let _entries = self.entries.lock();
        self.draining.cancel();
    }

    /// Waits until neither a write nor a watch runs, and the answers of the writes were taken.
    pub(super) async fn drained(&self) {
        self.until(|entries| {
            let runs_none = entries.values().all(|entry| entry.kind == RequestKind::Read);
            runs_none && self.answering.load(Ordering::Relaxed) == 0
        })
        .await;
    }

    async fn until(&self, is_reached: impl Fn(&BTreeMap<u64, RunningEntry>) -> bool) {
        until(&self.changed, || is_reached(&self.entries.lock()).then_some(())).await;
    }
}

impl Running {
    /// Records that the request is about to be sent. Returns false if it was stopped before.
    pub(super) fn sends(&self) -> bool {
        let mut entries = self.all.entries.lock();
        // Under the lock of stop, which decides by this whether the request is awaited.
        if self.end.is_cancelled() {
            return false;
        }
        if let Some(entry) = entries.get_mut(&self.serial) {
            entry.shown.state = RequestState::Sent;
        }
        true
    }

    /// Records that the request is a watch without an end that a draining agent could wait for.
    pub(super) fn is_not_awaited(&self) {
        if let Some(entry) = self.all.entries.lock().get_mut(&self.serial)
            && entry.kind == RequestKind::Watch
        {
            entry.kind = RequestKind::Read;
        }
        self.all.changed.notify_waiters();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut entries = self.all.entries.lock();
        entries.remove(&self.serial);
        self.all.count.set(i64::try_from(entries.len()).unwrap_or(i64::MAX));
        drop(entries);
        self.all.changed.notify_waiters();
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.answering.fetch_sub(1, Ordering::Relaxed);
        self.0.changed.notify_waiters();
    }
}

/// Cuts the requests that have not ended when nobody waits for them any more.
struct CutOnDrop {
    all: Arc<RunningRequests>,
    serials: Vec<u64>,
}

impl Drop for CutOnDrop {
    fn drop(&mut self) {
        let entries = self.all.entries.lock();
        self.serials.iter().filter_map(|serial| entries.get(serial)).for_each(|entry| entry.end.cancel());
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    fn shown() -> RunningRequest {
        RunningRequest {
            account: "prod".to_owned(),
            request_id: "id".to_owned(),
            method: "DELETE".to_owned(),
            path: "/api/v1/pods".to_owned(),
            class: "write",
            state: RequestState::Waiting,
            since: Timestamp::UNIX_EPOCH,
        }
    }

    #[test]
    fn no_request_is_added_once_the_agent_drains() {
        let running = Arc::new(RunningRequests::new(Gauge::default(), CancellationToken::new()));
        let write = running.add("uid-1", RequestKind::Write, shown()).expect("nothing runs");
        running.drain();
        assert!(running.drained().now_or_never().is_none(), "the write is awaited");
        let late = running.add("uid-1", RequestKind::Write, shown());
        assert_eq!(late.map(drop), Err(stopping()));
        let answering = running.answering();
        drop(write);
        assert!(running.drained().now_or_never().is_none(), "its answer is awaited");
        drop(answering);
        assert!(running.drained().now_or_never().is_some());
        let late = running.add("uid-1", RequestKind::Read, shown());
        assert_eq!(late.map(drop), Err(stopping()));
    }
}
