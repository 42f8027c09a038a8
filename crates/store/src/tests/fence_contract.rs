//! The contract of every database about fences, as tests. A stand-in for the stream of objects passes the fence,
//! writes the accepted batches into a table of its own, and commits.

use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::Notify;

use crate::dialect::Dialect;
use crate::mysql::MySql;
use crate::postgres::Postgres;
use crate::sql::driver::ColumnValue as _;
use crate::sql::statement::Statement;
use crate::sql::{RowOf, SqlSession, SqlStore, Transaction};
use crate::sqlite::Sqlite;
use crate::tests::contract::{DeleteAccount as _, row};
use crate::{AccountChanges, BatchClaim, Fence, FenceCheck, RaiseOutcome, Store, StoreError, fences};
use kubesvc_core::CachingEpoch;

/// Generates one test for each function. The expression is a future of two replicas' stores of one database, and of
/// what keeps it alive. If only one process can open the database, both are the same store.
macro_rules! contract_tests {
    ($fresh:expr) => {
        $crate::tests::fence_contract::contract_tests! { @each $fresh,
            a_fence_comes_and_goes_with_its_account, the_same_name_under_another_uid_has_a_fence_of_its_own,
            a_fence_is_only_raised,
            a_batch_is_written_once_and_what_was_written_before_is_known,
            a_writer_of_a_lower_or_higher_epoch_writes_nothing, accounts_that_do_not_pass_are_left_out_of_the_batch,
            two_replicas_starting_the_cache_at_once, an_old_writer_that_slept_writes_nothing_when_it_wakes_up,
            two_writers_of_different_epochs_never_both_write
        }
    };
    (@each $fresh:expr, $($story:ident),+) => {
        $(#[tokio::test(flavor = "multi_thread")]
        async fn $story() {
            let (one, other, _kept) = $fresh.await;
            $crate::tests::fence_contract::$story(&one, &other).await;
        })+
    };
}
pub(super) use contract_tests;

/// A row written by the stand-in: uid, epoch, batch number, and writer.
pub(super) type WrittenRow = (String, i64, i64, String);

/// A store with the writer that stands in for the stream.
#[async_trait]
pub(super) trait Streaming: Store {
    /// Creates the writer's table.
    async fn make_table(&self);

    /// Runs one transaction of the writer. With `pause`, it notifies the first after it has passed the fences and
    /// then waits for the second.
    async fn stream(
        &self,
        writer: &str,
        claims: &[BatchClaim],
        pause: Option<(&Notify, &Notify)>,
    ) -> Result<Vec<FenceCheck>, StoreError>;

    /// The written rows, in write order.
    async fn written(&self) -> Vec<WrittenRow>;
}

/// The writer's table in this database's syntax, with a counter.
pub(super) trait StreamedTable: Dialect {
    const CREATE: &str;
}

impl StreamedTable for Sqlite {
    const CREATE: &str = "CREATE TABLE streamed (id INTEGER PRIMARY KEY AUTOINCREMENT, account_uid TEXT, \
                          epoch INTEGER, seq INTEGER, writer TEXT)";
}

impl StreamedTable for MySql {
    const CREATE: &str = "CREATE TABLE streamed (id bigint AUTO_INCREMENT PRIMARY KEY, account_uid varchar(36), \
                          epoch bigint, seq bigint, writer varchar(36))";
}

impl StreamedTable for Postgres {
    const CREATE: &str = "CREATE TABLE streamed (id bigserial PRIMARY KEY, account_uid text, epoch bigint, \
                          seq bigint, writer text)";
}

#[async_trait]
impl<D: StreamedTable> Streaming for SqlStore<D> {
    async fn make_table(&self) {
        self.transact(&MakeTable).await.expect("a table");
    }

    async fn stream(
        &self,
        writer: &str,
        claims: &[BatchClaim],
        pause: Option<(&Notify, &Notify)>,
    ) -> Result<Vec<FenceCheck>, StoreError> {
        self.transact(&Stream { writer, claims, pause }).await
    }

    async fn written(&self) -> Vec<WrittenRow> {
        let written = self.read(async |session| {
            let select = Statement::new("SELECT account_uid, epoch, seq, writer FROM streamed ORDER BY id");
            let row = |row: &RowOf<D>| {
                Ok((
                    String::required::<D::Database>(row, 0)?,
                    i64::required::<D::Database>(row, 1)?,
                    i64::required::<D::Database>(row, 2)?,
                    String::required::<D::Database>(row, 3)?,
                ))
            };
            session.all(select, row).await
        });
        written.await.expect("what was written")
    }
}

