//! The API server goes away, or stands still, while accounts change.

use std::time::Duration;

use kubesvc::account::State;
use serde_json::json;

use super::hold;
use super::settled::settled;
use crate::harness::must;
use crate::world::{Agent, World};

/// How many accounts change while it is away.
const ACCOUNTS: usize = 20;

/// A world of its own with ACTIVE accounts.
async fn start() -> (World, Agent, Vec<String>) {
    let world = World::prepare().own_control_plane().start().await;
    let cluster = world.cluster("spinnaker").await;
    let agent = world.agent("agent-1").start().await;
    let names: Vec<_> = (0..ACCOUNTS).map(|number| format!("flip-{number:02}")).collect();
    for name in &names {
        world.account(name).zone("east").kubeconfig(&cluster.kubeconfig()).create().await;
    }
    for name in &names {
        world.until(name, State::Active).await;
    }
    (world, agent, names)
}

/// Of each five accounts: two are deactivated, one is changed, one is deleted, one is left alone.
async fn flip(world: &World, names: &[String]) {
    for (number, name) in names.iter().enumerate() {
        match number % 5 {
            0 | 1 => drop(world.patch(name, json!({"spec": {"state": "INACTIVE"}})).await),
            2 => drop(world.patch(name, json!({"spec": {"kinds": ["deployment"]}})).await),
            3 => world.delete(name).await,
            _ => {}
        }
    }
}

async fn flipped(world: &World, agent: &Agent, names: &[String]) {
    let wanted: Vec<_> = names
        .iter()
        .enumerate()
        .filter(|(number, _)| number % 5 != 3)
        .map(|(number, name)| (name.as_str(), if number % 5 < 2 { State::Inactive } else { State::Active }))
        .collect();
    settled(world, &[agent], &wanted).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_server_that_restarts_while_accounts_change_delays_them_only() {
    let (world, agent, names) = start().await;
    let before = world.object(&names[4]).await.expect("it is there").status_or_default().epoch;
    flip(&world, &names).await;
    world.control_plane().stop_apiserver();
    hold(Duration::from_secs(3)).await;
    assert!(world.operator().is_running(), "it waits for the API server");
    must(world.control_plane().start_apiserver().await);
    flipped(&world, &agent, &names).await;
    let after = world.object(&names[4]).await.expect("it is there").status_or_default().epoch;
    assert_eq!(after, before, "what nobody changed is not activated anew");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_server_that_stands_still_while_accounts_change_delays_them_only() {
    let (world, agent, names) = start().await;
    flip(&world, &names).await;
    world.control_plane().pause();
    hold(Duration::from_secs(5)).await;
    world.control_plane().resume();
    flipped(&world, &agent, &names).await;
    assert!(world.operator().is_running());
}
