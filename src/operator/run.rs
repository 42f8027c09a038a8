//! Assembles the operator, runs it and shuts it down.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::info;

use super::arguments::RunArguments;
use super::database;
use super::exposure::{self, Exposure};
use super::isolation::IsolationWatcher;
use super::join_peers::{self, KeyOfReplicas};
use super::lead::Leader;
use super::leases::ReplicaLeases;
use super::readiness::OperatorReadiness;
use super::run_location::RunLocation;
use super::settings::{
    Connections, adopted_rows, approves, hub_settings, policy, precedence, registrations_of_strangers,
    rest_settings, source_rules,
};
use crate::background_tasks::{BackgroundTasks, TaskRegistry};
use crate::budget::Budget;
use crate::config::{
    self,
    operator::{OperatorSettings, ServerSettings},
};
use crate::controller::{self, ControllerMetrics};
use crate::fleet::{ClusterSessions, Fleet, RemoteSessions, Ticks};
use crate::hub::{Hub, HubPorts, KubeAgentObjects, StoredAssignments, StoredFences, StoredNamespaces};
use crate::leases::{Leadership, Mandate};
use crate::listen::http::{HttpMetrics, HttpServer};
use crate::objects::{
    AccountIndex, AgentIndex, KubeAccountObjects, SecretsSeen, watch_accounts, watch_agents, watch_secrets,
};
use crate::peers::Peers;
use crate::rest::{self, RestPorts, RestState, StartupState};
use crate::secrets::{CredentialSource, Credentials};
use crate::shutdown;
use crate::store::VendorTables;
use crate::store::projection::Projection;
use crate::telemetry::errors::chain;
use crate::telemetry::metrics::Metrics;
use crate::wake_set::WakeSet;

