//! One account under one fence.

use super::super::account_sender::MAX_SCOPES;
use super::*;
use std::collections::BTreeMap;

use kubesvc_core::wire::common::{Failure, Scope};
use kubesvc_core::wire::events::{LeftOutObjects, ScopeProblem, Synced, Unread};

const LIMIT: usize = 4 * 1024 * 1024;

struct Fixture {
    delivery: AccountSender,
    memory: QueueMemory,
    now: Instant,
}

impl Fixture {
    /// A delivery of scopes 1 and 2 that is not attached.
    fn new() -> Self {
        let mut memory = QueueMemory::default();
        let mut delivery = AccountSender::new(fence("u", 1), DAY, DeliveryNumbers::default());
        delivery
            .declare(vec![declaration(1, "Pod"), declaration(2, "Node")], &mut memory)
            .expect("they are new");
        Self { delivery, memory, now: Instant::now() }
    }

    /// A delivery whose scopes are watched from versions 10 and 20, and their readers.
    fn watching() -> (Self, ReaderId, ReaderId) {
        let mut fixture = Self::new();
        fixture.begin();
        let commands = fixture.resume(0, vec![checkpoint(1, "10"), checkpoint(2, "20")]);
        let readers: Vec<ReaderId> = commands.iter().map(reader_of).collect();
        (fixture, readers[0], readers[1])
    }

    fn next(&mut self) -> NextFrame {
        self.delivery.next_frame(LIMIT, self.now, &mut self.memory)
    }

    fn begin(&mut self) -> Vec<u32> {
        self.delivery.attach(LIMIT);
        let frame = begin(&self.next());
        assert!(frame.last);
        frame.scopes.iter().map(|scope| scope.scope_id).collect()
    }

    fn resume(&mut self, committed_seq: u64, scopes: Vec<ScopeCheckpoint>) -> Vec<ReaderCommand> {
        self.delivery.resume(resume(&fence("u", 1), committed_seq, scopes), &mut self.memory)
    }

    fn batch(&mut self) -> Batch {
        batch(&self.next())
    }

    fn event(&mut self, reader: ReaderId, event: Event) {
        self.delivery.event(reader, event, self.now, &mut self.memory).expect("there is room");
    }

    /// Sends a batch of one event; returns its number and frame.
    fn sent(&mut self, reader: ReaderId, name: &str, version: u64) -> (u64, NextFrame) {
        self.event(reader, upsert(name, version));
        let frame = self.next();
        (batch(&frame).seq, frame)
    }

    fn reconnect(&mut self) -> Vec<u32> {
        self.delivery.detach();
        self.begin()
    }

    fn is_idle(&mut self) -> bool {
        self.next() == NextFrame::Nothing(None)
    }
}

fn reader_of(command: &ReaderCommand) -> ReaderId {
    match command {
        ReaderCommand::Watch { reader, .. } | ReaderCommand::List { reader, .. } => *reader,
        other => unreachable!("{other:?}"),
    }
}

fn both() -> Vec<ScopeCheckpoint> {
    vec![checkpoint(1, "10"), checkpoint(2, "20")]
}

#[test]
fn a_fresh_checkpoint_is_watched_and_another_scope_is_listed() {
    let mut fixture = Fixture::new();
    fixture.begin();
    let listed = ScopeCheckpoint { scope_id: 2, objects: 7, resend: true, ..ScopeCheckpoint::default() };
    let commands = fixture.resume(0, vec![checkpoint(1, "10"), listed]);
    assert!(
        matches!(&commands[0], ReaderCommand::Watch { scope_id: 1, resource_version, .. } if resource_version == "10")
    );
    assert!(matches!(commands[1], ReaderCommand::List { scope_id: 2, objects: 7, all_bodies: true, .. }));
}

#[test]
fn an_old_checkpoint_is_listed() {
    let mut fixture = Fixture::new();
    fixture.begin();
    let age_ms = u64::try_from(DAY.as_millis()).expect("a day");
    let old = ScopeCheckpoint { age_ms, ..checkpoint(1, "10") };
    let young = ScopeCheckpoint { age_ms: age_ms - 1, ..checkpoint(2, "20") };
    let commands = fixture.resume(0, vec![old, young]);
    assert!(matches!(commands[0], ReaderCommand::List { scope_id: 1, all_bodies: false, .. }));
    assert!(matches!(commands[1], ReaderCommand::Watch { scope_id: 2, .. }));
}

