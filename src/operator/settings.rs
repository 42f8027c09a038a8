//! The settings of `kubesvc-operator`: its structs, each field with its key, type, default and meaning.

mod agent_identities;
mod agent_subjects;
mod bearer;
mod cache;
mod clouddriver;
mod credentials_sources;
mod custom_resources;
mod hub_tls;
mod rest_auth;
mod rest_tls;
#[cfg(test)]
mod tests;
mod unread;

use std::path::PathBuf;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use serde::Deserialize;

pub use crate::agent_tokens::BearerSettings;
use crate::hub::{IdentityMode, Pings};
use crate::leases::Times;
pub use cache::CacheSettings;
pub use clouddriver::{ClouddriverSettings, ClouddriverTls, PassThrough, PushSettings};
pub use credentials_sources::CredentialsSourcesSettings;
pub use hub_tls::{CertificateFiles, HubTlsSettings};
use kubesvc_core::cron::CronSchedule;
use kubesvc_core::identity::SubjectFilters;
use kubesvc_runtime::config::{
    ADDRESS, CRON, ConfigError, DATABASE_URL, DatabaseUrl, FLAG, FOLDERS, FileShape, FromSetting, HOSTS,
    LimitsAt, Loaded, LoggingSettings, NAMESPACE, NAMESPACES, NAMESPACES_OR_ALL, NAMESPACES_OWN_OR_ALL,
    ORIGINS, PORT, SettingType, Settings, Source, Spec, TEXT, Unit, UnknownKeys, Values, Word, count, group,
    key, millis, seconds,
};
use kubesvc_runtime::listen::connection_limits::AddressLimits;
use kubesvc_runtime::settings;
pub use rest_auth::{AuditOutput, RestAuthSettings};
pub use rest_tls::RestTlsSettings;

const DAY: i64 = 86_400;
const YEAR: i64 = 365 * DAY;
const DAY_MS: i64 = DAY * 1000;
const WEEK: u64 = 7 * 86_400;
/// Minimum limit on message sizes, in bytes: a smaller one could exclude an agent that holds many accounts for good,
/// since its hello would not fit.
const MIN_MESSAGE_BYTES: u64 = 3 * 1024 * 1024 + 64 * 1024;
/// Maximum time limit for the response to a ping.
const MAX_PING_TIMEOUT: Duration = Duration::from_secs(86_400);
/// Maximum interval between two heartbeats.
const MAX_HEARTBEAT_INTERVAL: Duration = Duration::from_secs(365 * 86_400);

const CLUSTER_MODE: &str = "kubesvc.cluster";
const CLUSTER_MODES: SettingType = SettingType::Choice(&["local", "kubernetes", "database"]);
const UNITS: SettingType = SettingType::Choice(&[
    "NANOSECONDS",
    "MICROSECONDS",
    "MILLISECONDS",
    "SECONDS",
    "MINUTES",
    "HOURS",
    "DAYS",
]);
const PATH: SettingType = SettingType::Optional(4096);
const NAME_PATTERNS: &Word = &Word {
    allowed: "a list of regular expressions for whole names, in RE2 syntax, without look-around",
    pattern: "",
    fits: |text| text.len() <= 1024 && kubesvc_clouddriver::migration::is_pattern(text),
    most: 100,
    secret: false,
    keeps_commas: false,
};

