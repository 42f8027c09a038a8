//! Changes of a spec by a person or through REST.

use kubesvc_core::{RETRY_ANNOTATION, State};
use serde_json::json;

use super::{Scene, activate_another, held_by, writes};
use crate::world::condition;
use kubesvc_testkit::kubeconfig::Proof;

pub(super) async fn account_is_deactivated_and_activated_through_its_spec(scene: &Scene) {
    let Scene { world, cluster, agent } = scene;
    world.account("flip").zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
    let active = world.until("flip", State::Active).await;

    world.patch("flip", json!({"spec": {"state": "INACTIVE"}})).await;
    let inactive = world.until("flip", State::Inactive).await;
    let ready = condition(&inactive, "Ready").expect("a condition");
    assert_eq!((ready.status.as_str(), ready.reason.as_str()), ("True", "Inactive"), "as wished is healthy");
    assert!(inactive.status_or_default().epoch > active.status_or_default().epoch);
    assert_eq!(inactive.status_or_default().cluster_uid, None, "an inactive account is bound to no cluster");
    world.until_row("flip", "INACTIVE").await;
    let held = held_by(world, agent).await.expect("it is listed");
    assert!(!held.contains(&"flip".to_owned()), "{held:?}");
    activate_another(world, cluster, "after-off", "east").await;
    assert_eq!(writes(world, "flip"), 3 + 2, "DEACTIVATING, INACTIVE: {:#?}", world.writes_to("flip"));

    world.patch("flip", json!({"spec": {"state": "ACTIVE"}})).await;
    world.kubectl_wait("flip", "jsonpath={.status.state}=ACTIVE").await;
    world.kubectl_wait("flip", "condition=Ready").await;
    activate_another(world, cluster, "after-on", "east").await;
    assert_eq!(writes(world, "flip"), 3 + 2 + 2, "{:#?}", world.writes_to("flip"));
}

pub(super) async fn account_is_deactivated_and_activated_by_rest(scene: &Scene) {
    let Scene { world, cluster, .. } = scene;
    world.account("by-rest").zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
    world.until("by-rest", State::Active).await;
    for (path, state) in [("/armory/accounts", "INACTIVE"), ("/armory/accounts/dynamic", "ACTIVE")] {
        let answer = world.rest("PATCH", path, &json!([{"name": "by-rest", "state": state}])).await;
        assert_eq!((answer.status, answer.text.as_str()), (202, ""), "{answer}");
        world.until_shown("by-rest", state).await;
        world.until_row("by-rest", state).await;
    }
    let account = world.object("by-rest").await.expect("it is there");
    assert_eq!(account.status_or_default().epoch.0, 3, "opened, revoked, opened");
}

pub(super) async fn only_a_changed_definition_reactivates_the_account(scene: &Scene) {
    let Scene { world, cluster, .. } = scene;
    world.account("redefined").zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
    world.until("redefined", State::Active).await;

    // Not `kinds`: that these are not cached would be written to the condition Caching, half a minute later.
    let changed = world.patch("redefined", json!({"spec": {"onlySpinnakerManaged": true}})).await;
    let generation = changed.metadata.generation.expect("an object has one");
    let active = world
        .until_account("redefined", "is ACTIVE with the new definition", |account| {
            let status = account.status_or_default();
            status.state() == State::Active && status.observed_generation == generation
        })
        .await;
    assert_eq!(active.status_or_default().epoch.0, 2, "epoch + 1");
    activate_another(world, cluster, "after-definition", "east").await;
    assert_eq!(writes(world, "redefined"), 3 + 2, "ACTIVATING, ACTIVE: {:#?}", world.writes_to("redefined"));

    let patch = json!({"spec": {"permissions": {"READ": ["dev"]}, "environment": "production"}});
    let generation = world.patch("redefined", patch).await.metadata.generation.expect("an object has one");
    let seen = world
        .until_account("redefined", "has seen its permissions", |account| {
            account.status_or_default().observed_generation == generation
        })
        .await;
    assert_eq!(seen.status_or_default().epoch.0, 2, "agents need not know");
    assert_eq!(seen.status_or_default().state(), State::Active);
    activate_another(world, cluster, "after-permissions", "east").await;
    assert_eq!(writes(world, "redefined"), 3 + 2 + 1, "one write: {:#?}", world.writes_to("redefined"));
    let row = world.until_row("redefined", "ACTIVE").await;
    assert!(row.definition.as_ref().is_some_and(|text| text.contains("production")), "{row:#?}");
    assert_eq!(row.observed_generation, generation);
}

pub(super) async fn changed_retry_annotation_retries_at_once(scene: &Scene) {
    let Scene { world, cluster, .. } = scene;
    let wrong = cluster.kubeconfig_with(Proof::Token("CANARY-wrong-token"));
    world.account("retried").zone("east").kubeconfig(&wrong).unwatched().create().await;
    let failed = world.until_reason("retried", State::Failed, "Unauthorized").await;
    assert_eq!(condition(&failed, "Stalled").map(|one| one.status).as_deref(), Some("True"), "{failed:#?}");
    assert_eq!(failed.status_or_default().failed_count, 1);

    world.annotate("retried", RETRY_ANNOTATION, "first").await;
    let again = world
        .until_account("retried", "failed once more", |account| {
            let status = account.status_or_default();
            status.retry_handled.as_deref() == Some("first")
                && status.state() == State::Failed
                && status.epoch > failed.status_or_default().epoch
        })
        .await;
    assert_eq!(again.status_or_default().failed_count, 1, "counted anew: {:#?}", again.status);

    // This Secret is not watched: only the next attempt reads it again.
    world.secret("retried", cluster.kubeconfig().as_bytes(), false).await;
    world.annotate("retried", RETRY_ANNOTATION, "second").await;
    let healed = world.until("retried", State::Active).await;
    assert_eq!(healed.status_or_default().retry_handled.as_deref(), Some("second"));
    assert_eq!(healed.status_or_default().failed_count, 0);
}

pub(super) async fn account_of_an_unreachable_cluster_is_retried_and_stalls(scene: &Scene) {
    let Scene { world, cluster, .. } = scene;
    let closed = kubesvc_testkit::ports::free();
    let elsewhere = kubesvc_testkit::kubeconfig::yaml(
        &format!("https://127.0.0.1:{closed}"),
        cluster.authority(),
        Proof::Token(cluster.token()),
    );
    world.account("unreachable").zone("east").kubeconfig(&elsewhere).create().await;
    let stalled = world
        .until_account("unreachable", "has stalled after four tries", |account| {
            account.status_or_default().failed_count == 4
                && condition(account, "Stalled").is_some_and(|one| one.status == "True")
        })
        .await;
    let ready = condition(&stalled, "Ready").expect("a condition");
    assert_eq!(ready.reason, "ClusterUnreachable", "{stalled:#?}");
    assert!(stalled.status_or_default().next_retry_time.is_some(), "it may pass by itself: {stalled:#?}");
    let row = world.until_row("unreachable", "FAILED").await;
    assert_eq!(row.failed_count, 4, "{row:#?}");

    world.secret("unreachable", cluster.kubeconfig().as_bytes(), true).await;
    let healed = world.until("unreachable", State::Active).await;
    assert_eq!(healed.status_or_default().failed_count, 0);
}
