//! The contract of every database about fences, as tests, with a writer that stands for the stream of objects: it
//! passes the fence, writes into a table of its own what it has let through, and commits.

use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::Notify;

use crate::account::CachingEpoch;
use crate::store::contract_tests::row;
use crate::store::{BatchClaim, Changes, Fence, FenceCheck, RaiseOutcome, Store, StoreError};

/// Makes a test of each story. The expression is a future of two replicas' stores of one database, and of what keeps it
/// alive; where one process alone may have the database, both are the same.
macro_rules! contract_tests {
    ($fresh:expr) => {
        $crate::store::fences::contract_tests::contract_tests! { @each $fresh,
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
            $crate::store::fences::contract_tests::$story(&one, &other).await;
        })+
    };
}
pub(in crate::store) use contract_tests;

/// A row that the stand-in has written: uid, epoch, number of the batch, and who.
pub(in crate::store) type WrittenRow = (String, i64, i64, String);

/// A store with the writer that stands for the stream.
#[async_trait]
pub(in crate::store) trait Streaming: Store {
    /// Makes the writer's table.
    async fn make_table(&self);

    /// One transaction of the writer's. With `pause` it waits, after it has passed the fences, until that is told.
    async fn stream(
        &self,
        writer: &str,
        claims: &[BatchClaim],
        pause: Option<(&Notify, &Notify)>,
    ) -> Result<Vec<FenceCheck>, StoreError>;

    /// What was written, in its order.
    async fn written(&self) -> Vec<WrittenRow>;
}

/// Implements [`Streaming`] for an adapter with `writer` and `settle`; the two are its spellings of a table with a
/// counter, and of an insertion.
macro_rules! streaming {
    ($adapter:ident, $create:literal, $insert:literal) => {
        #[async_trait::async_trait]
        impl $crate::store::fences::contract_tests::Streaming for $adapter {
            async fn make_table(&self) {
                let mut connection = self.writer().await.expect("a connection");
                sqlx::query($create).execute(&mut *connection).await.expect("a table");
            }

            async fn stream(
                &self,
                writer: &str,
                claims: &[$crate::store::BatchClaim],
                pause: Option<(&tokio::sync::Notify, &tokio::sync::Notify)>,
            ) -> Result<Vec<$crate::store::FenceCheck>, StoreError> {
                let mut connection = self.writer().await?;
                let result = async {
                    let mut transaction = connection.begin().await.map_err(errors::classify)?;
                    let verdicts = fences::pass(&mut transaction, claims, $crate::store::now()).await?;
                    if let Some((passed, go_on)) = pause {
                        passed.notify_one();
                        go_on.notified().await;
                    }
                    for (claim, verdict) in claims.iter().zip(&verdicts) {
                        if *verdict == $crate::store::FenceCheck::Passed {
                            for seq in claim.committed + 1..=claim.last {
                                let insert =
                                    sqlx::query($insert).bind(&claim.uid).bind(claim.epoch.0).bind(seq);
                                insert
                                    .bind(writer)
                                    .execute(&mut *transaction)
                                    .await
                                    .map_err(errors::classify)?;
                            }
                        }
                    }
                    transaction.commit().await.map_err(errors::classify)?;
                    Ok(verdicts)
                }
                .await;
                self.settle(connection, &result);
                result
            }

            async fn written(&self) -> Vec<$crate::store::fences::contract_tests::WrittenRow> {
                let mut connection = self.reader().await.expect("a connection");
                sqlx::query_as("SELECT account_uid, epoch, seq, writer FROM streamed ORDER BY id")
                    .fetch_all(&mut *connection)
                    .await
                    .expect("what was written")
            }
        }
    };
}
pub(in crate::store) use streaming;

type StreamingStore = Arc<dyn Streaming>;

fn fence(uid: &str, epoch: i64, agent: &str) -> Fence {
    Fence {
        uid: uid.to_owned(),
        epoch: CachingEpoch(epoch),
        agent_id: Some(agent.to_owned()),
        boot_id: Some("01J00000000000000000000000".to_owned()),
        replica_id: Some(format!("replica-of-{agent}")),
    }
}

fn claim(uid: &str, epoch: i64, committed: i64, last: i64) -> BatchClaim {
    BatchClaim { uid: uid.to_owned(), epoch: CachingEpoch(epoch), committed, last }
}