settings! {
    /// Every setting of the operator that has an effect.
    pub struct OperatorSettings {
        /// The REST server.
        server: ServerSettings = group("server");
        /// The hub that agents dial.
        grpc: GrpcServerSettings = group("kubesvc.grpc.server");
        /// the database
        database_url: DatabaseUrl = key("kubesvc.database.url", DATABASE_URL, "sqlite://kubesvc.db");
        /// rename tables of another product that have kubesvc's names, and keep them
        take_database_over: bool = key("kubesvc.database.takeOver", FLAG, "false");
        /// namespaces watched; none: the operator's own
        watch_namespaces: Vec<String> = key("kubesvc.watchNamespaces", SettingType::List(NAMESPACES_OR_ALL), "");
        /// Where secret engines read.
        secrets: SecretsSettings = group("kubesvc.secrets");
        /// open: every agent is let in; log: what bound would refuse is logged and counted; bound: KubesvcIdentities say which
        /// agents are let in, and what they may do
        agent_identities: Option<IdentityMode> =
            key(agent_identities::MODE, agent_identities::MODES, "open").read_as(agent_identities::checked);
        /// Which subjects of certificates agents have; `None`: they are not looked at.
        agent_subjects: Option<Arc<SubjectFilters>> = group(agent_subjects::GROUP).read_as(agent_subjects::checked);
        /// Which bearer tokens of agents are accepted; `None`: they are not looked at.
        bearer: Option<BearerSettings> = group(bearer::GROUP).read_as(bearer::checked);
        /// time for an operation in a cluster, unless its caller says another; a delete may wait on top of it
        operation_wait: Duration = key("kubesvc.cache.operationWaitMs", millis(1, DAY_MS), "30000");
        /// time for an operation that only reads, unless its caller says another
        read_wait: Duration = key("kubesvc.cache.onDemandQuickWaitMs", millis(1, DAY_MS), "10000");
        /// how long a static account is kept without agents, and a zone that was found by asking
        account_cleanup: Duration = key("kubesvc.cache.accountCleanupFrequencySeconds", seconds(1, YEAR), "600");
        /// How accounts are added at run time.
        dynamic_accounts: DynamicAccountsSettings =
            group("kubesvc.dynamicAccounts").read_as(|mut accounts: DynamicAccountsSettings, _| {
                accounts.retry_max_delay = accounts.retry_max_delay.max(accounts.retry_frequency);
                Ok(accounts)
            });
        /// Limits on requests to the operator's own API server.
        kubernetes: KubernetesBudget = group("kubesvc.kubernetes");
        /// Which agents may have accounts.
        agents: AgentsSettings = group("kubesvc.agents");
        /// Which accounts may use credentials that are not in their own namespace.
        accounts: AccountsSettings = group("kubesvc.accounts");
        /// Which objects are cached, and how.
        cache: CacheSettings = group("kubesvc").read_as(cache::checked);
        /// Where Clouddriver's accounts are read.
        credentials_sources: CredentialsSourcesSettings = credentials_sources::source();
        /// pace at which Clouddriver's table is read again while it is needed, at most once a second
        table_reload: Duration = key("kubesvc.credentials.poller.reloadFrequencyMs", millis(1, DAY_MS), "30000");
        /// how replicas find one another; not set: local on SQLite, else kubernetes
        cluster_mode: ClusterMode = key(CLUSTER_MODE, CLUSTER_MODES, "").read_as(cluster_mode);
        /// How replicas find one another.
        cluster: ClusterSettings = group("kubesvc.cluster-kubernetes");
        /// port for calls of other replicas, with TLS; they call this one at the same port
        replicas_port: u16 = key("kubesvc.replicas.port", PORT, "7004");
        /// How replicas elect a leader.
        leader_election: Times = group("kubesvc.leaderElection").read_as(leader_election);
        /// Periodic checks of the connected agents.
        heartbeat: HeartbeatSettings = group("kubesvc.heartbeat").read_as(heartbeat);
        /// Operations on accounts.
        operations: OperationsSettings = group("kubesvc");
        /// The API of accounts; `None`: it is not served.
        gateway: Option<GatewaySettings> = group("kubesvc.gateway").read_as(gateway);
        /// Clouddriver.
        clouddriver: ClouddriverSettings = group("kubesvc.clouddriver").read_as(clouddriver::checked);
        /// Who may call REST.
        rest_auth: RestAuthSettings = group(rest_auth::GROUP).read_as(rest_auth::checked);
        /// where audit lines go: stdout, or the absolute path of a file, which its owner alone may read
        audit_output: AuditOutput = key(rest_auth::AUDIT_OUTPUT, TEXT, "stdout").read_as(rest_auth::audit_output);
        /// Logging.
        logging: LoggingSettings = group("logging");
    }

    /// The REST server.
    pub struct ServerSettings {
        /// address of the REST server
        address: String = key("address", ADDRESS, "*");
        /// port of the REST server
        port: u16 = key("port", PORT, "7002");
        /// largest request body
        max_body_bytes: usize = key("maxBodyBytes", SettingType::Size(1 << 10, 1 << 30), "8MB");
        /// port for /health alone, which answers probes whatever goes on at the other one; 0: none
        health_port: Option<u16> =
            key("health.port", SettingType::Int(0, 65535, Unit::PortOrNone), "0")
                .read_as(|port: u16, _| Ok(Some(port).filter(|port| *port != 0)));
        /// Limits on open connections from one address.
        limits: AddressLimits = LimitsAt("limits", "256", "connections to the REST server from one address (IPv6: /64); 0: no bound");
        /// names under which REST is called, with or without a port; another is 421; none: any
        hosts: Vec<String> = key("hosts", SettingType::List(HOSTS), "");
        /// origins whose web pages may call REST
        allowed_origins: Vec<String> = key("cors.allowedOrigins", SettingType::List(ORIGINS), "");
        /// TLS; `None`: plain text.
        tls: Option<RestTlsSettings> = group("ssl").read_as(rest_tls::checked);
    }

    /// The hub that agents dial.
    pub struct GrpcServerSettings {
        /// address of the hub that agents dial
        address: String = key("address", ADDRESS, "*");
        /// port of the hub that agents dial
        port: u16 = key("port", PORT, "9091");
        /// answer gRPC health checks
        health_service_enabled: bool = key("healthServiceEnabled", FLAG, "true");
        /// largest message taken from an agent
        max_inbound_message_size: usize =
            key("maxInboundMessageSize", SettingType::Size(MIN_MESSAGE_BYTES, 1 << 30), "4MB");
        /// Limits on open connections from one address.
        limits: AddressLimits = LimitsAt("limits", "0", "connections of agents from one address (IPv6: /64); 0: no bound");
        /// HTTP/2 pings to agents; `None`: not sent.
        keepalive: Option<Pings> = group("security").read_as(keepalive);
        /// TLS; `None`: plain text.
        tls: Option<HubTlsSettings> = group("security").read_as(hub_tls::checked);
    }

    /// HTTP/2 pings.
    #[derive(Copy)]
    struct KeepaliveKeys {
        /// pace of HTTP/2 pings to agents; 0: none
        every: Duration = key("keepAliveHeartbeatSeconds", seconds(0, DAY), "20");
        /// longest wait for the answer to a ping; 0: a day
        timeout: Duration = key("KeepAliveTimeOutSeconds", seconds(0, DAY), "20");
    }

    /// Where secret engines read.
    pub struct SecretsSettings {
        /// folders of the operator below which references of engine file may name kubeconfigs
        folders: Vec<PathBuf> = key("folders", SettingType::List(FOLDERS), "");
        /// namespaces besides its own whose Secrets an account may name by a reference of engine k8s
        namespaces: Vec<String> = key("namespaces", SettingType::List(NAMESPACES), "");
        /// take references of engine noop, which are the secret themselves
        noop: bool = key("noop", FLAG, "true");
    }

    /// How accounts are added at run time.
    pub struct DynamicAccountsSettings {
        /// accounts may be added while running
        enabled: bool = key("enabled", FLAG, "true");
        /// further tries of a failed registration
        max_retries: u32 = key("maxRetries", count(0, 1000), "3");
        /// wait before the first further try
        retry_frequency: Duration = key("retryFrequencySeconds", seconds(1, DAY), "5");
        /// growth of that wait; 1 is a fixed pace
        retry_multiplier: f64 = key("retryMultiplier", SettingType::Float(1.0, 100.0), "2");
        /// longest wait between tries
        retry_max_delay: Duration = key("retryMaxDelaySeconds", seconds(1, DAY), "300");
        /// time without an agent before another is looked for
        orphan_grace: Duration = key("orphanGraceSeconds", seconds(0, DAY), "30");
        /// rows that kubesvc did not write become accounts
        adopt_rows: bool = key("adoptRows", FLAG, "false");
        /// an account of an agent's own file has its name before a declared one
        agent_wins: bool = key("agentWins", FLAG, "false");
        /// where accounts from REST and from credentials sources are written
        namespace: Option<String> = key("namespace", NAMESPACE, "");
        /// patterns of names of accounts that are taken over from Clouddriver's table
        name_patterns: Vec<String> = key("namePatterns", SettingType::List(NAME_PATTERNS), "");
        /// patterns of names of accounts that are taken over from all other credentials sources
        credential_scan_name_patterns: Vec<String> =
            key("credentialScanNamePatterns", SettingType::List(NAME_PATTERNS), "");
        /// accounts taken over at once
        scan_batch_size: usize = key("scanBatchSize", count(1, 100_000), "572");
        /// pace of taking over
        scan_frequency: Duration = key("scanFrequencySeconds", seconds(1, DAY), "120");
        /// an account that is added, changed or deleted at Clouddriver through /credentials is so here too
        interceptor: bool = key("interceptor.enabled", FLAG, "true");
    }

    /// Limits on requests to the operator's own API server.
    pub struct KubernetesBudget {
        /// requests a second to the API server; 0: no bound
        qps: u32 = key("qps", count(0, 100_000), "200");
        /// requests at once after a pause
        burst: u32 = key("burst", count(1, 100_000), "400");
        /// registrations a second; 0: no bound
        registration_qps: u32 = key("registrationQps", count(0, 100_000), "50");
    }

    /// Which agents may have accounts.
    pub struct AgentsSettings {
        /// who approves an agent: the operator at once, or a person
        approval: Approval = key("approval", SettingType::Choice(&["auto", "manual"]), "auto");
        /// how long a person's decision about an agent outlives its absence
        forget_approved_after: Duration = key("forgetApprovedAfterSeconds", seconds(600, 3650 * DAY), "2592000");
        /// an account without a zone goes to a zone whose agents offer to take it; false: every account names its zone
        offers: bool = key("offers", FLAG, "true");
    }

    /// Which accounts may use credentials outside their own namespace. `*` stands for all watched namespaces, `.` for
    /// the operator's own; an empty list allows none.
    pub struct AccountsSettings {
        /// namespaces whose accounts may use an agent's files and its service account
        agent_sources: Vec<String> = key("agentSources", SettingType::List(NAMESPACES_OWN_OR_ALL), "*");
        /// namespaces whose accounts may use references of engine file
        operator_files: Vec<String> = key("operatorFiles", SettingType::List(NAMESPACES_OWN_OR_ALL), "*");
    }

    /// How replicas find one another.
    pub struct ClusterSettings {
        /// kubeconfig for finding replicas; none: the operator's own API server
        kubeconfig_file: Option<PathBuf> = key("kubeconfigFile", PATH, "");
        /// check the certificate of the API server that is asked for replicas
        verify_ssl: bool = key("verifySsl", FLAG, "true");
        /// where the replicas are; none: the operator's own
        namespace: Option<String> = key("namespace", NAMESPACE, "");
        /// name of the REST port in their Service
        http_port_name: String = key("httpPortName", SettingType::Text(63), "http");
        /// how the name of their Service begins
        service_name_prefix: String =
            key("clouddriverServiceNamePrefix", SettingType::Text(63), "spin-clouddriver");
        /// stop when Endpoints or EndpointSlices may not be listed and watched
        fail_fast: bool = key("failFast", FLAG, "true");
        /// reach replicas by their pods' names in DNS, not by address
        use_dns: bool = key("useDNS", FLAG, "false");
        /// domain of those names
        domain_name: String = key("domainName", SettingType::Text(253), "cluster.local");
    }

    /// How replicas elect a leader. `duration` is longer than `renew_deadline`, which is longer than 1.2 times
    /// `retry_period`.
    #[derive(Copy)]
    struct LeaderElectionKeys {
        /// how long others wait for a leader that does not renew its Lease
        duration: Duration = key("leaseDurationSeconds", seconds(2, 3600), "15");
        /// how long a leader that cannot renew its Lease goes on; less than that
        renew_deadline: Duration = key("renewDeadlineSeconds", seconds(2, 3600), "10");
        /// time between two tries; 1.2 times it is less than the deadline
        retry_period: Duration = key("retryPeriodSeconds", seconds(1, 3600), "2");
    }

    struct HeartbeatKeys {
        /// cut off agents that send no heartbeat; else only pings find one that is gone
        enabled: bool = key("enabled", FLAG, "true");
        /// wait before kubesvc_assignments is first compared with the agents
        initial_delay: u64 = key("initialDelay", count(0, i64::MAX), "0");
        /// longest time between two of these, which are sooner after replicas have changed; 1 second to 365 days
        period: u64 = key("period", count(1, i64::MAX), "60");
        /// unit of the two above
        unit: String = key("periodUnit", UNITS, "SECONDS");
    }

    /// Operations on accounts.
    pub struct OperationsSettings {
        /// whether callers of operations must be known to the operator's API server and have rights there; none: everybody
        /// who reaches REST may change every account's cluster
        auth: OperationsAuth = key("operations.auth", SettingType::Choice(&["required", "none"]), "required");
        /// further runs of an operation whose outcome is unknown, if it may be done twice
        max_retries: u32 = key("operations.retry.maxRetries", count(0, 1000), "3");
        /// most rows of the history of operations; beyond it the oldest go
        max_rows: u64 = key("operations.history.maxRows", count(1, i64::MAX), "1000000");
        /// weeks for which the history of operations is kept
        kept_for: Duration = key("jobs.operation-history.purge.weeks", count(0, 5200), "1")
            .read_as(|weeks: u64, _| Ok(Duration::from_secs(weeks * WEEK)));
        /// when the history is purged, in UTC: second, minute, hour, day of the month, month, day of the week
        purge: CronSchedule = key("jobs.operation-history.purge.cron", CRON, "0 0 0 * * 0").read_as(schedule);
        /// longest label `result` of the metric `kubesvc_operations_seconds`
        max_result_label: usize = key("ops.processTime.metric.result.maxLength", count(0, 65_535), "255");
    }

    /// The API of accounts.
    pub struct GatewaySettings {
        /// serve the Kubernetes API of accounts
        enabled: bool = key("enabled", FLAG, "false");
        /// address of the API of accounts
        address: String = key("server.address", ADDRESS, "*");
        /// port of the API of accounts
        port: u16 = key("server.port", PORT, "6443");
        /// Limits of connections per address.
        limits: AddressLimits = LimitsAt(
            "server.limits",
            "256",
            "connections to the API of accounts from one address (IPv6: /64), but those of the API server; 0: no bound",
        );
        /// its certificate, PEM; none: the operator makes one, in Secret kubesvc-gateway
        certificate_file: Option<PathBuf> = key("tls.certificateFile", PATH, "");
        /// private key of that certificate, PEM
        key_file: Option<PathBuf> = key("tls.keyFile", PATH, "");
    }
}

