//! The settings of `kubesvc-operator`.

mod cache;
mod keys;
mod operations;

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use super::error::{ConfigError, ConfigProblem};
pub use super::logging::{LogFormat, LogLevel, LoggingSettings};
use super::values::Values;
use crate::listen::connection_limits::AddressLimits;
pub use cache::{AccountDefaults, BodyFormat, CacheSettings};
pub(crate) use keys::SPEC;
pub use operations::{OperationsAuth, OperationsSettings};

/// Maximum time limit for the response to a ping.
const MAX_PING_TIMEOUT: Duration = Duration::from_secs(86_400);
/// Maximum interval between two heartbeats.
const MAX_HEARTBEAT_INTERVAL: Duration = Duration::from_secs(365 * 86_400);

const CLUSTER_MODE: &str = "kubesvc.cluster";

/// Every setting of the operator that has an effect. `Debug` omits the database's password.
#[derive(Clone, PartialEq)]
pub struct OperatorSettings {
    /// The REST server.
    pub server: ServerSettings,
    /// The hub that agents dial.
    pub grpc: GrpcServerSettings,
    /// `sqlite://PATH`, `mysql://…` or `postgres://…`. May contain a password: log it only through
    /// [`redact_url`](super::redact_url).
    pub database_url: String,
    /// Whether tables of another product with kubesvc's names are renamed.
    pub take_database_over: bool,
    /// Namespaces whose objects are watched; empty: the operator's own; `["*"]`: all.
    pub watch_namespaces: Vec<String>,
    /// How long a REST caller waits for an operation in a cluster; 1 ms to 1 day.
    pub operation_wait: Duration,
    /// How long a static account is kept while its zone has no agent, and how long an account without a zone of its
    /// own waits for the agents of the zone found for it; 1 s to 365 days.
    pub account_cleanup: Duration,
    /// Which objects are cached, and how.
    pub cache: CacheSettings,
    /// Periodic checks of the connected agents.
    pub heartbeat: HeartbeatSettings,
    /// How accounts are added at run time.
    pub dynamic_accounts: DynamicAccountsSettings,
    /// Where secret engines read.
    pub secrets: SecretsSettings,
    /// Limits on requests to the operator's own API server.
    pub kubernetes: KubernetesBudget,
    /// Which agents may have accounts.
    pub agents: AgentsSettings,
    /// Which accounts may use credentials that are not in their own namespace.
    pub accounts: AccountsSettings,
    /// How replicas find one another.
    pub cluster: ClusterSettings,
    /// How replicas elect a leader.
    pub leader_election: LeaderElectionSettings,
    /// Operations on accounts.
    pub operations: OperationsSettings,
    /// The API of accounts; `None`: it is not served.
    pub gateway: Option<GatewaySettings>,
    /// Logging.
    pub logging: LoggingSettings,
}

/// The REST server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerSettings {
    /// Address or host name to listen on; `*` for all.
    pub address: String,
    /// TCP port; 0: the system chooses a free one.
    pub port: u16,
    /// Maximum size of a request body in bytes; 1 KiB to 1 GiB.
    pub max_body_bytes: usize,
    /// Separate TCP port for health only.
    pub health_port: Option<u16>,
    /// Limits on open connections from one address.
    pub limits: AddressLimits,
    /// Host names accepted by REST; empty: any.
    pub hosts: Vec<String>,
    /// Origins whose web pages may call REST.
    pub allowed_origins: Vec<String>,
}

/// The hub that agents dial.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrpcServerSettings {
    /// Address or host name to listen on; `*` for all.
    pub address: String,
    /// TCP port; 0: the system chooses a free one.
    pub port: u16,
    /// Whether the standard gRPC health service is served.
    pub health_service_enabled: bool,
    /// Maximum size of a message from an agent, in bytes; 3136 KiB to 1 GiB.
    pub max_inbound_message_size: usize,
    /// Limits on open connections from one address.
    pub limits: AddressLimits,
    /// HTTP/2 pings to agents; `None`: not sent.
    pub keepalive: Option<KeepaliveSettings>,
}

