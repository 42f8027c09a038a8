//! An account that changes its zone.

use super::*;

fn to_west(account: &mut KubesvcAccount) {
    account.spec.zone_id = Some("west".into());
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
    assert_eq!(world.status().granted_zone(), Some(&"east".into()));
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
    assert_eq!((world.state(), world.status().granted_zone()), (State::Activating, Some(&"east".into())));
    world.say("agent-1", AgentReport::Dropped);
    assert_eq!(world.status().granted_zone(), Some(&"west".into()));
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
        assert_eq!((status.granted_zone(), status.failed_count), (Some(&"east".into()), 0));
    }
}

#[test]
fn a_move_that_an_agent_fails_to_make_is_failed_and_tried_again() {
    let mut world = active_world();
    world.connect("agent-2", "west").edit(to_west).say("agent-1", fails(FailureClass::Internal));
    assert_eq!((world.state(), world.status().failed_count), (State::Failed, 1));
    world.wait(6);
    assert_eq!((world.state(), world.status().phase()), (State::Activating, GrantPhase::Revoking));
    world.say("agent-1", AgentReport::Dropped).say("agent-2", held());
    assert_eq!((world.state(), world.status().granted_zone()), (State::Active, Some(&"west".into())));
}

#[test]
fn a_move_that_is_not_wanted_any_more_is_a_deactivation() {
    let mut world = active_world();
    world.connect("agent-2", "west").edit(to_west);
    let epoch = world.status().epoch;
    world.edit(|account| account.spec.state = Some(DesiredState::Inactive));
    assert_eq!((world.state(), world.status().epoch), (State::Deactivating, epoch));
    world.say("agent-1", AgentReport::Dropped);
    assert_eq!(world.state(), State::Inactive);
}