impl GatewaySettings {
    /// Files with certificate and private key; `None`: the operator makes them.
    pub fn tls_files(&self) -> Option<(PathBuf, PathBuf)> {
        self.certificate_file.clone().zip(self.key_file.clone())
    }
}

impl ClusterSettings {
    /// Domain of the pod names by which replicas are reached; `None`: they are reached by address.
    pub fn pod_domain(&self) -> Option<&str> {
        self.use_dns.then_some(self.domain_name.as_str())
    }
}

/// Periodic checks of the connected agents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeartbeatSettings {
    /// Whether an agent that sends no heartbeats is disconnected; otherwise only HTTP/2 pings detect a dead agent.
    pub enabled: bool,
    /// Delay before `kubesvc_assignments` is first compared with the agents; up to 365 days.
    pub initial_delay: Duration,
    /// Interval between later comparisons; 1 s to 365 days.
    pub period: Duration,
}

/// Whether replicas look for one another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClusterMode {
    /// There is a single replica.
    Local,
    /// They watch their own Endpoints and EndpointSlices.
    Kubernetes,
}

/// Who approves an agent that connects for the first time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Approval {
    /// It is approved immediately.
    Auto,
    /// A person sets `spec.approved`.
    Manual,
}

/// Whether callers of operations must be known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OperationsAuth {
    /// They must, and need rights.
    Required,
    /// Everybody may do everything.
    None,
}

