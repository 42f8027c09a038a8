//! Changes that an agent's watch has read since its recorded delivery. Without some rules the agent would send them
//! differently: the delivery reads them again, in the order in which, or as far as, they would be queued without the
//! rule.

use std::time::Instant;

use kubesvc_agent::{AccountSender, QueueMemory, ReaderId};
use kubesvc_core::wire::events::Event;
use kubesvc_core::wire::events::event::Operation;

use super::{Rule, Rules};

#[derive(Clone, Debug)]
pub(super) struct Journal {
    /// The delivery before the changes.
    delivery: AccountSender,
    memory: QueueMemory,
    reader: ReaderId,
    changes: Vec<Event>,
    /// Version of the last change.
    read: String,
}

impl Journal {
    /// Whether the rule needs a journal.
    pub(super) fn serves(left_out: Rules) -> bool {
        matches!(
            left_out,
            Some(Rule::ChangedObjectsMoveToTheEnd | Rule::DeletesAreKept | Rule::ResendsHaveTheSameBytes)
        )
    }

    /// An empty journal of a delivery.
    pub(super) fn new(reader: ReaderId, delivery: AccountSender, memory: QueueMemory) -> Self {
        Self { delivery, memory, reader, changes: Vec::new(), read: String::new() }
    }

    /// Adds a change as it is queued without the rule.
    pub(super) fn push(&mut self, change: Event, left_out: Rules) {
        self.read.clone_from(&change.rv);
        let known = self.changes.iter().position(|known| known.name == change.name);
        match (left_out, known) {
            (Some(Rule::ChangedObjectsMoveToTheEnd), Some(known)) => self.changes[known] = change,
            (Some(Rule::DeletesAreKept), Some(known)) if change.op() == Operation::Delete => {
                self.changes.remove(known);
            }
            _ => self.changes.push(change),
        }
    }

    /// The delivery after the changes.
    pub(super) fn replay(&self, now: Instant) -> (AccountSender, QueueMemory) {
        let (mut delivery, mut memory) = (self.delivery.clone(), self.memory.clone());
        for change in &self.changes {
            delivery.event(self.reader, change.clone(), now, &mut memory).expect("there is room");
        }
        delivery.bookmark(self.reader, self.read.clone());
        (delivery, memory)
    }
}
