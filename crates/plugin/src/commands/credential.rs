//! `kubectl kubesvc credential create`: applies a service account with rights in a target cluster, and stores a kubeconfig
//! with a token of it as the Secret of an account. Running it again makes a new token.

mod manifests;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::time::Duration;

use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use kube::api::{DynamicObject, Patch, PatchParams};

use self::manifests::{CredentialRights, Manifest, Preset};
use crate::api_session::{ApiSession, ResourceRequest};
use crate::arguments::{CommandError, ScopeArguments, duration};
use crate::own_kubeconfig;
use kubesvc_core::spec::DEFAULT_SECRET_KEY;
use kubesvc_core::{PLUGIN_FIELD_MANAGER, object_names};
use kubesvc_runtime::terminal;

pub(crate) const EXAMPLES: &str = "\
Examples:
  kubectl kubesvc credential create production --target-context production-admin --preset deploy";

const CREATE_EXAMPLES: &str = "\
Examples:
  kubectl kubesvc credential create production --target-context production-admin --preset deploy
  kubectl kubesvc credential create shop --target-context eu --preset view --namespaces shop,shop-jobs -n spinnaker

Run it again before the token expires: no agent drops the account. --context and --kubeconfig select the operator's cluster.";

/// Namespace of service accounts with rights in all namespaces.
const DEFAULT_HOME: &str = "kubesvc";
/// Stands for the token while the rest of the kubeconfig is checked.
const NO_TOKEN: &str = "none";
/// Maximum length of the name of a field manager, in characters.
const MAX_MANAGER: usize = 128;
/// Shortest lifetime of a token that an API server gives.
const MIN_DURATION: Duration = Duration::from_mins(10);
/// Difference between the lifetime asked for and the one given that is not worth a word, in seconds.
const TOLERATED_SECONDS: i64 = 60;

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
}

/// Runs the command.
pub(crate) async fn run(scope: &ScopeArguments, arguments: &CredentialArguments) -> Result<(), CommandError> {
    let CredentialCommand::Create(arguments) = &arguments.command;
    let CreateArguments { cluster, namespaces, .. } = arguments;
    check(arguments)?;
    if scope.all_namespaces {
        return Err(CommandError::Usage(
            "--all-namespaces has no meaning here; --namespace is the account's".to_owned(),
        ));
    }
    let operator = ApiSession::open(scope).await?;
    let target_scope = ScopeArguments {
        context: arguments.target_context.clone(),
        kubeconfig: arguments.target_kubeconfig.clone().or_else(|| scope.kubeconfig.clone()),
        ..ScopeArguments::default()
    };
    let target = ApiSession::open(&target_scope).await?;
    let mut entry = own_kubeconfig::read(&target_scope)?.cluster;
    own_kubeconfig::inline_authority(&mut entry)?;
    entry.server = arguments.server.clone().or(entry.server);
    let spec = operator.find_account(cluster).await?.map(|found| found.account.spec);
    let context = spec.as_ref().and_then(|spec| spec.context.as_deref()).unwrap_or(cluster);
    let kubeconfig = |token: &str| {
        manifests::kubeconfig(&entry, context, namespaces.first(), token).map_err(|error| {
            format!("an account cannot use the cluster entry of the target's kubeconfig: {error}")
        })
    };
    let reference = spec.as_ref().and_then(|spec| spec.kubeconfig.secret_ref.as_ref());
    let (name, key) = reference.map_or((cluster.as_str(), DEFAULT_SECRET_KEY), |one| (&one.name, one.key()));
    let secret = |token: &str, expires: &str| {
        let place = (operator.namespace.as_str(), name, key);
        Ok::<_, CommandError>(manifests::secret(cluster, place, expires, kubeconfig(token)?))
    };
    // The credential of another cluster is not replaced: to the API server, somebody else manages it.
    let server = entry.server.as_deref().unwrap_or_default().chars().filter(char::is_ascii_graphic);
    let manager: String =
        format!("{PLUGIN_FIELD_MANAGER} ").chars().chain(server).take(MAX_MANAGER).collect();
    // What needs no token is tried before anything is made.
    let untold = jiff::Timestamp::UNIX_EPOCH.to_string();
    let trial = PatchParams { dry_run: true, ..PatchParams::apply(&manager) };
    apply(&operator, &secret(NO_TOKEN, &untold)?, &trial).await?;

    let home =
        arguments.target_namespace.as_ref().or(namespaces.first()).map_or(DEFAULT_HOME, String::as_str);
    let grant = CredentialRights { credential: cluster, preset: arguments.preset, namespaces, home };
    make_home(&target, &grant).await.map_err(in_target)?;
    for manifest in grant.manifests() {
        apply(&target, &manifest, &PatchParams::apply(PLUGIN_FIELD_MANAGER)).await.map_err(in_target)?;
    }
    let (service_account, lifetime) = (grant.name(), arguments.duration);
    let made = target.service_account_token((home, &service_account), lifetime, Vec::new());
    let token = made.await.map_err(in_target)?;
    let expires = token.expiration_timestamp.0;

    let stored = secret(&token.token, &expires.to_string())?;
    apply(&operator, &stored, &PatchParams::apply(&manager)).await?;

    let given = expires.as_second() - jiff::Timestamp::now().as_second();
    let asked = i64::try_from(lifetime.as_secs()).unwrap_or(i64::MAX);
    let shorter = if given < asked - TOLERATED_SECONDS {
        " The API server gives no longer lifetime; docs/credentials.md says how to renew it by itself."
    } else {
        ""
    };
    terminal::note(&format!("The token expires at {expires}: run this again before.{shorter}"));
    match &spec {
        None => terminal::note(&format!(
            "There is no account {cluster} in namespace {} yet: create one with spec.kubeconfig.secretRef.name: {name}",
            operator.namespace
        )),
        Some(_) if reference.is_none() => terminal::note(&format!(
            "Account {cluster} reads another kubeconfig: set spec.kubeconfig to secretRef: {{name: {name}}}"
        )),
        Some(_) => {}
    }
    Ok(())
}