struct MakeTable;

impl<D: StreamedTable> Transaction<D> for MakeTable {
    type Answer = ();

    async fn run(&self, session: &mut SqlSession<'_, D>) -> Result<(), StoreError> {
        session.execute(Statement::new(D::CREATE)).await.map(drop)
    }
}

struct Stream<'s> {
    writer: &'s str,
    claims: &'s [BatchClaim],
    pause: Option<(&'s Notify, &'s Notify)>,
}

impl<D: Dialect> Transaction<D> for Stream<'_> {
    type Answer = Vec<FenceCheck>;

    async fn run(&self, session: &mut SqlSession<'_, D>) -> Result<Vec<FenceCheck>, StoreError> {
        let verdicts = fences::pass(session, self.claims).await?;
        if let Some((passed, go_on)) = self.pause {
            passed.notify_one();
            go_on.notified().await;
        }
        for (claim, verdict) in self.claims.iter().zip(&verdicts) {
            if *verdict != FenceCheck::Passed {
                continue;
            }
            for seq in claim.committed + 1..=claim.last {
                let insert = Statement::new(
                    "INSERT INTO streamed (account_uid, epoch, seq, writer) VALUES (?, ?, ?, ?)",
                )
                .bind(claim.uid.as_str())
                .bind(claim.epoch.0)
                .bind(seq)
                .bind(self.writer);
                session.execute(insert).await?;
            }
        }
        Ok(verdicts)
    }
}

type StreamingStore = Arc<dyn Streaming>;

fn fence(uid: &str, epoch: i64, agent: &str) -> Fence {
    Fence {
        uid: uid.to_owned(),
        epoch: CachingEpoch(epoch),
        agent_id: Some(agent.into()),
        boot_id: Some("01J00000000000000000000000".to_owned()),
        replica_id: Some(format!("replica-of-{agent}").into()),
    }
}

fn claim(uid: &str, epoch: i64, committed: i64, last: i64) -> BatchClaim {
    BatchClaim { uid: uid.to_owned(), epoch: CachingEpoch(epoch), committed, last }
}

async fn raise(store: &StreamingStore, fence: Fence) -> RaiseOutcome {
    let raised = store.raise_fences(&[fence]).await.expect("it answers");
    raised.first().expect("one was asked for").1
}

/// Returns the verdict on one claim. Retries while the database is busy.
async fn stream(store: &StreamingStore, writer: &str, claim: BatchClaim) -> FenceCheck {
    for _ in 0..100 {
        match store.stream(writer, std::slice::from_ref(&claim), None).await {
            Ok(verdicts) => return verdicts[0],
            Err(StoreError::Unavailable(_)) => tokio::task::yield_now().await,
            Err(error) => unreachable!("{}", error.in_full()),
        }
    }
    unreachable!("the database is busy all the time")
}

async fn standing(store: &StreamingStore) -> Vec<(String, i64, Option<String>)> {
    let mut all: Vec<_> = store
        .fences()
        .await
        .expect("they are read")
        .into_iter()
        .map(|one| (one.uid, one.epoch.0, one.replica_id.map(String::from)))
        .collect();
    all.sort();
    all
}

pub(super) async fn a_fence_comes_and_goes_with_its_account(store: &StreamingStore, _: &StreamingStore) {
    store.put_accounts(&[row("a", "uid-a"), row("b", "uid-b")]).await.expect("written");
    assert_eq!(standing(store).await, [], "the epoch is 0");
    assert_eq!(raise(store, fence("uid-a", 1, "x")).await, RaiseOutcome::Stands);
    store.put_accounts(&[row("a", "uid-a")]).await.expect("written again");
    assert_eq!(standing(store).await, [("uid-a".to_owned(), 1, Some("replica-of-x".to_owned()))]);
    store.delete_account("uid-a").await.expect("deleted");
    assert_eq!(raise(store, fence("uid-a", 2, "x")).await, RaiseOutcome::Missing);
    assert_eq!(raise(store, fence("uid-b", 1, "x")).await, RaiseOutcome::Stands);
    let adopts = vec![Arc::new(row("c", "uid-c"))];
    store.write(&AccountChanges { adopts, ..AccountChanges::default() }).await.expect("adopted");
    assert_eq!(
        raise(store, fence("uid-c", 1, "x")).await,
        RaiseOutcome::Stands,
        "an adopted account has one too"
    );
}

