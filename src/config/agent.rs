//! The settings of `kubesvc-agent`.

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
    /// The zone this agent serves; `None`: derived from the names of the deployment and its namespace.
    pub zone_id: Option<String>,
    /// The health server.
    pub server: HealthServerSettings,
    /// Port of the metrics server; `None`: metrics are not served.
    pub metrics_port: Option<u16>,
    /// Logging.
    pub logging: LoggingSettings,
    /// The accounts of `kubernetes.accounts`; at most 1,000, with unique names.
    pub accounts: Vec<AccountSettings>,
    /// Whether other accounts than those are accepted.
    pub dynamic_accounts: bool,
    /// Names, without a path, of the programs that kubeconfigs of `kubernetes.accounts` may run to log in.
    pub exec_commands: Vec<String>,
    /// Limits that apply to every account.
    pub policy: AgentPolicy,
    /// Absolute paths of the folders in which an account's kubeconfig file may be.
    pub kubeconfig_folders: Vec<PathBuf>,
}

/// The hub to dial.
#[derive(Debug, Clone, PartialEq)]
pub struct HubConnectionSettings {
    /// Host and port of the hub, or of a gRPC proxy in front of it.
    pub grpc: String,
    /// Whether to dial the hub without TLS.
    pub insecure: bool,
    /// Back-off between failed dials.
    pub backoff: BackoffSettings,
    /// Minimum delay before dialling again after a stream that the hub had accepted.
    pub reconnect: Duration,
    /// Interval of HTTP/2 pings; zero: none.
    pub ping_every: Duration,
    /// Time limit for the response to a ping; not zero.
    pub ping_timeout: Duration,
    /// Time without any frame after which the hub is dialled again; zero: never for this reason.
    pub idle_timeout: Duration,
}

/// Back-off between failed dials.
#[derive(Debug, Clone, PartialEq)]
pub struct BackoffSettings {
    /// Delay after the first failure.
    pub base: Duration,
    /// Factor by which each delay grows.
    pub multiplier: f64,
    /// Fraction by which a delay varies.
    pub jitter: f64,
    /// Maximum delay.
    pub max: Duration,
}

/// The health server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthServerSettings {
    /// Address or host name to listen on; `*` for all.
    pub host: String,
    /// TCP port; 0: the system chooses a free one.
    pub port: u16,
}

/// Time limit for a ping's response if `clouddriver.keepAliveTimeOutSeconds` is 0; the same as gRPC's default.
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
        // Each entry was validated when it was read.
        servers: v.list("kubernetes.policy.servers")?.iter().filter_map(|entry| entry.parse().ok()).collect(),
        loopback: v.boolean("kubernetes.policy.loopback")?,
        insecure: v.boolean("kubernetes.policy.insecure")?,
        service_account: v.boolean("kubernetes.policy.serviceAccount")?,
        files: v.boolean("kubernetes.policy.files")?,
    })
}

/// Resolves the two spellings of the setting. Both may be given if they agree.
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
