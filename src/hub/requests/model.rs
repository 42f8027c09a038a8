//! Model of requests over streams that are lost, with agents that die: the real machine of both ends, the real journal
//! and the hub's real decisions, in random orders. Each write is executed at most once; an answer is the one of its
//! request, and exact as long as the agent's process lives; "not sent" means not executed; and everything ends.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use proptest::prelude::*;
use prost::bytes::Bytes;

use super::outcome::{AttemptFailure, NextStep, after};
use kubesvc_core::requests::credit::{CreditBudget, MAX_CREDIT_OF_AGENT};
use kubesvc_core::requests::journal::{Journal, RecalledWrite, WriteAnswer, WriteOutcome, WriteStart};
use kubesvc_core::requests::streams::{Event, Frame, Received, RequestNumber, RequestStreams};
use kubesvc_core::requests::wire::{AgentEnd, HubEnd, Opening};
use kubesvc_core::wire::common::Failure;
use kubesvc_core::wire::common::failure::Class;
use kubesvc_core::wire::ops::{Head, Open, Recall};

use crate::connected_agents::RequestError;

const AGENTS: usize = 2;
/// Steps in which nothing is lost any more, until everything must have ended.
const MAX_FAIR_ROUNDS: usize = 5000;

type DownFrame = Frame<Opening, ()>;
type UpFrame = Frame<Head, Failure>;

/// One agent, its stream, and the hub's end of it.
struct Agent {
    boot: u64,
    journal: Journal,
    hub: RequestStreams<HubEnd>,
    own: RequestStreams<AgentEnd>,
    down: VecDeque<(RequestNumber, DownFrame)>,
    up: VecDeque<(RequestNumber, UpFrame)>,
    exchanges: BTreeMap<RequestNumber, Exchange>,
    /// Writes that the cluster executes, answered later.
    at_cluster: Vec<String>,
}

/// A request at an agent.
enum Exchange {
    ReadsBody { open: Box<Open>, body: usize },
    AwaitsWrite(String),
    Sends { left: usize },
}

/// A request at the hub.
struct Caller {
    id: String,
    is_write: bool,
    size: usize,
    asked: Vec<usize>,
    state: CallerState,
}

#[derive(Debug)]
enum CallerState {
    New,
    Asks {
        agent: usize,
        boot: u64,
        number: RequestNumber,
        recalls: bool,
        left: usize,
        head: Option<u32>,
        bytes: Vec<u8>,
    },
    /// The stream was lost; the answer is asked for again.
    Recalls {
        agent: usize,
        boot: u64,
    },
    Done(Result<Vec<u8>, RequestError>),
}

struct World {
    agents: Vec<Agent>,
    callers: Vec<Caller>,
    executed: BTreeMap<String, usize>,
    now: Instant,
}

impl Agent {
    fn new() -> Self {
        let budget = || CreditBudget::new(MAX_CREDIT_OF_AGENT, None);
        Self {
            boot: 0,
            journal: Journal::default(),
            hub: RequestStreams::new(budget()),
            own: RequestStreams::new(budget()),
            down: VecDeque::new(),
            up: VecDeque::new(),
            exchanges: BTreeMap::new(),
            at_cluster: Vec::new(),
        }
    }
}

fn failure(class: Class, before_send: bool) -> Failure {
    Failure { class: class.into(), before_send, ..Failure::default() }
}

/// What the cluster answers to a request.
fn answer_to(id: &str, size: usize) -> Vec<u8> {
    id.bytes().cycle().take(size).collect()
}

impl World {
    fn new(requests: &[(bool, usize)]) -> Self {
        let callers = requests.iter().enumerate().map(|(at, (is_write, size))| Caller {
            id: format!("request-{at}."),
            is_write: *is_write,
            size: *size,
            asked: Vec::new(),
            state: CallerState::New,
        });
        Self {
            agents: (0..AGENTS).map(|_| Agent::new()).collect(),
            callers: callers.collect(),
            executed: BTreeMap::new(),
            now: Instant::now(),
        }
    }

    /// A frame goes onto the wire, or arrives.
    fn transmit(&mut self, at: usize, is_down: bool) -> bool {
        let agent = &mut self.agents[at];
        let sent = if is_down {
            agent.hub.next_frame().map(|frame| agent.down.push_back(frame)).is_some()
        } else {
            agent.own.next_frame().map(|frame| agent.up.push_back(frame)).is_some()
        };
        if agent.down.len() + agent.up.len() < 4 && sent {
            return true;
        }
        if is_down {
            let Some((id, frame)) = agent.down.pop_front() else { return sent };
            self.receive_down(at, id, frame);
        } else {
            let Some((id, frame)) = agent.up.pop_front() else { return sent };
            let received = agent.hub.receive(id, frame);
            assert!(
                !matches!(received, Received::Broken(_)),
                "an honest agent keeps to the rules: {received:?}"
            );
        }
        true
    }

