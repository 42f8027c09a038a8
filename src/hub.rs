//! The hub: agents connect to it, and it sends each of them the accounts that are granted to its zone.
//!
//! Each agent has one stream, owned by one [task](sessions::session). A [pure function](sessions::duties) of the account
//! and of what the session has done decides what the session owes the account. The leader reads the agents' reports
//! through [`ConnectedAgents`](crate::connected_agents::ConnectedAgents). The hub writes two kinds of objects:
//! KubesvcAgents, and the accounts of agents' own files.
//!
//! | module | owns |
//! |---|---|
//! | [`agent_admission`] | the port, the hello, the queue of agents to be registered, draining |
//! | [`sessions`] | the connected agents: session loops, ledgers, the registry, session events |
//! | [`agent_status`] | the KubesvcAgent objects: registration, summaries, outboxes, disconnects, collection |
//! | [`zone_probes`] | probes of agents for accounts without a zone |
//! | [`static_accounts`] | accounts of an agent's own file |
//! | [`caching`] | the streams of cached objects, and their writers |
//! | [`requests`] | the streams of requests to accounts |
//! | [`table_writers`] | rows about agents: assignments, fences, lists of namespaces |
//! | [`own_certificate`] | the certificate of the port that the operator makes, and its authorities for agents |
//! | [`account_objects`] | the port for accounts at the API server |
//! | [`local_agents`] | the port [`ConnectedAgents`](crate::connected_agents::ConnectedAgents) |
//! | [`context`] | what all parts read, and the reader of credentials they share |
//!
//! Sessions publish [events](sessions::events); agent status, tables and the leader subscribe. No part holds the hub: it
//! holds the parts that it uses, and [`Hub::new`] connects them.

mod account_objects;
mod agent_admission;
mod agent_status;
mod caching;
mod context;
mod local_agents;
mod metrics;
mod own_certificate;
mod requests;
mod sessions;
mod settings;
mod static_accounts;
mod table_writers;
mod zone_probes;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use prometheus_client::metrics::counter::Counter;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic_health::server::HealthReporter;
use tracing::{info, warn};

pub use account_objects::AccountObjects;
pub use agent_admission::queue::AdmissionClass;
pub use agent_status::identity_conditions::{IdentityObjects, KubeIdentityObjects};
pub use agent_status::registration::{
    AgentObjects, AgentSummary, KnownAgent, KubeAgentObjects, Registration, RegistrationError, SessionRef,
};
pub use caching::{BodyFormat, CachePorts, CachingRuleSource, CachingSettings, RowMapper};
pub use metrics::HubMetrics;
pub use own_certificate::{HUB_SECRET, HubCertificate};
pub use settings::{
    AbsentAgentSettings, AdmissionSettings, HubSettings, IdentityMode, ListenerSettings, Pings,
    SessionSettings, StaticAccountSettings,
};
pub use table_writers::assignments::AssignmentChecks;

use crate::agent_tokens::AgentTokens;
use crate::connected_agents::{LeaderClock, ReplicaRequests};
use crate::informers::{AccountIndex, AgentIndex, IdentityIndex};
use crate::leases::{Leadership, Replicas};
use crate::secrets::CredentialSource;
use agent_admission::handshake::AgentStreams;
use agent_admission::identification::{self, Identification};
use agent_admission::listener::{self, ConnectionPolicy};
use agent_admission::subject_check::SubjectCheck;
use agent_admission::{Admission, draining, server};
use agent_status::{AgentStatusWakes, AgentStatusWriter};
use agent_status::{disconnects, garbage_collection, report_outbox_writer, summaries};
use caching::Caching;
use context::{CredentialReader, HubContext};
use kubesvc_runtime::background_tasks::{BackgroundTasks, TaskRegistry};
use kubesvc_runtime::listen::connection_limits::LogRateLimit;
use kubesvc_runtime::work_queue::WorkQueue;
use kubesvc_store::{AssignmentStore, FenceStore, NamespaceStore};
use requests::Requests;
use sessions::events::{LeaderWakes, SessionEvents, SessionSubscriber};
use sessions::session::session_loop::SessionParts;
use sessions::{Sessions, mass_delete_guard};
use static_accounts::StaticAccounts;
use table_writers::{
    TableRows, TableWakes, TableWriters, assignments, cached_namespaces, fences, namespaces,
};
use zone_probes::ZoneProbes;

