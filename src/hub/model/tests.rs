//! The searches.
#![expect(clippy::panic, reason = "this is how a test fails")]

use super::search::{Limits, Seen, search};
use super::world::{Faults, Rules};

const SMALL: Limits = Limits { worlds: 20_000, settle_each: 20 };

fn holds(faults: Faults) -> Seen {
    match search(faults, Rules::ALL, SMALL) {
        Ok(seen) => seen,
        Err(story) => panic!("{story}"),
    }
}

#[test]
fn an_account_is_activated_whatever_the_order() {
    let seen = holds(Faults { lag: 1, ..Faults::default() });
    assert!(seen.is_complete && seen.worlds > 50, "{seen:?}");
}

#[test]
fn a_change_of_mind_while_leadership_moves_and_a_stream_is_cut_harms_nothing() {
    let seen = holds(Faults { wishes: 1, takeovers: 1, cuts: 1, lag: 1, ..Faults::default() });
    assert!(seen.worlds > 1000 && seen.settled > 100, "{seen:?}");
}

/// Leaves a rule out, and says what broke.
fn breaks(faults: Faults, rules: Rules) -> String {
    match search(faults, rules, Limits { worlds: 60_000, settle_each: 3 }) {
        Ok(seen) => panic!("nothing broke: {seen:?}"),
        Err(story) => story,
    }
}

const MOVES: Faults = Faults {
    wishes: 2,
    takeovers: 1,
    cuts: 1,
    restarts: 0,
    failures: 0,
    delays: 0,
    lag: 1,
    duplicate: false,
};

#[test]
fn without_preconditions_a_leader_of_before_writes_over_the_next_one() {
    breaks(MOVES, Rules { preconditions: false, ..Rules::ALL });
}

#[test]
fn where_the_zone_changes_in_one_write_two_zones_have_the_grant() {
    breaks(MOVES, Rules { zone_over_none: false, ..Rules::ALL });
}

#[test]
fn without_uids_the_word_for_an_account_of_before_counts_for_the_next() {
    breaks(Faults { wishes: 2, lag: 1, ..MOVES }, Rules { uids: false, ..Rules::ALL });
}

#[test]
fn where_silence_is_a_word_an_agent_still_has_what_was_taken_back() {
    breaks(MOVES, Rules { words_only: false, ..Rules::ALL });
}

#[test]
fn without_registration_the_leader_does_not_wait_for_a_session_it_does_not_see() {
    breaks(MOVES, Rules { registration: false, ..Rules::ALL });
}

#[test]
fn where_two_processes_may_have_one_id_they_push_each_other_out_for_ever() {
    breaks(Faults { duplicate: true, ..MOVES }, Rules { one_process: false, ..Rules::ALL });
}
