//! An account that changes its zone.

use super::*;

fn to_west(account: &mut KubesvcAccount) {
    account.spec.zone_id = Some("west".to_owned());
}

#[test]
fn it_stays_and_says_so_until_an_agent_of_the_new_zone_connects() {
    let mut world = active_world();
    world.edit(to_west).wait(600);
    assert_eq!(world.writes(), ["ACTIVE"]);
    assert_eq!((reason(world.status()), condition(world.status(), "Reconciling")), ("ZoneAwaited", "True"));
    world.connect("agent-2", "west");
    assert_eq!(world.writes(), ["ACTIVATING"]);
    assert_eq!(world.status().phase(), GrantPhase::Revoking);
}

#[test]
fn agents_of_the_old_zone_that_restart_are_still_given_it_meanwhile() {
    let mut world = active_world();
    world.edit(to_west);
    let grant = world.status().grant.clone().expect("granted");
    assert_eq!(grant.generation, world.account.generation());
}

#[test]
fn a_new_definition_is_taken_in_the_old_zone_meanwhile() {
    let mut world = active_world();
    world.edit(|account| {
        to_west(account);
        account.spec.namespaces = vec!["web".to_owned()];
    });
    world.say("agent-1", held());
    assert_eq!(world.writes(), ["ACTIVATING", "ACTIVE"]);
    assert_eq!(world.status().granted_zone(), Some("east"));
    assert_eq!(reason(world.status()), "ZoneAwaited");
}

#[test]
fn the_pin_taken_back_is_seen() {
    let mut world = active_world();
    world.edit(to_west).edit(|account| account.spec.zone_id = None);
    assert_eq!((reason(world.status()), condition(world.status(), "Ready")), ("Active", "True"));
}

#[test]
fn the_grant_opens_in_the_new_zone_only_after_the_old_one_dropped_it() {
    let mut world = active_world();
    world.connect("agent-2", "west").edit(to_west);
    world.say("agent-2", held()).wait(10);
    assert_eq!((world.state(), world.status().granted_zone()), (State::Activating, Some("east")));
    world.say("agent-1", Word::Dropped);
    assert_eq!(world.status().granted_zone(), Some("west"));
    assert_eq!(world.status().phase(), GrantPhase::Open);
}

#[test]
fn a_failed_and_an_orphaned_account_move_too() {
    for before in [
        account("a").active_in("east").failed_with(FailureClass::Forbidden, 4),
        account("a").orphaned_in("east"),
        account("a").activating_in("east"),
    ] {
        let status = seen(before.pinned("west").edited()).with(session("agent-2", "west")).written();
        assert_eq!((status.state(), status.phase()), (State::Activating, GrantPhase::Revoking));
        assert_eq!((status.granted_zone(), status.failed_count), (Some("east"), 0));
    }
}

#[test]
fn a_move_that_an_agent_fails_to_make_is_failed_and_tried_again() {
    let mut world = active_world();
    world.connect("agent-2", "west").edit(to_west).say("agent-1", fails(FailureClass::Internal));
    assert_eq!((world.state(), world.status().failed_count), (State::Failed, 1));
    world.wait(6);
    assert_eq!((world.state(), world.status().phase()), (State::Activating, GrantPhase::Revoking));
    world.say("agent-1", Word::Dropped).say("agent-2", held());
    assert_eq!((world.state(), world.status().granted_zone()), (State::Active, Some("west")));
}

#[test]
fn a_move_that_is_not_wanted_any_more_is_a_deactivation() {
    let mut world = active_world();
    world.connect("agent-2", "west").edit(to_west);
    let epoch = world.status().epoch;
    world.edit(|account| account.spec.state = Some(DesiredState::Inactive));
    assert_eq!((world.state(), world.status().epoch), (State::Deactivating, epoch));
    world.say("agent-1", Word::Dropped);
    assert_eq!(world.state(), State::Inactive);
}

#[test]
fn the_zone_it_was_in_is_taken_again_without_a_pin() {
    let before = account("a").in_state(State::Inactive).map(|account| {
        account.status.get_or_insert_default().zone_id = Some("west".to_owned());
    });
    let both = seen(before.edited()).with(session("a1", "east")).with(session("b1", "west"));
    assert_eq!(both.written().granted_zone(), Some("west"));
}

#[test]
fn a_pin_that_is_removed_moves_nothing() {
    let mut world = World::of(account("a").pinned("east"));
    world.connect("agent-1", "east").say("agent-1", held()).connect("agent-2", "west");
    world.writes();
    world.edit(|account| account.spec.zone_id = None);
    assert_eq!(world.writes(), ["ACTIVE"]);
}

#[test]
fn a_credential_is_read_before_a_zone_is_given_the_grant() {
    let new = seen(account("a").finalized()).credential(Fact::Unknown).with(session("agent-1", "east"));
    assert_eq!(new.decide().action, Some(Action::ResolveCredential));
    assert_eq!(new.credential(good_credential()).written().state(), State::Activating);
}
