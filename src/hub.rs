//! The hub: agents connect to it, and it hands them what the objects grant to their zones.
//!
//! Each agent has one stream and one [task](sessions::session) that owns it. What a session owes an account is decided by a
//! [pure function](sessions::duties) of the object and of what the session has done; what agents say is read by the leader
//! through [`Fleet`](crate::fleet::Fleet). Objects are read, never written, except the KubesvcAgents and the accounts
//! that agents list in their own files.
//!
//! | module | owns |
//! |---|---|
//! | [`admission`] | the port, the hello, and agents that wait to be registered or are sent away |
//! | [`sessions`] | the connected agents: their loops, what each was told and has said, and where to find them |
//! | [`agent_status`] | the KubesvcAgent objects: registration, reports, disconnects, and those that are long gone |
//! | [`zone_probes`] | accounts without a zone: whom to ask, and who could reach them |
//! | [`static_accounts`] | accounts of an agent's own file |
//! | [`tables`] | rows about agents: assignments, fences, lists of namespaces |
//! | [`fleet_view`] | the port [`Fleet`](crate::fleet::Fleet) |
//! | [`context`], [`credentials`] | what the parts read and share |
//! | [`retry`] | questions that may get no answer |
//!
//! What happens to a session is published once ([`sessions::events`]); agent status, tables and the leader mark what they
//! look at again. No part knows the hub: it holds those below it, and [`Hub::new`] puts them together.

mod admission;
mod agent_status;
mod context;
mod credentials;
mod fleet_view;
mod metrics;
mod retry;
mod sessions;
mod settings;
mod static_accounts;
mod tables;
mod zone_probes;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic_health::server::HealthReporter;
use tracing::{info, warn};

pub use admission::queue::AdmissionClass;
pub use agent_status::registration::{
    AgentObjects, AgentSummary, KnownAgent, KubeAgentObjects, OutboxWrite, RegisteredAgent, Registration,
    RegistrationError, SessionRef,
};
pub use metrics::{HubMetrics, ReasonLabel};
pub use settings::{HubSettings, Pings};
pub use tables::assignments::{AssignmentChecks, AssignmentRows, StoredAssignments};
pub use tables::fences::{FenceRows, StoredFences};
pub use tables::namespaces::{NamespaceRows, StoredNamespaces};

use crate::fleet::Ticks;
use crate::leases::{Leadership, Replicas};
use crate::listen::addresses::Addresses;
use crate::listen::log_rate_limit::LogRateLimit;
use crate::objects::{AccountIndex, AccountObjects, AgentIndex};
use crate::secrets::CredentialSource;
use crate::shutdown::EssentialTasks;
use crate::wake_set::WakeSet;
use admission::handshake::AgentStreams;
use admission::streams::StreamDeadlines;
use admission::{Admission, agent_watch, draining, listener, server, waiting};
use agent_status::{AgentStatus, AgentStatusWakes};
use agent_status::{approvals, collection, departed_agents, disconnects, outbox_writer, summaries};
use context::HubContext;
use credentials::Credentials;
use sessions::events::{LeaderWakes, SessionEvents, SessionSubscriber};
use sessions::session::session_loop::SessionParts;
use sessions::{Sessions, dispatch, mass_delete_guard};
use static_accounts::StaticAccounts;
use tables::{TableRows, TableWakes, Tables, assignments, fences, namespaces};
use zone_probes::ZoneProbes;

/// Time limit for sessions to end when the hub stops.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit for connections to end after the last session.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(500);

/// Why the hub cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// The port cannot be had.
    #[error(
        "cannot listen for agents on {address}:{port}: {source}; free the port, or set \
         kubesvc.grpc.server.address and kubesvc.grpc.server.port"
    )]
    Bind {
        /// The address asked for.
        address: String,
        /// The port asked for.
        port: u16,
        /// What the system says.
        source: std::io::Error,
    },
    /// The descriptors of the services are broken: a fault of the build.
    #[error("the services cannot be described: {0}")]
    Descriptors(String),
    /// The server ended by itself.
    #[error("the server for agents ended: {0}")]
    Server(String),
}

/// What the hub reaches the rest through.
pub struct HubPorts {
    /// The accounts as last seen.
    pub accounts: Arc<AccountIndex>,
    /// The accounts at the API server, for those that agents list.
    pub account_objects: Arc<dyn AccountObjects>,
    /// Reads credentials.
    pub credentials: Arc<dyn CredentialSource>,
    /// The KubesvcAgents, to be written.
    pub agents: Arc<dyn AgentObjects>,
    /// The KubesvcAgents as last seen.
    pub agent_index: Arc<AgentIndex>,
    /// The rows of `kubesvc_assignments`.
    pub assignment_rows: Arc<dyn AssignmentRows>,
    /// The fences in `kubesvc_caching`.
    pub fence_rows: Arc<dyn FenceRows>,
    /// Where the lists of namespaces are kept.
    pub namespace_rows: Arc<dyn NamespaceRows>,
    /// The leader's clock.
    pub ticks: Arc<Ticks>,
    /// Is told the uids of accounts that should be decided anew.
    pub leader: Arc<WakeSet<String>>,
    /// Whether this replica leads.
    pub leadership: Arc<Leadership>,
    /// Which replicas are alive.
    pub replicas: Arc<Replicas>,
}

