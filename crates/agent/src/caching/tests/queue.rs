//! The queue of an account: order, checkpoints, limits, memory.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::super::batch::{BatchBuilder, MAX_BATCH_BYTES, MAX_BATCH_EVENTS};
use super::super::memory::{MAX_QUEUE_BYTES, OWN_QUEUE_BYTES};
use super::super::queue::{CHECKPOINT_INTERVAL, MAX_MOVE_TIME, PendingQueue};
use super::*;
use kubesvc_core::wire::MAX_MESSAGE_BYTES;
use kubesvc_core::wire::common::Failure;
use kubesvc_core::wire::events::event::Omitted;
use kubesvc_core::wire::events::{ScopeProblem, SyncStart, Synced};

/// A queue whose scopes 1 and 2 are watched from version 1.
struct Fixture {
    queue: PendingQueue,
    memory: QueueMemory,
    now: Instant,
}

impl Fixture {
    fn new() -> Self {
        let mut queue = PendingQueue::default();
        queue.watch_from(1, "1");
        queue.watch_from(2, "1");
        Self { queue, memory: QueueMemory::default(), now: Instant::now() }
    }

    fn push(&mut self, event: Event) {
        self.queue.event(event, self.now, &mut self.memory).expect("there is room");
    }

    fn of_scope(&mut self, scope_id: u32, event: Event) {
        self.push(Event { scope_id, ..event });
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
    }

    fn cut(&mut self, credit: usize) -> Option<Batch> {
        let builder = BatchBuilder::new(&fence("u", 1), credit, MAX_MESSAGE_BYTES);
        let batch = self.queue.cut(builder, 3 << 20, self.now, &mut self.memory).finish(0, 1)?;
        assert!(batch.bytes <= credit, "{} bytes with a credit of {credit}", batch.bytes);
        let cache_up::Frame::Batch(sent) = decoded(&batch.frame) else { unreachable!("a batch") };
        assert_eq!(sent.encoded_len(), batch.bytes);
        Some(sent)
    }
}

fn events(batch: &Batch) -> Vec<(&str, &str)> {
    batch.events.iter().map(|event| (event.name.as_str(), event.rv.as_str())).collect()
}

fn checkpoints(batch: &Batch) -> Vec<(u32, &str)> {
    batch.checkpoints.iter().map(|checkpoint| (checkpoint.scope_id, checkpoint.rv.as_str())).collect()
}

fn synced(scope_id: u32, sync_key: &str, rv: &str) -> Synced {
    Synced { scope_id, sync_key: sync_key.into(), rv: rv.into(), ..Synced::default() }
}

fn sync_start(scope_id: u32, sync_key: &str) -> SyncStart {
    SyncStart { scope_id, sync_key: sync_key.into() }
}

fn in_scope(event: Event) -> Event {
    Event { scope_id: 1, ..event }
}

#[test]
fn a_newer_event_replaces_the_older_one_and_moves_to_the_end() {
    let mut fixture = Fixture::new();
    for (name, rv) in [("a", 2), ("b", 3), ("a", 4)] {
        fixture.push(in_scope(upsert(name, rv)));
    }
    let batch = fixture.cut(1 << 20).expect("there are events");
    assert_eq!(events(&batch), [("b", "3"), ("a", "4")]);
    assert_eq!(checkpoints(&batch), [(1, "4")]);
}

#[test]
fn a_delete_replaces_an_upsert_and_is_kept() {
    let mut fixture = Fixture::new();
    fixture.push(in_scope(upsert("a", 2)));
    fixture.push(in_scope(delete("a", 3)));
    let batch = fixture.cut(1 << 20).expect("there is an event");
    assert_eq!(events(&batch), [("a", "3")]);
    assert_eq!(batch.events[0].op, i32::from(Operation::Delete));
}

#[test]
fn an_event_that_was_moved_for_two_seconds_keeps_its_place() {
    let mut fixture = Fixture::new();
    fixture.push(in_scope(upsert("a", 2)));
    fixture.pass(MAX_MOVE_TIME / 2);
    fixture.push(in_scope(upsert("a", 3)));
    fixture.push(in_scope(upsert("b", 4)));
    fixture.pass(MAX_MOVE_TIME / 2);
    fixture.push(in_scope(upsert("a", 5)));
    fixture.push(in_scope(upsert("a", 6)));
    let batch = fixture.cut(1 << 20).expect("there are events");
    assert_eq!(events(&batch), [("a", "3"), ("b", "4"), ("a", "6")]);
}

