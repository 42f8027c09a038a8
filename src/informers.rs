//! KubesvcAccounts, KubesvcAgents and KubesvcIdentities as this process last saw or wrote them: one index for each kind, fed by
//! a watch. Of labelled Secrets, only the changes are passed on.

mod account_watch;
mod accounts;
mod agents;
mod identities;

use std::sync::Arc;

use futures::StreamExt;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::Event;
use tokio_util::sync::CancellationToken;

pub use account_watch::watch_accounts;
pub use accounts::{AccountIndex, AccountKey, ForeignAccount};
pub use agents::{AgentIndex, read_agents, version_of, watch_agents};
pub use identities::{IdentityIndex, watch_identities};

use kubesvc_core::WATCH_LABEL;
use kubesvc_core::owned_secret::may_be_outdated;
use kubesvc_runtime::kube_access::KubeAccess;
use kubesvc_runtime::telemetry::outages;
use kubesvc_runtime::work_queue::WorkQueue;

/// Callback for each Secret that was added, changed or deleted, with its namespace and name.
pub type Notice = Arc<dyn Fn(&str, &str) + Send + Sync>;

/// Subscribers to changes of Secrets, which are identified by namespace and name.
pub struct SecretsSeen {
    /// Called directly for Secrets that were added, changed or deleted.
    pub at_once: Notice,
    /// Woken for Secrets that were added, changed or deleted.
    pub changed: Arc<WorkQueue<(String, String)>>,
    /// Woken for added or changed Secrets that an earlier version of kubesvc may have created.
    pub outdated: Arc<WorkQueue<(String, String)>>,
}

impl SecretsSeen {
    fn notify(&self, secret: &PartialObjectMeta<Secret>) {
        let key = key(secret);
        (self.at_once)(&key.0, &key.1);
        self.changed.wake(key);
    }
}

/// Watches the Secrets with the label `kubesvc.io/watch: "true"`, and notifies the subscribers of each one
/// that was added, changed or deleted. Only their metadata is read, never their content.
pub async fn watch_secrets(
    kube: KubeAccess,
    namespace: Option<String>,
    seen: SecretsSeen,
    stop: CancellationToken,
) {
    let objects = kube.in_namespace::<PartialObjectMeta<Secret>>(namespace.as_deref());
    let config = kubesvc_runtime::watch_backoff::config().labels(&format!("{WATCH_LABEL}=true"));
    let stream = kubesvc_runtime::watch_backoff::events(objects.api().clone(), config)
        .take_until(stop.cancelled_owned());
    let mut stream = std::pin::pin!(stream);
    while let Some(event) = stream.next().await {
        match event {
            Ok(Event::Apply(secret) | Event::InitApply(secret)) => {
                if may_be_outdated(&secret.metadata) {
                    seen.outdated.wake(key(&secret));
                }
                seen.notify(&secret);
            }
            Ok(Event::Delete(secret)) => seen.notify(&secret),
            Ok(Event::Init | Event::InitDone) => {}
            Err(outage) => {
                outages::log_transition(
                    "Secrets (whose changes are otherwise seen every ten minutes)",
                    &outage,
                );
            }
        }
    }
}

fn key(secret: &PartialObjectMeta<Secret>) -> (String, String) {
    (secret.namespace().unwrap_or_default(), secret.name_any())
}
