//! The operator restarts; accounts do not notice.

use kubesvc_core::State;
use serde_json::json;

use super::{activate_another, writes};
use crate::world::World;

#[tokio::test(flavor = "multi_thread")]
async fn operator_restart_writes_nothing_and_loses_nothing() {
    let (world, cluster, agent) = World::with_long_timeouts().await;
    world.account("prod").zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
    world.account("idle").zone("east").kubeconfig(&cluster.kubeconfig()).inactive().create().await;
    world.until("prod", State::Active).await;
    world.until("idle", State::Inactive).await;
    activate_another(&world, &cluster, "before-all", "east").await;
    let before = (writes(&world, "prod"), writes(&world, "idle"));
    for (killed, further) in [(false, "after-an-end"), (true, "after-a-kill")] {
        if killed {
            world.operator().kill();
        } else {
            assert!(world.operator().terminate().await.success(), "SIGTERM ends the operator well");
        }
        world.operator().start().await;
        world.until_connected(&agent, true).await;
        kubesvc_testkit::wait::eventually(
            "the agent that still holds it",
            crate::world::MAX_WAIT,
            async || {
                let agents = world.try_get("/armory/agents").await?;
                let held = agents.json[0]["accounts"].as_array();
                let holds = held.is_some_and(|held| held.contains(&json!("prod")));
                if holds { Ok(()) } else { Err(agents.to_string()) }
            },
        )
        .await;
        activate_another(&world, &cluster, further, "east").await;
        assert_eq!(world.shown("prod").await.as_deref(), Some("ACTIVE"));
        assert_eq!((writes(&world, "prod"), writes(&world, "idle")), before);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_made_while_the_operator_was_down_are_applied_at_start() {
    let world = World::start().await;
    let cluster = world.cluster("spinnaker").await;
    let _agent = world.agent("agent-1").start().await;
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
    let rows: Vec<_> = world.rows().await.into_iter().map(|row| row.name).collect();
    assert_eq!(rows, ["made", "stopped"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn second_operator_on_the_same_sqlite_file_is_refused() {
    let world = World::start().await;
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