#[test]
fn the_zone_it_was_in_is_taken_again_without_a_pin() {
    let before = account("a").in_state(State::Inactive).map(|account| {
        account.status.get_or_insert_default().zone_id = Some("west".into());
    });
    let both = seen(before.edited()).with(session("a1", "east")).with(session("b1", "west"));
    assert_eq!(both.written().granted_zone(), Some(&"west".into()));
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

#[test]
fn replacement_agent_that_holds_the_account_before_the_old_one_leaves_keeps_it_active() {
    let mut world = active_world();
    world.connect("agent-2", "east").say("agent-2", held());
    assert_eq!(world.writes(), Vec::<String>::new());
    world.cut("agent-1").wait(10);
    assert_eq!(world.writes(), Vec::<String>::new(), "another agent holds it");
    world.wait(3600);
    assert_eq!(world.writes(), ["ACTIVE"], "once, for the agent that caches it");
}

#[test]
fn only_agent_that_returns_within_the_grace_causes_no_write() {
    let mut world = active_world();
    world.cut("agent-1").wait(29).connect("agent-1", "east");
    assert_eq!(world.writes(), Vec::<String>::new());
    world.wait(29).say("agent-1", held()).wait(3600);
    assert_eq!(world.writes(), Vec::<String>::new());
}

/// An account that asks for the cluster its agents are in, as it was just made.
fn own_cluster() -> KubesvcAccount {
    account("a").pinned("east").with_the_agents_own()
}

fn two_clusters(
    seen: super::super::fixtures::ObservationFixture,
) -> super::super::fixtures::ObservationFixture {
    seen.with(session("agent-1", "east").in_cluster("prod"))
        .with(session("agent-2", "east").in_cluster("other"))
}

#[test]
fn an_account_that_asks_for_its_agents_own_cluster_is_bound_to_none_where_they_are_in_different_ones() {
    let mut world = World::of(own_cluster());
    world.secret = Ok(CredentialFact::new(None));
    world.sessions.push(session("agent-1", "east").in_cluster("prod"));
    world.sessions.push(session("agent-2", "east").in_cluster("other"));
    assert_eq!(world.writes(), ["finalizer", "FAILED"]);
    let status = world.status().clone();
    assert_eq!(
        (reason(&status), status.phase(), status.cluster_uid.as_deref()),
        ("ZoneSpansClusters", GrantPhase::None, None)
    );
    assert_eq!((status.failed_count, condition(world.status(), "Stalled")), (1, "True"));
    let message = world.status().error_message.clone().unwrap_or_default();
    for named in ["uid-of-p (agent agent-1)", "uid-of-o (agent agent-2)", "zone east"] {
        assert!(message.contains(named), "{message}");
    }
    world.wait(4000).recheck();
    assert_eq!(world.writes(), Vec::<String>::new());
    world.cut("agent-2").wait(31);
    assert_eq!(world.writes(), ["ACTIVATING"], "it is tried when one cluster is left");
}

#[test]
fn an_agent_that_may_come_back_and_one_that_does_not_know_its_cluster_count_as_they_should() {
    let away = session("agent-2", "east").in_cluster("other").away_since(995);
    let with = |other| {
        let first = session("agent-1", "east").in_cluster("prod");
        seen(own_cluster().finalized()).with(first).with(other).written()
    };
    assert_eq!(reason(&with(away)), "ZoneSpansClusters");
    assert_eq!(with(session("agent-2", "east")).state(), State::Activating);
    assert_eq!(with(session("agent-2", "west").in_cluster("other")).state(), State::Activating);
    let secret = seen(account("a").pinned("east").finalized());
    assert_eq!(two_clusters(secret).written().state(), State::Activating, "its kubeconfig says which");
}

#[test]
fn while_an_agent_of_another_cluster_may_come_back_the_account_is_looked_at_again_when_it_may_not() {
    let spans = two_clusters(seen(own_cluster().finalized())).written();
    let failed = own_cluster().finalized().map(|account| account.status = Some(spans));
    let first = session("agent-1", "east").in_cluster("prod");
    let connected =
        seen(failed.clone()).with(first.clone()).with(session("agent-2", "east").in_cluster("other"));
    assert_eq!(connected.decide(), Decision::nothing());
    let other = session("agent-2", "east").in_cluster("other").away_since(995);
    assert_eq!(seen(failed).with(first).with(other).decide(), Decision::wait_until(1025));
}

#[test]
fn a_zone_that_comes_to_span_clusters_before_the_account_is_bound_takes_it_back() {
    for before in [
        own_cluster().activating_in("east"),
        own_cluster().activating_in("east").failed_with(FailureClass::Forbidden, 1),
    ] {
        let seen = seen(before)
            .with(session("agent-1", "east").in_cluster("prod").held(1))
            .with(session("agent-2", "east").in_cluster("other"));
        let status = seen.written();
        assert_eq!((reason(&status), status.phase()), ("ZoneSpansClusters", GrantPhase::Revoking));
        let after = own_cluster().map(|account| {
            account.metadata.finalizers = Some(vec![crate::FINALIZER.to_owned()]);
            account.status = Some(status);
        });
        let epoch = after.status_or_default().epoch;
        let dropped = two_clusters(super::super::fixtures::seen(after))
            .map_sessions(|session| session.dropped(epoch.0))
            .written();
        assert_eq!((dropped.state(), dropped.phase()), (State::Failed, GrantPhase::None));
    }
}

#[test]
fn one_that_is_active_stays_with_its_cluster_and_a_newcomer_of_another_is_not_waited_for() {
    let both = two_clusters(seen(own_cluster().active_in("east")));
    let held =
        both.map_sessions(|session| if session.agent_id == "agent-1" { session.held(1) } else { session });
    assert_eq!(held.decide().action, None);
    let failed =
        two_clusters(seen(own_cluster().activating_in("east").bound_to("prod"))).map_sessions(|session| {
            if session.agent_id == "agent-1" { session.failed(1, FailureClass::Forbidden) } else { session }
        });
    assert_eq!(reason(&failed.written()), "Forbidden", "the other one is not asked");
    let alone = seen(own_cluster().active_in("east"))
        .with(session("agent-1", "east").in_cluster("prod").away_since(900))
        .with(session("agent-2", "east").in_cluster("other").held_in(1, "other"));
    assert_eq!(alone.written().state(), State::Orphaned, "what it says counts for nothing");
}
