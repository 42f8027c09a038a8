//! From a TCP connection to a session: the port and its bounds, the hello, and when an agent comes that cannot be
//! registered now or whose replica stops.
//!
//! | module | owns |
//! |---|---|
//! | [`listener`], [`transport`], [`streams`] | the port: bounds, deadlines, and an answer to whoever speaks something else |
//! | [`server`] | the gRPC services and the limits of HTTP/2 |
//! | [`hello`] | which agents may stay; pure |
//! | [`handshake`] | an opened stream until its session stands, and its end |
//! | [`foreign_claims`] | how much of what an agent claims to hold is taken in |
//! | [`queue`], [`waiting`], [`unapproved_agents`] | agents that wait to be registered, here or away until their time |
//! | [`drain`], [`draining`] | when agents dial again whose replica stops, or alone does not reach the API server |
//! | [`agent_watch`] | approvals, and streams of an agent that came after the one here |

pub(super) mod agent_watch;
pub(super) mod drain;
pub(super) mod draining;
pub(super) mod foreign_claims;
pub(super) mod handshake;
pub(super) mod hello;
pub(super) mod listener;
pub(super) mod queue;
pub(super) mod server;
pub(super) mod streams;
pub(super) mod transport;
mod unapproved_agents;
pub(super) mod waiting;

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{Semaphore, watch};

use crate::hub::agent_status::AgentStatus;
use crate::hub::context::HubContext;
use crate::hub::sessions::Sessions;
use draining::Draining;
use queue::AdmissionQueues;
use unapproved_agents::UnapprovedAgents;

/// Agents that come: who may stay, who waits, and who is sent away.
pub(super) struct Admission {
    context: Arc<HubContext>,
    sessions: Arc<Sessions>,
    agent_status: Arc<AgentStatus>,
    /// Agents that wait to be registered, here or away until their time.
    queues: Mutex<AdmissionQueues>,
    /// How many these are.
    backlog: watch::Sender<usize>,
    /// Agents that were never approved.
    unapproved_agents: Mutex<UnapprovedAgents>,
    /// Room for accounts that agents claim and that are none of their zones.
    pub(super) foreign_claims: Arc<Semaphore>,
    pub(super) draining: Arc<Draining>,
}

impl Admission {
    pub(super) fn new(
        context: Arc<HubContext>,
        sessions: Arc<Sessions>,
        agent_status: Arc<AgentStatus>,
    ) -> Self {
        Self {
            queues: Mutex::new(AdmissionQueues::new(context.settings.registration_qps)),
            backlog: watch::Sender::new(0),
            unapproved_agents: Mutex::default(),
            foreign_claims: Arc::new(Semaphore::new(foreign_claims::MAX_FOREIGN_OF_REPLICA)),
            draining: Arc::new(Draining::new(Arc::clone(&context), Arc::clone(&sessions))),
            context,
            sessions,
            agent_status,
        }
    }

    /// How many agents wait to be registered, those among them that were told a time to come again, as it changes.
    pub(super) fn backlog(&self) -> watch::Receiver<usize> {
        self.backlog.subscribe()
    }
}
