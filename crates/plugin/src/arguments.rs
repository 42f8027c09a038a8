//! What the commands share: flags, spelled as kubectl spells them, the selection of accounts, and errors.

use std::path::PathBuf;
use std::time::Duration;

use jiff::SignedDuration;

use kubesvc_runtime::telemetry::errors::chain;
use kubesvc_runtime::terminal::{self, OutputError, text};

/// Flags that select the cluster and the namespace.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Cluster and namespace")]
pub(super) struct ScopeArguments {
    /// Namespace. Default: the namespace of the context.
    #[arg(short, long, value_name = "NS", global = true)]
    pub(super) namespace: Option<String>,
    /// All namespaces; overrides --namespace.
    #[arg(short = 'A', long, global = true)]
    pub(super) all_namespaces: bool,
    /// Context of the kubeconfig. Default: its current-context.
    #[arg(long, value_name = "NAME", global = true)]
    pub(super) context: Option<String>,
    /// Path of the kubeconfig. Default: KUBECONFIG, then ~/.kube/config.
    #[arg(long, value_name = "FILE", global = true)]
    pub(super) kubeconfig: Option<PathBuf>,
}

/// Selects accounts by name, by label, or all of them.
#[derive(Clone, Debug, clap::Args)]
#[group(required = true, multiple = false)]
pub(super) struct Targets {
    /// Names of accounts: of their objects or in Spinnaker.
    #[arg(value_name = "NAME")]
    pub(super) names: Vec<String>,
    /// Accounts that match a label selector, for example `team=a,tier!=test`.
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    pub(super) selector: Option<String>,
    /// All accounts in the namespace.
    #[arg(long)]
    pub(super) all: bool,
}

impl Targets {
    /// Refuses names together with `--all-namespaces`, since several namespaces may have an account of one name.
    pub(super) fn check(&self, scope: &ScopeArguments) -> Result<(), CommandError> {
        names_have_a_namespace(&self.names, scope)
    }
}

/// Refuses names together with `--all-namespaces`.
pub(super) fn names_have_a_namespace(names: &[String], scope: &ScopeArguments) -> Result<(), CommandError> {
    if scope.all_namespaces && !names.is_empty() {
        return Err(CommandError::Usage(
            "names cannot be given with --all-namespaces; use --namespace".to_owned(),
        ));
    }
    Ok(())
}

/// Parses a duration in kubectl's format: `30s`, `5m`, `1h30m`.
pub(super) fn duration(text: &str) -> Result<Duration, InvalidDuration> {
    let parsed = match text {
        "0" => SignedDuration::ZERO,
        text => text.parse::<SignedDuration>().map_err(|_| InvalidDuration::Format)?,
    };
    Duration::try_from(parsed).map_err(|_| InvalidDuration::Negative)
}

/// A text that is no duration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum InvalidDuration {
    #[error("write it as 30s, 5m or 1h30m")]
    Format,
    #[error("it is negative; write it as 30s, 5m or 1h30m")]
    Negative,
}

/// Why a command failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CommandError {
    /// The command line is invalid: exit code 2.
    Usage(String),
    /// One line that says what is wrong and what to do: exit code 1.
    Failed(String),
    /// The message was already printed: exit code 1.
    AlreadyPrinted,
    /// The message was already printed, and the exit code says more than that.
    Ended(u8),
}

impl From<String> for CommandError {
    fn from(reason: String) -> Self {
        Self::Failed(reason)
    }
}

impl From<OutputError> for CommandError {
    fn from(error: OutputError) -> Self {
        Self::Failed(chain(&error))
    }
}

/// Prints one line about a failure while the command continues.
pub(super) fn complain(reason: &str) {
    terminal::note(&format!("kubectl-kubesvc: {}", text::line(reason)));
}

/// Prints each line about a failure, and fails if there is any.
pub(super) fn complain_of(failures: &[String]) -> Result<(), CommandError> {
    failures.iter().for_each(|line| complain(line));
    if failures.is_empty() { Ok(()) } else { Err(CommandError::AlreadyPrinted) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_kubectl_reads_them() {
        for (text, seconds) in [("0", 0), ("0s", 0), ("30s", 30), ("5m", 300), ("1h30m", 5400)] {
            assert_eq!(duration(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for text in ["", "5", "-5s", "soon", "5 bananas"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
