//! The operator restarts; accounts do not notice.

use kubesvc_core::State;
use serde_json::json;

use super::{Scene, activate_another, held_by, writes};
use crate::world::World;

pub(super) async fn operator_restart_writes_nothing_and_loses_nothing(scene: &Scene) {
    let Scene { world, cluster, agent } = scene;
    world.account("kept").zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
    world.account("idle").zone("east").kubeconfig(&cluster.kubeconfig()).inactive().create().await;
    world.until("kept", State::Active).await;
    world.until("idle", State::Inactive).await;
    activate_another(world, cluster, "before-all", "east").await;
    let before = (writes(world, "kept"), writes(world, "idle"));
    for (killed, further) in [(false, "after-an-end"), (true, "after-a-kill")] {
        if killed {
            world.operator().kill();
        } else {
            assert!(world.operator().terminate().await.success(), "SIGTERM ends the operator well");
        }
        world.operator().start().await;
        world.until_connected(agent, true).await;
        kubesvc_testkit::wait::eventually(
            "the agent that still holds it",
            crate::world::MAX_WAIT,
            async || {
                let held = held_by(world, agent).await?;
                if held.contains(&"kept".to_owned()) { Ok(()) } else { Err(format!("{held:?}")) }
            },
        )
        .await;
        activate_another(world, cluster, further, "east").await;
        assert_eq!(world.shown("kept").await.as_deref(), Some("ACTIVE"));
        assert_eq!((writes(world, "kept"), writes(world, "idle")), before);
    }
}

pub(super) async fn changes_made_while_the_operator_was_down_are_applied_at_start(scene: &Scene) {
    let Scene { world, cluster, .. } = scene;
    for name in ["deleted", "stopped"] {
        world.account(name).zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
        world.until(name, State::Active).await;
    }
    world.operator().kill();
    world.delete("deleted").await;
    world.patch("stopped", json!({"spec": {"state": "INACTIVE"}})).await;
    world.account("made").zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
    world.operator().start().await;
    world.until_gone("deleted").await;
    world.until("stopped", State::Inactive).await;
    world.until("made", State::Active).await;
    let mut rows: Vec<_> = world.rows().await.into_iter().map(|row| row.name).collect();
    rows.retain(|name| ["deleted", "made", "stopped"].contains(&name.as_str()));
    assert_eq!(rows, ["made", "stopped"]);
}

pub(super) async fn second_operator_on_the_same_sqlite_file_is_refused(scene: &Scene) {
    let world = &scene.world;
    let other = World::prepare()
        .setting("kubesvc.database.url", format!("sqlite://{}", world.folder().file("kubesvc.db").display()))
        .without_operator()
        .start()
        .await;
    other.operator().launch_with(&[]);
    let refused = other.operator().try_ready().await.expect_err("the database has an operator");
    assert!(refused.contains("exit code 1") && refused.contains("kubesvc.db"), "{refused}");
    assert!(world.operator().is_running());
}
