//! `kubectl kubesvc retry`: retries at once and resets the failure count to 0.

use ulid::Ulid;

use super::annotate;
use crate::api_session::ApiSession;
use crate::arguments::{CommandError, ScopeArguments, Targets};
use kubesvc_core::RETRY_ANNOTATION;

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
    let retry = (RETRY_ANNOTATION, || Ulid::generate().to_string());
    annotate::run(&session, &arguments.targets, retry, "is tried again").await
}
