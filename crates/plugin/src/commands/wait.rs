//! `kubectl kubesvc wait`: one watch until all accounts have reached a goal, or one cannot.

use std::pin::pin;
use std::time::Duration;

use futures::TryStreamExt;
use kube::Api;
use kube::runtime::{WatchStreamExt, watcher};

use crate::api_session::{ACCOUNTS, ApiSession, ResourceRequest};
use crate::arguments::{CommandError, ScopeArguments, Targets, complain_of, duration};
use crate::progress::{Goal, GoalProgress, WaitEnding};
use crate::resources::{AccountObject, bare, resource_name};
use kubesvc_core::{KubesvcAccount, age};
use kubesvc_runtime::telemetry::errors::chain;
use kubesvc_runtime::terminal::{self, Progress, text};

pub(crate) const EXAMPLES: &str = "\
Examples:
  kubectl kubesvc wait production
  kubectl kubesvc wait --all --for ACTIVE --timeout 10m
  kubectl kubesvc wait -l team=a --keep-going
  kubectl kubesvc wait production --for deleted

Exits with 0 when all accounts have reached the goal. Exits with 1 on timeout, or as soon as one account is stalled,
which means that someone must act.";

/// Maximum number of accounts listed that have not reached the goal.
const MAX_NAMES_SHOWN: usize = 20;

/// Arguments of `wait`.
#[derive(Debug, clap::Args)]
pub(crate) struct WaitArguments {
    #[command(flatten)]
    targets: Targets,
    /// State to wait for.
    #[arg(long = "for", value_enum, value_name = "GOAL", default_value = "ready", ignore_case = true)]
    goal: Goal,
    /// Maximum time to wait; 0 checks once.
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = duration)]
    timeout: Duration,
    /// Keep waiting for the other accounts when one is stalled.
    #[arg(long)]
    keep_going: bool,
}

/// Runs the command.
pub(crate) async fn run(scope: &ScopeArguments, arguments: &WaitArguments) -> Result<(), CommandError> {
    arguments.targets.check(scope)?;
    let session = ApiSession::open(scope).await?;
    let (items, missing) = match session.resolve(&arguments.targets).await {
        // No account is left to be deleted.
        Err(CommandError::Failed(_))
            if arguments.goal == Goal::Deleted && arguments.targets.names.is_empty() =>
        {
            (session.list_accounts(arguments.targets.selector.as_deref()).await?, Vec::new())
        }
        other => other?,
    };
    if arguments.goal == Goal::Deleted {
        // A missing account counts as deleted.
        let there = |name: &&String| {
            let name = bare(name);
            items.iter().any(|item| item.name() == name || item.account.account_name() == name)
        };
        for gone in arguments.targets.names.iter().filter(|name| !there(name)) {
            terminal::print(&format!("{} deleted", resource_name(bare(gone))))?;
        }
    } else {
        complain_of(&missing)?;
    }
    until(&session, items, arguments.goal, arguments.timeout, arguments.keep_going).await
}

/// Waits until these accounts have reached a goal.
pub(crate) async fn until(
    session: &ApiSession,
    items: Vec<AccountObject>,
    goal: Goal,
    timeout: Duration,
    keep_going: bool,
) -> Result<(), CommandError> {
    let mut progress = GoalProgress::new(goal, keep_going, items.iter().map(|item| &item.account));
    let bar = Progress::new(progress.len());
    print_progress(&mut progress, &bar)?;
    if timeout.is_zero() || progress.ending().is_some() {
        return end(&progress, &bar, timeout);
    }
    // A timeout is not an error here: `end` reports the accounts that have not reached the goal.
    if let Ok(followed) = tokio::time::timeout(timeout, follow(session, &items, &mut progress, &bar)).await {
        followed?;
    }
    end(&progress, &bar, timeout)
}

/// Follows the accounts until the wait is over.
async fn follow(
    session: &ApiSession,
    items: &[AccountObject],
    progress: &mut GoalProgress,
    bar: &Progress,
) -> Result<(), CommandError> {
    let api: Api<KubesvcAccount> = match session.scope() {
        Some(namespace) => session.api(namespace),
        None => Api::all(session.client.clone()),
    };
    let config = match items {
        [only] => kubesvc_runtime::watch_backoff::config().fields(&format!("metadata.name={}", only.name())),
        _ => kubesvc_runtime::watch_backoff::config(),
    };
    let mut events = pin!(watcher(api, config).backoff(kubesvc_runtime::watch_backoff::pauses()));
    let asked = ResourceRequest { verb: "watch", resource: ACCOUNTS, namespace: session.scope() };
    while progress.ending().is_none() {
        match events.try_next().await {
            Ok(Some(event)) => progress.event(&event),
            Ok(None) => return Ok(()),
            Err(error) => match lasting(&error) {
                Some(error) => return Err(session.failed(asked, error)),
                // The watch is retried with back-off; the command's timeout bounds it.
                None => progress.blame(format!("{} could not be watched: {}", session.server, chain(&error))),
            },
        }
        print_progress(progress, bar)?;
    }
    Ok(())
}

/// Returns an error that retries do not cure: a rejected credential, a missing right, or an unknown kind.
fn lasting(error: &watcher::Error) -> Option<&kube::Error> {
    let (watcher::Error::InitialListFailed(error)
    | watcher::Error::WatchStartFailed(error)
    | watcher::Error::WatchFailed(error)) = error
    else {
        return None;
    };
    match error {
        kube::Error::Api(status) if matches!(status.code, 401 | 403 | 404) => Some(error),
        _ => None,
    }
}

fn print_progress(progress: &mut GoalProgress, bar: &Progress) -> Result<(), CommandError> {
    for line in progress.take_lines() {
        bar.print(&line)?;
    }
    bar.show(progress.met(), progress.counts());
    Ok(())
}

fn end(progress: &GoalProgress, bar: &Progress, timeout: Duration) -> Result<(), CommandError> {
    let ending = progress.ending();
    if ending == Some(WaitEnding::AllMet) {
        return Ok(());
    }
    let left = progress.left();
    let seconds = i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX);
    let why = match ending {
        Some(WaitEnding::Stalled) => "someone must act".to_owned(),
        _ if timeout.is_zero() => "looked once".to_owned(),
        _ => format!("timed out after {}", age::seconds(seconds)),
    };
    bar.finish();
    crate::arguments::complain(&format!(
        "{} of {} accounts are not {}: {why}",
        left.len(),
        progress.len(),
        progress.goal()
    ));
    for line in left.iter().take(MAX_NAMES_SHOWN) {
        terminal::note(line);
    }
    if left.len() > MAX_NAMES_SHOWN {
        terminal::note(&format!("and {} more", left.len() - MAX_NAMES_SHOWN));
    }
    if let Some(trouble) = progress.trouble() {
        terminal::note(&text::line(trouble));
    }
    terminal::note("What to do: kubectl kubesvc why NAME");
    Err(CommandError::AlreadyPrinted)
}
