//! Shell completion: scripts for `kubectl-kubesvc` itself, and candidates for `kubectl kubesvc <TAB>`.
//!
//! kubectl completes a plugin by running a program `kubectl_complete-kubesvc` with the words so far. It prints one
//! candidate per line and finally a colon with a number, the directive for the shell.

use clap::{Command, CommandFactory};
use clap_complete::Shell;

use crate::api_session::ApiSession;
use crate::arguments::{CommandError, ScopeArguments};
use crate::cli::Cli;
use kubesvc_core::cache::native::DEFAULT_KINDS;
use kubesvc_runtime::terminal::{self, text};

pub(crate) const EXAMPLES: &str = "\
Examples:
  source <(kubectl kubesvc completion bash)
  kubectl kubesvc completion zsh > ~/.zfunc/_kubectl-kubesvc
  kubectl kubesvc completion fish > ~/.config/fish/completions/kubectl-kubesvc.fish

To complete `kubectl kubesvc <TAB>`, put this executable file into PATH as kubectl_complete-kubesvc:
  #!/bin/sh
  exec kubectl kubesvc __complete \"$@\"";

/// Directive: no file name completion.
const NO_FILES: &str = ":4";
/// Directive: default file name completion.
const FILES: &str = ":0";

/// Arguments of `completion`.
#[derive(Debug, clap::Args)]
pub(crate) struct CompletionArguments {
    /// Shell for which to print the script.
    #[arg(value_enum, value_name = "bash|zsh|fish|powershell")]
    shell: Shell,
}

/// Prints the completion script of a shell.
pub(crate) fn script(arguments: &CompletionArguments) -> Result<(), CommandError> {
    let mut script = Vec::new();
    // The script completes the program itself, `kubectl-kubesvc`.
    let mut command = Cli::command().bin_name(PROGRAM);
    clap_complete::generate(arguments.shell, &mut command, PROGRAM, &mut script);
    Ok(terminal::print(&String::from_utf8_lossy(&script))?)
}

const PROGRAM: &str = "kubectl-kubesvc";

/// First argument that requests candidates. Not a documented command.
pub(crate) const COMMAND: &str = "__complete";

/// What the next word can be.
#[derive(Debug, PartialEq, Eq)]
enum CompletionTarget {
    /// One of these.
    Words(Vec<String>),
    Accounts,
    Agents,
    File,
}

/// Prints candidates for the last word, which is being typed. If the cluster cannot be reached there are none, and no
/// error.
pub(crate) async fn run(words: &[String]) -> Result<(), CommandError> {
    let (written, begun) = match words.split_last() {
        Some((begun, written)) => (written, begun.as_str()),
        None => (&[][..], ""),
    };
    let scope = scope_of(written);
    let candidates = match next(&Cli::command(), written, begun) {
        CompletionTarget::Words(words) => words,
        CompletionTarget::File => return Ok(terminal::print(FILES)?),
        CompletionTarget::Accounts => match ApiSession::open(&scope).await {
            Ok(session) => {
                let items = session.list_accounts(None).await.unwrap_or_default();
                items.iter().map(|item| item.name().to_owned()).collect()
            }
            Err(_) => Vec::new(),
        },
        CompletionTarget::Agents => match ApiSession::open(&scope).await {
            Ok(session) => {
                let agents = session.list_agents(session.scope()).await.unwrap_or_default();
                agents.into_iter().map(|agent| agent.spec.agent_id.into()).collect()
            }
            Err(_) => Vec::new(),
        },
    };
    // One candidate per line, without characters that control a terminal.
    let plain = |word: &String| !word.chars().any(text::is_hidden);
    let fitting = candidates.into_iter().filter(|word| word.starts_with(begun)).filter(plain);
    let lines: Vec<_> = fitting.chain([NO_FILES.to_owned()]).collect();
    Ok(terminal::print(&lines.join("\n"))?)
}

/// Returns the scope named by the words so far.
fn scope_of(words: &[String]) -> ScopeArguments {
    let value = |short: Option<&str>, long: &str| {
        words.iter().enumerate().find_map(|(index, word)| match word.split_once('=') {
            Some((flag, value)) if flag == long || Some(flag) == short => Some(value.to_owned()),
            _ if word == long || Some(word.as_str()) == short => words.get(index + 1).cloned(),
            _ => None,
        })
    };
    ScopeArguments {
        namespace: value(Some("-n"), "--namespace"),
        all_namespaces: false,
        context: value(None, "--context"),
        kubeconfig: value(None, "--kubeconfig").map(Into::into),
    }
}

