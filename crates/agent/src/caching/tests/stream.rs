//! All accounts on one stream.

use super::super::batch::MAX_BATCH_EVENTS;
use super::super::credit::{
    BASE_CREDIT_BYTES, MAX_IN_FLIGHT_BYTES, MAX_LENT_BYTES, SenderCredit, UNUSED_CREDIT_TIME,
};
use super::super::stream::{CachingSender, MAX_ACCOUNT_UNCOMMITTED_EVENTS, StreamAction};
use super::*;
use kubesvc_core::wire::MAX_UNCOMMITTED_EVENTS;
use kubesvc_core::wire::events::{
    Ack, CacheDown, Closed, Credit, Revoked, Want, cache_down, closed, revoked,
};

struct Fixture {
    stream: CachingSender,
    number: u64,
    now: Instant,
}

impl Fixture {
    /// A stream with a session, that waits for an account.
    fn new() -> Self {
        let now = Instant::now();
        let mut stream = CachingSender::new(QueueMemory::default(), now);
        stream.session_changed(Some(StreamIdentity {
            session_id: "session".into(),
            agent_id: "agent".into(),
            boot_id: "boot".into(),
            replica_id: "replica".into(),
            max_message_bytes: 4 << 20,
        }));
        Self { stream, number: 0, now }
    }

    fn assign(&mut self, uid: &str) {
        self.stream.assign(fence(uid, 1), DAY, self.now);
        let (delivery, memory) = self.stream.account(uid).expect("it is assigned");
        let id = delivery.next_scope_id();
        delivery.declare(vec![declaration(id, "Pod")], memory).expect("it is new");
    }

    fn hear(&mut self, frame: cache_down::Frame) -> super::super::stream::FrameOutcome {
        self.stream.frame(self.number, CacheDown { frame: Some(frame) }, self.now)
    }

    fn credit(&mut self, bytes: usize) {
        let bytes = u32::try_from(bytes).expect("small");
        self.hear(cache_down::Frame::Credit(Credit { bytes }));
    }

    fn open(&mut self) {
        let StreamAction::Open { stream, frame } = self.stream.poll(self.now) else {
            unreachable!("it opens")
        };
        assert!(matches!(decoded(&frame), cache_up::Frame::Open(open) if open.session_id == "session"));
        self.number = stream;
        self.credit(BASE_CREDIT_BYTES);
    }

    /// An open stream with these accounts, each with a reader that watches its scope.
    fn watching(uids: &[&str]) -> (Self, Vec<ReaderId>) {
        let mut fixture = Self::new();
        uids.iter().for_each(|uid| fixture.assign(uid));
        fixture.open();
        let mut readers = Vec::new();
        for _ in uids {
            let Some(cache_up::Frame::Begin(begin)) = fixture.sent() else {
                unreachable!("Begin comes first")
            };
            let here = begin.fence.expect("it names its account");
            let outcome =
                fixture.hear(cache_down::Frame::Resume(resume(&here, 0, vec![checkpoint(1, "10")])));
            let ReaderCommand::Watch { reader, .. } = outcome.commands[0].command else {
                unreachable!("{outcome:?}")
            };
            readers.push(reader);
        }
        (fixture, readers)
    }

    /// The next frame, if there is one.
    fn sent(&mut self) -> Option<cache_up::Frame> {
        match self.stream.poll(self.now) {
            StreamAction::Send(frame) => Some(decoded(&frame)),
            StreamAction::Wait(_) => None,
            other => unreachable!("{other:?}"),
        }
    }

    /// The account and length of the next frame, which is a batch.
    fn batch(&mut self) -> (String, usize) {
        match self.sent() {
            Some(cache_up::Frame::Batch(batch)) => {
                let length = batch.encoded_len();
                (batch.fence.expect("it names its account").account_uid, length)
            }
            other => unreachable!("{other:?}"),
        }
    }

    fn wanted(&mut self) -> Option<u32> {
        match self.sent() {
            Some(cache_up::Frame::Want(Want { bytes })) => Some(bytes),
            None => None,
            other => unreachable!("{other:?}"),
        }
    }

