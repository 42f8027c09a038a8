//! The agent: it dials the hub, takes the accounts that its zone is granted, and reaches their clusters.
//!
//! | module | owns |
//! |---|---|
//! | [`link`] | the one stream to the hub: dialling, hello, heartbeats, reconnecting |
//! | [`reactions`] | what a command does to the table of accounts (pure) |
//! | [`accounts`] | carrying the effects out, and the answers |
//! | [`activation`] | from an account's definition to the identity of its cluster |
//! | [`cluster`] | the one way to a cluster: TLS, requests, failures |
//! | [`health`] | what probes and people ask the agent |
//!
//! Nothing runs for an account that is merely held: its definition and its cluster's identity stay in memory.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

pub mod accounts;
pub mod activation;
pub mod cluster;
pub mod definition;
mod failure;
pub mod health;
pub mod link;
pub mod reactions;

use activation::Activator;
use health::Status;
use link::Link;

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
    /// The address that health is served on.
    pub health_address: String,
    /// The port that health is served on; 0 lets the system choose.
    pub health_port: u16,
    /// Namespace and pod, if it runs in Kubernetes.
    pub place: Option<(String, String)>,
    /// How long it waits before it dials the hub again.
    pub backoff: Backoff,
    /// How many accounts are started at once.
    pub activation_concurrency: usize,
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
}

impl Default for Backoff {
    fn default() -> Self {
        Self { base: Duration::from_secs(1), multiplier: 1.6, jitter: 0.2, max: Duration::from_secs(120) }
    }
}

/// Why an agent could not start. A running one ends for no reason but being told to.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The health port is taken, or the address is not one of this machine.
    #[error("cannot listen on {address} for health checks: {source}; free it, or set another server.port")]
    HealthPort {
        /// The address and port.
        address: String,
        /// What the system says.
        source: std::io::Error,
    },
    /// The hub's address is none.
    #[error("{hub:?} is no address of a hub; use HOST:PORT")]
    HubAddress {
        /// What was given.
        hub: String,
    },
    /// An option is out of its bounds.
    #[error("{option} {problem}")]
    Option {
        /// Which one.
        option: &'static str,
        /// What is wrong with it.
        problem: &'static str,
    },
}

/// An agent that holds its health port and has not dialled yet.
#[derive(Debug)]
pub struct Agent {
    health: health::Server,
    link: Link,
}

impl Agent {
    /// Checks the options and takes the health port.
    ///
    /// # Errors
    ///
    /// An [`AgentError`] that says what to change.
    pub async fn bind(options: AgentOptions) -> Result<Self, AgentError> {
        check_id("the agent id", &options.agent_id, 253)?;
        check_id("the zone id", &options.zone_id, 255)?;
        let activator = Activator::new(options.kubeconfig_folders.clone(), options.activation_concurrency);
        let status = Arc::new(Status::new(&options));
        let health = health::Server::bind(&options, status.clone()).await?;
        let link = Link::new(options, activator, status)?;
        Ok(Self { health, link })
    }

    /// Where health is served.
    pub fn health_address(&self) -> SocketAddr {
        self.health.address()
    }

    /// Runs until `stop`, then says goodbye to the hub.
    pub async fn run(self, stop: CancellationToken) {
        let health_ends = CancellationToken::new();
        let health = tokio::spawn(self.health.serve(health_ends.clone()));
        self.link.run(stop).await;
        health_ends.cancel();
        let _ = health.await;
    }
}

/// Runs an agent until `stop`.
///
/// # Errors
///
/// An [`AgentError`] if it cannot start. Once started, it tries for ever.
pub async fn run(options: AgentOptions, stop: CancellationToken) -> Result<(), AgentError> {
    Agent::bind(options).await?.run(stop).await;
    Ok(())
}

fn check_id(option: &'static str, id: &str, max: usize) -> Result<(), AgentError> {
    let problem = if id.is_empty() {
        "is empty"
    } else if id.len() > max {
        "is too long"
    } else if id.contains(char::is_control) {
        "holds control characters"
    } else {
        return Ok(());
    };
    Err(AgentError::Option { option, problem })
}
