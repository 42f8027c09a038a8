//! Reports that are queued, and accounts that are dropped while their stream is lost.

use std::time::Duration;

use jiff::Timestamp;

use super::*;
use crate::settings::RequestSettings;
use kubesvc_core::wire::ops::{AccountSpec, ClusterIdentity};

fn held(namespaces: usize) -> QueuedReport {
    let identity = ClusterIdentity {
        namespaces: (0..namespaces).map(|one| format!("{one:0>60}")).collect(),
        namespaces_count: u32::try_from(namespaces).expect("few"),
        ..ClusterIdentity::default()
    };
    let outcome = Some(Outcome::Identity(identity));
    QueuedReport::Result(AccountResult { outcome, ..AccountResult::default() })
}

fn results(frame: Option<Frame>) -> Vec<AccountResult> {
    match frame {
        Some(Frame::AccountResults(AccountResults { results })) => results,
        other => unreachable!("no results: {other:?}"),
    }
}

fn namespaces(answer: &AccountResult) -> (usize, u32) {
    match &answer.outcome {
        Some(Outcome::Identity(identity)) => (identity.namespaces.len(), identity.namespaces_count),
        _ => (0, 0),
    }
}

#[test]
fn queued_reports_are_bounded_in_bytes_and_keep_the_namespace_count() {
    let mut answers = ReportQueue::default();
    (0..100).for_each(|_| answers.push(held(10_000)));
    assert_eq!(answers.len(), 100);
    assert!(answers.bytes <= MAX_WAITING_BYTES + 100 * 64, "{}", answers.bytes);
    let mut all = Vec::new();
    while answers.len() > 0 {
        all.extend(results(answers.take(1 << 20)));
    }
    assert_eq!((all.len(), answers.bytes), (100, 0));
    assert_eq!(namespaces(&all[0]), (10_000, 10_000));
    assert_eq!(namespaces(&all[99]), (0, 10_000));
}

#[test]
fn a_frame_is_no_larger_than_its_hub_takes_even_if_one_answer_is() {
    let mut answers = ReportQueue::default();
    (0..100).for_each(|_| answers.push(held(100)));
    answers.push(held(10_000));
    let mut frames = Vec::new();
    while answers.len() > 0 {
        frames.push(results(answers.take(64 * 1024)));
    }
    let size = |result: &AccountResult| QueuedReport::Result(result.clone()).size();
    assert!(frames.iter().all(|frame| frame.iter().map(size).sum::<usize>() <= 64 * 1024));
    assert_eq!(frames.concat().len(), 101);
}

#[test]
fn loss_keeps_its_place_among_the_reports() {
    let mut answers = ReportQueue::default();
    for report in [held(0), QueuedReport::Lost(Lost::default()), held(0), held(0)] {
        answers.push(report);
    }
    assert_eq!(results(answers.take(1 << 20)).len(), 1);
    assert_eq!(answers.take(1 << 20), Some(Frame::Lost(Lost::default())));
    assert_eq!(results(answers.take(1 << 20)).len(), 2);
    assert_eq!((answers.take(1 << 20), answers.bytes), (None, 0));
}

/// What executes commands, with nothing else of an agent, and what reads its accounts.
fn executor() -> (CommandExecutor, ReaderTrackers) {
    let table = Arc::new(Mutex::new(AccountTable::default()));
    let own = StaticAccountFile::new(Vec::new());
    let activators = Activators { all: Activator::new(Vec::new(), 1), own };
    let settings = RequestSettings {
        allow: Default::default(),
        apply: Default::default(),
        keeps_answers: true,
        timeout: Duration::ZERO,
    };
    let metrics = AgentMetrics::default();
    let counts = metrics.account_requests.clone();
    let requests = RequestService::new(Arc::clone(&table), activators.clone(), settings, counts);
    let readers = ReaderTrackers::default();
    let parts = SharedParts {
        table,
        activators,
        caching_changed: Arc::default(),
        connection: watch::Sender::new(None),
        requests_connection: watch::Sender::new(None),
        requests,
        dynamic_accounts: true,
        metrics,
        changed_files: mpsc::channel(1).1,
        lost_accounts: mpsc::channel(1).1,
        credential_judged: Arc::default(),
        readers: readers.clone(),
    };
    (CommandExecutor::new(parts), readers)
}

#[tokio::test]
async fn after_a_lost_stream_a_hello_names_a_dropped_account_until_nothing_runs_for_it() {
    let (mut executor, readers) = executor();
    let account = |epoch| AccountRef { uid: "u".into(), name: "n".into(), epoch, ..AccountRef::default() };
    let (_, definition) = Definition::split(AccountSpec::default());
    let started = executor.parts.table.lock().add(account(3), definition);
    let [Effect::Start { attempt, .. }] = started[..] else { unreachable!("it is new: {started:?}") };
    let (identity, at) = (ClusterIdentity::default(), Timestamp::UNIX_EPOCH);
    let reached = ActivatedAccount { identity, files: Vec::new(), at };
    executor.parts.table.lock().finished("u", attempt, Ok(reached));
    let reader = tokio::spawn(readers.tracker("u").track_future(std::future::pending::<()>()));

    executor.delete(DeleteAccounts { accounts: vec![account(4)], ..DeleteAccounts::default() });
    assert_eq!((executor.waiting_answers(), executor.delayed_answers()), (0, 1));
    executor.stream_lost();
    let named = HeldAccount { account: Some(account(2)), ..HeldAccount::default() };
    assert_eq!(executor.held(), [named], "nothing that the hub knows of epoch 3 stands");
    // The hub of the new stream drops it again, and has the answer once nothing runs.
    executor.delete(DeleteAccounts { accounts: vec![account(4)], ..DeleteAccounts::default() });
    assert_eq!((executor.waiting_answers(), executor.delayed_answers()), (0, 1));
    reader.abort();
    executor.progress().await;
    assert_eq!((executor.waiting_answers(), executor.held()), (1, Vec::new()));
}
