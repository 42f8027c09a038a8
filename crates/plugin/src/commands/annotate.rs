//! Sets an annotation of accounts, several at once: how a person asks the operator for something.

use futures::{StreamExt, stream};
use serde_json::json;

use crate::api_session::ApiSession;
use crate::arguments::{CommandError, Targets, complain};
use crate::commands::desired_state::MAX_CONCURRENT_WRITES;
use crate::resources::resource_name;
use kubesvc_runtime::terminal;

/// Sets the annotation on the targets and prints what is then so of each, such as `is tried again`.
pub(super) async fn run(
    session: &ApiSession,
    targets: &Targets,
    (annotation, value): (&str, impl Fn() -> String),
    outcome: &str,
) -> Result<(), CommandError> {
    let (items, missing) = session.resolve(targets).await?;
    missing.iter().for_each(|line| complain(line));
    let mut failed = !missing.is_empty();
    let mut answers = stream::iter(&items)
        .map(|item| {
            // With the uid, the patch fails for another account that was created under this name meanwhile.
            let patch =
                json!({"metadata": {"uid": item.account.uid(), "annotations": {annotation: value()}}});
            async move { (item, session.patch_account(item, patch).await) }
        })
        .buffered(MAX_CONCURRENT_WRITES);
    while let Some((item, answer)) = answers.next().await {
        match answer {
            Ok(_) => terminal::print(&format!("{} {outcome}", resource_name(item.name())))?,
            Err(CommandError::Failed(reason) | CommandError::Usage(reason)) => {
                failed = true;
                complain(&reason);
            }
            Err(CommandError::AlreadyPrinted) => failed = true,
        }
    }
    if failed { Err(CommandError::AlreadyPrinted) } else { Ok(()) }
}
