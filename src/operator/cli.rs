//! The command line of `kubesvc-operator`, and the commands that do not run the operator.

use std::io::{IsTerminal as _, stderr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};

use super::kube_client::install_crypto;
use super::run;
use super::run_arguments::RunArguments;
use super::settings::{self, OperatorSettings};
use kubesvc_agent::settings::AgentSettings;
use kubesvc_core::crds;
use kubesvc_runtime::config::{Loaded, Settings};
use kubesvc_runtime::process::{self, FAILURE, USAGE};
use kubesvc_runtime::process::{no_core_dumps, raise_open_files};
use kubesvc_runtime::telemetry::errors::chain;
use kubesvc_store::copy_database::Copied;

/// Usual limit of open files, assumed when the real limit cannot be determined.
const USUAL_OPEN_FILES: u64 = 1024;

const EXAMPLES: &str = "\
Examples:
  kubesvc-operator --config kubesvc.yml
  kubesvc-operator --config clouddriver.yml --config kubesvc-local.yml --kubeconfig ~/.kube/config --namespace spinnaker
  kubesvc-operator --config kubesvc.yml --print-config
  kubesvc-operator --config kubesvc.yml claim-database
  kubesvc-operator check http://kubesvc-operator:7002/health/readiness
  kubesvc-operator crds | kubectl apply -f -
  kubesvc-operator settings-schema agent > armory-agent.schema.json";

const COPY_EXAMPLES: &str = "\
Stop the operator first.

Examples:
  kubesvc-operator copy-database --from sqlite:///var/lib/kubesvc/kubesvc.db \\
      --to postgres://kubesvc:PASSWORD@db.example:5432/kubesvc

Other users of the machine can see a password on a command line. Set the URLs in the environment instead.";

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
    /// Print the JSON schema of a settings file, for editors.
    SettingsSchema {
        /// The program that reads the file.
        #[arg(value_enum, default_value_t = ProgramArgument::Operator, value_name = "operator|agent")]
        program: ProgramArgument,
    },
    /// Copy all accounts from one database to another, for example from SQLite to PostgreSQL.
    CopyDatabase(CopyArguments),
    /// Make the database of the settings that of this installation, after a move or a restore into another cluster.
    ///
    /// Takes --config, --kubeconfig, --context and --namespace, before the command, as the operator does.
    ClaimDatabase,
    /// Ask an address of an operator or an agent for its health until it is healthy, as `helm test` does.
    Check {
        /// What answers 200 if it is healthy, such as `http://kubesvc-operator:7002/health/readiness`.
        #[arg(value_name = "URL")]
        url: http::Uri,
        /// Seconds after which the check has failed.
        #[arg(long, value_name = "SECONDS", default_value_t = 60)]
        timeout: u64,
    },
}

/// Arguments of `copy-database`.
#[derive(clap::Args)]
#[command(after_help = COPY_EXAMPLES)]
struct CopyArguments {
    /// URL of the database to read, in the format of kubesvc.database.url.
    #[arg(long, value_name = "URL", env = "KUBESVC_COPY_FROM", hide_env_values = true)]
    from: String,
    /// URL of the database to write. Missing tables are created.
    #[arg(long, value_name = "URL", env = "KUBESVC_COPY_TO", hide_env_values = true)]
    to: String,
    /// Replace all accounts of the target. Without this flag, a target with accounts is rejected.
    #[arg(long)]
    overwrite: bool,
}

/// Omits the URLs, since they may contain passwords.
impl std::fmt::Debug for CopyArguments {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CopyArguments").field("overwrite", &self.overwrite).finish_non_exhaustive()
    }
}

/// The program that reads a settings file.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum ProgramArgument {
    Operator,
    Agent,
}

/// Runs the program.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    match cli.command {
        Some(Command::Crds { directory }) => print_crds(directory.as_deref()),
        Some(Command::Openapi) => say(&crate::rest::openapi()),
        Some(Command::SettingsSchema { program }) => {
            let spec = match program {
                ProgramArgument::Operator => OperatorSettings::spec(),
                ProgramArgument::Agent => AgentSettings::spec(),
            };
            say(&format!("{:#}", spec.schema()))
        }
        Some(Command::CopyDatabase(arguments)) => match copy_database(&arguments) {
            Ok(summary) => say(&summary),
            Err((reason, code)) => complain(&reason, code),
        },
        Some(Command::ClaimDatabase) => claim_database(&cli.run),
        Some(Command::Check { url, timeout }) => check(&url, Duration::from_secs(timeout)),
        None => operate(&cli.run),
    }
}

/// Reads the settings. A failure has been reported.
fn load(arguments: &RunArguments) -> Result<Loaded<OperatorSettings>, ExitCode> {
    let unknown = arguments.config_unknown;
    let loaded = settings::load(&arguments.config, &|name| std::env::var(name).ok(), unknown);
    loaded.map_err(|error| complain(&error.to_string(), USAGE))
}

