//! Agents that wait to be registered: nobody is taken for gone meanwhile, for ten minutes at most.

use super::*;

/// An ACTIVE account whose only agent is away, and may be among those that wait to be registered.
fn queueing() -> World {
    let mut world = active_world();
    world.cut("agent-1");
    world.wait(10);
    world.backlog_since = Some(world.now);
    world
}

#[test]
fn an_account_stays_active_while_agents_wait_to_be_registered() {
    let mut world = queueing();
    world.wait(599);
    assert_eq!(world.state(), State::Active);
    world.connect("agent-1", "east").say("agent-1", held());
    assert!(world.writes().is_empty(), "nothing has happened to it");
}

#[test]
fn it_is_orphaned_as_soon_as_none_waits_and_its_agent_is_not_there() {
    let mut world = queueing();
    world.wait(200);
    world.backlog_since = None;
    assert_eq!(world.until(State::Orphaned), 1);
}

#[test]
fn ten_minutes_are_the_longest() {
    assert_eq!(queueing().until(State::Orphaned), 600);
}

#[test]
fn one_that_is_orphaned_already_stays_so_and_is_not_looked_at_again() {
    let mut world = active_world();
    world.cut("agent-1");
    assert_eq!(world.until(State::Orphaned), 30);
    world.writes();
    world.backlog_since = Some(world.now);
    assert!(world.wait(60).writes().is_empty());
}

#[test]
fn an_account_held_by_no_agent_does_not_fail_during_a_backlog() {
    let mut world = World::of(account("a").pinned("east"));
    world.backlog_since = Some(world.now);
    world.wait(60);
    assert_ne!(world.state(), State::Failed);
    world.backlog_since = None;
    world.until(State::Failed);
}

#[test]
fn a_revoke_waits_for_an_agent_that_may_be_queued_and_not_for_one_absent_before_the_backlog() {
    for (gone_before, ends) in [(false, false), (true, true)] {
        let mut world = active_world();
        world.connect("agent-2", "east");
        world.cut("agent-1");
        world.wait(if gone_before { 31 } else { 10 });
        world.backlog_since = Some(world.now);
        world.edit(|account| account.spec.state = Some(DesiredState::Inactive));
        world.say("agent-2", AgentReport::Dropped);
        world.wait(60);
        assert_eq!(world.state() == State::Inactive, ends, "gone before: {gone_before}");
    }
}

#[test]
fn a_static_account_stays_while_agents_wait() {
    let mut world = World::of(account("a").static_in("east"));
    world.connect("agent-1", "east").list("agent-1", true).say("agent-1", held());
    assert_eq!(world.state(), State::Active);
    world.cut("agent-1").wait(500);
    world.backlog_since = Some(world.now);
    world.wait(599);
    assert!(!world.account.is_being_deleted());
    world.wait(2);
    assert!(world.account.is_being_deleted());
}
