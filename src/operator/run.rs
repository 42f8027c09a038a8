//! Assembles the operator, runs it and shuts it down.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use tracing::info;

use super::OperatorError;
use super::agent_identities::IdentityPorts;
use super::cache_sweeps::CacheSweeps;
use super::caching_adapter::CachingAdapter;
use super::certificate_metrics::CertificateMetrics;
use super::gateway::GatewayPort;
use super::hub_tls::HubTls;
use super::kube_client::RunLocation;
use super::lead::Leader;
use super::part_settings::{
    Connections, accounts_namespace, adopted_rows, approves, caching_settings, hub_settings,
    operation_settings, policy, precedence, registration_policy, rest_settings, scanner_settings,
    source_rules, unapproved_registration_qps,
};
use super::readiness::{IsolationWatcher, OperatorReadiness};
use super::replicas::{self, ReplicaLeases};
use super::rest_tls::RestTls;
use super::run_arguments::RunArguments;
use super::security_warnings;
use super::settings::{AuditOutput, OperationsAuth, OperatorSettings, PassThrough};
use super::startup::{self, StartupPorts};
use super::state_metrics::StateMetrics;
use super::tls_files;
use crate::access::audit::AuditLog;
use crate::access::{Access, AccessMode, CallerCounts, KubeAccessReviews};
use crate::account_caches::AccountCaches;
use crate::clouddriver::{ClouddriverClient, ClouddriverProxy, Registrations, RenewedTls};
use crate::connected_agents::{ClusterSessions, ConnectedAgents, LeaderClock, RemoteSessions};
use crate::controller::{ControllerContext, ControllerMetrics};
use crate::credentials_sources::CredentialsSources;
use crate::gateway::GatewayPorts;
use crate::hub::{AgentIdentities, BoundHub, CachePorts, Hub, HubPorts, KubeAgentObjects};
use crate::informers::{AccountIndex, AgentIndex, SecretsSeen, watch_accounts, watch_agents, watch_secrets};
use crate::leases::{Leadership, Mandate};
use crate::migration::{MigrationMetrics, MigrationPorts, Migrator};
use crate::operations::{OperationPorts, OperationUpkeep, Operations};
use crate::peers::Peers;
use crate::registration::{Registrar, RegistrationMetrics, RegistrationPorts};
use crate::replica_port::{self, ReplicaPorts};
use crate::request_routing::RequestRouter;
use crate::rest::{
    AccountManagement, AccountManagementPorts, IntentSettlement, RestAccessMetrics, RestPorts, RestState,
    StartupState,
};
use crate::secrets::{CredentialSource, Credentials};
use crate::source_accounts::{DeclinedAccounts, SourceAccounts};
use kubesvc_core::source_rules::SourceRules;
use kubesvc_runtime::background_tasks::{BackgroundTasks, TaskRegistry};
use kubesvc_runtime::config;
use kubesvc_runtime::kube_access::{self, KubeAccess};
use kubesvc_runtime::listen::port::HttpMetrics;
use kubesvc_runtime::rate_limit::RateLimit;
use kubesvc_runtime::shutdown;
use kubesvc_runtime::telemetry::metrics::Metrics;
use kubesvc_runtime::work_queue::WorkQueue;
use kubesvc_store::account_projection::Projection;
use kubesvc_store::{CacheStore, InstallationClaim, OpenOptions, Store, StoreError, VendorTables};

/// Minimum interval of reads of Clouddriver's table.
const MIN_TABLE_RELOAD: Duration = Duration::from_secs(1);
/// What the key of the hashes of sources' entries is derived for.
const SOURCE_HASH_PURPOSE: &[u8] = b"credentials source";

/// What most parts of the operator share.
struct Assembly<'a> {
    settings: &'a OperatorSettings,
    location: RunLocation,
    background: BackgroundTasks,
    stop: CancellationToken,
    store: Arc<dyn Store>,
    cache: Arc<dyn CacheStore>,
    projection: Arc<Projection>,
    accounts: Arc<AccountIndex>,
    agents: Arc<AgentIndex>,
    peers: Arc<Peers>,
    ticks: Arc<LeaderClock>,
    wakes: Arc<WorkQueue<String>>,
    callers: Arc<CallerCounts>,
    hub_tls: Option<HubTls>,
    rest_tls: Option<RestTls>,
    identities: Option<IdentityPorts>,
    audit: AuditLog,
    /// Who calls REST.
    rest_access: Arc<dyn Access>,
    rest_access_metrics: RestAccessMetrics,
}

/// The credentials of accounts, and the Secrets that changed.
struct WatchedCredentials {
    source: Arc<dyn CredentialSource>,
    rules: Arc<SourceRules>,
    /// By namespace and name.
    changed: Arc<WorkQueue<(String, String)>>,
    outdated: Arc<WorkQueue<(String, String)>>,
}

