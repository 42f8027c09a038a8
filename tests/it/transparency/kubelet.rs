//! Pods that are ready at once, as if each had a node, so that rollouts end and what waits for them goes on.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams, Patch, PatchParams};
use kube::{Client, ResourceExt as _};
use serde_json::json;
use tokio_util::task::AbortOnDropHandle;

/// Interval between two looks at the pods.
const INTERVAL: Duration = Duration::from_millis(100);

/// Makes every pod of these namespaces ready, until the handle is dropped.
pub(super) fn start(client: Client, namespaces: Vec<String>) -> AbortOnDropHandle<()> {
    AbortOnDropHandle::new(tokio::spawn(async move {
        let mut ticks = tokio::time::interval(INTERVAL);
        loop {
            ticks.tick().await;
            for namespace in &namespaces {
                let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
                // What fails is tried again with the next tick.
                for pod in pods.list(&ListParams::default()).await.into_iter().flatten() {
                    if !is_ready(&pod) {
                        make_ready(&pods, &pod.name_any()).await;
                    }
                }
            }
        }
    }))
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.is_some_and(|all| all.iter().any(|one| one.type_ == "Ready" && one.status == "True"))
}

async fn make_ready(pods: &Api<Pod>, name: &str) {
    let conditions = ["PodScheduled", "Initialized", "ContainersReady", "Ready"]
        .map(|kind| json!({"type": kind, "status": "True"}));
    let status = json!({"status": {"phase": "Running", "conditions": conditions}});
    let _ = pods.patch_status(name, &PatchParams::default(), &Patch::Merge(&status)).await;
}
