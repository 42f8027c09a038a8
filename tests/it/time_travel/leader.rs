//! A replica starts to lead while its API server serves an old state.

use kubesvc_core::{KubesvcAccount, State};
use serde_json::json;

use super::{A_WHILE, Travel, agent, holds, join, of};
use crate::stories::on_one_server;
use crate::world::{Database, MAX_WAIT};
use kubesvc_testkit::wait::eventually;

on_one_server! {
    leader_with_stale_watches_decides_nothing_from_them,
    leader_without_agent_events_orphans_only_accounts_without_agents,
}

/// While the follower sees no changes, accounts are deactivated, changed, deleted, recreated and created, one
/// each; then it starts to lead.
async fn leader_with_stale_watches_decides_nothing_from_them(database: Database) {
    let travel = Travel::start(database, 12).await;
    let (world, follower) = (&travel.world, &travel.follower);
    let east = agent(world.operator(), "agent-1", "east").await;
    let north = agent(world.operator(), "agent-2", "north").await;
    let names = ["stopped", "changed", "deleted", "anew"];
    travel.create(&names).await;
    travel.create_in("north", &["kept"]).await;
    travel.active_in("kept", "north").await;
    for name in names {
        travel.active_in(name, "east").await;
        travel.listed(follower, name, "ACTIVE").await;
    }

    travel.second.hold_watches_of_accounts();
    world.patch("stopped", json!({"spec": {"state": "INACTIVE"}})).await;
    world.patch("changed", json!({"spec": {"kinds": ["deployment"]}})).await;
    let old = world.object("anew").await.expect("it is there");
    for name in ["deleted", "anew"] {
        world.delete(name).await;
        world.until_gone(name).await;
    }
    travel.create(&["anew", "made"]).await;
    world.until_row("stopped", "INACTIVE").await;
    let handled = |one: &KubesvcAccount| {
        let status = one.status_or_default();
        status.state() == State::Active && status.observed_generation == one.generation()
    };
    let mut active = Vec::new();
    for name in ["changed", "anew", "made"] {
        active.push(world.until_account(name, "is ACTIVE and handled", handled).await);
        world.until_row(name, "ACTIVE").await;
    }
    let active: Vec<_> = active.iter().collect();
    holds(&east, &active).await;
    travel.listed(follower, "stopped", "ACTIVE").await;
    let writes = world.operator_writes("kubesvcaccounts").len();

    world.operator().kill();
    let [east, north] = [east, north].map(|agent| agent.again());
    let (east, north) = (join(follower, east).await, join(follower, north).await);
    eventually("the follower leads", MAX_WAIT, async || match follower.metric("kubesvc_leader").await? {
        1 => Ok(()),
        other => Err(format!("{other}")),
    })
    .await;
    travel.listed(follower, "stopped", "INACTIVE").await;
    eventually("every account was looked at", MAX_WAIT, async || {
        match follower.metric("kubesvc_controller_looks_total").await? {
            5.. => Ok(()),
            few => Err(format!("{few} looks")),
        }
    })
    .await;
    let since = || world.operator_writes("kubesvcaccounts").into_iter().skip(writes).collect::<Vec<_>>();
    assert!(since().is_empty(), "all is as it should be: {:#?}", since());
    assert_eq!(follower.metric("kubesvc_controller_conflicts_total").await, Ok(0));

    // It does not see the next change. Its decisions about the account conflict with that change and are not
    // applied.
    world.patch("kept", json!({"spec": {"state": "INACTIVE"}})).await;
    north.goodbye().await;
    eventually("a write that is in conflict", MAX_WAIT, async || {
        let since = since();
        if since.iter().any(|write| write.name == "kept" && write.code == 409) {
            Ok(())
        } else {
            Err(format!("{since:#?}"))
        }
    })
    .await;
    tokio::time::sleep(A_WHILE).await;
    let tried = since();
    assert!(tried.iter().all(|write| write.name == "kept" && write.code == 409), "{tried:#?}");
    assert!(tried.len() <= 5, "it tries again at its leisure: {tried:#?}");

    travel.second.let_watches_go();
    world.until("kept", State::Inactive).await;
    world.until_row("kept", "INACTIVE").await;
    holds(&east, &active).await;
    assert!(of(&old, &east.added()).is_empty(), "{:?}", east.added());
    for (name, state) in [
        ("stopped", State::Inactive),
        ("changed", State::Active),
        ("anew", State::Active),
        ("made", State::Active),
    ] {
        assert_eq!(world.state(name).await, Some(state), "{name}");
        world.until_row(name, &state.to_string()).await;
    }
    assert!(world.row("deleted").await.is_none());
}

/// Agents of two zones leave. While the leader sees no changes of agents, the agent of one zone comes back to
/// another replica, and that of the other zone does not: when the latter zone is reported as deserted, the
/// former could have been too.
async fn leader_without_agent_events_orphans_only_accounts_without_agents(database: Database) {
    let travel = Travel::start(database, 12).await;
    let (world, leader) = (&travel.world, &travel.follower);
    travel.create_in("west", &["marker"]).await;
    world.operator().kill();
    assert_eq!(world.until_one_leads(&[leader]).await, 0);
    world.operator().start().await;
    let east = agent(world.operator(), "agent-1", "east").await;
    let south = agent(world.operator(), "agent-2", "south").await;
    travel.create_in("east", &["returns"]).await;
    travel.create_in("south", &["deserted"]).await;
    let kept = travel.active_in("returns", "east").await;
    travel.active_in("deserted", "south").await;
    world.until_row("returns", "ACTIVE").await;
    world.until_reason("marker", State::Failed, "NoAgent").await;

    let introduction = east.again();
    east.goodbye().await;
    south.goodbye().await;
    // The leader sees this agent, and therefore everything before it.
    let _west = agent(world.operator(), "agent-3", "west").await;
    travel.active_in("marker", "west").await;
    travel.second.hold_watches_of_agents();
    let east = join(world.operator(), introduction).await;
    world.until("deserted", State::Orphaned).await;
    let after = world.object("returns").await.expect("it is there");
    assert_eq!(after.status_or_default().state(), State::Active);
    assert_eq!(after.status_or_default().epoch, kept.status_or_default().epoch);

    travel.second.let_watches_go();
    holds(&east, &[&kept]).await;
    assert_eq!(world.state("returns").await, Some(State::Active));
}
