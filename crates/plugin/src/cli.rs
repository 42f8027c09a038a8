//! The command line of `kubectl kubesvc`: its commands, and their exit codes.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::arguments::{CommandError, ScopeArguments};
use crate::commands::agents;
use crate::commands::cache;
use crate::commands::change;
use crate::commands::completion;
use crate::commands::credential;
use crate::commands::describe;
use crate::commands::identity;
use crate::commands::import;
use crate::commands::kubeconfig;
use crate::commands::list;
use crate::commands::migrate;
use crate::commands::on;
use crate::commands::operations;
use crate::commands::uninstall;
use crate::commands::wait;
use crate::commands::why;
use crate::program_settings::ProgramSettings;
use kubesvc_core::DesiredState;
use kubesvc_runtime::process::{self, FAILURE, USAGE};
use kubesvc_runtime::terminal::{self, text};

const EXAMPLES: &str = "\
Examples:
  kubectl kubesvc list -A
  kubectl kubesvc why production
  kubectl kubesvc wait --all --timeout 5m
  kubectl kubesvc agents
  kubectl kubesvc cache production deployment/web -n shop
  kubectl kubesvc on production -- get pods -n shop
  kubectl kubesvc operations production";

const VERSION_EXAMPLES: &str = "\
Examples:
  kubectl kubesvc version";

/// Shows and controls the accounts that kubesvc manages for Spinnaker.
#[derive(Debug, Parser)]
#[command(name = "kubectl-kubesvc", bin_name = "kubectl kubesvc", version, after_help = EXAMPLES)]
#[command(arg_required_else_help = true, disable_help_subcommand = true)]
pub(super) struct Cli {
    #[command(flatten)]
    scope: ScopeArguments,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List accounts with their states.
    #[command(visible_aliases = ["ls", "get"], after_help = list::EXAMPLES)]
    List(list::ListArguments),
    /// Show the details of accounts, including their Events.
    #[command(after_help = describe::EXAMPLES)]
    Describe(describe::DescribeArguments),
    /// Explain why an account is in its state, what it waits for, and what to do.
    #[command(after_help = why::EXAMPLES)]
    Why(why::WhyArguments),
    /// Activate accounts: agents of their zone hold them.
    #[command(after_help = change::ACTIVATE_EXAMPLES)]
    Activate(change::DesiredStateArguments),
    /// Deactivate accounts: they are kept, and no agent holds them.
    #[command(after_help = change::DEACTIVATE_EXAMPLES)]
    Deactivate(change::DesiredStateArguments),
    /// Retry failed accounts now.
    #[command(after_help = change::RETRY_EXAMPLES)]
    Retry(change::RetryArguments),
    /// Have accounts served by this installation that another one serves.
    #[command(after_help = change::ADOPT_EXAMPLES)]
    Adopt(change::AdoptArguments),
    /// Wait until accounts reach their desired state or another goal.
    #[command(after_help = wait::EXAMPLES)]
    Wait(wait::WaitArguments),
    /// List agents; approve or revoke them.
    #[command(visible_alias = "fleet", after_help = agents::EXAMPLES)]
    Agents(agents::AgentsArguments),
    /// List the identities of agents; create and revoke them.
    #[command(after_help = identity::EXAMPLES)]
    Identity(identity::IdentityArguments),
    /// Make or renew the credential of an account in its cluster.
    #[command(after_help = credential::EXAMPLES)]
    Credential(credential::CredentialArguments),
    /// Print a kubeconfig for the APIs of accounts, through your API server; also for Argo CD, Flux and Clouddriver.
    #[command(after_help = kubeconfig::EXAMPLES)]
    Kubeconfig(kubeconfig::KubeconfigArguments),
    /// Run kubectl on an account.
    #[command(after_help = on::EXAMPLES)]
    On(on::OnArguments),
    /// Show what was done with accounts, by whom, and how it ended.
    #[command(visible_alias = "ops", after_help = operations::EXAMPLES)]
    Operations(operations::OperationsArguments),
    /// Take accounts over from Clouddriver, in waves; pause, resume and roll back.
    #[command(after_help = migrate::EXAMPLES)]
    Migrate(migrate::MigrateArguments),
    /// Take over an installation of the Armory Scale Agent: its accounts and settings. Changes nothing of it.
    #[command(after_help = import::EXAMPLES)]
    Import(import::ImportArguments),
    /// Report what hangs, and in which order to remove kubesvc.
    #[command(after_help = uninstall::EXAMPLES)]
    Uninstall(uninstall::UninstallArguments),
    /// Show what is cached of an account, and why an object is not. Asks the operator.
    #[command(after_help = cache::EXAMPLES)]
    Cache(cache::CacheArguments),
    /// Print a completion script for a shell.
    #[command(after_help = completion::EXAMPLES)]
    Completion(completion::CompletionArguments),
    /// Print the version of this program.
    #[command(after_help = VERSION_EXAMPLES)]
    Version,
}

/// Entry point of `kubectl-kubesvc`.
pub fn main(programs: ProgramSettings) -> ExitCode {
    let mut words = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
    // Handled before the arguments are parsed, because the words being completed are not a valid command line yet.
    if words.next().is_some_and(|word| word == completion::COMMAND) {
        return exit(in_runtime(completion::run(&words.collect::<Vec<_>>())));
    }
    let cli = Cli::parse();
    exit(match &cli.command {
        Command::Completion(arguments) => completion::script(arguments),
        Command::Version => terminal::print(&format!("kubectl-kubesvc {}", env!("CARGO_PKG_VERSION")))
            .map_err(CommandError::from),
        command => in_runtime(run(&cli.scope, command, programs)),
    })
}

