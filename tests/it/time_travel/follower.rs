//! A follower with agents of its own is served an old state.

use kubesvc_core::wire::ops::hub_frame::Frame;
use kubesvc_core::{GrantPhase, State};
use serde_json::json;

use super::{A_WHILE, Travel, agent, holds, join, of};
use crate::stories::on_one_server;
use crate::world::Database;
use kubesvc_testkit::simulated_agent::frames::Introduction;

on_one_server! {
    account_leaves_its_zone_before_entering_the_next_when_a_follower_is_stale,
    reused_name_does_not_match_an_old_grant_at_a_stale_follower,
}

/// An account moves to another zone, and the follower with its agents does not see that.
async fn account_leaves_its_zone_before_entering_the_next_when_a_follower_is_stale(database: Database) {
    let travel = Travel::start(database, 5).await;
    let (world, follower) = (&travel.world, &travel.follower);
    let east = agent(follower, "agent-1", "east").await;
    let west = agent(world.operator(), "agent-2", "west").await;
    travel.create(&["moves", "stays"]).await;
    let moves = travel.active_in("moves", "east").await;
    let stays = travel.active_in("stays", "east").await;
    travel.listed(follower, "moves", "ACTIVE").await;
    let epoch = moves.status_or_default().epoch;

    travel.second.hold_watches();
    world.patch("moves", json!({"spec": {"zoneId": "west"}})).await;
    let revoking =
        |account: &kubesvc_core::KubesvcAccount| account.status_or_default().phase() == GrantPhase::Revoking;
    world.until_account("moves", "is being revoked", revoking).await;
    // The agent's object is written. The follower is served the old account, but must not send it to the
    // agent.
    let late = agent(follower, "agent-3", "east").await;
    holds(&late, &[&stays]).await;
    tokio::time::sleep(A_WHILE).await;
    travel.listed(follower, "moves", "ACTIVE").await;
    let now = world.object("moves").await.expect("it is there");
    assert!(revoking(&now), "an agent of the old zone still holds it: {:?}", now.status);
    assert!(west.added().is_empty(), "nobody else is given it: {:?}", west.added());

    travel.second.let_watches_go();
    let moved = travel.active_in("moves", "west").await;
    holds(&east, &[&stays]).await;
    holds(&west, &[&moved]).await;
    assert!(of(&moves, &late.added()).is_empty(), "the old grant was sent as new: {:?}", late.added());
    assert_eq!(of(&moves, &east.added()).len(), 1, "{:?}", east.added());
    assert_eq!(of(&moves, &west.added()).len(), 1, "{:?}", west.added());
    assert!(moved.status_or_default().epoch > epoch);
    let dropped = east.received().into_iter().find(|one| matches!(one.frame, Frame::DeleteAccounts(_)));
    let added = west.received().into_iter().find(|one| matches!(one.frame, Frame::AddAccounts(_)));
    let (dropped, added) = (dropped.expect("east lets go"), added.expect("west is given it"));
    assert!(dropped.at < added.at, "west is given it after east has let go of it");
    assert_eq!(world.until_row("moves", "ACTIVE").await.zone_id.as_deref(), Some("west"));
}

/// An account is deleted and created again under its name, and the follower with its agents does not see
/// that.
async fn reused_name_does_not_match_an_old_grant_at_a_stale_follower(database: Database) {
    let travel = Travel::start(database, 3).await;
    let (world, follower) = (&travel.world, &travel.follower);
    let here = agent(world.operator(), "agent-1", "east").await;
    let there = agent(follower, "agent-2", "east").await;
    travel.create(&["prod", "stays"]).await;
    let old = travel.active_in("prod", "east").await;
    let stays = travel.active_in("stays", "east").await;
    holds(&there, &[&old, &stays]).await;
    travel.listed(follower, "prod", "ACTIVE").await;

    travel.second.hold_watches();
    world.delete("prod").await;
    // The follower does not know that its agent has to drop the account; the agent goes away, and counts as
    // gone after the grace.
    let again = there.again();
    there.goodbye().await;
    world.until_gone("prod").await;
    travel.create(&["prod"]).await;
    let new = travel.active_in("prod", "east").await;
    assert_ne!(new.uid(), old.uid());
    holds(&here, &[&new, &stays]).await;

    // Two agents connect to the replica with the old state: one that still has the account, and one that has
    // nothing.
    let there = join(follower, again).await;
    let fresh = join(follower, Introduction::new("agent-3", "east")).await;
    holds(&fresh, &[&stays]).await;
    tokio::time::sleep(A_WHILE).await;
    assert!(of(&old, &fresh.added()).is_empty(), "the old grant was sent as new: {:?}", fresh.added());
    assert!(of(&old, &there.added()).is_empty(), "the old grant was sent as new: {:?}", there.added());
    let now = world.object("prod").await.expect("it is there");
    assert_eq!((now.uid(), now.status_or_default().state()), (new.uid(), State::Active));
    assert_eq!(
        now.status_or_default().epoch,
        new.status_or_default().epoch,
        "what is said of the old counts for nothing"
    );
    assert_eq!(world.row("prod").await.and_then(|row| row.uid).as_deref(), Some(new.uid()));

    travel.second.let_watches_go();
    for agent in [&here, &there, &fresh] {
        holds(agent, &[&new, &stays]).await;
    }
    assert_eq!(
        of(&old, &there.deleted()).len(),
        1,
        "it is told to let go of the old one: {:?}",
        there.deleted()
    );
    assert!(of(&old, &fresh.added()).is_empty() && of(&old, &there.added()).is_empty());
    let settled = world.object("prod").await.expect("it is there");
    assert_eq!(settled.status_or_default().epoch, new.status_or_default().epoch, "nothing was given anew");
}
