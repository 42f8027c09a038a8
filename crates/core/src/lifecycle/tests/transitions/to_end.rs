//! Rows on the way out of ACTIVE, of FAILED, and to the end.

use super::*;

/// The text of each row, and what takes it.
pub(super) const SCENARIOS: &[(&str, RowScenario)] = &[
    ("it is to be inactive; it was given to a zone", |from| {
        let mut world = at(from);
        if from == Some(State::Orphaned) {
            // With nobody there to let go, it is inactive in the same moment.
            world.connect("agent-1", "east");
        }
        world.edit(to_be_inactive);
        world
    }),
    ("it is to be inactive; no zone has it", |from| {
        let mut world = without_a_grant(from);
        world.edit(to_be_inactive);
        world
    }),
    ("all let go", |from| {
        let mut world = at(from);
        world.say("agent-1", AgentReport::Dropped);
        world
    }),
    ("an agent fails to let go", |from| {
        let mut world = at(from);
        world.say("agent-1", fails(FailureClass::Internal));
        assert_eq!(world.status().failed_count, 1);
        world
    }),
    ("an agent says nothing", |from| {
        let mut world = at(from);
        world.wait(30);
        assert_eq!(reason(world.status()), "Timeout");
        world
    }),
    ("it is tried again: due, or asked for", |from| {
        let mut asked = at(from);
        asked.edit(|account| *account = account.clone().asked_to_retry("1"));
        let mut due = at(from);
        due.until(State::Activating);
        assert_eq!(asked.writes(), ["ACTIVATING"]);
        due
    }),
    ("its definition or credential is another one", |from| {
        let mut credential = at(from);
        credential.secret = Ok(CredentialFact::new(Some("secret/2".to_owned())));
        credential.recheck();
        assert_eq!(credential.writes(), ["ACTIVATING"]);
        let mut definition = at(from);
        definition.edit(another_definition);
        definition
    }),
    ("it was for want of an agent, and one connects", |from| {
        let mut world = without_a_grant(from);
        assert_eq!(reason(world.status()), "NoAgent");
        world.connect("agent-1", "east");
        world
    }),
    ("an agent that was late holds it", |from| {
        let mut world = at(from);
        world.say("agent-1", held());
        world
    }),
    ("its cluster accepts the credential again with which an agent holds it", |from| {
        let mut world = at(Some(State::Active));
        world.say("agent-1", refused());
        assert_eq!(Some(world.state()), from);
        world.writes();
        world.say("agent-1", held());
        world
    }),
    ("it is to be inactive; the agent that failed to let go is tried again", |from| {
        let mut world = at(Some(State::Deactivating));
        world.say("agent-1", fails(FailureClass::Internal));
        assert_eq!(Some(world.state()), from);
        world.writes();
        world.until(State::Deactivating);
        world
    }),
    ("it is deleted; it was given to a zone", |from| {
        let mut world = at(from);
        if from == Some(State::Orphaned) {
            world.connect("agent-1", "east");
        }
        world.edit(to_be_deleted);
        world
    }),
    ("it is deleted; no zone has it", |from| {
        let mut world = without_a_grant(from);
        if from.is_none() {
            // It has a finalizer by now, and nothing else.
            world.account = world.account.clone().finalized();
        }
        world.edit(to_be_deleted);
        world
    }),
    ("all let go; its rows go", |from| {
        let mut world = at(from);
        world.say("agent-1", AgentReport::Dropped);
        world
    }),
    ("an agent fails to let go, or says nothing", |from| {
        let mut silent = at(from);
        silent.wait(30);
        assert_eq!(silent.writes(), ["DELETE_FAILED"]);
        let mut world = at(from);
        world.say("agent-1", fails(FailureClass::Internal));
        world
    }),
    ("kubesvc.io/force-delete", |from| {
        let mut world = at(from);
        world.edit(|account| *account = account.clone().force_deleted());
        world
    }),
    ("it is tried again", |from| {
        let mut world = at(from);
        world.until(State::Deleting);
        world
    }),
    ("all let go after all", |from| {
        let mut world = at(from);
        world.say("agent-1", AgentReport::Dropped);
        world
    }),
    ("it is of an agent's own file, and no agent lists it any more", |from| {
        let mut world = of_a_file(from);
        if from == Some(State::Orphaned) {
            world.connect("agent-1", "east");
        }
        world.list("agent-1", false);
        world
    }),
    ("it is of an agent's own file, and its zone has had no agent for 600 s", |from| {
        let mut world = of_a_file(from);
        world.wait(600);
        world
    }),
];

/// FAILED because no agent is there; the others as they are.
fn without_a_grant(from: Option<State>) -> World {
    let mut world = if from == Some(State::Failed) { World::of(account("a")) } else { at(from) };
    if from.is_some() {
        world.writes();
        assert_eq!((Some(world.state()), world.status().phase()), (from, GrantPhase::None));
    }
    world
}

fn of_a_file(from: Option<State>) -> World {
    reach(account("a").static_in("east"), from)
}