pub(super) async fn the_same_name_under_another_uid_has_a_fence_of_its_own(
    store: &StreamingStore,
    _: &StreamingStore,
) {
    store.make_table().await;
    store.put_accounts(&[row("a", "uid-old")]).await.expect("written");
    raise(store, fence("uid-old", 7, "x")).await;
    store.put_accounts(&[row("a", "uid-new")]).await.expect("the name is taken over");
    assert_eq!(raise(store, fence("uid-old", 8, "x")).await, RaiseOutcome::Missing);
    assert_eq!(raise(store, fence("uid-new", 1, "y")).await, RaiseOutcome::Stands);
    assert_eq!(stream(store, "x", claim("uid-old", 7, 0, 1)).await, FenceCheck::Gone);
    assert_eq!(stream(store, "y", claim("uid-new", 1, 0, 1)).await, FenceCheck::Passed);
}

pub(super) async fn a_fence_is_only_raised(store: &StreamingStore, other: &StreamingStore) {
    store.make_table().await;
    store.put_accounts(&[row("a", "uid-a")]).await.expect("written");
    assert_eq!(raise(store, fence("uid-a", 2, "x")).await, RaiseOutcome::Stands);
    assert_eq!(stream(store, "x", claim("uid-a", 2, 0, 3)).await, FenceCheck::Passed);
    assert_eq!(raise(other, fence("uid-a", 1, "y")).await, RaiseOutcome::Higher(CachingEpoch(2)));
    // The stream of the same process moved to another replica: what was written stays valid.
    let moved = Fence { replica_id: Some(("r".repeat(300)).into()), ..fence("uid-a", 2, "x") };
    assert_eq!(raise(other, moved).await, RaiseOutcome::Stands);
    assert_eq!(standing(other).await[0].2.as_ref().map(String::len), Some(191));
    assert_eq!(stream(other, "x", claim("uid-a", 2, 3, 4)).await, FenceCheck::Passed);
    let nobody = Fence { agent_id: None, boot_id: None, replica_id: None, ..fence("uid-a", 3, "") };
    assert_eq!(raise(store, nobody).await, RaiseOutcome::Stands);
    assert_eq!(stream(other, "x", claim("uid-a", 2, 4, 5)).await, FenceCheck::Higher(CachingEpoch(3)));
    let long = Fence { agent_id: Some(("x".repeat(192)).into()), ..fence("uid-a", 4, "") };
    assert!(matches!(store.raise_fences(&[long]).await, Err(StoreError::Refused { .. })));
}

pub(super) async fn a_batch_is_written_once_and_what_was_written_before_is_known(
    store: &StreamingStore,
    other: &StreamingStore,
) {
    store.make_table().await;
    store.put_accounts(&[row("a", "uid-a")]).await.expect("written");
    raise(store, fence("uid-a", 1, "x")).await;
    let pass = |committed, last| stream(store, "x", claim("uid-a", 1, committed, last));
    assert_eq!(pass(0, 2).await, FenceCheck::Passed);
    assert_eq!(pass(0, 2).await, FenceCheck::Done, "the answer was lost, and it comes again");
    assert_eq!(stream(other, "x", claim("uid-a", 1, 0, 1)).await, FenceCheck::Done, "at another replica too");
    assert_eq!(pass(1, 3).await, FenceCheck::Rewind(2), "part of it was written");
    assert_eq!(pass(5, 6).await, FenceCheck::Rewind(2), "the database has lost what was acknowledged");
    assert_eq!(pass(2, 3).await, FenceCheck::Passed);
    raise(store, fence("uid-a", 2, "y")).await;
    assert_eq!(
        stream(store, "y", claim("uid-a", 2, 0, 1)).await,
        FenceCheck::Passed,
        "each epoch counts from 1"
    );
    let numbers: Vec<_> = store.written().await.into_iter().map(|(_, epoch, seq, _)| (epoch, seq)).collect();
    assert_eq!(numbers, [(1, 1), (1, 2), (1, 3), (2, 1)]);
}

