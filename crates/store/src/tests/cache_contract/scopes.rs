//! Scopes, their checkpoints, and the basis of a list.

use super::*;
use crate::{BasisRow, ScopeState, StoredProgress, StoredScope};

async fn scopes(store: &CachedStore, account: &str) -> Vec<StoredScope> {
    match store.resume(&format!("uid-of-{account}"), CachingEpoch(1)).await.expect("read") {
        StoredProgress::Stands { scopes, .. } => scopes,
        other => unreachable!("{other:?}"),
    }
}

pub(crate) async fn progress_is_told_by_the_fence(store: &CachedStore, other: &CachedStore) {
    let resume = async |epoch| other.resume("uid-of-prod", CachingEpoch(epoch)).await.expect("read");
    assert_eq!(resume(1).await, StoredProgress::Gone);
    store.put_accounts(&[row("prod", "uid-of-prod")]).await.expect("written");
    assert_eq!(resume(1).await, StoredProgress::Lower(CachingEpoch(0)));
    store.raise_fences(&[fence("uid-of-prod", 1, Some("agent"))]).await.expect("raised");
    assert_eq!(resume(1).await, StoredProgress::Stands { committed: 0, scopes: Vec::new() });
    commit(store, &AccountBatch { scopes: vec![added("", "Pod")], ..batch("prod", 0, 7) }).await;
    let StoredProgress::Stands { committed, scopes } = resume(1).await else { unreachable!("it stands") };
    assert_eq!((committed, scopes.len()), (7, 1));
    assert_eq!(resume(2).await, StoredProgress::Lower(CachingEpoch(1)));
    store.raise_fences(&[fence("uid-of-prod", 3, Some("next"))]).await.expect("raised");
    assert_eq!(resume(2).await, StoredProgress::Higher(CachingEpoch(3)));
    // What a former account of the name left is told, with its uid.
    store.put_accounts(&[row("prod", "uid-new")]).await.expect("the name is taken over");
    store.raise_fences(&[fence("uid-new", 1, Some("agent"))]).await.expect("raised");
    let progress = other.resume("uid-new", CachingEpoch(1)).await.expect("read");
    let StoredProgress::Stands { scopes, .. } = progress else { unreachable!("it stands") };
    assert_eq!((scopes[0].account_uid.as_str(), scopes[0].state), ("uid-of-prod", ScopeState::Removed));
}

pub(crate) async fn checkpoints_are_kept_by_scope(store: &CachedStore, other: &CachedStore) {
    fenced(store, &["prod"]).await;
    let first = AccountBatch {
        scopes: vec![
            added("", "Pod"),
            added("default", "Service"),
            sync_started("", "Pod", "key-1"),
            sync_started("default", "Service", "key-2"),
        ],
        ..batch("prod", 0, 1)
    };
    commit(store, &first).await;
    let wanted = StoredScope {
        key: scope("", "Pod"),
        cached_kind: "pod".to_owned(),
        account_uid: "uid-of-prod".to_owned(),
        resource_version: None,
        state: ScopeState::Listing,
        shape: Some("shape".to_owned()),
        filter: Some("filter".to_owned()),
        objects: None,
        problem: None,
        last_updated_ms: 0,
    };
    let held = scopes(other, "prod").await;
    assert_eq!(held.len(), 2);
    assert_eq!(StoredScope { last_updated_ms: 0, ..held[0].clone() }, wanted);
    assert!(held[0].last_updated_ms > 1_700_000_000_000);

    // Another process goes on, and both lists end.
    let ends = AccountBatch {
        scopes: vec![
            synced("", "Pod", "key-1", "100"),
            ScopeChange::Checkpoint { scope: scope("", "Pod"), resource_version: "101".to_owned() },
            synced("default", "Service", "key-1", "100"),
            ScopeChange::Checkpoint {
                scope: scope("default", "Service"),
                resource_version: "101".to_owned(),
            },
            ScopeChange::Checkpoint { scope: scope("", "Node"), resource_version: "101".to_owned() },
        ],
        ..batch("prod", 1, 2)
    };
    commit(other, &ends).await;
    let told = |scopes: &[StoredScope]| -> Vec<(String, Option<String>, Option<i64>)> {
        let told = |one: &StoredScope| (one.key.to_string(), one.resource_version.clone(), one.objects);
        scopes.iter().map(told).collect()
    };
    let pods = (":.Pod".to_owned(), Some("101".to_owned()), Some(3));
    assert_eq!(
        told(&scopes(store, "prod").await),
        [pods.clone(), ("default:.Service".to_owned(), None, None)]
    );

    let removed = AccountBatch {
        scopes: vec![ScopeChange::Removed(scope("default", "Service"))],
        ..batch("prod", 2, 3)
    };
    commit(store, &removed).await;
    let held = scopes(store, "prod").await;
    assert_eq!((held[1].state, told(&held)[0].clone()), (ScopeState::Removed, pods));
    assert_eq!(store.scopes("prod").await.expect("read"), held);
}

