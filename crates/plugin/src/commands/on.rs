//! `kubectl kubesvc on`: runs kubectl itself on accounts. With one account kubectl has the terminal; with several, each line
//! of its output begins with the account.

mod children;
mod lines;
#[cfg(test)]
mod tests;

use std::ffi::OsString;

use clap::value_parser;
use kubesvc_runtime::terminal;

use self::children::{Ended, Kubectl, Signals};
use self::lines::Output;
use crate::account_api;
use crate::account_kubeconfig::{self, Door};
use crate::api_session::ApiSession;
use crate::arguments::{CommandError, ScopeArguments, Targets, complain};
use crate::own_kubeconfig;

pub(crate) const EXAMPLES: &str = "\
Examples:
  kubectl kubesvc on production -- get pods -n shop
  kubectl kubesvc on production -- exec -it deploy/web -n shop -- sh
  kubectl kubesvc on -l team=a -- rollout status deploy/web -n shop
  kubectl kubesvc on --all --parallel 4 -- apply -f quota.yaml

It exits as kubectl did; with several accounts with 1 if any failed, or if its output was closed.
KUBECTL names another kubectl than that of PATH.";

/// Arguments of `on`.
#[derive(Debug, clap::Args)]
pub(crate) struct OnArguments {
    #[command(flatten)]
    targets: Targets,
    /// Maximum number of accounts at once.
    #[arg(long, value_name = "COUNT", default_value_t = 8, value_parser = value_parser!(u8).range(1..=64))]
    parallel: u8,
    /// Arguments of kubectl. Standard input goes to it if there is one account.
    #[arg(last = true, required = true, value_name = "KUBECTL ARGUMENTS")]
    kubectl: Vec<OsString>,
}

/// Runs the command.
pub(crate) async fn run(scope: &ScopeArguments, arguments: &OnArguments) -> Result<(), CommandError> {
    arguments.targets.check(scope)?;
    stays_at_the_account(&arguments.kubectl)?;
    let session = ApiSession::open_without_retries(scope).await?;
    let own = own_kubeconfig::read(scope)?;
    let found = session.resolve_all(&arguments.targets).await?;
    account_api::require(&session).await?;
    let accounts = account_kubeconfig::named(&found, "");
    let kubectl = Kubectl {
        program: std::env::var_os("KUBECTL")
            .filter(|name| !name.is_empty())
            .unwrap_or_else(|| "kubectl".into()),
        arguments: &arguments.kubectl,
        door: Door { cluster: own.cluster, user_name: own.user_name, user: own.user },
    };
    let mut signals = Signals::catch()?;
    if let [only] = accounts.as_slice() {
        return match kubectl.run_alone(only, &mut signals).await?.exit_code() {
            0 => Ok(()),
            code => Err(CommandError::Ended(code)),
        };
    }
    reads_no_input(&arguments.kubectl)?;
    let output = Output::of_process(accounts.iter().map(|account| account.entry.as_str()));
    let parallel = usize::from(arguments.parallel);
    let ended = kubectl.run_each(&accounts, parallel, &output, &mut signals).await?;
    let names = accounts.iter().map(|account| account.entry.as_str());
    match summary(names.zip(&ended)) {
        Some(summary) => {
            complain(&summary);
            Err(CommandError::Ended(1))
        }
        None => {
            if terminal::is_watched() {
                terminal::note(&format!("{} accounts, all succeeded", ended.len()));
            }
            Ok(())
        }
    }
}

/// Refuses what would send kubectl elsewhere than to the account.
fn stays_at_the_account(kubectl: &[OsString]) -> Result<(), CommandError> {
    let words: Vec<_> =
        kubectl.iter().map(|word| word.to_string_lossy()).take_while(|word| word != "--").collect();
    let is_of_logs = words.iter().any(|word| word == "logs");
    for word in &words {
        let long = word.split_once('=').map_or(&**word, |(flag, _)| flag);
        let flag = match long {
            "--kubeconfig" | "--server" | "--context" | "--cluster" => long,
            _ if names_server(word, is_of_logs) => "-s",
            _ => continue,
        };
        return Err(CommandError::Usage(format!(
            "kubectl's {flag} would leave the account; give --context and --kubeconfig of the operator's cluster before \
             the --"
        )));
    }
    Ok(())
}

/// Whether a word has kubectl's `-s`: alone, with its value attached, or after other short flags that take no value.
fn names_server(word: &str, is_of_logs: bool) -> bool {
    let Some(flags) = word.strip_prefix('-').filter(|flags| !flags.starts_with('-')) else { return false };
    // What follows such a flag is its value. Of `logs`, `-f` and `-p` take none.
    let takes_value = |flag: &char| "=LPceklnouv".contains(*flag) || (!is_of_logs && "fp".contains(*flag));
    flags.chars().take_while(|flag| !takes_value(flag)).any(|flag| flag == 's')
}

/// Refuses a manifest from standard input, which only one kubectl can read.
fn reads_no_input(kubectl: &[OsString]) -> Result<(), CommandError> {
    let words: Vec<_> =
        kubectl.iter().map(|word| word.to_string_lossy()).take_while(|word| word != "--").collect();
    let is_whole = words.iter().any(|word| matches!(&**word, "-f-" | "-f=-" | "--filename=-"));
    let is_apart = words.windows(2).any(|pair| matches!(&*pair[0], "-f" | "--filename") && pair[1] == "-");
    if is_whole || is_apart {
        return Err(CommandError::Usage(
            "standard input can go to one account only; give the manifest as a file".to_owned(),
        ));
    }
    Ok(())
}

/// A line about the accounts on which kubectl failed; `None` if there are none.
fn summary<'a>(ended: impl Iterator<Item = (&'a str, &'a Ended)>) -> Option<String> {
    let (mut all, mut failed) = (0, Vec::new());
    for (name, ended) in ended {
        all += 1;
        match ended {
            Ended::Exited(0) => {}
            Ended::Exited(code) => failed.push(format!("{name} (exit code {code})")),
            Ended::Killed(signal) => failed.push(format!("{name} (signal {signal})")),
        }
    }
    (!failed.is_empty()).then(|| format!("{} of {all} accounts failed: {}", failed.len(), failed.join(", ")))
}