/// The agents of this replica: its parts, put together.
pub struct Hub {
    context: Arc<HubContext>,
    sessions: Arc<Sessions>,
    zone_probes: Arc<ZoneProbes>,
    agent_status: Arc<AgentStatus>,
    admission: Arc<Admission>,
    tables: Arc<Tables>,
    streams: Arc<AgentStreams>,
}

impl Hub {
    /// A hub that serves nobody yet.
    pub fn new(settings: HubSettings, ports: HubPorts) -> Arc<Self> {
        let context = Arc::new(HubContext {
            settings,
            accounts: ports.accounts,
            agent_index: ports.agent_index,
            ticks: ports.ticks,
            leadership: ports.leadership,
            replicas: ports.replicas,
            metrics: HubMetrics::default(),
            log_limit: LogRateLimit::default(),
            started: Instant::now(),
            stopping: CancellationToken::new(),
            tasks: TaskTracker::new(),
        });
        let (status_wakes, table_wakes) = (AgentStatusWakes::default(), TableWakes::default());
        let events = SessionEvents::new(vec![
            Arc::clone(&status_wakes.summaries) as Arc<dyn SessionSubscriber>,
            Arc::clone(&status_wakes.outboxes) as Arc<dyn SessionSubscriber>,
            Arc::clone(&table_wakes.assignments) as Arc<dyn SessionSubscriber>,
            Arc::clone(&table_wakes.fences) as Arc<dyn SessionSubscriber>,
            Arc::clone(&table_wakes.namespaces) as Arc<dyn SessionSubscriber>,
            Arc::new(LeaderWakes(ports.leader)),
        ]);
        let sessions = Arc::new(Sessions::new(Arc::clone(&context), events));
        let credentials = Arc::new(Credentials::new(ports.credentials));
        let zone_probes =
            Arc::new(ZoneProbes::new(Arc::clone(&context), Arc::clone(&sessions), Arc::clone(&credentials)));
        let agent_status = Arc::new(AgentStatus::new(
            Arc::clone(&context),
            Arc::clone(&sessions),
            Arc::clone(&zone_probes),
            ports.agents,
            status_wakes,
        ));
        let admission =
            Arc::new(Admission::new(Arc::clone(&context), Arc::clone(&sessions), Arc::clone(&agent_status)));
        let rows = TableRows {
            assignments: ports.assignment_rows,
            fences: ports.fence_rows,
            namespaces: ports.namespace_rows,
        };
        let tables = Arc::new(Tables::new(Arc::clone(&context), Arc::clone(&sessions), rows, table_wakes));
        let static_accounts = Arc::new(StaticAccounts {
            context: Arc::clone(&context),
            sessions: Arc::clone(&sessions),
            agent_status: Arc::clone(&agent_status),
            objects: Arc::clone(&ports.account_objects),
        });
        let parts = Arc::new(SessionParts {
            context: Arc::clone(&context),
            sessions: Arc::clone(&sessions),
            credentials,
            account_objects: ports.account_objects,
            draining: Arc::clone(&admission.draining),
            zone_probes: Arc::clone(&zone_probes),
            static_accounts,
            tables: Arc::clone(&tables),
        });
        let streams = Arc::new(AgentStreams { admission: Arc::clone(&admission), parts });
        Arc::new(Self { context, sessions, zone_probes, agent_status, admission, tables, streams })
    }

    /// Binds the port.
    ///
    /// # Errors
    /// It is taken, the address is not one of this machine, or the right is missing. One line, with what to do.
    pub async fn bind(&self) -> Result<BoundHub, HubError> {
        let settings = &self.context.settings;
        let listener = listener::bind(settings).await?;
        let address = listener.local_addr().map_err(|source| HubError::Bind {
            address: settings.address.clone(),
            port: settings.port,
            source,
        })?;
        Ok(BoundHub { listener, address })
    }

    /// How many agents wait to be registered, those among them that were told a time to come again, as it changes.
    pub fn backlog(&self) -> watch::Receiver<usize> {
        self.admission.backlog()
    }

    /// Agents that are connected by their objects, and not here, count as away from now on: they may come back within
    /// the grace. To be called whenever this replica begins to lead, before it decides; what cannot be read, also for
    /// want of an answer, is logged, and the grace of a new leader covers it. It takes 15 s at most.
    pub async fn remember_agents(&self) {
        self.agent_status.remember_agents().await;
    }

    /// Sends the agents away, spread as the other replicas can take them, or takes them again.
    pub fn set_isolated(&self, cut_off: bool) {
        self.admission.draining.set_isolated(cut_off);
    }

    /// The hub's counters.
    pub fn metrics(&self) -> &HubMetrics {
        &self.context.metrics
    }

