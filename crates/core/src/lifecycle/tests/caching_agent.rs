//! The agent that streams the account's objects.

use super::*;
use crate::{CachingAssignment, CachingEpoch, ELECT_CACHING_ANNOTATION};

fn caching(agent: &str, epoch: i64) -> Option<CachingAssignment> {
    let boot_id = Some(format!("boot-of-{agent}").into());
    Some(CachingAssignment { agent_id: Some(agent.into()), boot_id, epoch: CachingEpoch(epoch) })
}

fn nobody(epoch: i64) -> Option<CachingAssignment> {
    Some(CachingAssignment { epoch: CachingEpoch(epoch), ..CachingAssignment::default() })
}

#[test]
fn it_is_chosen_in_the_write_that_makes_the_account_active() {
    let activating = account("a").activating_in("east");
    let status = seen(activating)
        .with(session("agent-1", "east"))
        .with(session("agent-2", "east").held(1))
        .with(session("agent-3", "west").held(1))
        .written();
    assert_eq!((status.state(), &status.caching), (State::Active, &caching("agent-2", 1)));
    assert_eq!(condition(&status, "Caching"), "True");
}

#[test]
fn an_account_that_was_active_before_there_was_a_choice_has_one_by_one_write() {
    let older =
        || account("a").active_in("east").map(|one| one.status.get_or_insert_default().caching = None);
    let status = seen(older()).with(session("agent-1", "east").held(1)).written();
    assert_eq!((status.state(), &status.caching), (State::Active, &caching("agent-1", 1)));
    let unseen = seen(older()).with(session("agent-1", "east").elsewhere());
    assert_eq!(
        unseen.written().caching,
        caching("agent-1", 1),
        "another replica tells only what is waited for"
    );
    assert_eq!(seen(older()).with(session("agent-1", "east")).decide().action, None);
}

#[test]
fn it_moves_by_one_write_when_its_agent_has_been_away_for_its_time() {
    for (ending, ticks) in
        [(SessionEnding::Goodbye, 3), (SessionEnding::Cut, 11), (SessionEnding::ReplicaLost, 61)]
    {
        let at = |since| {
            seen(account("a").active_in("east"))
                .with(session("agent-1", "east").away_since(since).ended(ending))
                .with(session("agent-2", "east").held(1))
                .decide()
        };
        let early = at(1000 - ticks + 1);
        assert_eq!((early.action, early.wake), (None, Some(1001)), "{ending:?}");
        let Some(Action::WriteStatus(write)) = at(1000 - ticks).action else { unreachable!("{ending:?}") };
        assert_eq!(write.status.caching, caching("agent-2", 2));
        assert_eq!((write.status.state(), write.status.epoch.0, write.event), (State::Active, 1, None));
    }
}

#[test]
fn one_that_is_back_in_time_and_a_leader_that_has_just_begun_change_nothing() {
    let mut world = active_world();
    world.connect("agent-2", "east").say("agent-2", held()).cut("agent-1").wait(9).connect("agent-1", "east");
    assert_eq!(world.writes(), Vec::<String>::new(), "it has not said anything yet");
    world.wait(20).say("agent-1", held());
    assert_eq!(world.writes(), Vec::<String>::new());
    let new = seen(account("a").active_in("east")).with(session("agent-2", "east").held(1));
    let decision = new.by_a_new_leader().decide();
    assert_eq!((decision.action, decision.wake), (None, Some(1061)));
}

#[test]
fn another_process_of_its_agent_costs_one_write() {
    let back = session("agent-1", "east").held(1).of_process("second");
    let status = seen(account("a").active_in("east")).with(back).written();
    let caching = status.caching.expect("it is cached");
    assert_eq!((caching.boot_id, caching.epoch), (Some("second".into()), CachingEpoch(2)));
}

#[test]
fn it_is_kept_while_the_account_is_orphaned_and_while_its_definition_changes() {
    let mut world = active_world();
    let before = world.status().caching.clone();
    world.connect("agent-2", "east").say("agent-2", held());
    world.edit(|account| account.spec.namespaces = vec!["one".to_owned()]);
    world.say("agent-2", held());
    assert_eq!((world.state(), &world.status().caching), (State::Active, &before), "agent-1 has not failed");
    world.say("agent-1", fails(FailureClass::Unreachable));
    assert_eq!(world.status().caching, caching("agent-2", 2), "now it has");

    let mut world = active_world();
    world.cut("agent-1").until(State::Orphaned);
    assert_eq!((&world.status().caching, condition(world.status(), "Caching")), (&before, "False"));
    world.wait(100).connect("agent-1", "east").say("agent-1", held());
    assert_eq!((world.state(), &world.status().caching), (State::Active, &before));
}

#[test]
fn a_revoke_leaves_it_to_nobody_under_a_greater_epoch() {
    let mut world = active_world();
    world.edit(|account| account.spec.state = Some(DesiredState::Inactive));
    assert_eq!((world.state(), &world.status().caching), (State::Deactivating, &nobody(2)));
    world.say("agent-1", AgentReport::Dropped);
    assert_eq!((world.state(), &world.status().caching), (State::Inactive, &nobody(2)));
    world.edit(|account| account.spec.state = Some(DesiredState::Active)).say("agent-1", held());
    assert_eq!((world.state(), &world.status().caching), (State::Active, &caching("agent-1", 3)));
}

#[test]
fn an_election_that_is_asked_for_is_held_once() {
    let mut world = active_world();
    world.connect("agent-2", "east").say("agent-2", held()).writes();
    let ask = |account: &mut KubesvcAccount| {
        *account = account.clone().annotated(ELECT_CACHING_ANNOTATION, "one");
    };
    world.edit(ask);
    assert_eq!(world.writes(), ["ACTIVE"]);
    assert_eq!(world.status().caching, caching("agent-2", 2));
    assert_eq!(world.status().election_handled.as_deref(), Some("one"));
    world.edit(ask).wait(100);
    assert_eq!(world.writes(), Vec::<String>::new());
}

#[test]
fn an_election_that_is_asked_for_before_the_account_is_active_is_held_with_it() {
    let asked = account("a").activating_in("east").annotated(ELECT_CACHING_ANNOTATION, "one");
    let status = seen(asked).with(session("agent-1", "east").held(1)).written();
    assert_eq!((&status.caching, status.election_handled.as_deref()), (&caching("agent-1", 1), Some("one")));
}

#[test]
fn an_agent_that_is_not_approved_any_more_or_holds_it_in_another_cluster_streams_nothing() {
    for first in
        [session("agent-1", "east").held(1).not_approved(), session("agent-1", "east").held_in(1, "another")]
    {
        let status = seen(account("a").active_in("east"))
            .with(first)
            .with(session("agent-2", "east").held(1))
            .written();
        assert_eq!(status.caching, caching("agent-2", 2));
    }
}