    fn receive_down(&mut self, at: usize, id: RequestNumber, frame: DownFrame) {
        let agent = &mut self.agents[at];
        let Frame::Head(opening) = frame else {
            let received = agent.own.receive(id, frame);
            assert!(
                !matches!(received, Received::Broken(_)),
                "an honest hub keeps to the rules: {received:?}"
            );
            return;
        };
        let credit = match &opening {
            Opening::Open(open) => open.credit,
            Opening::Recall(_) => kubesvc_core::requests::credit::INITIAL_CREDIT,
        };
        let Received::Opened(opening) = agent.own.receive_opening(id, opening, credit) else { return };
        match opening {
            Opening::Open(open) if open.write => match agent.journal.begin(&open.request_id, self.now) {
                WriteStart::New => {
                    agent.exchanges.insert(id, Exchange::ReadsBody { open, body: 0 });
                }
                WriteStart::Known => {
                    agent.exchanges.insert(id, Exchange::AwaitsWrite(open.request_id.clone()));
                }
                WriteStart::Full => agent.own.stop(id, failure(Class::Overloaded, true)),
            },
            Opening::Open(open) => {
                agent.exchanges.insert(id, Exchange::ReadsBody { open, body: 0 });
            }
            Opening::Recall(recall) if recall.boot_id == agent.boot.to_string() => {
                agent.exchanges.insert(id, Exchange::AwaitsWrite(recall.request_id));
            }
            Opening::Recall(_) => agent.own.stop(id, failure(Class::OutcomeUnknown, false)),
        }
    }

    /// An agent looks at its requests.
    fn serve(&mut self, at: usize) -> bool {
        let numbers: Vec<_> = self.agents[at].exchanges.keys().copied().collect();
        let mut has_progress = false;
        for number in numbers {
            has_progress |= self.serve_one(at, number);
        }
        has_progress
    }

    fn serve_one(&mut self, at: usize, number: RequestNumber) -> bool {
        let agent = &mut self.agents[at];
        let event = agent.own.next_event(number);
        let is_over = matches!(event, Some(Event::Stopped(()) | Event::Broken(_)));
        let Some(exchange) = agent.exchanges.get_mut(&number) else { return false };
        match exchange {
            Exchange::ReadsBody { open, .. } if is_over => {
                if open.write {
                    let not_sent: WriteOutcome = Err(failure(Class::NotFound, true));
                    agent.journal.done(&open.request_id, not_sent, self.now);
                }
                agent.exchanges.remove(&number);
                agent.own.close(number, Failure::default());
            }
            _ if is_over => {
                agent.exchanges.remove(&number);
                agent.own.close(number, Failure::default());
            }
            Exchange::ReadsBody { body, .. } if matches!(event, Some(Event::Data(_))) => {
                let Some(Event::Data(bytes)) = event else { return false };
                *body += bytes.len();
            }
            Exchange::ReadsBody { open, body } if matches!(event, Some(Event::End)) => {
                assert_eq!(*body, usize::try_from(open.head_within_ms).expect("small"), "the body is whole");
                let id = open.request_id.clone();
                *self.executed.entry(id.clone()).or_default() += 1;
                if open.write {
                    agent.at_cluster.push(id.clone());
                    *exchange = Exchange::AwaitsWrite(id);
                } else {
                    agent.own.send_head(number, Head { status: 200, headers: Vec::new() });
                    let size = self.callers.iter().find(|caller| caller.id == id).map_or(0, |one| one.size);
                    *exchange = Exchange::Sends { left: size };
                    let body = answer_to(&id, size);
                    agent.own.send(number, Bytes::from(body));
                    agent.own.end(number);
                }
            }
            Exchange::AwaitsWrite(id) => {
                let outcome = match agent.journal.recall(id) {
                    RecalledWrite::Running => return event.is_some(),
                    RecalledWrite::Done(outcome) => (*outcome).clone(),
                    RecalledWrite::Forgotten => Err(failure(Class::OutcomeUnknown, false)),
                    RecalledWrite::Never => Err(failure(Class::NotFound, true)),
                };
                match outcome {
                    Ok(WriteAnswer { head, body }) => {
                        agent.own.send_head(number, head);
                        agent.own.send(number, body.expect("answers are small"));
                        agent.own.end(number);
                        *exchange = Exchange::Sends { left: 0 };
                    }
                    Err(failure) => {
                        agent.own.stop(number, failure);
                        agent.exchanges.remove(&number);
                        agent.own.close(number, Failure::default());
                    }
                }
            }
            Exchange::Sends { .. } if agent.own.is_flushed(number) => {
                agent.exchanges.remove(&number);
                agent.own.close(number, Failure::default());
            }
            Exchange::Sends { left } => {
                *left = 0;
                return event.is_some();
            }
            Exchange::ReadsBody { .. } => return event.is_some(),
        }
        true
    }

