//! From a TCP connection to a session: the port and its bounds, the hello, the admission queue, and draining.
//!
//! | module | owns |
//! |---|---|
//! | [`listener`] | the port: bounds and deadlines of its connections |
//! | `new_connection` | the first steps of a connection: TLS handshake, detection of its protocol |
//! | `protocol` | what a connection speaks, by its first bytes |
//! | `live_clients` | certificates of clients, verified again when the trust in them changes |
//! | [`identification`] | who the agents are by their credentials, and whether they still are |
//! | `connection` | the transport of a connection, as tonic gets it |
//! | [`server`] | the gRPC services and their HTTP/2 limits |
//! | [`hello`] | validation of the first frame; pure |
//! | [`handshake`] | a stream from its Hello until the session is connected, and the end of the session |
//! | [`claimed_accounts`] | bounds on accounts of other zones that an agent claims to hold |
//! | [`queue`] | which agents wait to be registered, and when the others dial again; pure |
//! | [`draining`] | redial times of agents when the replica stops or is isolated from the API server |
//!
//! [`Admission`] holds the queue of this replica, and follows KubesvcAgents: approvals set by people, and sessions
//! registered at other replicas.

pub(super) mod claimed_accounts;
mod connection;
pub(super) mod draining;
pub(super) mod handshake;
pub(super) mod hello;
pub(super) mod identification;
pub(super) mod listener;
pub(super) mod live_clients;
mod new_connection;
mod protocol;
pub(super) mod queue;
pub(super) mod server;
pub(super) mod subject_check;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Semaphore, watch};
use tracing::info;

use crate::hub::agent_status::AgentStatusWriter;
use crate::hub::context::HubContext;
use crate::hub::sessions::Sessions;
use crate::hub::sessions::ledger::HubUptime;
use crate::hub::sessions::session::ApprovalSource;
use crate::informers::{AgentIndex, version_of};
use draining::Draining;
use hello::{AcceptedHello, HelloRefusal};
use kubesvc_core::wire::ops::refused::Reason;
use kubesvc_core::{GrantPhase, KubesvcAgent, State, object_names};
use kubesvc_runtime::background_tasks::{AttemptOutcome, BackgroundTasks, TaskSpec};
use queue::{AdmissionClass, AdmissionDecision, AdmissionQueues, UNAPPROVED_RETRY_DELAY};

/// Maximum number of accounts of a zone that are checked for one the agent does not hold.
const MAX_ACCOUNTS_CHECKED: usize = 1000;
/// Interval between counts of the backlog, which falls as time passes.
const COUNT_INTERVAL: Duration = Duration::from_secs(5);
/// Maximum number of changed objects handled in one pass.
const MAX_CHANGES_PER_PASS: usize = 1000;
/// Maximum number of KubesvcAgents that were never approved.
const MAX_UNAPPROVED_AGENTS: usize = 100;
/// Time after which the watch has shown a new object, or it was not created.
const MAX_WATCH_DELAY: Duration = Duration::from_secs(60);

