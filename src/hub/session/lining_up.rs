//! What an agent is told that cannot be taken now: when it has its turn.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::account::{GrantPhase, State, names};
use crate::hub::Hub;
use crate::hub::drain::{Leaving, Place};
use crate::hub::hello::{Greeting, Refusal};
use crate::hub::line::{STRANGERS_RETRY, Standing, Turn};
use crate::wire::ops::refused::Reason;

/// What a stranger is told while there are as many as may be.
fn crowd_of_strangers() -> Refusal {
    let message =
        "many agents that were never approved are connected or waiting; approve this one, or try again later";
    Refusal::for_now(Reason::Overloaded, message, STRANGERS_RETRY)
}

/// An agent that is refused because the replica stops does not come sooner.
const SHORTEST: Duration = Duration::from_secs(1);

/// So many accounts of a zone tell whether an agent needs any.
const LOOKED_AT: usize = 1000;

/// An agent that waits here to be registered, for as long as this lives.
pub(super) struct InLine<'h> {
    hub: &'h Hub,
    standing: Standing,
}

impl InLine<'_> {
    /// What was known of it when it came.
    pub(super) fn standing(&self) -> Standing {
        self.standing
    }
}

impl Drop for InLine<'_> {
    fn drop(&mut self) {
        self.hub.line.lock().leave(self.standing);
        self.hub.tell_backlog();
    }
}

impl Hub {
    /// What is known of an agent that says hello.
    pub(super) fn standing_of(&self, greeting: &Greeting) -> Standing {
        let name = names::agent_object_name(&greeting.agent_id, &greeting.zone);
        match self.agents_seen.get(&name) {
            Some(agent) if agent.was_approved() => Standing::Known,
            None if self.settings.approves_new => Standing::Newcomer,
            _ => Standing::Stranger,
        }
    }

    /// Lets an agent wait for its registration, or tells it when to come again.
    pub(super) fn line_up(&self, greeting: &Greeting, standing: Standing) -> Result<InLine<'_>, Refusal> {
        let agent_id = &greeting.agent_id;
        let name = names::agent_object_name(agent_id, &greeting.zone);
        if standing == Standing::Stranger
            && !self.strangers.lock().admit(&name, &self.agents_seen, self.moment())
        {
            return Err(crowd_of_strangers());
        }
        let turn = self.line.lock().arrive(standing, agent_id, self.moment());
        self.tell_backlog();
        match turn {
            Turn::Now => Ok(InLine { hub: self, standing }),
            Turn::Full => Err(crowd_of_strangers()),
            Turn::Later(wait) => {
                let message =
                    "many agents are being registered; the time to come again is this agent's own place";
                Err(Refusal::for_now(Reason::Overloaded, message, wait))
            }
        }
    }

    /// A registration that did not succeed: when the agent has its turn again.
    pub(super) fn line_up_again(&self, agent_id: &str, standing: Standing) -> Duration {
        let wait = self.line.lock().again(standing, agent_id, self.moment());
        self.tell_backlog();
        wait
    }

    /// Whether an agent's zone has an account that it does not hold.
    pub(super) fn needs_accounts(&self, greeting: &Greeting) -> bool {
        let of_zone = self.places.lock().of_zone(&greeting.zone);
        let held: HashSet<_> = greeting.held.iter().map(|(uid, _, epoch)| (uid.as_str(), *epoch)).collect();
        of_zone.iter().take(LOOKED_AT).any(|uid| {
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
    pub(in crate::hub) fn tell_backlog(&self) {
        let waiting = self.line.lock().backlog();
        self.backlog.send_if_modified(|told| std::mem::replace(told, waiting) != waiting);
    }

    /// When the next agent of this hub, which sends them away, dials again, and another replica that is alive.
    pub(super) fn next_to_leave(&self) -> (Place, Option<String>) {
        let others = self.replicas.others();
        let nth = self.told_to_leave.fetch_add(1, Ordering::Relaxed);
        let place = self
            .leaving
            .lock()
            .get_or_insert_with(|| Leaving {
                agents: *self.standing.borrow(),
                registration_qps: self.settings.registration_qps,
                others: others.len(),
                grace: self.settings.orphan_grace,
            })
            .place(nth);
        (place, others.into_iter().next())
    }

    /// Why this hub sends agents away.
    pub(super) fn why_away(&self) -> &'static str {
        if self.stopping.is_cancelled() {
            "this replica is stopping"
        } else {
            "this replica does not reach its API server"
        }
    }

    /// What an agent is told that comes while this hub sends them away.
    pub(super) fn stops(&self) -> Refusal {
        let (place, other) = self.next_to_leave();
        let why = self.why_away();
        let message = match other {
            Some(other) => format!("{why}; replica {other} is there, connect anew"),
            None => format!("{why}; connect anew"),
        };
        let wait = place.after + place.jitter.mul_f64(fastrand::f64());
        Refusal::for_now(Reason::Draining, message, wait.max(SHORTEST))
    }
}