impl FromSetting for Approval {}
impl FromSetting for OperationsAuth {}

impl Settings for OperatorSettings {
    fn spec() -> &'static Spec {
        static SPEC: LazyLock<Spec> = LazyLock::new(|| {
            let file = FileShape {
                title: "Settings of kubesvc-operator",
                moved: &[("armory.kubesvc", "kubesvc"), ("logging.level.root", "logging.level")],
                ours: &["kubesvc"],
                shared: &["server", "logging"],
                guarded: &[
                    hub_tls::GROUP,
                    "kubesvc.grpc.auth",
                    "kubesvc.rest",
                    "kubesvc.gateway",
                    "kubesvc.operations.auth",
                    "kubesvc.audit",
                    "kubesvc.agents",
                    "kubesvc.accounts",
                    rest_tls::GROUP,
                ],
                turned_off_by: &[],
            };
            Spec::new::<OperatorSettings>(file, unread::KEYS)
        });
        &SPEC
    }

    fn notes(values: &Values) -> Result<Vec<String>, ConfigError> {
        let mut notes = cache::notes(values)?;
        notes.extend(hub_tls::notes(values)?);
        notes.extend(rest_tls::notes(values)?);
        notes.extend(rest_auth::notes(values)?);
        notes.extend(agent_subjects::notes(values)?);
        notes.extend(bearer::notes(values)?);
        if values.text(CLUSTER_MODE) == Some("database") {
            notes.push(format!(
                "`{CLUSTER_MODE}: database` is treated as kubernetes: replicas find one another through the API server"
            ));
        }
        Ok(notes)
    }
}

