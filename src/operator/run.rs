//! Puts the operator together, runs it and takes it down.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kube::{Client, Config};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::info;

use super::arguments::RunArguments;
use super::cluster;
use super::lead::Leader;
use super::peers;
use super::readiness::OperatorReadiness;
use crate::account::lifecycle::Policy;
use crate::budget::Budget;
use crate::cluster::Cluster;
use crate::config::{
    self,
    operator::{Approval, ClusterMode, OperatorSettings},
};
use crate::controller::{self, AdoptedRows, ControllerMetrics};
use crate::crash;
use crate::fleet::{Elsewhere, Everywhere, Fleet, Ticks};
use crate::hub::{
    AssignmentChecks, Hub, HubSettings, KubeAgentObjects, Pings, Ports, StoredAssignments, StoredFences,
    StoredNamespaces,
};
use crate::leases::{Elector, Leadership, LeaseObjects, Mandate, OwnLease, Replicas, Times};
use crate::objects::{Accounts, Agents, KubeAccountObjects, watch_accounts, watch_agents, watch_secrets};
use crate::rest::{self, RestPorts, RestSettings, RestState};
use crate::secrets::{CredentialSource, Credentials};
use crate::shutdown;
use crate::store;
use crate::store::projection::Projection;
use crate::telemetry::errors::chain;
use crate::telemetry::metrics::Metrics;
use crate::wakes::Wakes;

/// How many connections of agents the hub takes.
const AGENT_CONNECTIONS: usize = 20_000;