pub(crate) async fn problem_leaves_the_age_of_a_checkpoint(store: &CachedStore, _: &CachedStore) {
    fenced(store, &["prod"]).await;
    let listed = vec![added("", "Pod"), sync_started("", "Pod", "k"), synced("", "Pod", "k", "5")];
    commit(store, &AccountBatch { scopes: listed, ..batch("prod", 0, 1) }).await;
    store.run("UPDATE kubesvc_resourceversion SET last_updated = 7").await;
    let problem = Some("pods is forbidden\0".to_owned());
    let told = vec![ScopeChange::Problem { scope: scope("", "Pod"), problem }];
    commit(store, &AccountBatch { scopes: told, ..batch("prod", 1, 2) }).await;
    let held = scopes(store, "prod").await.remove(0);
    assert_eq!((held.problem.as_deref(), held.last_updated_ms), (Some("pods is forbidden"), 7));
    let checkpoint = ScopeChange::Checkpoint { scope: scope("", "Pod"), resource_version: "5".to_owned() };
    commit(store, &AccountBatch { scopes: vec![checkpoint], ..batch("prod", 2, 3) }).await;
    let held = scopes(store, "prod").await.remove(0);
    assert!(held.last_updated_ms > 7, "the same version is confirmed");
}

pub(crate) async fn basis_comes_in_pages(store: &CachedStore, other: &CachedStore) {
    fenced(store, &["prod", "test"]).await;
    let mut rows = Vec::new();
    for namespace in ["a", "b", "B", "default"] {
        rows.extend((0..25).map(|at| object("prod", "pod", namespace, &format!("pod-{at:02}"), "7")));
    }
    rows.push(object("prod", "service", "a", "s", "7"));
    commit(store, &first_batch("prod", rows.clone())).await;
    commit(store, &first_batch("test", vec![object("test", "pod", "a", "pod-00", "7")])).await;
    for (namespace, limit) in [("", 7), ("", 25), ("", 1_000), ("b", 10), ("default", 25), ("none", 5)] {
        let mut read: Vec<BasisRow> = Vec::new();
        loop {
            let page = other.basis("prod", "pod", namespace, read.last(), limit).await.expect("read");
            assert!(page.len() <= limit as usize);
            let is_last = page.len() < limit as usize;
            read.extend(page);
            if is_last {
                break;
            }
        }
        let covered =
            |row: &&ObjectRow| row.kind == "pod" && (namespace.is_empty() || row.namespace == namespace);
        let mut wanted: Vec<_> = rows.iter().filter(covered).map(|row| row.id.as_str()).collect();
        let mut got: Vec<_> = read.iter().map(|row| row.id.as_str()).collect();
        wanted.sort_unstable();
        got.sort_unstable();
        assert_eq!(got, wanted, "{namespace:?} in pages of {limit}");
    }
    let one = other.basis("prod", "pod", "default", None, 1).await.expect("read").remove(0);
    let wanted = BasisRow {
        id: "prod:pod:default:pod-00".to_owned(),
        namespace: "default".to_owned(),
        name: "pod-00".to_owned(),
        uid: Some("uid-of-6".to_owned()),
        resource_version: "7".to_owned(),
    };
    assert_eq!(one, wanted);
}
