//! The searches.

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
    eprintln!("{seen:?}");
}
