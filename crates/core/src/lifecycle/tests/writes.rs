//! What each change costs in writes to the API server.

use super::*;
use crate::ids::MAX_EPOCH;
use crate::{GrantEpoch, Installation, KubesvcAccountStatus};

#[test]
fn a_good_account_costs_its_finalizer_activating_and_active() {
    let mut world = World::of(account("a"));
    world.connect("agent-1", "east").say("agent-1", held());
    assert_eq!(world.writes(), ["finalizer", "ACTIVATING", "ACTIVE"]);
}

#[test]
fn an_account_made_by_rest_costs_two() {
    let mut world = World::of(account("a").finalized());
    world.connect("agent-1", "east").say("agent-1", held());
    assert_eq!(world.writes(), ["ACTIVATING", "ACTIVE"]);
}

#[test]
fn an_agent_a_minute_late_costs_one_more() {
    let mut world = World::of(account("a").pinned("east"));
    world.wait(60).connect("agent-1", "east").say("agent-1", held()).wait(60);
    assert_eq!(world.writes(), ["finalizer", "FAILED", "ACTIVATING", "ACTIVE"]);
    assert_eq!(world.status().failed_count, 0);
}

#[test]
fn an_agent_that_restarts_within_the_grace_costs_nothing() {
    let mut world = active_world();
    world.cut("agent-1").wait(29).connect("agent-1", "east").wait(5).say("agent-1", held()).wait(300);
    assert_eq!(world.writes(), Vec::<String>::new());
}

#[test]
fn a_deactivation_costs_two() {
    let mut world = active_world();
    world
        .edit(|account| account.spec.state = Some(DesiredState::Inactive))
        .say("agent-1", AgentReport::Dropped);
    assert_eq!(world.writes(), ["DEACTIVATING", "INACTIVE, None"]);
}

#[test]
fn a_deletion_costs_deleting_none_and_the_finalizer() {
    let mut world = active_world();
    world.edit(|account| *account = account.clone().being_deleted()).say("agent-1", AgentReport::Dropped);
    assert_eq!(world.writes(), ["DELETING", "DELETING, None", "finalizer off"]);
}

#[test]
fn a_move_to_another_zone_costs_four() {
    let mut world = active_world();
    world.connect("agent-2", "west");
    world.edit(|account| account.spec.zone_id = Some("west".into()));
    world.say("agent-1", AgentReport::Dropped).say("agent-2", held());
    assert_eq!(world.writes(), ["ACTIVATING", "TO_MIGRATE, None", "ACTIVATING", "ACTIVE"]);
}

#[test]
fn an_account_that_asks_for_its_zone_costs_one_more() {
    let mut world = World::of(account("a"));
    world.sessions.extend([session("agent-1", "east"), session("agent-2", "west")]);
    world.run_until_idle().answer("agent-2", super::super::Offer::Yes).say("agent-2", held());
    assert_eq!(world.writes(), ["finalizer", "TO_MIGRATE", "ACTIVATING", "ACTIVE"]);
}

#[test]
fn an_account_that_is_to_be_inactive_costs_its_finalizer_and_one_status() {
    let mut world = World::of(account("a").wanted_inactive());
    assert_eq!(world.writes(), ["finalizer", "INACTIVE"]);
}

#[test]
fn an_inactive_account_is_deleted_without_a_status() {
    let mut world = World::of(account("a").wanted_inactive());
    world.writes();
    world.edit(|account| *account = account.clone().being_deleted());
    assert_eq!(world.writes(), ["finalizer off"]);
}

#[test]
fn permissions_cost_one_write_and_ask_no_agent() {
    let mut world = active_world();
    let epoch = world.status().epoch;
    world.edit(|account| {
        account.spec.permissions.insert("READ".to_owned(), vec!["team".to_owned()]);
    });
    assert_eq!(world.writes(), ["ACTIVE"]);
    assert_eq!(world.status().epoch, epoch);
    let grant = world.status().grant.clone().expect("still granted");
    assert_eq!(grant.generation, world.account.generation(), "agents that restart are given it");
}

#[test]
fn nothing_happens_for_an_hour_in_any_state_that_waits_for_someone() {
    let refused = World::of(account("a").failed_with(FailureClass::BadKubeconfig, 1));
    for mut world in [active_world(), refused, World::of(account("a").wanted_inactive())] {
        world.writes();
        world.wait(3600);
        assert_eq!(world.writes(), Vec::<String>::new());
    }
}

/// `kubectl edit --subresource=status` takes any number that the schema takes.
#[test]
fn an_epoch_edited_by_hand_to_an_extreme_ends_nothing() {
    for (epoch, next) in [(MAX_EPOCH, MAX_EPOCH), (i64::MAX, MAX_EPOCH), (i64::MIN, 1), (-1, 1), (0, 1)] {
        let edited = account("a").active_in("east").edited().map(|account| {
            account.status.get_or_insert_default().epoch = GrantEpoch(epoch);
            account.spec.kinds = vec!["deployment".to_owned()];
        });
        let status = seen(edited).with(session("agent-1", "east").held(1)).written();
        assert_eq!((status.state(), status.epoch.0), (State::Activating, next), "from {epoch}");
    }
}

#[test]
fn the_installation_is_written_with_the_first_status_and_costs_nothing() {
    let mut world = World::of(account("a"));
    world.policy.installation = Some(installation("spin"));
    world.connect("agent-1", "east").say("agent-1", held());
    assert_eq!(world.writes(), ["finalizer", "ACTIVATING", "ACTIVE"]);
    assert_eq!(world.status().operator, Some(installation("spin")));
}

#[test]
fn an_account_of_an_earlier_version_is_not_written_for_its_installation_alone() {
    let mut world = active_world();
    world.policy.installation = Some(installation("spin"));
    assert_eq!(world.writes(), Vec::<String>::new());
    assert_eq!(world.status().operator, None);
}

#[test]
fn taking_an_account_over_costs_one_and_changes_nothing_else() {
    let mut world = active_world();
    world.account.status.as_mut().expect("it is ACTIVE").operator = Some(installation("other"));
    world.policy.installation = Some(installation("spin"));
    let before = world.status().clone();
    assert_eq!(world.writes(), ["ACTIVE"]);
    assert_eq!(world.status(), &KubesvcAccountStatus { operator: Some(installation("spin")), ..before });
}

#[test]
fn a_change_of_an_account_that_is_taken_over_is_handled_after_it() {
    let mut world = active_world();
    world.account.status.as_mut().expect("it is ACTIVE").operator = Some(installation("other"));
    world.policy.installation = Some(installation("spin"));
    world
        .edit(|account| account.spec.state = Some(DesiredState::Inactive))
        .say("agent-1", AgentReport::Dropped);
    assert_eq!(world.writes(), ["ACTIVE", "DEACTIVATING", "INACTIVE, None"]);
}

fn installation(namespace: &str) -> Installation {
    Installation { namespace: namespace.to_owned(), uid: format!("uid-of-{namespace}") }
}