    fn event(&mut self, uid: &str, reader: ReaderId, event: Event) {
        let now = self.now;
        let (delivery, memory) = self.stream.account(uid).expect("it is assigned");
        delivery.event(reader, event, now, memory).expect("there is room");
    }

    fn ack(&mut self, uid: &str, seq: u64) {
        self.hear(cache_down::Frame::Ack(Ack { fence: Some(fence(uid, 1)), seq }));
    }

    fn fill(&mut self, uid: &str, reader: ReaderId, events: u64, bytes: usize) {
        for version in 11..11 + events {
            self.event(uid, reader, with_body(upsert(&format!("object-{version}"), version), bytes, 9));
        }
    }
}

#[test]
fn the_stream_is_opened_with_the_first_account_and_begins_after_the_first_credit() {
    let mut fixture = Fixture::new();
    assert_eq!(fixture.stream.poll(fixture.now), StreamAction::Wait(None));
    fixture.assign("a");
    let StreamAction::Open { stream, .. } = fixture.stream.poll(fixture.now) else {
        unreachable!("it opens")
    };
    fixture.number = stream;
    assert!(fixture.sent().is_none(), "the hub has not answered");
    fixture.credit(BASE_CREDIT_BYTES);
    assert!(matches!(fixture.sent(), Some(cache_up::Frame::Begin(_))));
}

#[test]
fn accounts_take_turns() {
    let (mut fixture, readers) = Fixture::watching(&["a", "b", "c"]);
    for _ in 0..2 {
        for (uid, reader) in ["a", "b", "c"].into_iter().zip(&readers) {
            fixture.event(uid, *reader, upsert("x", 11));
        }
        let mut served: Vec<String> = (0..3).map(|_| fixture.batch().0).collect();
        served.sort();
        assert_eq!(served, ["a", "b", "c"]);
    }
    assert!(fixture.sent().is_none());
}

#[test]
fn no_more_is_sent_than_the_credit_and_the_rest_is_wanted() {
    let (mut fixture, readers) = Fixture::watching(&["a"]);
    fixture.fill("a", readers[0], 30, 10_000);
    let sent = fixture.batch().1;
    assert!((50_000..=BASE_CREDIT_BYTES).contains(&sent), "{sent}");
    let wanted = fixture.wanted().expect("more waits");
    assert!(wanted as usize > 30 * 10_000 - sent, "{wanted}");
    assert_eq!(fixture.wanted(), None, "it is said once");
    fixture.ack("a", 1);
    fixture.credit(sent);
    assert!(fixture.batch().1 <= BASE_CREDIT_BYTES, "it goes on with its own credit");
}

#[test]
fn an_account_holds_a_quarter_of_the_credit() {
    let (mut fixture, readers) = Fixture::watching(&["a", "b"]);
    fixture.credit(448 * 1024);
    fixture.fill("a", readers[0], 60, 10_000);
    let mut held = 0;
    while let Some(cache_up::Frame::Batch(batch)) = fixture.sent() {
        held += batch.encoded_len();
    }
    assert!((100_000..=128 * 1024).contains(&held), "{held}");
    fixture.event("b", readers[1], upsert("x", 11));
    assert_eq!(fixture.batch().0, "b");
}

#[test]
fn one_event_larger_than_a_quarter_is_sent() {
    let (mut fixture, readers) = Fixture::watching(&["a"]);
    fixture.fill("a", readers[0], 1, 500_000);
    let wanted = fixture.wanted().expect("it exceeds the credit") as usize;
    assert!(wanted >= 500_000 - BASE_CREDIT_BYTES, "{wanted}");
    fixture.credit(500_000);
    assert!(fixture.batch().1 > 500_000);
}