#[test]
fn a_checkpoint_is_the_last_event_of_the_batch_or_the_last_version_read() {
    let mut fixture = Fixture::new();
    for rv in 2..6 {
        fixture.push(in_scope(upsert(&format!("object-{rv}"), rv)));
    }
    fixture.queue.bookmark(1, "9".into());
    fixture.queue.bookmark(2, "7".into());
    let first = fixture.cut(100).expect("there are events");
    assert!(first.events.len() < 4, "{first:?}");
    let last = events(&first).last().expect("there is one").1.to_owned();
    assert!(checkpoints(&first).contains(&(1, &*last)), "{first:?}");
    let second = fixture.cut(1 << 20).expect("there are events");
    assert!(checkpoints(&second).contains(&(1, "9")), "{second:?}");
}

#[test]
fn checkpoints_alone_are_due_once_a_minute() {
    let mut fixture = Fixture::new();
    assert_eq!(fixture.queue.due_at(fixture.now), None);
    fixture.queue.bookmark(1, "5".into());
    assert_eq!(fixture.queue.due_at(fixture.now), Some(fixture.now));
    assert_eq!(checkpoints(&fixture.cut(1 << 20).expect("a checkpoint")), [(1, "5")]);
    fixture.queue.bookmark(1, "6".into());
    assert_eq!(fixture.queue.due_at(fixture.now), Some(fixture.now + CHECKPOINT_INTERVAL));
    fixture.of_scope(2, upsert("a", 7));
    assert_eq!(fixture.queue.due_at(fixture.now), Some(fixture.now));
    assert_eq!(checkpoints(&fixture.cut(1 << 20).expect("an event")), [(1, "6"), (2, "7")]);
}

#[test]
fn a_list_has_no_checkpoint_before_it_is_synced() {
    let mut fixture = Fixture::new();
    fixture.push(in_scope(upsert("a", 5)));
    fixture.queue.sync_start(sync_start(1, "one"), &mut fixture.memory);
    let batch = fixture.cut(1 << 20).expect("an event and a start");
    assert_eq!((events(&batch), checkpoints(&batch), batch.sync_starts.len()), (vec![("a", "5")], vec![], 1));
    fixture.push(in_scope(upsert("b", 4)));
    fixture.queue.bookmark(1, "9".into());
    let batch = fixture.cut(1 << 20).expect("an event");
    assert_eq!((events(&batch), checkpoints(&batch)), (vec![("b", "4")], vec![]));
    assert!(!fixture.queue.synced(synced(1, "another", "8"), &mut fixture.memory));
    assert!(fixture.queue.synced(synced(1, "one", "8"), &mut fixture.memory));
    assert_eq!(fixture.queue.last_read(1), Some("8"));
    fixture.push(in_scope(upsert("c", 9)));
    let batch = fixture.cut(1 << 20).expect("the end of the list");
    assert_eq!((batch.synced.len(), batch.events.len(), checkpoints(&batch)), (1, 0, vec![]));
    let batch = fixture.cut(1 << 20).expect("what follows");
    assert_eq!(checkpoints(&batch), [(1, "9")]);
}

#[test]
fn what_is_said_of_a_scope_is_sent_no_later_than_the_end_of_its_list() {
    let mut fixture = Fixture::new();
    fixture.queue.sync_start(sync_start(1, "one"), &mut fixture.memory);
    fixture.of_scope(2, upsert("a", 5));
    fixture.queue.synced(synced(1, "one", "8"), &mut fixture.memory);
    let failure = Some(Failure { message: "x".repeat(500), ..Failure::default() });
    fixture.queue.problem(1, ScopeProblem { failure, ..ScopeProblem::default() }, &mut fixture.memory);
    let full = fixture.cut(400).expect("an event");
    assert_eq!((full.events.len(), full.synced.len(), full.problems.len()), (1, 0, 0));
    let next = fixture.cut(1 << 20).expect("the end of the list");
    assert_eq!((next.synced.len(), next.problems.len()), (1, 1));
}

#[test]
fn a_batch_has_at_most_256_events() {
    let mut fixture = Fixture::new();
    for rv in 2..302 {
        fixture.push(in_scope(upsert(&format!("object-{rv}"), rv)));
    }
    assert_eq!(fixture.cut(1 << 20).expect("a batch").events.len(), MAX_BATCH_EVENTS);
    assert_eq!(fixture.cut(1 << 20).expect("the rest").events.len(), 44);
}