/// Admission of agents: classes, queues and draining.
pub(super) struct Admission {
    context: Arc<HubContext>,
    sessions: Arc<Sessions>,
    agent_status: Arc<AgentStatusWriter>,
    /// Agents that wait to be registered, here or for their time.
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
        agent_status: Arc<AgentStatusWriter>,
    ) -> Self {
        Self {
            queues: Mutex::new(AdmissionQueues::new(context.settings.admission.registration_qps)),
            backlog: watch::Sender::new(0),
            unapproved_agents: Mutex::default(),
            foreign_claims: Arc::new(Semaphore::new(claimed_accounts::MAX_FOREIGN_OF_REPLICA)),
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

/// Refusal of an unapproved agent while their maximum is reached.
fn too_many_unapproved() -> HelloRefusal {
    let message =
        "many agents that were never approved are connected or waiting; approve this one, or try again later";
    HelloRefusal::for_now(Reason::Overloaded, message, UNAPPROVED_RETRY_DELAY)
}

/// A place in the admission queue; dropping it frees the place.
struct QueuedAgent<'a> {
    admission: &'a Admission,
    class: AdmissionClass,
}

impl QueuedAgent<'_> {
    fn class(&self) -> AdmissionClass {
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
    /// The class of an agent. `is_identified`: a KubesvcIdentity admits it.
    fn class(&self, greeting: &AcceptedHello, is_identified: bool) -> AdmissionClass {
        let name = object_names::agent_object_name(&greeting.agent.id, &greeting.agent.zone);
        if is_identified {
            let is_known = self.context.agent_index.get(&name).is_some_and(|agent| agent.was_approved());
            return if is_known { AdmissionClass::Returning } else { AdmissionClass::Newcomer };
        }
        match self.context.agent_index.get(&name) {
            Some(agent) if agent.was_approved() => AdmissionClass::Returning,
            None if self.context.settings.admission.approves_new => AdmissionClass::Newcomer,
            _ => AdmissionClass::Unapproved,
        }
    }

    /// Puts an agent into the queue, or refuses it with a time to dial again.
    fn enqueue(
        &self,
        greeting: &AcceptedHello,
        class: AdmissionClass,
    ) -> Result<QueuedAgent<'_>, HelloRefusal> {
        let name = object_names::agent_object_name(&greeting.agent.id, &greeting.agent.zone);
        let (agents, now) = (&self.context.agent_index, self.context.moment());
        if class == AdmissionClass::Unapproved && !self.unapproved_agents.lock().admit(&name, agents, now) {
            return Err(too_many_unapproved());
        }
        let decision = self.queues.lock().arrive(class, now);
        self.publish_backlog();
        match decision {
            AdmissionDecision::Now => Ok(QueuedAgent { admission: self, class }),
            AdmissionDecision::TooManyUnapproved => Err(too_many_unapproved()),
            AdmissionDecision::Later(wait) => {
                let message = "many agents are being registered; come again when it is this agent's turn";
                Err(HelloRefusal::for_now(Reason::Overloaded, message, wait))
            }
        }
    }

    /// Puts an agent back whose registration failed. Returns the time until its next turn.
    fn requeue(&self, class: AdmissionClass) -> Duration {
        let wait = self.queues.lock().again(class, self.context.moment());
        self.publish_backlog();
        wait
    }

    /// Whether the agent's zone has a granted account that the agent does not hold.
    fn needs_accounts_of_zone(&self, greeting: &AcceptedHello) -> bool {
        let of_zone = self.sessions.zone_index.lock().of_zone(&greeting.agent.zone);
        let held: HashSet<_> = greeting.held.iter().map(|claim| (claim.uid.as_str(), claim.epoch)).collect();
        of_zone.iter().take(MAX_ACCOUNTS_CHECKED).any(|uid| {
            self.context.accounts.by_uid(uid).is_some_and(|account| {
                let status = account.status_or_default();
                let granted = status.phase() == GrantPhase::Open
                    && status.granted_zone() == Some(&greeting.agent.zone)
                    && status.state() != State::Failed;
                granted && !held.contains(&(uid.as_str(), status.epoch))
            })
        })
    }

    /// Publishes the number of waiting agents. It is counted while the channel is locked, or an older number could be
    /// published last and stay.
    fn publish_backlog(&self) {
        self.backlog.send_if_modified(|published| {
            let waiting = self.queues.lock().backlog(self.context.moment());
            std::mem::replace(published, waiting) != waiting
        });
    }
}

/// Starts the tasks that count the backlog, and apply changed KubesvcAgents.
pub(super) fn start(background: &BackgroundTasks, admission: &Arc<Admission>) {
    let task = TaskSpec::new("admission queue", "Counts the agents that are still to be registered");
    let counted = Arc::clone(admission);
    background.start(task.every(COUNT_INTERVAL).at_start(), move |_: Vec<()>| {
        counted.publish_backlog();
        std::future::ready(AttemptOutcome::Done)
    });
    let changed = admission.context.agent_index.follow();
    let task = TaskSpec::new("following agents", "Applies changed KubesvcAgents to their sessions");
    let admission = Arc::clone(admission);
    background.start(task.woken_by(&changed).batch(MAX_CHANGES_PER_PASS), move |names: Vec<String>| {
        for agent in names.iter().filter_map(|name| admission.context.agent_index.get(name)) {
            apply(&admission, &agent);
        }
        std::future::ready(AttemptOutcome::Done)
    });
}

