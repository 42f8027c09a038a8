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
//! | [`retry`] | questions that may get no answer |

mod admission;
mod agent_status;
mod fleet_view;
mod metrics;
mod retry;
mod sessions;
mod static_accounts;
mod tables;
mod zone_probes;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};

pub use agent_status::registration::{
    AgentObjects, AgentSummary, KnownAgent, KubeAgentObjects, OutboxWrite, RegisteredAgent, Registration,
    RegistrationError,
};
pub use metrics::{HubMetrics, ReasonLabel};
pub use tables::assignments::{AssignmentChecks, AssignmentRows, StoredAssignments};
pub use tables::fences::{FenceRows, StoredFences};
pub use tables::namespaces::{NamespaceRows, StoredNamespaces};

use crate::account::lifecycle::Tick;
use crate::fleet::Ticks;
use crate::leases::{Leadership, Replicas};
use crate::listen::addresses::{AddressLimits, Addresses, Caller};
use crate::listen::log_rate_limit::LogRateLimit;
use crate::objects::{AccountIndex, AccountObjects, AgentIndex};
use crate::secrets::CredentialSource;
use crate::shutdown::EssentialTasks;
use crate::wake_set::WakeSet;
use crate::wire::MAX_MESSAGE_BYTES;
use admission::drain::Drain;
pub use admission::queue::AdmissionClass;
use admission::queue::AdmissionQueues;
use admission::streams::StreamDeadlines;
use admission::unapproved_agents::UnapprovedAgents;
use admission::{foreign_claims, isolation, listener, server};
use agent_status::{approvals, collection, departed_agents, disconnects, outbox_writer, summaries};
use sessions::ledger::Moment;
use sessions::registry::Registry;
use sessions::zone_index::ZoneIndex;
use sessions::{dispatch, mass_delete_guard};
use tables::{assignments, fences, namespaces};
use zone_probes::offers::Offers;

/// Time limit for sessions to end when the hub stops.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit for connections to end after the last session.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(500);
/// Maximum number of registrations written at once.
const MAX_CONCURRENT_REGISTRATIONS: usize = 16;
/// Maximum number of credentials read at once.
const MAX_CONCURRENT_CREDENTIAL_READS: usize = 64;
/// Number of heartbeats missed after which an agent's stream is cut.
const MAX_MISSED_HEARTBEATS: u32 = 3;

/// The settings of the hub.
#[derive(Clone, Debug)]
pub struct HubSettings {
    /// Where to listen: `*` for all addresses, else an address or a name.
    pub address: String,
    /// The port; 0 lets the system choose.
    pub port: u16,
    /// Whether gRPC's health service is served.
    pub health_service: bool,
    /// The largest gRPC message in both directions, in bytes.
    pub max_message_bytes: usize,
    /// This replica.
    pub replica_id: String,
    /// How often both sides send Heartbeat.
    pub heartbeat: Duration,
    /// Whether an agent that is silent for three heartbeats is cut off; else only the pings of HTTP/2 find that one is
    /// gone.
    pub cuts_off_silent: bool,
    /// Pings of HTTP/2 to agents; absent: none.
    pub pings: Option<Pings>,
    /// TCP connections at once; more are closed.
    pub connection_cap: usize,
    /// After how many ticks an agent that is away is forgotten: twice the orphan grace.
    pub forget_after: Tick,
    /// Bound on the connections of one address.
    pub limits: AddressLimits,
    /// TCP connections at once that have no stream; with one more, one of the address
    /// that has the most is closed.
    pub without_stream_cap: usize,
    /// How long a connection may take to begin with HTTP/2.
    pub preface_wait: Duration,
    /// How long a connection may take from there to its first request.
    pub request_wait: Duration,
    /// How long a connection may be without a stream.
    pub idle_wait: Duration,
    /// How long a stream may take until its Hello.
    pub hello_wait: Duration,
    /// The port of REST, to be named to whoever speaks HTTP/1 here.
    pub rest_port: Option<u16>,
    /// Where the objects of accounts that agents list are made.
    pub accounts_namespace: String,
    /// Whether the operator watches that namespace; if not, such accounts are not taken.
    pub accounts_watched: bool,
    /// Whether an agent is approved when it is registered for the first time.
    pub approves_new: bool,
    /// After how many ticks the object of an agent that is away is removed.
    pub remove_agents_after: Tick,
    /// After how many ticks the object of an agent is removed that is away and was never approved.
    pub remove_unapproved_after: Tick,
    /// How long the object of an agent that is away is kept where a person has decided whether it is approved.
    pub forget_approved_after: Duration,
    /// When `kubesvc_assignments` is read again and mended.
    pub assignment_checks: AssignmentChecks,
    /// After how many ticks a session that owes an answer has failed.
    pub operation_wait: Tick,
    /// Other replicas may lead: before an account is sent to a session for the first time, its object is read from the
    /// API server itself.
    pub clustered: bool,
    /// How many registrations a second are written; 0: no limit.
    pub registration_qps: u32,
    /// How long an agent may be away before its accounts are ORPHANED.
    pub orphan_grace: Duration,
    /// After how many ticks without its agent a static account is deleted.
    pub account_cleanup: Tick,
}