pub(super) async fn a_writer_of_a_lower_or_higher_epoch_writes_nothing(
    store: &StreamingStore,
    _: &StreamingStore,
) {
    store.make_table().await;
    store.put_accounts(&[row("a", "uid-a")]).await.expect("written");
    assert_eq!(stream(store, "x", claim("uid-a", 1, 0, 1)).await, FenceCheck::Lower(CachingEpoch(0)));
    raise(store, fence("uid-a", 3, "x")).await;
    assert_eq!(
        stream(store, "x", claim("uid-a", 4, 0, 1)).await,
        FenceCheck::Lower(CachingEpoch(3)),
        "it is raised first"
    );
    assert_eq!(stream(store, "x", claim("uid-a", 2, 0, 1)).await, FenceCheck::Higher(CachingEpoch(3)));
    assert_eq!(stream(store, "x", claim("uid-b", 3, 0, 1)).await, FenceCheck::Gone);
    assert_eq!(store.written().await, []);
}

pub(super) async fn accounts_that_do_not_pass_are_left_out_of_the_batch(
    store: &StreamingStore,
    _: &StreamingStore,
) {
    store.make_table().await;
    let names: Vec<_> = (0..20).map(|number| format!("uid-{number:02}")).collect();
    let rows: Vec<_> = names.iter().map(|uid| row(uid, uid)).collect();
    store.put_accounts(&rows).await.expect("written");
    let fences: Vec<_> = names.iter().map(|uid| fence(uid, 1, "x")).collect();
    let raised = store.raise_fences(&fences).await.expect("raised");
    assert!(raised.len() == 20 && raised.iter().all(|(_, outcome)| *outcome == RaiseOutcome::Stands));
    raise(store, fence("uid-07", 2, "y")).await;
    let mut claims: Vec<_> = names.iter().map(|uid| claim(uid, 1, 0, 1)).collect();
    claims.reverse();
    let verdicts = store.stream("x", &claims, None).await.expect("written");
    for (claim, verdict) in claims.iter().zip(verdicts) {
        let expected =
            if claim.uid == "uid-07" { FenceCheck::Higher(CachingEpoch(2)) } else { FenceCheck::Passed };
        assert_eq!(verdict, expected, "{}", claim.uid);
    }
    assert_eq!(store.written().await.len(), 19);
}

/// Two replicas each have an agent and believe that it was elected. They raise the fence and stream at the same time.
pub(super) async fn two_replicas_starting_the_cache_at_once(store: &StreamingStore, other: &StreamingStore) {
    store.make_table().await;
    for round in 0..10 {
        let uid = format!("uid-{round}");
        store.put_accounts(&[row(&format!("account-{round}"), &uid)]).await.expect("written");
        let start = async |store: &StreamingStore, epoch: i64, agent: &str| {
            let raised = loop {
                match store.raise_fences(&[fence(&uid, epoch, agent)]).await {
                    Ok(raised) => break raised[0].1,
                    Err(StoreError::Unavailable(_)) => {}
                    Err(error) => unreachable!("{}", error.in_full()),
                }
            };
            match raised {
                RaiseOutcome::Stands => stream(store, agent, claim(&uid, epoch, 0, 1)).await,
                RaiseOutcome::Higher(epoch) => FenceCheck::Higher(epoch),
                RaiseOutcome::Missing => FenceCheck::Gone,
            }
        };
        let (first, second) = tokio::join!(start(store, 1, "x"), start(other, 2, "y"));
        assert_eq!(second, FenceCheck::Passed);
        assert!(matches!(first, FenceCheck::Passed | FenceCheck::Higher(CachingEpoch(2))), "{first:?}");
        assert_eq!(stream(store, "x", claim(&uid, 1, 0, 1)).await, FenceCheck::Higher(CachingEpoch(2)));
        assert_eq!(stream(store, "x", claim(&uid, 1, 1, 2)).await, FenceCheck::Higher(CachingEpoch(2)));
    }
    never_backwards(store).await;
}

