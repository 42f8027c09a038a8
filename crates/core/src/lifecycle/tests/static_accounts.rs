//! Accounts of an agent's own file: the only ones that the operator deletes by itself.

use super::*;

fn gone(seen: &super::super::fixtures::ObservationFixture) -> bool {
    seen.decide().action == Some(Action::DeleteObject)
}

#[test]
fn one_that_no_connected_agent_lists_is_deleted_at_once_in_every_state() {
    for state in [State::Active, State::Activating, State::Orphaned, State::Failed] {
        let before = account("a").static_in("east").in_state(state).granted(GrantPhase::Open, "east", 1);
        assert!(gone(&seen(before).with(session("agent-1", "east").lists(false))), "{state}");
    }
    let new = account("a").static_in("east");
    assert!(gone(&seen(new).without_row().with(session("agent-1", "east").lists(false))));
}

#[test]
fn one_that_any_agent_of_its_zone_lists_or_may_list_stays() {
    let not = || session("agent-1", "east").lists(false);
    for other in [session("agent-2", "east").lists(true), session("agent-2", "east")] {
        let two = seen(account("a").static_in("east").active_in("east")).with(not()).with(other);
        assert!(!gone(&two));
    }
}

#[test]
fn one_whose_only_agent_that_lists_it_is_away_stays_for_the_cleanup_though_others_are_connected() {
    let away = seen(account("a").static_in("east").active_in("east"))
        .with(session("agent-1", "east").lists(true).away_since(1000))
        .with(session("agent-2", "east").lists(false));
    assert!(!gone(&away), "its agent may be starting anew");
    let almost = away.after(599);
    assert!(!gone(&almost));
    assert!(gone(&almost.after(1)));

    let mut world = World::of(account("a").static_in("east"));
    world.connect("agent-1", "east").list("agent-1", true).say("agent-1", held());
    world.connect("agent-2", "east").list("agent-2", false);
    world.cut("agent-1").wait(40);
    assert_eq!(world.state(), State::Orphaned, "the other agent does not hold it, and is not asked to");
    world.connect("agent-1", "east").list("agent-1", true).say("agent-1", held());
    assert_eq!(world.state(), State::Active);
    world.writes();
    world.list("agent-1", false);
    assert_eq!(world.writes(), ["deleted", "DELETING"], "its agent is there and lists it no more");
}

#[test]
fn what_an_agent_that_was_never_approved_listed_keeps_no_account() {
    let stranger = session("agent-1", "east").lists(true).away_since(1000).not_approved();
    let one = seen(account("a").static_in("east").active_in("east")).with(stranger);
    assert!(gone(&one.with(session("agent-2", "east").lists(false))));
}

#[test]
fn one_waits_for_the_answers_of_those_alone_that_list_it() {
    let activating = || seen(account("a").static_in("east").activating_in("east"));
    let failed = session("agent-1", "east").lists(true).failed(1, FailureClass::Forbidden);
    let other = || session("agent-2", "east").silent_for(0);
    let both = activating().with(failed.clone()).with(other().lists(false));
    assert_eq!(both.written().state(), State::Failed, "the other one is not asked");
    let unheard = activating().with(failed).with(newcomer(other()));
    assert_eq!(unheard.decide(), Decision::wait_until(1029), "it may list it");
    assert_eq!(unheard.after(29).written().state(), State::Failed);
    let held = activating().with(session("agent-1", "east").lists(true)).with(other().lists(false).held(1));
    assert_eq!(held.decide().action, None, "what one says that does not list it counts for nothing");
}

/// It has connected a second ago, and not listed its accounts yet.
fn newcomer(mut session: SessionFact) -> SessionFact {
    session.process.since = 999;
    session.silent_for = None;
    session
}

#[test]
fn one_that_several_clusters_list_under_one_name_stays_with_the_first() {
    let one = || account("a").static_in("east").with_the_agents_own();
    let both = [
        session("agent-1", "east").lists(true).in_cluster("prod"),
        session("agent-2", "east").lists(true).in_cluster("other"),
    ];
    let new =
        both.iter().cloned().fold(seen(one().finalized()), super::super::fixtures::ObservationFixture::with);
    assert_eq!(new.written().state(), State::Activating);
    let bound = || seen(one().active_in("east"));
    let first_away = bound().with(both[0].clone().away_since(900)).with(both[1].clone().held_in(1, "other"));
    assert_eq!(first_away.written().state(), State::Orphaned, "the other cluster's agent is none for it");
}