/// Loads the operator's settings. The files may be Clouddriver's own: only `kubesvc`, `armory.kubesvc`, `server` and
/// `logging` are read. Later files override earlier ones, and `env` overrides them all.
///
/// # Errors
/// Everything that is wrong with the files and the environment.
pub fn load(
    files: &[PathBuf],
    env: &dyn Fn(&str) -> Option<String>,
    unknown: UnknownKeys,
) -> Result<Loaded<OperatorSettings>, ConfigError> {
    Loaded::read(files, env, unknown)
}

fn schedule(text: String, values: &Values) -> Result<CronSchedule, ConfigError> {
    const KEY: &str = "kubesvc.jobs.operation-history.purge.cron";
    Ok(text.parse().map_err(|_| values.out_of_bounds(KEY, text, CRON.to_string()))?)
}

fn gateway(gateway: GatewaySettings, values: &Values) -> Result<Option<GatewaySettings>, ConfigError> {
    const CERTIFICATE: &str = "kubesvc.gateway.tls.certificateFile";
    const KEY: &str = "kubesvc.gateway.tls.keyFile";
    let (given, missing) = match (&gateway.certificate_file, &gateway.key_file) {
        (Some(_), None) if gateway.enabled => (CERTIFICATE, KEY),
        (None, Some(_)) if gateway.enabled => (KEY, CERTIFICATE),
        _ => return Ok(Some(gateway).filter(|gateway| gateway.enabled)),
    };
    let why = format!("needs {missing} too: set both, or neither, and the operator makes a certificate");
    Err(values.rule(given, why).into())
}

