//! From a TCP connection to a session: the port and its bounds, the hello, the admission queue, and draining.
//!
//! | module | owns |
//! |---|---|
//! | [`listener`], [`transport`], [`streams`] | the port: bounds, deadlines, detection of other protocols |
//! | [`server`] | the gRPC services and the HTTP/2 limits |
//! | [`hello`] | validation of the first frame; pure |
//! | [`handshake`] | a stream from its Hello until the session is connected, and the end of the session |
//! | [`foreign_claims`] | bounds on accounts of other zones that an agent claims to hold |
//! | [`queue`], [`waiting`], [`unapproved_agents`] | agents that wait to be registered, here or until a reserved time |
//! | [`drain`], [`draining`] | redial times of agents when the replica stops or is isolated from the API server |
//! | [`agent_watch`] | changes of KubesvcAgents: approvals, and sessions at other replicas |

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

/// Admission of agents: classes, queues and draining.
pub(super) struct Admission {
    context: Arc<HubContext>,
    sessions: Arc<Sessions>,
    agent_status: Arc<AgentStatus>,
    /// Agents that wait to be registered, here or until a reserved time.
    queues: Mutex<AdmissionQueues>,
    /// Number of returning agents among them.
    backlog: watch::Sender<usize>,
    /// Bound on the objects of agents that were never approved.
    unapproved_agents: Mutex<UnapprovedAgents>,
    /// Permits for claimed accounts of other zones, shared by all sessions.
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

    /// Watches the number of returning agents that wait to be registered.
    pub(super) fn backlog(&self) -> watch::Receiver<usize> {
        self.backlog.subscribe()
    }
}