/// Runs the operator until a signal stops it.
///
/// # Errors
/// One line that says what is missing and what to do: the definitions, a permission, the database, a port. Or the
/// essential task that ended.
pub(super) async fn run(
    arguments: &RunArguments,
    settings: &OperatorSettings,
    open_files: u64,
) -> Result<(), String> {
    let connections = Connections::within(open_files);
    if connections.are_fewer() {
        let Connections { agents, rest } = connections;
        info!(open_files, agents, rest, "the limit on open files (ulimit -n) reduces connection limits");
    }
    let stop = CancellationToken::new();
    shutdown::on_signal(stop.clone()).map_err(|error| format!("signals cannot be caught: {error}"))?;
    let location = RunLocation::find(arguments, settings).await?;
    let rest_listener = listen(&settings.server.address, settings.server.port).await?;
    let rest_address = rest_listener.local_addr().map_err(|error| error.to_string())?;
    let health_listener = health_listener(&settings.server).await?;

    let tasks = TaskTracker::new();
    let starting = StartupState::new(&location.replica_id, "database", "it is being opened");
    let (started, http) = (stop.child_token(), HttpMetrics::default());
    let rest_server = || {
        let limits = rest::http_limits(connections.rest, settings.server.limits.clone());
        HttpServer::new("rest", limits, http.clone())
    };
    let health_server = || HttpServer::new("health", rest::health_limits(), http.clone());
    // From now on both ports answer: alive, but not ready.
    let until_started = |listener: TcpListener, server: HttpServer| {
        let (listener, at_start) = rest::second_listener(listener).map_err(|error| error.to_string())?;
        tasks.spawn(server.serve(at_start, rest::starting(starting.clone()), started.clone()));
        Ok::<_, String>(listener)
    };
    let rest_listener = until_started(rest_listener, rest_server())?;
    let health_listener =
        health_listener.map(|listener| until_started(listener, health_server())).transpose()?;
    // Dropped also if startup fails, so that probes do not hear that it continues.
    let started = started.drop_guard();
    let vendor = if settings.take_database_over { VendorTables::Rename } else { VendorTables::Refuse };
    let Some(store) = database::open(&settings.database_url, vendor, &starting, &stop).await? else {
        return Ok(());
    };
    starting.waits_for("accounts", "the first list of KubesvcAccounts is not complete");

    let background = BackgroundTasks::new(tasks.clone(), stop.clone(), TaskRegistry::default());
    let agents_seen = Arc::new(AgentIndex::default());
    let seen = Arc::clone(&agents_seen);
    let cluster =
        Arc::new(join_peers::join(settings, &location, rest_address, seen, &background, &stop).await?);
    let projection = Projection::new(Arc::clone(&store));
    let accounts = Arc::new(AccountIndex::over(location.watched.len()).with(precedence(settings)));
    let (changed_secrets, outdated_secrets) = (Arc::new(WakeSet::default()), Arc::new(WakeSet::default()));
    let source_rules = Arc::new(source_rules(settings, &location));
    let credentials = Credentials::new(location.client.clone(), settings.secrets.folders.clone())
        .ruled_by(Arc::clone(&source_rules))
        .shared_by(Arc::new(KeyOfReplicas(Arc::clone(&cluster))));
    let credentials = Arc::new(credentials);
    let secrets_changed = Arc::clone(&credentials);
    let watch_secrets_of = |namespace: Option<String>| {
        let credentials = Arc::clone(&secrets_changed);
        let seen = SecretsSeen {
            at_once: Arc::new(move |namespace, name| credentials.secret_changed(namespace, name)),
            changed: Arc::clone(&changed_secrets),
            outdated: Arc::clone(&outdated_secrets),
        };
        let watched = watch_secrets(location.client.clone(), namespace, seen, stop.clone());
        background.spawn("watch of Secrets", "Sees Secrets with credentials change", watched);
    };
    let credentials: Arc<dyn CredentialSource> = credentials;
    for namespace in &location.watched {
        let (client, namespace) = (location.client.clone(), namespace.clone());
        let watched = watch_accounts(client.clone(), namespace.clone(), Arc::clone(&accounts), stop.clone());
        background.spawn("watch of accounts", "Keeps the index of KubesvcAccounts", watched);
        watch_secrets_of(namespace);
    }
    for namespace in settings.secrets.namespaces.iter().filter(|one| !location.watches(one)) {
        watch_secrets_of(Some(namespace.clone()));
    }
    // While the objects are listed, so that startup takes only as long as the slower of the two.
    database::load(&projection).await?;

    let peers = ReplicaLeases::new(settings, &location);
    let (ticks, wakes) = (Arc::new(Ticks::default()), Arc::new(WakeSet::default()));
    let budget = Budget::new(settings.kubernetes.qps, settings.kubernetes.burst);
    let registrations =
        Budget::new(settings.kubernetes.registration_qps, settings.kubernetes.registration_qps);
    let of_strangers = registrations_of_strangers(settings.kubernetes.registration_qps);
    let of_strangers = Budget::new(of_strangers, of_strangers);
    let agents = KubeAgentObjects::new(
        location.client.clone(),
        &location.namespace,
        approves(settings),
        Arc::clone(&peers.replicas),
    )
    .paced(registrations, budget.clone(), of_strangers);
    let (watching, seen) = (location.client.clone(), Arc::clone(&agents_seen));
    let listed = background.registry().clone();
    let watched = watch_agents(watching, location.namespace.clone(), seen, listed, stop.clone());
    background.spawn("watch of agents", "Keeps the index of KubesvcAgents", watched);
    let ports = HubPorts {
        accounts: Arc::clone(&accounts),
        account_objects: Arc::new(KubeAccountObjects::new(location.client.clone(), budget.clone())),
        credentials: Arc::clone(&credentials),
        agents: Arc::new(agents),
        agent_index: Arc::clone(&agents_seen),
        assignment_rows: Arc::new(StoredAssignments::new(Arc::clone(&store), &location.replica_id)),
        fence_rows: Arc::new(StoredFences(Arc::clone(&store))),
        namespace_rows: Arc::new(StoredNamespaces(Arc::clone(&store))),
        ticks: Arc::clone(&ticks),
        leader: Arc::clone(&wakes),
        leadership: Arc::clone(&peers.leadership),
        replicas: Arc::clone(&peers.replicas),
    };
    let hub = Hub::new(hub_settings(settings, &location, rest_address.port(), connections), ports);
    if peers.leases.is_some() {
        // Agents of an earlier process of this replica count as absent until they reconnect. A leader reads them
        // anyway.
        hub.remember_agents().await;
    }
    peers.replicas.count_own(hub.backlog());
    let bound = hub.bind().await.map_err(|error| chain(&error))?;
    info!(
        version = env!("CARGO_PKG_VERSION"),
        replica = location.replica_id,
        namespace = location.namespace,
        rest = %rest_address,
        grpc = %bound.local_addr(),
        database = config::redact_url(&settings.database_url),
        "starting kubesvc-operator"
    );

    let doors = exposure::exposures(settings, !location.watches_own_alone());
    exposure::say(&doors);
    let metrics = ControllerMetrics::default();
    let exposition = exposition(
        &metrics,
        &hub,
        &projection,
        &cluster,
        &peers.leadership,
        &http,
        &doors,
        background.registry(),
    );
    let readiness = Arc::new(OperatorReadiness {
        accounts: Arc::clone(&accounts),
        projection: Arc::clone(&projection),
        leadership: Arc::clone(&peers.leadership),
        replicas: Arc::clone(&peers.replicas),
        isolated: AtomicBool::new(false),
        stopping: AtomicBool::new(false),
    });
    if peers.leases.is_some() {
        let watcher = IsolationWatcher {
            replicas: Arc::clone(&peers.replicas),
            peers: Arc::clone(&cluster),
            hub: Arc::clone(&hub),
            readiness: Arc::clone(&readiness),
            duration: settings.leader_election.duration,
            checks: Mutex::default(),
        };
        watcher.start(&background);
    }
    let here: Arc<dyn Fleet> = Arc::<Hub>::clone(&hub);
    let (agents, changed_agents) = (Arc::clone(&agents_seen), agents_seen.follow());
    let fleet = if peers.leases.is_some() {
        cluster_sessions(&location, &hub, &peers, &accounts, agents_seen, &ticks, &wakes, &background, &stop)
    } else {
        Arc::clone(&here)
    };
    let ports = RestPorts {
        client: location.client.clone(),
        accounts: Arc::clone(&accounts),
        fleet: here,
        peers: cluster,
        store: Arc::clone(&store),
        readiness: Arc::<OperatorReadiness>::clone(&readiness),
        tasks: background.registry().clone(),
        metrics: exposition,
    };
    let state = RestState::new(rest_settings(settings, &location), ports);
    let adopts = settings.dynamic_accounts.adopt_rows.then(|| adopted_rows(settings, &location));
    let context = controller::ControllerContext {
        adopts,
        client: location.client,
        accounts,
        fleet,
        agents,
        changed_agents,
        credentials,
        projection: Arc::clone(&projection),
        store,
        policy: policy(settings),
        source_rules,
        ticks,
        wakes,
        changed_secrets,
        outdated_secrets,
        budget,
        tasks: background.registry().clone(),
        mandate: Mandate::alone(&location.replica_id),
        replicas: Arc::clone(&peers.replicas),
        leases: peers.leases.clone(),
        replica_id: location.replica_id,
        metrics,
    };
    let leader = Leader {
        context,
        hub: Arc::clone(&hub),
        leadership: Arc::clone(&peers.leadership),
        has_peers: peers.leases.is_some(),
        lease_duration: settings.leader_election.duration,
    };
    if leader.has_peers {
        projection.follow();
    }
    // Rows are written until the controller has queued its last one; only then is the Lease released.
    let (leading, writing, releasing) = (stop.clone(), CancellationToken::new(), CancellationToken::new());
    let left = CancellationToken::new();
    peers.start(&background, &hub, &releasing, &left);
    let written = writing.clone();
    // Drop guards, so that a panic of one task also lets the others finish.
    let (writing, releasing, left) = (writing.drop_guard(), releasing.drop_guard(), left.drop_guard());
    let listed = background.registry().clone();
    background.spawn("rows", "Writes rows until the controller has said its last one", async move {
        let _releasing = releasing;
        projection.run(&listed, written).await;
    });
    background.spawn("controller", "Leads whenever it is this replica's turn", async move {
        let _writing = writing;
        leader.run(leading).await;
    });
    drop(started);
    if let Some(listener) = health_listener {
        let health = rest::health_router(state.clone());
        let serving = health_server().serve(listener, health, stop.clone());
        background.spawn("health", "Answers probes on a port of their own", serving);
    }
    let serving = rest_server().serve(rest_listener, rest::router(state), stop.clone());
    background.spawn("REST", "Serves the API, health and metrics", serving);
    let serving = bound.serve(hub, stop.clone());
    background.spawn("hub", "Serves the agents", async move {
        let _left = left;
        serving.await
    });
    tasks.close();
    stop.cancelled().await;
    readiness.stopping.store(true, Ordering::Relaxed);
    tasks.wait().await;
    info!("stopped");
    background.failed_task().map_or(Ok(()), |why| Err(format!("an essential task ended: {why}")))
}

