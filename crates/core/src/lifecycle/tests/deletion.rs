//! The end of an account.

use super::*;
use crate::lifecycle::RowFact;

fn deleted(world: &mut World) -> &mut World {
    world.edit(|account| *account = account.clone().being_deleted().edited())
}

#[test]
fn every_state_with_a_grant_is_deleting_first() {
    for state in [State::Active, State::Activating, State::Orphaned, State::Failed] {
        let doomed = account("a").in_state(state).granted(GrantPhase::Open, "east", 1).being_deleted();
        let status = seen(doomed).with(session("agent-1", "east").held(1)).written();
        assert_eq!((status.state(), status.phase()), (State::Deleting, GrantPhase::Revoking), "{state}");
    }
}

#[test]
fn without_a_grant_rows_go_and_then_the_finalizer() {
    let doomed = account("a").in_state(State::Inactive).being_deleted();
    assert_eq!(seen(doomed.clone()).decide().action, Some(Action::DeleteRows { keeps_objects: false }));
    assert_eq!(seen(doomed.clone()).without_row().decide().action, Some(Action::RemoveFinalizer));
    assert_eq!(seen(doomed).without_database().decide(), Decision::nothing());
}

#[test]
fn an_object_with_only_another_ones_finalizer_is_left_alone_but_for_its_row() {
    let others = account("a").being_deleted().map(|account| {
        account.metadata.finalizers = Some(vec!["foregroundDeletion".to_owned()]);
    });
    assert_eq!(seen(others.clone()).without_row().decide(), Decision::nothing());
    assert_eq!(seen(others).decide().action, Some(Action::DeleteRows { keeps_objects: false }));
}

#[test]
fn no_row_is_inserted_for_an_object_that_is_being_deleted() {
    let doomed = account("a").active_in("east").being_deleted();
    let decision = seen(doomed).without_row().decide();
    assert!(matches!(decision.action, Some(Action::WriteStatus(_))), "{decision:?}");
}

#[test]
fn an_agent_error_is_delete_failed_and_is_tried_again_without_a_limit() {
    let mut world = active_world();
    deleted(&mut world);
    for _ in 0..8 {
        world.say("agent-1", fails(FailureClass::Forbidden));
        assert_eq!(world.state(), State::DeleteFailed);
        assert_eq!(world.status().error_message.as_deref(), Some("Forbidden happened"));
        world.until(State::Deleting);
    }
    world.say("agent-1", AgentReport::Dropped);
    assert!(world.gone);
}

#[test]
fn a_dropped_in_delete_failed_ends_it_at_once() {
    let mut world = active_world();
    deleted(&mut world).say("agent-1", fails(FailureClass::Internal)).say("agent-1", AgentReport::Dropped);
    assert!(world.gone);
}

#[test]
fn force_delete_stops_the_waiting() {
    let mut world = active_world();
    deleted(&mut world);
    assert!(!world.gone);
    world.edit(|account| *account = account.clone().force_deleted());
    assert!(world.gone);
    assert_eq!(world.row, RowFact::Absent);
}

#[test]
fn a_retry_asks_again_at_once_in_delete_failed() {
    let mut world = active_world();
    deleted(&mut world).say("agent-1", fails(FailureClass::Internal));
    let epoch = world.status().epoch;
    world.edit(|account| *account = account.clone().asked_to_retry("1"));
    assert_eq!((world.state(), world.status().epoch), (State::Deleting, epoch.next()));
}

#[test]
fn a_deactivation_under_way_becomes_the_deletion_without_asking_twice() {
    let mut world = active_world();
    world.edit(|account| account.spec.state = Some(DesiredState::Inactive));
    let epoch = world.status().epoch;
    deleted(&mut world);
    assert_eq!((world.state(), world.status().epoch), (State::Deleting, epoch));
    world.say("agent-1", AgentReport::Dropped);
    assert!(world.gone);
}

#[test]
fn a_deactivation_that_failed_is_asked_again_at_once_when_the_object_is_deleted() {
    let mut world = active_world();
    world.edit(|account| account.spec.state = Some(DesiredState::Inactive));
    world.say("agent-1", fails(FailureClass::Internal));
    let epoch = world.status().epoch;
    deleted(&mut world);
    assert_eq!((world.state(), world.status().epoch), (State::Deleting, epoch.next()));
}

#[test]
fn without_a_database_the_finalizer_stays() {
    let mut world = active_world();
    world.row = RowFact::Unavailable;
    deleted(&mut world).say("agent-1", AgentReport::Dropped);
    assert_eq!((world.gone, world.status().phase()), (false, GrantPhase::None));
    world.row = RowFact::Present;
    world.run_until_idle();
    assert!(world.gone);
}
