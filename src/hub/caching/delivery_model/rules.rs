//! Each omitted rule breaks a property.

use super::search::{keep_busy, walk};
use super::steps::{Budget, FAULTS};
use super::{Property, Rule};

/// Maximum number of walks until one of them breaks the property.
const MAX_WALKS: u64 = 60_000;

/// Asserts that some walk without the rule violates the property.
fn breaks(rule: Rule, property: Property, budget: Budget) {
    breaks_from(0, rule, property, budget);
}

/// Like [`breaks`], beginning with a seed that is known to break the property, where few do.
fn breaks_from(first: u64, rule: Rule, property: Property, budget: Budget) {
    let breaks =
        |seed: &u64| walk(*seed, budget, Some(rule)).is_err_and(|violation| violation.property == property);
    let seed = (first..MAX_WALKS).chain(0..first).find(breaks);
    // Shown with `--nocapture`.
    println!("{rule:?}: seed {seed:?}");
    assert!(seed.is_some(), "{property:?} holds without {rule:?}");
}

#[test]
fn with_a_changed_object_in_its_former_place_a_change_is_before_the_checkpoint() {
    let budget = Budget { bursts: 3, small_batches: 6, ..Budget::default() };
    breaks(Rule::ChangedObjectsMoveToTheEnd, Property::NoChangeIsBeforeTheCheckpoint, budget);
}

#[test]
fn without_a_delete_that_followed_an_upsert_the_row_stays() {
    let budget = Budget { bursts: 3, ..Budget::default() };
    breaks(Rule::DeletesAreKept, Property::NoChangeIsBeforeTheCheckpoint, budget);
}

#[test]
fn without_a_place_of_its_own_a_busy_object_is_never_written() {
    let violation = keep_busy(Some(Rule::BusyObjectsKeepTheirPlace)).expect_err("the row stands still");
    assert_eq!(violation.property, Property::BusyObjectsAreWritten, "{}", violation.story);
}

#[test]
fn with_the_checkpoint_of_what_is_read_a_change_that_waits_is_before_it() {
    let budget = Budget { bursts: 3, small_batches: 6, ..Budget::default() };
    breaks(Rule::CheckpointIsOfTheLastEvent, Property::NoChangeIsBeforeTheCheckpoint, budget);
}

#[test]
fn with_a_refused_change_that_counts_as_read_it_is_before_the_checkpoint() {
    let budget = Budget { writes: 3, refusals: 2, ..Budget::default() };
    breaks(Rule::RefusedChangesAreReadAgain, Property::NoChangeIsBeforeTheCheckpoint, budget);
}

#[test]
fn with_batches_cut_anew_for_a_new_stream_a_change_counts_as_written_and_is_not() {
    let budget = Budget { writes: 4, cuts: 1, ..Budget::default() };
    breaks(Rule::ResendsHaveTheSameBytes, Property::NoChangeIsBeforeTheCheckpoint, budget);
}

#[test]
fn with_numbers_used_again_a_number_has_two_contents() {
    let budget = Budget { moves: 0, crashes: 0, cuts: 0, off_on: 3, ..FAULTS };
    breaks(Rule::NumbersAreNotReused, Property::OneContentForEachNumber, budget);
}

#[test]
fn with_a_new_delivery_that_goes_on_where_the_former_one_has_read_changes_are_lost() {
    let budget = Budget { writes: 4, off_on: 2, ..Budget::default() };
    breaks(Rule::ScopesGoOnFromTheCheckpoint, Property::NoChangeIsBeforeTheCheckpoint, budget);
}

#[test]
fn with_reports_of_former_readers_a_change_is_before_the_checkpoint() {
    breaks(Rule::FormerReadersAreIgnored, Property::NoChangeIsBeforeTheCheckpoint, FAULTS);
}

#[test]
fn with_the_answer_to_a_former_begin_a_batch_is_sent_before_its_own() {
    let budget = Budget { kinds: 2, off_on: 2, ..Budget::default() };
    breaks(Rule::FormerAnswersAreIgnored, Property::NothingIsRefused, budget);
}

#[test]
fn with_the_answer_to_a_former_begin_rows_of_a_kind_that_is_not_watched_stay() {
    let budget = Budget { kinds: 1, off_on: 2, ..Budget::default() };
    breaks(Rule::FormerAnswersAreIgnored, Property::RowsBecomeTheObjects, budget);
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
    breaks_from(11_637, Rule::FenceIsReadFirst, Property::RowsNeverGoBack, budget);
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
fn with_a_basis_from_before_the_commit_an_object_that_was_sent_stays() {
    let budget = Budget { writes: 4, deletes: 3, relists: 3, ..Budget::default() };
    breaks(Rule::BasisFollowsTheCommit, Property::NoChangeIsBeforeTheCheckpoint, budget);
}

#[test]
fn without_a_basis_deletes_are_lost() {
    breaks(Rule::ListHasABasis, Property::NoChangeIsBeforeTheCheckpoint, FAULTS);
}

#[test]
fn with_a_checkpoint_of_another_shape_new_rows_are_beside_old_ones() {
    let budget = Budget { writes: 4, shapes: 1, off_on: 1, ..Budget::default() };
    breaks(Rule::ShapeIsCompared, Property::RowsHaveTheirShape, budget);
}

#[test]
fn with_a_checkpoint_of_another_filter_changes_are_left_out_and_before_it() {
    let budget = Budget { writes: 4, filters: 1, off_on: 1, ..Budget::default() };
    breaks(Rule::FilterIsCompared, Property::NoChangeIsBeforeTheCheckpoint, budget);
}

#[test]
fn with_the_checkpoint_of_a_scope_that_is_declared_anew_old_rows_count_as_new() {
    let budget = Budget { writes: 1, shapes: 1, ..Budget::default() };
    breaks(Rule::AddedScopesAreCompared, Property::RowsHaveTheirShape, budget);
}

#[test]
fn without_the_objects_that_have_not_changed_rows_keep_their_former_shape() {
    let budget = Budget { writes: 1, shapes: 1, ..Budget::default() };
    breaks(Rule::OtherShapesAreSentWhole, Property::RowsHaveTheirShape, budget);
}

#[test]
fn with_a_shape_that_counts_before_its_list_is_complete_rows_keep_the_former_one() {
    let budget = Budget { writes: 1, shapes: 1, ..Budget::default() };
    breaks(Rule::ShapeCountsAfterACompleteList, Property::RowsHaveTheirShape, budget);
}

#[test]
fn with_the_checkpoint_of_a_removed_scope_swept_rows_are_missing() {
    let budget = Budget { writes: 2, kinds: 2, ..Budget::default() };
    breaks(Rule::RemovedScopesLoseTheirCheckpoint, Property::NoChangeIsBeforeTheCheckpoint, budget);
}

#[test]
fn without_the_removal_of_others_rows_of_a_kind_that_is_not_watched_stay() {
    let budget = Budget { kinds: 1, off_on: 1, ..Budget::default() };
    breaks(Rule::OthersAreRemoved, Property::RowsBecomeTheObjects, budget);
}
