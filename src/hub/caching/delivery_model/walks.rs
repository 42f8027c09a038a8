//! The properties hold in all explored worlds.

use std::io::Write as _;

use super::search::{Seen, keep_busy, search, walk};
use super::steps::{Budget, FAULTS};

/// Faults while the settings change.
const CHANGES: Budget = Budget { kinds: 2, shapes: 1, filters: 1, ..FAULTS };
/// Faults and lost commits.
const LOSSES: Budget = Budget { losses: 2, moves: 0, ..FAULTS };

fn holds(seeds: u64, budget: Budget) {
    for seed in 0..seeds {
        if let Err(violation) = walk(seed, budget, None) {
            unreachable!("seed {seed}: {}", violation.story);
        }
    }
}

/// Searches every order of steps, up to `most` worlds.
fn holds_in_every_order(budget: Budget, most: usize) -> Seen {
    let seen = search(budget, None, most);
    let seen = seen.unwrap_or_else(|violation| unreachable!("{budget:?}: {}", violation.story));
    assert!(seen.is_complete && seen.ends > 0, "{budget:?}: {seen:?}");
    seen
}

#[test]
fn rows_become_the_objects_in_random_orders_with_all_faults() {
    holds(1000, FAULTS);
}

#[test]
fn rows_become_the_objects_after_lost_commits() {
    holds(1000, LOSSES);
}

#[test]
fn rows_become_what_the_settings_ask_for_after_they_changed() {
    holds(1000, CHANGES);
}

#[test]
fn an_object_that_changes_all_the_time_is_written() {
    if let Err(violation) = keep_busy(None) {
        unreachable!("{}", violation.story);
    }
}

#[test]
fn every_order_of_a_cut_with_a_hub_that_wakes_up_holds() {
    holds_in_every_order(Budget { writes: 1, cuts: 1, ..Budget::default() }, 300_000);
}

#[test]
fn every_order_of_a_move_holds() {
    holds_in_every_order(Budget { moves: 1, ..Budget::default() }, 300_000);
}

#[test]
#[ignore = "a few minutes: make model"]
fn every_order_of_larger_worlds_holds() {
    let write = Budget { writes: 1, ..Budget::default() };
    for budget in [
        Budget { moves: 1, ..write },
        Budget { deletes: 1, cuts: 1, ..write },
        Budget { moves: 1, crashes: 1, ..write },
        Budget { cuts: 1, off_on: 1, ..write },
        Budget { relists: 1, cuts: 1, ..write },
        Budget { shapes: 1, ..write },
        Budget { filters: 1, ..write },
        Budget { kinds: 2, ..Budget::default() },
        Budget { shapes: 1, cuts: 1, ..Budget::default() },
        Budget { shapes: 1, off_on: 1, ..Budget::default() },
    ] {
        let seen = holds_in_every_order(budget, 1_000_000);
        let _ = writeln!(std::io::stderr(), "{budget:?}: {seen:?}");
    }
    for budget in [FAULTS, LOSSES, CHANGES] {
        holds(30_000, budget);
    }
}