/// HTTP/2 pings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeepaliveSettings {
    /// Interval between pings; 1 s to 1 day.
    pub every: Duration,
    /// Time limit for a response, after which the connection is closed; 1 s to 1 day.
    pub timeout: Duration,
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

/// How accounts are added at run time.
#[derive(Debug, Clone, PartialEq)]
pub struct DynamicAccountsSettings {
    /// Whether accounts may be added, changed and removed at all.
    pub enabled: bool,
    /// Maximum number of retries of a failed registration; 0 to 1000.
    pub max_retries: u32,
    /// Delay before the first retry; 1 s to 1 day.
    pub retry_frequency: Duration,
    /// Factor by which each delay grows; 1 (the documented fixed interval) to 100.
    pub retry_multiplier: f64,
    /// Maximum delay; never shorter than `retry_frequency`.
    pub retry_max_delay: Duration,
    /// How long an account may be without an agent before another is chosen; 0 to 1 day.
    pub orphan_grace: Duration,
    /// Whether foreign rows become accounts.
    pub adopt_rows: bool,
    /// Whether an account of an agent's own file takes precedence over a declared one of the same name.
    pub agent_wins: bool,
    /// Namespace in which accounts added by REST are created; `None`: the operator's own.
    pub namespace: Option<String>,
}

/// Where secret engines read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretsSettings {
    /// Absolute paths of folders below which the engine `file` reads; empty: the engine is off.
    pub folders: Vec<PathBuf>,
    /// Namespaces, besides an account's own, whose Secrets references of engine `k8s` may name.
    pub namespaces: Vec<String>,
    /// Whether references of engine `noop` are accepted.
    pub noop: bool,
}

/// Limits on requests to the operator's own API server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KubernetesBudget {
    /// Average number of requests per second; 0: unlimited.
    pub qps: u32,
    /// Maximum burst of requests; at least 1.
    pub burst: u32,
    /// Maximum number of registrations begun per second; 0: unlimited.
    pub registration_qps: u32,
}

/// How replicas find one another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterSettings {
    /// Whether they look for one another at all.
    pub mode: ClusterMode,
    /// The kubeconfig of the API server that has their Endpoints; `None`: the operator's own API server.
    pub kubeconfig_file: Option<PathBuf>,
    /// Whether that API server's certificate must be trusted.
    pub verify_ssl: bool,
    /// Namespace of their Endpoints; `None`: the operator's own.
    pub namespace: Option<String>,
    /// Name of the REST port in their Service.
    pub http_port_name: String,
    /// Prefix of their Service's name.
    pub service_name_prefix: String,
    /// Whether the operator exits if it may not list and watch their Endpoints and EndpointSlices.
    pub fail_fast: bool,
    /// Domain of the pod names by which replicas are reached; `None`: they are reached by address.
    pub pod_domain: Option<String>,
}

/// Whether replicas look for one another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClusterMode {
    /// There is a single replica.
    Local,
    /// They watch their own Endpoints and EndpointSlices.
    Kubernetes,
}

/// How replicas elect a leader. `duration` is longer than `renew_deadline`, which is longer than 1.2 times
/// `retry_period`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaderElectionSettings {
    /// Time after which an unchanged Lease has expired; 2 s to 1 hour.
    pub duration: Duration,
    /// Time after which a leader that could not renew its Lease stops leading.
    pub renew_deadline: Duration,
    /// Delay between two attempts.
    pub retry_period: Duration,
}

/// The API of accounts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewaySettings {
    /// Address or host name to listen on; `*` for all.
    pub address: String,
    /// TCP port; 0: the system chooses a free one.
    pub port: u16,
    /// Files with certificate and private key; `None`: the operator makes them.
    pub tls_files: Option<(PathBuf, PathBuf)>,
    /// Limits of connections per address.
    pub limits: AddressLimits,
}

/// Which agents may have accounts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AgentsSettings {
    /// Who approves an agent that connects for the first time.
    pub approval: Approval,
    /// Whether zones may offer to take an account that names none.
    pub offers: bool,
    /// How long the object of an absent agent is kept if a person has decided about its approval; 600 s to ten years.
    pub forget_approved_after: Duration,
}

