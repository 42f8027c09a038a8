//! The contract of every database about operations, as tests.

use crate::{
    AnswerRecord, HandSettlement, OpenOperation, OperationChange, OperationOutcome, OperationRecord,
    OperationState, Overdue, StageRecord, Store, StoreError,
};

/// Generates one test for each function. The expression is a future of the stores of two replicas on a fresh database, and
/// of what keeps that alive.
macro_rules! contract_tests {
    ($fresh:expr) => {
        $crate::tests::operation_contract::contract_tests! { @of_two $fresh,
            id_is_taken_by_one_operation, id_whose_operation_ends_meanwhile_is_taken,
            operation_that_two_end_has_one_end
        }
        $crate::tests::operation_contract::contract_tests! { @each $fresh,
            operation_is_open_until_it_ends_and_then_history,
            operations_begin_change_and_end_together, first_end_of_an_operation_counts,
            full_and_bare_records_come_back_as_they_were, pages_are_newest_first_over_both_tables_and_by_account,
            thousand_changes_are_one_transaction, overdue_operations_are_those_past_deadline_or_of_dead_replicas,
            operations_of_a_former_process_are_those_of_its_replica_that_began_before,
            only_open_operations_are_ended_by_the_leader, person_settles_what_is_open_or_unknown,
            operation_that_has_ended_is_not_opened_again, write_of_an_operation_without_a_row_is_refused,
            history_is_purged_by_age_in_chunks, history_above_the_limit_loses_its_oldest,
            leader_of_an_ended_term_deletes_nothing, row_that_no_database_takes_is_refused
        }
    };
    (@each $fresh:expr, $($story:ident),+) => {
        $(#[tokio::test(flavor = "multi_thread")]
        async fn $story() {
            let (store, _, _kept) = $fresh.await;
            $crate::tests::operation_contract::$story(&*store).await;
        })+
    };
    (@of_two $fresh:expr, $($story:ident),+) => {
        $(#[tokio::test(flavor = "multi_thread")]
        async fn $story() {
            let (one, other, _kept) = $fresh.await;
            $crate::tests::operation_contract::$story(&*one, &*other).await;
        })+
    };
}
pub(super) use contract_tests;

/// Number of times that two replicas do the same at once.
const RACES: u32 = 30;

fn id(number: u32) -> String {
    format!("{number:026}")
}

fn record(number: u32, account: &str) -> OperationRecord {
    OperationRecord {
        operation_id: id(number),
        operation_type: "Deploy".to_owned(),
        account: account.to_owned(),
        account_uid: None,
        start_time_ms: i64::from(number),
        end_time_ms: None,
        outcome: OperationOutcome::Pending,
        received: Some(StageRecord { id: "replica-1".to_owned(), time_ms: i64::from(number) }),
        processed: None,
        sent: None,
        answered: None,
        delivered: None,
        principal: None,
        request_id: None,
        dry_run: false,
        warnings: Vec::new(),
    }
}

fn ended(number: u32, account: &str, outcome: OperationOutcome) -> OperationRecord {
    OperationRecord { outcome, end_time_ms: Some(i64::from(number) + 10), ..record(number, account) }
}

fn open(number: u32, account: &str) -> OpenOperation {
    OpenOperation {
        record: record(number, account),
        state: OperationState::Received,
        deadline_ms: 1_000,
        is_idempotent: true,
        last_write: None,
        agent_boot_id: None,
    }
}

async fn write(store: &dyn Store, open: Vec<OpenOperation>, ends: Vec<OperationRecord>) {
    let open = open.into_iter().map(|open| OperationChange::Open(Box::new(open)));
    let changes: Vec<_> = open.chain(ends.into_iter().map(end)).collect();
    store.write_operations(&changes).await.expect("written");
}

fn end(record: OperationRecord) -> OperationChange {
    OperationChange::End(Box::new(record))
}

async fn begin(store: &dyn Store, open: &OpenOperation) -> Vec<OperationRecord> {
    let begun = OperationChange::Begun(Box::new(open.clone()));
    store.write_operations(&[begun]).await.expect("written")
}

async fn send(store: &dyn Store, sent: Vec<OpenOperation>) -> Result<Vec<OperationRecord>, StoreError> {
    let sent: Vec<_> = sent.into_iter().map(|sent| OperationChange::Sent(Box::new(sent))).collect();
    store.write_operations(&sent).await
}

async fn page(store: &dyn Store, account: Option<&str>, offset: u64, limit: u32) -> Vec<String> {
    let page = store.operations(account, offset, limit).await.expect("a page");
    page.into_iter().map(|record| record.operation_id).collect()
}