#[test]
fn lent_credit_is_left_for_the_event_that_waits_for_it() {
    let (mut fixture, readers) = Fixture::watching(&["a", "b"]);
    fixture.fill("a", readers[0], 1, 500_000);
    fixture.fill("b", readers[1], 40, 10_000);
    let mut sent = 0;
    while let Some(frame) = fixture.sent() {
        if let cache_up::Frame::Batch(batch) = frame {
            assert_eq!(batch.fence.as_ref().map(|fence| &*fence.account_uid), Some("b"));
            sent += batch.encoded_len();
        }
    }
    assert!(sent <= BASE_CREDIT_BYTES);
    fixture.credit(480_000);
    fixture.credit(30_000);
    assert_eq!(fixture.batch().0, "a");
}

#[test]
fn no_more_bytes_are_in_flight_than_the_bound_whatever_the_hub_grants() {
    let now = Instant::now();
    let mut credit = SenderCredit::new(now);
    let mut sent = 0;
    for _ in 0..100 {
        credit.granted(usize::MAX, now);
        let bytes = credit.available().min(100_000);
        credit.spend(bytes, now);
        sent += bytes;
    }
    assert_eq!((sent, credit.available()), (MAX_IN_FLIGHT_BYTES, 0));
    credit.settle(1_000, now);
    assert_eq!(credit.available(), 1_000);
}

#[test]
fn credit_that_comes_before_its_rewind_is_not_lost() {
    let now = Instant::now();
    let mut credit = SenderCredit::new(now);
    credit.granted(MAX_IN_FLIGHT_BYTES, now);
    credit.spend(MAX_IN_FLIGHT_BYTES, now);
    credit.granted(BASE_CREDIT_BYTES, now);
    assert_eq!(credit.available(), 0);
    credit.settle(MAX_IN_FLIGHT_BYTES, now);
    assert_eq!(credit.available(), BASE_CREDIT_BYTES);
}

impl Fixture {
    /// Reads this many deletes of an account, 256 at a time, and sends what may be sent. Returns the number of events
    /// that were.
    fn send_deletes(&mut self, uid: &str, reader: ReaderId, deletes: usize) -> usize {
        let mut sent = 0;
        for version in 1..=u64::try_from(deletes).expect("a small number") {
            self.event(uid, reader, delete(&format!("object-{version}"), 10 + version));
            if !version.is_multiple_of(256) {
                continue;
            }
            while let Some(frame) = self.sent() {
                let cache_up::Frame::Batch(batch) = frame else { unreachable!("no credit is wanted") };
                sent += batch.events.len();
            }
        }
        sent
    }
}

#[test]
fn no_more_events_are_in_flight_than_the_hub_takes_and_an_account_has_a_quarter() {
    let (mut fixture, readers) = Fixture::watching(&["a", "b", "c", "d", "e"]);
    fixture.credit(MAX_LENT_BYTES);
    let one_more = MAX_ACCOUNT_UNCOMMITTED_EVENTS + MAX_BATCH_EVENTS;
    let mut sent = 0;
    for (uid, reader) in ["a", "b", "c", "d"].into_iter().zip(&readers) {
        assert_eq!(fixture.send_deletes(uid, *reader, one_more), MAX_ACCOUNT_UNCOMMITTED_EVENTS, "{uid}");
        sent += MAX_ACCOUNT_UNCOMMITTED_EVENTS;
    }
    assert_eq!(sent, MAX_UNCOMMITTED_EVENTS);
    fixture.event("e", readers[4], delete("x", 11));
    assert!(fixture.sent().is_none(), "it waits for a commit, and asks for no credit");
    fixture.ack("a", 1);
    assert_eq!(fixture.batch().0, "e");
}

