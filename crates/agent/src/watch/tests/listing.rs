//! From the beginning of a list to its end.

use super::*;
use crate::scrub::Exclusion;

#[test]
fn scope_without_checkpoint_lists_in_pages_and_then_watches() {
    let mut scope = Scope::unknown();
    let key = scope.begin_list(&[]);
    assert_eq!(scope.page_request().query(), "limit=500");
    assert_eq!(scope.item(&object("a", "5")), ItemStep::Upsert);
    assert_eq!(scope.page_end("10", Some("t1")), PageStep::More);
    assert_eq!(scope.page_request().query(), "limit=500&continue=t1");
    assert_eq!(scope.item(&object("b", "6")), ItemStep::Upsert);
    let end = scope.complete("10");
    assert_eq!(end.leftover.len(), 0);
    let synced = end.synced;
    assert_eq!((synced.sync_key, synced.rv), (key, "10".to_owned()));
    assert_eq!([synced.listed, synced.kept, synced.sent, synced.deleted], [2, 0, 2, 0]);
    scope.watch_version("10");
    assert!(scope.machine.problem().is_none() && !scope.machine.is_listing());
}

#[test]
fn watch_begins_at_the_version_of_the_first_page() {
    let mut scope = Scope::unknown();
    scope.begin_list(&[]);
    scope.page_end("10", Some("t"));
    assert_eq!(scope.complete("12").synced.rv, "10");
    scope.watch_version("10");
}

#[test]
fn fresh_checkpoint_is_resumed_after_a_check_and_an_old_one_is_listed() {
    let start = |age: Duration, resend: bool| {
        Scope::new(ScopeStart { resource_version: "7".to_owned(), age, resend }).machine.action()
    };
    assert!(matches!(start(5 * MINUTE, false), ScopeAction::CheckVersion(_)));
    assert_eq!(start(5 * MINUTE + SECOND, false), ScopeAction::BeginSync);
    assert_eq!(start(SECOND, true), ScopeAction::BeginSync);
}

#[test]
fn list_sends_only_what_differs_from_the_basis() {
    let mut scope = Scope::unknown();
    scope.begin_list(&[object("same", "1"), object("changed", "2"), object("gone", "3")]);
    assert_eq!(scope.item(&object("same", "1")), ItemStep::Skip);
    assert_eq!(scope.item(&object("changed", "4")), ItemStep::Upsert);
    assert_eq!(scope.item(&object("new", "5")), ItemStep::Upsert);
    let end = scope.complete("10");
    assert_eq!(end.leftover.map(|row| row.name).collect::<Vec<_>>(), ["gone"]);
    let synced = end.synced;
    assert_eq!([synced.listed, synced.kept, synced.sent, synced.deleted], [3, 1, 2, 1]);
}

#[test]
fn rows_of_another_shape_are_a_basis_for_deletes_alone() {
    let start = ScopeStart { resource_version: "7".to_owned(), resend: true, ..ScopeStart::default() };
    let mut scope = Scope::new(start);
    scope.begin_list(&[object("same", "1"), object("gone", "3")]);
    assert_eq!(scope.item(&object("same", "1")), ItemStep::Upsert);
    let end = scope.complete("10");
    assert_eq!((end.leftover.len(), end.synced.kept, end.synced.sent), (1, 0, 1));
}

#[test]
fn row_of_an_object_that_is_left_out_is_left_over() {
    let mut scope = Scope::unknown();
    scope.begin_list(&[object("a", "1"), object("b", "1")]);
    let item = scope.machine.item(&object("a", "1"), Some(Exclusion::Ignored), scope.now);
    assert_eq!(item, ItemStep::Skip);
    scope.machine.unidentified_item(scope.now);
    let end = scope.complete("10");
    assert_eq!((end.leftover.len(), end.synced.listed, end.synced.deleted), (2, 2, 2));
}

#[test]
fn expired_page_begins_a_new_list_with_a_larger_limit_and_then_without() {
    let mut scope = Scope::unknown();
    for limit in [Some(500), Some(2000)] {
        let key = scope.begin_list(&[]);
        assert_eq!(scope.page_request().limit, limit);
        scope.item(&object("a", "5"));
        assert_eq!(scope.page_end("10", Some("t")), PageStep::More);
        scope.status(410);
        // The key is given up: what is late for it changes nothing.
        scope.machine.basis_end(&key, scope.now);
        assert_eq!(scope.machine.action(), ScopeAction::BeginSync);
    }
    scope.begin_list(&[]);
    assert_eq!(scope.page_request().query(), "");
    scope.complete("11");
    // The next list begins as the first did.
    scope.machine.relist(false);
    scope.begin_list(&[]);
    assert_eq!(scope.page_request().limit, Some(500));
}

