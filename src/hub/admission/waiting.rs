//! Agents that wait to be registered: here, or away until the time that they are told.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::Admission;
use super::hello::{AcceptedHello, HelloRefusal};
use super::queue::{AdmissionClass, AdmissionDecision, UNAPPROVED_RETRY_DELAY};
use crate::account::{GrantPhase, State, names};
use crate::wire::ops::refused::Reason;

/// Maximum number of a zone's accounts checked for one that an agent needs.
const MAX_ACCOUNTS_CHECKED: usize = 1000;
/// Interval between sweeps of times that agents have not kept to.
const SWEEP_INTERVAL: Duration = Duration::from_secs(5);

/// What a stranger is told while there are as many as may be.
fn too_many_unapproved() -> HelloRefusal {
    let message =
        "many agents that were never approved are connected or waiting; approve this one, or try again later";
    HelloRefusal::for_now(Reason::Overloaded, message, UNAPPROVED_RETRY_DELAY)
}

/// An agent that waits here to be registered, for as long as this lives.
pub(super) struct QueuedAgent<'a> {
    admission: &'a Admission,
    class: AdmissionClass,
}

impl QueuedAgent<'_> {
    /// What was known of it when it came.
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
    /// What is known of an agent that says hello.
    pub(super) fn class(&self, greeting: &AcceptedHello) -> AdmissionClass {
        let name = names::agent_object_name(&greeting.agent_id, &greeting.zone);
        match self.context.agent_index.get(&name) {
            Some(agent) if agent.was_approved() => AdmissionClass::Returning,
            None if self.context.settings.approves_new => AdmissionClass::Newcomer,
            _ => AdmissionClass::Unapproved,
        }
    }

    /// Lets an agent wait for its registration, or tells it when to come again.
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

    /// A registration that did not succeed: when the agent has its turn again.
    pub(super) fn requeue(&self, agent_id: &str, class: AdmissionClass) -> Duration {
        let wait = self.queues.lock().again(class, agent_id, self.context.moment());
        self.publish_backlog();
        wait
    }

    /// Whether an agent's zone has an account that it does not hold.
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

    /// An agent comes no more: another replica has it.
    pub(super) fn forget(&self, agent_id: &str) {
        if self.queues.lock().forget(agent_id) {
            self.publish_backlog();
        }
    }

    /// Tells those who ask how many wait.
    fn publish_backlog(&self) {
        let waiting = self.queues.lock().backlog();
        self.backlog.send_if_modified(|told| std::mem::replace(told, waiting) != waiting);
    }
}

/// Takes back the times of agents that did not come, until stopped.
pub(in crate::hub) async fn sweep(admission: Arc<Admission>, stop: CancellationToken) {
    let mut sweep = tokio::time::interval(SWEEP_INTERVAL);
    while stop.run_until_cancelled(sweep.tick()).await.is_some() {
        if admission.queues.lock().sweep(admission.context.moment()) {
            admission.publish_backlog();
        }
    }
}
