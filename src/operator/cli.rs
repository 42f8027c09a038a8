//! The command line of `kubesvc-operator`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use super::arguments::{CopyArguments, RunArguments};
use super::{copy, run};
use crate::account::crds;
use crate::command_line::{self, FAILURE, USAGE};
use crate::config::{self, Loaded, operator::OperatorSettings};
use crate::process::{no_core_dumps, raise_open_files};

/// Usual limit of open files, assumed when the real limit cannot be determined.
const USUAL_OPEN_FILES: u64 = 1024;

const EXAMPLES: &str = "\
Examples:
  kubesvc-operator --config kubesvc.yml
  kubesvc-operator --config clouddriver.yml --config kubesvc-local.yml --kubeconfig ~/.kube/config --namespace spinnaker
  kubesvc-operator --config kubesvc.yml --print-config
  kubesvc-operator crds | kubectl apply -f -";

/// Registers Kubernetes clusters as Spinnaker accounts: a controller, a hub for agents (gRPC, port 9091) and a REST
/// API (port 7002).
#[derive(Debug, Parser)]
#[command(name = "kubesvc-operator", version, after_help = EXAMPLES)]
struct Cli {
    #[command(flatten)]
    run: RunArguments,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Print the custom resource definitions as YAML, for `kubectl apply -f -`.
    Crds {
        /// Write one file per definition into this directory instead of printing them.
        #[arg(long, value_name = "DIR")]
        directory: Option<PathBuf>,
    },
    /// Print the OpenAPI document of the REST API.
    Openapi,
    /// Copy all accounts from one database to another, for example from SQLite to PostgreSQL.
    CopyDatabase(CopyArguments),
}

/// Runs the program.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    match cli.command {
        Some(Command::Crds { directory }) => print_crds(directory.as_deref()),
        Some(Command::Openapi) => say(&crate::rest::openapi()),
        Some(Command::CopyDatabase(arguments)) => match copy::run(&arguments) {
            Ok(summary) => say(&summary),
            Err((reason, code)) => complain(&reason, code),
        },
        None => operate(&cli.run),
    }
}

fn operate(arguments: &RunArguments) -> ExitCode {
    let unknown = arguments.config_unknown.into();
    let loaded = match config::load_operator(&arguments.config, &|name| std::env::var(name).ok(), unknown) {
        Ok(loaded) => loaded,
        Err(error) => return complain(&error.to_string(), USAGE),
    };
    if arguments.print_config {
        return say(&loaded.print());
    }
    start(arguments, &loaded)
}

fn start(arguments: &RunArguments, loaded: &Loaded<OperatorSettings>) -> ExitCode {
    if let Err(error) = crate::telemetry::logs::init(&loaded.settings.logging, "kubesvc-operator") {
        return complain(&error.to_string(), USAGE);
    }
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    if let Some(exposure) = crate::store::exposure(&loaded.settings.database_url) {
        tracing::warn!("{}", exposure.warning);
    }
    if let Err(error) = no_core_dumps() {
        tracing::warn!(%error, "cannot disable core dumps; a crash may write credentials to disk");
    }
    let open_files = raise_open_files().unwrap_or_else(|error| {
        tracing::warn!(%error, "cannot raise the limit on open files (ulimit -n)");
        USUAL_OPEN_FILES
    });
    crate::operator::kube_client::install_crypto();
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => return complain(&format!("no runtime: {error}"), FAILURE),
    };
    let ended = runtime.block_on(run::run(arguments, &loaded.settings, open_files));
    runtime.shutdown_timeout(std::time::Duration::from_secs(1));
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => complain(&reason, FAILURE),
    }
}

fn print_crds(directory: Option<&std::path::Path>) -> ExitCode {
    let mut all = String::new();
    for (file, crd) in crds::all() {
        let yaml = match serde_saphyr::to_string(&crd) {
            Ok(yaml) => yaml,
            Err(error) => return complain(&format!("{file}: {error}"), FAILURE),
        };
        let Some(directory) = directory else {
            all.push_str("---\n");
            all.push_str(&yaml);
            continue;
        };
        let path = directory.join(file);
        let text = format!("# Written by `make crds` from src/account.\n{yaml}");
        if let Err(error) = std::fs::write(&path, text) {
            return complain(&format!("{} cannot be written: {error}", path.display()), FAILURE);
        }
    }
    if directory.is_none() { say(&all) } else { ExitCode::SUCCESS }
}

fn say(text: &str) -> ExitCode {
    command_line::say("kubesvc-operator", text)
}

fn complain(reason: &str, code: u8) -> ExitCode {
    command_line::complain("kubesvc-operator", reason, code)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        super::Cli::command().debug_assert();
    }
}
