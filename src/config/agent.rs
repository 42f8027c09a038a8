//! What `kubesvc-agent` reads.

mod keys;

use std::path::PathBuf;

use super::error::Problem;
use super::layer::Values;
pub use super::logging::{LogFormat, LogLevel, LoggingSettings};
pub(crate) use keys::SPEC;

/// Every setting of the agent that has an effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentSettings {
    /// The hub to dial.
    pub hub: HubSettings,
    /// The zone this agent serves; none: it is made from the names of the deployment and its namespace.
    pub zone_id: Option<String>,
    /// The health server.
    pub server: HealthServerSettings,
    /// Logs.
    pub logging: LoggingSettings,
    /// How many accounts the file lists under `kubernetes.accounts`. They are not read yet.
    pub static_accounts: usize,
    /// The folders in which an account's kubeconfig file may be; absolute.
    pub kubeconfig_folders: Vec<PathBuf>,
}

/// The hub to dial.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HubSettings {
    /// Host and port of the hub, or of a gRPC proxy before it.
    pub grpc: String,
    /// Whether the hub is dialled without TLS.
    pub insecure: bool,
}

/// The health server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthServerSettings {
    /// Address or host name to listen on; `*` for all.
    pub host: String,
    /// TCP port; 0 lets the system choose a free one.
    pub port: u16,
}

pub(crate) fn build(v: &Values) -> Result<AgentSettings, Problem> {
    Ok(AgentSettings {
        hub: HubSettings {
            grpc: v.string("clouddriver.grpc")?,
            insecure: v.boolean("clouddriver.insecure")?,
        },
        zone_id: v.optional("zoneId")?,
        server: HealthServerSettings { host: v.string("server.host")?, port: v.number("server.port")? },
        logging: super::logging::build(v)?,
        static_accounts: v.list_len("kubernetes.accounts"),
        kubeconfig_folders: v.paths("kubernetes.kubeconfigFolders")?,
    })
}