async fn all_open(store: &dyn Store) -> Vec<OpenOperation> {
    let overdue = Overdue::Left { deadline_before_ms: i64::MAX, live_replicas: Vec::new() };
    store.overdue_operations(&overdue, 10_000).await.expect("the open ones")
}

pub(super) async fn operation_is_open_until_it_ends_and_then_history(store: &dyn Store) {
    write(store, vec![open(1, "a")], Vec::new()).await;
    assert_eq!(store.operation(&id(1)).await.expect("read"), Some(record(1, "a")));
    let sent = OpenOperation {
        state: OperationState::Sent,
        last_write: Some(id(7)),
        agent_boot_id: Some("boot".to_owned()),
        ..open(1, "a")
    };
    assert_eq!(send(store, vec![sent.clone()]).await.expect("written"), []);
    assert_eq!(all_open(store).await, [sent]);
    let end = ended(1, "a", OperationOutcome::Completed);
    write(store, Vec::new(), vec![end.clone()]).await;
    assert_eq!(all_open(store).await, []);
    assert_eq!(store.operation(&id(1)).await.expect("read"), Some(end));
    assert_eq!(store.operation(&id(2)).await.expect("read"), None);
}

pub(super) async fn id_is_taken_by_one_operation(one: &dyn Store, other: &dyn Store) {
    for number in 1..=RACES {
        let at = |replica: &str| {
            let mut open = open(number, "a");
            open.record.received = Some(StageRecord { id: replica.to_owned(), time_ms: 1 });
            open
        };
        let (here, there) = (at("replica-1"), at("replica-2"));
        let (by_one, by_other) = tokio::join!(begin(one, &here), begin(other, &there));
        assert_ne!(by_one.is_empty(), by_other.is_empty(), "one of them has it: {by_one:?} {by_other:?}");
        let winner = if by_one.is_empty() { here } else { there };
        assert_eq!([by_one, by_other].concat(), std::slice::from_ref(&winner.record));
        assert_eq!(begin(one, &winner).await, [], "its own");
        assert_eq!(all_open(other).await, [winner]);
        let end = ended(number, "a", OperationOutcome::Completed);
        write(one, Vec::new(), vec![end.clone()]).await;
        assert_eq!(begin(other, &open(number, "b")).await, [end]);
        assert_eq!(all_open(other).await, []);
    }
}

pub(super) async fn id_whose_operation_ends_meanwhile_is_taken(one: &dyn Store, other: &dyn Store) {
    for number in 1..=RACES {
        begin(one, &open(number, "a")).await;
        let end = ended(number, "a", OperationOutcome::Completed);
        let mut late = open(number, "a");
        late.record.received = None;
        let ((), left_out) = tokio::join!(write(one, Vec::new(), vec![end.clone()]), begin(other, &late));
        assert!(left_out == [record(number, "a")] || left_out == [end.clone()], "{left_out:?}");
        assert_eq!(all_open(one).await, []);
        assert_eq!(one.operation(&id(number)).await.expect("read"), Some(end));
    }
}

pub(super) async fn operation_that_two_end_has_one_end(one: &dyn Store, other: &dyn Store) {
    for number in 1..=RACES {
        begin(one, &open(number, "a")).await;
        let (end, by_hand) =
            (ended(number, "a", OperationOutcome::Failed), ended(number, "a", OperationOutcome::Completed));
        let ((), settled) =
            tokio::join!(write(one, Vec::new(), vec![end.clone()]), other.settle_operation(&by_hand));
        let kept = match settled.expect("written") {
            HandSettlement::Settled => by_hand,
            HandSettlement::AlreadySettled => end,
            HandSettlement::NotFound => unreachable!("it is in one of the tables"),
        };
        assert_eq!(all_open(one).await, []);
        assert_eq!(one.operation(&id(number)).await.expect("read"), Some(kept));
    }
}

pub(super) async fn operations_begin_change_and_end_together(store: &dyn Store) {
    write(
        store,
        vec![open(1, "a"), open(2, "a"), open(3, "a")],
        vec![ended(4, "a", OperationOutcome::Failed)],
    )
    .await;
    let mut taken = open(3, "b");
    taken.record.received = None;
    let sent = OpenOperation { state: OperationState::Sent, ..open(1, "a") };
    let changes = [
        OperationChange::Begun(Box::new(taken)),
        OperationChange::Begun(Box::new(open(4, "b"))),
        OperationChange::Begun(Box::new(open(5, "a"))),
        OperationChange::Open(Box::new(open(6, "a"))),
        OperationChange::Sent(Box::new(sent.clone())),
        OperationChange::Sent(Box::new(open(4, "a"))),
        end(ended(2, "a", OperationOutcome::Completed)),
    ];
    let mut left_out = store.write_operations(&changes).await.expect("written");
    left_out.sort_by(|a, b| a.operation_id.cmp(&b.operation_id));
    left_out.dedup();
    assert_eq!(left_out, [record(3, "a"), ended(4, "a", OperationOutcome::Failed)]);
    assert_eq!(all_open(store).await, [sent, open(3, "a"), open(5, "a"), open(6, "a")]);
}

