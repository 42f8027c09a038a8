//! The command line of `kubesvc-agent`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use tokio_util::sync::CancellationToken;

use super::accounts::{policies, specs};
use super::identity;
use super::reload::Settings;
use crate::agent::static_accounts::StaticAccountFile;
use crate::agent::{Agent, AgentOptions, Backoff, KeepAlive};
use crate::command_line::{self, FAILURE, USAGE, UnknownKey};
use crate::config::agent::AgentSettings;
use crate::process::{no_core_dumps, raise_open_files};
use crate::telemetry::errors::chain;

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
    #[arg(long, value_enum, default_value_t = UnknownKey::Error, value_name = "error|warn")]
    config_unknown: UnknownKey,
}

/// Runs the program.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let unknown = cli.config_unknown.into();
    let env = |name: &str| std::env::var(name).ok();
    let settings = match Settings::load(cli.config_dir, unknown) {
        Ok(settings) => settings,
        Err(error) => return complain(&error.to_string(), USAGE),
    };
    let loaded = &settings.loaded;
    if cli.print_config {
        return command_line::say("kubesvc-agent", &loaded.print());
    }
    let options = match options(&loaded.settings, &env) {
        Ok(options) => options,
        Err(reason) => return complain(&reason, USAGE),
    };
    if let Err(error) = crate::telemetry::logs::init(&loaded.settings.logging, "kubesvc-agent") {
        return complain(&error.to_string(), USAGE);
    }
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    if let Err(error) = no_core_dumps() {
        tracing::warn!(%error, "cannot disable core dumps; a crash may write credentials to disk");
    }
    if let Err(error) = raise_open_files() {
        tracing::warn!(%error, "cannot raise the limit on open files (ulimit -n)");
    }
    run(options, settings)
}

fn run(options: AgentOptions, settings: Settings) -> ExitCode {
    // An error means that a provider is installed already, which is fine.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => return complain(&format!("no runtime: {error}"), FAILURE),
    };
    let ended = runtime.block_on(async {
        let stop = CancellationToken::new();
        crate::shutdown::on_signal(stop.clone())
            .map_err(|error| format!("signals cannot be caught: {error}"))?;
        let agent = Agent::bind(options.clone()).await.map_err(|error| chain(&error))?;
        settings.watch(options.own, FILE_CHECK_INTERVAL, agent.background());
        agent.run(stop).await.map_err(|error| chain(&error))
    });
    runtime.shutdown_timeout(Duration::from_secs(1));
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => complain(&reason, FAILURE),
    }
}

fn options(settings: &AgentSettings, env: &dyn Fn(&str) -> Option<String>) -> Result<AgentOptions, String> {
    let backoff = &settings.hub.backoff;
    let place = env("POD_NAMESPACE").zip(env("POD_NAME"));
    let own = StaticAccountFile::new(specs(&settings.accounts));
    own.set_policies(policies(&settings.accounts));
    Ok(AgentOptions {
        agent_id: identity::agent_id(env)?,
        zone_id: identity::zone_id(settings.zone_id.as_deref(), env)?,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        hub: settings.hub.grpc.clone(),
        insecure: settings.hub.insecure,
        kubeconfig_folders: settings.kubeconfig_folders.clone(),
        policy: settings.policy.clone(),
        exec_commands: settings.exec_commands.clone(),
        own,
        dynamic_accounts: settings.dynamic_accounts,
        metrics_address: String::new(),
        metrics_port: settings.metrics_port,
        health_address: settings.server.host.clone(),
        health_port: settings.server.port,
        place,
        backoff: Backoff {
            base: backoff.base,
            multiplier: backoff.multiplier,
            jitter: backoff.jitter,
            max: backoff.max,
            reconnect: settings.hub.reconnect,
        },
        keep_alive: KeepAlive {
            ping_every: settings.hub.ping_every,
            ping_timeout: settings.hub.ping_timeout,
            idle_timeout: settings.hub.idle_timeout,
        },
        file_pace: FILE_CHECK_INTERVAL,
        activation_concurrency: MAX_CONCURRENT_ACTIVATIONS,
    })
}

fn complain(reason: &str, code: u8) -> ExitCode {
    command_line::complain("kubesvc-agent", reason, code)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        super::Cli::command().debug_assert();
    }
}