#[test]
fn nothing_is_sent_before_the_answer_to_begin() {
    let mut fixture = Fixture::new();
    assert!(fixture.is_idle());
    fixture.begin();
    fixture.delivery.problem(1, Some(Failure::default()), &mut fixture.memory);
    assert!(fixture.is_idle());
    fixture.resume(0, both());
    assert_eq!(fixture.batch().problems.len(), 1);
}

#[test]
fn an_answer_that_does_not_cover_begin_is_not_its_answer() {
    let mut fixture = Fixture::new();
    fixture.begin();
    assert!(fixture.resume(0, vec![checkpoint(1, "10")]).is_empty());
    assert_eq!(fixture.resume(0, both()).len(), 2);
}

#[test]
fn an_answer_in_several_frames_is_complete_with_the_last() {
    let mut fixture = Fixture::new();
    fixture.begin();
    let first = Resume { last: false, ..resume(&fence("u", 1), 0, vec![checkpoint(1, "10")]) };
    assert!(fixture.delivery.resume(first, &mut fixture.memory).is_empty());
    assert_eq!(fixture.resume(0, vec![checkpoint(2, "20")]).len(), 2);
}

#[test]
fn begin_is_split_into_frames_of_at_most_256_kib() {
    let mut memory = QueueMemory::default();
    let mut delivery = AccountSender::new(fence("u", 1), DAY, DeliveryNumbers::default());
    let scopes: Vec<_> = (1..=5000).map(|id| declaration(id, &"k".repeat(200))).collect();
    delivery.declare(scopes, &mut memory).expect("5,000 is the limit");
    assert_eq!(
        delivery.declare(vec![declaration(6000, "More")], &mut memory),
        Err(DeclarationError::TooManyScopes)
    );
    delivery.attach(LIMIT);
    let mut ids = Vec::new();
    let frames = loop {
        let next = delivery.next_frame(0, Instant::now(), &mut memory);
        let frame = begin(&next);
        assert!(frame.encoded_len() <= 256 * 1024);
        ids.extend(frame.scopes.iter().map(|scope| scope.scope_id));
        if frame.last {
            break ids.len();
        }
    };
    assert_eq!(frames, 5000);
    assert!(ids.is_sorted_by(|one, other| one < other));
}

#[test]
fn batches_form_a_chain() {
    let (mut fixture, pods, nodes) = Fixture::watching();
    let (first, _) = fixture.sent(pods, "a", 11);
    fixture.event(nodes, upsert("n", 21));
    let second = fixture.batch();
    assert_eq!((first, second.prev, second.seq), (1, 1, 2));
    assert!(fixture.delivery.in_flight_bytes() > 0);
    fixture.delivery.ack(2);
    assert_eq!(fixture.delivery.in_flight_bytes(), 0);
    fixture.delivery.ack(7);
    fixture.event(pods, upsert("a", 12));
    assert_eq!(fixture.batch().prev, 2);
    let in_flight = fixture.delivery.in_flight_bytes();
    fixture.delivery.ack(7);
    let after = fixture.delivery.in_flight_bytes();
    assert!(in_flight > 0 && after == in_flight, "an Ack of a number that was not sent is ignored");
}

#[test]
fn after_a_cut_unacknowledged_batches_are_sent_again_with_the_same_bytes() {
    let (mut fixture, pods, _) = Fixture::watching();
    fixture.sent(pods, "a", 11);
    let second = fixture.sent(pods, "b", 12).1;
    let third = fixture.sent(pods, "c", 13).1;
    fixture.now += Duration::from_secs(5);
    fixture.reconnect();
    fixture.event(pods, upsert("d", 14));
    assert!(fixture.resume(1, both()).is_empty(), "readers go on");
    assert_eq!([fixture.next(), fixture.next()], [second, third]);
    let fourth = fixture.batch();
    assert_eq!((fourth.prev, fourth.seq, fourth.events.len()), (3, 4, 1));
}

