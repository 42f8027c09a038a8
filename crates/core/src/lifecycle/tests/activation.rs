//! The way to ACTIVE, and what makes it start over.

use super::*;
use crate::GrantEpoch;

#[test]
fn finalizer_row_and_grant_come_in_this_order() {
    let new = seen(account("a")).without_row().with(session("agent-1", "east"));
    assert_eq!(new.decide().action, Some(Action::AddFinalizer));
    let finalized = seen(account("a").finalized()).without_row().with(session("agent-1", "east"));
    assert_eq!(finalized.decide().action, Some(Action::InsertRow));
    let status = seen(account("a").finalized()).with(session("agent-1", "east")).written();
    assert_eq!((status.state(), status.phase(), status.epoch.0), (State::Activating, GrantPhase::Open, 1));
}

#[test]
fn an_absent_status_reads_inactive() {
    let bare = account("a").map(|account| account.status = None);
    assert_eq!(bare.status_or_default().state(), State::Inactive);
}

#[test]
fn a_secret_that_takes_long_is_shown_as_to_migrate_once() {
    let slow = seen(account("a").finalized()).slowly();
    assert_eq!(slow.written().state(), State::ToMigrate);
    let waiting = seen(account("a").in_state(State::ToMigrate)).slowly();
    assert_eq!(waiting.decide().action, Some(Action::ResolveCredential));
}

#[test]
fn to_migrate_goes_on_when_the_secret_is_there() {
    let status = seen(account("a").in_state(State::ToMigrate)).with(session("agent-1", "east")).written();
    assert_eq!((status.state(), status.granted_zone()), (State::Activating, Some(&"east".into())));
}

#[test]
fn without_a_database_the_status_goes_on() {
    let status = seen(account("a").finalized()).without_database().with(session("agent-1", "east")).written();
    assert_eq!(status.state(), State::Activating);
}

#[test]
fn held_for_this_epoch_is_active_and_forgets_what_failed() {
    let before = account("a").activating_in("east").map(|account| {
        let status = account.status.get_or_insert_default();
        status.failed_count = 3;
        status.error_message = Some("it failed".to_owned());
    });
    let status = seen(before).with(session("agent-1", "east").held(1)).written();
    assert_eq!((status.state(), status.failed_count, status.error_message), (State::Active, 0, None));
    assert_eq!(status.agents, ["agent-1"]);
    assert_eq!(status.kube_host.as_deref(), Some("https://prod:6443"));
}

#[test]
fn held_for_another_epoch_is_no_word() {
    let old = seen(account("a").activating_in("east").map(|account| {
        account.status.get_or_insert_default().epoch = GrantEpoch(2);
    }));
    assert_eq!(old.with(session("agent-1", "east").held(1)).decide().action, None);
}

#[test]
fn an_agent_that_is_not_approved_is_given_nothing() {
    let alone = seen(account("a").finalized()).with(session("agent-1", "east").not_approved());
    assert_eq!(reason(&alone.written()), "NoAgent");
}

#[test]
fn a_new_definition_activates_anew_in_every_state_with_an_open_grant() {
    for state in [State::Active, State::Activating, State::Orphaned] {
        let changed = account("a")
            .in_state(state)
            .granted(GrantPhase::Open, "east", 1)
            .map(|account| account.spec.namespaces = vec!["web".to_owned()])
            .edited();
        let status = seen(changed).with(session("agent-1", "east").held(1)).written();
        assert_eq!((status.state(), status.epoch.0), (State::Activating, 2), "{state}");
        assert_eq!(status.phase(), GrantPhase::Open, "the old one serves on");
    }
}

#[test]
fn an_orphan_with_a_new_definition_stays_until_an_agent_connects_and_takes_it_then() {
    let mut world = active_world();
    world.cut("agent-1").wait(31);
    world.edit(|account| account.spec.namespaces = vec!["web".to_owned()]);
    assert_eq!(world.writes(), ["ORPHANED", "ORPHANED"]);
    let grant = world.status().grant.clone().expect("granted");
    assert_ne!(
        grant.generation,
        world.account.generation(),
        "nobody is given the new one under the old epoch"
    );
    world.connect("agent-1", "east").say("agent-1", held());
    assert_eq!(world.writes(), ["ACTIVATING", "ACTIVE"]);
}

#[test]
fn new_contents_of_the_secret_are_a_new_definition() {
    let mut world = active_world();
    world.secret = Ok(CredentialFact::new(Some("secret/2".to_owned())));
    world.recheck();
    assert_eq!(world.writes(), ["ACTIVATING"]);
    assert_eq!(world.status().credential_version.as_deref(), Some("secret/2"));
}

#[test]
fn an_agent_that_lost_it_while_another_holds_it_changes_nothing() {
    let two = seen(account("a").active_in("east").cached_by("agent-2"))
        .with(session("agent-1", "east").lost(1))
        .with(session("agent-2", "east").held(1));
    assert_eq!(two.decide(), Decision::nothing());
}

