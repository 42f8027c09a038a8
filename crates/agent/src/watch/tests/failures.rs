//! What a scope does after failures, and what it says.

use kubesvc_core::wire::common::failure::Class;

use super::*;
use crate::scrub::{ListError, WatchLineError};
use crate::wire_failure::after_send;

#[test]
fn missing_right_is_a_problem_that_is_tried_again_every_30_seconds() {
    let mut scope = Scope::watching();
    let status = ClusterStatus {
        code: 403,
        reason: "Forbidden".to_owned(),
        message: "pods is forbidden".to_owned(),
        retry_after: None,
    };
    for _ in 0..3 {
        scope.machine.failed(&status.clone().into(), scope.now);
        assert_eq!(scope.waits(WaitReason::Refused), 30 * SECOND);
        scope.pass(30 * SECOND);
        scope.check_version("100");
        scope.watch_version("100");
    }
    let problem = scope.machine.problem().unwrap();
    assert_eq!((problem.class(), problem.http_status), (Class::Forbidden, 403));
    assert_eq!(
        problem.message,
        "the server answered 403: the credential may not list and watch the kind; grant it, or leave the kind out \
         (Forbidden: pods is forbidden)"
    );
    // It is over once the watch has lasted.
    scope.machine.watch_opened(scope.now);
    assert!(scope.machine.problem().is_some());
    scope.pass(5 * SECOND);
    assert!(scope.machine.problem().is_none());
}

#[test]
fn kind_without_watch_is_a_problem() {
    let mut scope = Scope::unknown();
    scope.begin_list(&[]);
    scope.complete("10");
    scope.status(405);
    assert_eq!(scope.waits(WaitReason::Refused), 30 * SECOND);
    assert_eq!(scope.machine.problem().unwrap().class(), Class::Unimplemented);
}

#[test]
fn refused_credential_and_missing_kind_ask_for_help() {
    let mut elsewhere = Scope::watching();
    let failure = after_send(Class::ClusterMismatch, "another cluster");
    elsewhere.machine.failed(&RequestFailure::Connection(failure), elsewhere.now);
    assert_eq!(elsewhere.waits(WaitReason::OtherCluster), 30 * SECOND);
    for (code, reason, class) in
        [(401, WaitReason::Credential, Class::Auth), (404, WaitReason::KindMayBeGone, Class::NotFound)]
    {
        let mut scope = Scope::watching();
        scope.status(code);
        assert_eq!(scope.waits(reason), 30 * SECOND);
        assert_eq!(scope.machine.problem().unwrap().class(), class);
        scope.machine.reconnect(scope.now);
        scope.check_version("100");
        scope.watch_version("100");
    }
}

#[test]
fn server_that_asks_for_time_gets_it_up_to_ten_minutes() {
    for (asked, least) in [(7, 7), (86_400, 600)] {
        for code in [429, 503] {
            let mut scope = Scope::watching();
            let retry_after = Some(Duration::from_secs(asked));
            let status = ClusterStatus { code, retry_after, ..ClusterStatus::default() };
            scope.machine.failed(&status.into(), scope.now);
            let wait = scope.waits(WaitReason::Retry);
            assert!(wait >= Duration::from_secs(least) && wait <= Duration::from_secs(least + 1), "{wait:?}");
        }
    }
    let mut scope = Scope::watching();
    scope.status(429);
    assert!(scope.waits(WaitReason::Retry) <= SECOND);
}

#[test]
fn want_of_a_connection_is_a_problem_at_once_and_no_reason_to_list() {
    let failure = after_send(Class::Discovery, "HTTP/1.1 only");
    let crowded_out = RequestFailure::TooManyWatches(failure.clone());
    let mut scope = Scope::watching();
    for _ in 0..3 {
        scope.machine.failed(&crowded_out, scope.now);
        assert_eq!(scope.waits(WaitReason::Refused), 30 * SECOND);
        assert_eq!(scope.machine.problem(), Some(&failure));
        scope.pass(30 * SECOND);
        scope.check_version("100");
        scope.watch_version("100");
    }
}

#[test]
fn list_without_a_connection_keeps_no_rows_while_it_waits() {
    let crowded_out = RequestFailure::TooManyWatches(after_send(Class::Discovery, "HTTP/1.1 only"));
    let mut scope = Scope::unknown();
    scope.begin_list(&[object("a", "5")]);
    scope.machine.failed(&crowded_out, scope.now);
    assert!(!scope.machine.is_listing());
    assert_eq!(scope.waits(WaitReason::Refused), 30 * SECOND);
    scope.pass(30 * SECOND);
    // The next one is not begun before there is a connection.
    scope.machine.failed(&crowded_out, scope.now);
    assert_eq!(scope.waits(WaitReason::Refused), 30 * SECOND);
    scope.pass(30 * SECOND);
    scope.check_version("10");
    assert_eq!(scope.machine.action(), ScopeAction::BeginSync);
}

#[test]
fn list_that_is_refused_keeps_no_rows_and_begins_once_a_small_request_is_answered() {
    let refused = |code| RequestFailure::from(ClusterStatus { code, ..ClusterStatus::default() });
    let unreadable = RequestFailure::from(ListError::NoVersion);
    for failure in [refused(401), refused(403), refused(404), refused(405), unreadable] {
        let mut scope = Scope::unknown();
        scope.begin_list(&[object("a", "5")]);
        for _ in 0..3 {
            scope.machine.failed(&failure, scope.now);
            assert!(!scope.machine.is_listing(), "{failure:?}");
            assert!(matches!(scope.machine.action(), ScopeAction::Wait(reason) if reason.needs_change()));
            scope.pass(30 * SECOND);
            assert!(!scope.machine.begin_sync("too-early".to_owned(), scope.now));
            assert!(matches!(scope.machine.action(), ScopeAction::CheckVersion(_)), "{failure:?}");
        }
        scope.check_version("10");
        assert!(scope.machine.problem().is_some(), "it is not read yet");
        scope.begin_list(&[object("a", "5")]);
        assert_eq!(scope.item(&object("a", "5")), ItemStep::Skip);
        scope.complete("10");
        assert!(scope.machine.problem().is_none());
    }
}

