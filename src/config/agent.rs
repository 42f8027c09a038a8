//! What `kubesvc-agent` reads.

pub mod accounts;
mod keys;

use std::path::PathBuf;
use std::time::Duration;

use super::error::{ConfigError, ConfigProblem};
use super::layer::Values;
pub use super::logging::{LogFormat, LogLevel, LoggingSettings};
use crate::account::policy::AgentPolicy;
pub use accounts::{AccountSettings, AccountSource};
pub(crate) use keys::SPEC;

/// Every setting of the agent that has an effect.
#[derive(Debug, Clone, PartialEq)]
pub struct AgentSettings {
    /// The hub to dial.
    pub hub: HubConnectionSettings,
    /// The zone this agent serves; none: it is made from the names of the deployment and its namespace.
    pub zone_id: Option<String>,
    /// The health server.
    pub server: HealthServerSettings,
    /// Where metrics are served; none: nowhere.
    pub metrics_port: Option<u16>,
    /// Logs.
    pub logging: LoggingSettings,
    /// The accounts of `kubernetes.accounts`, at most 1,000, each name once.
    pub accounts: Vec<AccountSettings>,
    /// Whether accounts other than those are taken.
    pub dynamic_accounts: bool,
    /// Programs that may log in for kubeconfigs of `kubernetes.accounts`: bare names.
    pub exec_commands: Vec<String>,
    /// What is done for accounts at all.
    pub policy: AgentPolicy,
    /// The folders in which an account's kubeconfig file may be; absolute.
    pub kubeconfig_folders: Vec<PathBuf>,
}

/// The hub to dial.
#[derive(Debug, Clone, PartialEq)]
pub struct HubConnectionSettings {
    /// Host and port of the hub, or of a gRPC proxy before it.
    pub grpc: String,
    /// Whether the hub is dialled without TLS.
    pub insecure: bool,
    /// How long to wait between dials that fail.
    pub backoff: BackoffSettings,
    /// The shortest wait after a stream that the hub had accepted.
    pub reconnect: Duration,
    /// Pace of HTTP/2 pings; zero: none.
    pub ping_every: Duration,
    /// Longest wait for the answer to a ping; not zero.
    pub ping_timeout: Duration,
    /// After so long without any frame the hub is dialled anew; zero: never for that reason.
    pub idle_timeout: Duration,
}

/// How long to wait between dials that fail.
#[derive(Debug, Clone, PartialEq)]
pub struct BackoffSettings {
    /// After the first failure.
    pub base: Duration,
    /// How much longer each time.
    pub multiplier: f64,
    /// The share by which a wait varies.
    pub jitter: f64,
    /// The longest wait.
    pub max: Duration,
}

/// The health server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthServerSettings {
    /// Address or host name to listen on; `*` for all.
    pub host: String,
    /// TCP port; 0 lets the system choose a free one.
    pub port: u16,
}

/// The wait for a ping's answer where `clouddriver.keepAliveTimeOutSeconds` is 0, as in gRPC itself.
const PING_TIMEOUT: Duration = Duration::from_secs(20);

pub(crate) fn build(v: &Values) -> Result<AgentSettings, ConfigError> {
    let accounts = accounts::build(v)?;
    Ok(AgentSettings {
        hub: hub(v)?,
        zone_id: v.optional("zoneId")?,
        server: HealthServerSettings { host: v.string("server.host")?, port: v.number("server.port")? },
        metrics_port: if v.boolean("prometheus.enabled")? {
            Some(v.number("prometheus.port")?)
        } else {
            None
        },
        logging: super::logging::build(v)?,
        accounts,
        dynamic_accounts: dynamic_accounts(v)?,
        exec_commands: v.list("kubernetes.execCommands")?,
        policy: policy(v)?,
        kubeconfig_folders: v.paths("kubernetes.kubeconfigFolders")?,
    })
}

fn hub(v: &Values) -> Result<HubConnectionSettings, ConfigProblem> {
    let ping_timeout = v.seconds("clouddriver.keepAliveTimeOutSeconds")?;
    Ok(HubConnectionSettings {
        grpc: v.string("clouddriver.grpc")?,
        insecure: v.boolean("clouddriver.insecure")?,
        backoff: BackoffSettings {
            base: v.number("clouddriver.backoff.baseDelay").map(Duration::from_nanos)?,
            multiplier: v.float("clouddriver.backoff.multiplier")?,
            jitter: v.float("clouddriver.backoff.jitter")?,
            max: v.number("clouddriver.backoff.maxDelay").map(Duration::from_nanos)?,
        },
        reconnect: v.millis("kubernetes.reconnectTimeoutMs")?,
        ping_every: v.seconds("clouddriver.keepAliveHeartbeatSeconds")?,
        ping_timeout: if ping_timeout.is_zero() { PING_TIMEOUT } else { ping_timeout },
        idle_timeout: v.seconds("clouddriver.keepAliveOperationSeconds")?,
    })
}

fn policy(v: &Values) -> Result<AgentPolicy, ConfigProblem> {
    Ok(AgentPolicy {
        // Each was read as an entry before.
        servers: v.list("kubernetes.policy.servers")?.iter().filter_map(|entry| entry.parse().ok()).collect(),
        loopback: v.boolean("kubernetes.policy.loopback")?,
        insecure: v.boolean("kubernetes.policy.insecure")?,
        service_account: v.boolean("kubernetes.policy.serviceAccount")?,
        files: v.boolean("kubernetes.policy.files")?,
    })
}

/// The setting has two spellings. Both may be given if they agree.
fn dynamic_accounts(v: &Values) -> Result<bool, ConfigProblem> {
    const KEY: &str = "dynamicAccounts.enabled";
    const OLDER: &str = "dynamicAccountsEnabled";
    let (enabled, older) = (v.boolean(KEY)?, v.boolean(OLDER)?);
    match (v.is_given(KEY), v.is_given(OLDER)) {
        (true, true) if enabled != older => Err(ConfigProblem::Rule {
            place: v.origin(OLDER),
            key: OLDER.to_owned(),
            why: format!("is {older} although {KEY}, its newer spelling, is {enabled}; keep one of the two"),
        }),
        (false, true) => Ok(older),
        _ => Ok(enabled),
    }
}