/// Pings of HTTP/2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pings {
    /// The pace.
    pub every: Duration,
    /// A connection on which a ping is not answered within this time is closed.
    pub timeout: Duration,
}

impl Default for Pings {
    fn default() -> Self {
        Self { every: Duration::from_secs(20), timeout: Duration::from_secs(20) }
    }
}

impl Default for HubSettings {
    fn default() -> Self {
        Self {
            address: "*".to_owned(),
            port: 9091,
            health_service: true,
            max_message_bytes: MAX_MESSAGE_BYTES,
            replica_id: String::new(),
            heartbeat: Duration::from_secs(10),
            cuts_off_silent: true,
            pings: Some(Pings::default()),
            connection_cap: 20_000,
            forget_after: 60,
            limits: AddressLimits::default(),
            without_stream_cap: 1024,
            preface_wait: Duration::from_secs(10),
            request_wait: Duration::from_secs(10),
            idle_wait: Duration::from_secs(30),
            hello_wait: Duration::from_secs(10),
            rest_port: None,
            accounts_namespace: String::new(),
            accounts_watched: true,
            approves_new: true,
            remove_agents_after: 600,
            remove_unapproved_after: 60,
            forget_approved_after: Duration::from_secs(2_592_000),
            assignment_checks: AssignmentChecks::default(),
            operation_wait: 30,
            clustered: false,
            registration_qps: 50,
            orphan_grace: Duration::from_secs(30),
            account_cleanup: 600,
        }
    }
}

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

/// The agents of this replica.
pub struct Hub {
    settings: HubSettings,
    accounts: Arc<AccountIndex>,
    account_objects: Arc<dyn AccountObjects>,
    credentials: Arc<dyn CredentialSource>,
    agents: Arc<dyn AgentObjects>,
    agent_index: Arc<AgentIndex>,
    assignment_rows: Arc<dyn AssignmentRows>,
    fence_rows: Arc<dyn FenceRows>,
    namespace_rows: Arc<dyn NamespaceRows>,
    ticks: Arc<Ticks>,
    leader: Arc<WakeSet<String>>,
    leadership: Arc<Leadership>,
    replicas: Arc<Replicas>,
    registry: Registry,
    zone_index: Mutex<ZoneIndex>,
    /// Answers of agents about accounts without a zone.
    offers: Mutex<Offers>,
    /// Names of agents' objects whose approval is to be written down.
    approvals: WakeSet<String>,
    /// Sessions whose summary may have changed.
    dirty_summaries: WakeSet<u64>,
    /// Sessions whose outbox may have changed.
    dirty_outboxes: WakeSet<u64>,
    /// Accounts whose fence may have to be raised.
    dirty_fences: WakeSet<String>,
    /// Accounts whose list of namespaces is to be written.
    dirty_namespaces: WakeSet<String>,
    /// Sessions and accounts whose rows may have to change.
    dirty_assignments: WakeSet<(u64, String)>,
    /// Number of connected sessions.
    connected: watch::Sender<usize>,
    /// Namespaces that agents told, by uid.
    namespaces: Mutex<namespaces::Lists>,
    metrics: HubMetrics,
    log_limit: LogRateLimit,
    registering: Semaphore,
    registering_first: Semaphore,
    registering_new: Semaphore,
    /// Room for accounts that agents claim and that are none of their zones.
    foreign_claims: Arc<Semaphore>,
    credential_reads: Semaphore,
    /// Agents that wait to be registered, here or away until their time.
    admission_queues: Mutex<AdmissionQueues>,
    /// Agents that were never approved.
    unapproved_agents: Mutex<UnapprovedAgents>,
    /// How many these are.
    backlog: watch::Sender<usize>,
    /// The drain of a hub that stops.
    drain: Mutex<Option<Drain>>,
    /// Number of agents that were given a redial time.
    drained_agents: AtomicUsize,
    started: Instant,
    /// Disconnects not yet written.
    pending_disconnects: disconnects::PendingDisconnects,
    /// Agents that are forgotten and had accounts of their own.
    departed_agents: departed_agents::DepartedAgents,
    /// Accounts that vanished with many others.
    mass_delete_guard: mass_delete_guard::MassDeleteGuard,
    /// This replica alone does not reach the API server: agents are sent to the others.
    isolated: watch::Sender<bool>,
    /// The hub is stopping: sessions say goodbye.
    stopping: CancellationToken,
    tasks: TaskTracker,
}

