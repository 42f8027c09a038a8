//! `kubectl kubesvc retry`: retries at once and resets the failure count to 0.

use futures::{StreamExt, stream};
use serde_json::json;
use ulid::Ulid;

use crate::api_session::ApiSession;
use crate::arguments::{CommandError, ScopeArguments, Targets};
use crate::commands::desired_state::MAX_CONCURRENT_WRITES;
use crate::resources::resource_name;
use kubesvc_core::RETRY_ANNOTATION;
use kubesvc_runtime::terminal;

pub(crate) const EXAMPLES: &str = "\
Examples:
  kubectl kubesvc retry production
  kubectl kubesvc retry production && kubectl kubesvc wait production
  kubectl kubesvc list --stalled -o name | xargs kubectl kubesvc retry";

/// Arguments of `retry`.
#[derive(Debug, clap::Args)]
pub(crate) struct RetryArguments {
    #[command(flatten)]
    targets: Targets,
}

/// Runs the command.
pub(crate) async fn run(scope: &ScopeArguments, arguments: &RetryArguments) -> Result<(), CommandError> {
    arguments.targets.check(scope)?;
    let session = ApiSession::open(scope).await?;
    let (items, missing) = session.resolve(&arguments.targets).await?;
    missing.iter().for_each(|line| crate::arguments::complain(line));
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
            Ok(_) => terminal::print(&format!("{} is tried again", resource_name(item.name())))?,
            Err(CommandError::Failed(reason) | CommandError::Usage(reason)) => {
                failed = true;
                crate::arguments::complain(&reason);
            }
            Err(CommandError::AlreadyPrinted | CommandError::Ended(_)) => failed = true,
        }
    }
    if failed { Err(CommandError::AlreadyPrinted) } else { Ok(()) }
}