/// Runs the operator until a signal stops it.
///
/// # Errors
/// The definitions, a permission, the database or a port is missing, or an essential task ended.
pub(super) async fn run(
    arguments: &RunArguments,
    settings: &OperatorSettings,
    open_files: u64,
) -> Result<(), OperatorError> {
    let connections = Connections::within(open_files);
    if connections.are_fewer() {
        let Connections { agents, rest } = connections;
        info!(open_files, agents, rest, "the limit on open files (ulimit -n) reduces connection limits");
    }
    let stop = CancellationToken::new();
    shutdown::on_signal(stop.clone()).map_err(OperatorError::Signals)?;
    let (hub_tls, rest_tls) = (HubTls::read(settings).await?, RestTls::read(settings).await?);
    let audit = audit_log(settings)?;
    let location = RunLocation::find(arguments, settings).await?;
    let identities = IdentityPorts::read(settings, &location).await?;
    let (tasks, http) = (TaskTracker::new(), HttpMetrics::default());
    let background = BackgroundTasks::new(tasks.clone(), stop.clone(), TaskRegistry::default());
    let starting = StartupState::new(&location.replica_id, "database", "it is being opened");
    let server = &settings.server;
    let tls = rest_tls.as_ref().map(RestTls::server);
    let ports =
        StartupPorts::open(server, (connections.rest, tls), &starting, &http, &background, &stop).await?;
    rest_tls.iter().for_each(|tls| tls.start(&background));
    let leases = ReplicaLeases::new(settings, &location);
    // Also where startup ends early.
    let releasing = leases.releasing.clone().drop_guard();
    let opened = if leases.wait_for_turn(&background, &starting, &stop).await {
        let opening = open_options(settings, &location, false);
        let (url, cache_writers) = (&settings.database_url, settings.cache.writers);
        startup::open_database(url, &opening, cache_writers, &starting, &stop).await?
    } else {
        None
    };
    let Some((store, cache)) = opened else {
        drop((releasing, ports));
        tasks.close();
        tasks.wait().await;
        return Ok(());
    };
    starting.waits_for("accounts", "the first list of KubesvcAccounts is not complete");

    let agents = Arc::new(AgentIndex::default());
    let (address, seen) = (ports.rest_address, Arc::clone(&agents));
    let peers = replicas::join(settings, &location, address, seen, &background, &stop).await?;
    let assembly = Assembly {
        settings,
        background,
        stop,
        projection: Projection::new(Arc::clone(&store)),
        store,
        cache,
        accounts: Arc::new(
            AccountIndex::over(location.watched.len())
                .with(precedence(settings))
                .served_by(location.installation.clone()),
        ),
        agents,
        peers: Arc::new(peers),
        ticks: Arc::new(LeaderClock::default()),
        wakes: Arc::new(WorkQueue::default()),
        callers: Arc::default(),
        hub_tls,
        rest_tls,
        identities,
        audit,
        rest_access: KubeAccessReviews::of_rest(&location.kube, settings.rest_auth.certificates.clone()),
        rest_access_metrics: RestAccessMetrics::default(),
        location,
    };
    let credentials = assembly.watch_accounts_and_secrets();
    // While the objects are listed, so that startup takes only as long as the slower of the two.
    startup::load_rows(&assembly.projection).await?;
    let readiness = assembly.start(connections, &http, ports, (credentials, leases)).await?;
    // From here on, the writer of rows says when.
    let _ = releasing.disarm();

    tasks.close();
    assembly.stop.cancelled().await;
    readiness.stopping.store(true, Ordering::Relaxed);
    tasks.wait().await;
    info!("stopped");
    let failed = assembly.background.failed_task();
    failed.map_or(Ok(()), |why| Err(OperatorError::TaskEnded(why.to_owned())))
}

/// Makes the database that of this installation. Returns what it was, in one sentence.
///
/// # Errors
/// The API server or the database cannot be used.
pub(super) async fn claim_database(
    arguments: &RunArguments,
    settings: &OperatorSettings,
) -> Result<String, OperatorError> {
    let location = RunLocation::find(arguments, settings).await?;
    let (database, own) = (config::redact_url(&settings.database_url), location.installation.clone());
    match kubesvc_store::open(&settings.database_url, open_options(settings, &location, false)).await {
        Ok(_) => Ok(format!("The database {database} belongs to {own} already.")),
        Err(StoreError::Claimed { owner, .. }) => {
            kubesvc_store::open(&settings.database_url, open_options(settings, &location, true)).await?;
            Ok(format!("The database {database} belongs to {own} now; before, it belonged to {owner}."))
        }
        // An operator that another installation's database was refused to does not hold the lock while it waits.
        Err(StoreError::InUse { owner, .. }) => {
            let owner = if owner.is_empty() { "another process" } else { &owner };
            Ok(format!(
                "There is nothing to claim: the database {database} is in use by {owner}, so it belongs to that \
                 operator's installation."
            ))
        }
        Err(error) => Err(error.into()),
    }
}

