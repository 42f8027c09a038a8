//! What `kubesvc-operator` reads.

mod cluster;
mod keys;

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use super::error::ConfigProblem;
use super::layer::Values;
pub use super::logging::{LogFormat, LogLevel, LoggingSettings};
use crate::listen::addresses::AddressLimits;
pub(crate) use cluster::notes;
pub use cluster::{ClusterMode, ClusterSettings};
pub(crate) use keys::SPEC;

/// No answer to a ping is waited for longer.
const MAX_PING_TIMEOUT: Duration = Duration::from_secs(86_400);
/// The longest time between two heartbeats.
const MAX_HEARTBEAT_INTERVAL: Duration = Duration::from_secs(365 * 86_400);

/// Every setting of the operator that has an effect. Its `Debug` leaves the database's password out.
#[derive(Clone, PartialEq)]
pub struct OperatorSettings {
    /// The REST server.
    pub server: ServerSettings,
    /// The hub that agents dial.
    pub grpc: GrpcServerSettings,
    /// `sqlite://PATH`, `mysql://…` or `postgres://…`. Holds a password: never log it as it is, see
    /// [`redact_url`](super::redact_url).
    pub database_url: String,
    /// Whether tables of another product that stand in the way are renamed.
    pub take_database_over: bool,
    /// Namespaces whose objects are watched; empty: the operator's own; `["*"]`: all.
    pub watch_namespaces: Vec<String>,
    /// How long a REST caller waits for an operation in a cluster; 1 ms to 1 day.
    pub operation_wait: Duration,
    /// How long a static account is kept when its zone has no agent, and how long one without a zone of its own waits
    /// for the agents of the zone that was found for it; 1 s to 365 days.
    pub account_cleanup: Duration,
    /// What is said regularly of the agents that are connected.
    pub heartbeat: HeartbeatSettings,
    /// How accounts are added while the programs run.
    pub dynamic_accounts: DynamicAccountsSettings,
    /// Where secret engines read.
    pub secrets: SecretsSettings,
    /// How much is asked of the operator's own API server.
    pub kubernetes: KubernetesBudget,
    /// Which agents may have accounts.
    pub agents: AgentsSettings,
    /// Which accounts may use credentials that are not in their own namespace.
    pub accounts: AccountsSettings,
    /// How several replicas find one another.
    pub cluster: ClusterSettings,
    /// How replicas agree on one that leads.
    pub leader_election: LeaderElectionSettings,
    /// Logs.
    pub logging: LoggingSettings,
}

/// The REST server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerSettings {
    /// Address or host name to listen on; `*` for all.
    pub address: String,
    /// TCP port; 0 lets the system choose a free one.
    pub port: u16,
    /// The largest request body in bytes; 1 KiB to 1 GiB.
    pub max_body_bytes: usize,
    /// TCP port for health alone.
    pub health_port: Option<u16>,
    /// How many connections one address may have open.
    pub limits: AddressLimits,
    /// Names under which REST is called; none: any.
    pub hosts: Vec<String>,
    /// Origins whose web pages may call REST.
    pub allowed_origins: Vec<String>,
}

/// The hub that agents dial.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrpcServerSettings {
    /// Address or host name to listen on; `*` for all.
    pub address: String,
    /// TCP port; 0 lets the system choose a free one.
    pub port: u16,
    /// Whether the standard gRPC health service answers.
    pub health_service_enabled: bool,
    /// The largest message taken from an agent, in bytes; 3136 KiB to 1 GiB.
    pub max_inbound_message_size: usize,
    /// How many connections one address may have open.
    pub limits: AddressLimits,
    /// HTTP/2 pings to agents; none: not sent.
    pub keepalive: Option<KeepaliveSettings>,
}

/// HTTP/2 pings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeepaliveSettings {
    /// The pace; 1 s to 1 day.
    pub every: Duration,
    /// The longest wait for an answer; then the connection is closed. 1 s to 1 day.
    pub timeout: Duration,
}