#[test]
fn a_batch_is_at_most_512_kib_or_one_event() {
    let mut fixture = Fixture::new();
    for (name, bytes) in [("a", 300_000), ("b", 200_000), ("c", 100_000)] {
        fixture.push(in_scope(with_body(upsert(name, 2), bytes, 1000)));
    }
    assert_eq!(fixture.cut(4 << 20).expect("a batch").events.len(), 2);
    assert_eq!(fixture.cut(4 << 20).expect("the rest").events.len(), 1);
    fixture.push(in_scope(with_body(upsert("d", 3), 2_000_000, 1000)));
    assert_eq!(fixture.cut(1 << 20), None, "it exceeds the credit");
    let batch = fixture.cut(4 << 20).expect("one event");
    assert!(batch.encoded_len() > MAX_BATCH_BYTES);
    assert_eq!((batch.events.len(), checkpoints(&batch)), (1, vec![(1, "3")]));
}

#[test]
fn the_bodies_of_a_batch_are_at_most_1_mib_uncompressed() {
    let mut fixture = Fixture::new();
    for (name, size) in [("a", 600_000), ("b", 600_000), ("c", 7_000_000), ("d", 10)] {
        fixture.push(in_scope(with_body(upsert(name, 2), 10, size)));
    }
    for expected in ["a", "b", "c", "d"] {
        let batch = fixture.cut(1 << 20).expect("a batch");
        assert_eq!(events(&batch), [(expected, "2")]);
    }
}

#[test]
fn a_body_that_the_hub_does_not_take_is_omitted() {
    let mut fixture = Fixture::new();
    for event in [with_body(upsert("a", 2), 10, 9 << 20), with_body(upsert("b", 3), 3_200_000, 1000)] {
        fixture.push(in_scope(event));
        let batch = fixture.cut(4 << 20).expect("a batch");
        assert_eq!(batch.events[0].body, Some(Body::Omitted(Omitted::TooLarge.into())));
    }
    assert_eq!((fixture.queue.bytes(), fixture.memory.lent()), (0, 0));
}

#[test]
fn an_event_says_how_long_the_agent_has_had_it() {
    let mut fixture = Fixture::new();
    fixture.push(in_scope(upsert("a", 2)));
    fixture.pass(Duration::from_millis(70_000));
    assert_eq!(fixture.cut(1 << 20).expect("a batch").events[0].held_ms, 70_000);
}

#[test]
fn an_account_queues_64_kib_even_if_the_shared_memory_is_used_up() {
    let mut fixture = Fixture::new();
    fixture.memory = QueueMemory::new(0);
    fixture.push(in_scope(with_body(upsert("a", 2), OWN_QUEUE_BYTES - 1000, 9)));
    let event = in_scope(with_body(upsert("b", 3), 2000, 9));
    assert!(fixture.queue.event(event.clone(), fixture.now, &mut fixture.memory).is_err());
    assert!(fixture.queue.is_full(&fixture.memory));
    assert_eq!(fixture.queue.last_read(1), Some("2"), "what was not accepted is unread");
    fixture.cut(4 << 20).expect("a batch");
    assert!(fixture.queue.is_half_free(&fixture.memory) && !fixture.queue.is_full(&fixture.memory));
    fixture.push(event);
}

#[test]
fn an_account_borrows_up_to_1_mib_and_gives_it_back() {
    let mut fixture = Fixture::new();
    for rv in 2..17 {
        fixture.push(in_scope(with_body(upsert(&format!("object-{rv}"), rv), 64_000, 9)));
    }
    assert!(fixture.queue.bytes() > 900_000);
    assert_eq!(fixture.memory.lent(), fixture.queue.bytes() - OWN_QUEUE_BYTES);
    let event = in_scope(with_body(upsert("more", 20), 120_000, 9));
    assert!(fixture.queue.event(event, fixture.now, &mut fixture.memory).is_err());
    assert!(fixture.queue.bytes() <= MAX_QUEUE_BYTES);
    while fixture.cut(4 << 20).is_some() {}
    assert_eq!((fixture.queue.bytes(), fixture.memory.lent()), (0, 0));
}

#[test]
fn an_event_larger_than_the_queue_is_accepted_alone() {
    let mut fixture = Fixture::new();
    fixture.push(in_scope(upsert("a", 2)));
    let large = in_scope(with_body(upsert("b", 3), 3_000_000, 9));
    assert!(fixture.queue.event(large.clone(), fixture.now, &mut fixture.memory).is_err());
    assert!(fixture.queue.is_full(&fixture.memory));
    fixture.cut(4 << 20).expect("the other event");
    assert!(fixture.queue.is_half_free(&fixture.memory));
    fixture.push(large);
    assert!(fixture.queue.event(in_scope(upsert("c", 4)), fixture.now, &mut fixture.memory).is_err());
}

