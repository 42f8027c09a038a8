//! Publishes transitions: the row, a counter, a log line and Kubernetes Events. Events are best effort: beyond the
//! bound they are dropped and counted.

use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures::FutureExt;
use kube::Resource;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

use super::Controller;
use kubesvc_core::lifecycle::{EventDraft, StatusWrite};
use kubesvc_core::{AgentId, FIELD_MANAGER, KubesvcAccount, KubesvcAccountStatus, ReplicaId};
use kubesvc_runtime::kube_access::{KubeAccess, KubeRequest, WriteOptions};
use kubesvc_runtime::rate_limit::RateLimit;
use kubesvc_runtime::shutdown::spawn_named;
use kubesvc_runtime::telemetry::errors::chain;

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
    normal: RateLimit,
    warning: RateLimit,
}

impl Events {
    pub(super) fn start(kube: &KubeAccess, replica_id: &ReplicaId, stop: CancellationToken) -> Self {
        let (queue, mut waiting) = mpsc::channel::<(KubesvcAccount, EventDraft)>(MAX_WAITING);
        let reporter =
            Reporter { controller: FIELD_MANAGER.to_owned(), instance: Some(replica_id.to_string()) };
        let recorder = Recorder::new(kube.client().clone(), reporter);
        let kube = kube.clone().within(WRITE_TIMEOUT);
        let writing = stop.run_until_cancelled_owned(async move {
            while let Some((account, note)) = waiting.recv().await {
                // An Event whose write panics is dropped; the following ones are still written.
                if AssertUnwindSafe(write(&kube, &recorder, &account, note)).catch_unwind().await.is_err() {
                    error!(account = account.account_name(), "dropped an Event because writing it panicked");
                }
            }
        });
        drop(spawn_named("Events", writing).detach());
        Self {
            queue,
            normal: RateLimit::new(EVENTS_PER_SECOND, MAX_BURST),
            warning: RateLimit::new(EVENTS_PER_SECOND, MAX_BURST),
        }
    }

    /// Queues an Event about a transition. Returns `false` if it is dropped because there are too many.
    pub(super) fn publish(&self, account: &KubesvcAccount, note: &EventDraft) -> bool {
        let rate_limit = if note.warning { &self.warning } else { &self.normal };
        if !rate_limit.try_take() {
            return false;
        }
        let mut reference =
            KubesvcAccount::new(account.metadata.name.as_deref().unwrap_or_default(), account.spec.clone());
        reference.metadata.namespace.clone_from(&account.metadata.namespace);
        reference.metadata.uid.clone_from(&account.metadata.uid);
        self.queue.try_send((reference, note.clone())).is_ok()
    }
}

async fn write(kube: &KubeAccess, recorder: &Recorder, account: &KubesvcAccount, note: EventDraft) {
    let event = Event {
        type_: if note.warning { EventType::Warning } else { EventType::Normal },
        action: note.reason.clone(),
        reason: note.reason,
        note: Some(note.message),
        secondary: None,
    };
    let namespace = account.metadata.namespace.as_deref().unwrap_or_default();
    let request = KubeRequest::of::<k8s_openapi::api::events::v1::Event>("create", namespace, "");
    let about = account.object_ref(&());
    let options = Some(WriteOptions::default().at("event"));
    if let Err(error) = kube.send(request, options, recorder.publish(&event, &about)).await {
        debug!(account = account.account_name(), error = chain(&error), "cannot write an Event");
    }
}

impl Controller {
    /// Publishes a written status: row, counter, log line, Event.
    pub(super) fn publish_written(&self, before: &KubesvcAccount, write: &StatusWrite) {
        let (from, to) = (before.status_or_default().state(), write.status.state());
        if let Some(now) = self.context.accounts.by_uid(before.uid()) {
            self.project_row(&now);
        }
        if from != to {
            self.context
                .metrics
                .transitions
                .get_or_create(&[("from", from.as_str()), ("to", to.as_str())])
                .inc();
            let zone = write.status.zone_id.as_ref().unwrap_or_default();
            let reason = write.status.error_message.as_deref().unwrap_or_default();
            info!(account = before.account_name(), zoneId = zone.as_str(), %from, %to, epoch = write.status.epoch.0, reason, "state changed");
        }
        if write.status.caching != before.status_or_default().caching
            && let Some(caching) = &write.status.caching
        {
            let agent = caching.agent_id.as_ref().map_or("nobody", AgentId::as_str);
            info!(
                account = before.account_name(),
                agentId = agent,
                epoch = caching.epoch.0,
                "the caching agent changed"
            );
        }
        let idle = idle_settings(before, &write.status);
        if let Some(idle) = &idle {
            warn!(account = before.account_name(), "{}", idle.message);
        }
        for note in write.event.iter().chain(&idle) {
            if !self.events.publish(before, note) {
                self.context.metrics.dropped_events.inc();
            }
        }
    }
}

/// The Event about settings of the spec that have no effect, once for each generation.
fn idle_settings(before: &KubesvcAccount, status: &KubesvcAccountStatus) -> Option<EventDraft> {
    let needs_event = before.status_or_default().observed_generation != status.observed_generation;
    let idle = if needs_event { before.spec.without_effect() } else { Vec::new() };
    (!idle.is_empty()).then(|| EventDraft {
        warning: true,
        reason: "SettingWithoutEffect".to_owned(),
        message: format!("in this version these settings of the spec have no effect: {}", idle.join(", ")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use kubesvc_core::KubesvcAccountSpec;

    #[test]
    fn settings_without_effect_are_reported_once_per_generation() {
        let spec = KubesvcAccountSpec { metrics: Some(true), no_proxy: Some(true), ..Default::default() };
        let account = KubesvcAccount::new("a", spec);
        let seen = KubesvcAccountStatus { observed_generation: 1, ..KubesvcAccountStatus::default() };
        let note = idle_settings(&account, &seen).expect("it is news");
        assert!(note.warning && note.message.ends_with("metrics, noProxy"), "{}", note.message);
        let mut told = account.clone();
        told.status = Some(seen.clone());
        assert!(idle_settings(&told, &seen).is_none());
        let plain = KubesvcAccount::new("b", KubesvcAccountSpec::default());
        assert!(idle_settings(&plain, &seen).is_none());
    }
}
