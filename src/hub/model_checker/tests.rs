//! The searches.
#![expect(clippy::panic, reason = "this is how a test fails")]

use crate::hub::model_checker::checks::Property;
use crate::hub::model_checker::scenario::{EAST, Faults, PersonAction, Scenario, WEST};
use crate::hub::model_checker::search::{VisitedWorlds, search};
use crate::hub::model_checker::world::{AccountVariant, ModelWorld, Rules};

mod full;

/// More worlds than any of these has.
const MOST: usize = 200_000;

/// All that can happen is seen, and all properties hold.
fn holds(
    agents: &'static [(&'static str, &'static str)],
    script: &'static [PersonAction],
    faults: Faults,
) -> VisitedWorlds {
    let scenario = Scenario { name: "", agents, script, faults };
    match search(ModelWorld::new(&scenario, Rules::ALL), MOST) {
        Ok(seen) if seen.is_complete && seen.ends > 0 => seen,
        Ok(seen) => panic!("not all was seen: {seen:?}"),
        Err(broken) => panic!("{}", broken.story),
    }
}

#[test]
fn an_account_is_activated_whatever_the_order() {
    let seen = holds(&[EAST, WEST], &[], Faults { lag: 1, ..Faults::NONE });
    assert!(seen.states > 300, "{seen:?}");
}

#[test]
fn an_account_moves_to_another_zone_with_watches_that_lag() {
    let seen = holds(&[EAST, WEST], &[PersonAction::OtherZone], Faults { lag: 1, ..Faults::NONE });
    assert!(seen.states > 2000, "{seen:?}");
}

#[test]
fn an_account_is_deleted_and_made_anew_under_its_name() {
    let script = &[PersonAction::Delete, PersonAction::Recreate, PersonAction::OtherState];
    let seen = holds(&[EAST], script, Faults { lag: 1, ..Faults::NONE });
    assert!(seen.states > 500, "{seen:?}");
}

#[test]
fn approval_is_withdrawn_while_the_account_moves_to_another_zone() {
    let seen = holds(&[EAST, WEST], &[PersonAction::Disapprove, PersonAction::OtherZone], LAG);
    assert!(seen.states > 5000, "{seen:?}");
}

#[test]
fn stream_is_cut_during_a_revoke() {
    let seen = holds(&[EAST], &[PersonAction::OtherState], Faults { cuts: 1, lag: 1, ..Faults::NONE });
    assert!(seen.states > 10_000, "{seen:?}");
}

#[test]
fn agent_restarts_during_a_revoke() {
    let seen = holds(&[EAST], &[PersonAction::OtherState], Faults { restarts: 1, lag: 1, ..Faults::NONE });
    assert!(seen.states > 5000, "{seen:?}");
}

#[test]
fn two_processes_under_one_id_do_not_push_each_other_out() {
    let seen = holds(&[EAST, EAST], &[], Faults { lag: 1, ..Faults::NONE });
    assert!(seen.states > 100, "{seen:?}");
}

#[test]
fn leader_changes_during_a_revoke() {
    let faults = Faults { takeovers: 1, late: 2, lag: 1, ..Faults::NONE };
    let seen = holds(&[EAST], &[PersonAction::OtherState], faults);
    assert!(seen.states > 3000, "{seen:?}");
}

#[test]
fn replica_dies_during_a_revoke() {
    let seen = holds(&[EAST], &[PersonAction::OtherState], Faults { crashes: 1, lag: 1, ..Faults::NONE });
    assert!(seen.states > 5000, "{seen:?}");
}

#[test]
fn a_leader_that_slept_harms_no_deletion() {
    let faults = Faults { takeovers: 1, sleeps: 1, ..Faults::NONE };
    let seen = holds(&[EAST], &[PersonAction::Delete], faults);
    assert!(seen.states > 2000, "{seen:?}");
}

/// Beside the one in zone east.
const EAST_2: (&str, &str) = ("f", "east");
const LISTED: AccountVariant = AccountVariant::Listed { by: "e" };
/// The agent of zone west is a stranger.
const UNPINNED: AccountVariant = AccountVariant::Unpinned { unlisted_fact: "w" };