#[test]
fn active_is_kept_while_the_only_agent_is_asked_again() {
    let asked = seen(account("a").active_in("east")).with(session("agent-1", "east").lost(1).silent_for(3));
    assert_eq!(asked.decide(), Decision::wait_until(1027));
}

#[test]
fn active_fails_when_all_failed_and_none_may_come_back() {
    let failed = session("agent-1", "east").failed(1, FailureClass::Unreachable);
    let alone = seen(account("a").active_in("east")).with(failed.clone()).written();
    assert_eq!((alone.state(), alone.failed_count, alone.epoch.0), (State::Failed, 1, 1));
    let other = session("agent-2", "east").away_since(990);
    assert_eq!(
        seen(account("a").active_in("east")).with(failed).with(other).decide(),
        Decision::wait_until(1020)
    );
}

#[test]
fn a_further_agent_of_the_zone_changes_nothing() {
    let two = seen(account("a").active_in("east"))
        .with(session("agent-1", "east").held(1))
        .with(session("agent-2", "east"));
    assert_eq!(two.decide(), Decision::nothing());
}

#[test]
fn absence_of_the_last_agent_orphans_the_account_after_the_grace() {
    let cut = seen(account("a").active_in("east")).with(session("agent-1", "east").away_since(1000));
    assert_eq!(cut.decide(), Decision::wait_until(1030));
    assert_eq!(cut.after(30).written().state(), State::Orphaned);
}

#[test]
fn a_stale_watch_orphans_no_account() {
    let cut = || session("agent-1", "east").away_since(1000);
    let active = seen(account("a").active_in("east")).with(cut()).seen_by_a_watch_alone();
    assert_eq!(active.decide(), Decision::wait_until(1030), "within the grace nothing is read");
    assert_eq!(active.after(30).decide(), Action::ReadSessions.into());
    let activating = account("a").in_state(State::Activating).granted(GrantPhase::Open, "east", 1);
    assert_eq!(seen(activating).seen_by_a_watch_alone().decide(), Action::ReadSessions.into());
    let orphaned = seen(account("a").orphaned_in("east")).with(cut()).seen_by_a_watch_alone();
    assert_eq!(orphaned.after(30).decide().action, None, "it is said already");
}

#[test]
fn a_leader_that_has_just_begun_orphans_nothing() {
    let new = seen(account("a").active_in("east")).by_a_new_leader();
    assert_eq!(new.decide(), Decision::wait_until(1030));
    assert_eq!(new.after(30).written().state(), State::Orphaned);
}

#[test]
fn an_orphan_stays_until_an_agent_says_held() {
    let connected = seen(account("a").orphaned_in("east")).with(session("agent-1", "east"));
    assert_eq!(connected.decide(), Decision::wait_until(1030));
    let held = seen(account("a").orphaned_in("east")).with(session("agent-1", "east").held(1)).written();
    assert_eq!((held.state(), held.epoch.0), (State::Active, 1));
}

#[test]
fn an_orphan_fails_when_all_that_connect_fail() {
    let failed = session("agent-1", "east").failed(1, FailureClass::Tls);
    let status = seen(account("a").orphaned_in("east")).with(failed).written();
    assert_eq!((status.state(), status.failed_count), (State::Failed, 1));
}

#[test]
fn a_retry_that_is_asked_for_is_handled_in_every_state_and_counts_from_zero() {
    for state in [State::Activating, State::Active, State::Orphaned] {
        let asked = account("a")
            .in_state(state)
            .granted(GrantPhase::Open, "east", 1)
            .map(|account| account.status.get_or_insert_default().failed_count = 2)
            .asked_to_retry("1");
        let status = seen(asked).with(session("agent-1", "east")).written();
        assert_eq!(status.retry_handled.as_deref(), Some("1"), "{state}");
        assert_eq!((status.state(), status.failed_count, status.epoch.0), (state, 0, 1), "{state}");
    }
}

#[test]
fn a_new_version_of_the_same_credential_is_recorded_without_a_new_activation() {
    for state in [State::Active, State::Activating] {
        let mut world = active_world();
        world.account.status.get_or_insert_default().state = Some(state);
        if state == State::Activating {
            world.connect("agent-1", "east");
        }
        let (epoch, before) = (world.status().epoch, world.status().credential_version.clone());
        let same_as = before.into_iter().collect();
        world.secret = Ok(CredentialFact { version: Some("secret/2".to_owned()), same_as, expiry: None });
        world.recheck();
        assert_eq!(world.writes(), [state.as_str()]);
        let status = world.status();
        assert_eq!((status.epoch, status.credential_version.as_deref()), (epoch, Some("secret/2")));
        world.recheck();
        assert!(world.writes().is_empty(), "once");
    }
}