/// Runs the operator until a signal ends it.
///
/// # Errors
/// One line that says what is missing and what to do: the definitions, a right, the database, a port.
pub(super) async fn run(arguments: &RunArguments, settings: &OperatorSettings) -> Result<(), String> {
    let stop = CancellationToken::new();
    shutdown::on_signal(stop.clone()).map_err(|error| format!("signals cannot be caught: {error}"))?;
    let place = Place::find(arguments, settings).await?;
    let store = store::open(&settings.database_url).await.map_err(|error| chain(&error))?;
    let rest_listener = listen(&settings.server.address, settings.server.port).await?;
    let rest_address = rest_listener.local_addr().map_err(|error| error.to_string())?;

    let tasks = TaskTracker::new();
    let agents_seen = Arc::new(Agents::default());
    let seen = Arc::clone(&agents_seen);
    let cluster = Arc::new(peers::join(settings, &place, rest_address, seen, &tasks, &stop).await?);
    let projection = Projection::new(Arc::clone(&store));
    let accounts = Arc::new(Accounts::over(place.watched.len()));
    let changed_secrets = Arc::new(Wakes::default());
    for namespace in &place.watched {
        let (client, namespace) = (place.client.clone(), namespace.clone());
        tasks.spawn(watch_accounts(client.clone(), namespace.clone(), Arc::clone(&accounts), stop.clone()));
        tasks.spawn(watch_secrets(client, namespace, Arc::clone(&changed_secrets), stop.clone()));
    }
    // While the objects are listed: a start takes as long as the longer of the two.
    projection.load().await.map_err(|error| chain(&error))?;

    let credentials: Arc<dyn CredentialSource> =
        Arc::new(Credentials::new(place.client.clone(), settings.secrets.folders.clone()));
    let peers = Peers::new(settings, &place);
    let (ticks, wakes) = (Arc::new(Ticks::default()), Arc::new(Wakes::default()));
    let budget = Budget::new(settings.kubernetes.qps, settings.kubernetes.burst);
    let registrations =
        Budget::new(settings.kubernetes.registration_qps, settings.kubernetes.registration_qps);
    let agents = KubeAgentObjects::new(
        place.client.clone(),
        &place.namespace,
        approves(settings),
        Arc::clone(&peers.replicas),
    )
    .paced(registrations, budget.clone());
    tasks.spawn(watch_agents(
        place.client.clone(),
        place.namespace.clone(),
        Arc::clone(&agents_seen),
        stop.clone(),
    ));
    let ports = Ports {
        accounts: Arc::clone(&accounts),
        account_objects: Arc::new(KubeAccountObjects::new(place.client.clone(), budget.clone())),
        credentials: Arc::clone(&credentials),
        agents: Arc::new(agents),
        agents_seen: Arc::clone(&agents_seen),
        assignment_rows: Arc::new(StoredAssignments::new(Arc::clone(&store), &place.replica_id)),
        fence_rows: Arc::new(StoredFences(Arc::clone(&store))),
        namespace_rows: Arc::new(StoredNamespaces(Arc::clone(&store))),
        ticks: Arc::clone(&ticks),
        leader: Arc::clone(&wakes),
        leadership: Arc::clone(&peers.leadership),
        replicas: Arc::clone(&peers.replicas),
    };
    let hub = Hub::new(hub_settings(settings, &place, rest_address.port()), ports);
    if peers.leases.is_some() {
        // Those that an earlier process of this replica had are away, until they are back. Whoever leads looks anyway.
        hub.remember_agents().await;
    }
    peers.replicas.count_own(hub.backlog());
    let bound = hub.bind().await.map_err(|error| chain(&error))?;
    info!(
        version = env!("CARGO_PKG_VERSION"),
        replica = place.replica_id,
        namespace = place.namespace,
        rest = %rest_address,
        grpc = %bound.local_addr(),
        database = config::redact_url(&settings.database_url),
        "kubesvc-operator"
    );

    let metrics = ControllerMetrics::default();
    let exposition = exposition(&metrics, &hub, &projection, &cluster, &peers.leadership);
    let readiness = Arc::new(OperatorReadiness {
        accounts: Arc::clone(&accounts),
        projection: Arc::clone(&projection),
        leadership: Arc::clone(&peers.leadership),
        stopping: AtomicBool::new(false),
    });
    let here: Arc<dyn Fleet> = Arc::<Hub>::clone(&hub);
    let fleet = if peers.leases.is_some() {
        everywhere(&place, &hub, &peers, &accounts, agents_seen, &ticks, &wakes, &tasks, &stop)
    } else {
        Arc::clone(&here)
    };
    let ports = RestPorts {
        client: place.client.clone(),
        accounts: Arc::clone(&accounts),
        fleet: here,
        cluster,
        store: Arc::clone(&store),
        readiness: Arc::<OperatorReadiness>::clone(&readiness),
        metrics: exposition,
    };
    let state = RestState::new(rest_settings(settings, &place), ports);
    let adopts = settings.dynamic_accounts.adopt_rows.then(|| adopted_rows(settings, &place));
    let context = controller::Context {
        adopts,
        client: place.client,
        accounts,
        fleet,
        credentials,
        projection: Arc::clone(&projection),
        store,
        policy: policy(settings),
        ticks,
        wakes,
        changed_secrets,
        budget,
        mandate: Mandate::alone(&place.replica_id),
        replicas: Arc::clone(&peers.replicas),
        leases: peers.leases.clone(),
        replica_id: place.replica_id,
        metrics,
    };
    let leader = Leader {
        context,
        hub: Arc::clone(&hub),
        leadership: Arc::clone(&peers.leadership),
        has_peers: peers.leases.is_some(),
    };
    if leader.has_peers {
        projection.follow();
    }
    // The rows are written until the controller has said its last one, and only then is the Lease released.
    let (leading, writing, releasing) = (stop.clone(), CancellationToken::new(), CancellationToken::new());
    let left = CancellationToken::new();
    peers.start(&tasks, &hub, &releasing, &left);
    let written = writing.clone();
    tasks.spawn(async move {
        projection.run(written).await;
        releasing.cancel();
    });
    tasks.spawn(async move {
        leader.run(leading).await;
        writing.cancel();
    });
    tasks.spawn(rest::serve(rest_listener, rest::router(state), stop.clone()));
    let serving = bound.serve(hub, stop.clone());
    tasks.spawn(async move {
        let served = serving.await;
        left.cancel();
        served
    });
    tasks.close();
    stop.cancelled().await;
    readiness.stopping.store(true, Ordering::Relaxed);
    tasks.wait().await;
    info!("stopped");
    Ok(())
}