impl Hub {
    /// A hub that serves nobody yet.
    pub fn new(settings: HubSettings, ports: HubPorts) -> Arc<Self> {
        let line = Mutex::new(AdmissionQueues::new(settings.registration_qps));
        Arc::new(Self {
            settings,
            accounts: ports.accounts,
            account_objects: ports.account_objects,
            credentials: ports.credentials,
            agents: ports.agents,
            agent_index: ports.agent_index,
            assignment_rows: ports.assignment_rows,
            fence_rows: ports.fence_rows,
            namespace_rows: ports.namespace_rows,
            ticks: ports.ticks,
            leader: ports.leader,
            leadership: ports.leadership,
            replicas: ports.replicas,
            registry: Registry::default(),
            zone_index: Mutex::default(),
            offers: Mutex::default(),
            approvals: WakeSet::default(),
            dirty_summaries: WakeSet::default(),
            dirty_outboxes: WakeSet::default(),
            dirty_fences: WakeSet::default(),
            dirty_namespaces: WakeSet::default(),
            dirty_assignments: WakeSet::default(),
            connected: watch::Sender::new(0),
            namespaces: Mutex::default(),
            metrics: HubMetrics::default(),
            log_limit: LogRateLimit::default(),
            registering: Semaphore::new(MAX_CONCURRENT_REGISTRATIONS),
            registering_first: Semaphore::new(MAX_CONCURRENT_REGISTRATIONS),
            registering_new: Semaphore::new(MAX_CONCURRENT_REGISTRATIONS),
            foreign_claims: Arc::new(Semaphore::new(foreign_claims::MAX_FOREIGN_OF_REPLICA)),
            credential_reads: Semaphore::new(MAX_CONCURRENT_CREDENTIAL_READS),
            admission_queues: line,
            unapproved_agents: Mutex::default(),
            backlog: watch::Sender::new(0),
            drain: Mutex::default(),
            isolated: watch::Sender::new(false),
            drained_agents: AtomicUsize::new(0),
            pending_disconnects: disconnects::PendingDisconnects::default(),
            departed_agents: departed_agents::DepartedAgents::default(),
            mass_delete_guard: mass_delete_guard::MassDeleteGuard::default(),
            started: Instant::now(),
            stopping: CancellationToken::new(),
            tasks: TaskTracker::new(),
        })
    }

    /// Binds the port.
    ///
    /// # Errors
    /// It is taken, the address is not one of this machine, or the right is missing. One line, with what to do.
    pub async fn bind(&self) -> Result<BoundHub, HubError> {
        let listener = listener::bind(&self.settings).await?;
        let address = listener.local_addr().map_err(|source| HubError::Bind {
            address: self.settings.address.clone(),
            port: self.settings.port,
            source,
        })?;
        Ok(BoundHub { listener, address })
    }

    /// How many agents wait to be registered, those among them that were told a time to come again, as it changes.
    pub fn backlog(&self) -> watch::Receiver<usize> {
        self.backlog.subscribe()
    }

    /// Agents that are connected by their objects, and not here, count as away from now on: they may come back within
    /// the grace. To be called whenever this replica begins to lead, before it decides; what cannot be read, also for
    /// want of an answer, is logged, and the grace of a new leader covers it. It takes 15 s at most.
    pub async fn remember_agents(&self) {
        match retry::ask_with_retries(|| self.agents.known()).await {
            Some(Ok(known)) => dispatch::remember(self, known),
            Some(Err(problem)) => warn!(error = %problem, "cannot read which agents were connected"),
            None => warn!("the API server does not say which agents were connected"),
        }
    }