/// Refuses names of which no object can be made.
fn check(arguments: &CreateArguments) -> Result<(), CommandError> {
    let CreateArguments { cluster, namespaces, target_namespace, .. } = arguments;
    if !object_names::is_dns_subdomain(cluster) || !object_names::is_label_value(cluster) {
        return Err(CommandError::Usage(format!(
            "{cluster:?} is no name for a credential: use at most 63 small letters, digits, dashes and dots"
        )));
    }
    if arguments.duration < MIN_DURATION {
        return Err(CommandError::Usage("--duration is at least 10m: no API server gives less".to_owned()));
    }
    let mut named = namespaces.iter().chain(target_namespace);
    match named.find(|name| !object_names::is_dns_label(name)) {
        Some(namespace) => Err(CommandError::Usage(format!("{namespace:?} is no name of a namespace"))),
        None => Ok(()),
    }
}

/// Makes the namespace of the service account if it is not there, unless the rights are limited to it. If the user may not
/// see that, the next request says what is missing.
async fn make_home(target: &ApiSession, grant: &CredentialRights<'_>) -> Result<(), CommandError> {
    if grant.namespaces.iter().any(|namespace| namespace == grant.home) {
        return Ok(());
    }
    let namespaces: Api<Namespace> = Api::all(target.client.clone());
    match target.try_ask(namespaces.get_metadata(grant.home)).await? {
        Err(kube::Error::Api(status)) if status.code == 404 => {
            apply(target, &grant.home_manifest(), &PatchParams::apply(PLUGIN_FIELD_MANAGER)).await
        }
        _ => Ok(()),
    }
}

/// Applies an object. Fields that somebody else manages are left alone: the API server reports a conflict.
async fn apply(
    session: &ApiSession,
    manifest: &Manifest,
    parameters: &PatchParams,
) -> Result<(), CommandError> {
    let (client, resource) = (session.client.clone(), &manifest.resource);
    let namespace = manifest.namespace.as_deref();
    let api: Api<DynamicObject> = match namespace {
        Some(namespace) => Api::namespaced_with(client, namespace, resource),
        None => Api::all_with(client, resource),
    };
    let patch = Patch::Apply(&manifest.object);
    match session.try_ask(api.patch(&manifest.name, parameters, &patch)).await? {
        Ok(_) if parameters.dry_run => Ok(()),
        Ok(_) => Ok(terminal::print(&format!("{} applied", manifest.shown()))?),
        Err(kube::Error::Api(status)) if status.code == 409 => Err(CommandError::Failed(format!(
            "{} is there, and somebody else's: {}; delete it, or choose another name",
            manifest.shown(),
            status.message
        ))),
        Err(error) => {
            let asked = ResourceRequest { verb: "patch", resource: &resource.plural, namespace };
            Err(session.failed(asked, &error))
        }
    }
}

/// Says that an error is about the target cluster, since the command talks to two.
fn in_target(error: CommandError) -> CommandError {
    match error {
        CommandError::Failed(reason) => CommandError::Failed(format!("target cluster: {reason}")),
        other => other,
    }
}