/// Time limit for sessions to end when the hub stops. The answers of their writes are awaited before they are sent away.
const STOP_TIMEOUT: Duration = Duration::from_secs(15);
/// Time limit for connections to end after the last session.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(500);

/// Reason why the hub cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    #[error(
        "cannot listen for agents on {address}:{port}: {source}; free the port, or set \
         kubesvc.grpc.server.address and kubesvc.grpc.server.port"
    )]
    Bind { address: String, port: u16, source: std::io::Error },
    /// A build error.
    #[error("the services cannot be described: {0}")]
    Descriptors(String),
    #[error("the server for agents ended: {0}")]
    Server(String),
}

/// The ports that the hub uses.
pub struct HubPorts {
    pub accounts: Arc<AccountIndex>,
    /// Reads and writes accounts at the API server.
    pub account_objects: Arc<dyn AccountObjects>,
    pub credentials: Arc<dyn CredentialSource>,
    /// Writes KubesvcAgents.
    pub agents: Arc<dyn AgentObjects>,
    pub agent_index: Arc<AgentIndex>,
    /// The rows of `kubesvc_assignments`.
    pub assignment_rows: Arc<dyn AssignmentStore>,
    /// The fences in `kubesvc_caching`.
    pub fence_rows: Arc<dyn FenceStore>,
    /// The lists of namespaces in the rows of accounts.
    pub namespace_rows: Arc<dyn NamespaceStore>,
    /// The tables of cached objects; absent: agents are not asked to stream any.
    pub cache: Option<CachePorts>,
    pub ticks: Arc<LeaderClock>,
    /// Uids of accounts that the leader reconciles again.
    pub leader: Arc<WorkQueue<String>>,
    pub leadership: Arc<Leadership>,
    /// Liveness of the other replicas.
    pub replicas: Arc<Replicas>,
    /// Identifies agents; absent: nobody is asked for an identity.
    pub identities: Option<AgentIdentities>,
}

/// By what agents are identified, and whether that decides.
#[derive(Clone)]
pub struct AgentIdentities {
    pub mode: IdentityMode,
    pub index: Arc<IdentityIndex>,
    /// Verifies their tokens.
    pub tokens: Arc<dyn AgentTokens>,
    /// Writes the conditions of KubesvcIdentities.
    pub objects: Arc<dyn IdentityObjects>,
}

impl AgentIdentities {
    /// The identities, if they decide.
    fn deciding(&self) -> Option<Arc<IdentityIndex>> {
        (self.mode == IdentityMode::Bound).then(|| Arc::clone(&self.index))
    }
}

/// The hub of one replica: composes the parts and runs their tasks.
pub struct Hub {
    context: Arc<HubContext>,
    sessions: Arc<Sessions>,
    zone_probes: Arc<ZoneProbes>,
    agent_status: Arc<AgentStatusWriter>,
    admission: Arc<Admission>,
    tables: Arc<TableWriters>,
    caching: Option<Arc<Caching>>,
    requests: Arc<Requests>,
    streams: Arc<AgentStreams>,
    identification: Arc<Identification>,
}

