//! What no account needs any more is deleted.

use super::*;
use crate::{AccountChanges, RemovedScope, ScopeState, Swept};

/// Lists each scope of an account, with its objects.
async fn listed(store: &CachedStore, account: &str, scopes: &[(&str, &str)], upserts: Vec<ObjectRow>) {
    let changes = scopes.iter().flat_map(|(namespace, kind)| {
        [added(namespace, kind), sync_started(namespace, kind, "k"), synced(namespace, kind, "k", "9")]
    });
    commit(store, &AccountBatch { scopes: changes.collect(), ..first_batch(account, upserts) }).await;
}

fn pods(account: &str, namespaces: &[&str], count: usize) -> Vec<ObjectRow> {
    let of = |namespace: &str| -> Vec<ObjectRow> {
        (0..count).map(|at| object(account, "pod", namespace, &format!("p{at}"), "1")).collect()
    };
    namespaces.iter().flat_map(|namespace| of(namespace)).collect()
}

fn removed(account: &str, namespace: &str, kind: &str) -> RemovedScope {
    RemovedScope { account: account.to_owned(), key: scope(namespace, kind) }
}

/// Sweeps a scope to its end. Returns the number of objects deleted.
async fn sweep(store: &CachedStore, scope: &RemovedScope, limit: u32) -> u64 {
    let mut rows = 0;
    loop {
        let swept = store.sweep_scope(None, scope, limit).await.expect("swept");
        assert!(swept.rows <= u64::from(limit));
        rows += swept.rows;
        if swept.finished {
            return rows;
        }
    }
}

async fn states(store: &CachedStore, account: &str) -> Vec<(String, ScopeState)> {
    let scopes = store.scopes(account).await.expect("read");
    scopes.into_iter().map(|one| (one.key.to_string(), one.state)).collect()
}

pub(crate) async fn scopes_of_a_deleted_account_are_removed_unless_its_objects_stay(
    store: &CachedStore,
    other: &CachedStore,
) {
    fenced(store, &["prod", "kept", "test"]).await;
    for account in ["prod", "kept", "test"] {
        listed(store, account, &[("", "Pod"), ("a", "Service")], pods(account, &["a"], 2)).await;
    }
    let uids = ["prod", "kept"].map(|name| format!("uid-of-{name}"));
    let changes = AccountChanges {
        deletes: uids.to_vec(),
        kept_objects: vec![uids[1].clone()],
        ..AccountChanges::default()
    };
    store.write(&changes).await.expect("deleted");
    let all = |state| vec![(":.Pod".to_owned(), state), ("a:.Service".to_owned(), state)];
    assert_eq!(states(store, "prod").await, all(ScopeState::Removed));
    assert_eq!(states(store, "kept").await, all(ScopeState::Synced));
    let waiting = other.removed_scopes(10).await.expect("read");
    assert_eq!(waiting, [removed("prod", "", "Pod"), removed("prod", "a", "Service")]);
    assert_eq!(other.removed_scopes(1).await.expect("read").len(), 1);
    for scope in &waiting {
        sweep(other, scope, 1).await;
    }
    assert_eq!(other.removed_scopes(10).await.expect("read"), []);
    assert_eq!(states(store, "prod").await, []);
    assert_eq!(store.count_objects("prod").await.expect("read"), []);
    assert_eq!(ids(store).await.len(), 4, "those of the others stay");

    // A replaced account's are removed too.
    store.put_accounts(&[row("test", "uid-new")]).await.expect("the name is taken over");
    assert_eq!(states(store, "test").await, all(ScopeState::Removed));
}