/// Which accounts may use credentials outside their own namespace. `*` stands for all watched namespaces, `.` for the
/// operator's own; an empty list allows none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccountsSettings {
    /// Namespaces whose accounts may use an agent's files and its service account.
    pub agent_sources: Vec<String>,
    /// Namespaces whose accounts may use the secret engine `file`.
    pub operator_files: Vec<String>,
}

/// Who approves an agent that connects for the first time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Approval {
    /// It is approved immediately.
    Auto,
    /// A person sets `spec.approved`.
    Manual,
}

impl fmt::Debug for OperatorSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OperatorSettings")
            .field("server", &self.server)
            .field("grpc", &self.grpc)
            .field("database_url", &super::redact_url(&self.database_url))
            .field("take_database_over", &self.take_database_over)
            .field("watch_namespaces", &self.watch_namespaces)
            .field("operation_wait", &self.operation_wait)
            .field("account_cleanup", &self.account_cleanup)
            .field("cache", &self.cache)
            .field("heartbeat", &self.heartbeat)
            .field("dynamic_accounts", &self.dynamic_accounts)
            .field("secrets", &self.secrets)
            .field("kubernetes", &self.kubernetes)
            .field("agents", &self.agents)
            .field("accounts", &self.accounts)
            .field("cluster", &self.cluster)
            .field("leader_election", &self.leader_election)
            .field("operations", &self.operations)
            .field("gateway", &self.gateway)
            .field("logging", &self.logging)
            .finish()
    }
}

pub(crate) fn build(v: &Values) -> Result<OperatorSettings, ConfigError> {
    let retry_frequency = v.seconds("kubesvc.dynamicAccounts.retryFrequencySeconds")?;
    Ok(OperatorSettings {
        server: ServerSettings {
            address: v.string("server.address")?,
            port: v.number("server.port")?,
            max_body_bytes: v.number("server.maxBodyBytes")?,
            health_port: Some(v.number("server.health.port")?).filter(|port| *port != 0),
            limits: AddressLimits {
                per_address: v.number("server.limits.perAddress")?,
                exempt: v.networks("server.limits.exempt")?,
            },
            hosts: v.list("server.hosts")?,
            allowed_origins: v.list("server.cors.allowedOrigins")?,
        },
        grpc: GrpcServerSettings {
            address: v.string("kubesvc.grpc.server.address")?,
            port: v.number("kubesvc.grpc.server.port")?,
            health_service_enabled: v.boolean("kubesvc.grpc.server.healthServiceEnabled")?,
            max_inbound_message_size: v.number("kubesvc.grpc.server.maxInboundMessageSize")?,
            limits: AddressLimits {
                per_address: v.number("kubesvc.grpc.server.limits.perAddress")?,
                exempt: v.networks("kubesvc.grpc.server.limits.exempt")?,
            },
            keepalive: keepalive(v)?,
        },
        database_url: v.string("kubesvc.database.url")?,
        take_database_over: v.boolean("kubesvc.database.takeOver")?,
        watch_namespaces: v.list("kubesvc.watchNamespaces")?,
        operation_wait: v.millis("kubesvc.cache.operationWaitMs")?,
        account_cleanup: v.seconds("kubesvc.cache.accountCleanupFrequencySeconds")?,
        cache: cache::build(v)?,
        heartbeat: heartbeat(v)?,
        dynamic_accounts: DynamicAccountsSettings {
            enabled: v.boolean("kubesvc.dynamicAccounts.enabled")?,
            max_retries: v.number("kubesvc.dynamicAccounts.maxRetries")?,
            retry_frequency,
            retry_multiplier: v.float("kubesvc.dynamicAccounts.retryMultiplier")?,
            retry_max_delay: v.seconds("kubesvc.dynamicAccounts.retryMaxDelaySeconds")?.max(retry_frequency),
            orphan_grace: v.seconds("kubesvc.dynamicAccounts.orphanGraceSeconds")?,
            adopt_rows: v.boolean("kubesvc.dynamicAccounts.adoptRows")?,
            agent_wins: v.boolean("kubesvc.dynamicAccounts.agentWins")?,
            namespace: v.optional("kubesvc.dynamicAccounts.namespace")?,
        },
        secrets: SecretsSettings {
            folders: v.paths("kubesvc.secrets.folders")?,
            namespaces: v.list("kubesvc.secrets.namespaces")?,
            noop: v.boolean("kubesvc.secrets.noop")?,
        },
        kubernetes: KubernetesBudget {
            qps: v.number("kubesvc.kubernetes.qps")?,
            burst: v.number("kubesvc.kubernetes.burst")?,
            registration_qps: v.number("kubesvc.kubernetes.registrationQps")?,
        },
        agents: AgentsSettings {
            approval: match v.string("kubesvc.agents.approval")?.as_str() {
                "manual" => Approval::Manual,
                _ => Approval::Auto,
            },
            offers: v.boolean("kubesvc.agents.offers")?,
            forget_approved_after: v.seconds("kubesvc.agents.forgetApprovedAfterSeconds")?,
        },
        accounts: AccountsSettings {
            agent_sources: v.list("kubesvc.accounts.agentSources")?,
            operator_files: v.list("kubesvc.accounts.operatorFiles")?,
        },
        cluster: cluster(v)?,
        leader_election: leader_election(v)?,
        operations: operations::build(v)?,
        gateway: gateway(v)?,
        logging: super::logging::build(v)?,
    })
}

