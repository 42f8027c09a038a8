//! The queries of requests.

use super::*;

#[test]
fn first_page_has_a_limit_and_no_version() {
    let request = PageRequest { attempt: 1, limit: Some(500), continue_token: None };
    assert_eq!(request.query(), "limit=500");
    let next = PageRequest { continue_token: Some("a b&c=/+%".to_owned()), ..request };
    assert_eq!(next.query(), "limit=500&continue=a%20b%26c%3D%2F%2B%25");
    assert_eq!(PageRequest { limit: None, continue_token: None, attempt: 1 }.query(), "");
}

#[test]
fn watch_names_version_bookmarks_and_duration() {
    let request = WatchRequest { attempt: 1, resource_version: "1&2".to_owned(), timeout_seconds: 250 };
    assert_eq!(request.query(), "watch=1&resourceVersion=1%262&allowWatchBookmarks=true&timeoutSeconds=250");
}

#[test]
fn duration_of_watches_is_between_240_and_300_seconds() {
    let mut scope = Scope::watching();
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..200 {
        seen.insert(scope.watch_request().timeout_seconds);
        scope.sleep(10 * SECOND);
        scope.machine.watch_ended(scope.now);
        scope.check_version("100");
        scope.machine.watch_opened(scope.now);
    }
    assert!(seen.first().is_some_and(|least| *least >= 240) && seen.last().is_some_and(|most| *most <= 300));
    assert!(seen.len() > 20);
}
