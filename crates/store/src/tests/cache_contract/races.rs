//! Several replicas write and sweep at once.

use super::*;
use crate::tests::contract::DeleteAccount as _;
use crate::{FenceCheck, RaiseOutcome, RemovedScope};

pub(crate) async fn concurrent_writers_of_one_batch_write_it_once(store: &CachedStore, other: &CachedStore) {
    fenced(store, &["prod", "test"]).await;
    for seq in 0..10 {
        let rows = |account: &str| AccountBatch {
            upserts: (0..20)
                .map(|at| object(account, "pod", "a", &format!("p{at}"), &seq.to_string()))
                .collect(),
            scopes: vec![added("", "Pod")],
            ..batch(account, seq, seq + 1)
        };
        // Both accounts in one transaction, in either order.
        let (there, back) = ([rows("prod"), rows("test")], [rows("test"), rows("prod")]);
        let attempt = async |store: &CachedStore, batches: &[AccountBatch]| loop {
            match store.write_objects(batches).await {
                Ok(outcomes) => break outcomes,
                Err(StoreError::Unavailable(_)) => tokio::task::yield_now().await,
                Err(error) => unreachable!("{}", error.in_full()),
            }
        };
        let (one, two) = tokio::join!(attempt(store, &there), attempt(other, &back));
        let committed = |outcomes: &[BatchOutcome]| {
            let is_committed = |one: &&BatchOutcome| matches!(one, BatchOutcome::Committed { .. });
            outcomes.iter().filter(is_committed).count()
        };
        assert_eq!(committed(&one) + committed(&two), 2, "{one:?} {two:?}");
        for outcome in one.iter().chain(&two) {
            let fits =
                matches!(outcome, BatchOutcome::Committed { .. } | BatchOutcome::Stopped(FenceCheck::Done));
            assert!(fits, "{outcome:?}");
        }
    }
    assert_eq!(ids(store).await.len(), 40);
}

/// Writes batch after batch under an epoch until `enough` are written or another epoch stands. Returns how many.
async fn stream(store: &CachedStore, epoch: i64, enough: i64) -> i64 {
    let mut committed = 0;
    while committed < enough {
        let mut batch = AccountBatch {
            upserts: vec![object("prod", "pod", "a", "p", &format!("{epoch}.{committed}"))],
            deletes: vec![format!("prod:pod:a:of-{}", epoch - 1)],
            ..batch("prod", committed, committed + 1)
        };
        batch.upserts.push(object("prod", "pod", "a", &format!("of-{epoch}"), "1"));
        batch.claim.epoch = CachingEpoch(epoch);
        match write(store, &batch).await {
            BatchOutcome::Committed { .. } => committed += 1,
            BatchOutcome::Stopped(FenceCheck::Higher(_)) => break,
            BatchOutcome::Stopped(check) => unreachable!("{check:?}"),
        }
    }
    committed
}

pub(crate) async fn writer_of_an_ended_epoch_writes_nothing_beside_the_next(
    store: &CachedStore,
    other: &CachedStore,
) {
    fenced(store, &["prod"]).await;
    let next = async {
        while ids(other).await.is_empty() {
            tokio::task::yield_now().await;
        }
        while !matches!(other.raise_fences(&[fence("uid-of-prod", 2, Some("next"))]).await,
            Ok(raised) if raised[0].1 == RaiseOutcome::Stands)
        {}
        stream(other, 2, 5).await
    };
    let (old, new) = tokio::join!(stream(store, 1, i64::MAX), next);
    assert!(old > 0 && new == 5, "{old} {new}");
    let found = store.object_version("prod", "pod", "a", "p").await.expect("read").expect("it is there");
    assert_eq!(found.resource_version, "2.4");
    assert_eq!(ids(store).await, ["prod:pod:a:of-2", "prod:pod:a:p"]);
}

/// Both are in one transaction: what the former one's stream still holds, and the first list of the next one.
pub(crate) async fn former_account_of_a_name_takes_nothing_from_the_next(
    store: &CachedStore,
    other: &CachedStore,
) {
    fenced(store, &["prod"]).await;
    store.put_accounts(&[row("prod", "uid-new")]).await.expect("the name is taken over");
    store.raise_fences(&[fence("uid-new", 1, Some("agent"))]).await.expect("raised");
    let rows = |uid: &str, version: &str| {
        let mut batch = first_batch("prod", vec![object("prod", "pod", "a", "p", version)]);
        batch.claim.uid = uid.to_owned();
        batch.scopes = vec![added(if uid == "uid-new" { "" } else { "a" }, "Pod")];
        batch
    };
    let (former, next) = (rows("uid-of-prod", "old"), rows("uid-new", "new"));
    let gone = BatchOutcome::Stopped(FenceCheck::Gone);
    let outcomes = store.write_objects(&[next, former.clone()]).await.expect("written");
    assert_eq!(outcomes, [BatchOutcome::Committed { written: 1, refused: Vec::new() }, gone.clone()]);
    assert_eq!(write(other, &former).await, gone);
    let found = other.object_version("prod", "pod", "a", "p").await.expect("read").expect("it is there");
    assert_eq!(found.resource_version, "new");
    let keys: Vec<_> = other.scopes("prod").await.expect("read").into_iter().map(|one| one.key).collect();
    assert_eq!(keys, [scope("", "Pod")]);
}

/// An account is deleted and declared again under its name, and its objects are listed while those of the former one
/// are swept.
pub(crate) async fn sweep_beside_a_first_list_deletes_nothing_of_it(
    store: &CachedStore,
    other: &CachedStore,
) {
    const OBJECTS: usize = 60;
    let dead = RemovedScope { account: "prod".to_owned(), key: scope("", "Pod") };
    for round in 0..5 {
        let uid = format!("uid-{round}");
        store.put_accounts(&[row("prod", &uid)]).await.expect("declared");
        store.raise_fences(&[fence(&uid, 1, Some("agent"))]).await.expect("raised");
        let list = async {
            for (committed, at) in (0..).zip(0..OBJECTS / 10) {
                let mut batch = batch("prod", committed, committed + 1);
                batch.claim.uid.clone_from(&uid);
                if at == 0 {
                    batch.scopes = vec![added("", "Pod"), sync_started("", "Pod", "k")];
                }
                let rows = (0..10).map(|one| format!("p{}", at * 10 + one));
                batch.upserts =
                    rows.map(|name| object("prod", "pod", "a", &name, &round.to_string())).collect();
                commit(store, &batch).await;
            }
        };
        let sweep = async {
            for _ in 0..30 {
                // Busy counts as an attempt.
                let _ = other.sweep_scope(None, &dead, 7).await;
            }
        };
        tokio::join!(list, sweep);
        let sql = format!("SELECT count(*) FROM kubesvc_cache WHERE resource_version = '{round}'");
        assert_eq!(store.numbers(&sql).await, [i64::try_from(OBJECTS).expect("few")], "round {round}");
        store.delete_account(&uid).await.expect("deleted");
    }
}