/// As [`holds`], with an account of this kind.
fn holds_for(
    kind: AccountVariant,
    agents: &'static [(&'static str, &'static str)],
    script: &'static [PersonAction],
    faults: Faults,
) -> VisitedWorlds {
    let scenario = Scenario { name: "", agents, script, faults };
    match search(ModelWorld::new(&scenario, Rules::ALL).with(kind), MOST) {
        Ok(seen) if seen.is_complete && seen.ends > 0 => seen,
        Ok(seen) => panic!("not all was seen: {seen:?}"),
        Err(broken) => panic!("{}", broken.story),
    }
}

fn breaks_for(
    kind: AccountVariant,
    faults: Faults,
    rules: Rules,
    agents: &'static [(&'static str, &'static str)],
) -> Property {
    let scenario = Scenario { name: "", agents, script: &[], faults };
    match search(ModelWorld::new(&scenario, rules).with(kind), MOST) {
        Ok(seen) => panic!("nothing broke: {seen:?}"),
        Err(broken) => broken.property,
    }
}

#[test]
fn an_account_of_an_agents_own_file_comes_to_that_agent_alone_though_its_stream_is_cut() {
    let cut = Faults { cuts: 1, ..Faults::NONE };
    let seen = holds_for(LISTED, &[EAST, EAST_2], &[], cut);
    assert!(seen.states > 500, "{seen:?}");
}

#[test]
fn an_account_without_a_zone_comes_to_one_of_which_an_agent_is_approved() {
    let seen = holds_for(UNPINNED, &[EAST, WEST], &[], LAG);
    assert!(seen.states > 500, "{seen:?}");
}

#[test]
fn account_without_a_zone_settles_in_one_of_two_offered_zones() {
    let seen = holds_for(AccountVariant::Unpinned { unlisted_fact: "" }, &[EAST, WEST], &[], Faults::NONE);
    assert!(seen.states > 500, "{seen:?}");
}

#[test]
fn without_lists_a_static_account_is_sent_to_another_agent() {
    let rules = Rules { own_lists: false, ..Rules::ALL };
    assert_eq!(breaks_for(LISTED, Faults::NONE, rules, &[EAST, EAST_2]), Property::SentToListers);
}

#[test]
fn without_lists_of_absent_agents_a_cut_deletes_their_accounts() {
    let rules = Rules { away_lists: false, ..Rules::ALL };
    let cut = Faults { cuts: 1, ..Faults::NONE };
    assert_eq!(breaks_for(LISTED, cut, rules, &[EAST, EAST_2]), Property::ListedStays);
}

#[test]
fn without_the_offers_rule_an_account_goes_to_the_zone_of_an_unapproved_agent() {
    let rules = Rules { approved_offers: false, ..Rules::ALL };
    assert_eq!(breaks_for(UNPINNED, Faults::NONE, rules, &[EAST, WEST]), Property::ZoneMayOffer);
}

/// Leaves a rule out, and looks for a property that does not hold any more.
fn breaks(
    script: &'static [PersonAction],
    faults: Faults,
    rules: Rules,
    agents: &'static [(&'static str, &'static str)],
    but: &[Property],
) -> Property {
    let scenario = Scenario { name: "", agents, script, faults };
    let mut begin = ModelWorld::new(&scenario, rules);
    begin.ignored = but.first().copied();
    match search(begin, MOST) {
        Ok(seen) => panic!("nothing broke: {seen:?}"),
        Err(broken) => broken.property,
    }
}

const LAG: Faults = Faults { lag: 1, ..Faults::NONE };
const CUT: Faults = Faults { cuts: 1, lag: 1, ..Faults::NONE };
const SLEEP: Faults = Faults { takeovers: 1, sleeps: 1, ..Faults::NONE };

#[test]
fn without_preconditions_a_leader_of_before_writes_over_the_next_one() {
    let rules = Rules { preconditions: false, ..Rules::ALL };
    let faults = Faults { takeovers: 1, late: 1, ..LAG };
    assert_eq!(breaks(&[PersonAction::OtherState], faults, rules, &[EAST], &[]), Property::EpochGrows);
}

