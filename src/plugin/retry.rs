//! `kubectl kubesvc retry`: retries at once and resets the failure count to 0.

use futures::{StreamExt, stream};
use serde_json::json;
use ulid::Ulid;

use super::accounts::resource_name;
use super::arguments::{ScopeArguments, Targets};
use super::desired_state::MAX_CONCURRENT_WRITES;
use super::failure::CommandError;
use super::session::ApiSession;
use crate::account::RETRY_ANNOTATION;
use crate::ui::out;

pub(super) const EXAMPLES: &str = "\
Examples:
  kubectl kubesvc retry production
  kubectl kubesvc retry production && kubectl kubesvc wait production
  kubectl kubesvc list --stalled -o name | xargs kubectl kubesvc retry";

/// Arguments of `retry`.
#[derive(Debug, clap::Args)]
pub(super) struct RetryArguments {
    #[command(flatten)]
    targets: Targets,
}

/// Runs the command.
pub(super) async fn run(place: &ScopeArguments, arguments: &RetryArguments) -> Result<(), CommandError> {
    arguments.targets.check(place)?;
    let session = ApiSession::open(place).await?;
    let (items, missing) = session.resolve(&arguments.targets).await?;
    missing.iter().for_each(|line| super::cli::complain(line));
    let mut failed = !missing.is_empty();
    let mut answers = stream::iter(&items)
        .map(|item| {
            let session = &session;
            let patch = json!({"metadata": {
                "uid": item.account.uid(),
                "annotations": {RETRY_ANNOTATION: Ulid::generate().to_string()},
            }});
            async move { (item, session.patch_account(item, patch).await) }
        })
        .buffered(MAX_CONCURRENT_WRITES);
    while let Some((item, answer)) = answers.next().await {
        match answer {
            Ok(_) => out::print(&format!("{} is tried again", resource_name(item.name())))?,
            Err(CommandError::Failed(reason) | CommandError::Usage(reason)) => {
                failed = true;
                super::cli::complain(&reason);
            }
            Err(CommandError::Told) => failed = true,
        }
    }
    if failed { Err(CommandError::Told) } else { Ok(()) }
}