#[test]
fn events_of_an_account_that_ends_and_of_a_stream_that_ended_make_room() {
    let (mut fixture, readers) = Fixture::watching(&["a", "b", "c", "d", "e"]);
    fixture.credit(MAX_LENT_BYTES);
    for (uid, reader) in ["a", "b", "c", "d"].into_iter().zip(&readers) {
        fixture.send_deletes(uid, *reader, MAX_ACCOUNT_UNCOMMITTED_EVENTS);
    }
    fixture.event("e", readers[4], delete("x", 11));
    assert!(fixture.sent().is_none());
    fixture.stream.unassign(&fence("a", 1), fixture.now);
    assert!(matches!(fixture.sent(), Some(cache_up::Frame::End(_))));
    assert_eq!(fixture.batch().0, "e");
    fixture.event("e", readers[4], delete("y", 12));
    assert_eq!(fixture.batch().0, "e", "there is room for all that it may have");

    fixture.stream.ended(fixture.number, fixture.now);
    let StreamAction::Wait(Some(until)) = fixture.stream.poll(fixture.now) else { unreachable!("it waits") };
    fixture.now = until;
    fixture.open();
    let mut resumed = 0;
    while let Some(frame) = fixture.sent() {
        if let cache_up::Frame::Begin(begin) = frame {
            let here = begin.fence.expect("it names its account");
            fixture.hear(cache_down::Frame::Resume(resume(&here, 0, vec![checkpoint(1, "10")])));
            resumed += 1;
        }
    }
    assert_eq!(resumed, 4);
    fixture.credit(MAX_LENT_BYTES);
    let mut sent = 0;
    while let Some(frame) = fixture.sent() {
        if let cache_up::Frame::Batch(batch) = frame {
            sent += batch.events.len();
        }
    }
    assert!(sent > 2 * MAX_ACCOUNT_UNCOMMITTED_EVENTS, "{sent}: all are sent again");
}

#[test]
fn an_account_with_a_checkpoint_alone_is_due_later_and_is_then_sent() {
    let (mut fixture, readers) = Fixture::watching(&["a", "b"]);
    fixture.event("a", readers[0], upsert("x", 11));
    assert_eq!(fixture.batch().0, "a");
    let (delivery, _) = fixture.stream.account("a").expect("it is assigned");
    delivery.bookmark(readers[0], "12".into());
    let pings = |frame: &cache_up::Frame| matches!(frame, cache_up::Frame::Ping(_));
    assert!(fixture.sent().is_none(), "not so soon");
    fixture.now += super::super::queue::CHECKPOINT_INTERVAL;
    let frames: Vec<_> = std::iter::from_fn(|| fixture.sent()).filter(|frame| !pings(frame)).collect();
    let [cache_up::Frame::Batch(batch)] = &frames[..] else { unreachable!("{frames:?}") };
    assert_eq!(batch.checkpoints[0].rv, "12");
}

#[test]
fn unused_credit_is_given_back() {
    let (mut fixture, readers) = Fixture::watching(&["a"]);
    fixture.fill("a", readers[0], 30, 10_000);
    fixture.batch();
    fixture.wanted().expect("more waits");
    fixture.credit(MAX_LENT_BYTES);
    let mut seq = 1;
    while let Some(frame) = fixture.sent() {
        assert!(matches!(frame, cache_up::Frame::Batch(_)), "{frame:?}");
        seq += 1;
        fixture.ack("a", seq);
    }
    let quiet = fixture.now;
    fixture.now = quiet + UNUSED_CREDIT_TIME;
    let wants =
        std::iter::from_fn(|| fixture.sent()).filter(|frame| !matches!(frame, cache_up::Frame::Ping(_)));
    assert_eq!(wants.collect::<Vec<_>>(), [cache_up::Frame::Want(Want { bytes: 0 })]);
}

#[test]
fn an_ended_account_says_so_and_numbers_go_on() {
    let (mut fixture, readers) = Fixture::watching(&["a"]);
    fixture.event("a", readers[0], upsert("x", 11));
    fixture.batch();
    let commands = fixture.stream.unassign(&fence("a", 1), fixture.now);
    assert!(matches!(commands[0].command, ReaderCommand::StopAll));
    assert!(matches!(fixture.sent(), Some(cache_up::Frame::End(_))));
    fixture.assign("a");
    assert!(matches!(fixture.sent(), Some(cache_up::Frame::Begin(_))));
    fixture.hear(cache_down::Frame::Resume(resume(&fence("a", 1), 0, vec![checkpoint(1, "10")])));
    let (delivery, memory) = fixture.stream.account("a").expect("it is assigned");
    delivery.problem(2, None, memory);
    assert!(fixture.sent().is_none(), "that was the answer to the former Begin");
    fixture.hear(cache_down::Frame::Resume(resume(&fence("a", 1), 0, vec![checkpoint(2, "10")])));
    let Some(cache_up::Frame::Batch(batch)) = fixture.sent() else { unreachable!("a batch") };
    assert_eq!((batch.prev, batch.seq), (0, 2));
}