    /// A cluster answers a write.
    fn complete(&mut self, at: usize) -> bool {
        let agent = &mut self.agents[at];
        let Some(id) = agent.at_cluster.pop() else { return false };
        let size = self.callers.iter().find(|caller| caller.id == id).map_or(0, |one| one.size);
        let body = Some(answer_to(&id, size).into());
        agent.journal.done(
            &id,
            Ok(WriteAnswer { head: Head { status: 200, headers: Vec::new() }, body }),
            self.now,
        );
        true
    }

    fn lose(&mut self, at: usize) {
        let agent = &mut self.agents[at];
        agent.hub.lost();
        agent.own.lost();
        // The agent's tasks see the end of each request before a new stream has one of its number.
        for _ in 0..64 {
            if !self.serve(at) {
                break;
            }
        }
        self.pump_callers_of(at);
        let agent = &mut self.agents[at];
        let fresh = Agent::new();
        (agent.hub, agent.own) = (fresh.hub, fresh.own);
        agent.down.clear();
        agent.up.clear();
        agent.exchanges.clear();
    }

    fn pump_callers_of(&mut self, at: usize) {
        for index in 0..self.callers.len() {
            while matches!(self.callers[index].state, CallerState::Asks { agent, .. } if agent == at)
                && self.pump(index)
            {}
        }
    }

    fn kill(&mut self, at: usize) {
        self.lose(at);
        let boot = self.agents[at].boot + 1;
        self.agents[at] = Agent { boot, ..Agent::new() };
    }

    /// A caller goes on: opens, sends, reads, or decides.
    fn pump(&mut self, index: usize) -> bool {
        let caller = &mut self.callers[index];
        match &mut caller.state {
            CallerState::Done(_) => false,
            CallerState::New => {
                let next = (0..AGENTS).find(|agent| !caller.asked.contains(agent));
                let Some(at) = next.filter(|_| caller.asked.len() < 2) else {
                    let error = RequestError::NotSent(failure(Class::NotFound, true));
                    caller.state = CallerState::Done(Err(error));
                    return true;
                };
                caller.asked.push(at);
                let agent = &mut self.agents[at];
                let open = Open {
                    request_id: caller.id.clone(),
                    write: caller.is_write,
                    head_within_ms: u32::try_from(caller.size).expect("small"),
                    ..Open::default()
                };
                let number = agent.hub.open(|credit| Opening::Open(Box::new(Open { credit, ..open })));
                let (boot, left) = (agent.boot, caller.size);
                caller.state = CallerState::Asks {
                    agent: at,
                    boot,
                    number,
                    recalls: false,
                    left,
                    head: None,
                    bytes: Vec::new(),
                };
                true
            }
            CallerState::Recalls { agent: at, boot } => {
                let (at, boot) = (*at, *boot);
                let agent = &mut self.agents[at];
                if agent.boot != boot {
                    caller.state = CallerState::Done(Err(RequestError::Unknown("it died".into())));
                    return true;
                }
                let recall = Recall { request_id: caller.id.clone(), boot_id: boot.to_string() };
                let number = agent.hub.open(|_| Opening::Recall(recall));
                agent.hub.end(number);
                caller.state = CallerState::Asks {
                    agent: at,
                    boot,
                    number,
                    recalls: true,
                    left: 0,
                    head: None,
                    bytes: Vec::new(),
                };
                true
            }
            CallerState::Asks { .. } => self.pump_asking(index),
        }
    }

