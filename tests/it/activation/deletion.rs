//! The end of an account.

use kubesvc_core::{FORCE_DELETE_ANNOTATION, State};
use serde_json::json;

use super::{Scene, activate_another, held_by, writes};
use crate::world::condition;
use kubesvc_testkit::must;

pub(super) async fn deleted_account_is_removed_from_rows_and_agents(scene: &Scene) {
    let Scene { world, cluster, .. } = scene;
    let agent = world.agent("agent-deleting").zone("deleting").start().await;
    for name in ["held", "idle", "again"] {
        let account = world.account(name).zone("deleting").kubeconfig(&cluster.kubeconfig());
        if name == "idle" {
            account.inactive().create().await
        } else {
            account.create().await
        };
    }
    world.until("held", State::Active).await;
    world.until("again", State::Active).await;
    world.until("idle", State::Inactive).await;
    world.until_row("idle", "INACTIVE").await;

    must(world.kubectl(&["delete", "ksa", "held", "idle", "--wait", "--timeout=30s"]).await.ok());
    world.until_gone("held").await;
    world.until_gone("idle").await;
    assert_eq!(held_by(world, &agent).await, Ok(vec!["again".to_owned()]));
    let held = writes(world, "held");
    assert_eq!(held, 3 + 3, "DELETING, None, finalizer: {:#?}", world.writes_to("held"));

    // A name may be reused with another uid.
    world.account("held").zone("deleting").create().await;
    let anew = world.until("held", State::Active).await;
    assert_eq!(anew.status_or_default().epoch.0, 1, "epochs start again");
    assert_eq!(world.until_row("held", "ACTIVE").await.uid, anew.metadata.uid);

    // Without any agent, the deletion waits no longer than the grace.
    agent.kill();
    world.until("again", State::Orphaned).await;
    for name in ["again", "held"] {
        world.delete(name).await;
        world.until_gone(name).await;
    }
    let left = world.rows().await.into_iter().map(|row| row.name);
    assert_eq!(left.filter(|name| ["held", "idle", "again"].contains(&name.as_str())).count(), 0);
}

pub(super) async fn deletion_fails_until_the_silent_agent_answers_or_force_is_set(scene: &Scene) {
    let Scene { world, cluster, .. } = scene;
    let agent = world.agent("agent-silent").zone("silent").start().await;
    for name in ["patient", "forced"] {
        world.account(name).zone("silent").kubeconfig(&cluster.kubeconfig()).create().await;
        world.until(name, State::Active).await;
    }
    agent.pause();
    world.delete("patient").await;
    world.delete("forced").await;
    for name in ["patient", "forced"] {
        let stuck = world.until(name, State::DeleteFailed).await;
        assert_eq!(condition(&stuck, "Stalled").map(|one| one.status).as_deref(), Some("True"), "{stuck:#?}");
        let message = stuck.status_or_default().error_message.clone().unwrap_or_default();
        assert!(message.contains("agent-silent"), "{message}");
    }
    world.annotate("forced", FORCE_DELETE_ANNOTATION, "yes").await;
    world.until_gone("forced").await;
    assert!(world.object("patient").await.is_some(), "nothing but the one that was forced goes");
    agent.resume();
    world.until_gone("patient").await;
}

pub(super) async fn deactivation_fails_until_the_silent_agent_answers(scene: &Scene) {
    let Scene { world, cluster, .. } = scene;
    let agent = world.agent("agent-mute").zone("mute").start().await;
    world.account("stuck").zone("mute").kubeconfig(&cluster.kubeconfig()).create().await;
    world.until("stuck", State::Active).await;
    agent.pause();
    world.patch("stuck", json!({"spec": {"state": "INACTIVE"}})).await;
    world.until("stuck", State::Deactivating).await;
    let failed = world.until("stuck", State::Failed).await;
    assert_eq!(failed.status_or_default().failed_count, 1, "{failed:#?}");
    agent.resume();
    world.until("stuck", State::Inactive).await;
    activate_another(world, cluster, "after-stuck", "mute").await;
    assert_eq!(world.state("stuck").await, Some(State::Inactive));
}