fn exit(ended: Result<(), CommandError>) -> ExitCode {
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(CommandError::AlreadyPrinted) => ExitCode::from(FAILURE),
        Err(CommandError::Ended(code)) => ExitCode::from(code),
        Err(CommandError::Failed(reason)) => end(&reason, FAILURE),
        Err(CommandError::Usage(reason)) => end(&reason, USAGE),
    }
}

fn in_runtime(work: impl Future<Output = Result<(), CommandError>>) -> Result<(), CommandError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| format!("no runtime: {error}"))?;
    let ended = runtime.block_on(work);
    // A login program of the kubeconfig may hang; do not wait for it.
    runtime.shutdown_background();
    ended
}

async fn run(
    scope: &ScopeArguments,
    command: &Command,
    programs: ProgramSettings,
) -> Result<(), CommandError> {
    match command {
        Command::List(arguments) => list::run(scope, arguments).await,
        Command::Describe(arguments) => describe::run(scope, arguments).await,
        Command::Why(arguments) => why::run(scope, arguments).await,
        Command::Activate(arguments) => change::set_state(scope, arguments, DesiredState::Active).await,
        Command::Deactivate(arguments) => change::set_state(scope, arguments, DesiredState::Inactive).await,
        Command::Retry(arguments) => change::retry(scope, arguments).await,
        Command::Adopt(arguments) => change::adopt(scope, arguments).await,
        Command::Wait(arguments) => wait::run(scope, arguments).await,
        Command::Agents(arguments) => agents::run(scope, arguments).await,
        Command::Identity(arguments) => identity::run(scope, arguments).await,
        Command::Credential(arguments) => credential::run(scope, arguments).await,
        Command::Kubeconfig(arguments) => kubeconfig::run(scope, arguments).await,
        Command::On(arguments) => on::run(scope, arguments).await,
        Command::Operations(arguments) => operations::run(scope, arguments).await,
        Command::Migrate(arguments) => migrate::run(scope, arguments).await,
        Command::Import(arguments) => import::run(scope, arguments, programs).await,
        Command::Uninstall(arguments) => uninstall::run(scope, arguments).await,
        Command::Cache(arguments) => cache::run(scope, arguments).await,
        Command::Completion(arguments) => completion::script(arguments),
        Command::Version => Ok(()),
    }
}

fn end(reason: &str, code: u8) -> ExitCode {
    process::complain("kubectl-kubesvc", &text::line(reason), code)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_helps_with_examples() {
        fn each(command: &clap::Command) {
            for inner in command.get_subcommands().filter(|one| !one.is_hide_set()) {
                let help = inner.get_after_help().map(ToString::to_string).unwrap_or_default();
                assert!(help.starts_with("Examples:"), "{} has no examples", inner.get_name());
                each(inner);
            }
        }
        each(&Cli::command());
    }

    #[test]
    fn flags_are_spelt_as_kubectl_spells_them() {
        for line in [
            "x list -n a -o json",
            "x -n a list -o=json",
            "x list -A -owide --context c --kubeconfig f",
            "x get --namespace=a -l team=a --output yaml",
            "x ls a b",
            "x wait --all --for=ACTIVE --timeout=5m",
            "x wait a --for deleted",
            "x fleet approve a -n b --zone z",
            "x cache a",
            "x cache a deployment/web -n shop -o yaml --operator-url http://localhost:7002",
            "x cache a -o json --operator-namespace kubesvc",
            "x kubeconfig a b --prefix k-",
            "x kubeconfig --all -o clouddriver --gateway https://g:6443 --token-file /t --certificate-authority c",
            "x kubeconfig -l team=a -o argocd --service-account argocd/k --server https://kubernetes.default.svc",
            "x on a -- get pods -n shop",
            "x on ksa/a -n spin -- exec p -- ls -l",
            "x adopt a b --operator-namespace kubesvc",
            "x adopt --all -n team-a",
            "x operations",
            "x ops a --limit 5 -o wide",
            "x operations a 01G4V5TH5QSWSR2SZE2VH1SDME -o json",
            "x import --clouddriver-config f --clouddriver-config g --agent-config d --agent-config configmap/n/c -o json",
            "x import --clouddriver-config f --database mysql://u@h/d --database-password-file p --dry-run",
        ] {
            let parsed = Cli::try_parse_from(line.split(' '));
            assert!(parsed.is_ok(), "{line}: {}", parsed.expect_err("it is an error"));
        }
        for line in [
            "x",
            "x tail a",
            "x list -o table",
            "x wait",
            "x wait a --all",
            "x retry",
            "x adopt",
            "x why",
            "x list --state X",
            "x on a",
            "x on -- get ns",
            "x on a b -- get ns",
            "x on --all -- get ns",
            "x kubeconfig",
            "x kubeconfig a --merge",
            "x kubeconfig a --server http://c",
            "x kubeconfig a --gateway https://g --server https://c",
            "x operations --limit 0",
            "x import",
            "x import --clouddriver-config f -o wide",
            "x import --clouddriver-config f --database-password-file p",
        ] {
            let error = Cli::try_parse_from(line.split(' ')).expect_err(line);
            assert_eq!(error.exit_code(), 2, "{line}");
        }
    }
}