/// Returns what may follow these words.
fn next(root: &Command, written: &[String], begun: &str) -> CompletionTarget {
    // What follows is for kubectl, which has candidates of its own.
    if written.iter().any(|word| word == "--") {
        return CompletionTarget::Words(Vec::new());
    }
    let mut path = vec![root];
    let (mut awaited, mut positionals) = (None, 0);
    for word in written {
        if awaited.take().is_some() {
            continue;
        }
        awaited = path.iter().rev().find_map(|command| takes_value(command, word));
        let here = path[path.len() - 1];
        let is_command =
            |one: &&Command| one.get_name() == word || one.get_all_aliases().any(|alias| alias == word);
        if let Some(inner) = here.get_subcommands().find(is_command) {
            path.push(inner);
        } else if !word.starts_with('-') {
            positionals += 1;
        }
    }
    if let Some(argument) = awaited {
        return values(argument);
    }
    let here = path[path.len() - 1];
    if begun.starts_with('-') {
        let flags = path.iter().flat_map(|command| command.get_arguments()).filter_map(|one| one.get_long());
        let mut flags: Vec<_> = flags.map(|flag| format!("--{flag}")).collect();
        flags.push("--help".to_owned());
        flags.sort();
        flags.dedup();
        return CompletionTarget::Words(flags);
    }
    let mut words: Vec<_> = here
        .get_subcommands()
        .filter(|one| !one.is_hide_set())
        .map(|one| one.get_name().to_owned())
        .collect();
    if !words.is_empty() {
        words.sort();
        return CompletionTarget::Words(words);
    }
    match (here.get_name(), here.get_positionals().next()) {
        ("approve" | "revoke", _) => CompletionTarget::Agents,
        ("cache", _) if positionals > 0 => {
            CompletionTarget::Words(DEFAULT_KINDS.map(str::to_lowercase).to_vec())
        }
        ("on" | "operations", _) if positionals > 0 => CompletionTarget::Words(Vec::new()),
        (_, None) => CompletionTarget::Words(Vec::new()),
        (_, Some(argument)) => match values(argument) {
            CompletionTarget::File => CompletionTarget::Accounts,
            values => values,
        },
    }
}

/// Returns the argument whose value follows this flag.
fn takes_value<'a>(command: &'a Command, word: &str) -> Option<&'a clap::Arg> {
    command.get_arguments().find(|argument| {
        let long = argument.get_long().is_some_and(|long| word.strip_prefix("--") == Some(long));
        let short =
            argument.get_short().is_some_and(|short| word.strip_prefix('-') == Some(&short.to_string()));
        (long || short) && argument.get_action().takes_values()
    })
}

fn values(argument: &clap::Arg) -> CompletionTarget {
    let values: Vec<_> =
        argument.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect();
    if values.is_empty() { CompletionTarget::File } else { CompletionTarget::Words(values) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(words: &[&str]) -> CompletionTarget {
        let words: Vec<_> = words.iter().map(|word| (*word).to_owned()).collect();
        let (begun, written) = words.split_last().expect("the last word is being written");
        next(&Cli::command(), written, begun)
    }

    fn words_after(words: &[&str]) -> Vec<String> {
        match after(words) {
            CompletionTarget::Words(words) => words,
            other => unreachable!("{words:?} is followed by {other:?}"),
        }
    }

    #[test]
    fn commands_come_first_then_names_flags_and_their_values() {
        let commands = words_after(&[""]);
        assert!(commands.iter().any(|word| word == "why"), "{commands:?}");
        assert_eq!(after(&["why", ""]), CompletionTarget::Accounts);
        assert_eq!(after(&["-n", "spin", "describe", "a", "b"]), CompletionTarget::Accounts);
        assert_eq!(after(&["agents", "approve", ""]), CompletionTarget::Agents);
        assert_eq!(after(&["cache", ""]), CompletionTarget::Accounts);
        let kinds = words_after(&["-n", "spin", "cache", "prod", ""]);
        assert!(kinds.iter().any(|kind| kind == "deployment"), "{kinds:?}");
        for command in ["kubeconfig", "on", "operations"] {
            assert_eq!(after(&[command, ""]), CompletionTarget::Accounts, "{command}");
        }
        assert_eq!(words_after(&["kubeconfig", "a", "-o", ""]), ["argocd", "flux", "clouddriver"]);
        assert_eq!(after(&["on", "a", ""]), CompletionTarget::Words(Vec::new()));
        assert_eq!(after(&["on", "a", "--", ""]), CompletionTarget::Words(Vec::new()));
        assert_eq!(words_after(&["list", "-o", ""]), ["json", "yaml", "wide", "name"]);
        let flags = words_after(&["wait", "--"]);
        assert!(flags.iter().any(|flag| flag == "--keep-going"), "{flags:?}");
        assert!(flags.iter().any(|flag| flag == "--context"), "{flags:?}");
        assert_eq!(after(&["list", "--kubeconfig", ""]), CompletionTarget::File);
        assert!(words_after(&["completion", ""]).iter().any(|shell| shell == "zsh"));
    }

    #[test]
    fn the_scope_is_taken_from_the_arguments_so_far() {
        let words = ["-n", "spin", "--context=prod", "list"].map(str::to_owned);
        let scope = scope_of(&words);
        assert_eq!(scope.namespace.as_deref(), Some("spin"));
        assert_eq!(scope.context.as_deref(), Some("prod"));
    }
}