#[test]
fn expired_list_without_limit_takes_its_time() {
    let mut scope = Scope::unknown();
    for _ in 0..3 {
        scope.begin_list(&[]);
        scope.page_end("10", Some("t"));
        scope.status(410);
        if scope.machine.action() != ScopeAction::BeginSync {
            break;
        }
    }
    assert!(scope.waits(WaitReason::Retry) > Duration::ZERO);
}

#[test]
fn failed_page_is_repeated_and_its_items_are_not_counted() {
    let mut scope = Scope::unknown();
    scope.begin_list(&[]);
    scope.item(&object("a", "5"));
    scope.page_end("10", Some("t"));
    let before = scope.page_request();
    scope.item(&object("b", "6"));
    scope.broken();
    let wait = scope.waits(WaitReason::Retry);
    assert!(wait <= SECOND);
    scope.pass(wait);
    let again = scope.page_request();
    assert_eq!((again.query(), again.attempt > before.attempt), (before.query(), true));
    scope.item(&object("b", "6"));
    let synced = scope.complete("10").synced;
    assert_eq!([synced.listed, synced.sent], [2, 2]);
}

#[test]
fn first_page_that_broke_after_an_item_begins_a_new_sync() {
    let mut scope = Scope::unknown();
    scope.begin_list(&[]);
    scope.broken();
    scope.pass(2 * SECOND);
    assert_eq!(scope.page_request().query(), "limit=500");
    scope.item(&object("a", "5"));
    scope.broken();
    scope.pass(4 * SECOND);
    assert_eq!(scope.machine.action(), ScopeAction::BeginSync);
}

#[test]
fn list_older_than_what_was_read_sends_each_object() {
    let mut scope = Scope::watching();
    scope.machine.relist(false);
    scope.begin_list(&[object("a", "5")]);
    assert_eq!(scope.item(&object("a", "5")), ItemStep::Skip);
    assert_eq!(scope.page_end("99", None), PageStep::Restart);
    scope.begin_list(&[object("a", "5")]);
    assert_eq!(scope.item(&object("a", "5")), ItemStep::Upsert);
    let end = scope.complete("99");
    assert_eq!((end.leftover.len(), end.synced.kept, end.synced.sent), (0, 0, 1));
    scope.watch_version("99");
}

#[test]
fn list_older_than_a_checkpoint_that_is_not_resumed_sends_each_object() {
    let start =
        ScopeStart { resource_version: "100".to_owned(), age: Duration::MAX, ..ScopeStart::default() };
    let mut scope = Scope::new(start);
    scope.begin_list(&[object("a", "5")]);
    assert_eq!(scope.page_end("99", None), PageStep::Restart);
    assert_eq!(scope.machine.list_reason(), Some(ListReason::WentBack));
    scope.begin_list(&[object("a", "5")]);
    assert_eq!(scope.item(&object("a", "5")), ItemStep::Upsert);
    scope.complete("99");
}

#[test]
fn list_for_deletes_alone_that_is_begun_anew_stays_one() {
    let mut scope = Scope::watching();
    scope.machine.relist(true);
    scope.begin_list(&[]);
    scope.page_end("200", Some("t"));
    scope.status(410);
    scope.begin_list(&[object("a", "5")]);
    assert_eq!(scope.item(&object("a", "5")), ItemStep::Upsert);
}

#[test]
fn list_that_does_not_end_is_a_problem() {
    let mut scope = Scope::unknown();
    scope.begin_list(&[]);
    assert_eq!(scope.page_end("10", Some("t")), PageStep::More);
    assert_eq!(scope.page_end("10", Some("t")), PageStep::Restart);
    assert_eq!(scope.waits(WaitReason::Refused), 30 * SECOND);
    let problem = scope.machine.problem().unwrap();
    assert_eq!(problem.message, "the list does not go on: two pages have the same continue token");
    assert!(!scope.machine.is_listing());
    scope.pass(30 * SECOND);
    scope.check_version("10");
    assert_eq!(scope.machine.action(), ScopeAction::BeginSync);
}

#[test]
fn page_that_stands_still_for_a_minute_is_given_up() {
    let mut scope = Scope::unknown();
    scope.begin_list(&[]);
    scope.pass(59 * SECOND);
    scope.machine.progress(scope.now);
    scope.pass(59 * SECOND);
    assert!(matches!(scope.machine.action(), ScopeAction::ListPage(_)));
    scope.pass(SECOND);
    assert!(scope.waits(WaitReason::Retry) <= SECOND);
}