#[test]
fn after_lost_commits_scopes_go_on_from_the_checkpoints_under_a_new_number() {
    let (mut fixture, pods, _) = Fixture::watching();
    for (name, version) in [("a", 11), ("b", 12)] {
        fixture.sent(pods, name, version);
    }
    fixture.delivery.ack(2);
    fixture.sent(pods, "c", 13);
    fixture.reconnect();
    let commands = fixture.resume(1, both());
    assert!(matches!(commands[0], ReaderCommand::StopAll));
    let reader = reader_of(&commands[1]);
    assert_ne!(reader, pods);
    fixture.event(pods, upsert("d", 14));
    assert!(fixture.is_idle(), "the former reader is ignored");
    fixture.event(reader, upsert("b", 12));
    let batch = fixture.batch();
    assert_eq!((batch.prev, batch.seq), (1, 4));
}

#[test]
fn a_rewind_begins_anew() {
    let (mut fixture, pods, _) = Fixture::watching();
    fixture.sent(pods, "a", 11);
    fixture.sent(pods, "b", 12);
    fixture.event(pods, upsert("c", 13));
    assert!(fixture.delivery.in_flight_bytes() > 0);
    let commands = fixture.delivery.rewind(&mut fixture.memory);
    assert_eq!(fixture.delivery.in_flight_bytes(), 0);
    assert!(matches!(commands[..], [ReaderCommand::StopAll]));
    assert_eq!(
        fixture.delivery.rewind(&mut fixture.memory).len(),
        0,
        "the second is answered by the same Begin"
    );
    assert_eq!(begin(&fixture.next()).scopes.len(), 2);
    let commands = fixture.resume(1, both());
    let reader = reader_of(&commands[0]);
    fixture.event(reader, upsert("b", 12));
    let batch = fixture.batch();
    assert_eq!((batch.prev, batch.seq), (1, 3));
}

#[test]
fn numbers_of_a_former_delivery_are_not_used_again() {
    let (mut fixture, pods, _) = Fixture::watching();
    fixture.sent(pods, "a", 11);
    let numbers = fixture.delivery.numbers();
    fixture.delivery.end(&mut fixture.memory);
    assert_eq!(fixture.memory.lent(), 0);
    fixture.delivery = AccountSender::new(fence("u", 1), DAY, numbers);
    let declared = fixture.delivery.declare(vec![declaration(1, "Pod")], &mut fixture.memory);
    assert_eq!(declared, Err(DeclarationError::NumberUsed(1)));
    fixture.delivery.declare(vec![declaration(3, "Pod")], &mut fixture.memory).expect("it is new");
    fixture.begin();
    let reader = reader_of(&fixture.resume(0, vec![checkpoint(3, "10")])[0]);
    assert_ne!(reader, pods);
    assert_eq!(fixture.sent(reader, "a", 12).0, 2);
}

#[test]
fn an_answer_for_a_former_delivery_is_not_its_answer() {
    let mut fixture = Fixture::new();
    fixture.delivery.attach(LIMIT);
    let former = begin(&fixture.next()).delivery;
    let numbers = fixture.delivery.numbers();
    fixture.delivery = AccountSender::new(fence("u", 1), DAY, numbers);
    fixture.delivery.declare(Vec::new(), &mut fixture.memory).expect("there is nothing to refuse");
    fixture.delivery.attach(LIMIT);
    let delivery = begin(&fixture.next()).delivery;
    assert_ne!(delivery, former);
    let late = Resume { delivery: former, ..resume(&fence("u", 1), 0, both()) };
    assert!(fixture.delivery.resume(late, &mut fixture.memory).is_empty());
    assert!(fixture.is_idle());
    let others = vec![":.Pod".to_owned()];
    let answer = Resume { delivery, others, ..resume(&fence("u", 1), 3, Vec::new()) };
    fixture.delivery.resume(answer, &mut fixture.memory);
    let batch = fixture.batch();
    assert_eq!((batch.prev, batch.removed), (3, vec![":.Pod".to_owned()]));
}

