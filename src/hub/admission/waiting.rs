//! Agents that wait to be registered: with an open stream, or until a reserved time.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::Admission;
use super::hello::{AcceptedHello, HelloRefusal};
use super::queue::{AdmissionClass, AdmissionDecision, UNAPPROVED_RETRY_DELAY};
use crate::account::{GrantPhase, State, names};
use crate::wire::ops::refused::Reason;

/// Maximum number of accounts of a zone that are checked for one the agent does not hold.
const MAX_ACCOUNTS_CHECKED: usize = 1000;
/// Interval between sweeps of expired reserved times.
const SWEEP_INTERVAL: Duration = Duration::from_secs(5);

/// Refusal of an unapproved agent while their maximum is reached.
fn too_many_unapproved() -> HelloRefusal {
    let message =
        "many agents that were never approved are connected or waiting; approve this one, or try again later";
    HelloRefusal::for_now(Reason::Overloaded, message, UNAPPROVED_RETRY_DELAY)
}

/// A place in the admission queue; dropping it frees the place.
pub(super) struct QueuedAgent<'a> {
    admission: &'a Admission,
    class: AdmissionClass,
}

impl QueuedAgent<'_> {
    /// Returns the class of the agent at its hello.
    pub(super) fn class(&self) -> AdmissionClass {
        self.class
    }
}

impl Drop for QueuedAgent<'_> {
    fn drop(&mut self) {
        self.admission.queues.lock().leave(self.class);
        self.admission.publish_backlog();
    }
}

impl Admission {
    /// Returns the class of an agent at its hello.
    pub(super) fn class(&self, greeting: &AcceptedHello) -> AdmissionClass {
        let name = names::agent_object_name(&greeting.agent_id, &greeting.zone);
        match self.context.agent_index.get(&name) {
            Some(agent) if agent.was_approved() => AdmissionClass::Returning,
            None if self.context.settings.approves_new => AdmissionClass::Newcomer,
            _ => AdmissionClass::Unapproved,
        }
    }

    /// Puts an agent into the queue, or refuses it with a time to dial again.
    pub(super) fn enqueue(
        &self,
        greeting: &AcceptedHello,
        class: AdmissionClass,
    ) -> Result<QueuedAgent<'_>, HelloRefusal> {
        let agent_id = &greeting.agent_id;
        let name = names::agent_object_name(agent_id, &greeting.zone);
        let (agents, now) = (&self.context.agent_index, self.context.moment());
        if class == AdmissionClass::Unapproved && !self.unapproved_agents.lock().admit(&name, agents, now) {
            return Err(too_many_unapproved());
        }
        let turn = self.queues.lock().arrive(class, agent_id, self.context.moment());
        self.publish_backlog();
        match turn {
            AdmissionDecision::Now => Ok(QueuedAgent { admission: self, class }),
            AdmissionDecision::TooManyUnapproved => Err(too_many_unapproved()),
            AdmissionDecision::Later(wait) => {
                let message =
                    "many agents are being registered; the time to come again is this agent's own place";
                Err(HelloRefusal::for_now(Reason::Overloaded, message, wait))
            }
        }
    }

    /// Puts an agent back whose registration failed. Returns the time until its next turn.
    pub(super) fn requeue(&self, agent_id: &str, class: AdmissionClass) -> Duration {
        let wait = self.queues.lock().again(class, agent_id, self.context.moment());
        self.publish_backlog();
        wait
    }

    /// Whether the agent's zone has a granted account that the agent does not hold.
    pub(super) fn needs_accounts_of_zone(&self, greeting: &AcceptedHello) -> bool {
        let of_zone = self.sessions.zone_index.lock().of_zone(&greeting.zone);
        let held: HashSet<_> = greeting.held.iter().map(|(uid, _, epoch)| (uid.as_str(), *epoch)).collect();
        of_zone.iter().take(MAX_ACCOUNTS_CHECKED).any(|uid| {
            self.context.accounts.by_uid(uid).is_some_and(|account| {
                let status = account.status_or_default();
                let granted = status.phase() == GrantPhase::Open
                    && status.granted_zone() == Some(greeting.zone.as_str())
                    && status.state() != State::Failed;
                granted && !held.contains(&(uid.as_str(), status.epoch))
            })
        })
    }

    /// Removes the reserved time of an agent that is connected to another replica.
    pub(super) fn forget(&self, agent_id: &str) {
        if self.queues.lock().forget(agent_id) {
            self.publish_backlog();
        }
    }

    /// Publishes the number of waiting agents.
    fn publish_backlog(&self) {
        let waiting = self.queues.lock().backlog();
        self.backlog.send_if_modified(|told| std::mem::replace(told, waiting) != waiting);
    }
}

/// Frees the reserved times of agents that did not come, until stopped.
pub(in crate::hub) async fn sweep(admission: Arc<Admission>, stop: CancellationToken) {
    let mut sweep = tokio::time::interval(SWEEP_INTERVAL);
    while stop.run_until_cancelled(sweep.tick()).await.is_some() {
        if admission.queues.lock().sweep(admission.context.moment()) {
            admission.publish_backlog();
        }
    }
}