/// A SQLite file belongs to one process, so there are no other replicas. Several replicas, each with its own file,
/// would each lead.
fn cluster_mode(mode: Option<String>, values: &Values) -> Result<ClusterMode, ConfigError> {
    let is_sqlite = values.text("kubesvc.database.url").is_some_and(|url| url.starts_with("sqlite:"));
    match (mode.unwrap_or_default().as_str(), is_sqlite) {
        ("local", _) | ("", true) => Ok(ClusterMode::Local),
        (_, false) => Ok(ClusterMode::Kubernetes),
        (_, true) => {
            let why = format!(
                "is for several replicas, and kubesvc.database.url names SQLite, which serves one: give the replicas \
                 MySQL, MariaDB or PostgreSQL, or set {CLUSTER_MODE}: local"
            );
            Err(values.rule(CLUSTER_MODE, why).into())
        }
    }
}

/// A leader gives up before other replicas may take its Lease, after more than one attempt to renew it.
fn leader_election(keys: LeaderElectionKeys, values: &Values) -> Result<Times, ConfigError> {
    const DURATION: &str = "kubesvc.leaderElection.leaseDurationSeconds";
    const DEADLINE: &str = "kubesvc.leaderElection.renewDeadlineSeconds";
    const RETRY: &str = "kubesvc.leaderElection.retryPeriodSeconds";
    let LeaderElectionKeys { duration, renew_deadline, retry_period } = keys;
    if duration <= renew_deadline {
        let allowed = format!("less than {DURATION}, which is {duration:?}");
        return Err(values.out_of_bounds(DEADLINE, format!("{renew_deadline:?}"), allowed).into());
    }
    if renew_deadline <= retry_period.mul_f64(1.2) {
        let allowed = format!("less than {DEADLINE} / 1.2, which is {:.1?}", renew_deadline.div_f64(1.2));
        return Err(values.out_of_bounds(RETRY, format!("{retry_period:?}"), allowed).into());
    }
    Ok(Times { duration, renew_deadline, retry_period })
}

