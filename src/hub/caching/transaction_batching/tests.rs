use proptest::prelude::*;

use super::*;
use kubesvc_store::ObjectBody;

const SMALL: BatchSize = BatchSize { rows: 1, body_bytes: 10 };

fn queued(lane: LaneId, payload: u32) -> QueuedBatch<u32> {
    QueuedBatch { lane, size: SMALL, payload }
}

fn row(id: &str, version: u32) -> (String, RowChange) {
    let row = ObjectRow {
        id: id.into(),
        kind: "pod".into(),
        application: None,
        namespace: "ns".into(),
        name: id.into(),
        api_version: None,
        uid: None,
        resource_version: version.to_string(),
        body_hash: String::new(),
        body: ObjectBody::Omitted,
        relations: Vec::new(),
    };
    (id.into(), Some(row))
}

fn decoded(uid: &str, lane: LaneId, (prev, seq): (i64, i64), size: BatchSize) -> DecodedBatch<i64> {
    DecodedBatch {
        lane,
        uid: uid.into(),
        epoch: CachingEpoch(1),
        account: uid.into(),
        agent_id: "a".into(),
        prev,
        seq,
        size,
        changes: Vec::new(),
        scopes: Vec::new(),
        receipt: seq,
    }
}

fn taken(queue: &mut ShardQueue<u32>) -> Vec<u32> {
    std::iter::from_fn(|| queue.take()).map(|batch| batch.payload).collect()
}

#[test]
fn an_account_is_always_in_the_same_shard_and_accounts_are_spread() {
    let shards: Vec<_> = (0..1000).map(|uid| shard_of(&format!("uid-{uid}"), 2)).collect();
    let again: Vec<_> = (0..1000).map(|uid| shard_of(&format!("uid-{uid}"), 2)).collect();
    assert_eq!(shards, again);
    assert!((400..600).contains(&shards.iter().sum::<usize>()));
    assert_eq!(shard_of("uid", 0), 0);
}

#[test]
fn accounts_take_turns_and_their_batches_keep_their_order() {
    let mut queue = ShardQueue::default();
    [1, 2].into_iter().for_each(|lane| queue.open(lane));
    [10, 11, 12].into_iter().for_each(|batch| queue.push(queued(1, batch)));
    [20, 21].into_iter().for_each(|batch| queue.push(queued(2, batch)));
    assert_eq!(taken(&mut queue), [10, 20, 11, 21, 12]);
    assert_eq!(queue.next_size(), None);
}

#[test]
fn batches_of_a_closed_lane_are_dropped() {
    let mut queue = ShardQueue::default();
    [1, 2].into_iter().for_each(|lane| queue.open(lane));
    [1, 1, 2].into_iter().for_each(|lane| queue.push(queued(lane, 0)));
    queue.close(1);
    queue.push(queued(1, 9));
    assert!(!queue.is_open(1) && queue.is_open(2));
    assert_eq!(taken(&mut queue), [0]);
}

#[test]
fn of_two_changes_of_a_row_the_later_one_is_written() {
    let mut draft = TransactionDraft::default();
    let mut first = decoded("u", 1, (0, 1), SMALL);
    first.changes = vec![row("a", 1), row("b", 1), row("c", 1)];
    let mut second = decoded("u", 1, (1, 4), SMALL);
    second.changes = vec![row("a", 2), ("b".into(), None), ("d".into(), None)];
    draft.add(first);
    draft.add(second);
    let parts = draft.take(|_| true);
    assert!(draft.is_empty());
    let (batch, receipts) = parts.into_iter().next().expect("there is one").into_batch();
    let upserts: Vec<_> = batch.upserts.iter().map(|row| (&*row.id, &*row.resource_version)).collect();
    assert_eq!(upserts, [("a", "2"), ("c", "1")]);
    assert_eq!(batch.deletes, ["b", "d"]);
    assert_eq!((batch.claim.committed, batch.claim.last), (0, 4));
    assert_eq!((receipts.last, receipts.receipts), (4, vec![1, 4]));
}

