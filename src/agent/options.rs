//! Options of an agent.

use std::path::PathBuf;
use std::time::Duration;

use crate::account::policy::AgentPolicy;
use crate::agent::static_accounts::StaticAccountFile;

/// Options of an agent.
#[derive(Clone, Debug)]
pub struct AgentOptions {
    /// Id of the agent; unique among the agents of the hub.
    pub agent_id: String,
    /// The zone whose accounts it takes.
    pub zone_id: String,
    /// Version of the program.
    pub version: String,
    /// Address of the hub, as `host:port`.
    pub hub: String,
    /// Whether the connection to the hub is plain text. Otherwise it is TLS, with the authorities that the
    /// machine trusts.
    pub insecure: bool,
    /// Folders below which an account may name a kubeconfig file.
    pub kubeconfig_folders: Vec<PathBuf>,
    /// What the agent's owner allows it to do for accounts.
    pub policy: AgentPolicy,
    /// Programs that may log in for kubeconfigs of the agent's own accounts; found in PATH.
    pub exec_commands: Vec<String>,
    /// The accounts of the agent's own file.
    pub own: StaticAccountFile,
    /// Whether the agent takes accounts other than its own.
    pub dynamic_accounts: bool,
    /// Address for health; empty or `*` for all addresses.
    pub health_address: String,
    /// Port for health; 0 lets the system choose.
    pub health_port: u16,
    /// Address for metrics; empty or `*` for all addresses.
    pub metrics_address: String,
    /// Port for metrics; 0 lets the system choose, `None` turns metrics off.
    pub metrics_port: Option<u16>,
    /// Namespace and pod, if the agent runs in Kubernetes.
    pub place: Option<(String, String)>,
    /// Delays before the agent dials the hub again.
    pub backoff: Backoff,
    /// Detection of a lost hub.
    pub keep_alive: KeepAlive,
    /// Maximum number of accounts that are started at once.
    pub activation_concurrency: usize,
    /// Interval between checks of the accounts' files.
    pub file_pace: Duration,
}

/// Back-off after consecutive failures: `base`, then `multiplier` times as long each time, up to `max`. Each
/// delay is varied up or down by up to the fraction `jitter`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backoff {
    /// Delay after the first failure.
    pub base: Duration,
    /// Factor between consecutive delays.
    pub multiplier: f64,
    /// Fraction, 0 to 1, by which a delay varies.
    pub jitter: f64,
    /// Maximum delay, before jitter.
    pub max: Duration,
    /// Minimum delay after a stream that the hub had accepted, before jitter.
    pub reconnect: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            base: Duration::from_secs(1),
            multiplier: 1.6,
            jitter: 0.2,
            max: Duration::from_secs(120),
            reconnect: Duration::from_secs(5),
        }
    }
}

/// Detection of a lost hub.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KeepAlive {
    /// Interval between HTTP/2 pings; zero turns them off.
    pub ping_every: Duration,
    /// Timeout for the answer to a ping.
    pub ping_timeout: Duration,
    /// Time without any frame, heartbeats included, after which the agent dials again; zero leaves that to
    /// the heartbeats alone.
    pub idle_timeout: Duration,
}

impl Default for KeepAlive {
    fn default() -> Self {
        Self {
            ping_every: Duration::from_secs(20),
            ping_timeout: Duration::from_secs(20),
            idle_timeout: Duration::ZERO,
        }
    }
}

#[cfg(test)]
impl AgentOptions {
    /// Options for tests: plain text, ports chosen by the system, short delays.
    pub(super) fn of_test(hub: String) -> Self {
        let backoff = Backoff {
            base: Duration::from_millis(20),
            max: Duration::from_millis(100),
            reconnect: Duration::from_millis(20),
            ..Backoff::default()
        };
        Self {
            agent_id: "agent-1".to_owned(),
            zone_id: "zone-1".to_owned(),
            version: "1.2.3".to_owned(),
            hub,
            insecure: true,
            kubeconfig_folders: Vec::new(),
            policy: AgentPolicy::default(),
            exec_commands: Vec::new(),
            own: StaticAccountFile::default(),
            dynamic_accounts: true,
            health_address: "127.0.0.1".to_owned(),
            health_port: 0,
            metrics_address: "127.0.0.1".to_owned(),
            metrics_port: None,
            place: Some(("spinnaker".to_owned(), "pod-1".to_owned())),
            backoff,
            keep_alive: KeepAlive::default(),
            activation_concurrency: 4,
            file_pace: Duration::from_millis(20),
        }
    }
}
