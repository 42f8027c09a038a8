//! Watch of labelled Secrets. Only their metadata is read, never their content.

use std::sync::Arc;

use futures::StreamExt;
use k8s_openapi::api::core::v1::Secret;
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::Event;
use kube::{Api, Client, ResourceExt};
use tokio_util::sync::CancellationToken;

use crate::account::WATCH_LABEL;
use crate::account::owned_secret::may_be_outdated;
use crate::telemetry::outages;
use crate::wake_set::WakeSet;

/// Callback for each Secret that was added, changed or deleted, with its namespace and name.
pub type Notice = Arc<dyn Fn(&str, &str) + Send + Sync>;

/// Subscribers to changes of Secrets, which are identified by namespace and name.
pub struct SecretsSeen {
    /// Called directly for Secrets that were added, changed or deleted.
    pub at_once: Notice,
    /// Woken for Secrets that were added, changed or deleted.
    pub changed: Arc<WakeSet<(String, String)>>,
    /// Woken for added or changed Secrets that an earlier version of kubesvc may have created.
    pub outdated: Arc<WakeSet<(String, String)>>,
}

impl SecretsSeen {
    fn tell(&self, secret: &PartialObjectMeta<Secret>) {
        let key = key(secret);
        (self.at_once)(&key.0, &key.1);
        self.changed.wake(key);
    }
}

/// Watches the Secrets with the label `kubesvc.io/watch: "true"`, and notifies the subscribers of each one
/// that was added, changed or deleted.
pub async fn watch_secrets(
    client: Client,
    namespace: Option<String>,
    seen: SecretsSeen,
    stop: CancellationToken,
) {
    let api: Api<PartialObjectMeta<Secret>> = match &namespace {
        Some(namespace) => Api::namespaced(client, namespace),
        None => Api::all(client),
    };
    let config = crate::watch_backoff::config().labels(&format!("{WATCH_LABEL}=true"));
    let stream = crate::watch_backoff::events(api, config).take_until(stop.cancelled_owned());
    let mut stream = std::pin::pin!(stream);
    while let Some(event) = stream.next().await {
        match event {
            Ok(Event::Apply(secret) | Event::InitApply(secret)) => {
                if may_be_outdated(&secret.metadata) {
                    seen.outdated.wake(key(&secret));
                }
                seen.tell(&secret);
            }
            Ok(Event::Delete(secret)) => seen.tell(&secret),
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
