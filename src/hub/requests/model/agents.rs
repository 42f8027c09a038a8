//! What agents and their clusters do in the model: frames, requests that are served, losses and deaths.

use prost::bytes::Bytes;

use super::{Agent, DownFrame, Exchange, World, answer_to, failure};
use kubesvc_core::requests::credit::INITIAL_CREDIT;
use kubesvc_core::requests::journal::{RecalledWrite, WriteAnswer, WriteOutcome, WriteStart};
use kubesvc_core::requests::streams::{Event, Frame, Received, RequestNumber};
use kubesvc_core::requests::wire::Opening;
use kubesvc_core::wire::common::Failure;
use kubesvc_core::wire::common::failure::Class;
use kubesvc_core::wire::ops::Head;

impl World {
    /// A frame goes onto the wire, or arrives.
    pub(super) fn transmit(&mut self, at: usize, is_down: bool) -> bool {
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
            Opening::Recall(_) => INITIAL_CREDIT,
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
    pub(super) fn serve(&mut self, at: usize) -> bool {
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
    pub(super) fn complete(&mut self, at: usize) -> bool {
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

    pub(super) fn lose(&mut self, at: usize) {
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

    pub(super) fn kill(&mut self, at: usize) {
        self.lose(at);
        let boot = self.agents[at].boot + 1;
        self.agents[at] = Agent { boot, ..Agent::new() };
    }
}
