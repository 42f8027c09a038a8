//! `kubectl kubesvc credential create`: makes a service account with a token in a target cluster, and stores the
//! kubeconfig made of it as the Secret of an account. Running it again makes a new token.

mod creation;
mod manifests;
#[cfg(test)]
mod tests;
mod write;

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;

use self::creation::Creation;
use self::manifests::Preset;
use crate::api_session::ApiSession;
use crate::arguments::{CommandError, ScopeArguments, duration};
use crate::own_kubeconfig;
use crate::resources::bare;
use kubesvc_core::object_names;

pub(crate) const EXAMPLES: &str = "\
Examples:
  kubectl kubesvc credential create production --target-context production-admin --preset deploy";

const CREATE_EXAMPLES: &str = "\
Examples:
  kubectl kubesvc credential create production --target-context production-admin --preset deploy
  kubectl kubesvc credential create shop --target-context eu --preset view --namespaces shop,shop-jobs -n spinnaker
  kubectl kubesvc credential create production --target-context production-admin --preset deploy --dry-run -o yaml

Run it again before the token expires: no agent drops the account. --context and --kubeconfig select the operator's cluster.";

/// Shortest token lifetime that API servers accept.
const MIN_DURATION: Duration = Duration::from_secs(600);

/// Arguments of `credential`.
#[derive(Debug, clap::Args)]
pub(crate) struct CredentialArguments {
    #[command(subcommand)]
    command: CredentialCommand,
}

#[derive(Debug, clap::Subcommand)]
enum CredentialCommand {
    /// Make, or renew, an account's credential in its cluster: service account, role, binding, token, kubeconfig, Secret.
    #[command(after_help = CREATE_EXAMPLES)]
    Create(CreateArguments),
}

#[derive(Debug, clap::Args)]
struct CreateArguments {
    /// Name of the account, which need not exist yet, and of the Secret unless the account names another.
    #[arg(value_name = "CLUSTER")]
    cluster: String,
    /// Rights: see workloads, see and deploy them, or deploy with Helm, which lists Secrets. The same as `rbac.preset` of the agent's chart.
    #[arg(long, value_enum)]
    preset: Preset,
    /// Limit the rights to these namespaces. Default: all.
    #[arg(long, value_name = "NS,…", value_delimiter = ',')]
    namespaces: Vec<String>,
    /// Context of the target cluster, with which you administer it.
    #[arg(long, value_name = "NAME", required_unless_present = "target_kubeconfig")]
    target_context: Option<String>,
    /// Kubeconfig of the target cluster. Default: the one that the operator's cluster is read from.
    #[arg(long, value_name = "FILE")]
    target_kubeconfig: Option<PathBuf>,
    /// Namespace of the service account; made if it is not there. Default: the first of --namespaces, else kubesvc.
    #[arg(long, value_name = "NS")]
    target_namespace: Option<String>,
    /// URL at which agents reach the target's API server, if it differs from yours.
    #[arg(long, value_name = "URL")]
    server: Option<String>,
    /// Lifetime of the token; the API server may give a shorter one.
    #[arg(long, value_name = "TIME", default_value = "8760h", value_parser = duration)]
    duration: Duration,
    /// The target is the operator's own cluster, on purpose.
    #[arg(long)]
    same_cluster: bool,
    /// Have both API servers check everything, and change nothing. No token is made.
    #[arg(long)]
    dry_run: bool,
    /// Print the objects instead of one line for each, the Secret with its kubeconfig included.
    #[arg(short, long, value_enum, value_name = "FORMAT")]
    output: Option<ObjectFormat>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ObjectFormat {
    Json,
    Yaml,
}

/// Runs the command.
pub(crate) async fn run(scope: &ScopeArguments, arguments: &CredentialArguments) -> Result<(), CommandError> {
    let CredentialCommand::Create(arguments) = &arguments.command;
    check(scope, arguments)?;
    let operator = ApiSession::open(scope).await?;
    let target_scope = ScopeArguments {
        context: arguments.target_context.clone(),
        kubeconfig: arguments.target_kubeconfig.clone().or_else(|| scope.kubeconfig.clone()),
        ..ScopeArguments::default()
    };
    let target = ApiSession::open(&target_scope).await?;
    let mut entry = own_kubeconfig::read(&target_scope)?.cluster;
    own_kubeconfig::inline_authority(&mut entry)?;
    if let Some(server) = &arguments.server {
        entry.server = Some(server.clone());
    }
    let account = match operator.find_account(&arguments.cluster).await? {
        Some(item) => Some(item.account),
        None => None,
    };
    let creation = Creation { arguments, operator, target, entry, account };
    creation.run().await
}

fn check(scope: &ScopeArguments, arguments: &CreateArguments) -> Result<(), CommandError> {
    let usage = |reason: String| Err(CommandError::Usage(reason));
    let CreateArguments { cluster, namespaces, .. } = arguments;
    if scope.all_namespaces {
        return usage("--all-namespaces has no meaning here; --namespace is the account's".to_owned());
    }
    if bare(cluster) != cluster
        || !object_names::is_dns_subdomain(cluster)
        || !object_names::is_label_value(cluster)
    {
        return usage(format!(
            "{cluster:?} is no name for a credential: use at most 63 small letters, digits, dashes and dots"
        ));
    }
    let named = namespaces.iter().chain(&arguments.target_namespace);
    if let Some(namespace) = named.into_iter().find(|name| !object_names::is_dns_label(name)) {
        return usage(format!("{namespace:?} is no name of a namespace"));
    }
    if arguments.duration < MIN_DURATION || i64::try_from(arguments.duration.as_secs()).is_err() {
        return usage("--duration is at least 10m".to_owned());
    }
    Ok(())
}