pub(crate) async fn scopes_are_removed_only_while_no_agent_is_named(store: &CachedStore, _: &CachedStore) {
    fenced(store, &["prod"]).await;
    listed(store, "prod", &[("", "Pod"), ("a", "Pod")], pods("prod", &["a"], 1)).await;
    let uids = ["prod", "test", "unknown"].map(|name| format!("uid-of-{name}"));
    let to_remove = async || store.accounts_to_remove(&uids).await.expect("read");
    assert_eq!(to_remove().await, Vec::<String>::new());
    assert_eq!(store.remove_scopes(None, "uid-of-prod").await.expect("checked"), 0);
    let synced = [":.Pod", "a:.Pod"].map(|key| (key.to_owned(), ScopeState::Synced));
    assert_eq!(states(store, "prod").await, synced);
    store.raise_fences(&[fence("uid-of-prod", 2, None)]).await.expect("raised");
    assert_eq!(to_remove().await, ["uid-of-prod"], "though it has several scopes, and others have none");
    assert_eq!(store.remove_scopes(None, "uid-of-prod").await.expect("removed"), 2);
    assert_eq!(to_remove().await, Vec::<String>::new());
    assert_eq!(store.remove_scopes(None, "uid-of-prod").await.expect("removed"), 0, "they are");
    assert_eq!(sweep(store, &removed("prod", "", "Pod"), 10).await, 1);
}

pub(crate) async fn swept_scope_leaves_what_another_one_covers(store: &CachedStore, _: &CachedStore) {
    fenced(store, &["prod", "test"]).await;
    let scopes = [("", "Pod"), ("a", "Pod"), ("b", "Pod"), ("c", "Pod"), ("", "Service")];
    let mut rows = pods("prod", &["a", "b", "c", "d"], 5);
    rows.extend((0..3).map(|at| object("prod", "service", "d", &format!("s{at}"), "1")));
    listed(store, "prod", &scopes, rows).await;
    listed(store, "test", &[("", "Pod")], pods("test", &["d"], 2)).await;
    let ends = ["", "a", "b"].map(|namespace| ScopeChange::Removed(scope(namespace, "Pod")));
    commit(store, &AccountBatch { scopes: ends.into(), ..batch("prod", 1, 2) }).await;
    // `c` is watched.
    assert_eq!(sweep(store, &removed("prod", "", "Pod"), 4).await, 15);
    let left = ids(store).await;
    assert_eq!(left.iter().filter(|id| id.starts_with("prod:pod:c:")).count(), 5);
    assert_eq!((left.len(), left.iter().filter(|id| id.starts_with("prod:service:")).count()), (10, 3));
    assert_eq!(sweep(store, &removed("prod", "a", "Pod"), 4).await, 0, "nothing is left of it");

    // All namespaces are watched again, so the others' end deletes nothing.
    let again = vec![added("", "Pod"), ScopeChange::Removed(scope("c", "Pod"))];
    commit(store, &AccountBatch { scopes: again, ..batch("prod", 2, 3) }).await;
    assert_eq!(sweep(store, &removed("prod", "c", "Pod"), 4).await, 0);
    assert_eq!(ids(store).await.len(), 10);
    let held: Vec<_> = states(store, "prod").await.into_iter().map(|(key, _)| key).collect();
    assert_eq!(held, [":.Pod", ":.Service", "b:.Pod"]);
}

pub(crate) async fn swept_and_deleted_objects_take_their_relations_along(
    store: &CachedStore,
    _: &CachedStore,
) {
    fenced(store, &["prod"]).await;
    let mut rows = pods("prod", &["a", "b"], 4);
    for row in &mut rows {
        row.relations = vec![relation("shop", "applications"), relation("owner", "replicaSets")];
    }
    listed(store, "prod", &[("", "Pod"), ("b", "Pod")], rows).await;
    let scopes = vec![ScopeChange::Removed(scope("", "Pod"))];
    let deletes = vec!["prod:pod:b:p0".to_owned()];
    commit(store, &AccountBatch { scopes, deletes, ..batch("prod", 1, 2) }).await;
    // Namespace `b` is watched.
    assert_eq!(sweep(store, &removed("prod", "", "Pod"), 3).await, 4);
    let related = store.texts("SELECT rel1_id FROM kubesvc_cache_rel ORDER BY rel1_id").await;
    let related: Vec<_> = related.into_iter().flatten().collect();
    let left = ["prod:pod:b:p1", "prod:pod:b:p2", "prod:pod:b:p3"];
    assert_eq!(related, left.into_iter().flat_map(|id| [id, id]).collect::<Vec<_>>());
}

