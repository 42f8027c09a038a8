//! The operator is suspended, or down while things change.

use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use kube::api::{Patch, PatchParams};
use kubesvc_core::State;
use serde_json::json;

use super::hold;
use super::settled::settled;
use crate::world::{MAX_WAIT, World};
use kubesvc_testkit::{must, wait::eventually};

#[tokio::test(flavor = "multi_thread")]
async fn operator_paused_longer_than_grace_orphans_nothing() {
    let world = World::start().await;
    let cluster = world.cluster("spinnaker").await;
    let east = world.agent("agent-1").zone("east").start().await;
    let west = world.agent("agent-2").zone("west").start().await;
    for (name, zone) in [("kept", "east"), ("left", "west")] {
        world.account(name).zone(zone).kubeconfig(&cluster.kubeconfig()).create().await;
        world.until(name, State::Active).await;
    }
    let writes = world.writes_to("kept").len();
    world.operator().pause();
    // The fault: three times the grace.
    hold(Duration::from_secs(6)).await;
    world.operator().resume();

    // An agent that really goes away is noticed after the grace; by then, everything from the time of the
    // suspension has been processed.
    west.kill();
    world.until("left", State::Orphaned).await;
    assert_eq!(world.state("kept").await, Some(State::Active));
    assert_eq!(world.writes_to("kept").len(), writes, "{:#?}", world.writes_to("kept"));
    world.delete("left").await;
    settled(&world, &[&east], &[("kept", State::Active)]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn credential_changed_while_the_operator_was_down_is_used_at_start() {
    let (world, cluster, agent) = World::with_agent().await;
    let names = ["watched", "unwatched", "relabelled", "same"];
    for name in names {
        let account = world.account(name).zone("east").kubeconfig(&cluster.kubeconfig());
        if name == "unwatched" {
            account.unwatched().create().await
        } else {
            account.create().await
        };
    }
    for name in names {
        world.until(name, State::Active).await;
    }
    world.operator().kill();
    let changed = format!("{}# changed\n", cluster.kubeconfig());
    world.secret("watched", changed.as_bytes(), true).await;
    world.secret("unwatched", changed.as_bytes(), false).await;
    let label = Patch::Merge(json!({"metadata": {"labels": {"team": "blue"}}}));
    let labelled = world.api::<Secret>().patch("relabelled", &PatchParams::default(), &label).await;
    must(labelled.map(drop).map_err(|error| error.to_string()));

    world.operator().start().await;
    for name in ["watched", "unwatched"] {
        let secret = must(world.api::<Secret>().get(name).await.map_err(|error| error.to_string()));
        let version = secret.metadata.resource_version.unwrap_or_default();
        world
            .until_account(name, "is ACTIVE with the changed Secret", |account| {
                let status = account.status_or_default();
                let used = status.credential_version.as_deref().unwrap_or_default();
                status.state() == State::Active && used.ends_with(&format!("/{version}"))
            })
            .await;
    }
    settled(&world, &[&agent], &names.map(|name| (name, State::Active))).await;
    assert_eq!(world.object("same").await.expect("it is there").status_or_default().epoch.0, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn operator_restart_does_not_reactivate_accounts_created_by_rest() {
    let (world, cluster, agent) = World::with_agent().await;
    let names: Vec<_> = (0..6).map(|number| format!("rest-{number}")).collect();
    let made: Vec<_> = names
        .iter()
        .map(|name| {
            json!({"name": name, "kubeconfigContents": cluster.kubeconfig(), "zoneId": "east", "state": "ACTIVE"})
        })
        .collect();
    let answer = world.rest("POST", "/armory/accounts/dynamic", &json!(made)).await;
    assert_eq!(answer.status, 202, "{answer}");
    let wanted: Vec<_> = names.iter().map(|name| (name.as_str(), State::Active)).collect();
    settled(&world, &[&agent], &wanted).await;
    let writes = world.operator_writes("kubesvcaccounts").len();
    world.operator().kill_and_start().await;
    settled(&world, &[&agent], &wanted).await;
    // Work that starts with the restart has started: another account goes through its whole activation after
    // it.
    world.account("next").zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
    world.until("next", State::Active).await;
    let after = world.operator_writes("kubesvcaccounts");
    let anew: Vec<_> = after.iter().skip(writes).filter(|write| write.name != "next").collect();
    assert!(anew.is_empty(), "{anew:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn repeatedly_killed_operator_converges() {
    let (world, cluster, agent) = World::with_agent().await;
    let names: Vec<_> = (0..12).map(|number| format!("flip-{number:02}")).collect();
    for name in &names {
        world.account(name).zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
    }
    for round in 1..=3_u64 {
        // Each kill occurs at another moment of the work.
        hold(Duration::from_millis(60 * round)).await;
        world.operator().kill_and_start().await;
        for name in names.iter().skip(4) {
            let state = if round % 2 == 1 { "INACTIVE" } else { "ACTIVE" };
            world.patch(name, json!({"spec": {"state": state}})).await;
        }
    }
    for name in names.iter().take(2) {
        world.delete(name).await;
    }
    world.operator().kill_and_start().await;
    eventually("the end of both", MAX_WAIT, async || {
        let left = [world.try_object(&names[0]).await?, world.try_object(&names[1]).await?];
        if left.iter().all(Option::is_none) { Ok(()) } else { Err(format!("{left:?}")) }
    })
    .await;
    let wanted: Vec<_> = names
        .iter()
        .enumerate()
        .skip(2)
        .map(|(number, name)| (name.as_str(), if number < 4 { State::Active } else { State::Inactive }))
        .collect();
    settled(&world, &[&agent], &wanted).await;
}