/// The agents of all replicas, kept in step until stopped.
#[expect(clippy::too_many_arguments, reason = "it puts parts together")]
fn everywhere(
    place: &Place,
    hub: &Arc<Hub>,
    peers: &Peers,
    accounts: &Arc<Accounts>,
    agents: Arc<Agents>,
    ticks: &Arc<Ticks>,
    leader: &Arc<Wakes<String>>,
    tasks: &TaskTracker,
    stop: &CancellationToken,
) -> Arc<dyn Fleet> {
    let elsewhere = Arc::new(Elsewhere::new(
        &place.replica_id,
        Arc::clone(&agents),
        Arc::clone(accounts),
        Arc::clone(&peers.replicas),
        Arc::clone(ticks),
    ));
    let (follows, leader, stop) = (Arc::clone(&elsewhere), Arc::clone(leader), stop.clone());
    tasks.spawn(async move { follows.follow(&leader, &stop).await });
    let here: Arc<dyn Fleet> = Arc::<Hub>::clone(hub);
    let (accounts, client) = (Arc::clone(accounts), place.client.clone());
    Arc::new(Everywhere::new(here, elsewhere, accounts, agents, client, &place.namespace))
}

/// What this replica has to do with others.
struct Peers {
    /// Absent: it is the only one.
    leases: Option<LeaseObjects>,
    replica_id: String,
    times: Times,
    leadership: Arc<Leadership>,
    replicas: Arc<Replicas>,
}

impl Peers {
    fn new(settings: &OperatorSettings, place: &Place) -> Self {
        let election = settings.leader_election;
        let times = Times {
            duration: election.duration,
            renew_deadline: election.renew_deadline,
            retry_period: election.retry_period,
        };
        let (id, replica_id) = (&place.replica_id, place.replica_id.clone());
        if may_have_peers(settings) {
            let leases = Some(LeaseObjects::new(place.client.clone(), &place.namespace));
            let (leadership, replicas) = (Leadership::unknown(), Replicas::unknown(id, times));
            return Self { leases, replica_id, times, leadership, replicas };
        }
        let (leadership, replicas) = (Leadership::alone(id), Replicas::alone(id));
        Self { leases: None, replica_id, times, leadership, replicas }
    }

    /// Starts what keeps the Leases: the leader's until `releasing`, and the replica's own until its agents have `left`.
    fn start(self, tasks: &TaskTracker, hub: &Hub, releasing: &CancellationToken, left: &CancellationToken) {
        let Some(leases) = self.leases else { return };
        let changed = Arc::new(Notify::new());
        let (watched, told) = (leases.clone(), Arc::clone(&changed));
        let (replicas, until) = (Arc::clone(&self.replicas), releasing.clone());
        tasks.spawn(async move { replicas.run(watched, told, until).await });
        let own = OwnLease::new(leases.clone(), &self.replicas, self.times, hub.backlog());
        tasks.spawn(own.run(left.clone()));
        let elector = Elector::new(leases, &self.replica_id, self.times, self.leadership, changed);
        tasks.spawn(elector.run(releasing.clone()));
    }
}

/// Whether there may be other replicas: a file of SQLite's belongs to one.
fn may_have_peers(settings: &OperatorSettings) -> bool {
    settings.cluster.mode != ClusterMode::Local && store::serves_several(&settings.database_url)
}

/// Who and where this replica is.
pub(super) struct Place {
    pub(super) client: Client,
    /// What the client was made of.
    pub(super) config: Config,
    pub(super) namespace: String,
    pub(super) replica_id: String,
    /// The namespaces to watch; absent: all.
    watched: Vec<Option<String>>,
}

impl Place {
    async fn find(arguments: &RunArguments, settings: &OperatorSettings) -> Result<Self, String> {
        let mut config = cluster::config(arguments).await?;
        let namespace = arguments.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        config.default_namespace.clone_from(&namespace);
        let server = config.cluster_url.to_string();
        let client = Client::try_from(config.clone())
            .map_err(|error| format!("no client for {server}: {}", chain(&error)))?;
        let watched = match settings.watch_namespaces.as_slice() {
            [] => vec![Some(namespace.clone())],
            all if all.iter().any(|one| one == "*") => vec![None],
            some => some.iter().cloned().map(Some).collect(),
        };
        cluster::check(&client, &server, &watched).await?;
        let replica_id = std::env::var("POD_NAME").unwrap_or_else(|_| {
            format!("{}-{}", gethostname::gethostname().to_string_lossy(), std::process::id())
        });
        Ok(Self { client, config, namespace, replica_id, watched })
    }