#[test]
fn a_list_gets_its_basis_once_it_is_complete() {
    let mut fixture = Fixture::new();
    fixture.begin();
    let reader = reader_of(&fixture.resume(0, vec![checkpoint(1, ""), checkpoint(2, "20")])[0]);
    fixture.delivery.sync_start(reader, "one".into(), &mut fixture.memory);
    assert_eq!(fixture.batch().sync_starts.len(), 1);
    let here = fence("u", 1);
    assert!(fixture.delivery.basis(basis_frame(&here, "other", &[("x", 1)], true)).is_none());
    assert!(fixture.delivery.basis(basis_frame(&here, "one", &[("a", 1)], false)).is_none());
    let command = fixture.delivery.basis(basis_frame(&here, "one", &[("b", 2)], true));
    let Some(ReaderCommand::Basis { reader: to, sync_key, rows: Ok(rows) }) = command else {
        unreachable!("{command:?}")
    };
    let names = rows.into_frames().flat_map(|rows| rows.expect("rows")).map(|row| row.name);
    assert_eq!((to, &*sync_key, names.collect::<Vec<_>>()), (reader, "one", vec!["a".into(), "b".into()]));
    assert!(fixture.delivery.basis(basis_frame(&here, "one", &[], true)).is_none(), "it is handed over once");
    let synced = Synced { sync_key: "one".into(), rv: "30".into(), ..Synced::default() };
    fixture.delivery.synced(reader, synced, &mut fixture.memory);
    assert_eq!(fixture.delivery.last_read(reader), Some("30"));
    assert_eq!(fixture.batch().synced[0].scope_id, 1);
}

#[test]
fn a_scope_whose_basis_was_lost_with_the_stream_is_listed_anew() {
    let mut fixture = Fixture::new();
    fixture.begin();
    let reader = reader_of(&fixture.resume(0, vec![checkpoint(1, ""), checkpoint(2, "20")])[0]);
    fixture.delivery.sync_start(reader, "one".into(), &mut fixture.memory);
    fixture.reconnect();
    let scopes = || vec![checkpoint(1, ""), checkpoint(2, "20")];
    assert!(fixture.resume(0, scopes()).is_empty(), "its start was not sent yet");
    let start = fixture.batch();
    fixture.delivery.ack(start.seq);
    fixture.reconnect();
    let commands = fixture.resume(start.seq, scopes());
    assert!(matches!(commands[..], [ReaderCommand::List { scope_id: 1, .. }]), "{commands:?}");
    assert_ne!(reader_of(&commands[0]), reader);
}

#[test]
fn the_hub_asks_for_a_new_list() {
    let (mut fixture, pods, _) = Fixture::watching();
    let command = fixture.delivery.relist(1).expect("the scope is read");
    assert!(matches!(command, ReaderCommand::List { scope_id: 1, .. }) && reader_of(&command) != pods);
    assert!(fixture.delivery.relist(9).is_none());
}

#[test]
fn an_added_scope_begins_once_its_batch_is_committed_and_answered() {
    let (mut fixture, ..) = Fixture::watching();
    let id = fixture.delivery.next_scope_id();
    fixture.delivery.declare(vec![declaration(id, "Service")], &mut fixture.memory).expect("it is new");
    assert_eq!(id, 3);
    assert!(fixture.resume(0, vec![checkpoint(3, "30")]).is_empty(), "its batch is not sent");
    let batch = fixture.batch();
    assert_eq!(batch.added.len(), 1);
    assert!(
        fixture.resume(batch.seq - 1, vec![checkpoint(3, "30")]).is_empty(),
        "its batch is not committed"
    );
    fixture.delivery.ack(batch.seq);
    let commands = fixture.resume(batch.seq, vec![checkpoint(3, "30")]);
    assert!(matches!(commands[..], [ReaderCommand::Watch { scope_id: 3, .. }]), "{commands:?}");
}

#[test]
fn begin_names_an_added_scope_only_once_it_is_committed() {
    let (mut fixture, ..) = Fixture::watching();
    fixture.delivery.declare(vec![declaration(3, "Service")], &mut fixture.memory).expect("it is new");
    let seq = fixture.batch().seq;
    assert_eq!(fixture.reconnect(), [1, 2]);
    fixture.resume(0, both());
    assert_eq!(fixture.batch().seq, seq, "it is sent again");
    fixture.delivery.ack(seq);
    assert_eq!(fixture.reconnect(), [1, 2, 3]);
    let scopes = both().into_iter().chain([checkpoint(3, "30")]).collect();
    assert_eq!(fixture.resume(seq, scopes).len(), 1, "its own answer was lost");
}