fn gateway(v: &Values) -> Result<Option<GatewaySettings>, ConfigProblem> {
    if !v.boolean("kubesvc.gateway.enabled")? {
        return Ok(None);
    }
    const CERTIFICATE: &str = "kubesvc.gateway.tls.certificateFile";
    const KEY: &str = "kubesvc.gateway.tls.keyFile";
    let file = |key| Ok::<_, ConfigProblem>(v.optional(key)?.map(PathBuf::from));
    let tls_files = match (file(CERTIFICATE)?, file(KEY)?) {
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (None, None) => None,
        (certificate, _) => {
            let (given, missing) =
                if certificate.is_some() { (CERTIFICATE, KEY) } else { (KEY, CERTIFICATE) };
            return Err(ConfigProblem::Rule {
                origin: v.origin(given),
                key: given.to_owned(),
                why: format!(
                    "needs {missing} too: set both, or neither, and the operator makes a certificate"
                ),
            });
        }
    };
    let settings = GatewaySettings {
        address: v.string("kubesvc.gateway.server.address")?,
        port: v.number("kubesvc.gateway.server.port")?,
        tls_files,
        limits: AddressLimits {
            per_address: v.number("kubesvc.gateway.server.limits.perAddress")?,
            exempt: v.networks("kubesvc.gateway.server.limits.exempt")?,
        },
    };
    Ok(Some(settings))
}

fn cluster(v: &Values) -> Result<ClusterSettings, ConfigProblem> {
    let by_name = v.boolean("kubesvc.cluster-kubernetes.useDNS")?;
    let domain = v.string("kubesvc.cluster-kubernetes.domainName")?;
    Ok(ClusterSettings {
        mode: cluster_mode(v)?,
        kubeconfig_file: v.optional("kubesvc.cluster-kubernetes.kubeconfigFile")?.map(PathBuf::from),
        verify_ssl: v.boolean("kubesvc.cluster-kubernetes.verifySsl")?,
        namespace: v.optional("kubesvc.cluster-kubernetes.namespace")?,
        http_port_name: v.string("kubesvc.cluster-kubernetes.httpPortName")?,
        service_name_prefix: v.string("kubesvc.cluster-kubernetes.clouddriverServiceNamePrefix")?,
        fail_fast: v.boolean("kubesvc.cluster-kubernetes.failFast")?,
        pod_domain: by_name.then_some(domain),
    })
}

