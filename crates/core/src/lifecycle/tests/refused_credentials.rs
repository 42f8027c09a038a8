//! A credential that the cluster refuses while agents hold the account.

use super::*;

fn refused_world() -> World {
    let mut world = active_world();
    world.say("agent-1", refused());
    assert_eq!(world.writes(), ["FAILED"]);
    world
}

#[test]
fn refused_credential_fails_the_account_which_stays_held_and_is_not_sent_again() {
    let before = active_world().status().clone();
    let mut world = refused_world();
    let status = world.status();
    assert_eq!((reason(status), status.failed_count), ("Unauthorized", 1));
    assert_eq!((condition(status, "Ready"), condition(status, "Stalled")), ("False", "True"));
    assert_eq!((&status.grant, status.epoch), (&before.grant, before.epoch), "the grant stands");
    assert_eq!((&status.agents, &status.caching), (&before.agents, &before.caching));
    assert_eq!(status.next_retry_time, None);
    assert!(status.is_refused_while_held());
    world.wait(1000).say("agent-1", refused());
    assert_eq!(world.writes(), Vec::<String>::new());
}

#[test]
fn accepted_credential_makes_the_account_active_again_under_the_same_epoch() {
    let mut world = refused_world();
    let epoch = world.status().epoch;
    world.wait(1000).say("agent-1", held());
    assert_eq!(world.writes(), ["ACTIVE"]);
    let status = world.status();
    assert_eq!((status.epoch, status.failed_count, reason(status)), (epoch, 0, "Active"));
    assert!(!status.is_refused_while_held() && status.error_message.is_none());
}

#[test]
fn agent_that_does_not_ask_the_cluster_does_not_heal_the_account() {
    let mut world = active_world();
    world.connect("agent-2", "east").say("agent-2", held()).writes();
    world.say("agent-1", refused()).wait(1000).say("agent-2", held());
    assert_eq!(world.writes(), ["FAILED"]);
    world.say("agent-1", held());
    assert_eq!(world.writes(), ["ACTIVE"]);
}

#[test]
fn new_credential_definition_or_requested_retry_sends_the_account_anew() {
    let changes: [fn(&mut World); 3] = [
        |world| {
            world.secret = Ok(CredentialFact::new(Some("secret/2".to_owned())));
            world.recheck();
        },
        |world| {
            world.edit(|account| account.spec.namespaces = vec!["web".to_owned()]);
        },
        |world| {
            world.edit(|account| *account = account.clone().asked_to_retry("1"));
        },
    ];
    for change in changes {
        let mut world = refused_world();
        let epoch = world.status().epoch;
        change(&mut world);
        assert_eq!((world.writes(), world.status().epoch), (vec!["ACTIVATING".to_owned()], epoch.next()));
        world.say("agent-1", refused());
        assert_eq!((world.writes(), world.status().failed_count), (vec!["FAILED".to_owned()], 1));
        world.say("agent-1", held());
        assert_eq!(world.writes(), ["ACTIVE"]);
    }
}

#[test]
fn account_whose_agent_has_gone_is_retried_when_one_is_back() {
    let mut world = refused_world();
    world.cut("agent-1").wait(10);
    world.connect("agent-1", "east");
    assert_eq!(world.writes(), ["ACTIVATING"], "the new process does not hold it");
    world.say("agent-1", fails(FailureClass::Auth));
    assert_eq!((world.writes(), world.status().failed_count), (vec!["FAILED".to_owned()], 2));
    assert!(!world.status().is_refused_while_held());
}