#[test]
fn an_added_scope_is_added_again_if_its_answer_was_lost_and_begin_did_not_name_it() {
    let (mut fixture, ..) = Fixture::watching();
    fixture.delivery.declare(vec![declaration(3, "Service")], &mut fixture.memory).expect("it is new");
    let seq = fixture.batch().seq;
    assert_eq!(fixture.reconnect(), [1, 2]);
    assert!(fixture.resume(seq, both()).is_empty(), "it was committed meanwhile");
    let again = fixture.batch();
    assert_eq!((again.prev, again.added), (seq, vec![declaration(3, "Service")]));
    assert_eq!(fixture.reconnect(), [1, 2, 3]);
    let scopes: Vec<_> = both().into_iter().chain([checkpoint(3, "30")]).collect();
    let commands = fixture.resume(again.seq, scopes);
    assert!(matches!(commands[..], [ReaderCommand::Watch { scope_id: 3, .. }]), "{commands:?}");
    assert!(fixture.is_idle());
}

#[test]
fn an_added_scope_that_ended_is_not_added_again() {
    let (mut fixture, ..) = Fixture::watching();
    fixture.delivery.declare(vec![declaration(3, "Service")], &mut fixture.memory).expect("it is new");
    let seq = fixture.batch().seq;
    fixture.delivery.remove_scope(3, &mut fixture.memory);
    fixture.reconnect();
    fixture.resume(seq, both());
    let batch = fixture.batch();
    assert_eq!((batch.added.len(), batch.removed), (0, vec![":.Service".to_owned()]));
}

#[test]
fn an_added_scope_is_added_again_after_lost_commits() {
    let (mut fixture, pods, _) = Fixture::watching();
    fixture.sent(pods, "a", 11);
    fixture.delivery.ack(1);
    fixture.delivery.declare(vec![declaration(3, "Service")], &mut fixture.memory).expect("it is new");
    fixture.batch();
    fixture.reconnect();
    fixture.resume(0, both());
    let batch = fixture.batch();
    assert_eq!((batch.prev, batch.added.len()), (0, 1));
}

#[test]
fn a_removed_scope_is_named_by_begin_as_long_as_a_batch_names_it() {
    let (mut fixture, pods, _) = Fixture::watching();
    let (seq, _) = fixture.sent(pods, "a", 11);
    fixture.event(pods, upsert("b", 12));
    let command = fixture.delivery.remove_scope(1, &mut fixture.memory);
    assert!(matches!(command, Some(ReaderCommand::Stop { reader }) if reader == pods));
    assert_eq!(fixture.reconnect(), [1, 2]);
    assert!(fixture.resume(0, both()).is_empty());
    assert_eq!(fixture.batch().seq, seq);
    let removed = fixture.batch();
    assert_eq!((removed.removed, removed.events.len()), (vec![":.Pod".to_owned()], 0));
    fixture.delivery.ack(seq);
    assert_eq!(fixture.reconnect(), [2]);
}

#[test]
fn a_removal_is_sent_again_after_lost_commits_although_begin_named_the_scope() {
    let (mut fixture, pods, _) = Fixture::watching();
    fixture.sent(pods, "a", 11);
    fixture.delivery.ack(1);
    fixture.sent(pods, "b", 12);
    fixture.delivery.remove_scope(1, &mut fixture.memory);
    assert_eq!(fixture.batch().removed, [":.Pod"]);
    assert_eq!(fixture.reconnect(), [1, 2], "a batch may name it");
    fixture.resume(0, both());
    assert_eq!(fixture.batch().removed, [":.Pod"]);
    assert_eq!(fixture.reconnect(), [2]);
}

#[test]
fn a_scope_that_is_removed_and_added_keeps_its_rows() {
    let (mut fixture, ..) = Fixture::watching();
    fixture.delivery.remove_scope(1, &mut fixture.memory);
    fixture.delivery.declare(vec![declaration(3, "Pod")], &mut fixture.memory).expect("it is new");
    let batch = fixture.batch();
    assert_eq!((batch.removed.len(), batch.added.len()), (0, 1));
    fixture.delivery.declare(vec![declaration(4, "Pod")], &mut fixture.memory).expect("it is new");
    fixture.delivery.remove_scope(3, &mut fixture.memory);
    assert!(fixture.batch().removed.is_empty());
}

