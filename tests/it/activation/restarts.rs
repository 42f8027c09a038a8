//! The operator restarts; accounts do not notice.

use kubesvc::account::State;
use serde_json::json;

use super::{let_others_pass, writes};
use crate::world::World;

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_operator_writes_nothing_and_forgets_nothing() {
    let (world, cluster, agent) = World::in_no_hurry().await;
    world.account("prod").zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
    world.account("idle").zone("east").kubeconfig(&cluster.kubeconfig()).inactive().create().await;
    world.until("prod", State::Active).await;
    world.until("idle", State::Inactive).await;
    let before = (writes(&world, "prod"), writes(&world, "idle"));
    for (killed, further) in [(false, "after-an-end"), (true, "after-a-kill")] {
        if killed {
            world.operator().kill();
        } else {
            assert!(world.operator().terminate().await.success(), "SIGTERM ends the operator well");
        }
        world.operator().start().await;
        world.until_connected(&agent, true).await;
        crate::harness::wait::eventually(
            "the agent that still holds it",
            crate::world::PATIENCE,
            async || {
                let agents = world.try_get("/armory/agents").await?;
                let held = agents.json[0]["accounts"].as_array();
                let holds = held.is_some_and(|held| held.contains(&json!("prod")));
                if holds { Ok(()) } else { Err(agents.to_string()) }
            },
        )
        .await;
        let_others_pass(&world, &cluster, further, "east").await;
        assert_eq!(world.shown("prod").await.as_deref(), Some("ACTIVE"));
        assert_eq!((writes(&world, "prod"), writes(&world, "idle")), before);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_changed_while_the_operator_was_away_is_done_when_it_is_back() {
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
async fn a_second_operator_on_the_same_database_is_refused() {
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
