//! Names that are taken, by another object or by somebody else's row.

use super::*;
use crate::conditions::{LISTED_BY_AGENT, find};
use crate::lifecycle::{Fact, RowFact};
use crate::{FINALIZER, NameHolder, RETRY_ANNOTATION};

#[test]
fn a_younger_object_of_the_same_name_fails_without_a_row_and_a_grant() {
    let mut world = World::of(account("b"));
    world.taken_by("spinnaker/a");
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
    world.taken_by("spinnaker/a");
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
        world.taken_by("shop/a");
        world.connect("agent-1", "east");
        assert_eq!(world.writes(), ["FAILED"]);
        world.rival = None;
        world.secret = Ok(CredentialFact::new(Some("secret/2".to_owned())));
        world.recheck().wait(3600);
        assert_eq!((world.writes(), world.row), (vec!["FAILED".to_owned()], RowFact::Absent));
        assert_eq!(reason(world.status()), "DuplicateName", "it says that it waits to be asked");
        ask(&mut world.account);
        world.run_until_idle().say("agent-1", held());
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
    world.taken_by("other/a");
    assert_eq!(world.writes(), ["FAILED"]);
    assert_eq!(world.status().phase(), GrantPhase::Revoking);
    world.say("agent-1", AgentReport::Dropped);
    assert_eq!(world.writes(), ["FAILED, None"]);
    assert_eq!((world.status().failed_count, world.row), (1, RowFact::Absent));
}

#[test]
fn a_younger_object_lets_go_only_after_the_sessions_were_read_themselves() {
    let revoking = account("a").in_state(State::Failed).granted(GrantPhase::Revoking, "east", 2).finalized();
    let quiet = || seen(revoking.clone()).taken_by("other", "a").with(session("agent-1", "east").dropped(2));
    assert_eq!(quiet().written().phase(), GrantPhase::None);
    assert_eq!(quiet().seen_by_a_watch_alone().decide(), Action::ReadSessions.into());
}

#[test]
fn a_static_object_gives_its_name_up_to_a_declared_one() {
    let mut world = World::of(account("b").static_in("east"));
    world.connect("agent-1", "east").list("agent-1", true).say("agent-1", held());
    assert_eq!(world.state(), State::Active);
    world.writes();
    world.taken_by("spinnaker/a");
    assert_eq!(world.writes(), ["FAILED"]);
    let message = world.status().error_message.clone().unwrap_or_default();
    assert!(message.contains("taken by the object spinnaker/a"), "{message}");
    world.say("agent-1", AgentReport::Dropped);
    assert_eq!(world.writes(), ["FAILED, None"]);
    assert_eq!(world.row, RowFact::Absent);
    world.list("agent-1", false);
    assert_eq!(world.writes(), ["deleted", "finalizer off"], "its file does not have it any more");
}

#[test]
fn a_message_names_no_holder_of_the_name_that_has_it_no_more() {
    let mut world = World::of(account("b"));
    world.taken_by("shop/a");
    assert_eq!(world.writes(), ["FAILED"]);
    let holder = NameHolder { namespace: "shop".to_owned(), name: "a".to_owned() };
    assert_eq!(world.status().name_holder, Some(holder.clone()));
    world.rival = None;
    assert_eq!(world.writes(), ["FAILED"]);
    let message = world.status().error_message.clone().unwrap_or_default();
    assert!(!message.contains("shop/a") && message.contains("ask for a retry"), "{message}");
    assert_eq!((world.status().name_holder.clone(), world.status().failed_count), (Some(holder), 1));
    assert_eq!(world.wait(3600).writes(), Vec::<String>::new(), "it waits to be asked");
    world.account.metadata.generation = Some(2);
    world.connect("agent-1", "east").run_until_idle().say("agent-1", held());
    assert_eq!(world.writes(), ["finalizer", "ACTIVATING", "ACTIVE"]);
    assert_eq!(world.status().name_holder, None);
}