#[test]
fn a_scope_of_another_filter_is_declared_again_under_its_number() {
    let (mut fixture, pods, _) = Fixture::watching();
    let other = ScopeDeclaration { filter: "other".into(), ..declaration(1, "Pod") };
    let command =
        fixture.delivery.redeclare_scope(other.clone(), &mut fixture.memory).expect("it is the same");
    assert!(matches!(command, Some(ReaderCommand::Stop { reader }) if reader == pods));
    let batch = fixture.batch();
    assert_eq!(batch.added, [other]);
    let commands = fixture.resume(batch.seq, vec![checkpoint(1, "")]);
    assert!(matches!(commands[..], [ReaderCommand::List { scope_id: 1, .. }]));
    let error = fixture.delivery.redeclare_scope(declaration(1, "Node"), &mut fixture.memory);
    assert!(matches!(error, Err(DeclarationError::OtherScope(1))));
}

#[test]
fn other_scopes_of_the_table_are_removed() {
    let mut fixture = Fixture::new();
    fixture.begin();
    let others = vec![":.Pod".to_owned(), "ns:apps.Deployment".to_owned()];
    let answer = Resume { others, ..resume(&fence("u", 1), 0, both()) };
    fixture.delivery.resume(answer, &mut fixture.memory);
    assert_eq!(fixture.batch().removed, ["ns:apps.Deployment"]);
}

#[test]
fn a_problem_of_a_discarded_batch_is_sent_again() {
    let (mut fixture, pods, _) = Fixture::watching();
    fixture.sent(pods, "a", 11);
    fixture.delivery.ack(1);
    let failure = Failure { message: "no right".into(), ..Failure::default() };
    fixture.delivery.problem(1, Some(failure), &mut fixture.memory);
    fixture.batch();
    fixture.reconnect();
    fixture.resume(0, both());
    assert_eq!(
        fixture.batch().problems[0].failure.as_ref().map(|failure| &*failure.message),
        Some("no right")
    );
}

#[test]
fn what_is_left_out_is_said_on_each_stream_and_taken_back_once() {
    let (mut fixture, pods, _) = Fixture::watching();
    let kinds = |names: &[&str]| -> BTreeMap<String, ScopeProblem> {
        let problem = |kind: &str| ScopeProblem {
            scope: Some(Scope { kind: kind.to_owned(), ..Scope::default() }),
            failure: Some(Failure { message: "not served".into(), ..Failure::default() }),
            left_out: None,
        };
        names.iter().map(|kind| ((*kind).to_owned(), problem(kind))).collect()
    };
    let told = |batch: Batch| -> Vec<(String, bool)> {
        let of = |one: ScopeProblem| (one.scope.unwrap_or_default().kind, one.failure.is_some());
        batch.problems.into_iter().map(of).collect()
    };
    let stands = |kind: &str, stands: bool| (kind.to_owned(), stands);
    fixture.delivery.left_out(kinds(&["Rollout", "Widget"]), &mut fixture.memory);
    assert_eq!(told(fixture.batch()), [stands("Rollout", true), stands("Widget", true)]);
    fixture.delivery.left_out(kinds(&["Rollout", "Widget"]), &mut fixture.memory);
    assert!(fixture.is_idle(), "it is said already");
    fixture.delivery.left_out(kinds(&["Widget"]), &mut fixture.memory);
    assert_eq!(told(fixture.batch()), [stands("Rollout", false)]);
    fixture.delivery.problem(1, Some(Failure::default()), &mut fixture.memory);
    fixture.batch();
    fixture.delivery.ack(3);
    fixture.reconnect();
    fixture.resume(3, both());
    assert_eq!(
        told(fixture.batch()),
        [stands("Pod", true), stands("Widget", true)],
        "the hub may be another one"
    );
    fixture.event(pods, upsert("a", 11));
    assert!(fixture.batch().problems.is_empty());
    assert!(fixture.delivery.next_scope_id() > 4, "their numbers are not used again");
}

