//! The state that REST shows, for each cell of the table "What each request does in each state" that changes an object.
//! PATCH and DELETE set the retry annotation; PUT changes the spec.

use super::*;

/// An account as the operator left it, in one of the rows of the table.
fn row(now: State, desired: DesiredState) -> KubesvcAccount {
    let phase = match now {
        State::Inactive | State::ToMigrate => None,
        State::Deactivating | State::Deleting | State::DeleteFailed => Some(GrantPhase::Revoking),
        State::Failed if desired == DesiredState::Inactive => Some(GrantPhase::Revoking),
        _ => Some(GrantPhase::Open),
    };
    let account = match desired {
        DesiredState::Active => account("a"),
        DesiredState::Inactive => account("a").wanted_inactive(),
    };
    let account = account.in_state(now);
    let account = match phase {
        Some(phase) => account.granted(phase, "east", 1),
        None => account,
    };
    if matches!(now, State::Deleting | State::DeleteFailed) { account.being_deleted() } else { account }
}

fn patched(account: KubesvcAccount, desired: DesiredState) -> State {
    let changed = account.desired() != desired;
    let account =
        account.map(|account| account.spec.state = Some(desired)).asked_to_retry("01J0000000000000000000000");
    displayed_state(&if changed { account.edited() } else { account })
}

fn put(account: KubesvcAccount) -> State {
    displayed_state(&account.map(|account| account.spec.namespaces = vec!["web".to_owned()]).edited())
}

fn deleted(account: KubesvcAccount) -> State {
    displayed_state(&account.being_deleted().edited().asked_to_retry("01J0000000000000000000001"))
}

#[test]
fn an_object_that_no_operator_has_seen_shows_what_is_desired() {
    assert_eq!(displayed_state(&account("a")), State::ToMigrate);
    assert_eq!(displayed_state(&account("a").wanted_inactive()), State::Inactive);
}

#[test]
fn what_is_handled_shows_the_state_of_the_status() {
    use DesiredState::{Active, Inactive};
    for state in [State::ToMigrate, State::Activating, State::Active, State::Failed, State::Orphaned] {
        assert_eq!(displayed_state(&row(state, Active)), state);
    }
    for state in [State::Inactive, State::Deactivating, State::Deleting, State::DeleteFailed, State::Failed] {
        assert_eq!(displayed_state(&row(state, Inactive)), state);
    }
}

#[test]
fn each_request_shows_what_the_table_says() {
    use DesiredState::{Active, Inactive};
    use State::{Activating, Deactivating, Deleting, Failed, Orphaned, ToDeactivate, ToMigrate};
    // now, desired, then: PATCH ACTIVE, PATCH INACTIVE, PUT, DELETE
    let table = [
        (State::Inactive, Inactive, ToMigrate, State::Inactive, State::Inactive, Deleting),
        (ToMigrate, Active, ToMigrate, ToDeactivate, ToMigrate, Deleting),
        (Activating, Active, Activating, ToDeactivate, Activating, Deleting),
        (State::Active, Active, State::Active, ToDeactivate, State::Active, Deleting),
        (Deactivating, Inactive, Deactivating, Deactivating, Deactivating, Deleting),
        (Deleting, Active, Deleting, Deleting, Deleting, Deleting),
        (Failed, Active, ToMigrate, ToDeactivate, ToMigrate, Deleting),
        (Failed, Inactive, Deactivating, Deactivating, Failed, Deleting),
        (Orphaned, Active, Orphaned, ToDeactivate, Orphaned, Deleting),
    ];
    for (now, desired, active, inactive, changed, gone) in table {
        assert_eq!(patched(row(now, desired), Active), active, "PATCH ACTIVE in {now}");
        assert_eq!(patched(row(now, desired), Inactive), inactive, "PATCH INACTIVE in {now}");
        assert_eq!(put(row(now, desired)), changed, "PUT in {now}");
        assert_eq!(deleted(row(now, desired)), gone, "DELETE in {now}");
    }
}

#[test]
fn to_deactivate_shows_the_next_wish() {
    let asked = || row(State::Active, DesiredState::Active).wanted_inactive().edited();
    assert_eq!(displayed_state(&asked()), State::ToDeactivate);
    assert_eq!(patched(asked(), DesiredState::Inactive), State::ToDeactivate);
    assert_eq!(put(asked()), State::ToDeactivate);
    assert_eq!(deleted(asked()), State::Deleting);
    // Nothing has begun, so that nothing is to be undone.
    assert_eq!(patched(asked(), DesiredState::Active), State::Active);
}

#[test]
fn a_failed_move_that_is_not_wanted_any_more_is_to_be_deactivated() {
    let failed = account("a")
        .in_state(State::Failed)
        .granted(GrantPhase::Revoking, "east", 2)
        .pinned("west")
        .wanted_inactive();
    assert_eq!(displayed_state(&failed.edited()), State::ToDeactivate);
}

#[test]
fn a_retry_shows_to_migrate_while_agents_in_the_wrong_cluster_or_a_tried_zone_still_drop_it() {
    let revoking = || account("a").granted(GrantPhase::Revoking, "east", 2);
    let wrong = revoking().failed_with(FailureClass::ClusterMismatch, 1);
    let tried = revoking().failed_with(FailureClass::Internal, 1).having_tried(&["east"]);
    for failed in [wrong, tried] {
        assert_eq!(displayed_state(&failed), State::Failed);
        assert_eq!(patched(failed.clone(), DesiredState::Active), State::ToMigrate);
        assert_eq!(patched(failed, DesiredState::Inactive), State::ToDeactivate);
    }
}

#[test]
fn delete_failed_shows_deleting_when_a_retry_was_asked_for() {
    let failed = row(State::DeleteFailed, DesiredState::Active);
    assert_eq!(displayed_state(&failed), State::DeleteFailed);
    assert_eq!(deleted(failed), State::Deleting);
}

#[test]
fn a_failed_account_without_a_grant_goes_inactive_straight_and_shows_the_wish_until_then() {
    let failed = account("a").failed_with(FailureClass::NoAgent, 0);
    assert_eq!(patched(failed.clone(), DesiredState::Inactive), State::ToDeactivate);
    assert_eq!(patched(failed, DesiredState::Active), State::ToMigrate);
}