/// The agents of all replicas, kept in sync until stopped.
#[expect(clippy::too_many_arguments, reason = "it puts parts together")]
fn cluster_sessions(
    location: &RunLocation,
    hub: &Arc<Hub>,
    peers: &ReplicaLeases,
    accounts: &Arc<AccountIndex>,
    agents: Arc<AgentIndex>,
    ticks: &Arc<Ticks>,
    leader: &Arc<WakeSet<String>>,
    background: &BackgroundTasks,
    stop: &CancellationToken,
) -> Arc<dyn Fleet> {
    let elsewhere = Arc::new(RemoteSessions::new(
        &location.replica_id,
        Arc::clone(&agents),
        Arc::clone(accounts),
        Arc::clone(&peers.replicas),
        Arc::clone(ticks),
    ));
    let (follows, leader, stop) = (Arc::clone(&elsewhere), Arc::clone(leader), stop.clone());
    background.spawn("agents of other replicas", "Follows the agents that other replicas have", async move {
        follows.follow(&leader, &stop).await;
    });
    let here: Arc<dyn Fleet> = Arc::<Hub>::clone(hub);
    let (accounts, client) = (Arc::clone(accounts), location.client.clone());
    Arc::new(ClusterSessions::new(here, elsewhere, accounts, agents, client, &location.namespace))
}

