use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::join_all;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use self::fake::Fake;
use super::{Projection, Repair};
use crate::tests::contract::row;
use crate::{Malformed, StoreError};
use kubesvc_core::account_row::AccountRow;
use kubesvc_core::lifecycle::RowFact;
use kubesvc_runtime::background_tasks::TaskRegistry;

mod fake;
mod leading;
mod properties;

/// A projection that runs, and the store under it.
struct Scene {
    fake: Arc<Fake>,
    projection: Arc<Projection>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Scene {
    async fn new() -> Self {
        Self::of(Fake::new()).await
    }

    async fn of(fake: Arc<Fake>) -> Self {
        let projection = Projection::new(fake.clone());
        projection.load().await.expect("it can be read");
        let stop = CancellationToken::new();
        let (running, token) = (Arc::clone(&projection), stop.clone());
        let task = tokio::spawn(async move { running.run(&TaskRegistry::default(), token).await });
        tokio::task::yield_now().await;
        Self { fake, projection, stop, task }
    }

    /// Lets everything happen that can happen now.
    async fn settle(&self) {
        for _ in 0..50 {
            tokio::task::yield_now().await;
        }
    }

    async fn until_back(&self) {
        let mut trouble = self.projection.watch();
        trouble.wait_for(Option::is_none).await.expect("it lives");
    }

    fn insert(&self, row: AccountRow) -> JoinHandle<Result<(), StoreError>> {
        let projection = Arc::clone(&self.projection);
        tokio::spawn(async move { projection.insert(row).await })
    }

    fn delete(&self, uid: &'static str) -> JoinHandle<Result<(), StoreError>> {
        let projection = Arc::clone(&self.projection);
        tokio::spawn(async move { projection.delete(uid, false).await })
    }

    fn commits(&self) -> usize {
        self.fake.commits.load(Ordering::SeqCst)
    }

    fn facts<const N: usize>(&self, uids: [&str; N]) -> [RowFact; N] {
        uids.map(|uid| self.projection.fact(uid, ""))
    }
}

fn updated(row: AccountRow, times: i32) -> AccountRow {
    AccountRow { failed_count: times, ..row }
}

fn one() -> AccountRow {
    row("one", "uid-1")
}

#[tokio::test(start_paused = true)]
async fn nothing_is_known_before_the_table_was_read() {
    let fake = Fake::new();
    fake.set(one());
    let projection = Projection::new(fake.clone());
    assert_eq!(projection.fact("uid-1", ""), RowFact::Unavailable);
    assert!(projection.problem().is_some());
    fake.down.store(true, Ordering::SeqCst);
    projection.load().await.expect_err("it is down");
    assert!(projection.problem().is_some_and(|why| why.contains("the test pulled the plug")));
    fake.down.store(false, Ordering::SeqCst);
    projection.load().await.expect("it is up");
    assert_eq!(projection.problem(), None);
    assert_eq!(["uid-1", "uid-2"].map(|uid| projection.fact(uid, "")), [RowFact::Present, RowFact::Absent]);
}

#[tokio::test(start_paused = true)]
async fn a_lone_row_is_committed_at_once_and_many_share_a_commit() {
    let scene = Scene::new().await;
    let began = tokio::time::Instant::now();
    scene.projection.insert(one()).await.expect("inserted");
    assert_eq!(began.elapsed(), Duration::ZERO, "no timer delays it");
    assert_eq!(scene.projection.fact("uid-1", ""), RowFact::Present);
    let rows = (0..1_000).map(|at| row(&format!("n-{at}"), &format!("u-{at}")));
    for inserted in join_all(rows.map(|row| scene.insert(row))).await {
        inserted.expect("it ran").expect("inserted");
    }
    assert!(scene.commits() < 10, "{} commits", scene.commits());
    assert_eq!(scene.fake.rows().len(), 1_001);
    let counters = scene.projection.counters();
    assert_eq!((counters.rows.get(), counters.commits.get()), (1_001, scene.commits() as u64));
    assert_eq!((counters.refused.get(), counters.pending.get()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn the_newest_row_is_written_and_an_unchanged_one_is_not() {
    let scene = Scene::new().await;
    scene.projection.insert(one()).await.expect("inserted");
    scene.fake.close_gate();
    scene.projection.upsert(updated(one(), 1));
    scene.settle().await;
    for times in 2..500 {
        scene.projection.upsert(updated(one(), times));
    }
    assert_eq!(scene.projection.counters().pending.get(), 2, "one is being written, one waits");
    scene.fake.open_gate();
    scene.settle().await;
    assert_eq!(scene.fake.rows(), [updated(one(), 499)]);
    assert_eq!(scene.commits(), 3);
    // The same again, and there and back again.
    scene.projection.upsert(updated(one(), 499));
    scene.settle().await;
    scene.projection.upsert(updated(one(), 500));
    scene.projection.upsert(updated(one(), 499));
    scene.projection.insert(updated(one(), 499)).await.expect("it is there");
    scene.settle().await;
    assert_eq!(scene.commits(), 3);
}

#[tokio::test(start_paused = true)]
async fn deleted_row_stays_deleted() {
    let scene = Scene::new().await;
    scene.projection.insert(one()).await.expect("inserted");
    scene.fake.close_gate();
    scene.projection.upsert(updated(one(), 1));
    scene.settle().await;
    let late = scene.insert(updated(one(), 2));
    scene.settle().await;
    let deleted = scene.delete("uid-1");
    scene.settle().await;
    scene.projection.upsert(updated(one(), 3));
    assert_eq!(scene.projection.fact("uid-1", ""), RowFact::Present, "until it is committed");
    scene.fake.open_gate();
    deleted.await.expect("it ran").expect("deleted");
    let error = late.await.expect("it ran").expect_err("it is deleted");
    assert!(matches!(error, StoreError::Refused { .. }), "{error:?}");
    assert_eq!(scene.projection.fact("uid-1", ""), RowFact::Absent);
    scene.projection.upsert(updated(one(), 4));
    assert!(scene.projection.insert(updated(one(), 5)).await.is_err());
    scene.settle().await;
    assert_eq!(scene.fake.rows(), []);
    scene.projection.delete("uid-1", false).await.expect("again");
    scene.projection.delete("uid-none", false).await.expect("none is success");
    // The name is free for another object.
    scene.projection.insert(row("one", "uid-2")).await.expect("inserted");
    assert_eq!(scene.fake.rows(), [row("one", "uid-2")]);
}

#[tokio::test(start_paused = true)]
async fn cached_objects_stay_where_a_deletion_says_so() {
    let scene = Scene::new().await;
    scene.projection.insert(one()).await.expect("inserted");
    scene.projection.insert(row("two", "uid-2")).await.expect("inserted");
    scene.projection.delete("uid-1", true).await.expect("deleted");
    scene.projection.delete("uid-2", false).await.expect("deleted");
    let writes = scene.fake.writes.lock();
    let kept: Vec<_> = writes.iter().flat_map(|changes| &changes.kept_objects).collect();
    assert_eq!(kept, ["uid-1"]);
}

#[tokio::test(start_paused = true)]
async fn an_account_that_lost_its_name_gets_a_row_again_with_it() {
    let scene = Scene::new().await;
    scene.projection.insert(one()).await.expect("inserted");
    scene.projection.release("uid-1").await.expect("deleted");
    assert_eq!((scene.projection.fact("uid-1", "one"), scene.fake.rows()), (RowFact::Absent, vec![]));
    scene.projection.insert(row("one", "uid-2")).await.expect("the name is free");
    scene.projection.delete("uid-2", false).await.expect("deleted");
    scene.projection.insert(one()).await.expect("the name is free again");
    scene.projection.upsert(updated(one(), 2));
    scene.settle().await;
    assert_eq!(scene.fake.rows(), [updated(one(), 2)]);
}

#[tokio::test(start_paused = true)]
async fn a_row_that_takes_over_a_name_replaces_the_other() {
    let scene = Scene::new().await;
    scene.projection.insert(one()).await.expect("inserted");
    scene.fake.close_gate();
    let (third, second) = (scene.insert(row("two", "uid-3")), scene.insert(row("two", "uid-2")));
    scene.settle().await;
    scene.projection.upsert(row("one", "uid-4"));
    scene.fake.open_gate();
    third.await.expect("it ran").expect("inserted");
    second.await.expect("it ran").expect("inserted");
    scene.settle().await;
    assert_eq!(scene.fake.rows(), [row("one", "uid-4"), row("two", "uid-2")]);
    assert_eq!(
        scene.facts(["uid-1", "uid-2", "uid-3", "uid-4"]),
        [RowFact::Absent, RowFact::Present, RowFact::Absent, RowFact::Present]
    );
}

#[tokio::test(start_paused = true)]
async fn an_outage_loses_nothing_and_is_seen() {
    let scene = Scene::new().await;
    scene.projection.insert(one()).await.expect("inserted");
    scene.projection.insert(row("two", "uid-2")).await.expect("inserted");
    scene.fake.down.store(true, Ordering::SeqCst);
    let error = scene.projection.insert(row("three", "uid-3")).await.expect_err("it is down");
    assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
    assert!(scene.projection.problem().is_some_and(|why| why.contains("pulled the plug")));
    assert_eq!(scene.projection.fact("uid-1", ""), RowFact::Unavailable);
    // Nobody is kept waiting now.
    scene.projection.insert(row("four", "uid-4")).await.expect_err("it is down");
    scene.projection.delete("uid-2", false).await.expect_err("it is down");
    for times in 0..1_000 {
        scene.projection.upsert(updated(one(), times));
    }
    assert!(scene.projection.counters().pending.get() <= 4);
    tokio::time::sleep(Duration::from_secs(600)).await;
    let tries = scene.fake.writes.lock().len();
    scene.fake.down.store(false, Ordering::SeqCst);
    scene.until_back().await;
    assert_eq!(scene.fake.rows(), [row("four", "uid-4"), updated(one(), 999), row("three", "uid-3")]);
    assert_eq!(scene.fake.writes.lock().len(), tries + 1, "in one transaction");
    assert_eq!(
        scene.facts(["uid-1", "uid-2", "uid-3"]),
        [RowFact::Present, RowFact::Absent, RowFact::Present]
    );
}

#[tokio::test(start_paused = true)]
async fn a_full_disk_is_no_recovery_because_it_can_be_read() {
    let scene = Scene::new().await;
    scene.fake.full.store(true, Ordering::SeqCst);
    scene.projection.insert(one()).await.expect_err("full");
    let mut trouble = scene.projection.watch();
    trouble.mark_unchanged();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(!trouble.has_changed().expect("it lives"), "it does not come and go");
    assert!(scene.projection.problem().is_some_and(|why| why.contains("full")));
    scene.fake.full.store(false, Ordering::SeqCst);
    scene.until_back().await;
    assert_eq!(scene.fake.rows(), [one()]);
}

#[tokio::test(start_paused = true)]
async fn an_idle_database_that_goes_away_is_noticed() {
    let scene = Scene::new().await;
    scene.fake.down.store(true, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert!(scene.projection.problem().is_some());
    scene.fake.down.store(false, Ordering::SeqCst);
    scene.until_back().await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_is_looked_up() {
    let scene = Scene::new().await;
    scene.fake.loses_answers.store(true, Ordering::SeqCst);
    scene.projection.insert(one()).await.expect_err("nobody knows");
    scene.fake.loses_answers.store(false, Ordering::SeqCst);
    scene.until_back().await;
    assert_eq!(scene.commits(), 1, "it was there, and is not written again");
    assert_eq!(scene.projection.fact("uid-1", ""), RowFact::Present);
}

#[tokio::test(start_paused = true)]
async fn one_refused_row_does_not_hold_up_the_others() {
    let scene = Scene::new().await;
    *scene.fake.refuses.lock() = vec!["n-77".to_owned(), "n-78".to_owned()];
    scene.fake.close_gate();
    let rows = (0..500).map(|at| row(&format!("n-{at}"), &format!("u-{at}")));
    let waiting: Vec<_> = rows.map(|row| scene.insert(row)).collect();
    scene.settle().await;
    scene.fake.open_gate();
    let refused = join_all(waiting).await.into_iter().filter(|done| !matches!(done, Ok(Ok(())))).count();
    assert_eq!(refused, 2);
    assert_eq!(scene.fake.rows().len(), 498);
    assert!(scene.fake.writes.lock().len() < 60, "{}", scene.fake.writes.lock().len());
    assert_eq!(scene.projection.problem(), None);
    assert_eq!(scene.projection.counters().refused.get(), 2);
    assert_eq!(scene.projection.fact("u-77", ""), RowFact::Absent);
    // The same word is not tried again before the next repair, another one is.
    let writes = scene.fake.writes.lock().len();
    scene.projection.upsert(row("n-77", "u-77"));
    scene.settle().await;
    assert_eq!(scene.fake.writes.lock().len(), writes);
    scene.projection.upsert(updated(row("n-77", "u-77"), 1));
    scene.settle().await;
    assert!(scene.fake.writes.lock().len() > writes);
    let expected = || (0..500).map(|at| row(&format!("n-{at}"), &format!("u-{at}"))).collect();
    let repair = scene.projection.repair(expected).await.expect("repaired");
    assert_eq!(repair, Repair { refused: 2, ..Repair::default() });
    scene.fake.refuses.lock().clear();
    let repair = scene.projection.repair(expected).await.expect("repaired");
    assert_eq!(repair, Repair { inserted: 2, ..Repair::default() });
}

#[tokio::test(start_paused = true)]
async fn an_object_that_changes_during_a_comparison_has_its_row_as_it_is_now() {
    let scene = Scene::new().await;
    let (was, now) = (updated(one(), 1), updated(one(), 2));
    // A crash has left the row as the object is going to be.
    scene.projection.insert(now.clone()).await.expect("inserted");
    let expected = || {
        // Once it was asked for, the object changes, and its row is that already.
        scene.projection.upsert(now.clone());
        vec![was.clone()]
    };
    assert_eq!(scene.projection.repair(expected).await.expect("compared"), Repair::default());
    assert_eq!(scene.projection.repair(|| vec![now.clone()]).await.expect("compared"), Repair::default());
    assert_eq!(scene.fake.rows(), [now]);
}

#[tokio::test(start_paused = true)]
async fn row_that_the_table_holds_is_not_queued_after_an_abandoned_repair() {
    let scene = Scene::new().await;
    scene.projection.insert(one()).await.expect("inserted");
    scene.settle().await;
    scene.fake.holds_reads.store(true, Ordering::SeqCst);
    let abandoned = scene.projection.repair(|| vec![one()]).now_or_never();
    assert!(abandoned.is_none(), "the table is being read");
    scene.projection.upsert(one());
    assert_eq!(scene.projection.counters().pending.get(), 0);
}

#[tokio::test(start_paused = true)]
async fn repair_undoes_what_was_done_by_hand() {
    let scene = Scene::new().await;
    let (two, three, gone) = (row("two", "uid-2"), row("three", "uid-3"), row("gone", "uid-gone"));
    let expected = || vec![one(), two.clone(), three.clone(), gone.clone()];
    for row in expected() {
        scene.projection.insert(row).await.expect("inserted");
    }
    assert_eq!(scene.projection.repair(expected).await.expect("repaired"), Repair::default());
    scene.projection.delete("uid-gone", false).await.expect("deleted");
    scene.fake.set(updated(one(), 7));
    scene.fake.table.lock().remove("two");
    scene.fake.set(row("stray", "uid-stray"));
    scene.fake.set(gone.clone());
    scene.fake.table.lock().remove("three");
    *scene.fake.malformed.lock() = vec![Malformed {
        table: "kubesvc_accounts",
        name: "three".to_owned(),
        uid: Some("uid-3".to_owned()),
        column: "generation".to_owned(),
        why: "it is a text".to_owned(),
    }];
    let list = || vec![one(), two.clone(), three.clone()];
    let repair = scene.projection.repair(list).await.expect("repaired");
    assert_eq!(repair, Repair { inserted: 1, updated: 2, deleted: 2, refused: 0 });
    scene.fake.malformed.lock().clear();
    assert_eq!(scene.fake.rows(), [one(), three.clone(), two.clone()]);
    assert_eq!(scene.projection.repair(list).await.expect("repaired"), Repair::default());
    // A list that comes late does not bring back what was deleted, and a stray may turn out to be wanted.
    assert_eq!(scene.projection.repair(expected).await.expect("repaired"), Repair::default());
    scene.projection.insert(row("stray", "uid-stray")).await.expect("inserted");
}

#[tokio::test(start_paused = true)]
async fn row_set_during_a_repair_wins() {
    let scene = Scene::new().await;
    scene.projection.insert(one()).await.expect("inserted");
    scene.fake.close_gate();
    scene.projection.upsert(updated(one(), 1));
    let fresh = scene.insert(row("two", "uid-2"));
    let projection = Arc::clone(&scene.projection);
    let repair = tokio::spawn(async move { projection.repair(|| vec![one(), row("two", "uid-2")]).await });
    scene.settle().await;
    scene.projection.upsert(updated(one(), 2));
    scene.projection.upsert(row("two", "uid-2"));
    scene.fake.open_gate();
    fresh.await.expect("it ran").expect("inserted");
    repair.await.expect("it ran").expect("repaired");
    scene.settle().await;
    assert_eq!(scene.fake.rows(), [updated(one(), 2), row("two", "uid-2")]);
}

#[tokio::test(start_paused = true)]
async fn waiting_rows_are_written_before_the_stop() {
    let scene = Scene::new().await;
    scene.fake.close_gate();
    scene.projection.upsert(one());
    scene.settle().await;
    scene.projection.upsert(row("two", "uid-2"));
    scene.stop.cancel();
    scene.fake.open_gate();
    scene.task.await.expect("it ended");
    assert_eq!(scene.fake.rows(), [one(), row("two", "uid-2")]);
    scene.projection.insert(row("three", "uid-3")).await.expect_err("it ended");
    assert!(scene.projection.problem().is_some_and(|why| why.contains("stopping")));
}

#[tokio::test(start_paused = true)]
async fn a_database_that_hangs_does_not_hold_up_the_end() {
    let scene = Scene::new().await;
    scene.fake.close_gate();
    let waiting = scene.insert(one());
    scene.settle().await;
    let began = tokio::time::Instant::now();
    scene.stop.cancel();
    scene.task.await.expect("it ended");
    assert_eq!(began.elapsed(), Duration::from_secs(5));
    let error = waiting.await.expect("it ran").expect_err("nobody knows");
    assert!(matches!(error, StoreError::Unavailable(_)), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn foreign_row_is_adopted() {
    let fake = Fake::new();
    fake.foreign.lock().push("prod".to_owned());
    let scene = Scene::of(fake).await;
    let fact = || scene.projection.fact("uid-1", "prod");
    scene.projection.insert(row("prod", "uid-1")).await.expect_err("it is not ours");
    assert_eq!(fact(), RowFact::Foreign);
    scene.projection.adopt(row("prod", "uid-1")).await.expect("adopted");
    assert_eq!(fact(), RowFact::Present);
    assert_eq!(scene.fake.rows(), [row("prod", "uid-1")]);
    scene.projection.adopt(row("prod", "uid-1")).await.expect("the vendor's table may have it still");
    assert_eq!(scene.fake.commits.load(Ordering::SeqCst), 2);
    scene.projection.delete("uid-1", false).await.expect("deleted");
    scene.projection.adopt(row("prod", "uid-1")).await.expect_err("the account is deleted");
}

#[tokio::test(start_paused = true)]
async fn a_newer_row_before_an_adoption_is_adopted_too() {
    let fake = Fake::new();
    fake.foreign.lock().push("prod".to_owned());
    let scene = Scene::of(fake).await;
    scene.fake.down.store(true, Ordering::SeqCst);
    scene.projection.load().await.expect_err("it is down");
    scene.projection.adopt(row("prod", "uid-1")).await.expect_err("it waits");
    let newer = AccountRow { status: "ACTIVE".to_owned(), ..row("prod", "uid-1") };
    scene.projection.upsert(newer.clone());
    scene.fake.down.store(false, Ordering::SeqCst);
    scene.until_back().await;
    scene.settle().await;
    assert_eq!(scene.fake.rows(), [newer]);
}

#[tokio::test(start_paused = true)]
async fn foreign_row_is_known_by_its_name() {
    let fake = Fake::new();
    fake.foreign.lock().push("theirs".to_owned());
    let scene = Scene::of(fake).await;
    let fact = |name: &str| scene.projection.fact("uid-1", name);
    assert_eq!([fact("theirs"), fact("ours")], [RowFact::Foreign, RowFact::Absent], "from the start");
    // One that comes later is known once it is met, before whoever met it hears of it.
    scene.fake.foreign.lock().push("ours".to_owned());
    assert_eq!(fact("ours"), RowFact::Absent);
    let error = scene.projection.insert(row("ours", "uid-1")).await.expect_err("refused");
    assert!(matches!(error, StoreError::Refused { .. }), "{error:?}");
    assert_eq!(fact("ours"), RowFact::Foreign);
    // One that goes is known to be gone with the next repair.
    scene.fake.foreign.lock().clear();
    assert_eq!([fact("theirs"), fact("ours")], [RowFact::Foreign, RowFact::Foreign]);
    scene.projection.repair(Vec::new).await.expect("repaired");
    assert_eq!([fact("theirs"), fact("ours")], [RowFact::Absent, RowFact::Absent]);
    scene.projection.insert(row("ours", "uid-1")).await.expect("inserted");
    scene.fake.foreign.lock().push("ours".to_owned());
    scene.projection.repair(|| vec![row("ours", "uid-1")]).await.expect("repaired");
    assert_eq!(fact("ours"), RowFact::Present, "the account has a row of its own");
    scene.fake.down.store(true, Ordering::SeqCst);
    scene.projection.load().await.expect_err("it is down");
    assert_eq!(fact("theirs"), RowFact::Unavailable);
}