async fn raise(store: &StreamingStore, fence: Fence) -> RaiseOutcome {
    let raised = store.raise_fences(&[fence]).await.expect("it answers");
    raised.first().expect("one was asked for").1
}

/// The verdict on one claim; whoever meets another transaction tries again.
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
        .map(|one| (one.uid, one.epoch.0, one.replica_id))
        .collect();
    all.sort();
    all
}

pub(in crate::store) async fn a_fence_comes_and_goes_with_its_account(
    store: &StreamingStore,
    _: &StreamingStore,
) {
    store.put_accounts(&[row("a", "uid-a"), row("b", "uid-b")]).await.expect("written");
    assert_eq!(standing(store).await, [], "the epoch is 0");
    assert_eq!(raise(store, fence("uid-a", 1, "x")).await, RaiseOutcome::Stands);
    store.put_accounts(&[row("a", "uid-a")]).await.expect("written again");
    assert_eq!(standing(store).await, [("uid-a".to_owned(), 1, Some("replica-of-x".to_owned()))]);
    store.delete_account("uid-a").await.expect("deleted");
    assert_eq!(raise(store, fence("uid-a", 2, "x")).await, RaiseOutcome::Missing);
    assert_eq!(raise(store, fence("uid-b", 1, "x")).await, RaiseOutcome::Stands);
    let adopts = vec![Arc::new(row("c", "uid-c"))];
    store.write(&Changes { adopts, ..Changes::default() }).await.expect("adopted");
    assert_eq!(
        raise(store, fence("uid-c", 1, "x")).await,
        RaiseOutcome::Stands,
        "an adopted account has one too"
    );
}

pub(in crate::store) async fn the_same_name_under_another_uid_has_a_fence_of_its_own(
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

pub(in crate::store) async fn a_fence_is_only_raised(store: &StreamingStore, other: &StreamingStore) {
    store.make_table().await;
    store.put_accounts(&[row("a", "uid-a")]).await.expect("written");
    assert_eq!(raise(store, fence("uid-a", 2, "x")).await, RaiseOutcome::Stands);
    assert_eq!(stream(store, "x", claim("uid-a", 2, 0, 3)).await, FenceCheck::Passed);
    assert_eq!(raise(other, fence("uid-a", 1, "y")).await, RaiseOutcome::Higher(CachingEpoch(2)));
    // The stream of the same process ends at another replica now: what was written stands.
    let moved = Fence { replica_id: Some("r".repeat(300)), ..fence("uid-a", 2, "x") };
    assert_eq!(raise(other, moved).await, RaiseOutcome::Stands);
    assert_eq!(standing(other).await[0].2.as_ref().map(String::len), Some(191));
    assert_eq!(stream(other, "x", claim("uid-a", 2, 3, 4)).await, FenceCheck::Passed);
    let nobody = Fence { agent_id: None, boot_id: None, replica_id: None, ..fence("uid-a", 3, "") };
    assert_eq!(raise(store, nobody).await, RaiseOutcome::Stands);
    assert_eq!(stream(other, "x", claim("uid-a", 2, 4, 5)).await, FenceCheck::Higher(CachingEpoch(3)));
    let long = Fence { agent_id: Some("x".repeat(192)), ..fence("uid-a", 4, "") };
    assert!(matches!(store.raise_fences(&[long]).await, Err(StoreError::Refused { .. })));
}

pub(in crate::store) async fn a_batch_is_written_once_and_what_was_written_before_is_known(
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

pub(in crate::store) async fn a_writer_of_a_lower_or_higher_epoch_writes_nothing(
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

pub(in crate::store) async fn accounts_that_do_not_pass_are_left_out_of_the_batch(
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

/// Two replicas that each have an agent and believe it was elected: they raise the fence and stream at the same time.
pub(in crate::store) async fn two_replicas_starting_the_cache_at_once(
    store: &StreamingStore,
    other: &StreamingStore,
) {
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

pub(in crate::store) async fn an_old_writer_that_slept_writes_nothing_when_it_wakes_up(
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

/// Both stream as fast as they can, and in the middle of it the fence is raised.
pub(in crate::store) async fn two_writers_of_different_epochs_never_both_write(
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

/// Only where two processes may have the database: a writer sleeps in the middle of its transaction, and the fence is
/// not raised before it has ended.
pub(in crate::store) async fn a_writer_that_sleeps_in_its_transaction_is_waited_for(
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

/// In the order in which rows were written, epochs only grow for each account, each is one writer's, and its batches
/// follow one another.
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