/// The listener for the health port, if it is separate.
async fn health_listener(server: &ServerSettings) -> Result<Option<TcpListener>, String> {
    let Some(port) = server.health_port else { return Ok(None) };
    let address = &server.address;
    crate::listen::listen(address, port).await.map(Some).map_err(|error| {
        format!("cannot listen on {address}:{port} (server.address, server.health.port): {error}; choose another port, or stop the process that uses it")
    })
}

async fn listen(address: &str, port: u16) -> Result<TcpListener, String> {
    crate::listen::listen(address, port).await.map_err(|error| {
        format!("cannot listen on {address}:{port} (server.address, server.port): {error}; choose another port, or stop the process that uses it")
    })
}

#[expect(clippy::too_many_arguments, reason = "it puts parts together")]
fn exposition(
    controller: &ControllerMetrics,
    hub: &Hub,
    projection: &Projection,
    cluster: &Peers,
    leadership: &Leadership,
    http: &HttpMetrics,
    doors: &[Exposure],
    tasks: &TaskRegistry,
) -> Arc<dyn Fn() -> String + Send + Sync> {
    let mut metrics = Metrics::new();
    controller.register(&mut metrics.registry);
    hub.register(&mut metrics.registry);
    projection.register(&mut metrics.registry);
    cluster.register(&mut metrics.registry);
    leadership.register(&mut metrics.registry);
    http.register(metrics.registry.sub_registry_with_prefix("kubesvc"));
    exposure::register(doors, &mut metrics.registry);
    tasks.register(&mut metrics.registry);
    Arc::new(move || metrics.encode())
}
