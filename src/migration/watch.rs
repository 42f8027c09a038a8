//! The KubesvcMigrations of the operator's namespace, as last seen.

use std::collections::HashSet;
use std::sync::Arc;

use futures::StreamExt;
use kube::core::DeserializeGuard;
use kube::runtime::watcher::Event;
use kube::{Api, ResourceExt};
use tokio_util::sync::CancellationToken;
use tracing::error;

use super::LeaderMigrations;
use kubesvc_core::KubesvcMigration;
use kubesvc_runtime::telemetry::outages;
use kubesvc_runtime::watch_backoff;

impl LeaderMigrations<'_> {
    /// Follows the objects. Of a malformed one, the last well-formed state counts.
    pub(super) async fn watch(&self, stop: &CancellationToken) {
        let objects = self.ports.kube.namespaced::<DeserializeGuard<KubesvcMigration>>(&self.ports.namespace);
        let api: Api<DeserializeGuard<KubesvcMigration>> = objects.api().clone();
        let mut events = watch_backoff::events(api, watch_backoff::config());
        let mut listed = HashSet::new();
        while let Some(Some(event)) = stop.run_until_cancelled(events.next()).await {
            match event {
                Ok(Event::Init) => listed.clear(),
                Ok(Event::InitApply(object)) => {
                    listed.insert(object.name_any());
                    self.see(object);
                }
                Ok(Event::InitDone) => self.seen.lock().retain(|name, _| listed.contains(name)),
                Ok(Event::Apply(object)) => self.see(object),
                Ok(Event::Delete(object)) => drop(self.seen.lock().remove(&object.name_any())),
                Err(outage) => outages::log_transition("KubesvcMigrations", &outage),
            }
        }
    }

    fn see(&self, object: DeserializeGuard<KubesvcMigration>) {
        let name = object.name_any();
        match object.0 {
            Ok(mut object) => {
                object.metadata.managed_fields = None;
                self.seen.lock().insert(name, Arc::new(object));
            }
            Err(malformed) => {
                error!(migration = name, error = malformed.error, "a KubesvcMigration is malformed");
            }
        }
    }
}
