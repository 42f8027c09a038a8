//! A credential that is about to expire.

use super::super::fixtures::wall;
use super::*;
use crate::conditions;
use crate::credential_expiry::{CREDENTIAL_EXPIRING, CredentialExpiry, ExpiryOrigin};
use crate::lifecycle::Tick;

const DAY: Tick = 24 * 3600;

/// An ACTIVE account whose credential expires at this tick.
fn world_until(tick: Tick) -> World {
    let mut world = active_world();
    world.secret = Ok(credential("secret/1", tick));
    world
}

fn credential(version: &str, tick: Tick) -> CredentialFact {
    let expiry = CredentialExpiry { at: wall(tick), lifetime: None, origin: ExpiryOrigin::Token };
    CredentialFact { expiry: Some(expiry), ..CredentialFact::new(Some(version.to_owned())) }
}

fn warning(world: &World) -> Option<String> {
    conditions::find(&world.status().conditions, CREDENTIAL_EXPIRING).map(|one| one.reason.clone())
}

#[test]
fn credential_that_expires_is_warned_of_once_for_each_stage_and_the_account_stays_as_it_is() {
    let mut world = world_until(100 * DAY);
    world.run_until_idle();
    assert_eq!((world.writes(), warning(&world)), (Vec::new(), None));
    let before = world.status().clone();
    for (day, reason) in [(93, "Within7Days"), (99, "Within1Day"), (100, "Expired")] {
        world.wait_until(day * DAY - 1);
        assert_eq!(world.writes(), Vec::<String>::new(), "{reason}: not yet");
        world.wait_until(day * DAY);
        assert_eq!(world.writes(), ["ACTIVE"], "{reason}");
        assert_eq!(warning(&world).as_deref(), Some(reason));
        let event = world.take_event().expect("an Event");
        assert!(event.warning && event.reason == CREDENTIAL_EXPIRING, "{event:?}");
        assert!(event.message.contains("1970-04-11"), "{event:?}");
        world.wait_until(day * DAY + 3600);
        assert_eq!(world.writes(), Vec::<String>::new(), "{reason}: said once");
    }
    let status = world.status();
    assert_eq!(
        (&status.grant, &status.agents, &status.caching),
        (&before.grant, &before.agents, &before.caching)
    );
    assert_eq!((condition(status, "Ready"), condition(status, "Stalled")), ("True", "False"));
}

#[test]
fn warning_goes_with_the_renewal_and_outlives_other_writes_and_the_leader() {
    let mut world = world_until(3 * DAY);
    world.run_until_idle();
    assert_eq!(
        (world.writes(), warning(&world).as_deref()),
        (vec!["ACTIVE".to_owned()], Some("Within7Days"))
    );
    world.say("agent-1", refused()).say("agent-1", held());
    assert_eq!((world.writes().len(), warning(&world).as_deref()), (2, Some("Within7Days")));
    let renewed = credential("secret/2", 400 * DAY);
    world.secret = Err(Failure::new(FailureClass::Internal, "not read yet"));
    world.run_until_idle();
    assert_eq!(warning(&world).as_deref(), Some("Within7Days"));
    world.secret = Ok(renewed);
    world.recheck().say("agent-1", held());
    world.writes();
    assert_eq!(warning(&world), None);
}

#[test]
fn account_that_becomes_inactive_is_not_warned_of() {
    let mut world = world_until(3 * DAY);
    world.run_until_idle();
    world.edit(|account| account.spec.state = Some(DesiredState::Inactive));
    world.say("agent-1", AgentReport::Dropped);
    assert_eq!(world.status().state(), State::Inactive);
    assert_eq!(warning(&world), None);
}