/// A SQLite file belongs to one process, so there are no other replicas. Several replicas, each with its own file,
/// would each lead.
fn cluster_mode(v: &Values) -> Result<ClusterMode, ConfigProblem> {
    Ok(match (v.optional(CLUSTER_MODE)?.as_deref(), is_sqlite(v)?) {
        (Some("local"), _) | (None, true) => ClusterMode::Local,
        (None, false) | (Some(_), false) => ClusterMode::Kubernetes,
        (Some(_), true) => {
            return Err(ConfigProblem::Rule {
                origin: v.origin(CLUSTER_MODE),
                key: CLUSTER_MODE.to_owned(),
                why: format!(
                    "is for several replicas, and kubesvc.database.url names SQLite, which serves one: give the \
                     replicas MySQL, MariaDB or PostgreSQL, or set {CLUSTER_MODE}: local"
                ),
            });
        }
    })
}

fn is_sqlite(v: &Values) -> Result<bool, ConfigProblem> {
    Ok(v.string("kubesvc.database.url")?.starts_with("sqlite:"))
}

/// A leader gives up before other replicas may take its Lease, after more than one attempt to renew it.
fn leader_election(v: &Values) -> Result<LeaderElectionSettings, ConfigProblem> {
    const DURATION: &str = "kubesvc.leaderElection.leaseDurationSeconds";
    const DEADLINE: &str = "kubesvc.leaderElection.renewDeadlineSeconds";
    const RETRY: &str = "kubesvc.leaderElection.retryPeriodSeconds";
    let (duration, renew_deadline, retry_period) =
        (v.seconds(DURATION)?, v.seconds(DEADLINE)?, v.seconds(RETRY)?);
    if duration <= renew_deadline {
        let allowed = format!("less than {DURATION}, which is {duration:?}");
        return Err(v.out_of_bounds(DEADLINE, format!("{renew_deadline:?}"), allowed));
    }
    if renew_deadline <= retry_period.mul_f64(1.2) {
        let allowed = format!("less than {DEADLINE} / 1.2, which is {:.1?}", renew_deadline.div_f64(1.2));
        return Err(v.out_of_bounds(RETRY, format!("{retry_period:?}"), allowed));
    }
    Ok(LeaderElectionSettings { duration, renew_deadline, retry_period })
}

/// As documented, a heartbeat of 0 s sends no pings. A timeout of 0 s never closes a connection, which the maximum
/// timeout amounts to.
fn keepalive(v: &Values) -> Result<Option<KeepaliveSettings>, ConfigProblem> {
    let every = v.seconds("kubesvc.grpc.server.security.keepAliveHeartbeatSeconds")?;
    let timeout = v.seconds("kubesvc.grpc.server.security.KeepAliveTimeOutSeconds")?;
    let timeout = if timeout.is_zero() { MAX_PING_TIMEOUT } else { timeout };
    Ok((!every.is_zero()).then_some(KeepaliveSettings { every, timeout }))
}

fn heartbeat(v: &Values) -> Result<HeartbeatSettings, ConfigProblem> {
    let unit = v.string("kubesvc.heartbeat.periodUnit")?;
    let length = |key: &str, least: Duration| {
        let length = in_unit(v.number(key)?, &unit);
        if (least..=MAX_HEARTBEAT_INTERVAL).contains(&length) {
            return Ok(length);
        }
        Err(v.out_of_bounds(key, format!("{length:?}"), format!("{least:?} to 365 days")))
    };
    Ok(HeartbeatSettings {
        enabled: v.boolean("kubesvc.heartbeat.enabled")?,
        initial_delay: length("kubesvc.heartbeat.initialDelay", Duration::ZERO)?,
        period: length("kubesvc.heartbeat.period", Duration::from_secs(1))?,
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

/// Warnings about the settings, one line each.
pub(crate) fn notes(v: &Values) -> Result<Vec<String>, ConfigProblem> {
    let mode = v.optional(CLUSTER_MODE)?;
    let mut notes = cache::notes(v)?;
    if mode.as_deref() == Some("database") {
        notes.push(format!(
            "`{CLUSTER_MODE}: database` is treated as kubernetes: replicas find one another through the API server"
        ));
    }
    Ok(notes)
}