#[test]
fn no_account_name_passes_for_the_object_that_has_it() {
    for name in ["x\" is taken by the object spinnaker/x; delete", " object spinnaker/x", "\u{202e}"] {
        let mut world = World::of(account("b").map(|one| one.spec.account_name = Some(name.to_owned())));
        world.taken_by("shop/a");
        world.writes();
        world.rival = None;
        world.connect("agent-1", "east").wait(3600);
        assert_eq!((world.state(), world.row), (State::Failed, RowFact::Absent), "{name}");
    }
}

#[test]
fn a_status_of_an_earlier_version_gets_the_holder_of_the_name_while_there_is_one() {
    let mut world = World::of(account("b"));
    world.taken_by("spinnaker/a");
    world.writes();
    world.account.status.as_mut().expect("it was written").name_holder = None;
    assert_eq!(world.writes(), ["FAILED"]);
    assert_eq!(world.status().name_holder.as_ref().map(ToString::to_string).as_deref(), Some("spinnaker/a"));
}

fn listing(world: &World) -> Option<(String, String)> {
    let condition = find(&world.status().conditions, LISTED_BY_AGENT)?;
    assert_eq!(condition.status, "True");
    Some((condition.reason.clone(), condition.message.clone()))
}

#[test]
fn a_declared_account_says_which_agent_lists_its_name_too_and_says_it_no_more_when_none_does() {
    let mut world = active_world();
    let before = world.status().clone();
    world.listed_by("agent-9", "west");
    assert_eq!(world.writes(), ["ACTIVE"]);
    let (reason, message) = listing(&world).expect("it is said");
    assert_eq!(reason, "DeclaredWins");
    for part in ["agent-9", "west", "the declared account counts", "dynamicAccounts.agentWins: false"] {
        assert!(message.contains(part), "{part}: {message}");
    }
    assert_eq!((world.state(), world.status().epoch), (State::Active, before.epoch));
    world.listed_by = Fact::Unknown;
    assert_eq!(world.wait(60).writes(), Vec::<String>::new(), "a leader that does not know yet");
    world.listed_by = Fact::Known(None);
    assert_eq!(world.writes(), ["ACTIVE"]);
    assert_eq!(world.status(), &before);
}

#[test]
fn a_declared_account_that_loses_its_name_to_an_agents_names_agent_and_setting() {
    let mut world = active_world();
    world.policy.agent_wins = true;
    world.listed_by("agent-9", "west").taken_by_static("spinnaker/a-agent");
    assert_eq!(world.writes(), ["FAILED"]);
    world.say("agent-1", AgentReport::Dropped);
    assert_eq!(world.writes(), ["FAILED, None"]);
    assert_eq!((reason(world.status()), world.row), ("DuplicateName", RowFact::Absent));
    let message = world.status().error_message.clone().unwrap_or_default();
    for part in ["spinnaker/a-agent", "agent-9", "west", "dynamicAccounts.agentWins: true"] {
        assert!(message.contains(part), "{part}: {message}");
    }
    assert_eq!(listing(&world).expect("it is said").0, "AgentWins");
    assert_eq!(world.wait(3600).writes(), Vec::<String>::new());
    world.rival = None;
    world.listed_by = Fact::Known(None);
    world.run_until_idle().say("agent-1", held());
    assert_eq!(world.state(), State::Active, "the agent lists it no more");
    assert_eq!((listing(&world), world.status().name_holder.clone()), (None, None));
}

#[test]
fn what_an_agent_lists_delays_no_retry() {
    let mut world = World::of(account("a"));
    world.connect("agent-1", "east").say("agent-1", fails(FailureClass::Unreachable));
    assert_eq!(world.state(), State::Failed);
    world.writes();
    for _ in 0..4 {
        world.wait(1).listed_by("agent-9", "west");
        assert_eq!(world.writes(), Vec::<String>::new());
        world.listed_by = Fact::Known(None);
    }
    world.listed_by("agent-9", "west").wait(5);
    assert_eq!(world.writes(), ["ACTIVATING"]);
    assert!(listing(&world).is_some());
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
    world.run_until_idle().say("agent-1", held());
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
