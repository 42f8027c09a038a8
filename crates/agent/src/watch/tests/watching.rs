//! A watch from its beginning to its end.

use super::*;
use crate::scrub::Exclusion;

#[test]
fn event_is_queued_and_its_version_is_where_the_watch_goes_on() {
    let mut scope = Scope::watching();
    assert_eq!(scope.modified("a", "101"), ObjectStep::Upsert);
    let deleted = scope.machine.object(WatchEventType::Deleted, &object("a", "102"), None, scope.now);
    assert_eq!(deleted, ObjectStep::Delete);
    scope.sleep(5 * MINUTE);
    scope.machine.watch_ended(scope.now);
    scope.watch_version("102");
    assert_eq!(scope.machine.watched_version(), Some("102"));
}

#[test]
fn cluster_that_went_back_while_its_server_was_away_is_listed_before_it_is_watched() {
    let mut scope = Scope::watching();
    scope.modified("a", "120");
    scope.sleep(MINUTE);
    scope.machine.watch_ended(scope.now);
    scope.check_version("119");
    assert_eq!(scope.machine.list_reason(), Some(ListReason::WentBack));

    let mut scope = Scope::watching();
    scope.broken();
    let wait = scope.waits(WaitReason::Retry);
    scope.pass(wait);
    // The server is not back yet, and asked again.
    scope.broken();
    let wait = scope.waits(WaitReason::Retry);
    scope.pass(wait);
    scope.check_version("99");
    assert_eq!(scope.machine.list_reason(), Some(ListReason::WentBack));
}

#[test]
fn cluster_that_went_back_while_the_agent_was_away_is_listed_before_it_is_watched() {
    let mut scope = Scope::resuming();
    scope.check_version("99");
    assert_eq!(scope.machine.list_reason(), Some(ListReason::WentBack));
    // It may have used versions again, so each object is sent.
    scope.begin_list(&[object("a", "5")]);
    assert_eq!(scope.item(&object("a", "5")), ItemStep::Upsert);
    scope.complete("99");
    scope.watch_version("99");
}

#[test]
fn stored_version_is_checked_until_the_cluster_has_answered() {
    let mut scope = Scope::resuming();
    scope.broken();
    let wait = scope.waits(WaitReason::Retry);
    scope.pass(wait);
    let ScopeAction::CheckVersion(before) = scope.machine.action() else { panic!("no check") };
    scope.machine.reconnect(scope.now);
    assert!(matches!(scope.machine.action(), ScopeAction::CheckVersion(attempt) if attempt > before));
    scope.machine.pause(scope.now);
    scope.machine.unpause(scope.now);
    // What a watch says is none of its answers.
    scope.machine.watch_opened(scope.now);
    assert_eq!(scope.modified("a", "101"), ObjectStep::Skip);
    scope.check_version("100");
    scope.watch_version("100");
}

#[test]
fn check_whose_answer_does_not_come_is_given_up_after_a_minute() {
    let mut scope = Scope::resuming();
    scope.pass(59 * SECOND);
    assert!(matches!(scope.machine.action(), ScopeAction::CheckVersion(_)));
    scope.pass(SECOND);
    assert!(scope.waits(WaitReason::Retry) <= SECOND);
}

#[test]
fn cluster_that_did_not_go_back_is_watched_from_where_the_watch_ended() {
    for version in ["100", "101", "no number"] {
        let mut scope = Scope::watching();
        scope.sleep(MINUTE);
        scope.machine.watch_ended(scope.now);
        scope.check_version(version);
        scope.watch_version("100");
        // An answer that comes late changes nothing.
        scope.machine.version_checked("1", scope.now);
        scope.watch_version("100");
    }
}

#[test]
fn object_that_is_left_out_from_now_on_loses_its_row() {
    let mut scope = Scope::watching();
    let mut step =
        |change, excluded| scope.machine.object(change, &object("a", "101"), Some(excluded), scope.now);
    assert_eq!(step(WatchEventType::Modified, Exclusion::Ignored), ObjectStep::Delete);
    assert_eq!(step(WatchEventType::Modified, Exclusion::NotSpinnakerManaged), ObjectStep::Delete);
    assert_eq!(step(WatchEventType::Deleted, Exclusion::Ignored), ObjectStep::Delete);
    assert_eq!(step(WatchEventType::Added, Exclusion::Ignored), ObjectStep::Skip);
    assert_eq!(step(WatchEventType::Modified, Exclusion::OmittedNamespace), ObjectStep::Skip);
}