    fn watches(&self, namespace: &str) -> bool {
        self.watched.iter().any(|watched| watched.as_deref().is_none_or(|one| one == namespace))
    }
}

async fn listen(address: &str, port: u16) -> Result<TcpListener, String> {
    let host = if address == "*" || address.is_empty() { "0.0.0.0" } else { address };
    TcpListener::bind((host, port)).await.map_err(|error| {
        format!("cannot listen on {host}:{port} (server.address, server.port): {error}; choose another port, or stop who has it")
    })
}

fn approves(settings: &OperatorSettings) -> bool {
    settings.agents.approval == Approval::Auto
}

fn hub_settings(settings: &OperatorSettings, place: &Place, rest_port: u16) -> HubSettings {
    let policy = policy(settings);
    let accounts_namespace = accounts_namespace(settings, place);
    let usual = HubSettings::default();
    HubSettings {
        address: settings.grpc.address.clone(),
        port: settings.grpc.port,
        health_service: settings.grpc.health_service_enabled,
        max_message_bytes: settings.grpc.max_inbound_message_size,
        replica_id: place.replica_id.clone(),
        connection_cap: AGENT_CONNECTIONS,
        forget_after: policy.orphan_grace.saturating_mul(2),
        rest_port: Some(rest_port),
        pings: settings
            .grpc
            .keepalive
            .map(|keepalive| Pings { every: keepalive.every, timeout: keepalive.timeout }),
        cuts_off_silent: settings.heartbeat.enabled,
        assignment_checks: AssignmentChecks {
            initial_delay: settings.heartbeat.initial_delay,
            period: settings.heartbeat.period,
        },
        accounts_watched: place.watches(&accounts_namespace),
        accounts_namespace,
        operation_wait: policy.operation_wait,
        clustered: may_have_peers(settings),
        registration_qps: settings.kubernetes.registration_qps,
        orphan_grace: Duration::from_secs(policy.orphan_grace),
        remove_agents_after: crash::seconds("KUBESVC_AGENTS_GONE_SECONDS", usual.remove_agents_after),
        ..usual
    }
}

/// Where accounts that come by REST, from agents' own files, or from rows are made.
fn accounts_namespace(settings: &OperatorSettings, place: &Place) -> String {
    settings.dynamic_accounts.namespace.clone().unwrap_or_else(|| place.namespace.clone())
}

fn adopted_rows(settings: &OperatorSettings, place: &Place) -> AdoptedRows {
    let namespace = accounts_namespace(settings, place);
    AdoptedRows { watched: place.watches(&namespace), namespace }
}

fn rest_settings(settings: &OperatorSettings, place: &Place) -> RestSettings {
    RestSettings {
        max_body_bytes: settings.server.max_body_bytes,
        dynamic_accounts_enabled: settings.dynamic_accounts.enabled,
        accounts_namespace: accounts_namespace(settings, place),
        watched: place.watched.iter().flatten().cloned().collect(),
        replica_id: place.replica_id.clone(),
    }
}

fn policy(settings: &OperatorSettings) -> Policy {
    let accounts = &settings.dynamic_accounts;
    Policy {
        max_retries: accounts.max_retries,
        retry_first: accounts.retry_frequency.as_secs(),
        retry_multiplier: accounts.retry_multiplier,
        retry_max: accounts.retry_max_delay.as_secs(),
        orphan_grace: accounts.orphan_grace.as_secs(),
        operation_wait: settings.operation_wait.as_secs().max(1),
        account_cleanup: settings.account_cleanup.as_secs(),
    }
}

fn exposition(
    controller: &ControllerMetrics,
    hub: &Hub,
    projection: &Projection,
    cluster: &Cluster,
    leadership: &Leadership,
) -> Arc<dyn Fn() -> String + Send + Sync> {
    let mut metrics = Metrics::new();
    controller.register(&mut metrics.registry);
    hub.register(&mut metrics.registry);
    projection.register(&mut metrics.registry);
    cluster.register(&mut metrics.registry);
    leadership.register(&mut metrics.registry);
    Arc::new(move || metrics.encode())
}