#[test]
fn wrong_declarations_are_refused() {
    let mut fixture = Fixture::new();
    let memory = &mut fixture.memory;
    assert_eq!(
        fixture.delivery.declare(vec![declaration(1, "Job")], memory),
        Err(DeclarationError::NumberUsed(1))
    );
    assert_eq!(fixture.delivery.declare(vec![declaration(9, "")], memory), Err(DeclarationError::NoKind(9)));
    let twice = vec![declaration(7, "Job"), declaration(7, "CronJob")];
    assert_eq!(fixture.delivery.declare(twice, memory), Err(DeclarationError::NumberUsed(7)));
}

#[test]
fn a_batch_waits_for_its_credit() {
    let (mut fixture, pods, _) = Fixture::watching();
    fixture.event(pods, with_body(upsert("a", 11), 10_000, 9));
    let blocked = fixture.delivery.next_frame(500, fixture.now, &mut fixture.memory);
    let NextFrame::Blocked(needed) = blocked else { unreachable!("{blocked:?}") };
    assert!((10_000..10_200).contains(&needed), "{needed}");
    let frame = fixture.delivery.next_frame(needed, fixture.now, &mut fixture.memory);
    assert_eq!(batch(&frame).seq, 1);
    fixture.reconnect();
    fixture.resume(0, both());
    let again = fixture.delivery.next_frame(500, fixture.now, &mut fixture.memory);
    assert!(matches!(again, NextFrame::Blocked(_)));
    assert_eq!(fixture.next(), frame);
}

#[test]
fn batches_fit_into_the_messages_of_a_hub_that_takes_small_ones() {
    let (mut fixture, pods, _) = Fixture::watching();
    fixture.delivery.detach();
    let limit = 32 * 1024;
    fixture.delivery.attach(limit);
    fixture.next();
    fixture.resume(0, both());
    for number in 0..10 {
        fixture.event(pods, with_body(upsert(&format!("pod-{number}"), 11 + number), 6_000, 9));
    }
    let mut sent = 0;
    while let NextFrame::Batch(frame, _) = fixture.next() {
        assert!(frame.bytes().len() <= limit, "{} bytes", frame.bytes().len());
        let cache_up::Frame::Batch(batch) = decoded(&frame) else { unreachable!("a batch") };
        sent += batch.events.len();
    }
    assert_eq!(sent, 10);
}

#[test]
fn scopes_that_are_replaced_do_not_count_twice() {
    let (mut fixture, pods, _) = Fixture::watching();
    fixture.sent(pods, "a", 11);
    let many = (3..).map(|number| declaration(number, &format!("Kind{number}"))).take(MAX_SCOPES - 2);
    fixture.delivery.declare(many.collect(), &mut fixture.memory).expect("as many as there may be");
    let one_more = || vec![declaration(9_999, "Job")];
    let refused = fixture.delivery.declare(one_more(), &mut fixture.memory);
    assert_eq!(refused, Err(DeclarationError::TooManyScopes));
    fixture.delivery.remove_scope(1, &mut fixture.memory);
    assert_eq!(fixture.delivery.declare(one_more(), &mut fixture.memory), Ok(()));
}

#[test]
fn reason_of_a_former_process_is_taken_back_once_when_the_scope_is_read() {
    let (mut fixture, pods, _) = Fixture::watching();
    for _ in 0..2 {
        fixture.delivery.is_read(pods, &mut fixture.memory);
    }
    let problems = fixture.batch().problems;
    assert_eq!((problems.len(), problems[0].failure.is_none()), (1, true));
    fixture.delivery.is_read(pods, &mut fixture.memory);
    assert!(fixture.is_idle());
}

