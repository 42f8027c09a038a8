//! The commands that write accounts, several at once: `activate` and `deactivate`, `retry`, `adopt`.

use std::time::Duration;

use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::Service;
use serde_json::json;
use ulid::Ulid;

use super::wait;
use crate::api_session::{ApiSession, ResourceRequest};
use crate::arguments::{CommandError, ScopeArguments, Targets, complain, complain_of, duration};
use crate::operator_client::SERVICE;
use crate::progress::Goal;
use crate::resources::{AccountObject, resource_name};
use kubesvc_core::{DesiredState, OPERATOR_ANNOTATION, RETRY_ANNOTATION};
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

pub(crate) const RETRY_EXAMPLES: &str = "\
Examples:
  kubectl kubesvc retry production
  kubectl kubesvc retry production && kubectl kubesvc wait production
  kubectl kubesvc list --stalled -o name | xargs kubectl kubesvc retry";

pub(crate) const ADOPT_EXAMPLES: &str = "\
Examples:
  kubectl kubesvc adopt production
  kubectl kubesvc adopt --all -n team-a --operator-namespace kubesvc

The installation that served the accounts leaves them alone from then on; its agents drop them.";

/// Maximum number of concurrent writes.
const MAX_CONCURRENT_WRITES: usize = 16;

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

/// Arguments of `retry`.
#[derive(Debug, clap::Args)]
pub(crate) struct RetryArguments {
    #[command(flatten)]
    targets: Targets,
}

/// Arguments of `adopt`.
#[derive(Debug, clap::Args)]
pub(crate) struct AdoptArguments {
    #[command(flatten)]
    targets: Targets,
    /// Namespace of the installation that is to serve them. Default: --namespace, then the namespace of the context.
    #[arg(long, value_name = "NS", env = "KUBESVC_OPERATOR_NAMESPACE")]
    operator_namespace: Option<String>,
}

/// Runs `activate` or `deactivate`: sets the desired state in the spec.
pub(crate) async fn set_state(
    scope: &ScopeArguments,
    arguments: &DesiredStateArguments,
    desired: DesiredState,
) -> Result<(), CommandError> {
    arguments.targets.check(scope)?;
    let session = ApiSession::open(scope).await?;
    let (items, missing) = session.resolve(&arguments.targets).await?;
    let found = complain_of(&missing);
    let set = |item| set(&session, item, desired, arguments.force);
    let (changed, ended) = each(&items, set).await?;
    if arguments.wait && !changed.is_empty() {
        let goal = match desired {
            DesiredState::Active => Goal::Active,
            DesiredState::Inactive => Goal::Inactive,
        };
        wait::until(&session, changed, goal, arguments.timeout, false).await?;
    }
    found.and(ended)
}

/// Runs `retry`: retries at once and resets the failure count to 0.
pub(crate) async fn retry(scope: &ScopeArguments, arguments: &RetryArguments) -> Result<(), CommandError> {
    arguments.targets.check(scope)?;
    let session = ApiSession::open(scope).await?;
    let retry = (RETRY_ANNOTATION, || Ulid::generate().to_string());
    annotate(&session, &arguments.targets, retry, "is tried again").await
}

/// Runs `adopt`: asks an installation to serve accounts that another one serves.
pub(crate) async fn adopt(scope: &ScopeArguments, arguments: &AdoptArguments) -> Result<(), CommandError> {
    arguments.targets.check(scope)?;
    let session = ApiSession::open(scope).await?;
    let operator = arguments.operator_namespace.as_ref().unwrap_or(&session.namespace);
    match session.try_ask(session.api::<Service>(operator).get_opt(SERVICE)).await? {
        Ok(Some(_)) => {}
        Ok(None) => {
            return Err(CommandError::Failed(format!(
                "no operator is installed in namespace {operator} (it has no Service {SERVICE}); name its namespace with --operator-namespace"
            )));
        }
        // Who may not read Services says which namespace it is.
        Err(kube::Error::Api(status)) if status.code == 403 && arguments.operator_namespace.is_some() => {}
        Err(error) => {
            let asked = ResourceRequest { verb: "get", resource: "services", namespace: Some(operator) };
            return Err(session.failed(asked, &error));
        }
    }
    let outcome = format!("is to be served by the installation in namespace {operator}");
    let ask = (OPERATOR_ANNOTATION, || operator.clone());
    annotate(&session, &arguments.targets, ask, &outcome).await
}

/// Sets the annotation on the targets, which is how a person asks the operator for something, and prints what is then so
/// of each, such as `is tried again`.
async fn annotate(
    session: &ApiSession,
    targets: &Targets,
    (annotation, value): (&str, impl Fn() -> String),
    outcome: &str,
) -> Result<(), CommandError> {
    let (items, missing) = session.resolve(targets).await?;
    let found = complain_of(&missing);
    let annotate = |item| {
        let patch = json!({"metadata": {"annotations": {annotation: value()}}});
        async move {
            session.patch_account(item, patch).await?;
            Ok((format!("{} {outcome}", resource_name(item.name())), ()))
        }
    };
    let (_, ended) = each(&items, annotate).await?;
    found.and(ended)
}

/// Acts on items, several at once, and prints a line of each, or its error, in their order. Returns what came of those that
/// succeeded, and whether all did.
pub(super) async fn each<'a, T, R, F: Future<Output = Result<(String, R), CommandError>>>(
    items: &'a [T],
    act: impl FnMut(&'a T) -> F,
) -> Result<(Vec<R>, Result<(), CommandError>), CommandError> {
    let (mut done, mut ended) = (Vec::new(), Ok(()));
    let mut answers = stream::iter(items).map(act).buffered(MAX_CONCURRENT_WRITES);
    while let Some(answer) = answers.next().await {
        match answer {
            Ok((line, result)) => {
                terminal::print(&line)?;
                done.push(result);
            }
            Err(error) => {
                if let CommandError::Failed(reason) | CommandError::Usage(reason) = error {
                    complain(&reason);
                }
                ended = Err(CommandError::AlreadyPrinted);
            }
        }
    }
    Ok((done, ended))
}

/// Sets the desired state of one account.
async fn set(
    session: &ApiSession,
    item: &AccountObject,
    desired: DesiredState,
    force: bool,
) -> Result<(String, AccountObject), CommandError> {
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
        return Ok((format!("{} {word}", resource_name(name)), item.clone()));
    }
    if let Some(owner) = item.account.gitops_owner().filter(|_| !force) {
        return Err(CommandError::Failed(format!(
            "account {name} is managed by {owner}: set spec.state: {value} there, or repeat with --force"
        )));
    }
    // As written: the version read before may report a failure that this change supersedes.
    let written = session.patch_account(item, json!({"spec": {"state": value}})).await?;
    Ok((format!("{} {word}", resource_name(name)), written))
}