/// Applies a changed KubesvcAgent to the session of its agent.
fn apply(admission: &Admission, agent: &KubesvcAgent) {
    let Admission { sessions, agent_status, .. } = admission;
    let (spec, status) = (&agent.spec, agent.status.as_ref());
    agent_status.queue_missed_disconnect(agent);
    let Some(session) = sessions.registry.of_agent(&spec.key()) else { return };
    if sessions.yields_to_owner(&session, agent) {
        return;
    }
    if session.identity.get().is_some() {
        return; // Its identity is its approval.
    }
    if spec.approved && status.is_some_and(|status| !status.approved_once) {
        // The approval takes effect once the status records it.
        if let Some(name) = &agent.metadata.name {
            agent_status.approvals.wake(name.clone());
        }
        return;
    }
    // A session that is still registering is updated too; it checks its accounts once it is connected.
    let source = ApprovalSource::Watch(version_of(agent));
    if session.approve(spec.approved, source) && sessions.registry.is_connected(&session) {
        info!(agentId = session.agent.id.as_str(), approved = spec.approved, "approval of the agent changed");
        sessions.stood(&session, true);
    }
}

/// Unapproved agents whose object the watch has not shown yet.
#[derive(Debug, Default)]
struct UnapprovedAgents {
    /// Time of admission, by object name.
    pending: HashMap<String, HubUptime>,
}

impl UnapprovedAgents {
    /// Whether an unapproved agent may be registered: its object exists, or one more is allowed.
    fn admit(&mut self, name: &str, agents: &AgentIndex, now: HubUptime) -> bool {
        self.pending.retain(|one, since| agents.get(one).is_none() && *since + MAX_WATCH_DELAY > now);
        if agents.get(name).is_some() || self.pending.contains_key(name) {
            return true;
        }
        let has_capacity = agents.never_approved() + self.pending.len() < MAX_UNAPPROVED_AGENTS;
        if has_capacity {
            self.pending.insert(name.to_owned(), now);
        }
        has_capacity
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kubesvc_core::{KubesvcAgent, KubesvcAgentSpec};

    #[test]
    fn at_most_a_hundred_unapproved_agents_have_objects_and_those_may_return() {
        let (agents, mut unapproved) = (AgentIndex::default(), UnapprovedAgents::default());
        let show = |name: &str, approved| {
            let spec = KubesvcAgentSpec { approved, ..KubesvcAgentSpec::default() };
            let mut agent = KubesvcAgent::new(name, spec);
            agent.metadata.resource_version = Some("1".into());
            agents.seen(agent);
        };
        (0..50).for_each(|one| show(&format!("approved-{one}"), true));
        (0..60).for_each(|one| show(&format!("seen-{one}"), false));
        let now = Duration::ZERO;
        assert!((0..40).all(|one| unapproved.admit(&format!("new-{one}"), &agents, now)));
        assert!(!unapproved.admit("one-more", &agents, now));
        assert!(unapproved.admit("seen-0", &agents, now) && unapproved.admit("new-0", &agents, now));
        show("new-0", false);
        assert!(!unapproved.admit("one-more", &agents, now), "it is counted once");
        agents.gone("seen-0", 2);
        assert!(unapproved.admit("one-more", &agents, now));
        let later = now + MAX_WATCH_DELAY;
        assert!(
            (0..40).all(|one| unapproved.admit(&format!("later-{one}"), &agents, later)),
            "they were never made"
        );
        assert!(!unapproved.admit("too-late", &agents, later));
    }
}