pub(crate) async fn scope_that_is_watched_again_is_not_swept(store: &CachedStore, _: &CachedStore) {
    fenced(store, &["prod"]).await;
    listed(store, "prod", &[("", "Pod")], pods("prod", &["a"], 3)).await;
    commit(
        store,
        &AccountBatch { scopes: vec![ScopeChange::Removed(scope("", "Pod"))], ..batch("prod", 1, 2) },
    )
    .await;
    let found = store.removed_scopes(10).await.expect("read").remove(0);
    commit(store, &AccountBatch { scopes: vec![added("", "Pod")], ..batch("prod", 2, 3) }).await;
    let swept = store.sweep_scope(None, &found, 10).await.expect("swept");
    assert_eq!(swept, Swept { rows: 0, finished: true });
    assert_eq!((ids(store).await.len(), states(store, "prod").await.len()), (3, 1));
    let scope = store.scopes("prod").await.expect("read").remove(0);
    assert_eq!((scope.resource_version, scope.objects), (None, None), "it must be listed, with every body");
}

pub(crate) async fn sweep_of_an_ended_term_deletes_nothing(store: &CachedStore, other: &CachedStore) {
    fenced(store, &["prod"]).await;
    let mut rows = pods("prod", &["a"], 1);
    rows.push(object("prod", "event", "a", "e", "1"));
    listed(store, "prod", &[("", "Pod"), ("", "Event")], rows).await;
    commit(
        store,
        &AccountBatch { scopes: vec![ScopeChange::Removed(scope("", "Pod"))], ..batch("prod", 1, 2) },
    )
    .await;
    store.raise_fences(&[fence("uid-of-prod", 2, None)]).await.expect("raised");
    let first = store.begin_term(&"operator-0".into()).await.expect("a term");
    let second = other.begin_term(&"operator-1".into()).await.expect("a term");
    let pods = removed("prod", "", "Pod");
    let deposed =
        |result: Result<(), StoreError>| assert!(matches!(result, Err(StoreError::Deposed)), "{result:?}");
    deposed(store.sweep_scope(Some(first), &pods, 10).await.map(drop));
    deposed(store.sweep_events(Some(first), "prod", i64::MAX, 10).await.map(drop));
    deposed(store.remove_scopes(Some(first), "uid-of-prod").await.map(drop));
    assert_eq!(ids(store).await.len(), 2);
    assert_eq!(
        other.sweep_scope(Some(second), &pods, 10).await.expect("swept"),
        Swept { rows: 1, finished: true }
    );
    assert_eq!(other.sweep_events(Some(second), "prod", i64::MAX, 10).await.expect("swept"), 1);
    assert_eq!(other.remove_scopes(Some(second), "uid-of-prod").await.expect("removed"), 1);
}

pub(crate) async fn old_events_are_swept(store: &CachedStore, _: &CachedStore) {
    fenced(store, &["prod", "test", "none"]).await;
    let events =
        |account: &'static str| (0..10).map(move |at| object(account, "event", "a", &format!("e{at}"), "1"));
    let mut rows: Vec<_> = events("prod").collect();
    rows.push(object("prod", "pod", "a", "p", "1"));
    listed(store, "prod", &[("", "Event"), ("", "Pod")], rows).await;
    listed(store, "test", &[("a", "Event"), ("b", "Event")], events("test").collect()).await;
    listed(store, "none", &[("", "Pod")], Vec::new()).await;
    assert_eq!(store.accounts_with_events().await.expect("read"), ["prod", "test"]);
    store.run("UPDATE kubesvc_cache SET last_updated = 1000").await;
    store.run("UPDATE kubesvc_cache SET last_updated = 2000 WHERE name IN ('e0', 'e1')").await;
    assert_eq!(store.sweep_events(None, "prod", 2_000, 5).await.expect("swept"), 5);
    assert_eq!(store.sweep_events(None, "prod", 2_000, 5).await.expect("swept"), 3);
    assert_eq!(store.sweep_events(None, "prod", 2_000, 5).await.expect("swept"), 0);
    let left = ids(store).await;
    assert_eq!(left.iter().filter(|id| id.starts_with("prod:")).count(), 3);
    assert_eq!(left.iter().filter(|id| id.starts_with("test:")).count(), 10);
}