    /// Adds the hub's counters to a registry.
    pub fn register(&self, registry: &mut prometheus_client::registry::Registry) {
        self.context.metrics.register(registry);
    }

    /// Begins the tasks of all parts. Each goes on until stopped; where one ends before that, all do.
    fn spawn_tasks(&self, essential: &EssentialTasks, health: &HealthReporter, stop: &CancellationToken) {
        let stop = || stop.clone();
        let sessions = || Arc::clone(&self.sessions);
        let agents = || Arc::clone(&self.agent_status);
        let admission = || Arc::clone(&self.admission);
        let tables = || Arc::clone(&self.tables);
        let zone_probes = Arc::clone(&self.zone_probes);
        let draining = Arc::clone(&self.admission.draining);
        essential.spawn("routing changes", dispatch::route_changes(sessions(), zone_probes, stop()));
        essential.spawn("following agents", agent_watch::run(admission(), stop()));
        essential.spawn("admission queue", waiting::sweep(admission(), stop()));
        essential.spawn("outbox writes", outbox_writer::run(agents(), stop()));
        essential.spawn("forgetting agents", departed_agents::forget(agents(), stop()));
        essential.spawn("approvals of agents", approvals::run(agents(), stop()));
        essential.spawn("agent summaries", summaries::run(agents(), stop()));
        essential.spawn("agent collection", collection::run(agents(), stop()));
        essential.spawn("disconnects", disconnects::run(agents(), stop()));
        essential.spawn("mass delete guard", mass_delete_guard::run(sessions(), stop()));
        essential.spawn("fences", fences::run(tables(), stop()));
        essential.spawn("namespace lists", namespaces::run(tables(), stop()));
        essential.spawn("assignments", assignments::run(tables(), stop()));
        essential.spawn("health", draining::publish_health(draining, health.clone(), stop()));
    }
}

/// A hub whose port is bound.
pub struct BoundHub {
    listener: TcpListener,
    address: SocketAddr,
}

impl BoundHub {
    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Serves until stopped. Then all agents are told when to dial again, those that come meanwhile are refused with a
    /// time, and it ends when all have left, within 5 s.
    ///
    /// # Errors
    /// The server, or a task beside it, cannot begin or ends by itself, which is a fault of ours.
    pub async fn serve(self, hub: Arc<Hub>, stop: CancellationToken) -> Result<(), HubError> {
        let health = HealthReporter::new();
        let context = &hub.context;
        let router = server::router(context, Arc::clone(&hub.streams), &health).await?;
        let (stop, close) = (stop.child_token(), CancellationToken::new());
        // Whoever comes while agents leave is answered; only then is the port closed.
        let shut = CancellationToken::new();
        let door = Arc::new(listener::ConnectionPolicy {
            metrics: context.metrics.clone(),
            cap: context.settings.connection_cap,
            addresses: Addresses::new(context.settings.limits.clone()),
            without_stream: Arc::default(),
            without_stream_cap: context.settings.without_stream_cap,
            preface_wait: context.settings.preface_wait,
            bounds: StreamDeadlines {
                first_request: context.settings.request_wait,
                idle: context.settings.idle_wait,
            },
            rest_port: context.settings.rest_port,
            close: close.clone(),
            tasks: context.tasks.clone(),
            log_limit: LogRateLimit::default(),
        });
        // Before the agents' objects were listed, nobody could be told from a stranger.
        let seen = Arc::clone(&context.agent_index);
        let listed = async move { seen.synced().await };
        let incoming = ReceiverStream::new(listener::accept(self.listener, door, listed, shut.clone()));
        let essential = EssentialTasks::new(context.tasks.clone(), stop.clone());
        hub.spawn_tasks(&essential, &health, &stop);
        info!(address = %self.address, "agents may connect");
        let ended = CancellationToken::new();
        let serving = async {
            let served = router.serve_with_incoming_shutdown(incoming, shut.clone().cancelled_owned()).await;
            // However it ended, nothing goes on without it.
            stop.cancel();
            shut.cancel();
            ended.cancel();
            served
        };
        let ending = async {
            stop.cancelled().await;
            for service in server::SERVICES {
                health.set_service_status(service, tonic_health::ServingStatus::NotServing).await;
            }
            context.stopping.cancel();
            let deadline = tokio::time::Instant::now() + STOP_TIMEOUT;
            let _ = tokio::time::timeout_at(deadline, hub.sessions.emptied()).await;
            shut.cancel();
            context.tasks.close();
            if tokio::time::timeout_at(deadline, context.tasks.wait()).await.is_err() {
                warn!("not all agents have left in time");
            }
            // Last words are on their way; whoever does not take them is cut off.
            let _ = tokio::time::timeout(CLOSE_TIMEOUT, ended.cancelled()).await;
            close.cancel();
        };
        let (served, ()) = tokio::join!(serving, ending);
        if let Some(why) = essential.failed_task() {
            return Err(HubError::Server(why.to_owned()));
        }
        served.map_err(|problem| HubError::Server(problem.to_string()))
    }
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
