//! The operator owns status and finalizer of an object that it did not create, and no other field: a GitOps
//! tool finds what it applied unchanged, whatever happens to the account.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kubesvc_core::{FIELD_MANAGER, FINALIZER, KubesvcAccount, State};
use serde_json::{Value, json};

use crate::world::{MAX_WAIT, World};
use kubesvc_testkit::{must, wait::eventually};

const TOOL: &str = "argocd-controller";
/// A finalizer of the tool, like the one of Argo CD for foreground pruning.
const FOREIGN: &str = "example.org/hold";

fn manifest(zone: &str, state: &str) -> Value {
    json!({
        "apiVersion": "kubesvc.io/v1alpha1", "kind": "KubesvcAccount",
        "metadata": {
            "name": "prod", "labels": {"team": "shop"}, "finalizers": [FOREIGN],
            "annotations": {"argocd.argoproj.io/tracking-id": "fleet:kubesvc.io/KubesvcAccount:ns/prod"},
        },
        "spec": {
            "zoneId": zone, "state": state, "kubeconfig": {"secretRef": {"name": "prod"}},
            "permissions": {"READ": ["dev"], "WRITE": ["ops"]},
        },
    })
}

/// Applies like Argo CD and Flux: server-side and never with force, so that a conflict would fail.
async fn apply(world: &World, manifest: &Value) {
    let manager = format!("--field-manager={TOOL}");
    let arguments = ["apply", "--server-side", manager.as_str(), "-f", "-"];
    must(world.kubectl_with_input(&arguments, &manifest.to_string()).await.ok());
}

/// Compares what is stored with what was applied, and the fields of each manager with those it may own.
fn hold(account: &KubesvcAccount, applied: &Value) {
    let stored = json!(account);
    assert_eq!(stored["spec"], applied["spec"]);
    for field in ["labels", "annotations"] {
        assert_eq!(stored["metadata"][field], applied["metadata"][field], "{field}");
    }
    let entries = account.metadata.managed_fields.as_deref().unwrap_or_default();
    let ours: Vec<_> = entries.iter().filter(|entry| is_by(entry, FIELD_MANAGER)).collect();
    assert_eq!(ours.len(), 2, "the status and the finalizer: {entries:#?}");
    for entry in &ours {
        let fields = json!(entry.fields_v1);
        if entry.subresource.as_deref() == Some("status") {
            assert_eq!(keys(&fields), ["f:status"], "{fields}");
            continue;
        }
        assert_eq!(keys(&fields), ["f:metadata"], "{fields}");
        assert_eq!(keys(&fields["f:metadata"]), ["f:finalizers"], "{fields}");
        let own = format!("v:{FINALIZER:?}");
        let finalizers = keys(&fields["f:metadata"]["f:finalizers"]);
        assert!(finalizers.iter().all(|one| *one == "." || *one == own), "{fields}");
    }
    let others: Vec<_> =
        entries.iter().filter(|one| !is_by(one, FIELD_MANAGER) && !is_by(one, TOOL)).collect();
    assert!(others.is_empty(), "a manager that nobody expects: {others:#?}");
}

fn is_by(entry: &ManagedFieldsEntry, manager: &str) -> bool {
    entry.manager.as_deref() == Some(manager)
}

fn keys(fields: &Value) -> Vec<&str> {
    fields.as_object().into_iter().flatten().map(|(key, _)| key.as_str()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn operator_writes_no_field_applied_by_a_gitops_tool() {
    let world = World::start().await;
    let cluster = world.cluster("spinnaker").await;
    let _east = world.agent("agent-1").zone("east").start().await;
    let west = world.agent("agent-2").zone("west").start().await;
    world.secret("prod", cluster.kubeconfig().as_bytes(), true).await;

    let first = manifest("east", "ACTIVE");
    apply(&world, &first).await;
    hold(&world.until("prod", State::Active).await, &first);

    let moved = manifest("west", "ACTIVE");
    apply(&world, &moved).await;
    let in_west = world
        .until_account("prod", "is ACTIVE in the west", |account| {
            let status = account.status_or_default();
            status.state() == State::Active && status.granted_zone() == Some(&"west".into())
        })
        .await;
    hold(&in_west, &moved);

    world.secret("prod", b"kind: Nonsense", true).await;
    hold(&world.until("prod", State::Failed).await, &moved);
    world.secret("prod", cluster.kubeconfig().as_bytes(), true).await;
    hold(&world.until("prod", State::Active).await, &moved);
    west.kill();
    hold(&world.until("prod", State::Orphaned).await, &moved);
    west.launch();
    hold(&world.until("prod", State::Active).await, &moved);

    let stopped = manifest("west", "INACTIVE");
    apply(&world, &stopped).await;
    hold(&world.until("prod", State::Inactive).await, &stopped);
    // Applied again without a change: nothing differs, so the tool sees no drift.
    let before = world.object("prod").await.expect("it is there").metadata.resource_version;
    apply(&world, &stopped).await;
    assert_eq!(world.object("prod").await.expect("it is there").metadata.resource_version, before);

    apply(&world, &moved).await;
    world.until("prod", State::Active).await;
    world.delete("prod").await;
    let left = eventually("an account without our finalizer", MAX_WAIT, async || {
        let account =
            world.try_object("prod").await?.ok_or("it is gone, and the tool's finalizer with it")?;
        if account.has_finalizer() { Err(format!("{:?}", account.metadata.finalizers)) } else { Ok(account) }
    })
    .await;
    assert_eq!(left.metadata.finalizers, Some(vec![FOREIGN.to_owned()]), "only our own is removed");
    let removal = json!({"metadata": {"finalizers": null}});
    world.patch("prod", removal).await;
    world.until_gone("prod").await;
}
