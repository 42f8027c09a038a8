//! What an agent needs to know to run.

use std::path::PathBuf;
use std::time::Duration;

use crate::account::policy::AgentPolicy;
use crate::agent::static_accounts::StaticAccountFile;

/// What an agent needs to know to run.
#[derive(Clone, Debug)]
pub struct AgentOptions {
    /// Who it is; unique among the agents of the hub.
    pub agent_id: String,
    /// The zone whose accounts it takes.
    pub zone_id: String,
    /// The program's version.
    pub version: String,
    /// The hub, as `host:port`.
    pub hub: String,
    /// Whether the hub is spoken to in plain text. Otherwise it is TLS, with the authorities that the machine trusts.
    pub insecure: bool,
    /// The folders under which an account may name a kubeconfig file.
    pub kubeconfig_folders: Vec<PathBuf>,
    /// What its owner lets it do for accounts.
    pub policy: AgentPolicy,
    /// Programs that may log in for kubeconfigs of its own accounts; found in PATH.
    pub exec_commands: Vec<String>,
    /// The accounts of its own file.
    pub own: StaticAccountFile,
    /// Whether it takes accounts other than its own.
    pub dynamic_accounts: bool,
    /// The address that health is served on; empty or `*`: all.
    pub health_address: String,
    /// The port that health is served on; 0 lets the system choose.
    pub health_port: u16,
    /// The address that metrics are served on; empty or `*`: all.
    pub metrics_address: String,
    /// The port that metrics are served on; 0 lets the system choose, and without one they are not served.
    pub metrics_port: Option<u16>,
    /// Namespace and pod, if it runs in Kubernetes.
    pub place: Option<(String, String)>,
    /// How long it waits before it dials the hub again.
    pub backoff: Backoff,
    /// How it finds out that the hub is gone.
    pub keep_alive: KeepAlive,
    /// How many accounts are started at once.
    pub activation_concurrency: usize,
    /// How often the files of accounts are looked at.
    pub file_pace: Duration,
}

/// How long to wait after each failure in a row: `base`, then `multiplier` times as long each time, up to `max`; each
/// made longer or shorter by up to the share `jitter`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backoff {
    /// After the first failure.
    pub base: Duration,
    /// How much longer each time.
    pub multiplier: f64,
    /// The share, 0 to 1, by which a wait varies.
    pub jitter: f64,
    /// The longest wait, before it is varied.
    pub max: Duration,
    /// The shortest wait after a stream that the hub had accepted, before it is varied.
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

/// How an agent finds out that the hub is gone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KeepAlive {
    /// Pace of HTTP/2 pings; zero: none.
    pub ping_every: Duration,
    /// Longest wait for the answer to a ping.
    pub ping_timeout: Duration,
    /// Without any frame for so long, it dials anew; zero: never for that reason. Heartbeats are frames too.
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
    /// An agent in plain text on ports of the system's choice, which does everything quickly.
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
