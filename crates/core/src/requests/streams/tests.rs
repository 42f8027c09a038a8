//! Both ends of a stream against each other, with whatever order of steps and of delivery.

use std::collections::{BTreeMap, VecDeque};

use proptest::prelude::*;

use super::*;
use crate::requests::credit::MAX_CREDIT_OF_AGENT;

/// What opens a request without telling the credit of its answer.
const RECALL: &str = "recall";

struct Hub;
struct Agent;

impl End for Hub {
    type Says = (&'static str, u32);
    type Stops = &'static str;
    type Hears = u16;
    type IsStopped = &'static str;
    fn stop(why: &'static str) -> &'static str {
        why
    }
    fn account_said(head: &Self::Says) -> &str {
        account_of(head.0)
    }
    fn tells_credit(head: &Self::Says) -> bool {
        head.0 != RECALL
    }
}

impl End for Agent {
    type Says = u16;
    type Stops = &'static str;
    type Hears = (&'static str, u32);
    type IsStopped = &'static str;
    fn stop(why: &'static str) -> &'static str {
        why
    }
    fn account_heard(head: &Self::Hears) -> &str {
        account_of(head.0)
    }
}

/// `account/what` names an account.
fn account_of(head: &'static str) -> &'static str {
    head.split_once('/').map_or("", |(account, _)| account)
}

fn hub() -> RequestStreams<Hub> {
    RequestStreams::new(CreditBudget::new(MAX_CREDIT_OF_AGENT, None))
}

fn agent() -> RequestStreams<Agent> {
    RequestStreams::new(CreditBudget::new(MAX_CREDIT_OF_AGENT, None))
}

/// Delivers everything that either side has to send.
fn settle(hub: &mut RequestStreams<Hub>, agent: &mut RequestStreams<Agent>) {
    loop {
        let down = hub.next_frame();
        let is_down = down.is_some();
        if let Some((id, frame)) = down {
            deliver_down(agent, id, frame);
        }
        match agent.next_frame() {
            Some((id, frame)) => {
                hub.receive(id, frame);
            }
            None if !is_down => return,
            None => {}
        }
    }
}

fn deliver_down(agent: &mut RequestStreams<Agent>, id: u64, frame: Frame<(&'static str, u32), &'static str>) {
    match frame {
        Frame::Head(head) => {
            let credit = if head.0 == RECALL { INITIAL_CREDIT } else { head.1 };
            let _ = agent.receive_opening(id, head, credit);
        }
        other => drop(agent.receive(id, other)),
    }
}

fn bytes(many: usize) -> Bytes {
    Bytes::from(vec![7; many])
}

#[test]
fn a_complete_answer_arrives_although_its_request_is_closed_before_the_other_direction_ended() {
    let (mut hub, mut agent) = (hub(), agent());
    let id = hub.open(|credit| (RECALL, credit));
    let (_, head) = hub.next_frame().expect("the head");
    deliver_down(&mut agent, id, head);
    assert!(agent.send_head(id, 200));
    agent.send(id, Bytes::from_static(b"kept"));
    agent.end(id);
    let (_, frame) = agent.next_frame().expect("the head");
    hub.receive(id, frame);
    let (_, frame) = agent.next_frame().expect("the data");
    hub.receive(id, frame);
    agent.close(id, "given up");
    settle(&mut hub, &mut agent);
    let events: Vec<_> = std::iter::from_fn(|| hub.next_event(id)).take(3).collect();
    assert_eq!(events, [Event::Head(200), Event::Data(Bytes::from_static(b"kept")), Event::End]);
}

#[test]
fn a_request_goes_there_and_its_answer_comes_back() {
    let (mut hub, mut agent) = (hub(), agent());
    let id = hub.open(|credit| ("GET", credit));
    hub.send(id, bytes(100_000));
    hub.end(id);
    settle(&mut hub, &mut agent);
    let mut body = 0;
    loop {
        match agent.next_event(id).expect("an event") {
            Event::Data(bytes) => body += bytes.len(),
            Event::End => break,
            other => unreachable!("{other:?}"),
        }
    }
    assert_eq!(body, 100_000);
    assert!(agent.send_head(id, 200) && !agent.send_head(id, 200));
    agent.send(id, bytes(5));
    agent.end(id);
    settle(&mut hub, &mut agent);
    assert_eq!(hub.next_event(id), Some(Event::Head(200)));
    assert_eq!(hub.next_event(id), Some(Event::Data(bytes(5))));
    assert_eq!(hub.next_event(id), Some(Event::End));
    assert!(hub.running().is_empty() && agent.running().is_empty());
    hub.close(id, "done");
    agent.close(id, "done");
    assert!(hub.next_frame().is_none() && agent.next_frame().is_none(), "nothing is left to say");
}

/// The accounts whose data leaves one end, frame by frame, if each of these requests has so many frames.
fn order_of<E: End>(
    end: &mut RequestStreams<E>,
    requests: &[(u64, &'static str)],
    frames: usize,
) -> Vec<&'static str> {
    while end.next_frame().is_some() {}
    for (id, _) in requests {
        assert!(end.send(*id, bytes(frames * MAX_DATA_BYTES)));
    }
    let sent = std::iter::from_fn(|| end.next_frame());
    let account = |id| requests.iter().find(|(one, _)| *one == id).map(|(_, account)| *account);
    sent.filter_map(|(id, frame)| matches!(frame, Frame::Data(_)).then(|| account(id))?).collect()
}

#[test]
fn data_of_a_flooded_account_leaves_every_other_account_its_turns_at_both_ends() {
    let (mut hub, mut agent) = (hub(), agent());
    let mut requests: Vec<_> = (0..50).map(|_| (hub.open(|credit| ("flood/GET", credit)), "flood")).collect();
    requests.extend(["a/GET", "z/GET"].map(|head| (hub.open(|credit| (head, credit)), account_of(head))));
    settle(&mut hub, &mut agent);
    for (id, _) in &requests {
        assert!(agent.send_head(*id, 200));
    }
    for order in [order_of(&mut hub, &requests, 2), order_of(&mut agent, &requests, 2)] {
        assert_eq!(order.len(), 2 * requests.len());
        for account in ["a", "z"] {
            let at: Vec<_> = (0..order.len()).filter(|at| order[*at] == account).collect();
            assert!(at[0] < 3 && at[1] < 6, "{account} has every third turn: {at:?}");
        }
    }
}

#[test]
fn a_reader_that_stops_holds_up_no_other_and_frames_without_data_go_first() {
    let (mut hub, mut agent) = (hub(), agent());
    let slow = hub.open(|credit| ("slow", credit));
    let quick = hub.open(|credit| ("quick", credit));
    settle(&mut hub, &mut agent);
    for id in [slow, quick] {
        agent.send_head(id, 200);
        agent.send(id, bytes(2 << 20));
    }
    agent.stop(agent.last_opened + 7, "nobody");
    for _ in 0..2 {
        let (id, frame) = agent.next_frame().expect("a head");
        assert!(matches!(frame, Frame::Head(_)));
        hub.receive(id, frame);
    }
    let (mut read, mut taken) = (0, BTreeMap::<u64, usize>::new());
    for _ in 0..1000 {
        if let Some((id, frame)) = agent.next_frame() {
            if let Frame::Data(bytes) = &frame {
                *taken.entry(id).or_default() += bytes.len();
            }
            hub.receive(id, frame);
        }
        if let Some(Event::Data(bytes)) = hub.next_event(quick) {
            read += bytes.len();
        }
        if let Some((id, frame)) = hub.next_frame() {
            deliver_down(&mut agent, id, frame);
        }
    }
    assert_eq!(read, 2 << 20);
    assert_eq!(taken[&slow], INITIAL_ANSWER_CREDIT as usize, "no more than its credit");
}

#[test]
fn frames_out_of_order_abort_their_request_alone() {
    for frames in [
        vec![Frame::Data(bytes(1))],
        vec![Frame::End],
        vec![Frame::Head(200), Frame::Head(200)],
        vec![Frame::Head(200), Frame::End, Frame::Data(bytes(1))],
        vec![Frame::Head(200), Frame::End, Frame::End],
        vec![Frame::Head(200), Frame::Data(bytes(MAX_DATA_BYTES + 1))],
        vec![Frame::Head(200), Frame::Credit(u32::MAX)],
    ] {
        let (mut hub, mut agent) = (hub(), agent());
        let [bad, good] = [(); 2].map(|()| hub.open(|credit| ("GET", credit)));
        settle(&mut hub, &mut agent);
        let last = frames.into_iter().map(|frame| hub.receive(bad, frame)).last();
        assert!(matches!(last, Some(Received::Broken(_))), "{last:?}");
        let events: Vec<_> = std::iter::from_fn(|| hub.next_event(bad)).collect();
        assert!(matches!(events.last(), Some(Event::Broken(_))), "{events:?}");
        settle(&mut hub, &mut agent);
        assert!(matches!(agent.next_event(bad), Some(Event::Stopped(_))));
        assert_eq!((hub.running(), agent.running()), (vec![good], vec![good]));
        assert_eq!(hub.receive(bad, Frame::Data(bytes(1))), Received::Unknown);
        assert_eq!(hub.dropped(), 1);
    }
}

#[test]
fn what_exceeds_the_credit_aborts() {
    let (mut hub, mut agent) = (hub(), agent());
    let id = hub.open(|credit| ("GET", credit));
    settle(&mut hub, &mut agent);
    hub.receive(id, Frame::Head(200));
    let full = INITIAL_ANSWER_CREDIT as usize / MAX_DATA_BYTES;
    assert!((0..full).all(|_| hub.receive(id, Frame::Data(bytes(MAX_DATA_BYTES))) == Received::Changed));
    assert!(matches!(hub.receive(id, Frame::Data(bytes(1))), Received::Broken(_)));
}

#[test]
fn a_recalled_answer_has_the_credit_that_its_sender_counts_on_whatever_runs() {
    for running in [0, 92, 480, 4096] {
        let (mut hub, mut agent) = (hub(), agent());
        for _ in 0..running {
            hub.open(|credit| ("GET", credit));
        }
        let id = hub.open(|credit| (RECALL, credit));
        settle(&mut hub, &mut agent);
        let (mut left, mut read) = (3 * INITIAL_CREDIT as usize, 0);
        assert!(agent.send_head(id, 200));
        while left > 0 {
            // All that its sender may send arrives before any of it is read.
            agent.send(id, bytes(left.min(INITIAL_CREDIT as usize)));
            left = left.saturating_sub(INITIAL_CREDIT as usize);
            settle(&mut hub, &mut agent);
            while let Some(event) = hub.next_event(id) {
                match event {
                    Event::Head(_) => {}
                    Event::Data(bytes) => read += bytes.len(),
                    other => unreachable!("{running} requests run: {other:?}"),
                }
            }
            settle(&mut hub, &mut agent);
        }
        agent.end(id);
        settle(&mut hub, &mut agent);
        assert_eq!((hub.next_event(id), read), (Some(Event::End), 3 * INITIAL_CREDIT as usize));
    }
}

#[test]
fn requests_that_one_side_lacks_are_aborted_and_those_under_way_are_not() {
    let (mut hub, mut agent) = (hub(), agent());
    let [both, lost_at_agent, lost_at_hub] = [(); 3].map(|()| hub.open(|credit| ("GET", credit)));
    settle(&mut hub, &mut agent);
    agent.requests.remove(&lost_at_agent);
    hub.requests.remove(&lost_at_hub);
    let under_way = hub.open(|credit| ("GET", credit));
    assert!(hub.reconcile(&agent.running(), true).is_empty());
    settle(&mut hub, &mut agent);
    assert!(matches!(agent.next_event(lost_at_hub), Some(Event::Stopped(_))));
    agent.reconcile(&hub.running(), false);
    settle(&mut hub, &mut agent);
    assert!(matches!(hub.next_event(lost_at_agent), Some(Event::Stopped(_))));
    assert_eq!((hub.running(), agent.running()), (vec![both, under_way], vec![both, under_way]));
}

#[test]
fn a_list_with_former_requests_again_and_again_is_answered_once_for_each() {
    let mut hub = hub();
    for _ in 0..2000 {
        let id = hub.open(|credit| ("GET", credit));
        hub.requests.remove(&id);
    }
    while hub.next_frame().is_some() {}
    let theirs: Vec<_> = (1..=2000).chain(1..=2000).chain([1 << 40]).collect();
    for _ in 0..3 {
        hub.reconcile(&theirs, true);
    }
    let stopped =
        std::iter::from_fn(|| hub.next_frame()).filter(|(_, frame)| matches!(frame, Frame::Stop(_)));
    assert_eq!(stopped.count(), 2000);
}

#[test]
fn a_lost_stream_tells_what_was_never_sent() {
    let (mut hub, mut agent) = (hub(), agent());
    let sent = hub.open(|credit| ("POST", credit));
    settle(&mut hub, &mut agent);
    let unsent = hub.open(|credit| ("POST", credit));
    hub.lost();
    assert_eq!(hub.next_event(sent), Some(Event::Broken(LOST)));
    assert_eq!(hub.next_event(unsent), Some(Event::Broken(UNSENT)));
    assert!(hub.next_frame().is_none());
}

#[derive(Clone, Debug)]
enum Step {
    Open,
    HubSends(usize, usize),
    HubEnds(usize),
    HubStops(usize),
    HubReads(usize),
    HubCloses(usize),
    AgentHead(usize),
    AgentSends(usize, usize),
    AgentEnds(usize),
    AgentStops(usize),
    AgentReads(usize),
    Down,
    Up,
    Running,
}

fn step() -> impl Strategy<Value = Step> {
    let id = || 0_usize..4;
    let size = || 0_usize..200_000;
    prop_oneof![
        1 => Just(Step::Open),
        1 => (id(), size()).prop_map(|(id, size)| Step::HubSends(id, size)),
        1 => id().prop_map(Step::HubEnds),
        1 => id().prop_map(Step::HubStops),
        1 => id().prop_map(Step::HubReads),
        1 => id().prop_map(Step::HubCloses),
        1 => id().prop_map(Step::AgentHead),
        1 => (id(), size()).prop_map(|(id, size)| Step::AgentSends(id, size)),
        1 => id().prop_map(Step::AgentEnds),
        1 => id().prop_map(Step::AgentStops),
        1 => id().prop_map(Step::AgentReads),
        4 => Just(Step::Down),
        4 => Just(Step::Up),
        1 => Just(Step::Running),
    ]
}

type Down = (u64, Result<Frame<(&'static str, u32), &'static str>, Vec<u64>>);
type Up = (u64, Result<Frame<u16, &'static str>, Vec<u64>>);

fn take_down(agent: &mut RequestStreams<Agent>, down: Down, broken: &mut bool) {
    match down {
        (id, Ok(Frame::Head(head))) => {
            *broken |= matches!(agent.receive_opening(id, head, head.1), Received::Broken(_));
        }
        (id, Ok(frame)) => *broken |= matches!(agent.receive(id, frame), Received::Broken(_)),
        (_, Err(ids)) => drop(agent.reconcile(&ids, false)),
    }
}

fn take_up(hub: &mut RequestStreams<Hub>, up: Up, broken: &mut bool) {
    match up {
        (id, Ok(frame)) => *broken |= matches!(hub.receive(id, frame), Received::Broken(_)),
        (_, Err(ids)) => drop(hub.reconcile(&ids, true)),
    }
}

proptest! {
    #[test]
    fn two_ends_that_keep_to_the_rules_never_abort_for_order_or_credit_and_agree_in_the_end(
        steps in proptest::collection::vec(step(), 1..300),
    ) {
        let (mut hub, mut agent) = (hub(), agent());
        let (mut down, mut up) = (VecDeque::<Down>::new(), VecDeque::<Up>::new());
        let mut broken = false;
        for step in steps {
            match step {
                Step::Open if hub.len() < 4 => _ = hub.open(|credit| ("GET", credit)),
                Step::Open => {}
                Step::HubSends(id, size) if hub.has_room(id as u64 + 1) == Some(true) => drop(hub.send(id as u64 + 1, bytes(size))),
                Step::HubSends(..) => {}
                Step::HubEnds(id) => hub.end(id as u64 + 1),
                Step::HubStops(id) => hub.stop(id as u64 + 1, "cancelled"),
                Step::HubReads(id) => drop(hub.next_event(id as u64 + 1)),
                Step::HubCloses(id) => hub.close(id as u64 + 1, "gone"),
                Step::AgentHead(id) => drop(agent.send_head(id as u64 + 1, 200)),
                Step::AgentSends(id, size) if agent.has_room(id as u64 + 1) == Some(true) => drop(agent.send(id as u64 + 1, bytes(size))),
                Step::AgentSends(..) => {}
                Step::AgentEnds(id) => agent.end(id as u64 + 1),
                Step::AgentStops(id) => agent.stop(id as u64 + 1, "failed"),
                Step::AgentReads(id) => drop(agent.next_event(id as u64 + 1)),
                Step::Down => {
                    down.extend(hub.next_frame().map(|(id, frame)| (id, Ok(frame))));
                    if let Some(frame) = down.pop_front() { take_down(&mut agent, frame, &mut broken); }
                }
                Step::Up => {
                    up.extend(agent.next_frame().map(|(id, frame)| (id, Ok(frame))));
                    if let Some(frame) = up.pop_front() { take_up(&mut hub, frame, &mut broken); }
                }
                Step::Running => {
                    down.push_back((0, Err(hub.running())));
                    up.push_back((0, Err(agent.running())));
                }
            }
            prop_assert!(!broken);
            prop_assert!(hub.budget.used() <= MAX_CREDIT_OF_AGENT && agent.budget.used() <= MAX_CREDIT_OF_AGENT);
        }
        // Everybody ends and reads everything: both sides agree that nothing runs.
        for _ in 0..2000 {
            for id in 1..=hub.last_opened {
                hub.end(id);
                agent.send_head(id, 200);
                agent.end(id);
                while hub.next_event(id).is_some() {}
                while agent.next_event(id).is_some() {}
            }
            down.extend(hub.next_frame().map(|(id, frame)| (id, Ok(frame))));
            up.extend(agent.next_frame().map(|(id, frame)| (id, Ok(frame))));
            if let Some(frame) = down.pop_front() { take_down(&mut agent, frame, &mut broken); }
            if let Some(frame) = up.pop_front() { take_up(&mut hub, frame, &mut broken); }
        }
        prop_assert!(!broken);
        prop_assert!(hub.running().is_empty(), "{:?}", hub.running());
        prop_assert!(agent.running().is_empty(), "{:?}", agent.running());
    }
}

/// A frame of a peer that keeps to no rule.
fn hostile() -> impl Strategy<Value = (u64, Frame<u16, &'static str>)> {
    let bytes = prop_oneof![0_usize..64, Just(MAX_DATA_BYTES), Just(MAX_DATA_BYTES + 1)];
    let frame = prop_oneof![
        2 => any::<u16>().prop_map(Frame::Head),
        8 => bytes.prop_map(|count| Frame::Data(vec![0; count].into())),
        2 => Just(Frame::End),
        1 => Just(Frame::Stop("so")),
        2 => any::<u32>().prop_map(Frame::Credit),
    ];
    (0_u64..6, frame)
}

proptest! {
    #[test]
    fn whatever_the_other_side_sends_no_more_than_the_credit_is_kept(
        frames in proptest::collection::vec((hostile(), any::<bool>()), 0..400),
    ) {
        let mut hub = hub();
        let mut granted = BTreeMap::new();
        for _ in 0..3 {
            let mut window = 0;
            let id = hub.open(|credit| { window = credit; ("open", credit) });
            granted.insert(id, u64::from(window));
        }
        let mut kept: BTreeMap<u64, u64> = BTreeMap::new();
        let mut over = BTreeSet::new();
        for ((id, frame), is_read) in frames {
            let size = match &frame { Frame::Data(bytes) => bytes.len() as u64, _ => 0 };
            match hub.receive(id, frame) {
                Received::Changed => {
                    prop_assert!(!over.contains(&id), "nothing of a request that is broken is taken");
                    *kept.entry(id).or_default() += size;
                }
                Received::Broken(_) => { over.insert(id); }
                Received::Unknown => {}
                Received::Opened(_) => prop_assert!(false, "only the hub opens"),
            }
            prop_assert!(kept.get(&id).copied().unwrap_or_default() <= granted.get(&id).copied().unwrap_or_default());
            if is_read {
                while hub.next_event(id).is_some() {}
            }
            while let Some((id, frame)) = hub.next_frame() {
                if let Frame::Credit(more) = frame {
                    *granted.entry(id).or_default() += u64::from(more);
                }
            }
        }
        prop_assert_eq!(hub.len(), 3, "no request was made by the other side");
    }

    #[test]
    fn an_agent_takes_requests_from_any_sequence_of_frames_and_forgets_those_that_are_closed(
        frames in proptest::collection::vec((hostile(), 0_u8..4), 0..300),
    ) {
        let mut agent = agent();
        let mut last = 0;
        for ((id, frame), kind) in frames {
            let id = id * u64::from(kind + 1);
            if let Frame::Head(credit) = frame {
                let received = agent.receive_opening(id, ("open", 0), credit.into());
                prop_assert_eq!(matches!(received, Received::Opened(_)), id > last, "ids only grow");
                last = last.max(id);
            } else {
                let frame = match frame {
                    Frame::Data(bytes) => Frame::Data(bytes),
                    Frame::End => Frame::End,
                    Frame::Stop(why) => Frame::Stop(why),
                    Frame::Credit(bytes) => Frame::Credit(bytes),
                    Frame::Head(_) => unreachable!("handled above"),
                };
                agent.receive(id, frame);
            }
            if kind == 3 {
                agent.close(id, "done");
            }
            while agent.next_frame().is_some() {}
        }
        for id in 0..=last {
            agent.close(id, "done");
        }
        prop_assert!(agent.is_empty());
    }
}