#[test]
fn version_without_an_event_is_queued_once_a_minute() {
    let mut scope = Scope::watching();
    assert_eq!(scope.machine.bookmark("101", scope.now), None);
    assert_eq!(scope.pass(59 * SECOND), Vec::<String>::new());
    assert_eq!(scope.machine.bookmark("102", scope.now), None);
    assert_eq!(scope.pass(SECOND), ["102"]);
    assert_eq!(scope.machine.next_tick().map(|due| due > scope.now), Some(true));
    scope.pass(30 * SECOND);
    // An event carries the version, and begins the minute anew.
    assert_eq!(scope.modified("a", "103"), ObjectStep::Upsert);
    scope.pass(59 * SECOND);
    assert_eq!(scope.machine.bookmark("104", scope.now), None);
    scope.sleep(SECOND);
    assert_eq!(scope.machine.bookmark("105", scope.now), Some("105".to_owned()));
    // The same version again is no news.
    scope.sleep(2 * MINUTE);
    assert_eq!(scope.machine.bookmark("105", scope.now), None);
}

#[test]
fn event_that_is_left_out_moves_the_version() {
    let mut scope = Scope::watching();
    scope.machine.object(WatchEventType::Added, &object("a", "101"), Some(Exclusion::Ignored), scope.now);
    assert_eq!(scope.pass(MINUTE), ["101"]);
}

#[test]
fn no_checkpoint_is_queued_while_the_scope_is_listed() {
    let mut scope = Scope::watching();
    scope.machine.bookmark("101", scope.now);
    scope.machine.relist(false);
    scope.begin_list(&[]);
    for _ in 0..4 {
        scope.machine.progress(scope.now);
        assert_eq!(scope.pass(30 * SECOND), Vec::<String>::new());
    }
}

#[test]
fn watch_that_lasted_is_resumed_at_once_and_a_short_one_after_a_delay() {
    let mut scope = Scope::watching();
    scope.sleep(5 * SECOND);
    let before = scope.watch_request();
    scope.machine.watch_ended(scope.now);
    scope.check_version("100");
    assert!(scope.watch_request().attempt > before.attempt);
    let mut longest = Duration::ZERO;
    for attempt in 0..10 {
        scope.machine.watch_opened(scope.now);
        scope.sleep(SECOND);
        scope.machine.watch_ended(scope.now);
        let wait = scope.waits(WaitReason::Retry);
        let most = Duration::from_secs(1 << attempt.min(5)).min(30 * SECOND);
        assert!(wait >= most / 2 && wait <= most, "{attempt}: {wait:?}");
        longest = longest.max(wait);
        scope.pass(wait);
        scope.check_version("100");
    }
    assert!(longest > 15 * SECOND);
    scope.watch_version("100");
}

#[test]
fn expired_version_is_listed_at_once() {
    let mut scope = Scope::watching();
    scope.status(410);
    scope.begin_list(&[object("a", "5")]);
    scope.complete("200");
    scope.watch_version("200");
}

#[test]
fn version_that_expires_again_and_again_takes_its_time() {
    let mut scope = Scope::watching();
    scope.status(410);
    let mut waits = Vec::new();
    for _ in 0..4 {
        scope.begin_list(&[]);
        scope.complete("200");
        scope.status(410);
        let wait = scope.waits(WaitReason::Retry);
        waits.push(wait);
        scope.pass(wait);
    }
    assert!(waits.is_sorted() && waits[0] >= SECOND, "{waits:?}");
    scope.begin_list(&[]);
    scope.complete("200");
    scope.machine.watch_opened(scope.now);
    scope.modified("a", "201");
    scope.status(410);
    assert_eq!(scope.machine.action(), ScopeAction::BeginSync);
}

#[test]
fn paused_watch_goes_on_from_its_version() {
    let mut scope = Scope::watching();
    scope.modified("a", "101");
    scope.machine.pause(scope.now);
    scope.machine.pause(scope.now);
    assert_eq!(scope.machine.action(), ScopeAction::Wait(WaitReason::Paused));
    assert_eq!(scope.modified("b", "102"), ObjectStep::Skip);
    scope.pass(10 * 60 * MINUTE);
    assert_eq!(scope.machine.action(), ScopeAction::Wait(WaitReason::Paused));
    scope.machine.unpause(scope.now);
    scope.watch_version("101");
}

#[test]
fn version_that_expired_in_a_pause_is_listed_within_30_seconds() {
    let mut scope = Scope::watching();
    scope.machine.pause(scope.now);
    scope.sleep(10 * MINUTE);
    scope.machine.unpause(scope.now);
    scope.status(410);
    let wait = scope.waits(WaitReason::Spread);
    assert!(wait <= 30 * SECOND);
    scope.pass(wait);
    assert_eq!(scope.machine.action(), ScopeAction::BeginSync);
}

#[test]
fn silence_of_three_minutes_is_followed_by_a_list() {
    let mut scope = Scope::watching();
    scope.pass(179 * SECOND);
    scope.machine.bookmark("100", scope.now);
    scope.pass(179 * SECOND);
    scope.watch_version("100");
    scope.pass(SECOND);
    assert_eq!(scope.machine.action(), ScopeAction::BeginSync);
}