#[test]
fn a_late_assignment_changes_nothing() {
    let (mut fixture, _) = Fixture::watching(&["a"]);
    assert!(fixture.stream.assign(fence("a", 1), DAY, fixture.now).is_empty());
    assert!(fixture.stream.unassign(&fence("a", 0), fixture.now).is_empty());
    assert!(fixture.sent().is_none());
    assert_eq!(
        fixture.stream.assign(fence("a", 2), DAY, fixture.now).len(),
        1,
        "a greater epoch begins anew"
    );
}

#[test]
fn a_revoked_account_stops_without_a_word() {
    let (mut fixture, _) = Fixture::watching(&["a"]);
    let reason = revoked::Reason::AccountGone;
    let frame = Revoked { fence: Some(fence("a", 1)), reason: reason.into() };
    let outcome = fixture.hear(cache_down::Frame::Revoked(frame));
    assert_eq!(outcome.revoked, Some((fence("a", 1), reason)));
    assert!(matches!(outcome.commands[0].command, ReaderCommand::StopAll));
    assert!(fixture.sent().is_none() && fixture.stream.account("a").is_none());
}

#[test]
fn frames_of_another_fence_or_stream_are_ignored() {
    let (mut fixture, readers) = Fixture::watching(&["a"]);
    fixture.event("a", readers[0], upsert("x", 11));
    fixture.batch();
    let late = Ack { fence: Some(fence("a", 2)), seq: 1 };
    let other = Ack { fence: Some(fence("z", 1)), seq: 1 };
    for ack in [late, other] {
        assert!(!fixture.hear(cache_down::Frame::Ack(ack)).is_unknown);
    }
    let former = CacheDown { frame: Some(cache_down::Frame::Closed(Closed::default())) };
    fixture.stream.frame(fixture.number - 1, former, fixture.now);
    let (delivery, _) = fixture.stream.account("a").expect("it is assigned");
    assert!(delivery.in_flight_bytes() > 0);
    assert!(fixture.stream.frame(fixture.number, CacheDown { frame: None }, fixture.now).is_unknown);
    assert!(fixture.hear(cache_down::Frame::Ack(Ack { fence: None, seq: 1 })).is_unknown);
}

#[test]
fn a_closed_stream_is_opened_again_and_readers_go_on() {
    let (mut fixture, readers) = Fixture::watching(&["a"]);
    fixture.event("a", readers[0], upsert("x", 11));
    fixture.batch();
    let retry_after_ms = 5_000;
    let frame =
        Closed { reason: closed::Reason::WrongReplica.into(), message: "elsewhere".into(), retry_after_ms };
    assert!(fixture.hear(cache_down::Frame::Closed(frame)).closed.is_some());
    fixture.event("a", readers[0], upsert("y", 12));
    let StreamAction::Wait(Some(until)) = fixture.stream.poll(fixture.now) else { unreachable!("it waits") };
    assert_eq!(until, fixture.now + Duration::from_secs(5));
    fixture.now = until;
    fixture.open();
    assert!(matches!(fixture.sent(), Some(cache_up::Frame::Begin(_))));
    let outcome =
        fixture.hear(cache_down::Frame::Resume(resume(&fence("a", 1), 0, vec![checkpoint(1, "10")])));
    assert!(outcome.commands.is_empty());
    for expected in ["x", "y"] {
        let Some(cache_up::Frame::Batch(batch)) = fixture.sent() else { unreachable!("a batch") };
        assert_eq!(batch.events[0].name, expected);
    }
}

#[test]
fn a_session_that_ends_takes_the_stream_with_it() {
    let (mut fixture, _) = Fixture::watching(&["a"]);
    fixture.stream.session_changed(None);
    assert_eq!(fixture.stream.poll(fixture.now), StreamAction::Wait(None));
}