#[test]
fn list_that_is_to_wait_for_more_than_30_seconds_keeps_no_rows() {
    for (asked, is_kept) in [(20, true), (31, false), (600, false)] {
        let mut scope = Scope::unknown();
        scope.begin_list(&[object("a", "5")]);
        let retry_after = Some(Duration::from_secs(asked));
        let status = ClusterStatus { code: 503, retry_after, ..ClusterStatus::default() };
        scope.machine.failed(&status.into(), scope.now);
        assert_eq!(scope.machine.is_listing(), is_kept, "{asked} s");
        let wait = scope.waits(WaitReason::Retry);
        scope.pass(wait);
        assert_eq!(matches!(scope.machine.action(), ScopeAction::ListPage(_)), is_kept);
        assert_eq!(matches!(scope.machine.action(), ScopeAction::CheckVersion(_)), !is_kept);
    }
}

#[test]
fn list_whose_next_page_fails_for_a_minute_keeps_no_rows() {
    let mut scope = Scope::unknown();
    scope.begin_list(&[object("a", "5")]);
    for token in ["t1", "t2"] {
        scope.sleep(40 * SECOND);
        scope.status(500);
        let wait = scope.waits(WaitReason::Retry);
        scope.pass(wait);
        assert_eq!(scope.page_end("10", Some(token)), PageStep::More, "it goes on, so it is the same list");
    }
    let since = scope.now;
    scope.status(504);
    while scope.machine.is_listing() {
        let wait = scope.waits(WaitReason::Retry);
        scope.pass(wait);
        scope.status(504);
    }
    assert!((60..=90).contains(&(scope.now - since).as_secs()), "{:?}", scope.now - since);
    let wait = scope.waits(WaitReason::Retry);
    scope.pass(wait);
    scope.check_version("10");
    scope.begin_list(&[object("a", "5")]);
}

#[test]
fn small_request_before_a_list_is_given_up_after_a_minute_and_made_again() {
    let mut scope = Scope::unknown();
    scope.begin_list(&[]);
    scope.status(403);
    scope.pass(30 * SECOND);
    scope.pass(59 * SECOND);
    assert!(matches!(scope.machine.action(), ScopeAction::CheckVersion(_)));
    scope.pass(SECOND);
    let wait = scope.waits(WaitReason::Retry);
    assert!(wait <= SECOND);
    scope.pass(wait);
    // A new connection changes nothing of it.
    scope.machine.reconnect(scope.now);
    scope.check_version("10");
    scope.begin_list(&[]);
}

#[test]
fn passing_failure_is_a_problem_after_a_minute() {
    let mut scope = Scope::watching();
    let since = scope.now;
    while scope.now < since + MINUTE {
        assert!(scope.machine.problem().is_none());
        scope.status(503);
        let wait = scope.waits(WaitReason::Retry);
        scope.pass(wait);
    }
    scope.status(503);
    assert_eq!(scope.machine.problem().unwrap().class(), Class::Unreachable);
}

#[test]
fn error_in_the_watch_is_followed_by_a_delay_and_the_same_version() {
    let mut scope = Scope::watching();
    scope.modified("a", "101");
    scope.status(500);
    let wait = scope.waits(WaitReason::Retry);
    assert!(wait <= SECOND);
    scope.pass(wait);
    scope.check_version("101");
    scope.watch_version("101");
}

#[test]
fn line_that_cannot_be_read_twice_is_passed_by_with_a_list() {
    let mut scope = Scope::watching();
    let failure = RequestFailure::from(WatchLineError::Malformed("type"));
    scope.machine.failed(&failure, scope.now);
    assert_eq!(scope.waits(WaitReason::Refused), 30 * SECOND);
    assert_eq!(
        scope.machine.problem().unwrap().message,
        "a line of the watch is no event: it lacks type, or is not JSON"
    );
    scope.pass(30 * SECOND);
    scope.check_version("100");
    scope.watch_version("100");
    scope.machine.watch_opened(scope.now);
    scope.machine.failed(&failure, scope.now);
    scope.pass(30 * SECOND);
    assert_eq!(scope.machine.action(), ScopeAction::BeginSync);
}

#[test]
fn errors_of_lists_are_told_apart() {
    let mut scope = Scope::unknown();
    scope.begin_list(&[]);
    scope.machine.failed(&ListError::Truncated { items: 3 }.into(), scope.now);
    let wait = scope.waits(WaitReason::Retry);
    scope.pass(wait);
    let status = ClusterStatus { code: 403, ..ClusterStatus::default() };
    scope.machine.failed(&ListError::Status(status).into(), scope.now);
    assert_eq!(scope.waits(WaitReason::Refused), 30 * SECOND);
    scope.pass(30 * SECOND);
    scope.machine.failed(&ListError::NoVersion.into(), scope.now);
    assert_eq!(scope.waits(WaitReason::Refused), 30 * SECOND);
    assert_eq!(scope.machine.problem().unwrap().class(), Class::Discovery);
}

#[test]
fn failure_while_a_sync_waits_changes_only_when_it_goes_on() {
    let mut scope = Scope::unknown();
    scope.begin_sync();
    scope.broken();
    scope.pass(2 * SECOND);
    assert_eq!(scope.machine.action(), ScopeAction::AwaitBasis);
}
