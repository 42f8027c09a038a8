//! Other clients write the same objects.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use kube::Api;
use kube::api::{Patch, PatchParams};
use kubesvc_core::{FINALIZER, KubesvcAccount, State};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::settled::settled;
use crate::world::{MAX_WAIT, World};
use kubesvc_testkit::{must, wait::eventually};

/// Labels and annotates accounts in turn until stopped. Returns the number of writes to each of them.
async fn keep_labelling(
    accounts: Api<KubesvcAccount>,
    names: Arc<Vec<String>>,
    stop: CancellationToken,
) -> BTreeMap<String, usize> {
    let mut written = BTreeMap::new();
    while !stop.is_cancelled() {
        for name in names.iter() {
            let count = written.entry(name.clone()).or_insert(0);
            let patch = Patch::Merge(json!({"metadata": {
                "labels": {format!("others/label-{}", *count % 50): format!("at-{count}")},
                "annotations": {"others/count": count.to_string()},
            }}));
            must(accounts.patch(name, &PatchParams::default(), &patch).await.map_err(|e| e.to_string()));
            *count += 1;
        }
    }
    written
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_written_by_others_converge_and_keep_foreign_fields() {
    let (world, cluster, agent) = World::with_agent().await;
    let names: Arc<Vec<_>> = Arc::new((0..8).map(|number| format!("shared-{number}")).collect());
    for name in names.iter() {
        world.account(name).zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
    }
    let stop = CancellationToken::new();
    let _stop_on_failure = stop.clone().drop_guard();
    let others = tokio::spawn(keep_labelling(world.api(), Arc::clone(&names), stop.clone()));
    // Continue until there was a conflict.
    let rounds = AtomicUsize::new(0);
    eventually("a write that was refused because the object had changed", 2 * MAX_WAIT, async || {
        let round = rounds.fetch_add(1, Ordering::Relaxed);
        for name in names.iter() {
            let state = if round % 2 == 1 { "ACTIVE" } else { "INACTIVE" };
            world.patch(name, json!({"spec": {"state": state}})).await;
        }
        let writes = world.operator_writes("kubesvcaccounts");
        if writes.iter().any(|write| write.code == 409) { Ok(()) } else { Err("none yet".to_owned()) }
    })
    .await;
    let wanted: Vec<_> = names
        .iter()
        .enumerate()
        .map(|(number, name)| (name.as_str(), if number % 2 == 0 { State::Active } else { State::Inactive }))
        .collect();
    for (name, state) in &wanted {
        world.patch(name, json!({"spec": {"state": state.to_string()}})).await;
    }
    // They converge although the other client continues.
    settled(&world, &[&agent], &wanted).await;
    stop.cancel();
    let written = others.await.expect("it writes until it is stopped");
    for (name, count) in written {
        let metadata = world.object(&name).await.expect("it is there").metadata;
        let annotations = metadata.annotations.unwrap_or_default();
        assert_eq!(annotations.get("others/count"), Some(&(count - 1).to_string()), "{name}");
        let labels = metadata.labels.unwrap_or_default();
        for label in count.saturating_sub(50)..count {
            let value = labels.get(&format!("others/label-{}", label % 50));
            assert_eq!(value, Some(&format!("at-{label}")), "{name}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn removed_finalizer_is_restored_or_the_account_is_released() {
    let (world, cluster, agent) = World::with_agent().await;
    for name in ["kept", "deleted"] {
        world.account(name).zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
        world.until(name, State::Active).await;
    }
    world.patch("kept", json!({"metadata": {"finalizers": null}})).await;
    world.until_account("kept", "has its finalizer", KubesvcAccount::has_finalizer).await;

    // Removing the finalizer in the middle of a deletion ends it: row and agent follow.
    agent.pause();
    world.delete("deleted").await;
    world.until("deleted", State::DeleteFailed).await;
    world.patch("deleted", json!({"metadata": {"finalizers": null}})).await;
    world.until_gone("deleted").await;
    agent.resume();
    settled(&world, &[&agent], &[("kept", State::Active)]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_finalizer_is_kept() {
    let (world, cluster, agent) = World::with_agent().await;
    world.account("prod").zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
    world.until("prod", State::Active).await;
    world.patch("prod", json!({"metadata": {"finalizers": [FINALIZER, "others.io/keep"]}})).await;
    world.delete("prod").await;
    world
        .until_account("prod", "has the other finalizer only", |account| {
            account.metadata.finalizers.as_deref() == Some(&["others.io/keep".to_owned()])
        })
        .await;
    eventually("no row, and no agent that holds it", MAX_WAIT, async || {
        let (row, own) = (world.try_row("prod").await?, world.ask_agent(&agent).await?);
        if row.is_none() && own["accountsHeld"] == 0 { Ok(()) } else { Err(format!("{row:?}, {own}")) }
    })
    .await;
    world.patch("prod", json!({"metadata": {"finalizers": null}})).await;
    settled(&world, &[&agent], &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn status_edited_by_hand_is_repaired() {
    let (world, cluster, agent) = World::with_agent().await;
    let edits: [(&str, Value); 8] = [
        ("failed", json!({"state": "FAILED", "failedCount": 4, "errorMessage": "made up"})),
        ("orphaned", json!({"state": "ORPHANED"})),
        ("inactive", json!({"state": "INACTIVE", "grant": null})),
        ("deactivating", json!({"state": "DEACTIVATING", "grant": {"phase": "Revoking"}})),
        ("deleting", json!({"state": "DELETING"})),
        ("later", json!({"epoch": 99})),
        ("elsewhere", json!({"grant": {"zone": "west"}, "zoneId": "west"})),
        ("wiped", Value::Null),
    ];
    for (name, _) in &edits {
        world.account(name).zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
    }
    for (name, _) in &edits {
        world.until(name, State::Active).await;
    }
    // Makes the agent's epoch later than the one with which a wiped status begins.
    for kind in ["deployment", "configMap"] {
        let patched = world.patch("wiped", json!({"spec": {"kinds": [kind]}})).await;
        let generation = patched.metadata.generation.unwrap_or_default();
        world
            .until_account("wiped", "is ACTIVE with its new kinds", |account| {
                let status = account.status_or_default();
                status.state() == State::Active && status.observed_generation == generation
            })
            .await;
    }
    for (name, status) in &edits {
        let patch = json!({ "status": status }).to_string();
        let arguments = ["patch", "ksa", name, "--subresource=status", "--type=merge", "-p", &patch];
        must(world.kubectl(&arguments).await.ok());
    }
    world
        .until_account("later", "goes on from the edited epoch", |account| {
            let status = account.status_or_default();
            status.state() == State::Active && status.epoch.0 >= 99 && status.agents == ["agent-1"]
        })
        .await;
    let wanted = edits.each_ref().map(|(name, _)| (*name, State::Active));
    settled(&world, &[&agent], &wanted).await;
    for (name, _) in wanted {
        let account = world.object(name).await.expect("it is there");
        assert_eq!(account.status_or_default().granted_zone(), Some(&"east".into()), "{name}");
    }
}
