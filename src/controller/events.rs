//! Kubernetes Events about transitions. They are best effort: beyond the bound they are dropped and counted.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures::FutureExt;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::{Client, Resource};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::{debug, error};

use crate::account::lifecycle::EventDraft;
use crate::account::{FIELD_MANAGER, KubesvcAccount};
use crate::budget::Budget;
use crate::crash;

/// Maximum number of Events waiting to be written.
const MAX_WAITING: usize = 1024;
/// Average number of Events per second. Each is a write to the API server that transitions need too.
const EVENTS_PER_SECOND: u32 = 10;
/// Maximum burst of Events, so that a small fleet loses none.
const MAX_BURST: u32 = 100;
/// Time limit for writing one Event.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// Writes Events in the background.
pub(super) struct Events {
    queue: mpsc::Sender<(KubesvcAccount, EventDraft)>,
    normal: Budget,
    warning: Budget,
}

impl Events {
    pub(super) fn start(client: Client, replica_id: &str, stop: CancellationToken) -> Self {
        let (queue, mut waiting) = mpsc::channel::<(KubesvcAccount, EventDraft)>(MAX_WAITING);
        let reporter =
            Reporter { controller: FIELD_MANAGER.to_owned(), instance: Some(replica_id.to_owned()) };
        let recorder = Recorder::new(client, reporter);
        tokio::spawn(stop.run_until_cancelled_owned(async move {
            while let Some((account, note)) = waiting.recv().await {
                // An Event whose write panics is dropped; the following ones are still written.
                if AssertUnwindSafe(write(&recorder, &account, note)).catch_unwind().await.is_err() {
                    error!(account = account.account_name(), "dropped an Event because writing it panicked");
                }
            }
        }));
        Self {
            queue,
            normal: Budget::new(EVENTS_PER_SECOND, MAX_BURST),
            warning: Budget::new(EVENTS_PER_SECOND, MAX_BURST),
        }
    }

    /// Queues an Event about a transition. Returns `false` if it is dropped because there are too many.
    pub(super) fn publish(&self, account: &KubesvcAccount, note: &EventDraft) -> bool {
        let budget = if note.warning { &self.warning } else { &self.normal };
        if !budget.try_take() {
            return false;
        }
        let mut reference =
            KubesvcAccount::new(account.metadata.name.as_deref().unwrap_or_default(), account.spec.clone());
        reference.metadata.namespace.clone_from(&account.metadata.namespace);
        reference.metadata.uid.clone_from(&account.metadata.uid);
        self.queue.try_send((reference, note.clone())).is_ok()
    }
}

async fn write(recorder: &Recorder, account: &KubesvcAccount, note: EventDraft) {
    let event = Event {
        type_: if note.warning { EventType::Warning } else { EventType::Normal },
        action: note.reason.clone(),
        reason: note.reason,
        note: Some(note.message),
        secondary: None,
    };
    crash::point("event:before");
    let written =
        tokio::time::timeout(WRITE_TIMEOUT, recorder.publish(&event, &account.object_ref(&()))).await;
    crash::point("event:after");
    if !matches!(written, Ok(Ok(()))) {
        debug!(account = account.account_name(), "cannot write an Event");
    }
}