#[test]
fn silence_counts_over_watches_that_end_as_they_should() {
    let mut scope = Scope::watching();
    scope.pass(100 * SECOND);
    scope.machine.watch_ended(scope.now);
    scope.check_version("100");
    scope.machine.watch_opened(scope.now);
    scope.pass(80 * SECOND);
    assert_eq!(scope.machine.action(), ScopeAction::BeginSync);
}

#[test]
fn time_without_a_watch_is_no_silence() {
    let mut scope = Scope::watching();
    scope.pass(100 * SECOND);
    scope.status(403);
    scope.pass(30 * SECOND);
    scope.check_version("100");
    scope.machine.watch_opened(scope.now);
    scope.pass(179 * SECOND);
    scope.watch_version("100");
}

#[test]
fn server_without_bookmarks_is_listed_at_growing_intervals() {
    let mut scope = Scope::watching();
    let mut intervals = Vec::new();
    for _ in 0..5 {
        let since = scope.now;
        while scope.machine.action() != ScopeAction::BeginSync {
            scope.pass(SECOND);
            if matches!(scope.machine.action(), ScopeAction::CheckVersion(_)) {
                scope.check_version("100");
            }
            if matches!(scope.machine.action(), ScopeAction::Watch(_)) {
                scope.machine.watch_opened(scope.now);
                // The server ends the watch in time.
                if (scope.now - since).as_secs() % 240 == 239 {
                    scope.machine.watch_ended(scope.now);
                }
            }
        }
        intervals.push((scope.now - since).as_secs() / 60);
        scope.begin_list(&[]);
        scope.complete("100");
        scope.machine.watch_opened(scope.now);
    }
    assert_eq!(intervals, [3, 6, 12, 24, 24]);
    scope.modified("a", "101");
    scope.pass(180 * SECOND);
    assert_eq!(scope.machine.action(), ScopeAction::BeginSync);
}

#[test]
fn watch_is_given_up_15_seconds_after_its_duration_if_no_byte_comes() {
    let mut scope = Scope::watching();
    let limit = Duration::from_secs(scope.watch_request().timeout_seconds.into()) + 15 * SECOND;
    let since = scope.now;
    // Blank lines are bytes, but no events: they do not hide that the watch is silent.
    scope.machine.progress(scope.now);
    scope.pass(180 * SECOND);
    assert_eq!(scope.machine.action(), ScopeAction::BeginSync);
    assert!(scope.now < since + limit);
}

#[test]
fn watch_whose_response_does_not_begin_is_given_up_after_a_minute() {
    let mut scope = Scope::watching();
    scope.sleep(6 * SECOND);
    scope.machine.watch_ended(scope.now);
    scope.check_version("100");
    scope.pass(59 * SECOND);
    assert!(matches!(scope.machine.action(), ScopeAction::Watch(_)));
    scope.pass(SECOND);
    assert!(scope.waits(WaitReason::Retry) <= SECOND);
}

#[test]
fn watched_scope_is_listed_every_six_hours_or_so() {
    for seed in 0..20 {
        let mut scope = Scope::watching();
        let timing = ScopeTiming { max_resumable_age: MINUTE, audit_interval: DEFAULT_AUDIT_INTERVAL };
        let start = ScopeStart { resource_version: "100".to_owned(), ..ScopeStart::default() };
        scope.machine = ScopeWatch::new(timing, start, seed, scope.now);
        scope.check_version("100");
        let since = scope.now;
        while matches!(scope.machine.action(), ScopeAction::Watch(_)) {
            scope.machine.watch_opened(scope.now);
            scope.machine.bookmark("100", scope.now);
            scope.pass(MINUTE);
        }
        assert_eq!(scope.machine.action(), ScopeAction::BeginSync);
        let hours = (scope.now - since).as_secs_f64() / 3600.0;
        assert!((4.8..7.3).contains(&hours), "{hours}");
    }
}

#[test]
fn reports_before_the_response_begins_are_ignored() {
    let mut scope = Scope::resuming();
    scope.check_version("100");
    assert_eq!(scope.modified("a", "101"), ObjectStep::Skip);
    assert_eq!(scope.machine.bookmark("101", scope.now), None);
    scope.watch_version("100");
    assert_eq!(scope.now, scope.start);
}

#[test]
fn new_connection_goes_on_at_the_version() {
    let mut scope = Scope::watching();
    scope.modified("a", "101");
    let before = scope.watch_request().attempt;
    scope.machine.reconnect(scope.now);
    scope.watch_version("101");
    assert!(scope.watch_request().attempt > before);
    scope.status(401);
    scope.machine.reconnect(scope.now);
    scope.check_version("101");
    scope.watch_version("101");
}