pub(super) async fn an_old_writer_that_slept_writes_nothing_when_it_wakes_up(
    store: &StreamingStore,
    other: &StreamingStore,
) {
    store.make_table().await;
    store.put_accounts(&[row("a", "uid-a")]).await.expect("written");
    raise(store, fence("uid-a", 1, "x")).await;
    assert_eq!(stream(store, "x", claim("uid-a", 1, 0, 1)).await, FenceCheck::Passed);
    let asleep = claim("uid-a", 1, 1, 2);
    raise(other, fence("uid-a", 2, "y")).await;
    assert_eq!(stream(other, "y", claim("uid-a", 2, 0, 2)).await, FenceCheck::Passed);
    assert_eq!(stream(store, "x", asleep).await, FenceCheck::Higher(CachingEpoch(2)));
    assert_eq!(raise(store, fence("uid-a", 1, "x")).await, RaiseOutcome::Higher(CachingEpoch(2)));
    assert_eq!(store.written().await.len(), 3);
}

/// Both stream as fast as they can while the fence is raised.
pub(super) async fn two_writers_of_different_epochs_never_both_write(
    store: &StreamingStore,
    other: &StreamingStore,
) {
    store.make_table().await;
    store.put_accounts(&[row("a", "uid-a")]).await.expect("written");
    raise(store, fence("uid-a", 1, "x")).await;
    let old = async {
        let mut committed = 0;
        loop {
            match stream(store, "x", claim("uid-a", 1, committed, committed + 1)).await {
                FenceCheck::Passed => committed += 1,
                FenceCheck::Higher(CachingEpoch(2)) => return committed,
                verdict => unreachable!("{verdict:?}"),
            }
        }
    };
    let new = async {
        while other.written().await.len() < 5 {
            tokio::task::yield_now().await;
        }
        while !matches!(other.raise_fences(&[fence("uid-a", 2, "y")]).await, Ok(raised) if raised[0].1 == RaiseOutcome::Stands)
        {
        }
        for committed in 0..5 {
            assert_eq!(
                stream(other, "y", claim("uid-a", 2, committed, committed + 1)).await,
                FenceCheck::Passed
            );
        }
    };
    let (count, ()) = tokio::join!(old, new);
    assert!(count >= 5);
    let written = store.written().await;
    assert_eq!(i64::try_from(written.len()), Ok(count + 5));
    never_backwards(store).await;
}

/// Only for databases that several processes can open: a writer sleeps in its transaction, and the fence is not
/// raised before the transaction has ended.
pub(super) async fn a_writer_that_sleeps_in_its_transaction_is_waited_for(
    store: &StreamingStore,
    other: &StreamingStore,
) {
    store.make_table().await;
    store.put_accounts(&[row("a", "uid-a")]).await.expect("written");
    raise(store, fence("uid-a", 1, "x")).await;
    let (passed, go_on) = (Notify::new(), Notify::new());
    let claims = [claim("uid-a", 1, 0, 1)];
    let sleeper = store.stream("x", &claims, Some((&passed, &go_on)));
    let next = async {
        passed.notified().await;
        let early = other.stream("y", &[claim("uid-a", 2, 0, 1)], None).await;
        assert!(
            !matches!(early, Ok(verdicts) if verdicts[0] == FenceCheck::Passed),
            "the fence is not raised"
        );
        go_on.notify_one();
        while !matches!(other.raise_fences(&[fence("uid-a", 2, "y")]).await, Ok(raised) if raised[0].1 == RaiseOutcome::Stands)
        {
        }
        stream(other, "y", claim("uid-a", 2, 0, 1)).await
    };
    let (slept, new) = tokio::join!(sleeper, next);
    assert_eq!((slept.expect("it was first"), new), (vec![FenceCheck::Passed], FenceCheck::Passed));
    assert_eq!(stream(store, "x", claim("uid-a", 1, 1, 2)).await, FenceCheck::Higher(CachingEpoch(2)));
    never_backwards(store).await;
}

/// Asserts that, in write order, the epochs of each account only grow, each epoch has one writer, and its batches are
/// consecutive.
async fn never_backwards(store: &StreamingStore) {
    let mut last = std::collections::HashMap::<String, (i64, i64, String)>::new();
    for (uid, epoch, seq, writer) in store.written().await {
        let before = last.insert(uid, (epoch, seq, writer.clone()));
        let fits = before.as_ref().is_none_or(|(before, at, who)| {
            (epoch == *before && seq == at + 1 && writer == *who) || (epoch > *before && seq == 1)
        });
        assert!(fits, "{epoch}/{seq} of {writer} after {before:?}");
    }
}
