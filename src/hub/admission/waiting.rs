//! The answer to an agent that cannot be admitted now: when to dial again.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::account::{GrantPhase, State, names};
use crate::hub::Hub;
use crate::hub::admission::drain::{Drain, RedialTime};
use crate::hub::admission::hello::{AcceptedHello, HelloRefusal};
use crate::hub::admission::queue::{AdmissionClass, AdmissionDecision, UNAPPROVED_RETRY_DELAY};
use crate::wire::ops::refused::Reason;

/// What a stranger is told while there are as many as may be.
fn too_many_unapproved() -> HelloRefusal {
    let message =
        "many agents that were never approved are connected or waiting; approve this one, or try again later";
    HelloRefusal::for_now(Reason::Overloaded, message, UNAPPROVED_RETRY_DELAY)
}

/// Minimum delay given to an agent that is refused by a draining replica.
const MIN_DRAIN_RETRY_DELAY: Duration = Duration::from_secs(1);

/// Maximum number of a zone's accounts checked for one that an agent needs.
const MAX_ACCOUNTS_CHECKED: usize = 1000;

/// An agent that waits here to be registered, for as long as this lives.
pub(in crate::hub) struct QueuedAgent<'h> {
    hub: &'h Hub,
    class: AdmissionClass,
}

impl QueuedAgent<'_> {
    /// What was known of it when it came.
    pub(in crate::hub) fn class(&self) -> AdmissionClass {
        self.class
    }
}

impl Drop for QueuedAgent<'_> {
    fn drop(&mut self) {
        self.hub.admission_queues.lock().leave(self.class);
        self.hub.publish_backlog();
    }
}

impl Hub {
    /// What is known of an agent that says hello.
    pub(in crate::hub) fn admission_class(&self, greeting: &AcceptedHello) -> AdmissionClass {
        let name = names::agent_object_name(&greeting.agent_id, &greeting.zone);
        match self.agent_index.get(&name) {
            Some(agent) if agent.was_approved() => AdmissionClass::Returning,
            None if self.settings.approves_new => AdmissionClass::Newcomer,
            _ => AdmissionClass::Unapproved,
        }
    }

    /// Lets an agent wait for its registration, or tells it when to come again.
    pub(in crate::hub) fn enqueue(
        &self,
        greeting: &AcceptedHello,
        class: AdmissionClass,
    ) -> Result<QueuedAgent<'_>, HelloRefusal> {
        let agent_id = &greeting.agent_id;
        let name = names::agent_object_name(agent_id, &greeting.zone);
        if class == AdmissionClass::Unapproved
            && !self.unapproved_agents.lock().admit(&name, &self.agent_index, self.moment())
        {
            return Err(too_many_unapproved());
        }
        let turn = self.admission_queues.lock().arrive(class, agent_id, self.moment());
        self.publish_backlog();
        match turn {
            AdmissionDecision::Now => Ok(QueuedAgent { hub: self, class }),
            AdmissionDecision::TooManyUnapproved => Err(too_many_unapproved()),
            AdmissionDecision::Later(wait) => {
                let message =
                    "many agents are being registered; the time to come again is this agent's own place";
                Err(HelloRefusal::for_now(Reason::Overloaded, message, wait))
            }
        }
    }

    /// A registration that did not succeed: when the agent has its turn again.
    pub(in crate::hub) fn requeue(&self, agent_id: &str, class: AdmissionClass) -> Duration {
        let wait = self.admission_queues.lock().again(class, agent_id, self.moment());
        self.publish_backlog();
        wait
    }

    /// Whether an agent's zone has an account that it does not hold.
    pub(in crate::hub) fn needs_accounts_of_zone(&self, greeting: &AcceptedHello) -> bool {
        let of_zone = self.zone_index.lock().of_zone(&greeting.zone);
        let held: HashSet<_> = greeting.held.iter().map(|(uid, _, epoch)| (uid.as_str(), *epoch)).collect();
        of_zone.iter().take(MAX_ACCOUNTS_CHECKED).any(|uid| {
            self.accounts.by_uid(uid).is_some_and(|account| {
                let status = account.status_or_default();
                let granted = status.phase() == GrantPhase::Open
                    && status.granted_zone() == Some(greeting.zone.as_str())
                    && status.state() != State::Failed;
                granted && !held.contains(&(uid.as_str(), status.epoch))
            })
        })
    }

    /// Tells those who ask how many wait.
    pub(in crate::hub) fn publish_backlog(&self) {
        let waiting = self.admission_queues.lock().backlog();
        self.backlog.send_if_modified(|told| std::mem::replace(told, waiting) != waiting);
    }

    /// When the next agent of this hub, which sends them away, dials again, and another replica that is alive.
    pub(in crate::hub) fn next_redial(&self) -> (RedialTime, Option<String>) {
        let others = self.replicas.others();
        let nth = self.drained_agents.fetch_add(1, Ordering::Relaxed);
        let place = self
            .drain
            .lock()
            .get_or_insert_with(|| Drain {
                agents: *self.connected.borrow(),
                registration_qps: self.settings.registration_qps,
                others: others.len(),
                grace: self.settings.orphan_grace,
            })
            .redial_time(nth);
        (place, others.into_iter().next())
    }

    /// Why this hub sends agents away.
    pub(in crate::hub) fn drain_reason(&self) -> &'static str {
        if self.stopping.is_cancelled() {
            "this replica is stopping"
        } else {
            "this replica does not reach its API server"
        }
    }

    /// What an agent is told that comes while this hub sends them away.
    pub(in crate::hub) fn draining_refusal(&self) -> HelloRefusal {
        let (place, other) = self.next_redial();
        let why = self.drain_reason();
        let message = match other {
            Some(other) => format!("{why}; replica {other} is there, connect anew"),
            None => format!("{why}; connect anew"),
        };
        let wait = place.after + place.jitter.mul_f64(fastrand::f64());
        HelloRefusal::for_now(Reason::Draining, message, wait.max(MIN_DRAIN_RETRY_DELAY))
    }
}
