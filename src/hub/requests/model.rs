//! Model of requests over streams that are lost, with agents that die: the real machine of both ends, the real journal
//! and the hub's real decisions, in random orders. Each write is executed at most once; an answer is the one of its
//! request, and exact as long as the agent's process lives; "not sent" means not executed; and everything ends.

mod agents;
mod callers;

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use proptest::prelude::*;

use crate::connected_agents::RequestError;
use kubesvc_core::requests::credit::{CreditBudget, MAX_CREDIT_OF_AGENT};
use kubesvc_core::requests::journal::Journal;
use kubesvc_core::requests::streams::{Frame, RequestNumber, RequestStreams};
use kubesvc_core::requests::wire::{AgentEnd, HubEnd, Opening};
use kubesvc_core::wire::common::Failure;
use kubesvc_core::wire::common::failure::Class;
use kubesvc_core::wire::ops::{Head, Open};

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