pub(super) async fn first_end_of_an_operation_counts(store: &dyn Store) {
    write(store, Vec::new(), vec![ended(1, "a", OperationOutcome::Failed)]).await;
    write(store, Vec::new(), vec![ended(1, "a", OperationOutcome::Completed)]).await;
    let held = store.operation(&id(1)).await.expect("read").expect("there");
    assert_eq!(held.outcome, OperationOutcome::Failed);
}

pub(super) async fn full_and_bare_records_come_back_as_they_were(store: &dyn Store) {
    let stage = |id: &str| Some(StageRecord { id: id.to_owned(), time_ms: i64::MAX });
    let full = OperationRecord {
        account: "\u{1f680}".repeat(255),
        account_uid: Some("u".repeat(36)),
        end_time_ms: Some(5),
        outcome: OperationOutcome::Unknown,
        received: stage("r"),
        processed: stage("p"),
        sent: stage("agent"),
        answered: Some(AnswerRecord {
            agent_id: "agent".to_owned(),
            replica_id: "r2".to_owned(),
            time_ms: 4,
            status: 201,
            duration_ms: 3,
        }),
        delivered: stage("d"),
        principal: Some("ü".repeat(255)),
        request_id: Some(id(9)),
        dry_run: true,
        warnings: vec!["\u{1f680} is \"old\"".to_owned(), "x".repeat(256)],
        ..record(1, "")
    };
    let bare = OperationRecord { received: None, ..ended(2, "b", OperationOutcome::Timeout) };
    write(store, Vec::new(), vec![full.clone(), bare.clone()]).await;
    assert_eq!(store.operations(None, 0, 10).await.expect("read"), [bare, full.clone()]);
    // A longer principal is cut; it may be any text that a certificate or an issuer holds.
    let long = OperationRecord { principal: Some("x\0".repeat(300)), operation_id: id(3), ..full };
    write(store, Vec::new(), vec![long]).await;
    let held = store.operation(&id(3)).await.expect("read").expect("there");
    assert_eq!(held.principal, Some("x".repeat(255)));
}

pub(super) async fn pages_are_newest_first_over_both_tables_and_by_account(store: &dyn Store) {
    let account = |number: u32| if number.is_multiple_of(3) { "other" } else { "a" };
    let odd = |number: &u32| number % 2 == 1;
    let opened = (1..=9).filter(odd).map(|number| open(number, account(number))).collect();
    let completed = |number| ended(number, account(number), OperationOutcome::Completed);
    write(store, opened, (1..=9).filter(|number| !odd(number)).map(completed).collect()).await;
    let ids = |numbers: &[u32]| numbers.iter().map(|number| id(*number)).collect::<Vec<_>>();
    assert_eq!(page(store, None, 0, 4).await, ids(&[9, 8, 7, 6]));
    assert_eq!(page(store, None, 4, 4).await, ids(&[5, 4, 3, 2]));
    assert_eq!(page(store, None, 8, 4).await, ids(&[1]));
    assert_eq!(page(store, Some("a"), 0, 3).await, ids(&[8, 7, 5]));
    assert_eq!(page(store, Some("a"), 3, 30).await, ids(&[4, 2, 1]));
    assert_eq!(page(store, Some("nobody"), 0, 3).await, ids(&[]));
    assert_eq!(page(store, None, u64::MAX, 4).await, ids(&[]));
}

pub(super) async fn thousand_changes_are_one_transaction(store: &dyn Store) {
    write(store, (1..=1_000).map(|number| open(number, "a")).collect(), Vec::new()).await;
    let ends = (2..=1_000).map(|number| ended(number, "a", OperationOutcome::Completed)).collect();
    write(store, vec![open(2_000, "a")], ends).await;
    assert_eq!(all_open(store).await, [open(1, "a"), open(2_000, "a")]);
    assert_eq!(page(store, None, 0, 10_000).await.len(), 1_001);
}

