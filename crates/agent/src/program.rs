//! Composition root of `kubesvc-agent`: its command line, the identity of the agent, and its options.

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use tokio_util::sync::CancellationToken;

use crate::settings::{AccountSettings, AgentSettings};
use crate::static_accounts::StaticAccountFile;
use crate::{Agent, AgentError, AgentOptions};
use kubesvc_core::agent_policy::AccountPolicy;
use kubesvc_core::object_names::{self, AgentNameError};
use kubesvc_core::wire::ops::AccountSpec;
use kubesvc_runtime::config::ConfigError;
use kubesvc_runtime::config::UnknownKeys;
use kubesvc_runtime::process::{self, FAILURE, USAGE};
use kubesvc_runtime::process::{no_core_dumps, raise_open_files};
use kubesvc_runtime::telemetry::errors::chain;
use kubesvc_runtime::telemetry::logs::{self, LogError};

mod reload;
#[cfg(test)]
mod tests;

use reload::SettingsFolder;

const PROGRAM: &str = "kubesvc-agent";
const EXAMPLES: &str = "\
Examples:
  kubesvc-agent
  kubesvc-agent --config-dir ./config
  AGENT_ID=agent-1 kubesvc-agent --config-dir ./config
  kubesvc-agent --config-dir ./config --print-config";

/// Maximum number of concurrent activations; each needs one connection and some hundred KiB.
const MAX_CONCURRENT_ACTIVATIONS: usize = 16;

/// Interval between checks of files for changes.
const FILE_CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// Interval between checks of certificates, keys, authorities and the token for changes.
const TLS_CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// Runs an agent of kubesvc: connects to the hub, holds the Kubernetes accounts of its zone and reports on them.
#[derive(Debug, Parser)]
#[command(name = "kubesvc-agent", version, after_help = EXAMPLES)]
struct Cli {
    /// Directory of armory-agent.yml and armory-agent-local.yml, which overrides it.
    #[arg(long, value_name = "DIR", default_value = "/opt/armory/config")]
    config_dir: PathBuf,
    /// Print the effective settings with their origins, secrets redacted, and exit.
    #[arg(long)]
    print_config: bool,
    /// How to treat an unknown key in a settings file.
    #[arg(long, value_enum, default_value_t = UnknownKeys::Error, value_name = "error|warn")]
    config_unknown: UnknownKeys,
}