#[test]
fn objects_that_are_left_out_are_said_once_on_each_stream_and_beside_no_other_reason() {
    let (mut fixture, pods, _) = Fixture::watching();
    let objects = |count: u32| LeftOutObjects { count, objects: Vec::new() };
    let told = |batch: Batch| {
        let [problem] = &batch.problems[..] else { unreachable!("expected one, got {:?}", batch.problems) };
        let message = problem.failure.as_ref().map(|failure| failure.message.clone());
        (message, problem.left_out.as_ref().map(|left_out| left_out.count))
    };
    let two = || (Some("2 objects are left out".to_owned()), Some(2));
    fixture.delivery.left_out_objects(pods, objects(2), &mut fixture.memory);
    assert_eq!(told(fixture.batch()), two());
    fixture.delivery.left_out_objects(pods, objects(2), &mut fixture.memory);
    assert!(fixture.is_idle(), "it is said already");
    fixture.reconnect();
    fixture.resume(1, both());
    assert_eq!(told(fixture.batch()), two());
    // While the scope is not read, that is the reason.
    let forbidden = Failure { message: "no right".into(), ..Failure::default() };
    fixture.delivery.problem(1, Some(forbidden), &mut fixture.memory);
    assert_eq!(told(fixture.batch()), (Some("no right".to_owned()), None));
    fixture.delivery.left_out_objects(pods, objects(3), &mut fixture.memory);
    assert!(fixture.is_idle());
    fixture.delivery.problem(1, None, &mut fixture.memory);
    assert_eq!(told(fixture.batch()).1, Some(3));
    fixture.delivery.left_out_objects(pods, objects(0), &mut fixture.memory);
    assert_eq!(told(fixture.batch()), (None, None));
}

#[test]
fn scope_with_objects_left_out_is_listed_and_what_a_former_process_said_stays_until_the_list_is_complete() {
    let mut fixture = Fixture::new();
    fixture.begin();
    let commands = fixture
        .resume(0, vec![ScopeCheckpoint { must_list: true, ..checkpoint(1, "10") }, checkpoint(2, "20")]);
    let ReaderCommand::List { reader, scope_id: 1, .. } = commands[0] else {
        unreachable!("expected a list, got {:?}", commands[0])
    };
    fixture.delivery.sync_start(reader, "K".into(), &mut fixture.memory);
    assert_eq!(fixture.batch().sync_starts.len(), 1);
    fixture.delivery.is_read(reader, &mut fixture.memory);
    assert!(fixture.is_idle(), "the end of the list takes it back, or the list says it anew");
}

#[test]
fn sent_events_are_counted_once_by_kind() {
    let (mut fixture, pods, _) = Fixture::watching();
    fixture.sent(pods, "a", 11);
    fixture.sent(pods, "b", 12);
    fixture.reconnect();
    fixture.resume(0, both());
    fixture.batch();
    let sent = fixture.delivery.take_sent();
    let sent: Vec<_> = sent.iter().map(|(kind, _, count)| (kind, count.events, count.bytes > 0)).collect();
    assert_eq!(sent, [("Pod", 2, true)]);
    assert!(fixture.delivery.take_sent().is_empty());
}

#[test]
fn cluster_that_was_never_reached_is_told_once_a_stream_until_scopes_are_known() {
    let delivery = AccountSender::new(fence("u", 1), DAY, DeliveryNumbers::default());
    let mut fixture = Fixture { delivery, memory: QueueMemory::default(), now: Instant::now() };
    let failure = Failure { message: "connection refused".to_owned(), ..Failure::default() };
    fixture.delivery.attach(LIMIT);
    assert_eq!(fixture.next(), NextFrame::Nothing(None));
    fixture.delivery.unread(failure.clone());
    let unread = Unread { fence: Some(fence("u", 1)), failure: Some(failure.clone()) };
    let told = NextFrame::Free(EncodedFrame::encode(cache_up::Frame::Unread(unread)));
    assert!(!fixture.delivery.is_begun());
    assert_eq!(fixture.next(), told);
    assert!(fixture.delivery.is_begun(), "the hub is told when it ends");
    fixture.delivery.unread(failure.clone());
    assert_eq!(fixture.next(), NextFrame::Nothing(None), "the hub knows");
    fixture.delivery.detach();
    fixture.delivery.attach(LIMIT);
    assert_eq!(fixture.next(), told);
    fixture.delivery.declare(vec![declaration(1, "Pod")], &mut fixture.memory).expect("it is new");
    assert_eq!(begin(&fixture.next()).scopes.len(), 1);
    fixture.delivery.unread(failure);
    assert_eq!(fixture.reconnect(), [1], "readers say more");
}
