//! The way to INACTIVE.

use super::*;
use crate::GrantEpoch;

fn inactive(account: &mut KubesvcAccount) {
    account.spec.state = Some(DesiredState::Inactive);
}

#[test]
fn every_state_with_an_open_grant_is_deactivated() {
    for state in [State::Active, State::Activating, State::Orphaned, State::Failed] {
        let unwanted =
            account("a").in_state(state).granted(GrantPhase::Open, "east", 1).wanted_inactive().edited();
        let status = seen(unwanted).with(session("agent-1", "east").held(1)).written();
        assert_eq!((status.state(), status.phase()), (State::Deactivating, GrantPhase::Revoking), "{state}");
        assert_eq!(status.epoch, GrantEpoch(2), "{state}");
    }
}

#[test]
fn without_a_grant_it_is_inactive_straight() {
    let failed = account("a").failed_with(FailureClass::NoAgent, 0);
    for before in [account("a").in_state(State::ToMigrate), failed] {
        let status = seen(before.wanted_inactive().edited()).written();
        assert_eq!((status.state(), status.phase()), (State::Inactive, GrantPhase::None));
        assert_eq!(condition(&status, "Ready"), "True");
    }
}

#[test]
fn a_silent_agent_holds_up_a_revoke_and_an_absent_one_does_not() {
    let revoking = || account("a").in_state(State::Deactivating).granted(GrantPhase::Revoking, "east", 2);
    let asked = seen(revoking().wanted_inactive()).with(session("agent-1", "east").silent_for(3));
    assert_eq!(asked.decide(), Decision::wait_until(1027));
    let away = seen(revoking().wanted_inactive()).with(session("agent-1", "east").away_since(990));
    assert_eq!(away.decide(), Decision::wait_until(1020));
    assert_eq!(away.after(20).written().state(), State::Inactive);
}

#[test]
fn a_dropped_of_an_earlier_epoch_does_not_end_a_revoke_and_a_zone_without_sessions_does() {
    let revoking = || account("a").in_state(State::Deactivating).granted(GrantPhase::Revoking, "east", 2);
    let old = seen(revoking().wanted_inactive()).with(session("agent-1", "east").dropped(1));
    assert_eq!(old.decide().action, None);
    assert_eq!(seen(revoking().wanted_inactive()).written().phase(), GrantPhase::None);
}

#[test]
fn a_revoke_ends_only_after_the_sessions_were_read_themselves() {
    let revoking = || account("a").in_state(State::Deactivating).granted(GrantPhase::Revoking, "east", 2);
    let quiet = seen(revoking().wanted_inactive()).with(session("agent-1", "east").dropped(2));
    assert_eq!(quiet.written().phase(), GrantPhase::None);
    assert_eq!(quiet.seen_by_a_watch_alone().decide(), Action::ReadSessions.into());
    let asked = seen(revoking().wanted_inactive()).with(session("agent-1", "east").silent_for(3));
    assert_eq!(
        asked.seen_by_a_watch_alone().decide(),
        Decision::wait_until(1027),
        "one is known to be waited for"
    );
    let deleted = seen(revoking().finalized().being_deleted()).seen_by_a_watch_alone();
    assert_eq!(deleted.decide(), Action::ReadSessions.into());
    let forced = seen(revoking().finalized().being_deleted().force_deleted()).seen_by_a_watch_alone();
    assert_eq!(forced.written().phase(), GrantPhase::None);
}

#[test]
fn an_agent_whose_approval_was_withdrawn_is_waited_for_like_any_other() {
    let revoking = || {
        account("a").in_state(State::Deactivating).granted(GrantPhase::Revoking, "east", 2).wanted_inactive()
    };
    let agent = || session("agent-1", "east").not_approved();
    // At another replica nobody hears of what it held.
    for waited_for in [agent(), agent().held(1), agent().away_since(990)] {
        assert_eq!(seen(revoking()).with(waited_for).decide().action, None);
    }
    for done in [agent().dropped(2), agent().away_since(1)] {
        assert_eq!(seen(revoking()).with(done).written().state(), State::Inactive);
    }
}

#[test]
fn an_agent_error_fails_and_is_tried_again_when_due() {
    let mut world = active_world();
    world.edit(inactive).say("agent-1", fails(FailureClass::Internal));
    assert_eq!(world.writes(), ["DEACTIVATING", "FAILED"]);
    assert_eq!((world.status().failed_count, world.status().phase()), (1, GrantPhase::Revoking));
    world.wait(6);
    assert_eq!(world.writes(), ["DEACTIVATING"]);
    world.say("agent-1", AgentReport::Dropped);
    assert_eq!((world.state(), world.status().failed_count), (State::Inactive, 0));
}