/// What is said regularly of the agents that are connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeartbeatSettings {
    /// Whether an agent that sends no heartbeat is cut off; else only the pings of HTTP/2 find that one is gone.
    pub enabled: bool,
    /// Until `kubesvc_assignments` is first compared with the agents; up to 365 days.
    pub initial_delay: Duration,
    /// How often it is compared after that; 1 s to 365 days.
    pub period: Duration,
}

/// How accounts are added while the programs run.
#[derive(Debug, Clone, PartialEq)]
pub struct DynamicAccountsSettings {
    /// Whether accounts may be added, changed and removed at all.
    pub enabled: bool,
    /// How often a failed registration is tried again; 0 to 1000.
    pub max_retries: u32,
    /// The wait before the first further try; 1 s to 1 day.
    pub retry_frequency: Duration,
    /// By how much each wait is longer than the last; 1 (the documented fixed pace) to 100.
    pub retry_multiplier: f64,
    /// The longest wait; never shorter than `retry_frequency`.
    pub retry_max_delay: Duration,
    /// How long an account may be without an agent before another is looked for; 0 to 1 day.
    pub orphan_grace: Duration,
    /// Whether rows that somebody else wrote become accounts.
    pub adopt_rows: bool,
    /// Whether an account of an agent's own file has its name before a declared one.
    pub agent_wins: bool,
    /// Where accounts that come by REST are written; none: the operator's own namespace.
    pub namespace: Option<String>,
}

/// Where secret engines read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretsSettings {
    /// Absolute folders below which the engine `file` reads; none: that engine is off.
    pub folders: Vec<PathBuf>,
    /// Namespaces, besides an account's own, whose Secrets references of engine `k8s` may name.
    pub namespaces: Vec<String>,
    /// Whether references of engine `noop` are taken.
    pub noop: bool,
}

/// How much is asked of the operator's own API server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KubernetesBudget {
    /// Requests a second over time; 0: no bound.
    pub qps: u32,
    /// Requests at once after a pause; at least 1.
    pub burst: u32,
    /// Registrations begun a second; 0: no bound.
    pub registration_qps: u32,
}

/// How replicas agree on one that leads. `duration` is longer than `renew_deadline`, and that is longer than 1.2 times
/// `retry_period`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaderElectionSettings {
    /// A Lease that has not changed for so long has run out; 2 s to 1 hour.
    pub duration: Duration,
    /// A leader that could not renew its Lease for so long leads no more.
    pub renew_deadline: Duration,
    /// The time between two tries.
    pub retry_period: Duration,
}

/// Which agents may have accounts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AgentsSettings {
    /// Who approves an agent that connects for the first time.
    pub approval: Approval,
    /// Whether a zone may offer to take an account that names none.
    pub offers: bool,
    /// How long the object of an agent that is away is kept where a person has decided whether it is approved; 600 s to
    /// ten years.
    pub forget_approved_after: Duration,
}

/// Which accounts may use credentials that are not in their own namespace. `*` stands for all watched namespaces, `.`
/// for the operator's own; an empty list allows none.
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
    /// It is approved at once.
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
            .field("heartbeat", &self.heartbeat)
            .field("dynamic_accounts", &self.dynamic_accounts)
            .field("secrets", &self.secrets)
            .field("kubernetes", &self.kubernetes)
            .field("agents", &self.agents)
            .field("accounts", &self.accounts)
            .field("cluster", &self.cluster)
            .field("leader_election", &self.leader_election)
            .field("logging", &self.logging)
            .finish()
    }
}

pub(crate) fn build(v: &Values) -> Result<OperatorSettings, ConfigProblem> {
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
        cluster: cluster::build(v)?,
        leader_election: leader_election(v)?,
        logging: super::logging::build(v)?,
    })
}

/// A leader gives up before others may take its Lease, and tries more than once before that.
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

/// Documented: 0 seconds sends no pings. A wait of 0 closes no connection, which pings without an end do as well.
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

/// So many of Java's time units.
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