#[test]
fn pause_gives_a_list_up() {
    let mut scope = Scope::unknown();
    let key = scope.begin_list(&[]);
    scope.machine.pause(scope.now);
    assert_eq!(scope.machine.action(), ScopeAction::Wait(WaitReason::Paused));
    assert_eq!((scope.machine.next_tick(), scope.machine.is_listing()), (None, false));
    assert_eq!(scope.page_end("10", None), PageStep::Ignored);
    scope.machine.unpause(scope.now);
    assert_ne!(scope.begin_sync(), key);
}

#[test]
fn late_basis_of_another_sync_is_ignored() {
    let mut scope = Scope::unknown();
    scope.begin_sync();
    scope.machine.basis_row("other", "shop", "a", "uid-a", "1").unwrap();
    scope.machine.basis_end("other", scope.now);
    assert_eq!(scope.machine.action(), ScopeAction::AwaitBasis);
    scope.machine.basis_end("sync-1", scope.now);
    assert_eq!(scope.complete("1").leftover.len(), 0);
}

#[test]
fn hub_sets_times_within_bounds() {
    use kubesvc_core::wire::ops::CachingRules;
    let timing = |max_resumable_age_ms, audit_ms| {
        ScopeTiming::from(&CachingRules { max_resumable_age_ms, audit_ms, ..CachingRules::default() })
    };
    assert_eq!(timing(0, 0).audit_interval, DEFAULT_AUDIT_INTERVAL);
    assert!(timing(0, 0).max_resumable_age > Duration::ZERO);
    assert_eq!(timing(1000, 1).audit_interval, MINUTE);
    assert_eq!(timing(1000, u64::MAX).audit_interval, MAX_AUDIT_INTERVAL);
    assert_eq!(timing(1000, 1).max_resumable_age, SECOND);
}

#[test]
fn list_for_deletes_alone_without_memory_to_remember_what_it_has_sent_sends_it_again() {
    let mut scope = Scope::new(ScopeStart { resend: true, ..ScopeStart::default() });
    let rows = ["a", "b", "c", "d"].map(|name| object(name, "2"));
    scope.begin_list(&rows);
    scope.item(&rows[0]);
    scope.item(&rows[1]);
    assert_eq!(scope.machine.sent_objects(), Some(1), "the last one may not be queued");
    scope.machine.remember_no_more();
    scope.item(&rows[2]);
    scope.item(&rows[3]);
    assert_eq!(scope.machine.sent_objects(), Some(1));
    scope.machine.relist(false);
    scope.begin_list(&rows);
    let steps = rows.each_ref().map(|row| scope.item(row));
    assert_eq!(steps, [ItemStep::Skip, ItemStep::Upsert, ItemStep::Upsert, ItemStep::Upsert]);
    assert_eq!(scope.machine.sent_objects(), Some(3), "there may be memory again");
    scope.complete("10");
    assert_eq!(scope.machine.sent_objects(), None);
}

#[test]
fn list_for_deletes_alone_that_is_refused_twice_forgets_what_it_has_sent() {
    let mut scope = Scope::new(ScopeStart { resend: true, ..ScopeStart::default() });
    scope.begin_list(&[]);
    scope.item(&object("a", "2"));
    scope.item(&object("b", "2"));
    scope.status(403);
    assert_eq!(scope.machine.sent_objects(), Some(1));
    scope.pass(30 * SECOND);
    scope.status(403);
    assert_eq!(scope.machine.sent_objects(), Some(0));
}

#[test]
fn list_for_deletes_alone_that_is_given_up_sends_nothing_twice_that_the_hub_has_of_it() {
    let mut scope = Scope::new(ScopeStart { resend: true, ..ScopeStart::default() });
    scope.begin_list(&[object("old", "1")]);
    for name in ["a", "b", "refused"] {
        assert_eq!(scope.item(&object(name, "2")), ItemStep::Upsert);
    }
    scope.machine.pause(scope.now);
    scope.machine.unpause(scope.now);
    // The rows of another shape are still there, and so is one that the queue did not take.
    let rows = [object("old", "1"), object("a", "2"), object("b", "2"), object("refused", "2")];
    scope.begin_list(&rows);
    for (name, version, step) in [
        ("a", "2", ItemStep::Skip),
        ("b", "3", ItemStep::Upsert),
        ("refused", "2", ItemStep::Upsert),
        ("old", "1", ItemStep::Upsert),
    ] {
        assert_eq!(scope.item(&object(name, version)), step, "{name}");
    }
    // A cluster that went back may use versions again.
    scope.machine.relist(true);
    scope.begin_list(&rows);
    assert_eq!(scope.item(&object("a", "2")), ItemStep::Upsert);
}
