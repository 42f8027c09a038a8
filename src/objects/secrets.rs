//! Secrets that ask to be watched: only their names are looked at, never what is in them.

use std::sync::Arc;

use futures::StreamExt;
use k8s_openapi::api::core::v1::Secret;
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::Event;
use kube::{Api, Client, ResourceExt};
use tokio_util::sync::CancellationToken;

use crate::account::WATCH_LABEL;
use crate::telemetry::outages;
use crate::wakes::Wakes;

/// Tells of each Secret with the label `kubesvc.io/watch: "true"` that came, changed or went, as namespace and name.
pub async fn watch_secrets(
    client: Client,
    namespace: Option<String>,
    changed: Arc<Wakes<(String, String)>>,
    stop: CancellationToken,
) {
    let api: Api<PartialObjectMeta<Secret>> = match &namespace {
        Some(namespace) => Api::namespaced(client, namespace),
        None => Api::all(client),
    };
    let config = crate::watches::config().labels(&format!("{WATCH_LABEL}=true"));
    let stream = crate::watches::events(api, config).take_until(stop.cancelled_owned());
    let mut stream = std::pin::pin!(stream);
    while let Some(event) = stream.next().await {
        match event {
            Ok(Event::Apply(secret) | Event::Delete(secret) | Event::InitApply(secret)) => {
                changed.wake((secret.namespace().unwrap_or_default(), secret.name_any()));
            }
            Ok(Event::Init | Event::InitDone) => {}
            Err(outage) => {
                outages::tell("Secrets, whose changes are seen every ten minutes otherwise,", &outage)
            }
        }
    }
}
