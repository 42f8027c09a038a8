//! A replica that leads, leads no more, or slept.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::FutureExt as _;
use tokio_util::sync::CancellationToken;

use super::fake::Fake;
use crate::AssignmentChanges;
use crate::account_projection::*;
use crate::tests::contract::row;
use kubesvc_runtime::background_tasks::TaskRegistry;

/// A replica, its database, and whether its Lease is still its own.
struct TestReplica {
    projection: Arc<Projection>,
    fake: Arc<Fake>,
    has_lease: Arc<AtomicBool>,
    stop: CancellationToken,
}

impl TestReplica {
    /// One that follows.
    fn start(fake: Arc<Fake>) -> Self {
        let projection = Projection::new(Arc::clone(&fake) as Arc<dyn Store>);
        projection.follow();
        let stop = CancellationToken::new();
        let (running, until) = (Arc::clone(&projection), stop.clone());
        tokio::spawn(async move { running.run(&TaskRegistry::default(), until).await });
        Self { projection, fake, has_lease: Arc::new(AtomicBool::new(true)), stop }
    }

    async fn lead(&self) -> CancellationToken {
        let (over, has_lease) = (CancellationToken::new(), Arc::clone(&self.has_lease));
        let confirm: Confirm = Arc::new(move || {
            let has_lease = has_lease.load(Ordering::SeqCst);
            async move { has_lease }.boxed()
        });
        self.projection.lead(LeaderTerm { replica_id: "r".into(), confirm, over: over.clone() }).await;
        over
    }
}

impl Drop for TestReplica {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let looking = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let found = tokio::time::timeout(Duration::from_secs(20), looking).await;
    assert!(found.is_ok(), "{what}");
}

#[tokio::test]
async fn a_replica_that_follows_writes_nothing_and_knows_whether_the_database_answers() {
    let replica = TestReplica::start(Fake::new());
    eventually("the database answers", || replica.projection.problem().is_none()).await;
    replica.projection.upsert(row("one", "uid-1"));
    assert!(matches!(replica.projection.insert(row("two", "uid-2")).await, Err(StoreError::Deposed)));
    assert!(matches!(replica.projection.delete("uid-3", false).await, Err(StoreError::Deposed)));
    assert!(matches!(replica.projection.repair(Vec::new).await, Err(StoreError::Deposed)));
    assert_eq!(replica.projection.fact("uid-1", "one"), RowFact::Unavailable);
    assert!(replica.fake.writes.lock().is_empty());
    assert_eq!(replica.projection.counters().pending.get(), 0);
}

#[tokio::test]
async fn each_lead_writes_under_a_new_term() {
    let replica = TestReplica::start(Fake::new());
    replica.lead().await;
    replica.projection.insert(row("one", "uid-1")).await.expect("it leads");
    let first = replica.projection.term().expect("it has a term");
    replica.projection.follow();
    assert!(replica.projection.insert(row("two", "uid-2")).await.is_err());
    // Somebody else led, and took the row away.
    replica.fake.table.lock().clear();
    replica.lead().await;
    replica.projection.insert(row("one", "uid-1")).await.expect("it leads again");
    assert!(replica.projection.term().expect("it has a term") > first);
    assert_eq!(replica.fake.rows(), [row("one", "uid-1")], "what the table holds was read anew");
}

#[tokio::test]
async fn a_late_write_is_refused_and_counted_and_ends_the_lead() {
    let replica = TestReplica::start(Fake::new());
    let over = replica.lead().await;
    replica.projection.insert(row("one", "uid-1")).await.expect("it leads");
    replica.fake.term.lock().0 += 1;
    let late = replica.projection.insert(row("two", "uid-2")).await;
    assert!(late.is_err(), "it is not written");
    over.cancelled().await;
    assert_eq!(replica.fake.rows(), [row("one", "uid-1")]);
    assert_eq!(replica.projection.counters().late.get(), 1);
    assert_eq!(replica.projection.term(), None);
}

#[tokio::test]
async fn a_term_that_is_not_confirmed_is_never_used() {
    let replica = TestReplica::start(Fake::new());
    replica.has_lease.store(false, Ordering::SeqCst);
    let over = replica.lead().await;
    assert!(over.is_cancelled() && replica.projection.term().is_none());
    assert!(replica.projection.insert(row("one", "uid-1")).await.is_err());
    assert!(replica.fake.writes.lock().is_empty());
}

#[tokio::test]
async fn without_a_database_the_term_waits_and_comes_before_the_first_row() {
    let replica = TestReplica::start(Fake::new());
    replica.fake.down.store(true, Ordering::SeqCst);
    let over = replica.lead().await;
    assert!(!over.is_cancelled() && replica.projection.term().is_none());
    assert_eq!(replica.projection.fact("uid-1", "one"), RowFact::Unavailable);
    replica.projection.upsert(row("one", "uid-1"));
    replica.fake.down.store(false, Ordering::SeqCst);
    eventually("the row is written", || replica.fake.rows() == [row("one", "uid-1")]).await;
    assert!(replica.projection.term().is_some());
    assert!(replica.fake.writes.lock().iter().all(|changes| changes.term.is_some()));
}

#[tokio::test]
async fn without_a_term_a_leader_writes_no_assignments_either() {
    let replica = TestReplica::start(Fake::new());
    replica.fake.down.store(true, Ordering::SeqCst);
    let _over = replica.lead().await;
    let written = replica.projection.write_assignments(&"dead".into(), AssignmentChanges::default()).await;
    let why = written.expect_err("nothing fences it").in_full();
    assert!(why.contains("term has not begun"), "{why}");
}

#[tokio::test]
async fn lost_leader_writes_nothing_when_the_database_returns() {
    let replica = TestReplica::start(Fake::new());
    replica.fake.down.store(true, Ordering::SeqCst);
    let over = replica.lead().await;
    replica.projection.upsert(row("one", "uid-1"));
    replica.has_lease.store(false, Ordering::SeqCst);
    replica.fake.down.store(false, Ordering::SeqCst);
    over.cancelled().await;
    eventually("the database answers", || replica.projection.problem().is_none()).await;
    assert!(replica.fake.writes.lock().is_empty() && replica.fake.rows().is_empty());
}
