//! `kubectl kubesvc retry`: a try at once, with the count of failures back at 0.

use futures::{StreamExt, stream};
use serde_json::json;
use ulid::Ulid;

use super::accounts::resource_name;
use super::arguments::{Place, Targets};
use super::desire::AT_ONCE;
use super::failure::Ended;
use super::session::Session;
use crate::account::RETRY_ANNOTATION;
use crate::ui::out;

pub(super) const EXAMPLES: &str = "\
Examples:
  kubectl kubesvc retry production
  kubectl kubesvc retry production && kubectl kubesvc wait production
  kubectl kubesvc list --stalled -o name | xargs kubectl kubesvc retry";

/// Whom to try again.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    targets: Targets,
}

/// Asks for the try.
pub(super) async fn run(place: &Place, arguments: &Arguments) -> Result<(), Ended> {
    arguments.targets.check(place)?;
    let session = Session::open(place).await?;
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
        .buffered(AT_ONCE);
    while let Some((item, answer)) = answers.next().await {
        match answer {
            Ok(_) => out::print(&format!("{} is tried again", resource_name(item.name())))?,
            Err(Ended::Failed(reason) | Ended::Usage(reason)) => {
                failed = true;
                super::cli::complain(&reason);
            }
            Err(Ended::Told) => failed = true,
        }
    }
    if failed { Err(Ended::Told) } else { Ok(()) }
}