/// As documented, a heartbeat of 0 s sends no pings. A timeout of 0 s never closes a connection, which the maximum
/// timeout amounts to.
fn keepalive(keys: KeepaliveKeys, _: &Values) -> Result<Option<Pings>, ConfigError> {
    let KeepaliveKeys { every, timeout } = keys;
    let timeout = if timeout.is_zero() { MAX_PING_TIMEOUT } else { timeout };
    Ok((!every.is_zero()).then_some(Pings { every, timeout }))
}

fn heartbeat(keys: HeartbeatKeys, values: &Values) -> Result<HeartbeatSettings, ConfigError> {
    let HeartbeatKeys { enabled, initial_delay, period, unit } = keys;
    let length = |key: &str, count: u64, least: Duration| {
        let length = in_unit(count, &unit);
        if (least..=MAX_HEARTBEAT_INTERVAL).contains(&length) {
            return Ok(length);
        }
        Err(values.out_of_bounds(key, format!("{length:?}"), format!("{least:?} to 365 days")))
    };
    Ok(HeartbeatSettings {
        enabled,
        initial_delay: length("kubesvc.heartbeat.initialDelay", initial_delay, Duration::ZERO)?,
        period: length("kubesvc.heartbeat.period", period, Duration::from_secs(1))?,
    })
}

/// Converts a count in one of Java's time units.
fn in_unit(count: u64, unit: &str) -> Duration {
    let seconds = |each: u64| Duration::from_secs(count.saturating_mul(each));
    match unit {
        "NANOSECONDS" => Duration::from_nanos(count),
        "MICROSECONDS" => Duration::from_micros(count),
        "MILLISECONDS" => Duration::from_millis(count),
        "MINUTES" => seconds(60),
        "HOURS" => seconds(3600),
        "DAYS" => seconds(86_400),
        _ => seconds(1),
    }
}
