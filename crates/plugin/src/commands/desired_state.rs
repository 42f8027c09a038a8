//! `kubectl kubesvc activate` and `deactivate`: set the desired state in the spec.

use std::time::Duration;

use futures::{StreamExt, stream};
use serde_json::json;

use super::wait;
use crate::api_session::ApiSession;
use crate::arguments::{CommandError, ScopeArguments, Targets, duration};
use crate::progress::Goal;
use crate::resources::{AccountObject, resource_name};
use kubesvc_core::DesiredState;
use kubesvc_runtime::terminal;

pub(crate) const ACTIVATE_EXAMPLES: &str = "\
Examples:
  kubectl kubesvc activate production
  kubectl kubesvc activate -l team=a --wait --timeout 2m
  kubectl kubesvc activate --all -n staging";

pub(crate) const DEACTIVATE_EXAMPLES: &str = "\
Examples:
  kubectl kubesvc deactivate production --wait
  kubectl kubesvc deactivate -l team=a
  kubectl kubesvc deactivate production --force    # even if a GitOps tool manages it";

/// Maximum number of concurrent writes.
pub(crate) const MAX_CONCURRENT_WRITES: usize = 16;

/// Arguments of `activate` and `deactivate`.
#[derive(Debug, clap::Args)]
pub(crate) struct DesiredStateArguments {
    #[command(flatten)]
    targets: Targets,
    /// Change accounts even if a GitOps tool manages them; the tool may revert the change.
    #[arg(long)]
    force: bool,
    /// Wait until the accounts have reached the state.
    #[arg(long)]
    wait: bool,
    /// Maximum time to wait; 0 checks once. Only with --wait.
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = duration)]
    timeout: Duration,
}

/// Runs the command.
pub(crate) async fn run(
    scope: &ScopeArguments,
    arguments: &DesiredStateArguments,
    desired: DesiredState,
) -> Result<(), CommandError> {
    arguments.targets.check(scope)?;
    let session = ApiSession::open(scope).await?;
    let (items, missing) = session.resolve(&arguments.targets).await?;
    missing.iter().for_each(|line| crate::arguments::complain(line));
    let mut failed = !missing.is_empty();
    let mut changed = Vec::new();
    let mut answers = stream::iter(&items)
        .map(|item| {
            let session = &session;
            async move { (item, set(session, item, desired, arguments.force).await) }
        })
        .buffered(MAX_CONCURRENT_WRITES);
    while let Some((item, answer)) = answers.next().await {
        match answer {
            Ok((word, written)) => {
                terminal::print(&format!("{} {word}", resource_name(item.name())))?;
                // Use the account as written: the version read before may report a failure that this change
                // supersedes.
                changed.push(written.unwrap_or_else(|| item.clone()));
            }
            Err(CommandError::Failed(reason) | CommandError::Usage(reason)) => {
                failed = true;
                crate::arguments::complain(&reason);
            }
            Err(CommandError::AlreadyPrinted) => failed = true,
        }
    }
    if arguments.wait && !changed.is_empty() {
        let goal = match desired {
            DesiredState::Active => Goal::Active,
            DesiredState::Inactive => Goal::Inactive,
        };
        wait::until(&session, changed, goal, arguments.timeout, false).await?;
    }
    if failed { Err(CommandError::AlreadyPrinted) } else { Ok(()) }
}

async fn set(
    session: &ApiSession,
    item: &AccountObject,
    desired: DesiredState,
    force: bool,
) -> Result<(&'static str, Option<AccountObject>), CommandError> {
    let (word, value) = match desired {
        DesiredState::Active => ("activated", "ACTIVE"),
        DesiredState::Inactive => ("deactivated", "INACTIVE"),
    };
    let name = item.name();
    if item.account.is_being_deleted() {
        return Err(CommandError::Failed(format!("account {name} is being deleted")));
    }
    if item.account.desired() == desired {
        let word = match desired {
            DesiredState::Active => "is to be ACTIVE already",
            DesiredState::Inactive => "is to be INACTIVE already",
        };
        return Ok((word, None));
    }
    if let Some(owner) = item.account.gitops_owner().filter(|_| !force) {
        return Err(CommandError::Failed(format!(
            "account {name} is managed by {owner}: set spec.state: {value} there, or repeat with --force"
        )));
    }
    // With the uid, the patch fails for another account that was created under this name meanwhile.
    let patch = json!({"metadata": {"uid": item.account.uid()}, "spec": {"state": value}});
    Ok((word, Some(session.patch_account(item, patch).await?)))
}