impl Hub {
    /// Creates a hub that does not listen yet.
    pub fn new(settings: HubSettings, ports: HubPorts) -> Arc<Self> {
        let context = Arc::new(HubContext {
            settings,
            accounts: ports.accounts,
            agent_index: ports.agent_index,
            ticks: ports.ticks,
            leadership: ports.leadership,
            replicas: ports.replicas,
            metrics: HubMetrics::default(),
            caching_rules: ports.cache.as_ref().map(|cache| Arc::clone(&cache.rules)),
            log_limit: LogRateLimit::default(),
            identities: ports.identities.as_ref().and_then(AgentIdentities::deciding),
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
        let credentials = Arc::new(CredentialReader::new(ports.credentials));
        let zone_probes =
            Arc::new(ZoneProbes::new(Arc::clone(&context), Arc::clone(&sessions), Arc::clone(&credentials)));
        let agent_status = Arc::new(AgentStatusWriter::new(
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
            cache: ports.cache.as_ref().map(|cache| Arc::clone(&cache.store)),
        };
        let tables =
            Arc::new(TableWriters::new(Arc::clone(&context), Arc::clone(&sessions), rows, table_wakes));
        let static_accounts = Arc::new(StaticAccounts {
            context: Arc::clone(&context),
            sessions: Arc::clone(&sessions),
            agent_status: Arc::clone(&agent_status),
            objects: Arc::clone(&ports.account_objects),
        });
        let caching = ports.cache.map(|cache| {
            let draining = Arc::clone(&admission.draining);
            Arc::new(Caching::new(Arc::clone(&context), Arc::clone(&sessions), draining, cache))
        });
        let requests = Arc::new(Requests::new(
            Arc::clone(&context),
            Arc::clone(&sessions),
            Arc::clone(&admission.draining),
            Arc::clone(&ports.account_objects),
        ));
        let identification =
            Identification::new(Arc::clone(&context), Arc::clone(&sessions), ports.identities);
        let parts = Arc::new(SessionParts {
            context: Arc::clone(&context),
            sessions: Arc::clone(&sessions),
            credentials,
            account_objects: ports.account_objects,
            draining: Arc::clone(&admission.draining),
            zone_probes: Arc::clone(&zone_probes),
            static_accounts,
            tables: Arc::clone(&tables),
            identification: Arc::clone(&identification),
        });
        let streams = Arc::new(AgentStreams {
            admission: Arc::clone(&admission),
            parts,
            caching: caching.clone(),
            requests: Arc::clone(&requests),
            identification: Arc::clone(&identification),
        });
        Arc::new(Self {
            context,
            sessions,
            zone_probes,
            agent_status,
            admission,
            tables,
            caching,
            requests,
            streams,
            identification,
        })
    }

    /// Binds the port.
    ///
    /// # Errors
    /// The port is in use, the address is not local, or the permission is missing. The error says what to do, in one line.
    pub async fn bind(&self) -> Result<BoundHub, HubError> {
        let settings = &self.context.settings.listener;
        let listener = listener::bind(settings).await?;
        let address = listener.local_addr().map_err(|source| HubError::Bind {
            address: settings.address.clone(),
            port: settings.port,
            source,
        })?;
        Ok(BoundHub { listener, address })
    }

    /// Watches the number of returning agents that wait to be registered, including those that were told to come later.
    pub fn backlog(&self) -> watch::Receiver<usize> {
        self.admission.backlog()
    }

    /// Treats agents that their objects call connected, but are not connected here, as away from now on, so that they
    /// may return within the grace. Called each time this replica becomes leader, before it decides anything. A failure
    /// to read is logged; the grace of a new leader covers it. Takes at most 15 s.
    pub async fn remember_agents(&self) {
        self.agent_status.remember_agents().await;
    }

    /// Drains all agents, at the rate at which the other replicas register them, or accepts agents again.
    pub fn set_isolated(&self, cut_off: bool) {
        self.admission.draining.set_isolated(cut_off);
    }

    /// Returns the port by which the agents of this replica are asked.
    pub fn requests(&self) -> Arc<dyn ReplicaRequests> {
        Arc::clone(&self.requests) as Arc<dyn ReplicaRequests>
    }

    /// Whether it is known which agents may be let in.
    pub fn knows_identities(&self) -> bool {
        self.context.knows_identities()
    }

    /// Why objects cannot be written to the database at present; `None` if they can.
    pub fn cached_objects_problem(&self) -> Option<String> {
        self.caching.as_ref().and_then(|caching| caching.problem())
    }

    /// Returns the counter of rows that the leader swept from the tables of cached objects.
    pub fn swept_rows(&self) -> Counter {
        self.caching.as_ref().map(|caching| caching.swept_rows()).unwrap_or_default()
    }

    pub fn register(&self, registry: &mut prometheus_client::registry::Registry) {
        self.context.metrics.register(registry);
        self.requests.register(registry);
        if let Some(caching) = &self.caching {
            caching.register(registry);
        }
    }

    /// Starts the tasks of all parts.
    fn start_tasks(&self, background: &BackgroundTasks, health: &HealthReporter) {
        let Self { sessions, zone_probes, agent_status, admission, tables, caching, .. } = self;
        sessions::start(background, sessions, zone_probes);
        mass_delete_guard::start(background, sessions);
        agent_admission::start(background, admission);
        draining::start(background, &admission.draining, health);
        report_outbox_writer::start(background, agent_status);
        agent_status::start(background, agent_status);
        summaries::start(background, agent_status);
        garbage_collection::start(background, agent_status);
        disconnects::start(background, agent_status);
        fences::start(background, tables);
        namespaces::start(background, tables);
        cached_namespaces::start(background, tables);
        assignments::start(background, tables);
        if let Some(caching) = caching {
            caching::start(background, caching);
        }
        requests::start(background, &self.requests);
        identification::start(background, &self.identification);
    }
}

/// A hub with a bound port.
pub struct BoundHub {
    listener: TcpListener,
    address: SocketAddr,
}

impl BoundHub {
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Serves until stopped. Then drains: each agent gets a redial time, new agents are refused with one, and the call
    /// returns when all have disconnected: within 5 s, or up to 10 s later where answers of writes are awaited. `registry`
    /// lists the background tasks.
    ///
    /// # Errors
    /// The server or a task cannot start or ends by itself: a bug.
    pub async fn serve(
        self,
        hub: Arc<Hub>,
        registry: TaskRegistry,
        stop: CancellationToken,
    ) -> Result<(), HubError> {
        let health = HealthReporter::new();
        let context = &hub.context;
        let subjects = SubjectCheck::new(context);
        let router = server::router(context, Arc::clone(&hub.streams), &health, subjects).await?;
        let (stop, close) = (stop.child_token(), CancellationToken::new());
        // The port stays open while agents drain, so that agents that dial meanwhile get a redial time.
        let shut = CancellationToken::new();
        let policy = Arc::new(ConnectionPolicy::new(context, close.clone()));
        // Before KubesvcAgents are listed, every agent would look unapproved.
        let seen = Arc::clone(&context.agent_index);
        let known = Arc::clone(context);
        let listed = async move {
            tokio::join!(seen.synced(), known.identities_known());
        };
        let incoming = ReceiverStream::new(listener::accept(self.listener, policy, listed, shut.clone()));
        // If a task ends before `stop`, all are stopped.
        let background = BackgroundTasks::new(context.tasks.clone(), stop.clone(), registry);
        hub.start_tasks(&background, &health);
        info!(address = %self.address, "agents may connect");
        let ended = CancellationToken::new();
        let serving = async {
            let served = router.serve_with_incoming_shutdown(incoming, shut.clone().cancelled_owned()).await;
            // The tasks do not run without the server.
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
                warn!("some agents did not disconnect in time");
            }
            // Lets the last frames be sent; connections that do not read them are closed.
            let _ = tokio::time::timeout(CLOSE_TIMEOUT, ended.cancelled()).await;
            close.cancel();
        };
        let (served, ()) = tokio::join!(serving, ending);
        if let Some(why) = background.failed_task() {
            return Err(HubError::Server(why.to_owned()));
        }
        served.map_err(|problem| HubError::Server(problem.to_string()))
    }
}

#[cfg(test)]
mod model_checker;
#[cfg(test)]
mod tests;