    fn pump_asking(&mut self, index: usize) -> bool {
        let caller = &mut self.callers[index];
        let CallerState::Asks { agent: at, boot, number, recalls, left, head, bytes } = &mut caller.state
        else {
            return false;
        };
        let (number, recalls) = (*number, *recalls);
        let agent = &mut self.agents[*at];
        let mut has_progress = false;
        if !recalls && agent.hub.has_room(number) == Some(true) {
            has_progress = true;
            if *left > 0 {
                let part = (*left).min(50_000);
                *left -= part;
                agent.hub.send(number, vec![b'x'; part].into());
            } else {
                agent.hub.end(number);
            }
        }
        let failed = match agent.hub.next_event(number) {
            None => return has_progress,
            Some(Event::Head(said)) => {
                *head = Some(said.status);
                return true;
            }
            Some(Event::Data(part)) => {
                bytes.extend_from_slice(&part);
                return true;
            }
            Some(Event::End) => {
                let answer = std::mem::take(bytes);
                if caller.is_write {
                    agent.journal.forget([caller.id.as_str()], self.now);
                }
                agent.hub.close(number, ());
                caller.state = CallerState::Done(Ok(answer));
                return true;
            }
            Some(Event::Stopped(failure)) => AttemptFailure::Stopped(failure),
            Some(Event::Broken(why)) => AttemptFailure::Broken(why),
        };
        let (at, boot) = (*at, *boot);
        let has_head = head.is_some();
        agent.hub.close(number, ());
        caller.state = match after(failed.clone(), caller.is_write) {
            _ if has_head && !caller.is_write => CallerState::Done(Err(RequestError::Cut("cut".into()))),
            // The recall is lost, not the write.
            _ if recalls && matches!(failed, AttemptFailure::Broken(_)) => {
                CallerState::Recalls { agent: at, boot }
            }
            NextStep::AskAnother(_) => CallerState::New,
            NextStep::Recall => CallerState::Recalls { agent: at, boot },
            NextStep::GiveUp(error) => CallerState::Done(Err(error)),
        };
        true
    }

    fn step(&mut self, kind: u8, which: usize) {
        let at = which % AGENTS;
        match kind {
            0..=5 => {
                self.transmit(at, true);
            }
            6..=11 => {
                self.transmit(at, false);
            }
            12..=15 => {
                self.serve(at);
            }
            16..=20 => {
                let index = which % self.callers.len();
                self.pump(index);
            }
            21 | 22 => {
                self.complete(at);
            }
            23 | 24 => self.lose(at),
            _ => self.kill(at),
        }
        self.check();
    }

    /// Lets everything end without further losses. Returns whether it does.
    fn finish(&mut self) -> bool {
        for _ in 0..MAX_FAIR_ROUNDS {
            let mut has_progress = false;
            for at in 0..AGENTS {
                has_progress |= self.transmit(at, true) | self.transmit(at, false);
                has_progress |= self.serve(at) | self.complete(at);
            }
            for index in 0..self.callers.len() {
                has_progress |= self.pump(index);
            }
            self.check();
            if !has_progress {
                break;
            }
        }
        self.callers.iter().all(|caller| matches!(caller.state, CallerState::Done(_)))
    }

    fn check(&self) {
        for caller in &self.callers {
            let executed = self.executed.get(&caller.id).copied().unwrap_or_default();
            if caller.is_write {
                assert!(executed <= 1, "{} was executed {executed} times", caller.id);
            }
            match &caller.state {
                CallerState::Done(Ok(answer)) => {
                    assert!(
                        *answer == answer_to(&caller.id, caller.size),
                        "the answer of {} is its own",
                        caller.id
                    );
                    assert!(executed >= 1);
                }
                CallerState::Done(Err(error)) if caller.is_write && error.is_before_send() => {
                    assert_eq!(executed, 0, "{}: {error}", caller.id);
                }
                _ => {}
            }
        }
    }
}

fn requests() -> impl Strategy<Value = Vec<(bool, usize)>> {
    proptest::collection::vec((any::<bool>(), prop_oneof![Just(0), 1_usize..2000, Just(400_000)]), 1..6)
}

proptest! {
    #[test]
    fn writes_are_executed_once_and_everything_ends_whatever_is_lost(
        requests in requests(),
        steps in proptest::collection::vec((0_u8..26, 0_usize..12), 0..400),
    ) {
        let mut world = World::new(&requests);
        for (kind, which) in steps {
            world.step(kind, which);
        }
        prop_assert!(world.finish(), "everything ends");
        for agent in &world.agents {
            prop_assert_eq!(agent.hub.len() + agent.own.len(), 0, "nothing is left behind");
        }
    }

    #[test]
    fn as_long_as_processes_live_every_write_has_its_own_answer(
        requests in requests(),
        steps in proptest::collection::vec((0_u8..25, 0_usize..12), 0..400),
    ) {
        let mut world = World::new(&requests);
        for (kind, which) in steps {
            world.step(kind, which);
        }
        prop_assert!(world.finish(), "everything ends");
        for caller in world.callers.iter().filter(|caller| caller.is_write) {
            let is_exact = match &caller.state {
                CallerState::Done(Ok(_)) => true,
                // Certainly not executed, at either agent.
                CallerState::Done(Err(error)) => error.is_before_send(),
                _ => false,
            };
            prop_assert!(is_exact, "{}: {:?}", caller.id, caller.state);
        }
    }
}