/// Where audit lines go.
fn audit_log(settings: &OperatorSettings) -> Result<AuditLog, OperatorError> {
    match &settings.audit_output {
        AuditOutput::Stdout => Ok(AuditLog::to_stdout()),
        AuditOutput::File(path) => AuditLog::to_file(path)
            .map_err(|source| OperatorError::AuditOutput { path: path.clone(), source }),
    }
}

fn open_options(settings: &OperatorSettings, location: &RunLocation, replaces: bool) -> OpenOptions {
    let vendor = if settings.take_database_over { VendorTables::Rename } else { VendorTables::Refuse };
    OpenOptions { vendor, claim: Some(InstallationClaim { by: location.installation.clone(), replaces }) }
}

impl Assembly<'_> {
    /// Starts the watches of accounts and of Secrets with credentials.
    fn watch_accounts_and_secrets(&self) -> WatchedCredentials {
        let Self { settings, location, stop, .. } = self;
        let (changed, outdated) = (Arc::new(WorkQueue::default()), Arc::new(WorkQueue::default()));
        let rules = Arc::new(source_rules(settings, location));
        let credentials = Credentials::new(location.kube.clone(), settings.secrets.folders.clone())
            .ruled_by(Arc::clone(&rules))
            .shared_by(Arc::<Peers>::clone(&self.peers));
        let credentials = Arc::new(credentials);
        let watch_secrets_of = |namespace: Option<String>| {
            let credentials = Arc::clone(&credentials);
            let seen = SecretsSeen {
                at_once: Arc::new(move |namespace, name| credentials.secret_changed(namespace, name)),
                changed: Arc::clone(&changed),
                outdated: Arc::clone(&outdated),
            };
            let watched = watch_secrets(location.kube.clone(), namespace, seen, stop.clone());
            self.background.spawn("watch of Secrets", "Sees Secrets with credentials change", watched);
        };
        for namespace in &location.watched {
            let accounts = Arc::clone(&self.accounts);
            let watched = watch_accounts(location.kube.clone(), namespace.clone(), accounts, stop.clone());
            self.background.spawn("watch of accounts", "Keeps the index of KubesvcAccounts", watched);
            watch_secrets_of(namespace.clone());
        }
        for namespace in settings.secrets.namespaces.iter().filter(|one| !location.watches(one)) {
            watch_secrets_of(Some(namespace.clone()));
        }
        WatchedCredentials { source: credentials, rules, changed, outdated }
    }

    /// Starts all other parts, and serves REST with all of its routes. Returns what the probes ask.
    async fn start(
        &self,
        connections: Connections,
        http: &HttpMetrics,
        ports: StartupPorts,
        (credentials, leases): (WatchedCredentials, ReplicaLeases),
    ) -> Result<Arc<OperatorReadiness>, OperatorError> {
        let Self { settings, location, .. } = self;
        let rate_limit = RateLimit::new(settings.kubernetes.qps, settings.kubernetes.burst);
        let kube = location.kube.clone().limited_by(rate_limit.clone(), []);
        let rest_address = ports.rest_address;
        let (hub, bound) = self
            .bind_hub((&kube, rate_limit), &credentials, &leases, (rest_address.port(), connections))
            .await?;
        info!(
            version = env!("CARGO_PKG_VERSION"),
            replica = location.replica_id.as_str(),
            namespace = location.namespace,
            rest = %rest_address,
            grpc = %bound.local_addr(),
            database = config::redact_url(&settings.database_url),
            "starting kubesvc-operator"
        );

        let router = Arc::new(RequestRouter::new(hub.requests(), Arc::clone(&self.peers)));
        let operations = self.operations(&router, &leases, ports.served());
        let registrations = self.registrations();
        let registration_metrics = RegistrationMetrics::default();
        let migration_metrics = MigrationMetrics::default();
        let metrics = ControllerMetrics::default();
        let gateway = self.gateway(&hub, (&router, &operations), connections).await?;
        let sources = self.credentials_sources();
        let of_accounts = (&*router, &*operations, gateway.as_ref());
        let clouddriver_tls = tls_files::clouddriver(&settings.clouddriver, &self.background).await?;
        let account_management = self.account_management(&clouddriver_tls)?;
        let exposition = self.exposition(
            (&metrics, &registration_metrics, &migration_metrics, account_management.as_deref()),
            &hub,
            of_accounts,
            &sources,
            &leases.leadership,
            http,
        );
        let readiness = self.readiness(&leases, &hub);
        if leases.leases.is_some() {
            self.watch_isolation(&leases, &hub, &readiness);
        }
        let changed_agents = self.agents.follow();
        let connected_agents = self.connected_agents(&hub, &leases);
        let source_accounts = self.source_accounts(sources);
        let migrator = self.migrator(&source_accounts, &migration_metrics)?;
        let clouddriver = (source_accounts, account_management);
        let rest = self.rest_state(&hub, &readiness, Arc::clone(&operations), clouddriver, exposition);
        let settlement = IntentSettlement::new(&rest, &leases.replicas);
        router.start(&self.background);
        let mut context =
            self.controller_context(kube, connected_agents, changed_agents, credentials, &leases, metrics);
        context.registrations.clone_from(&registrations);
        let leader = Leader {
            context,
            sweeps: self.cache_sweeps(&hub),
            upkeep: OperationUpkeep {
                operations,
                projection: Arc::clone(&self.projection),
                tasks: self.background.registry().clone(),
            },
            hub: Arc::clone(&hub),
            leadership: Arc::clone(&leases.leadership),
            migrator,
            registrar: self.registrar(registrations.as_ref(), &clouddriver_tls, &registration_metrics)?,
            settlement,
            has_peers: leases.leases.is_some(),
            lease_duration: settings.leader_election.duration,
            has_led: AtomicBool::new(false),
        };
        let left = self.lead(leader, &leases, &hub);
        let also_serving = ports.serving();
        self.serve_replicas(&hub, &readiness, http, ports.serving()).await?;
        ports.serve(rest);
        if let Some(gateway) = gateway {
            gateway.serve(location, &self.background, http, &self.stop, also_serving)?;
        }
        let serving = bound.serve(hub, self.background.registry().clone(), self.stop.clone());
        self.background.spawn("hub", "Serves the agents", async move {
            let _left = left;
            serving.await
        });
        Ok(readiness)
    }

    /// The hub, which listens on its port and answers nobody yet.
    async fn bind_hub(
        &self,
        (kube, rate_limit): (&KubeAccess, RateLimit),
        credentials: &WatchedCredentials,
        leases: &ReplicaLeases,
        (rest_port, connections): (u16, Connections),
    ) -> Result<(Arc<Hub>, BoundHub), OperatorError> {
        let Self { settings, location, .. } = self;
        let registered = self.agent_objects(leases, rate_limit);
        self.watch_agents();
        let identities =
            self.identities.as_ref().map(|one| one.start(location, &self.background, &self.stop));
        let ports = self.hub_ports(kube, (registered, identities), credentials, leases);
        let tls = self.hub_tls.as_ref();
        let hub = Hub::new(hub_settings(settings, location, rest_port, connections, tls), ports);
        if leases.leases.is_some() {
            // Agents of an earlier process of this replica count as absent until they reconnect. A leader reads them
            // anyway.
            hub.remember_agents().await;
        }
        leases.replicas.count_own(hub.backlog());
        let bound = hub.bind().await?;
        if let Some(tls) = tls {
            tls.start(&settings.cluster.service_name_prefix, location, &self.background);
        }
        Ok((hub, bound))
    }

    /// Answers the other replicas, if there may be any. `serving` is held until the last call has ended.
    async fn serve_replicas(
        &self,
        hub: &Arc<Hub>,
        readiness: &Arc<OperatorReadiness>,
        http: &HttpMetrics,
        serving: Arc<DropGuard>,
    ) -> Result<(), OperatorError> {
        if !self.peers.takes_calls() {
            return Ok(());
        }
        let (address, port) = (&self.settings.server.address, self.settings.replicas_port);
        let listener = startup::listen(address, port, "server.address, kubesvc.replicas.port").await?;
        let readiness = Arc::clone(readiness);
        let ports = ReplicaPorts {
            replica_id: self.location.replica_id.clone(),
            connected_agents: Arc::<Hub>::clone(hub),
            requests: hub.requests(),
            accounts: Arc::clone(&self.accounts),
            access: KubeAccessReviews::new(&self.location.kube, AccessMode::Required),
            audit: self.audit.clone(),
            answered_for: Arc::new(move || readiness.replicas.answered_for()),
        };
        let (peers, http, stop) = (Arc::clone(&self.peers), http.clone(), self.stop.clone());
        self.background.spawn("port for replicas", "Answers the other replicas", async move {
            peers.serve(listener, replica_port::router(ports), http, stop).await;
            drop(serving);
        });
        Ok(())
    }

    /// What is cached of accounts, for REST and the API of accounts.
    fn account_caches(&self, hub: &Arc<Hub>) -> AccountCaches {
        AccountCaches {
            store: Arc::clone(&self.cache),
            connected_agents: Arc::<Hub>::clone(hub),
            peers: Arc::clone(&self.peers),
            kinds: self.settings.cache.rules.clone(),
            defaults: self.settings.cache.defaults.clone(),
        }
    }

    /// The API of accounts, if it is to be served.
    async fn gateway(
        &self,
        hub: &Arc<Hub>,
        (router, operations): (&Arc<RequestRouter>, &Arc<Operations>),
        connections: Connections,
    ) -> Result<Option<GatewayPort>, OperatorError> {
        let Some(settings) = &self.settings.gateway else { return Ok(None) };
        let ports = GatewayPorts {
            access: KubeAccessReviews::new(&self.location.kube, AccessMode::Required),
            requests: Arc::<RequestRouter>::clone(router),
            accounts: Arc::clone(&self.accounts),
            caches: Arc::new(self.account_caches(hub)),
            history: Arc::<Operations>::clone(operations),
            store: Arc::<dyn Store>::clone(&self.store),
            audit: self.audit.clone(),
            callers: Arc::clone(&self.callers),
        };
        let location = &self.location;
        GatewayPort::open(settings, location, connections.gateway(), ports, &self.stop).await.map(Some)
    }

    /// Writer of the KubesvcAgents, which registers agents.
    fn agent_objects(&self, leases: &ReplicaLeases, writes: RateLimit) -> KubeAgentObjects {
        let Self { settings, location, .. } = self;
        let qps = settings.kubernetes.registration_qps;
        let unapproved = unapproved_registration_qps(qps);
        let replicas = Arc::clone(&leases.replicas);
        KubeAgentObjects::new(&location.kube, &location.namespace, approves(settings), replicas).paced(
            RateLimit::new(qps, qps),
            writes,
            RateLimit::new(unapproved, unapproved),
        )
    }

    fn watch_agents(&self) {
        let (kube, namespace) = (self.location.kube.clone(), self.location.namespace.clone());
        let listed = self.background.registry().clone();
        let watched = watch_agents(kube, namespace, Arc::clone(&self.agents), listed, self.stop.clone());
        self.background.spawn("watch of agents", "Keeps the index of KubesvcAgents", watched);
    }

    fn hub_ports(
        &self,
        kube: &KubeAccess,
        (agents, identities): (KubeAgentObjects, Option<AgentIdentities>),
        credentials: &WatchedCredentials,
        leases: &ReplicaLeases,
    ) -> HubPorts {
        HubPorts {
            accounts: Arc::clone(&self.accounts),
            account_objects: Arc::new(kube.clone()),
            credentials: Arc::clone(&credentials.source),
            agents: Arc::new(agents),
            agent_index: Arc::clone(&self.agents),
            assignment_rows: self.store.clone(),
            fence_rows: self.store.clone(),
            namespace_rows: self.store.clone(),
            cache: Some(self.cache_ports()),
            ticks: Arc::clone(&self.ticks),
            leader: Arc::clone(&self.wakes),
            leadership: Arc::clone(&leases.leadership),
            replicas: Arc::clone(&leases.replicas),
            identities,
        }
    }

    /// What is known of accounts in Clouddriver; `None`: it is not called.
    fn registrations(&self) -> Option<Arc<Registrations>> {
        let clouddriver = &self.settings.clouddriver;
        let removal_wait = clouddriver.push.removal_wait.as_secs();
        clouddriver.base_url.as_ref().map(|_| Arc::new(Registrations::new(removal_wait)))
    }

    /// Registers accounts in Clouddriver, if they are to be, and lists its accounts.
    fn registrar(
        &self,
        registrations: Option<&Arc<Registrations>>,
        tls: &Arc<RenewedTls>,
        metrics: &RegistrationMetrics,
    ) -> Result<Option<Registrar>, OperatorError> {
        let clouddriver = &self.settings.clouddriver;
        let (Some(registrations), Some(base)) = (registrations, &clouddriver.base_url) else {
            return Ok(None);
        };
        let ports = RegistrationPorts {
            clouddriver: Arc::new(self.clouddriver_client(base, tls)?),
            accounts: Arc::clone(&self.accounts),
            store: Arc::clone(&self.store),
            projection: Arc::clone(&self.projection),
            registrations: Arc::clone(registrations),
            wakes: Arc::clone(&self.wakes),
            ticks: Arc::clone(&self.ticks),
            tasks: self.background.registry().clone(),
            metrics: metrics.clone(),
        };
        Ok(Some(Registrar::new(registration_policy(self.settings, &self.location), ports)))
    }

    /// Clouddriver's account management, passed on to others; `None`: it is not called.
    fn account_management(
        &self,
        tls: &Arc<RenewedTls>,
    ) -> Result<Option<Arc<AccountManagement>>, OperatorError> {
        let clouddriver = &self.settings.clouddriver;
        let Some(base) = &clouddriver.base_url else { return Ok(None) };
        let installation = &self.location.installation.uid;
        let accounts = &self.settings.dynamic_accounts;
        let ports = AccountManagementPorts {
            proxy: ClouddriverProxy::new(base, Arc::clone(tls), installation)?,
            accounts: Arc::new(self.clouddriver_client(base, tls)?),
            passes_all: clouddriver.pass_through == PassThrough::All,
            passes_secrets: clouddriver.pass_secrets,
            follows: accounts.interceptor && accounts.enabled,
            poll: clouddriver.push.poll,
        };
        Ok(Some(Arc::new(AccountManagement::new(ports))))
    }

    fn clouddriver_client(
        &self,
        base: &str,
        tls: &Arc<RenewedTls>,
    ) -> Result<ClouddriverClient, OperatorError> {
        let clouddriver = &self.settings.clouddriver;
        let base = base.parse().map_err(OperatorError::ClouddriverUrl)?;
        Ok(ClouddriverClient::new(base, &clouddriver.push.user, Arc::clone(tls))?)
    }

    fn migrator(
        &self,
        source_accounts: &Arc<SourceAccounts>,
        metrics: &MigrationMetrics,
    ) -> Result<Migrator, OperatorError> {
        let ports = MigrationPorts {
            kube: self.location.kube.clone(),
            namespace: self.location.namespace.clone(),
            accounts: Arc::clone(&self.accounts),
            source_accounts: Arc::clone(source_accounts),
            ticks: Arc::clone(&self.ticks),
            tasks: self.background.registry().clone(),
            metrics: metrics.clone(),
        };
        Ok(Migrator::new(scanner_settings(self.settings).as_ref(), ports)?)
    }

    fn cache_ports(&self) -> CachePorts {
        let rows = CachingAdapter::new(&self.settings.cache, &self.accounts);
        CachePorts {
            store: Arc::clone(&self.cache),
            mapper: Arc::<CachingAdapter>::clone(&rows),
            rules: rows,
            settings: caching_settings(&self.settings.cache),
        }
    }

    fn cache_sweeps(&self, hub: &Hub) -> CacheSweeps {
        CacheSweeps {
            store: Arc::clone(&self.cache),
            projection: Arc::clone(&self.projection),
            accounts: Arc::clone(&self.accounts),
            swept_rows: hub.swept_rows(),
            tasks: self.background.registry().clone(),
            event_lifetime: self.settings.cache.event_lifetime,
        }
    }

    /// Who calls for operations: REST's callers, or nobody is asked.
    fn operations_access(&self) -> Arc<dyn Access> {
        match self.settings.operations.auth {
            OperationsAuth::Required => Arc::clone(&self.rest_access),
            OperationsAuth::None => KubeAccessReviews::new(&self.location.kube, AccessMode::Nobody),
        }
    }

    /// The operations of this replica, whose rows are written from now on, until the last caller is served.
    fn operations(
        &self,
        router: &Arc<RequestRouter>,
        leases: &ReplicaLeases,
        served: CancellationToken,
    ) -> Arc<Operations> {
        let store: Arc<dyn Store> = Arc::clone(&self.store);
        let ports = OperationPorts {
            accounts: Arc::clone(&self.accounts),
            requests: Arc::<RequestRouter>::clone(router),
            access: self.operations_access(),
            store,
            replicas: Arc::clone(&leases.replicas),
            audit: self.audit.clone(),
            callers: Arc::clone(&self.callers),
        };
        let operations = Operations::new(operation_settings(self.settings, &self.location), ports);
        operations.settle_former_process(&self.background);
        let (writer, stop) = (Arc::clone(&operations), self.stop.clone());
        self.background.spawn("operations", "Writes the rows of operations", async move {
            writer.write_rows(stop, served).await;
        });
        operations
    }

    /// Logs what the settings expose, and collects all metrics. Returns the function that renders them.
    fn exposition(
        &self,
        (controller, registrations, migrations, account_management): (
            &ControllerMetrics,
            &RegistrationMetrics,
            &MigrationMetrics,
            Option<&AccountManagement>,
        ),
        hub: &Hub,
        (router, operations, gateway): (&RequestRouter, &Operations, Option<&GatewayPort>),
        sources: &Arc<CredentialsSources>,
        leadership: &Leadership,
        http: &HttpMetrics,
    ) -> Arc<dyn Fn() -> String + Send + Sync> {
        let doors = security_warnings::exposures(self.settings, !self.location.watches_own_alone());
        security_warnings::say(&doors);
        let mut metrics = Metrics::new();
        metrics.registry.register_collector(Box::new(StateMetrics {
            accounts: Arc::clone(&self.accounts),
            agents: Arc::clone(&self.agents),
            projection: Arc::clone(&self.projection),
            registrations: hub.backlog(),
        }));
        controller.register(&mut metrics.registry);
        registrations.register(&mut metrics.registry);
        if let Some(account_management) = account_management {
            account_management.register(&mut metrics.registry);
        }
        migrations.register(&mut metrics.registry);
        hub.register(&mut metrics.registry);
        self.identities.iter().for_each(|identities| identities.register(&mut metrics.registry));
        router.register(&mut metrics.registry);
        operations.register(&mut metrics.registry);
        self.rest_access_metrics.register(&mut metrics.registry);
        if let Some(gateway) = gateway {
            gateway.register(&mut metrics.registry);
        }
        sources.register(&mut metrics.registry);
        self.projection.register(&mut metrics.registry);
        self.peers.register(&mut metrics.registry);
        leadership.register(&mut metrics.registry);
        http.register(metrics.registry.sub_registry_with_prefix("kubesvc"));
        security_warnings::register(&doors, &mut metrics.registry);
        let of_hub = self.hub_tls.iter().map(HubTls::expiry);
        let certificates = of_hub.chain(self.rest_tls.iter().map(RestTls::expiry)).collect();
        metrics.registry.register_collector(Box::new(CertificateMetrics(certificates)));
        self.background.registry().register(&mut metrics.registry);
        kube_access::register(&mut metrics.registry);
        Arc::new(move || metrics.encode())
    }

    /// Clouddriver's credentials sources, which are read while they are needed.
    fn credentials_sources(&self) -> Arc<CredentialsSources> {
        let (settings, location) = (&self.settings.credentials_sources, &self.location);
        let sources = CredentialsSources::new(
            &settings.sources,
            settings.vars.clone(),
            self.settings.table_reload.max(MIN_TABLE_RELOAD),
            &location.kube,
            &location.namespace,
        );
        let sources = Arc::new(sources);
        sources.start(&self.background, self.stop.clone());
        sources
    }

    /// Accounts that the sources describe.
    fn source_accounts(&self, sources: Arc<CredentialsSources>) -> Arc<SourceAccounts> {
        let (settings, location) = (self.settings, &self.location);
        let (peers, own) = (Arc::clone(&self.peers), location.installation.uid.clone().into_bytes());
        Arc::new(SourceAccounts {
            sources,
            accounts: Arc::clone(&self.accounts),
            declined: DeclinedAccounts::new(&location.kube, &location.namespace),
            is_watched: location.watches(&accounts_namespace(settings, location)),
            namespace: accounts_namespace(settings, location),
            rules: source_rules(settings, location),
            file_roots: settings.credentials_sources.file_roots.clone().into(),
            planning: Arc::new(Semaphore::new(1)),
            hash_key: Arc::new(move || {
                let shared = peers.digest(&[SOURCE_HASH_PURPOSE, &own]);
                shared.map_or_else(|| own.clone(), |key| key.to_vec())
            }),
        })
    }

    fn readiness(&self, leases: &ReplicaLeases, hub: &Arc<Hub>) -> Arc<OperatorReadiness> {
        Arc::new(OperatorReadiness {
            accounts: Arc::clone(&self.accounts),
            projection: Arc::clone(&self.projection),
            hub: Arc::clone(hub),
            leadership: Arc::clone(&leases.leadership),
            replicas: Arc::clone(&leases.replicas),
            isolated: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            hub_tls: self.hub_tls.as_ref().map(HubTls::server),
        })
    }

    fn watch_isolation(&self, leases: &ReplicaLeases, hub: &Arc<Hub>, readiness: &Arc<OperatorReadiness>) {
        let watcher = IsolationWatcher {
            replicas: Arc::clone(&leases.replicas),
            peers: Arc::clone(&self.peers),
            hub: Arc::clone(hub),
            readiness: Arc::clone(readiness),
            duration: self.settings.leader_election.duration,
            checks: Mutex::default(),
        };
        watcher.start(&self.background);
    }

    /// The agents of all replicas, kept in sync until stopped.
    fn connected_agents(&self, hub: &Arc<Hub>, leases: &ReplicaLeases) -> Arc<dyn ConnectedAgents> {
        let here: Arc<dyn ConnectedAgents> = Arc::<Hub>::clone(hub);
        if leases.leases.is_none() {
            return here;
        }
        let location = &self.location;
        let elsewhere = Arc::new(RemoteSessions::new(
            &location.replica_id,
            Arc::clone(&self.agents),
            Arc::clone(&self.accounts),
            Arc::clone(&leases.replicas),
            Arc::clone(&self.ticks),
        ));
        let (follows, leader, stop) = (Arc::clone(&elsewhere), Arc::clone(&self.wakes), self.stop.clone());
        let what = "Follows the agents that other replicas have";
        self.background.spawn("agents of other replicas", what, async move {
            follows.follow(&leader, &stop).await;
        });
        let (accounts, agents, kube) =
            (Arc::clone(&self.accounts), Arc::clone(&self.agents), location.kube.clone());
        Arc::new(ClusterSessions::new(here, elsewhere, accounts, agents, kube, &location.namespace))
    }

    fn rest_state(
        &self,
        hub: &Arc<Hub>,
        readiness: &Arc<OperatorReadiness>,
        operations: Arc<Operations>,
        (source_accounts, credentials): (Arc<SourceAccounts>, Option<Arc<AccountManagement>>),
        metrics: Arc<dyn Fn() -> String + Send + Sync>,
    ) -> RestState {
        let (accounts, wakes) = (Arc::clone(&self.accounts), Arc::clone(&self.wakes));
        let ports = RestPorts {
            kube: self.location.kube.clone(),
            accounts: Arc::clone(&self.accounts),
            connected_agents: Arc::<Hub>::clone(hub),
            peers: Arc::clone(&self.peers),
            store: Arc::clone(&self.store),
            caches: Arc::new(self.account_caches(hub)),
            operations,
            source_accounts,
            credentials,
            look_at_accounts: Arc::new(move || {
                wakes.wake_all(accounts.all().iter().map(|account| account.uid().to_owned()));
            }),
            readiness: Arc::<OperatorReadiness>::clone(readiness),
            tasks: self.background.registry().clone(),
            metrics,
            access: Arc::clone(&self.rest_access),
            audit: self.audit.clone(),
            access_metrics: self.rest_access_metrics.clone(),
            caller_counts: Arc::clone(&self.callers),
        };
        RestState::new(rest_settings(self.settings, &self.location), ports)
    }

    fn controller_context(
        &self,
        kube: KubeAccess,
        connected_agents: Arc<dyn ConnectedAgents>,
        changed_agents: Arc<WorkQueue<String>>,
        credentials: WatchedCredentials,
        leases: &ReplicaLeases,
        metrics: ControllerMetrics,
    ) -> ControllerContext {
        let Self { settings, location, .. } = self;
        ControllerContext {
            adopts: settings.dynamic_accounts.adopt_rows.then(|| adopted_rows(settings, location)),
            kube,
            accounts: Arc::clone(&self.accounts),
            connected_agents,
            agents: Arc::clone(&self.agents),
            changed_agents,
            credentials: credentials.source,
            projection: Arc::clone(&self.projection),
            store: Arc::clone(&self.store),
            policy: policy(settings, location),
            source_rules: credentials.rules,
            registrations: None,
            ticks: Arc::clone(&self.ticks),
            wakes: Arc::clone(&self.wakes),
            changed_secrets: credentials.changed,
            outdated_secrets: credentials.outdated,
            tasks: self.background.registry().clone(),
            mandate: Mandate::alone(&location.replica_id),
            replicas: Arc::clone(&leases.replicas),
            leases: leases.all.clone(),
            replica_id: location.replica_id.clone(),
            metrics,
        }
    }

    /// Starts the leader, the writer of rows and the Leases. They end in this order: rows are written until the
    /// controller has queued its last one; only then is the leader's Lease released. The replica's own Lease is
    /// released once the returned guard is dropped.
    fn lead(&self, leader: Leader, leases: &ReplicaLeases, hub: &Hub) -> DropGuard {
        if leader.has_peers {
            self.projection.follow();
        }
        let (leading, writing) = (self.stop.clone(), CancellationToken::new());
        let left = CancellationToken::new();
        leases.start(&self.background, hub, &left);
        let written = writing.clone();
        // Drop guards, so that a panic of one task also lets the others finish.
        let (writing, releasing) = (writing.drop_guard(), leases.releasing.clone().drop_guard());
        let (projection, listed) = (Arc::clone(&self.projection), self.background.registry().clone());
        let what = "Writes rows until the controller has said its last one";
        self.background.spawn("rows", what, async move {
            let _releasing = releasing;
            projection.run(&listed, written).await;
        });
        self.background.spawn("controller", "Leads whenever it is this replica's turn", async move {
            let _writing = writing;
            leader.run(leading).await;
        });
        left.drop_guard()
    }
}