#[test]
fn without_the_none_phase_a_zone_changes_in_one_write() {
    let rules = Rules { zone_over_none: false, ..Rules::ALL };
    assert_eq!(breaks(&[PersonAction::OtherZone], LAG, rules, &[EAST, WEST], &[]), Property::ZoneThroughNone);
}

#[test]
#[ignore = "a minute: make model"]
fn without_uids_a_report_about_the_former_account_ends_the_revoke_of_the_next() {
    let rules = Rules { uids: false, ..Rules::ALL };
    let script = &[PersonAction::Delete, PersonAction::Recreate, PersonAction::OtherState];
    assert_eq!(breaks(script, CUT, rules, &[EAST], &[]), Property::NoHolderAfterRevoke);
}

#[test]
fn with_silence_as_dropped_an_agent_holds_a_revoked_account() {
    let rules = Rules { reports_only: false, ..Rules::ALL };
    assert_eq!(breaks(&[PersonAction::OtherState], LAG, rules, &[EAST], &[]), Property::NoHolderAfterRevoke);
}

#[test]
fn without_registration_the_leader_does_not_wait_for_a_session_it_does_not_see() {
    let rules = Rules { registration: false, ..Rules::ALL };
    let broken = breaks(&[PersonAction::OtherState], CUT, rules, &[EAST], &[Property::Rest]);
    assert_eq!(broken, Property::NoHolderAfterRevoke);
}

#[test]
#[ignore = "a minute: make model"]
fn without_unique_ids_two_processes_displace_each_other_forever() {
    let rules = Rules { one_process: false, ..Rules::ALL };
    assert_eq!(breaks(&[], LAG, rules, &[EAST, EAST], &[]), Property::NoLivelock);
}

#[test]
fn without_terms_a_suspended_leader_writes_a_row_of_a_deleted_object() {
    let rules = Rules { terms: false, ..Rules::ALL };
    let broken = |but| breaks(&[PersonAction::Delete], SLEEP, rules, &[EAST], but);
    assert_eq!(broken(&[]), Property::NewestTermWritesRows);
    assert_eq!(broken(&[Property::NewestTermWritesRows]), Property::RowHasObject);
}

#[test]
fn without_reading_sessions_a_revoke_ends_while_an_unseen_session_holds_the_account() {
    let rules = Rules { sessions_read: false, ..Rules::ALL };
    assert_eq!(breaks(&[PersonAction::OtherState], CUT, rules, &[EAST], &[]), Property::NoHolderAfterRevoke);
}

#[test]
fn without_reading_sessions_a_stale_watch_makes_a_zone_look_deserted() {
    let rules = Rules { sessions_read: false, ..Rules::ALL };
    assert_eq!(breaks(&[], CUT, rules, &[EAST], &[]), Property::OrphanedIsDeserted);
}

#[test]
fn without_expiring_reads_a_revoke_ends_while_a_newer_session_holds_the_account() {
    let rules = Rules { reads_afresh: false, ..Rules::ALL };
    let broken = |but| breaks(&[PersonAction::OtherState], CUT, rules, &[EAST], but);
    assert_eq!(broken(&[]), Property::OrphanedIsDeserted);
    assert_eq!(broken(&[Property::OrphanedIsDeserted]), Property::NoHolderAfterRevoke);
}

#[test]
fn without_reading_the_object_a_new_session_is_sent_a_revoked_account() {
    let rules = Rules { object_read: false, ..Rules::ALL };
    assert_eq!(breaks(&[PersonAction::Delete], CUT, rules, &[EAST], &[]), Property::SentUnderGrant);
}

#[test]
fn without_waiting_for_withdrawn_agents_one_holds_a_revoked_account() {
    let rules = Rules { unapproved_awaited: false, ..Rules::ALL };
    let script = &[PersonAction::Disapprove, PersonAction::OtherState];
    assert_eq!(breaks(script, LAG, rules, &[EAST], &[]), Property::NoHolderAfterRevoke);
}

#[test]
fn without_superseding_a_revoke_ends_by_a_stale_sessions_report() {
    let rules = Rules { in_force_only: false, ..Rules::ALL };
    assert_eq!(breaks(&[PersonAction::OtherState], CUT, rules, &[EAST], &[]), Property::NoHolderAfterRevoke);
}
