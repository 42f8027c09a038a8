//! Work that ends, is stopped, or has to be cut.

use std::future::pending;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::*;

type Runtimes = AccountRuntimes<&'static str>;

const FIRST: Attempt = Attempt::of_test(1);
const SECOND: Attempt = Attempt::of_test(2);

const NOTHING_ELSE: Option<std::future::Ready<()>> = None;

fn reference(uid: &str, epoch: u64) -> AccountRef {
    AccountRef { uid: uid.to_owned(), epoch, ..AccountRef::default() }
}

fn report(uid: &str, epoch: u64) -> AccountResult {
    AccountResult { account: Some(reference(uid, epoch)), dropped: true, ..AccountResult::default() }
}

fn ended(
    attempt: Attempt,
    end: WorkEnd<&'static str>,
    reports: Vec<AccountResult>,
) -> EndedWork<&'static str> {
    EndedWork { uid: "u".to_owned(), attempt, end, reports }
}

/// Work that ends as soon as it is stopped.
async fn obedient(stop: CancellationToken) -> Option<&'static str> {
    stop.cancelled().await;
    None
}

async fn panicking(_: CancellationToken) -> Option<&'static str> {
    unreachable!("on purpose")
}

#[tokio::test]
async fn work_ends_with_its_result_and_leaves_nothing() {
    let mut runtimes = Runtimes::new();
    runtimes.start("u".to_owned(), FIRST, async |_| Some("done"));
    assert_eq!(runtimes.running_count(), 1);
    assert_eq!(runtimes.ended().await, ended(FIRST, WorkEnd::Done("done"), Vec::new()));
    assert_eq!((runtimes.running_count(), runtimes.accounts.len(), runtimes.tasks.len()), (0, 0, 0));
    assert_eq!(runtimes.ready_report(report("u", 1)), Some(report("u", 1)), "nothing to wait for");
}

#[tokio::test]
async fn work_that_panics_is_told_from_work_that_was_stopped() {
    let mut runtimes = Runtimes::new();
    runtimes.start("u".to_owned(), FIRST, panicking);
    assert_eq!(runtimes.ended().await, ended(FIRST, WorkEnd::Panicked, Vec::new()));
    runtimes.start("u".to_owned(), SECOND, obedient);
    runtimes.cancel("u", SECOND);
    assert_eq!(runtimes.ended().await, ended(SECOND, WorkEnd::Stopped, Vec::new()));
}

#[tokio::test]
async fn a_report_waits_until_what_was_stopped_for_its_account_has_ended() {
    let mut runtimes = Runtimes::new();
    let (finish, finished) = oneshot::channel::<()>();
    runtimes.start("u".to_owned(), FIRST, async |stop| {
        stop.cancelled().await;
        finished.await.ok();
        None
    });
    runtimes.start("u".to_owned(), SECOND, obedient);
    runtimes.stop(reference("u", 1), None, NOTHING_ELSE);
    assert_eq!(runtimes.ready_report(report("u", 1)), None);
    assert_eq!(runtimes.ready_report(report("u", 2)), None, "after the one before");
    assert_eq!(runtimes.ready_report(report("v", 1)), Some(report("v", 1)), "another account");
    assert_eq!(runtimes.delayed_reports(), 2);
    assert_eq!(runtimes.ended().await, ended(SECOND, WorkEnd::Stopped, Vec::new()));
    finish.send(()).expect("it waits");
    let both = vec![report("u", 1), report("u", 2)];
    assert_eq!(runtimes.ended().await, ended(FIRST, WorkEnd::Stopped, both));
    assert_eq!((runtimes.delayed_reports(), runtimes.accounts.len()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn work_that_does_not_stop_is_cut_and_then_reported() {
    let mut runtimes = Runtimes::new();
    runtimes.start("u".to_owned(), FIRST, |_| pending());
    runtimes.stop(reference("u", 1), None, NOTHING_ELSE);
    assert_eq!(runtimes.ready_report(report("u", 1)), None);
    let since = Instant::now();
    assert_eq!(runtimes.ended().await, ended(FIRST, WorkEnd::Stopped, vec![report("u", 1)]));
    assert!((STOP_TIMEOUT..STOP_TIMEOUT * 2).contains(&since.elapsed()));
}

#[tokio::test]
async fn a_stop_spares_the_attempt_to_keep() {
    let mut runtimes = Runtimes::new();
    let (finish, finished) = oneshot::channel::<()>();
    runtimes.start("u".to_owned(), FIRST, obedient);
    runtimes.start("u".to_owned(), SECOND, async |_| finished.await.ok().map(|()| "done"));
    runtimes.stop(reference("u", 1), Some(SECOND), NOTHING_ELSE);
    assert_eq!(runtimes.ready_report(report("u", 1)), None);
    assert_eq!(runtimes.ended().await, ended(FIRST, WorkEnd::Stopped, vec![report("u", 1)]));
    finish.send(()).expect("it goes on");
    assert_eq!(runtimes.ended().await, ended(SECOND, WorkEnd::Done("done"), Vec::new()));
}

#[tokio::test]
async fn reports_of_a_lost_stream_are_discarded_and_the_stop_goes_on() {
    let mut runtimes = Runtimes::new();
    runtimes.start("u".to_owned(), FIRST, obedient);
    runtimes.stop(reference("u", 1), None, NOTHING_ELSE);
    assert_eq!(runtimes.ready_report(report("u", 1)), None);
    runtimes.discard_reports();
    assert_eq!(runtimes.delayed_reports(), 0);
    assert!(runtimes.stopping().eq([&reference("u", 1)]), "it is not yet given up");
    assert_eq!(runtimes.ended().await, ended(FIRST, WorkEnd::Stopped, Vec::new()));
    assert_eq!(runtimes.stopping().count(), 0);
}

#[tokio::test(start_paused = true)]
async fn report_waits_for_readers_to_end_and_for_a_limited_time() {
    let mut runtimes = Runtimes::new();
    let readers = ReaderTrackers::default();
    assert!(readers.ended("u").is_none(), "nothing reads it");
    let reader = tokio::spawn(readers.tracker("u").track_future(pending::<()>()));
    runtimes.stop(reference("u", 1), None, Some(readers.ended("u").expect("a reader runs")));
    assert_eq!(runtimes.ready_report(report("u", 1)), None);
    reader.abort();
    let expected = ended(Attempt::NONE, WorkEnd::Stopped, vec![report("u", 1)]);
    assert_eq!(runtimes.ended().await, expected);
    assert!(readers.ended("u").is_none());

    let _endless = tokio::spawn(readers.tracker("u").track_future(pending::<()>()));
    runtimes.stop(reference("u", 1), None, Some(readers.ended("u").expect("a reader runs")));
    assert_eq!(runtimes.ready_report(report("u", 2)), None);
    let begin = Instant::now();
    assert_eq!(runtimes.ended().await.reports, [report("u", 2)]);
    assert_eq!(begin.elapsed(), STOP_TIMEOUT);
}