fn operate(arguments: &RunArguments) -> ExitCode {
    let loaded = match load(arguments) {
        Ok(loaded) => loaded,
        Err(failed) => return failed,
    };
    if arguments.print_config {
        return say(&loaded.print());
    }
    start(arguments, &loaded)
}

fn claim_database(arguments: &RunArguments) -> ExitCode {
    let loaded = match load(arguments) {
        Ok(loaded) => loaded,
        Err(failed) => return failed,
    };
    install_crypto();
    let claimed =
        tokio::runtime::Runtime::new().map_err(|error| format!("no runtime: {error}")).and_then(|runtime| {
            let claiming = run::claim_database(arguments, &loaded.settings);
            runtime.block_on(claiming).map_err(|error| chain(&error))
        });
    match claimed {
        Ok(summary) => say(&summary),
        Err(reason) => complain(&reason, FAILURE),
    }
}

fn start(arguments: &RunArguments, loaded: &Loaded<OperatorSettings>) -> ExitCode {
    if let Err(error) = kubesvc_runtime::telemetry::logs::init(&loaded.settings.logging, "kubesvc-operator") {
        return complain(&error.to_string(), USAGE);
    }
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    if let Some(exposure) = kubesvc_store::exposure(&loaded.settings.database_url) {
        tracing::warn!("{}", exposure.warning);
    }
    if let Err(error) = no_core_dumps() {
        tracing::warn!(%error, "cannot disable core dumps; a crash may write credentials to disk");
    }
    let open_files = raise_open_files().unwrap_or_else(|error| {
        tracing::warn!(%error, "cannot raise the limit on open files (ulimit -n)");
        USUAL_OPEN_FILES
    });
    install_crypto();
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => return complain(&format!("no runtime: {error}"), FAILURE),
    };
    let ended = runtime.block_on(run::run(arguments, &loaded.settings, open_files));
    runtime.shutdown_timeout(Duration::from_secs(1));
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => complain(&chain(&error), if error.is_about_settings() { USAGE } else { FAILURE }),
    }
}

fn check(url: &http::Uri, within: Duration) -> ExitCode {
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => return complain(&format!("no runtime: {error}"), FAILURE),
    };
    match runtime.block_on(super::check::healthy(url, within)) {
        Ok(answer) => say(&answer),
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
        let text = format!("# Written by `make crds` from crates/core/src.\n{yaml}");
        if let Err(error) = std::fs::write(&path, text) {
            return complain(&format!("{} cannot be written: {error}", path.display()), FAILURE);
        }
    }
    if directory.is_none() { say(&all) } else { ExitCode::SUCCESS }
}

/// Copies the accounts of `copy-database`, and returns a one-line summary.
///
/// # Errors
/// One line that says what is wrong and what to do, and the exit code.
fn copy_database(arguments: &CopyArguments) -> Result<String, (String, u8)> {
    for (flag, url) in [("--from", &arguments.from), ("--to", &arguments.to)] {
        kubesvc_store::check_url(url).map_err(|error| (format!("{flag}: {error}"), USAGE))?;
    }
    if arguments.from == arguments.to {
        return Err(("--from and --to name the same database".to_owned(), USAGE));
    }
    install_crypto();
    let runtime =
        tokio::runtime::Runtime::new().map_err(|error| (format!("no runtime: {error}"), FAILURE))?;
    let bar = progress_bar();
    let progress = |done: usize, of: usize| {
        bar.set_length(of as u64);
        bar.set_position(done as u64);
    };
    let copied = runtime.block_on(kubesvc_store::copy_database::copy(
        &arguments.from,
        &arguments.to,
        arguments.overwrite,
        progress,
    ));
    bar.finish_and_clear();
    copied.map(copy_summary).map_err(|error| (error.in_full(), FAILURE))
}

/// A progress bar on a terminal; hidden otherwise.
fn progress_bar() -> ProgressBar {
    if !stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{wide_bar} {pos}/{len} rows").expect("a fixed template");
    ProgressBar::new(0).with_style(style)
}

fn copy_summary(copied: Copied) -> String {
    let Copied { accounts, namespaces, others, others_there, malformed, deleted, pushed } = copied;
    let mut text = format!(
        "Copied {accounts} accounts, {namespaces} of them with a list of namespaces, and {others} rows that are not \
         kubesvc's."
    );
    for (count, what) in [
        (pushed, "records of accounts registered in Clouddriver were copied"),
        (deleted, "accounts that the target held were deleted before"),
        (others_there, "rows that are not kubesvc's were left out: the target has rows of these names"),
        (
            malformed,
            "accounts could not be read and were left out: the operator makes them anew from the objects",
        ),
    ] {
        if count > 0 {
            text.push_str(&format!(" {count} {what}."));
        }
    }
    text
}

fn say(text: &str) -> ExitCode {
    process::say("kubesvc-operator", text)
}

fn complain(reason: &str, code: u8) -> ExitCode {
    process::complain("kubesvc-operator", reason, code)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        super::Cli::command().debug_assert();
    }
}
