//! The account in Clouddriver: shown in the status, and left before its zone has to drop it.

use super::*;
use crate::conditions::find;
use crate::registration::{
    ClouddriverFacts, LEAVING_CLOUDDRIVER, RegistrationCondition, RegistrationPresence, RegistrationReason,
    SPINNAKER_REGISTERED,
};
use crate::{FORCE_DELETE_ANNOTATION, RETRY_ANNOTATION};

fn condition_of(holds: bool, reason: RegistrationReason) -> Fact<Option<RegistrationCondition>> {
    let message = format!("it is {}", reason.name());
    Fact::Known(Some(RegistrationCondition { holds, reason, message }))
}

/// An ACTIVE account that Clouddriver has, and is to be left by tick 2000 at the latest.
fn registered_world() -> World {
    let mut world = active_world();
    world.registration = Some(ClouddriverFacts {
        condition: condition_of(true, RegistrationReason::Pushed),
        presence: RegistrationPresence::Present,
        leaves_until: 2000,
        ..ClouddriverFacts::default()
    });
    assert_eq!(world.writes(), ["ACTIVE"], "one write says so");
    world
}

fn removed(world: &mut World) {
    world.registration = Some(ClouddriverFacts {
        condition: Fact::Known(None),
        also: Fact::Known(None),
        presence: RegistrationPresence::Absent,
        leaves_until: 2000,
    });
}

fn inactive(account: &mut KubesvcAccount) {
    *account = account.clone().wanted_inactive().edited();
}

fn said(world: &World) -> Option<(&str, &str)> {
    find(&world.status().conditions, SPINNAKER_REGISTERED)
        .map(|one| (one.status.as_str(), one.reason.as_str()))
}

#[test]
fn the_condition_is_written_once_and_again_when_it_is_another_one() {
    let mut world = registered_world();
    assert_eq!(said(&world), Some(("True", "Pushed")));
    assert_eq!(condition(world.status(), "Ready"), "True");
    assert_eq!(world.wait(600).writes(), Vec::<String>::new());
    world.registration.as_mut().expect("set").condition = condition_of(false, RegistrationReason::Drift);
    assert_eq!(world.writes(), ["ACTIVE"]);
    assert_eq!(said(&world), Some(("False", "Drift")));
    assert_eq!(condition(world.status(), "Ready"), "True", "it is no part of Ready");
    world.registration.as_mut().expect("set").condition = Fact::Unknown;
    assert_eq!(world.writes(), Vec::<String>::new(), "what is not known stays as it is said");
    world.registration = None;
    assert_eq!(world.writes(), ["ACTIVE"]);
    assert_eq!(said(&world), None, "accounts are not registered any more");
}

#[test]
fn a_deactivated_account_leaves_clouddriver_before_its_grant_is_revoked() {
    let mut world = registered_world();
    let epoch = world.status().epoch;
    world.edit(inactive);
    assert_eq!(world.writes(), ["ACTIVE"], "one write more than of an account that is not registered");
    assert_eq!(displayed_state(&world.account), State::ToDeactivate);
    assert_eq!(
        (world.state(), world.status().epoch, reason(world.status())),
        (State::Active, epoch, LEAVING_CLOUDDRIVER)
    );
    assert_eq!(said(&world), Some(("False", LEAVING_CLOUDDRIVER)));
    assert_eq!(world.wait(100).writes(), Vec::<String>::new());
    removed(&mut world);
    assert_eq!(world.writes(), ["DEACTIVATING"]);
    world.say("agent-1", AgentReport::Dropped);
    assert_eq!((world.state(), said(&world)), (State::Inactive, None));
}

#[test]
fn a_clouddriver_that_is_down_delays_a_revoke_only_until_the_deadline() {
    let mut world = registered_world();
    world.edit(|account| *account = account.clone().being_deleted().edited());
    assert_eq!(
        (world.writes(), displayed_state(&world.account)),
        (vec!["ACTIVE".to_owned()], State::Deleting)
    );
    assert_eq!(world.wait_until(1999).state(), State::Active);
    assert_eq!(world.wait_until(2000).state(), State::Deleting);
    world.say("agent-1", AgentReport::Dropped);
    assert!(world.gone, "the row in Clouddriver outlives the object");
}

#[test]
fn a_retry_or_a_forced_deletion_ends_the_wait() {
    let mut world = registered_world();
    world.edit(inactive);
    world.edit(|account| {
        account
            .metadata
            .annotations
            .get_or_insert_default()
            .insert(RETRY_ANNOTATION.to_owned(), "now".to_owned());
    });
    assert_eq!(world.state(), State::Deactivating);

    let mut world = registered_world();
    world.edit(|account| {
        *account = account.clone().being_deleted().edited();
        account
            .metadata
            .annotations
            .get_or_insert_default()
            .insert(FORCE_DELETE_ANNOTATION.to_owned(), String::new());
    });
    assert!(world.gone);
}

#[test]
fn a_leader_that_has_not_read_its_table_waits_without_a_write() {
    let mut world = active_world();
    world.registration = Some(ClouddriverFacts { leaves_until: 2000, ..ClouddriverFacts::default() });
    world.edit(inactive);
    assert_eq!(world.writes(), Vec::<String>::new());
    world.registration.as_mut().expect("set").presence = RegistrationPresence::Absent;
    assert_eq!(world.writes(), ["DEACTIVATING"]);
}

#[test]
fn an_account_that_fails_or_loses_its_agents_stays_registered() {
    let mut world = registered_world();
    world.cut("agent-1").wait(31);
    assert_eq!((world.state(), said(&world)), (State::Orphaned, Some(("True", "Pushed"))));
}

#[test]
fn a_migrated_account_says_that_only_clouddriver_has_its_file_until_its_secret_is_read() {
    let mut world = World::of(account("a").wanted_inactive());
    world.clouddriver_file = Some("the kubeconfig is the file /a of Clouddriver".to_owned());
    let said = |world: &World| {
        let said = find(&world.status().conditions, "CredentialAvailable");
        said.map(|one| (one.status.clone(), one.reason.clone()))
    };
    let missing = Some(("False".to_owned(), "FileOnClouddriver".to_owned()));
    world.writes();
    assert_eq!((world.state(), said(&world)), (State::Inactive, missing.clone()));
    world.secret = Err(failure(FailureClass::FileOnClouddriver));
    world.connect("agent-1", "east");
    world.edit(|account| {
        account.spec.state = None;
        *account = account.clone().edited();
    });
    assert_eq!((world.state(), said(&world)), (State::Failed, missing), "at once");
    assert_eq!((reason(world.status()), condition(world.status(), "Stalled")), ("FileOnClouddriver", "True"));
    world.secret = Ok(CredentialFact::new(Some("uid/2".to_owned())));
    world.recheck().say("agent-1", held());
    assert_eq!((world.state(), said(&world)), (State::Active, None));
    world.edit(inactive).say("agent-1", AgentReport::Dropped);
    world.edit(|account| {
        account.spec.environment = Some("live".to_owned());
        *account = account.clone().edited();
    });
    assert_eq!((world.state(), said(&world)), (State::Inactive, None), "it had one");
}
