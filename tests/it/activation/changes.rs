//! Changes of a spec by a person or through REST.

use kubesvc_core::{RETRY_ANNOTATION, State};
use serde_json::json;

use super::{activate_another, writes};
use crate::world::{World, condition};
use kubesvc_testkit::kubeconfig::Proof;

#[tokio::test(flavor = "multi_thread")]
async fn account_is_deactivated_and_activated_through_its_spec() {
    let (world, cluster, _agent) = World::with_long_timeouts().await;
    world.account("prod").zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
    let active = world.until("prod", State::Active).await;

    world.patch("prod", json!({"spec": {"state": "INACTIVE"}})).await;
    let inactive = world.until("prod", State::Inactive).await;
    let ready = condition(&inactive, "Ready").expect("a condition");
    assert_eq!((ready.status.as_str(), ready.reason.as_str()), ("True", "Inactive"), "as wished is healthy");
    assert!(inactive.status_or_default().epoch > active.status_or_default().epoch);
    assert_eq!(inactive.status_or_default().cluster_uid, None, "an inactive account is bound to no cluster");
    world.until_row("prod", "INACTIVE").await;
    let agents = world.get("/armory/agents").await;
    assert_eq!(agents.json[0]["accounts"], json!([]), "{agents}");
    activate_another(&world, &cluster, "next", "east").await;
    assert_eq!(writes(&world, "prod"), 3 + 2, "DEACTIVATING, INACTIVE: {:#?}", world.writes_to("prod"));

    world.patch("prod", json!({"spec": {"state": "ACTIVE"}})).await;
    world.kubectl_wait("prod", "jsonpath={.status.state}=ACTIVE").await;
    world.kubectl_wait("prod", "condition=Ready").await;
    activate_another(&world, &cluster, "after", "east").await;
    assert_eq!(writes(&world, "prod"), 3 + 2 + 2, "{:#?}", world.writes_to("prod"));
}

#[tokio::test(flavor = "multi_thread")]
async fn account_is_deactivated_and_activated_by_rest() {
    let world = World::start().await;
    let cluster = world.cluster("spinnaker").await;
    let _agent = world.agent("agent-1").start().await;
    world.account("prod").zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
    world.until("prod", State::Active).await;
    for (path, state) in [("/armory/accounts", "INACTIVE"), ("/armory/accounts/dynamic", "ACTIVE")] {
        let answer = world.rest("PATCH", path, &json!([{"name": "prod", "state": state}])).await;
        assert_eq!((answer.status, answer.text.as_str()), (202, ""), "{answer}");
        world.until_shown("prod", state).await;
        world.until_row("prod", state).await;
    }
    let account = world.object("prod").await.expect("it is there");
    assert_eq!(account.status_or_default().epoch.0, 3, "opened, revoked, opened");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_a_changed_definition_reactivates_the_account() {
    let (world, cluster, _agent) = World::with_long_timeouts().await;
    world.account("prod").zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
    world.until("prod", State::Active).await;

    let changed = world.patch("prod", json!({"spec": {"kinds": ["deployment"]}})).await;
    let generation = changed.metadata.generation.expect("an object has one");
    let active = world
        .until_account("prod", "is ACTIVE with the new definition", |account| {
            let status = account.status_or_default();
            status.state() == State::Active && status.observed_generation == generation
        })
        .await;
    assert_eq!(active.status_or_default().epoch.0, 2, "epoch + 1");
    activate_another(&world, &cluster, "next", "east").await;
    assert_eq!(writes(&world, "prod"), 3 + 2, "ACTIVATING, ACTIVE: {:#?}", world.writes_to("prod"));

    let patch = json!({"spec": {"permissions": {"READ": ["dev"]}, "environment": "production"}});
    let generation = world.patch("prod", patch).await.metadata.generation.expect("an object has one");
    let seen = world
        .until_account("prod", "has seen its permissions", |account| {
            account.status_or_default().observed_generation == generation
        })
        .await;
    assert_eq!(seen.status_or_default().epoch.0, 2, "agents need not know");
    assert_eq!(seen.status_or_default().state(), State::Active);
    activate_another(&world, &cluster, "after", "east").await;
    assert_eq!(writes(&world, "prod"), 3 + 2 + 1, "one write: {:#?}", world.writes_to("prod"));
    let row = world.until_row("prod", "ACTIVE").await;
    assert!(row.definition.as_ref().is_some_and(|text| text.contains("production")), "{row:#?}");
    assert_eq!(row.observed_generation, generation);
}

#[tokio::test(flavor = "multi_thread")]
async fn changed_retry_annotation_retries_at_once() {
    let world = World::prepare().setting("kubesvc.dynamicAccounts.maxRetries", 0).start().await;
    let cluster = world.cluster("spinnaker").await;
    let _agent = world.agent("agent-1").start().await;
    let wrong = cluster.kubeconfig_with(Proof::Token("CANARY-wrong-token"));
    world.account("prod").zone("east").kubeconfig(&wrong).unwatched().create().await;
    let failed = world.until_reason("prod", State::Failed, "Unauthorized").await;
    assert_eq!(condition(&failed, "Stalled").map(|one| one.status).as_deref(), Some("True"), "{failed:#?}");
    assert_eq!(failed.status_or_default().failed_count, 1);

    world.annotate("prod", RETRY_ANNOTATION, "first").await;
    let again = world
        .until_account("prod", "failed once more", |account| {
            let status = account.status_or_default();
            status.retry_handled.as_deref() == Some("first")
                && status.state() == State::Failed
                && status.epoch > failed.status_or_default().epoch
        })
        .await;
    assert_eq!(again.status_or_default().failed_count, 1, "counted anew: {:#?}", again.status);

    // This Secret is not watched: only the next attempt reads it again.
    world.secret("prod", cluster.kubeconfig().as_bytes(), false).await;
    world.annotate("prod", RETRY_ANNOTATION, "second").await;
    let healed = world.until("prod", State::Active).await;
    assert_eq!(healed.status_or_default().retry_handled.as_deref(), Some("second"));
    assert_eq!(healed.status_or_default().failed_count, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn account_of_an_unreachable_cluster_is_retried_and_stalls() {
    let world = World::start().await;
    let cluster = world.cluster("spinnaker").await;
    let _agent = world.agent("agent-1").start().await;
    let closed = kubesvc_testkit::ports::free();
    let elsewhere = kubesvc_testkit::kubeconfig::yaml(
        &format!("https://127.0.0.1:{closed}"),
        cluster.authority(),
        Proof::Token(cluster.token()),
    );
    world.account("gone").zone("east").kubeconfig(&elsewhere).create().await;
    let stalled = world
        .until_account("gone", "has stalled after four tries", |account| {
            account.status_or_default().failed_count == 4
                && condition(account, "Stalled").is_some_and(|one| one.status == "True")
        })
        .await;
    let ready = condition(&stalled, "Ready").expect("a condition");
    assert_eq!(ready.reason, "ClusterUnreachable", "{stalled:#?}");
    assert!(stalled.status_or_default().next_retry_time.is_some(), "it may pass by itself: {stalled:#?}");
    let row = world.until_row("gone", "FAILED").await;
    assert_eq!(row.failed_count, 4, "{row:#?}");

    world.secret("gone", cluster.kubeconfig().as_bytes(), true).await;
    let healed = world.until("gone", State::Active).await;
    assert_eq!(healed.status_or_default().failed_count, 0);
}
