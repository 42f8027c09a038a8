//! Names that are taken, by another object or by somebody else's row.

use super::*;
use crate::account::lifecycle::RowFact;
use crate::account::{FINALIZER, RETRY_ANNOTATION};

#[test]
fn a_younger_object_of_the_same_name_fails_without_a_row_and_a_grant() {
    let mut world = World::of(account("b"));
    world.rival = Some("spinnaker/a".to_owned());
    assert_eq!(world.writes(), ["FAILED"]);
    assert_eq!((reason(world.status()), world.status().failed_count), ("DuplicateName", 1));
    assert_eq!(world.row, RowFact::Absent);
    assert_eq!(condition(world.status(), "Stalled"), "True");
    world.connect("agent-1", "east").wait(600);
    assert_eq!(world.writes(), Vec::<String>::new());
}

#[test]
fn a_younger_object_is_taken_up_when_the_older_is_gone() {
    let mut world = World::of(account("b"));
    world.rival = Some("spinnaker/a".to_owned());
    world.connect("agent-1", "east");
    world.writes();
    world.rival = None;
    assert_eq!(world.writes(), ["finalizer", "ACTIVATING"]);
}

#[test]
fn a_name_that_an_object_of_another_namespace_had_is_taken_only_when_somebody_asks_for_it() {
    let ask: [fn(&mut KubesvcAccount); 2] = [
        |account| {
            account.metadata.annotations = Some([(RETRY_ANNOTATION.to_owned(), "1".to_owned())].into());
        },
        |account| account.metadata.generation = Some(2),
    ];
    for ask in ask {
        let mut world = World::of(account("b"));
        world.rival = Some("shop/a".to_owned());
        world.connect("agent-1", "east");
        assert_eq!(world.writes(), ["FAILED"]);
        world.rival = None;
        world.secret = Ok(CredentialFact::new(Some("secret/2".to_owned())));
        world.recheck().wait(3600);
        assert_eq!((world.writes(), world.row), (Vec::new(), RowFact::Absent), "it stays as it is");
        ask(&mut world.account);
        world.settle().say("agent-1", held());
        assert_eq!(world.writes(), ["finalizer", "ACTIVATING", "ACTIVE"]);
    }
}

#[test]
fn an_object_whose_name_another_one_still_holds_is_given_to_no_zone_until_that_has_let_go() {
    let mut world = World::of(account("b"));
    world.name_is_held = true;
    world.connect("agent-1", "east").wait(5);
    assert_eq!((world.writes(), world.row), (Vec::<String>::new(), RowFact::Absent));
    world.name_is_held = false;
    world.wait(1);
    assert_eq!(world.writes(), ["finalizer", "ACTIVATING"]);
}

#[test]
fn an_active_object_that_turns_out_younger_gives_up_its_grant_and_its_row() {
    let mut world = active_world();
    world.rival = Some("other/a".to_owned());
    assert_eq!(world.writes(), ["FAILED"]);
    assert_eq!(world.status().phase(), GrantPhase::Revoking);
    world.say("agent-1", Word::Dropped);
    assert_eq!(world.writes(), ["FAILED, None"]);
    assert_eq!((world.status().failed_count, world.row), (1, RowFact::Absent));
}

#[test]
fn a_static_object_gives_its_name_up_to_a_declared_one() {
    let mut world = World::of(account("b").static_in("east"));
    world.connect("agent-1", "east").list("agent-1", true).say("agent-1", held());
    assert_eq!(world.state(), State::Active);
    world.writes();
    world.rival = Some("spinnaker/a".to_owned());
    assert_eq!(world.writes(), ["FAILED"]);
    let message = world.status().error_message.clone().unwrap_or_default();
    assert!(message.contains("taken by the object spinnaker/a"), "{message}");
    world.say("agent-1", Word::Dropped);
    assert_eq!(world.writes(), ["FAILED, None"]);
    assert_eq!(world.row, RowFact::Absent);
    world.list("agent-1", false);
    assert_eq!(world.writes(), ["deleted", "finalizer off"], "its file does not have it any more");
}

#[test]
fn a_row_of_somebody_else_is_row_exists_without_a_grant_and_uses_no_retry() {
    let mut world = World::of(account("a"));
    world.row = RowFact::Foreign;
    world.connect("agent-1", "east").wait(3600);
    assert_eq!(world.writes(), ["FAILED"]);
    assert_eq!((reason(world.status()), world.status().failed_count), ("RowExists", 0));
    assert_eq!(condition(world.status(), "Reconciling"), "True");
    let message = world.status().error_message.clone().unwrap_or_default();
    for part in ["kubesvc_accounts", "\"a\"", "spec.accountName", "kubesvc.dynamicAccounts.adoptRows: true"] {
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn an_inactive_account_whose_name_is_in_a_row_of_somebody_else_is_row_exists_too() {
    let status = seen(account("a").wanted_inactive()).row(RowFact::Foreign).written();
    assert_eq!(reason(&status), "RowExists");
}

#[test]
fn the_account_goes_on_as_soon_as_the_row_of_somebody_else_is_gone() {
    let mut world = World::of(account("a"));
    world.row = RowFact::Foreign;
    world.connect("agent-1", "east");
    world.row = RowFact::Unavailable;
    assert_eq!(world.writes(), ["FAILED"], "a database that cannot be asked does not say that it is gone");
    world.row = RowFact::Absent;
    world.settle().say("agent-1", held());
    assert_eq!(world.writes(), ["finalizer", "ACTIVATING", "ACTIVE"]);
}

#[test]
fn an_account_with_a_row_of_somebody_else_is_deleted_without_that_row() {
    let doomed = account("a").failed_with(FailureClass::RowExists, 0).being_deleted().map(|account| {
        account.metadata.finalizers = Some(vec![FINALIZER.to_owned()]);
    });
    assert_eq!(seen(doomed).row(RowFact::Foreign).decide().action, Some(Action::RemoveFinalizer));
}

#[test]
fn a_row_that_somebody_puts_in_place_of_ours_ends_no_grant() {
    let active = seen(account("a").active_in("east")).row(RowFact::Foreign);
    assert_eq!(active.with(session("agent-1", "east").held(1)).decide(), Decision::nothing());
}