    /// The hub's counters.
    pub fn metrics(&self) -> &HubMetrics {
        &self.metrics
    }

    /// Adds the hub's counters to a registry.
    pub fn register(&self, registry: &mut prometheus_client::registry::Registry) {
        self.metrics.register(registry);
    }

    /// Whether this replica leads: then the leader reads its sessions in the process.
    fn is_leading(&self) -> bool {
        self.leadership.leads()
    }

    /// Whether a line may be written that somebody at an address has provoked; without an address: that we have.
    fn may_log(&self, reason: &'static str, peer: Option<SocketAddr>) -> bool {
        let address = peer.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |peer| peer.ip());
        self.log_limit.may_log(reason, Caller::of(address))
    }

    fn moment(&self) -> Moment {
        self.started.elapsed()
    }

    /// Waits until no session stands.
    async fn emptied(&self) {
        // The sender lives as long as self, so this ends only when there is none.
        let _ = self.connected.subscribe().wait_for(|count| *count == 0).await;
    }

    fn silence_limit(&self) -> Duration {
        self.settings.heartbeat * MAX_MISSED_HEARTBEATS
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
        let health = tonic_health::server::HealthReporter::new();
        let router = server::router(&hub, &health).await?;
        let (stop, close) = (stop.child_token(), CancellationToken::new());
        // Whoever comes while agents leave is answered; only then is the port closed.
        let shut = CancellationToken::new();
        let door = Arc::new(listener::ConnectionPolicy {
            metrics: hub.metrics.clone(),
            cap: hub.settings.connection_cap,
            addresses: Addresses::new(hub.settings.limits.clone()),
            without_stream: Arc::default(),
            without_stream_cap: hub.settings.without_stream_cap,
            preface_wait: hub.settings.preface_wait,
            bounds: StreamDeadlines {
                first_request: hub.settings.request_wait,
                idle: hub.settings.idle_wait,
            },
            rest_port: hub.settings.rest_port,
            close: close.clone(),
            tasks: hub.tasks.clone(),
            log_limit: LogRateLimit::default(),
        });
        // Before the agents' objects were listed, nobody could be told from a stranger.
        let seen = Arc::clone(&hub.agent_index);
        let listed = async move { seen.synced().await };
        let incoming = ReceiverStream::new(listener::accept(self.listener, door, listed, shut.clone()));
        let essential = EssentialTasks::new(hub.tasks.clone(), stop.clone());
        essential.spawn("routing changes", dispatch::route_changes(Arc::clone(&hub), stop.clone()));
        essential.spawn("following agents", dispatch::follow_agents(Arc::clone(&hub), stop.clone()));
        essential.spawn("outbox writes", outbox_writer::run(Arc::clone(&hub), stop.clone()));
        essential.spawn("forgetting agents", dispatch::forget(Arc::clone(&hub), stop.clone()));
        essential.spawn("approvals of agents", approvals::run(Arc::clone(&hub), stop.clone()));
        essential.spawn("agent summaries", summaries::run(Arc::clone(&hub), stop.clone()));
        essential.spawn("agent collection", collection::run(Arc::clone(&hub), stop.clone()));
        essential.spawn("disconnects", disconnects::run(Arc::clone(&hub), stop.clone()));
        essential.spawn("mass delete guard", mass_delete_guard::run(Arc::clone(&hub), stop.clone()));
        essential.spawn("fences", fences::run(Arc::clone(&hub), stop.clone()));
        essential.spawn("namespace lists", namespaces::run(Arc::clone(&hub), stop.clone()));
        essential.spawn("assignments", assignments::run(Arc::clone(&hub), stop.clone()));
        let told = isolation::publish_health(Arc::clone(&hub), health.clone(), stop.clone());
        essential.spawn("health", told);
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
            hub.stopping.cancel();
            let deadline = tokio::time::Instant::now() + STOP_TIMEOUT;
            let _ = tokio::time::timeout_at(deadline, hub.emptied()).await;
            shut.cancel();
            hub.tasks.close();
            if tokio::time::timeout_at(deadline, hub.tasks.wait()).await.is_err() {
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