pub(super) async fn overdue_operations_are_those_past_deadline_or_of_dead_replicas(store: &dyn Store) {
    let with = |number: u32, deadline_ms: i64, replica: &str| {
        let mut open = OpenOperation { deadline_ms, ..open(number, "a") };
        open.record.received = Some(StageRecord { id: replica.to_owned(), time_ms: 1 });
        open
    };
    let rows = vec![with(1, 99, "one"), with(2, 100, "one"), with(3, 100, "two"), with(4, 99, "two")];
    write(store, rows, Vec::new()).await;
    let overdue = async |live: &[&str], limit| {
        let live_replicas = live.iter().map(|id| (*id).into()).collect();
        let found =
            store.overdue_operations(&Overdue::Left { deadline_before_ms: 100, live_replicas }, limit).await;
        found.expect("read").into_iter().map(|open| open.record.operation_id).collect::<Vec<_>>()
    };
    assert_eq!(overdue(&["one", "two"], 10).await, [id(1), id(4)]);
    assert_eq!(overdue(&["one"], 10).await, [id(1), id(3), id(4)]);
    assert_eq!(overdue(&["one"], 2).await, [id(1), id(3)]);
    assert_eq!(overdue(&["three"], 10).await, [id(1), id(2), id(3), id(4)]);
    // Nobody knows which replicas live: only time decides.
    assert_eq!(overdue(&[], 10).await, [id(1), id(4)]);
}

pub(super) async fn operations_of_a_former_process_are_those_of_its_replica_that_began_before(
    store: &dyn Store,
) {
    let with = |number: u32, replica: &str| {
        let mut open = OpenOperation { deadline_ms: i64::MAX, ..open(number, "a") };
        open.record.received = Some(StageRecord { id: replica.to_owned(), time_ms: i64::from(number) });
        open
    };
    write(store, vec![with(1, "one"), with(2, "two"), with(3, "one"), with(4, "one")], Vec::new()).await;
    let former = async |replica: &str, limit| {
        let overdue = Overdue::OfFormerProcess { replica_id: replica.into(), began_before_ms: 4 };
        let found = store.overdue_operations(&overdue, limit).await;
        found.expect("read").into_iter().map(|open| open.record.operation_id).collect::<Vec<_>>()
    };
    assert_eq!(former("one", 10).await, [id(1), id(3)]);
    assert_eq!(former("one", 1).await, [id(1)]);
    assert_eq!(former("three", 10).await, Vec::<String>::new());
}

pub(super) async fn only_open_operations_are_ended_by_the_leader(store: &dyn Store) {
    write(store, vec![open(1, "a")], vec![ended(2, "a", OperationOutcome::Completed)]).await;
    let term = store.begin_term(&"leader".into()).await.expect("a term");
    let unknown = |number| ended(number, "a", OperationOutcome::Unknown);
    let settled = store.end_open_operations(Some(term), &[unknown(1), unknown(2), unknown(3)]).await;
    assert_eq!(settled.expect("written"), [id(1)]);
    let outcome =
        async |number| store.operation(&id(number)).await.expect("read").map(|record| record.outcome);
    assert_eq!(outcome(1).await, Some(OperationOutcome::Unknown));
    assert_eq!(outcome(2).await, Some(OperationOutcome::Completed));
    assert_eq!(outcome(3).await, None);
}

pub(super) async fn person_settles_what_is_open_or_unknown(store: &dyn Store) {
    let ends = vec![ended(2, "a", OperationOutcome::Unknown), ended(3, "a", OperationOutcome::Failed)];
    write(store, vec![open(1, "a")], ends).await;
    let by_hand = async |number| {
        let settled = store.settle_operation(&ended(number, "a", OperationOutcome::Completed)).await;
        settled.expect("written")
    };
    assert_eq!(by_hand(1).await, HandSettlement::Settled);
    assert_eq!(by_hand(1).await, HandSettlement::AlreadySettled);
    assert_eq!(by_hand(2).await, HandSettlement::Settled);
    assert_eq!(by_hand(3).await, HandSettlement::AlreadySettled);
    assert_eq!(by_hand(4).await, HandSettlement::NotFound);
    // A later word is ignored.
    write(store, Vec::new(), vec![ended(1, "a", OperationOutcome::Failed)]).await;
    let held = store.operation(&id(1)).await.expect("read").expect("there");
    assert_eq!(held.outcome, OperationOutcome::Completed);
    assert_eq!(all_open(store).await, []);
}