#[test]
fn agents_of_other_zones_and_agents_that_are_not_approved_have_no_say() {
    let world = || seen(account("a").static_in("east").active_in("east"));
    let west = session("agent-2", "west").lists(true);
    assert!(gone(&world().with(session("agent-1", "east").lists(false)).with(west.clone())));
    assert!(!gone(&world().with(session("agent-1", "east").lists(false).not_approved()).with(west)));
}

#[test]
fn a_leader_that_has_just_begun_waits_for_all_agents_before_it_deletes() {
    let new = seen(account("a").static_in("east").active_in("east"))
        .with(session("agent-1", "east").lists(false).held(1))
        .by_a_new_leader();
    assert_eq!(new.decide(), Decision::wait_until(1030));
    assert!(gone(&new.after(30)));
}

#[test]
fn one_whose_zone_was_without_agents_for_the_cleanup_is_deleted() {
    let away = seen(account("a").static_in("east").orphaned_in("east"))
        .with(session("agent-1", "east").away_since(900))
        .with(session("agent-2", "east").away_since(1000));
    let unknown = seen(account("a").static_in("east").orphaned_in("east"));
    for gone_since_1000 in [away, unknown] {
        let almost = gone_since_1000.after(599);
        assert_eq!(almost.decide(), Decision::wait_until(1600));
        assert!(gone(&almost.after(1)));
    }
}

#[test]
fn one_is_not_deleted_by_a_watch_that_may_be_old() {
    let away = seen(account("a").static_in("east").orphaned_in("east"))
        .with(session("agent-1", "east").away_since(1000))
        .after(600);
    assert!(gone(&away));
    assert_eq!(away.seen_by_a_watch_alone().decide(), Action::ReadSessions.into());
}

#[test]
fn no_other_account_is_ever_deleted_by_a_timer() {
    for before in [account("a").orphaned_in("east"), account("a").pinned("east").active_in("east")] {
        let long = seen(before.clone()).with(session("agent-1", "east").away_since(0)).after(100_000);
        assert!(!gone(&long));
        assert!(!gone(&seen(before).with(session("agent-1", "east").lists(false))));
    }
}

#[test]
fn one_that_is_being_deleted_is_not_deleted_again() {
    let mut world = World::of(account("a").static_in("east"));
    world.connect("agent-1", "east").list("agent-1", true).say("agent-1", held());
    world.writes();
    world.list("agent-1", false).wait(5);
    assert_eq!(world.writes(), ["deleted", "DELETING"]);
    world.say("agent-1", AgentReport::Dropped);
    assert_eq!(world.writes(), ["DELETING, None", "finalizer off"]);
    assert!(world.gone);
}

#[test]
fn cached_objects_stay_where_the_agents_of_the_file_are_away_unless_the_setting_says_otherwise() {
    let keeps = |seen: &super::super::fixtures::ObservationFixture| match seen.decide().action {
        Some(Action::DeleteRows { keeps_objects }) => Some(keeps_objects),
        _ => None,
    };
    let doomed = || seen(account("a").static_in("east").in_state(State::Deleting).being_deleted());
    let away = || session("agent-1", "east").lists(true).away_since(10);
    assert_eq!(keeps(&doomed()), Some(true), "its zone has no agents");
    assert_eq!(keeps(&doomed().with(away())), Some(true));
    let other = || session("agent-2", "east").lists(false);
    assert_eq!(
        keeps(&doomed().with(away()).with(other())),
        Some(true),
        "the one that has it in its file is away"
    );
    assert_eq!(keeps(&doomed().with(other())), Some(false), "it was taken out of the file");
    let declared = seen(account("a").in_state(State::Deleting).being_deleted());
    assert_eq!(keeps(&declared), Some(false));
    assert_eq!(keeps(&doomed().with(away()).cleaning_unused_accounts()), Some(false));
}
