//! What callers do in the model, by the hub's real decisions: open, send, read, recall, give up.

use super::{AGENTS, CallerState, World};
use crate::connected_agents::{AnsweringAgent, Repetition, RequestError, RequestErrorKind, Retry, Suspects};
use crate::hub::requests::outcome;
use kubesvc_core::requests::streams::Event;
use kubesvc_core::requests::wire::Opening;
use kubesvc_core::wire::ops::{Open, Recall};

impl World {
    pub(super) fn pump_callers_of(&mut self, at: usize) {
        for index in 0..self.callers.len() {
            while matches!(self.callers[index].state, CallerState::Asks { agent, .. } if agent == at)
                && self.pump(index)
            {}
        }
    }

    /// A caller goes on: opens, sends, reads, or decides.
    pub(super) fn pump(&mut self, index: usize) -> bool {
        let caller = &mut self.callers[index];
        match &mut caller.state {
            CallerState::Done(_) => false,
            CallerState::New => {
                let next = (0..AGENTS).find(|agent| !caller.asked.contains(agent));
                let Some(at) = next.filter(|_| caller.asked.len() < 2) else {
                    let error = RequestError::new(RequestErrorKind::NotSent, "no agent is left");
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
                    caller.state = CallerState::Done(Err(RequestError::unknown("it died")));
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
        let repetition = if caller.is_write { Repetition::Recalled } else { Repetition::Any };
        let process = AnsweringAgent { agent_id: "agent".into(), boot_id: "boot".into() };
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
            Some(Event::Stopped(failure)) => outcome::stopped(failure, repetition),
            // The recall is lost, not the write.
            Some(Event::Broken(_)) if recalls => RequestError::recallable(Suspects::certain(process)),
            Some(Event::Broken(why)) => outcome::broken(why, repetition, process),
        };
        let (at, boot) = (*at, *boot);
        let has_head = head.is_some();
        agent.hub.close(number, ());
        caller.state = match failed.retry {
            _ if has_head && !caller.is_write => CallerState::Done(Err(RequestError::cut("cut"))),
            Retry::Elsewhere | Retry::Later => CallerState::New,
            Retry::Recall(_) => CallerState::Recalls { agent: at, boot },
            Retry::Never => CallerState::Done(Err(failed)),
        };
        true
    }
}