#[test]
fn silence_of_a_connected_agent_fails() {
    let mut world = active_world();
    world.edit(inactive).wait(30);
    assert_eq!((world.state(), reason(world.status())), (State::Failed, "Timeout"));
}

#[test]
fn the_last_dropped_ends_a_revoke_that_failed() {
    let mut world = active_world();
    world.edit(inactive).say("agent-1", fails(FailureClass::Internal)).say("agent-1", AgentReport::Dropped);
    assert_eq!(world.writes(), ["DEACTIVATING", "FAILED", "INACTIVE, None"]);
}

#[test]
fn absence_of_the_last_agent_ends_a_failed_revoke_and_a_recheck_is_scheduled() {
    let failed = account("a")
        .in_state(State::Deactivating)
        .granted(GrantPhase::Revoking, "east", 2)
        .wanted_inactive()
        .failed_with(FailureClass::Forbidden, 4);
    let away = seen(failed).with(session("agent-1", "east").away_since(1000));
    assert_eq!(away.decide(), Decision::wait_until(1030));
    assert_eq!(away.after(30).written().state(), State::Inactive);
}

#[test]
fn a_deactivation_counts_from_zero() {
    let mut world = World::of(account("a"));
    world.connect("agent-1", "east");
    world
        .say("agent-1", fails(FailureClass::Forbidden))
        .wait(6)
        .say("agent-1", fails(FailureClass::Forbidden));
    world.edit(inactive).say("agent-1", fails(FailureClass::Forbidden));
    assert_eq!((world.state(), world.status().failed_count), (State::Failed, 1));
}

#[test]
fn a_change_of_mind_while_it_is_deactivated_is_taken_up_from_inactive() {
    let mut world = active_world();
    world.edit(inactive).edit(|account| account.spec.state = None);
    world.say("agent-1", AgentReport::Dropped).say("agent-1", held());
    assert_eq!(world.writes(), ["DEACTIVATING", "INACTIVE, None", "ACTIVATING", "ACTIVE"]);
}

#[test]
fn a_change_of_mind_after_it_failed_finishes_the_deactivation_first() {
    let mut world = active_world();
    world.edit(inactive).say("agent-1", fails(FailureClass::Forbidden));
    world
        .edit(|account| account.spec.state = None)
        .say("agent-1", AgentReport::Dropped)
        .say("agent-1", held());
    let all = ["DEACTIVATING", "FAILED", "DEACTIVATING", "INACTIVE, None", "ACTIVATING", "ACTIVE"];
    assert_eq!(world.writes(), all);
}

#[test]
fn an_edit_while_a_deactivation_failed_is_stored_and_asks_nobody() {
    let mut world = active_world();
    world.edit(inactive).say("agent-1", fails(FailureClass::Forbidden));
    let epoch = world.status().epoch;
    world.edit(|account| account.spec.namespaces = vec!["web".to_owned()]);
    assert_eq!((world.state(), world.status().epoch), (State::Failed, epoch));
    assert_eq!(world.status().observed_generation, world.account.generation());
}

#[test]
fn nothing_is_left_of_the_cluster_and_the_agents() {
    let mut world = active_world();
    world.edit(inactive).say("agent-1", AgentReport::Dropped);
    let status = world.status();
    assert_eq!((&status.kube_host, &status.cluster_uid, &status.credential_version), (&None, &None, &None));
    assert_eq!((status.agent_count, status.agents.len()), (Some(0), 0));
    assert_eq!(condition(status, "AgentConnected"), "False");
}

#[test]
fn a_new_leader_grants_an_agent_that_is_away_the_whole_grace_before_it_ends_a_revoke() {
    let away = || session("agent-1", "east").away_since(900);
    let revoking = || account("a").in_state(State::Deactivating).granted(GrantPhase::Revoking, "east", 2);
    assert_eq!(seen(revoking()).with(away()).written().state(), State::Inactive, "it is long gone");
    let new = seen(revoking()).with(away()).by_a_new_leader();
    assert_eq!(new.decide(), Decision::wait_until(1030));
    assert_eq!(new.after(30).written().state(), State::Inactive);
}