pub(super) async fn operation_that_has_ended_is_not_opened_again(store: &dyn Store) {
    write(store, vec![open(1, "a")], vec![ended(2, "a", OperationOutcome::Unknown)]).await;
    // A person settles one while its replica goes on with it.
    let by_hand = ended(1, "a", OperationOutcome::Completed);
    let (settled, sent) = tokio::join!(store.settle_operation(&by_hand), send(store, vec![open(1, "a")]));
    assert_eq!(settled.expect("written"), HandSettlement::Settled);
    sent.expect("written");
    assert_eq!(all_open(store).await, []);
    write(store, vec![open(3, "a")], Vec::new()).await;
    let left_out = send(store, (1..=3).map(|number| open(number, "a")).collect()).await;
    let mut left_out = left_out.expect("written");
    left_out.sort_by(|a, b| a.operation_id.cmp(&b.operation_id));
    assert_eq!(left_out, [by_hand.clone(), ended(2, "a", OperationOutcome::Unknown)], "with their ends");
    assert_eq!(all_open(store).await, [open(3, "a")]);
    write(store, Vec::new(), vec![ended(1, "a", OperationOutcome::Failed)]).await;
    assert_eq!(store.operation(&id(1)).await.expect("read"), Some(by_hand));
    assert_eq!(page(store, None, 0, 10).await, [id(3), id(2), id(1)], "each in one table");
}

pub(super) async fn write_of_an_operation_without_a_row_is_refused(store: &dyn Store) {
    let sent = send(store, vec![open(1, "a")]).await;
    assert!(matches!(sent, Err(StoreError::Refused { .. })), "{sent:?}");
    assert_eq!(all_open(store).await, []);
}

pub(super) async fn history_is_purged_by_age_in_chunks(store: &dyn Store) {
    let ends = (1..=10).map(|number| ended(number, "a", OperationOutcome::Completed)).collect();
    write(store, vec![open(11, "a")], ends).await;
    assert_eq!(store.purge_operations(None, 8, 5).await.expect("purged"), 5);
    assert_eq!(store.purge_operations(None, 8, 5).await.expect("purged"), 2);
    assert_eq!(store.purge_operations(None, 8, 5).await.expect("purged"), 0);
    assert_eq!(page(store, None, 0, 10).await, [id(11), id(10), id(9), id(8)]);
    // Open ones stay, however old they are.
    assert_eq!(store.purge_operations(None, i64::MAX, 100).await.expect("purged"), 3);
    assert_eq!(page(store, None, 0, 10).await, [id(11)]);
}

pub(super) async fn history_above_the_limit_loses_its_oldest(store: &dyn Store) {
    let ends = (1..=10).map(|number| ended(number, "a", OperationOutcome::Completed)).collect();
    write(store, Vec::new(), ends).await;
    assert_eq!(store.trim_operations(None, 10, 100).await.expect("trimmed"), 0);
    assert_eq!(store.trim_operations(None, 3, 5).await.expect("trimmed"), 5);
    assert_eq!(store.trim_operations(None, 3, 5).await.expect("trimmed"), 2);
    assert_eq!(store.trim_operations(None, 3, 5).await.expect("trimmed"), 0);
    assert_eq!(page(store, None, 0, 10).await, [id(10), id(9), id(8)]);
}

pub(super) async fn leader_of_an_ended_term_deletes_nothing(store: &dyn Store) {
    write(store, vec![open(1, "a")], vec![ended(2, "a", OperationOutcome::Completed)]).await;
    let former = store.begin_term(&"former".into()).await.expect("a term");
    store.begin_term(&"leader".into()).await.expect("a term");
    let unknown = [ended(1, "a", OperationOutcome::Unknown)];
    let ended = store.end_open_operations(Some(former), &unknown).await;
    assert!(matches!(ended, Err(StoreError::Deposed)));
    let purged = store.purge_operations(Some(former), i64::MAX, 10).await;
    assert!(matches!(purged, Err(StoreError::Deposed)));
    let trimmed = store.trim_operations(Some(former), 0, 10).await;
    assert!(matches!(trimmed, Err(StoreError::Deposed)));
    assert_eq!(page(store, None, 0, 10).await, [id(2), id(1)]);
}

pub(super) async fn row_that_no_database_takes_is_refused(store: &dyn Store) {
    let good = || ended(1, "a", OperationOutcome::Completed);
    let stage = Some(StageRecord { id: "r".repeat(192), time_ms: 1 });
    for bad in [
        OperationRecord { operation_id: "1".repeat(27), ..good() },
        OperationRecord { operation_id: String::new(), ..good() },
        OperationRecord { account: "a".repeat(256), ..good() },
        OperationRecord { account: "a\0".to_owned(), ..good() },
        OperationRecord { received: stage, ..good() },
    ] {
        let written = store.write_operations(&[end(good()), end(bad)]).await;
        assert!(matches!(written, Err(StoreError::Refused { .. })), "{written:?}");
    }
    assert_eq!(page(store, None, 0, 10).await, Vec::<String>::new());
}