#[test]
fn a_later_lane_of_an_account_replaces_the_earlier_one() {
    let mut draft = TransactionDraft::default();
    draft.add(decoded("u", 1, (0, 1), SMALL));
    draft.add(decoded("u", 2, (0, 3), SMALL));
    let parts = draft.take(|_| true);
    assert_eq!(parts.iter().map(|part| (part.lane, part.last)).collect::<Vec<_>>(), [(2, 3)]);
}

#[test]
fn parts_of_closed_lanes_are_not_written() {
    let mut draft = TransactionDraft::default();
    draft.add(decoded("u", 1, (0, 1), SMALL));
    draft.add(decoded("v", 2, (0, 1), SMALL));
    assert_eq!(draft.take(|lane| lane == 2).iter().map(|part| part.lane).collect::<Vec<_>>(), [2]);
}

#[test]
fn a_transaction_takes_one_batch_of_any_size_and_more_up_to_its_limits() {
    let limit = RowLimit::at_most(MAX_ROWS);
    let mut draft = TransactionDraft::default();
    let huge = BatchSize { rows: 9999, body_bytes: 100 * MAX_BODY_BYTES };
    assert!(draft.has_room_for(huge, &limit), "one batch at least");
    draft.add(decoded("u", 1, (0, 1), BatchSize { rows: 400, body_bytes: 0 }));
    assert!(draft.has_room_for(BatchSize { rows: MAX_ROWS - 400, body_bytes: MAX_BODY_BYTES }, &limit));
    assert!(!draft.has_room_for(BatchSize { rows: MAX_ROWS - 399, body_bytes: 0 }, &limit));
    assert!(!draft.has_room_for(BatchSize { rows: 0, body_bytes: MAX_BODY_BYTES + 1 }, &limit));
    for other in 0..63 {
        assert!(draft.has_room_for(SMALL, &limit));
        draft.add(decoded(&other.to_string(), other + 10, (0, 1), SMALL));
    }
    assert!(!draft.has_room_for(BatchSize::default(), &limit), "it has 64 accounts");
}

proptest! {
    /// Whatever the batches and the limits are: what one transaction after the other writes is what the batches say in
    /// order.
    #[test]
    fn transactions_write_the_batches_of_each_account_in_order(
        batches in prop::collection::vec((0..3_u64, prop::collection::vec((0..4_u8, any::<bool>()), 0..5)), 0..40),
        slow in prop::collection::vec(any::<bool>(), 0..40),
    ) {
        let mut queue = ShardQueue::default();
        (0..3).for_each(|lane| queue.open(lane));
        let (mut expected, mut last) = (HashMap::new(), [0_i64; 3]);
        for (version, (lane, events)) in batches.into_iter().enumerate() {
            let version = u32::try_from(version).expect("few");
            let at = usize::try_from(lane).expect("few");
            let size = BatchSize { rows: events.len(), body_bytes: 0 };
            let mut batch = decoded(&lane.to_string(), lane, (last[at], last[at] + 1), size);
            last[at] += 1;
            for (id, deleted) in events {
                let id = format!("{lane}-{id}");
                let change = if deleted { (id.clone(), None) } else { row(&id, version) };
                expected.insert(id, change.1.clone());
                batch.changes.push(change);
            }
            queue.push(QueuedBatch { lane, size, payload: batch });
        }
        let (mut rows, mut committed) = (HashMap::new(), [0_i64; 3]);
        let (mut limit, mut slow) = (RowLimit::at_most(4), slow.into_iter());
        while queue.next_size().is_some() {
            let mut draft = TransactionDraft::default();
            while queue.next_size().is_some_and(|size| draft.has_room_for(size, &limit)) {
                draft.add(queue.take().expect("it has one").payload);
            }
            for part in draft.take(|_| true) {
                let at = usize::try_from(part.lane).expect("few");
                let (batch, _) = part.into_batch();
                prop_assert_eq!(batch.claim.committed, committed[at]);
                committed[at] = batch.claim.last;
                for row in batch.upserts {
                    prop_assert!(!batch.deletes.contains(&row.id));
                    rows.insert(row.id.clone(), Some(row));
                }
                rows.extend(batch.deletes.into_iter().map(|id| (id, None)));
            }
            if slow.next() == Some(true) {
                limit.halve();
            }
        }
        prop_assert_eq!(committed, last);
        prop_assert_eq!(rows, expected);
    }
}