#[derive(Clone, Debug)]
enum QueueStep {
    Change { scope: u32, name: u8, is_there: bool, body: usize },
    Bookmark(u32),
    Pass(u64),
    Cut(usize),
    Relist(u32),
}

fn queue_step() -> impl Strategy<Value = QueueStep> {
    let scope = 1..3_u32;
    prop_oneof![
        8 => (scope.clone(), 0..6_u8, any::<bool>(), 0..3000_usize)
            .prop_map(|(scope, name, is_there, body)| QueueStep::Change { scope, name, is_there, body }),
        1 => scope.clone().prop_map(QueueStep::Bookmark),
        2 => (0..1500_u64).prop_map(QueueStep::Pass),
        4 => (60..6000_usize).prop_map(QueueStep::Cut),
        1 => scope.prop_map(QueueStep::Relist),
    ]
}

/// A database that takes whole batches.
#[derive(Default)]
struct Rows {
    versions: BTreeMap<(u32, String), u64>,
    checkpoints: BTreeMap<u32, u64>,
}

impl Rows {
    fn commit(&mut self, batch: &Batch) {
        for start in &batch.sync_starts {
            self.checkpoints.remove(&start.scope_id);
        }
        for event in &batch.events {
            let version: u64 = event.rv.parse().expect("a version");
            let before = self.versions.insert((event.scope_id, event.name.clone()), version);
            assert!(before.is_none_or(|before| before <= version), "a row goes back: {event:?}");
        }
        for synced in &batch.synced {
            self.checkpoints.insert(synced.scope_id, synced.rv.parse().expect("a version"));
        }
        for checkpoint in &batch.checkpoints {
            let version = checkpoint.rv.parse().expect("a version");
            let before = self.checkpoints.insert(checkpoint.scope_id, version);
            assert!(before.is_none_or(|before| before <= version), "a checkpoint goes back: {checkpoint:?}");
        }
    }

    fn check(&self, newest: &BTreeMap<(u32, String), u64>) {
        for (key, version) in newest {
            let is_before = self.checkpoints.get(&key.0).is_some_and(|checkpoint| version <= checkpoint);
            assert!(!is_before || self.versions.get(key) == Some(version), "{key:?} {version} is lost");
        }
    }
}

proptest! {
    #[test]
    fn a_batch_is_always_a_prefix(steps in prop::collection::vec(queue_step(), 1..120)) {
        let mut fixture = Fixture::new();
        let (mut rows, mut newest, mut version) = (Rows::default(), BTreeMap::new(), 1);
        for (index, step) in steps.into_iter().enumerate() {
            match step {
                QueueStep::Change { scope, name, is_there, body } => {
                    version += 1;
                    let name = format!("object-{name}");
                    let event = if is_there { with_body(upsert(&name, version), body, 9) } else { delete(&name, version) };
                    fixture.of_scope(scope, event);
                    newest.insert((scope, name), version);
                }
                QueueStep::Bookmark(scope) => fixture.queue.bookmark(scope, version.to_string()),
                QueueStep::Pass(millis) => fixture.pass(Duration::from_millis(millis)),
                QueueStep::Cut(credit) => {
                    if let Some(batch) = fixture.cut(credit) {
                        rows.commit(&batch);
                        rows.check(&newest);
                    }
                }
                QueueStep::Relist(scope) => {
                    let key = format!("key-{index}");
                    fixture.queue.sync_start(sync_start(scope, &key), &mut fixture.memory);
                    // The list waits for its basis, which waits for the commit.
                    while let Some(batch) = fixture.cut(1 << 20) {
                        rows.commit(&batch);
                        rows.check(&newest);
                    }
                    for ((_, name), version) in newest.iter().filter(|((of, _), _)| *of == scope) {
                        fixture.push(Event { scope_id: scope, ..upsert(name, *version) });
                    }
                    fixture.queue.synced(synced(scope, &key, &version.to_string()), &mut fixture.memory);
                }
            }
        }
        while let Some(batch) = fixture.cut(1 << 20) {
            rows.commit(&batch);
            rows.check(&newest);
        }
        prop_assert_eq!(&rows.versions, &newest);
        prop_assert_eq!((fixture.queue.bytes(), fixture.memory.lent()), (0, 0));
    }
}