/// Why the program did not start the agent, or why the agent ended before it was told to.
#[derive(Debug, thiserror::Error)]
enum StartError {
    #[error(transparent)]
    Settings(#[from] ConfigError),
    #[error("{what} {problem}; remove it")]
    Name {
        /// The id or the zone, and where it comes from.
        what: String,
        problem: AgentNameError,
    },
    #[error(
        "the zone is not known; set zoneId in armory-agent.yml, or POD_NAMESPACE and DEPLOYMENT_NAME (or POD_NAME)"
    )]
    UnknownZone,
    /// Logging cannot be set up. The parser's own error is left out, because the text says what to write instead.
    #[error("{0}")]
    Logging(LogError),
    /// The machine has no threads or file descriptors left.
    #[error("no runtime")]
    Runtime(#[source] io::Error),
    #[error("signals cannot be caught")]
    Signals(#[source] io::Error),
    /// The agent could not start, or an essential task of it ended.
    #[error(transparent)]
    Agent(#[from] AgentError),
}

impl StartError {
    fn exit_code(&self) -> u8 {
        match self {
            Self::Settings(_) | Self::Name { .. } | Self::UnknownZone | Self::Logging(_) => USAGE,
            Self::Agent(AgentError::Tls(_) | AgentError::Token(_)) => USAGE,
            Self::Runtime(_) | Self::Signals(_) | Self::Agent(_) => FAILURE,
        }
    }
}

/// Runs the program.
pub fn main() -> ExitCode {
    match start(Cli::parse()) {
        Ok(code) => code,
        Err(error) => process::complain(PROGRAM, &chain(&error), error.exit_code()),
    }
}

fn start(cli: Cli) -> Result<ExitCode, StartError> {
    let settings = SettingsFolder::load(cli.config_dir, cli.config_unknown)?;
    let loaded = &settings.loaded;
    if cli.print_config {
        return Ok(process::say(PROGRAM, &loaded.print()));
    }
    let options = options(&loaded.settings, &|name| std::env::var(name).ok())?;
    logs::init(&loaded.settings.logging, PROGRAM).map_err(StartError::Logging)?;
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    if let Err(error) = no_core_dumps() {
        tracing::warn!(%error, "cannot disable core dumps; a crash may write credentials to disk");
    }
    if let Err(error) = raise_open_files() {
        tracing::warn!(%error, "cannot raise the limit on open files (ulimit -n)");
    }
    run(options, settings)?;
    Ok(ExitCode::SUCCESS)
}

fn run(options: AgentOptions, settings: SettingsFolder) -> Result<(), StartError> {
    // An error means that a provider is installed already, which is fine.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Runtime::new().map_err(StartError::Runtime)?;
    let ended = runtime.block_on(async {
        let stop = CancellationToken::new();
        kubesvc_runtime::shutdown::on_signal(stop.clone()).map_err(StartError::Signals)?;
        let agent = Agent::bind(options.clone()).await?;
        settings.watch(options.own, FILE_CHECK_INTERVAL, agent.background());
        Ok(agent.run(stop).await?)
    });
    runtime.shutdown_timeout(Duration::from_secs(1));
    ended
}

/// Returns the options of the agent that these settings and the environment describe.
fn options(
    settings: &AgentSettings,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<AgentOptions, StartError> {
    let place = env("POD_NAMESPACE").zip(env("POD_NAME"));
    let (accounts, policies) = split(&settings.accounts);
    let own = StaticAccountFile::new(accounts);
    own.set_policies(policies);
    Ok(AgentOptions {
        agent_id: agent_id(env)?.into(),
        zone_id: zone_id(settings.zone_id.as_deref(), env)?,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        settings: settings.clone(),
        own,
        metrics_address: String::new(),
        place,
        file_pace: FILE_CHECK_INTERVAL,
        tls_pace: TLS_CHECK_INTERVAL,
        activation_concurrency: MAX_CONCURRENT_ACTIVATIONS,
    })
}

/// Returns the definitions of the accounts of the agent's own file, and the policy of each account by its name.
fn split(accounts: &[AccountSettings]) -> (Vec<AccountSpec>, HashMap<String, AccountPolicy>) {
    let policies = accounts.iter().map(|account| (account.name().to_owned(), account.policy.clone()));
    (accounts.iter().map(|account| account.spec.clone()).collect(), policies.collect())
}

/// Returns the agent's id: `AGENT_ID`, otherwise `POD_NAME`, otherwise host name and process id.
///
/// # Errors
/// The id contains a character that no hub accepts.
fn agent_id(env: &dyn Fn(&str) -> Option<String>) -> Result<String, StartError> {
    let host = || format!("{}-{}", gethostname::gethostname().to_string_lossy(), std::process::id());
    let named = ["AGENT_ID", "POD_NAME"].into_iter().find_map(|name| Some((name, set(env, name)?)));
    let (source, id) = named.unwrap_or_else(|| ("the host's name", host()));
    checked(format!("the agent's id ({source})"), id)
}

fn checked(what: impl Into<String>, name: String) -> Result<String, StartError> {
    match object_names::check_agent_name(&name) {
        Ok(()) => Ok(name),
        Err(problem) => Err(StartError::Name { what: what.into(), problem }),
    }
}

/// Returns the zone: the setting, otherwise `<deployment>_<namespace>`. The deployment comes from
/// `DEPLOYMENT_NAME`, or from `POD_NAME` without its two generated parts; the namespace comes from
/// `POD_NAMESPACE`.
///
/// # Errors
/// Nothing names the zone, or it contains a character that no hub accepts. The message says what to set.
fn zone_id(setting: Option<&str>, env: &dyn Fn(&str) -> Option<String>) -> Result<String, StartError> {
    if let Some(zone) = setting {
        return checked("zoneId", zone.to_owned());
    }
    let deployment = set(env, "DEPLOYMENT_NAME").or_else(|| deployment_of(&set(env, "POD_NAME")?));
    match (deployment, set(env, "POD_NAMESPACE")) {
        (Some(deployment), Some(namespace)) => checked(
            "the zone (DEPLOYMENT_NAME or POD_NAME, and POD_NAMESPACE)",
            format!("{deployment}_{namespace}"),
        ),
        _ => Err(StartError::UnknownZone),
    }
}

/// Returns the deployment of a pod: `name` for `name-5d9c7-x2v4q`.
fn deployment_of(pod: &str) -> Option<String> {
    let (replica_set, _) = pod.rsplit_once('-')?;
    let (deployment, _) = replica_set.rsplit_once('-')?;
    (!deployment.is_empty()).then(|| deployment.to_owned())
}

fn set(env: &dyn Fn(&str) -> Option<String>, name: &str) -> Option<String> {
    env(name).filter(|value| !value.is_empty())
}
