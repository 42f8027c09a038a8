//! The properties hold in all worlds, and each rule left out breaks one of them.

use std::io::Write as _;

use super::search::{search, walk};
use super::world::Budget;
use super::{Property, Rule};

const FAULTS: Budget = Budget {
    writes: 6,
    deletes: 2,
    others: 2,
    compactions: 1,
    cuts: 3,
    crashes: 1,
    moves: 2,
    off_on: 1,
    relists: 1,
    losses: 0,
    late_reads: 3,
    small_batches: 6,
};

fn holds(seeds: u64, budget: Budget) {
    for seed in 0..seeds {
        if let Err(violation) = walk(seed, budget, None) {
            unreachable!("seed {seed}: {}", violation.story);
        }
    }
}

/// Some walk without the rule violates the property.
fn breaks(rule: Rule, property: Property, budget: Budget) {
    let breaks = |seed| walk(seed, budget, Some(rule)).is_err_and(|violation| violation.property == property);
    assert!((0..60_000).any(breaks), "{property:?} holds without {rule:?}");
}

#[test]
fn rows_become_the_objects_in_random_orders_with_all_faults() {
    holds(1500, FAULTS);
}

#[test]
fn rows_become_the_objects_after_lost_commits() {
    holds(1500, Budget { losses: 2, moves: 0, ..FAULTS });
}

#[test]
fn every_order_of_a_cut_with_a_hub_that_wakes_up_holds() {
    let budget = Budget { writes: 1, cuts: 1, ..Budget::default() };
    let seen = search(budget, None, 300_000).unwrap_or_else(|violation| unreachable!("{}", violation.story));
    assert!(seen.is_complete && seen.ends > 0, "{seen:?}");
}

#[test]
fn every_order_of_a_move_holds() {
    let budget = Budget { writes: 1, moves: 1, ..Budget::default() };
    let seen = search(budget, None, 300_000).unwrap_or_else(|violation| unreachable!("{}", violation.story));
    assert!(seen.is_complete && seen.ends > 0, "{seen:?}");
}

#[test]
fn without_the_check_of_the_epoch_a_former_agent_writes() {
    breaks(Rule::EpochIsChecked, Property::RowsNeverGoBack, FAULTS);
}

#[test]
fn without_the_check_of_prev_a_sleeping_hub_writes_old_batches() {
    let budget = Budget { moves: 0, crashes: 0, ..FAULTS };
    breaks(Rule::PrevIsChecked, Property::RowsNeverGoBack, budget);
}

#[test]
fn with_the_checkpoints_read_before_the_fence_rows_go_back() {
    let budget = Budget { writes: 6, cuts: 2, off_on: 2, small_batches: 3, ..Budget::default() };
    breaks(Rule::FenceIsReadFirst, Property::RowsNeverGoBack, budget);
}

#[test]
fn an_ack_before_the_commit_is_a_lie() {
    breaks(Rule::AckAfterCommit, Property::AcknowledgedIsCommitted, FAULTS);
}

#[test]
fn with_rows_and_checkpoint_apart_a_change_is_before_the_checkpoint() {
    breaks(Rule::OneTransaction, Property::NoChangeIsBeforeTheCheckpoint, FAULTS);
}

#[test]
fn with_a_checkpoint_during_a_list_rows_go_back() {
    breaks(Rule::ListTakesTheCheckpoint, Property::RowsNeverGoBack, FAULTS);
}

#[test]
fn without_a_basis_deletes_are_lost() {
    breaks(Rule::ListHasABasis, Property::NoChangeIsBeforeTheCheckpoint, FAULTS);
}

#[test]
fn with_numbers_used_again_a_number_has_two_contents() {
    let budget = Budget { moves: 0, crashes: 0, cuts: 0, off_on: 3, ..FAULTS };
    breaks(Rule::NumbersAreNotReused, Property::OneContentForEachNumber, budget);
}

#[test]
fn with_reports_of_former_readers_a_change_is_before_the_checkpoint() {
    breaks(Rule::FormerReadersAreIgnored, Property::NoChangeIsBeforeTheCheckpoint, FAULTS);
}

#[test]
#[ignore = "a few minutes: make model"]
fn every_order_of_larger_worlds_holds() {
    let cut = Budget { writes: 1, ..Budget::default() };
    for budget in [
        Budget { deletes: 1, cuts: 1, ..cut },
        Budget { moves: 1, crashes: 1, ..cut },
        Budget { cuts: 1, off_on: 1, ..cut },
        Budget { relists: 1, cuts: 1, ..cut },
    ] {
        let seen = search(budget, None, 600_000);
        let seen = seen.unwrap_or_else(|violation| unreachable!("{budget:?}: {}", violation.story));
        assert!(seen.is_complete && seen.ends > 0, "{budget:?}: {seen:?}");
        let _ = writeln!(std::io::stderr(), "{budget:?}: {seen:?}");
    }
    holds(30_000, FAULTS);
    holds(30_000, Budget { losses: 2, moves: 0, ..FAULTS });
}
